"""Topics, storage, the past, access, and the form that lets somebody in."""

import json
from collections.abc import Callable

import httpx
import pytest

from tests.broker.admin.pages.scene import PAYLOAD, csrf_in
from tests.broker.admin.running import PASSWORD, Running

Browse = Callable[[str], httpx.Client]


def test_who_gets_a_topic_is_told_of_sessions_and_groups(browse: Browse) -> None:
    client = browse("vera")
    page = client.get("/topics?topic=plant/7/alarm").text
    assert "2 stored sessions, 1 connected" in page and "there-1" in page
    shared = client.get("/topics?topic=orders/1").text
    assert "1 of 1 connected" in shared
    assert "&#39;a/#&#39;" in client.get("/topics?topic=a/%23").text


def test_retained_messages_are_listed_by_filter(browse: Browse) -> None:
    client = browse("vera")
    assert "/retained?topic=plant%2F7%2Fstate" in client.get("/topics?filter=plant/%23").text
    assert "matches &#39;x/#&#39;" in client.get("/topics?filter=x/%23").text
    assert "must be last" in client.get("/topics?filter=a/%23/b").text


def test_a_retained_payload_needs_its_permission(browse: Browse) -> None:
    path = "/retained?topic=plant/7/state"
    assert "&lt;b&gt;high" in browse("anna").get(path).text
    page = browse("vera").get(path).text
    assert "may not read payloads" in page and PAYLOAD.decode() not in page


def test_the_disk_has_figures_and_reclaim_is_for_operators(browse: Browse) -> None:
    assert "Free on the disk" in browse("vera").get("/storage").text
    assert "Who needs which generation" in browse("vera").get("/storage").text
    assert "/storage/reclaim" not in browse("vera").get("/storage").text
    assert "/storage/reclaim" in browse("olga").get("/storage").text


def test_the_past_has_the_start_and_the_verdict(port_town: Running, browse: Browse) -> None:
    client = browse("vera")
    # A history is read from a copy, which may be of just before the start.
    port_town.wait(lambda: "books" in client.get("/past").text)
    assert "There is none." in client.get("/past").text
    folder = port_town.broker.data_dir / "holdfast-audit"
    folder.mkdir()
    invariants = {"D1": {"status": "ok", "title": "none is lost", "violated": 0}}
    verdict = {"status": "ok", "invariants": invariants}
    (folder / "verdict.json").write_text(json.dumps(verdict))
    assert "all invariants hold" in client.get("/past").text


def test_access_names_users_and_the_log(browse: Browse) -> None:
    page = browse("anna").get("/access").text
    assert "vera" in page and "log in" in page and "argon2" not in page


def test_the_form_leads_to_where_somebody_wanted_to_go(port_town: Running) -> None:
    client = port_town.as_browser()
    page = client.get("/login?next=/storage").text
    fields = {"name": "vera", "password": PASSWORD, "csrf": csrf_in(page), "next": "/storage"}
    assert client.post("/login", data=fields).headers["location"] == "/storage"
    assert client.get("/login").headers["location"] == "/"


@pytest.mark.parametrize("place", ["//evil", "/\\evil", "https://evil", "/a\r\nX: y", ""])
def test_the_form_leads_nowhere_else(port_town: Running, place: str) -> None:
    client = port_town.as_browser()
    page = client.get("/login", params={"next": place}).text
    assert 'name="next" value="/"' in page
    fields = {"name": "vera", "password": PASSWORD, "csrf": csrf_in(page), "next": place}
    assert client.post("/login", data=fields).headers["location"] == "/"


def test_a_wrong_password_is_asked_for_again(port_town: Running) -> None:
    client = port_town.as_browser()
    page = client.get("/login").text
    fields = {"name": "<vera>", "password": "wrong", "csrf": csrf_in(page)}
    answer = client.post("/login", data=fields)
    assert answer.status_code == 401
    assert "name or password is wrong" in answer.text
    assert 'value="&lt;vera&gt;"' in answer.text and 'wrong"' not in answer.text
