"""Users, tokens and one's own password, changed with forms."""

import re
from collections.abc import Callable

import httpx
import pytest

from tests.broker.admin.pages.scene import csrf_in, logged_in
from tests.broker.admin.running import PASSWORD, Running

Browse = Callable[[str], httpx.Client]
OTHER = "another password"


def send(client: httpx.Client, page: str, path: str, **fields: str) -> httpx.Response:
    """Send a form of a page; follow to the page after it."""
    csrf = csrf_in(client.get(page).text)
    answer = client.post(path, data={"csrf": csrf, **fields})
    return client.get(answer.headers["location"]) if answer.status_code == 303 else answer


def log_in(running: Running, name: str, password: str) -> httpx.Response:
    """Log in anew."""
    client = running.as_browser()
    csrf = csrf_in(client.get("/login").text)
    return client.post("/login", data={"name": name, "password": password, "csrf": csrf})


def test_a_user_is_added_changed_and_removed(port_town: Running, browse: Browse) -> None:
    anna = browse("anna")
    new = {"name": "bert", "role": "viewer", "password": PASSWORD}
    page = send(anna, "/access", "/access/users", **new).text
    assert "bert may log in, as viewer." in page and "/access/user?name=bert" in page
    bert = logged_in(port_town, "bert")
    assert bert.get("/access").status_code == 403
    change = {"role": "admin", "password": ""}
    page = send(anna, "/access/user?name=bert", "/access/user?name=bert", **change).text
    assert "bert is changed" in page
    assert bert.get("/access").headers["location"].startswith("/login")
    assert logged_in(port_town, "bert").get("/access").status_code == 200
    path = "/access/user/remove?name=bert"
    assert "logged out everywhere at once" in anna.get(path).text
    assert "The user bert is removed." in send(anna, path, path).text
    assert log_in(port_town, "bert", PASSWORD).status_code == 401
    lines = [each for each in port_town.log_lines() if each.get("user") == "bert"]
    assert [(each["what"], each["name"]) for each in lines] == [
        ("add user", "anna"),
        ("change user", "anna"),
        ("remove user", "anna"),
    ]


@pytest.mark.parametrize(
    ("page", "path", "fields", "status", "text"),
    [
        ("/access", "/access/users", {"name": "a b"}, 400, "expected letters"),
        ("/access", "/access/users", {"name": "vera"}, 400, "there is a user"),
        ("/access", "/access/users", {"password": "short"}, 400, "12 to 1024 characters"),
        ("/access", "/access/tokens", {"expires": "soon"}, 400, "expected a time"),
        ("/access", "/access/tokens", {"role": "king"}, 400, "expected viewer"),
        ("/access", "/access/user?name=anna", {"role": "viewer"}, 400, "last user with the role"),
        ("/access", "/access/user/remove?name=anna", {}, 409, "last user with the role"),
    ],
)
def test_what_cannot_be_done_is_told(
    browse: Browse, page: str, path: str, fields: dict[str, str], status: int, text: str
) -> None:
    right = {"name": "carl", "role": "viewer", "password": PASSWORD, "expires": "1d"}
    answer = send(browse("anna"), page, path, **{**right, **fields})
    assert answer.status_code == status and text in answer.text, answer.text


def test_a_token_is_shown_once_and_works_until_it_is_removed(
    port_town: Running, browse: Browse
) -> None:
    anna = browse("anna")
    wanted = {"name": "ci", "role": "operator", "expires": "30d"}
    page = send(anna, "/access", "/access/tokens", **wanted).text
    found = re.search(r'id="token">([^<]+)<', page)
    assert found is not None
    headers = {"Authorization": f"Bearer {found[1]}"}
    me = port_town.http().get("/api/v1/me", headers=headers).json()
    assert (me["name"], me["role"]) == ("ci", "operator")
    assert found[1] not in anna.get("/access").text
    path = "/access/token/remove?name=ci"
    assert "refused from the next request on" in anna.get(path).text
    assert "The token ci is removed." in send(anna, path, path).text
    assert port_town.http().get("/api/v1/me", headers=headers).status_code == 401


def test_everybody_changes_their_own_password_and_stays_logged_in_here_alone(
    port_town: Running, browse: Browse
) -> None:
    new = {"name": "dora", "role": "viewer", "password": PASSWORD}
    send(browse("anna"), "/access", "/access/users", **new)
    here, elsewhere = logged_in(port_town, "dora"), logged_in(port_town, "dora")
    for fields, status, text in (
        ({"old": "x", "new": OTHER, "again": OTHER}, 403, "the old password is wrong"),
        ({"old": PASSWORD, "new": OTHER, "again": "x"}, 400, "the new passwords differ"),
        ({"old": PASSWORD, "new": "short", "again": "short"}, 400, "12 to 1024 characters"),
    ):
        answer = send(here, "/password", "/password", **fields)
        assert answer.status_code == status and text in answer.text
    right = {"old": PASSWORD, "new": OTHER, "again": OTHER}
    assert "Your password is changed." in send(here, "/password", "/password", **right).text
    assert here.get("/").status_code == 200
    assert elsewhere.get("/").headers["location"].startswith("/login")
    assert log_in(port_town, "dora", PASSWORD).status_code == 401
    assert log_in(port_town, "dora", OTHER).status_code == 303
