"""Who asks: by token or by cookie, and never because a page elsewhere made a browser ask."""

from pathlib import Path
from typing import Final

import httpx
import pytest
from starlette.datastructures import Headers

from broker.admin.access.roles import Role
from broker.admin.access.tokens import NAME_OF_FILE
from broker.admin.web.gate import cookie_of, form_of, session_cookie
from tests.broker.admin.application import PASSWORD, Application

ME: Final = "/api/v1/me"
RECLAIM: Final = "/api/v1/storage/reclaim"


async def log_in(application: Application, client: httpx.AsyncClient, name: str = "ann") -> str:
    """Log in with a browser; return the CSRF token of the session."""
    signing_in = application.app.state.signing_in
    cookie, field = signing_in.new_form()
    client.cookies.set("holdfast-form", cookie)
    answer = await client.post(
        "/login", data={"name": name, "password": PASSWORD, "csrf": field}, headers=SAME
    )
    assert answer.status_code == 303, answer.text
    client.cookies.set("holdfast", answer.cookies["holdfast"])
    login = application.services.logins.find(answer.cookies["holdfast"], application.now_s)
    assert login is not None
    return login.csrf


SAME: Final = {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}


def test_a_token_says_who_asks_and_a_wrong_one_lets_nobody_in(tmp_path: Path) -> None:
    application = Application(tmp_path)
    token = application.token(Role.OPERATOR, payloads=True, name="robot")

    async def story(client: httpx.AsyncClient) -> None:
        me = await client.get(ME, headers={"Authorization": f"bearer {token}"})
        assert me.json() == {
            "name": "robot",
            "role": "operator",
            "payloads": True,
            "how": "token",
        }
        for wrong in (token[:-1], f"Basic {token}", "Bearer", f"Bearer {token}x", "Bearer \xff"):
            answer = await client.get(ME, headers={"Authorization": wrong.encode("latin-1")})
            assert answer.status_code == 401
            assert "invalid_token" in answer.headers["www-authenticate"]
        twice = [("Authorization", f"Bearer {token}")] * 2
        assert (await client.get(ME, headers=twice)).status_code == 401
        application.services.tokens.remove("robot")
        gone = await client.get(ME, headers={"Authorization": f"Bearer {token}"})
        assert gone.status_code == 401

    application.play(story)


def test_a_file_of_tokens_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    application = Application(tmp_path)
    token = application.token()
    (tmp_path / NAME_OF_FILE).write_text("{")

    async def story(client: httpx.AsyncClient) -> None:
        answer = await client.get(ME, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 503
        assert "remove it and add the entries again" in answer.json()["detail"]

    application.play(story)


def test_a_browser_that_has_logged_in_is_known_until_it_logs_out(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user("ann", Role.OPERATOR)

    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.get(ME)).status_code == 401
        csrf = await log_in(application, client)
        assert (await client.get(ME)).json()["how"] == "login"
        out = await client.post("/logout", headers={**SAME, "X-CSRF-Token": csrf})
        assert out.status_code == 303
        assert (await client.get(ME)).status_code == 401

    application.play(story)


def test_a_change_by_cookie_needs_the_token_of_its_own_session(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user("ann")
    application.user("bob")

    async def story(client: httpx.AsyncClient) -> None:
        other = await log_in(application, client, "bob")
        csrf = await log_in(application, client, "ann")
        for wrong in ("", other, csrf[:-1], "ä"):
            answer = await client.post(
                RECLAIM, headers={**SAME, "X-CSRF-Token": wrong.encode("utf-8")}
            )
            assert answer.status_code == 403, wrong
            assert "CSRF" in answer.json()["detail"]
        # There is no broker here, so a request that passes is answered with 503.
        header = await client.post(RECLAIM, headers={**SAME, "X-CSRF-Token": csrf})
        field = await client.post(RECLAIM, data={"csrf": csrf}, headers=SAME)
        assert (header.status_code, field.status_code) == (503, 503)

    application.play(story)


def test_a_page_elsewhere_cannot_make_a_browser_change_anything(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user("ann")

    async def story(client: httpx.AsyncClient) -> None:
        csrf = await log_in(application, client)
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "http://127.0.0.1:9999"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:8080"},
        ):
            answer = await client.post(RECLAIM, headers={**headers, "X-CSRF-Token": csrf})
            assert answer.status_code == 403
            assert "another site" in answer.json()["detail"]

    application.play(story)


def test_a_token_needs_no_csrf_token_even_beside_a_cookie(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user("ann")
    token = application.token(Role.OPERATOR)

    async def story(client: httpx.AsyncClient) -> None:
        await log_in(application, client)
        answer = await client.post(RECLAIM, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 503

    application.play(story)


@pytest.mark.parametrize("change", ["removed", "another password", "another role"])
def test_who_is_changed_or_removed_has_to_log_in_again(tmp_path: Path, change: str) -> None:
    application = Application(tmp_path)
    application.user("ann", Role.OPERATOR)
    users = application.services.users

    async def story(client: httpx.AsyncClient) -> None:
        await log_in(application, client)
        assert (await client.get(ME)).json()["role"] == "operator"
        if change == "removed":
            users.remove("ann")
        elif change == "another password":
            users.change("ann", role=Role.ADMIN, password="x" * 20, now_ms=2)
        else:
            users.change("ann", role=Role.VIEWER, payloads=True, now_ms=2)
        assert (await client.get(ME)).status_code == 401
        assert len(application.services.logins) == 0

    application.play(story)


def test_the_name_of_the_cookie_binds_it_to_the_host_where_there_is_tls() -> None:
    assert session_cookie(True).startswith("__Host-")
    assert session_cookie(False) == "holdfast"


@pytest.mark.parametrize("text", ["", "x", "holdfast", "a=b; holdfast", "\x00=\x01", "=; =;"])
def test_cookies_that_are_none_are_nobodys(text: str) -> None:
    assert cookie_of(Headers({"cookie": text}), "holdfast") in (None, "")


def test_a_form_is_read_only_where_it_says_that_it_is_one() -> None:
    def fields(content_type: str, body: bytes) -> dict[str, str]:
        headers = [(b"content-type", content_type.encode())]
        return form_of({"type": "http", "headers": headers, "state": {"body": body}})

    form = "application/x-www-form-urlencoded"
    assert fields(form, b"a=1&a=2&b=%C3%A4") == {"a": "2", "b": "ä"}
    assert fields(f"{form}; charset=utf-8", b"a=") == {"a": ""}
    assert fields("text/plain", b"a=1") == {}
    assert fields(form, b"\xff=1") == {}
    assert fields(form, b"&".join(b"%d=1" % each for each in range(1000))) == {}
