"""Who gets a page, and what somebody gets instead."""

from collections.abc import Callable

import httpx
import pytest

from broker.admin.pages.rendering import CSP
from tests.broker.admin.running import Running

Browse = Callable[[str], httpx.Client]

PATHS = (
    "/",
    "/growth",
    "/session?id=boat-17",
    "/session/past?id=boat-17",
    "/connections",
    "/topics",
    "/retained?topic=plant/7/state",
    "/group?name=crew&filter=orders/%23",
    "/storage",
    "/past",
    "/password",
)
OPERATORS = (
    "/session/purge?id=boat-17",
    "/session/delete?id=boat-17",
    "/client/kick?id=there-1",
    "/retained/delete?topic=plant/7/state",
    "/trace",
    "/bans",
    "/group/purge?name=crew&filter=orders/%23",
    "/publish",
)
ADMINS = ("/access", "/broker", "/access/user?name=vera", "/access/user/remove?name=vera")
DEEDS = (
    "/storage/reclaim",
    "/broker/reload",
    "/broker/log-level",
    "/access/users",
    "/access/tokens",
    "/access/token/remove",
)


@pytest.mark.parametrize("path", (*PATHS, *OPERATORS, *ADMINS))
def test_who_is_not_known_is_led_to_the_form_and_back(port_town: Running, path: str) -> None:
    answer = port_town.as_browser().get(path)
    assert answer.status_code == 303
    place = httpx.URL(answer.headers["location"])
    assert place.path == "/login"
    assert place.params.get("next", "/") == path
    live = port_town.as_browser(**{"hx-request": "true"}).get(path)
    assert live.status_code == 401 and live.headers["hx-redirect"] == answer.headers["location"]


@pytest.mark.parametrize(
    ("name", "may_act", "may_administer"),
    [("vera", False, False), ("olga", True, False), ("anna", True, True)],
)
def test_a_role_opens_its_pages_and_no_other(
    browse: Browse, name: str, may_act: bool, may_administer: bool
) -> None:
    client = browse(name)
    for path in PATHS:
        assert client.get(path).status_code == 200, path
    for path in OPERATORS:
        assert client.get(path).status_code == (200 if may_act else 403), path
    for path in ADMINS:
        assert client.get(path).status_code == (200 if may_administer else 403), path


@pytest.mark.parametrize("path", (*OPERATORS, *DEEDS, *ADMINS[2:]))
def test_a_viewer_changes_nothing(port_town: Running, browse: Browse, path: str) -> None:
    client = browse("vera")
    csrf = client.get("/").text.partition('name="csrf" value="')[2].partition('"')[0]
    before = port_town.log_lines()
    answer = client.post(path, data={"csrf": csrf})
    assert answer.status_code == 403
    assert "This is not for you" in answer.text
    assert port_town.log_lines() == before


@pytest.mark.parametrize("path", (*OPERATORS, *DEEDS, *ADMINS[2:]))
def test_without_the_token_of_the_form_nothing_is_changed(browse: Browse, path: str) -> None:
    client = browse("olga")
    assert client.post(path, data={"csrf": "other"}).status_code == 403
    assert client.post(path).status_code == 403
    assert client.get("/session?id=boat-17").status_code == 200


def test_every_page_has_its_policy_and_is_not_kept(port_town: Running, browse: Browse) -> None:
    client = browse("anna")
    for path in (*PATHS, *ADMINS, "/session?id=nobody"):
        answer = client.get(path)
        assert answer.headers["content-security-policy"] == CSP, path
        assert answer.headers["cache-control"] == "no-store", path
    assert port_town.http().get("/login").headers["content-security-policy"] == CSP


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/session?id=nobody", 404, "no client &#39;nobody&#39; is connected"),
        ("/session", 400, "names no client"),
        ("/session?start=zz&digest=00", 404, "not there any more"),
        ("/?sort=luck", 400, "expected one of bytes"),
        ("/?cursor=zz", 400, "cursor"),
        ("/retained?topic=nothing", 404, "no retained message"),
        ("/retained?topic=a/%23", 400, "names no topic"),
        ("/group?name=crew", 400, "names no group"),
        ("/group?name=crew&filter=a", 404, "no shared group"),
        ("/access/user?name=nobody", 404, "no user"),
        ("/access/token/remove?name=none", 404, "no token"),
        ("/access?cursor=zz", 400, "expected that of another page"),
        ("/?match=%ff", 400, "not text"),
        ("/nowhere", 404, "Not found"),
        ("/static/none.js", 404, "no such file"),
    ],
)
def test_an_error_is_a_page_with_one_line(
    browse: Browse, path: str, status: int, text: str
) -> None:
    answer = browse("anna").get(path)
    assert answer.status_code == status, answer.text
    assert text in answer.text


def test_a_program_gets_a_problem_and_no_page(port_town: Running) -> None:
    answer = port_town.http().get("/nowhere")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
