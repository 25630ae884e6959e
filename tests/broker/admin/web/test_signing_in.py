"""Log in and out: the form, the cookie, failures that lock out, and names that stay unknown."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.admin.access.lockout import FIRST_S, NAME_FAILURES_MAX
from broker.admin.access.users import NAME_OF_FILE
from tests.broker.admin.application import PASSWORD, Application


async def post(
    application: Application, client: httpx.AsyncClient, name: str, password: str, **fields: str
) -> httpx.Response:
    """Send a log-in form as a browser does that has just got it."""
    cookie, field = application.app.state.signing_in.new_form()
    client.cookies.set("holdfast-form", cookie)
    data = {"name": name, "password": password, "csrf": field, **fields}
    return await client.post("/login", data=data)


def lines(application: Application) -> list[dict[str, Any]]:
    path = application.data_dir / "admin.log"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("has_tls", [False, True])
def test_the_cookie_is_for_this_site_alone_and_no_script_sees_it(
    tmp_path: Path, has_tls: bool
) -> None:
    tls = {"admin_tls_certificate": "never-opened-here.pem"} if has_tls else {}
    application = Application(tmp_path, **tls)
    application.user()

    async def story(client: httpx.AsyncClient) -> None:
        answer = await post(application, client, "ann", PASSWORD)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        (cookie,) = (each for each in answer.headers.get_list("set-cookie") if "holdfast=" in each)
        attributes = {each.strip().lower() for each in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= attributes
        assert ("secure" in attributes) == has_tls
        assert cookie.startswith("__Host-") == has_tls

    application.play(story, "https://127.0.0.1:8080" if has_tls else "http://127.0.0.1:8080")
    assert lines(application)[-1]["what"] == "log in"
    assert PASSWORD not in (tmp_path / "admin.log").read_text()


def test_a_form_of_another_browser_or_none_is_refused(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user()

    async def story(client: httpx.AsyncClient) -> None:
        assert (await post(application, client, "ann", PASSWORD, csrf="")).status_code == 403
        _, other = application.app.state.signing_in.new_form()
        assert (await post(application, client, "ann", PASSWORD, csrf=other)).status_code == 403
        client.cookies.clear()
        bare = await client.post("/login", data={"name": "ann", "password": PASSWORD})
        assert bare.status_code == 403
        sent = await client.post("/login", json={"name": "ann", "password": PASSWORD})
        assert sent.status_code == 403
        assert len(application.services.logins) == 0

    application.play(story)


def test_a_wrong_name_and_a_wrong_password_are_answered_alike(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user()

    async def story(client: httpx.AsyncClient) -> None:
        known = await post(application, client, "ann", "wrong password")
        unknown = await post(application, client, "nobody", "wrong password")
        assert known.status_code == unknown.status_code == 401
        assert known.text == unknown.text

    application.play(story)
    assert [line["outcome"] for line in lines(application)] == ["refused", "refused"]


def test_after_some_failures_not_even_the_right_password_lets_in(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user()

    async def story(client: httpx.AsyncClient) -> None:
        for name in ("ann", "nobody"):
            for _ in range(NAME_FAILURES_MAX):
                assert (await post(application, client, name, "wrong password")).status_code == 401
            answer = await post(application, client, name, PASSWORD)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= FIRST_S
        users = tmp_path / NAME_OF_FILE
        users.rename(tmp_path / "aside")
        users.write_text("nobody can look here")
        locked = await post(application, client, "ann", PASSWORD)
        assert locked.status_code == 429, "a locked name costs no look, and no hash"
        (tmp_path / "aside").rename(users)
        application.now_s += FIRST_S + 1
        assert (await post(application, client, "ann", PASSWORD)).status_code == 303
        assert (await post(application, client, "ann", "wrong password")).status_code == 401

    application.play(story)
    assert [line["outcome"] for line in lines(application)].count("locked out") == 3


def test_a_browser_that_logs_in_again_has_one_session(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user()

    async def story(client: httpx.AsyncClient) -> None:
        first = (await post(application, client, "ann", PASSWORD)).cookies["holdfast"]
        second = (await post(application, client, "ann", PASSWORD)).cookies["holdfast"]
        assert first != second
        assert len(application.services.logins) == 1
        assert application.services.logins.find(second, application.now_s) is not None

    application.play(story)


def test_without_a_place_for_its_line_in_the_admin_log_nobody_logs_in(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user()
    (tmp_path / "admin.log").symlink_to("/dev/full")

    async def story(client: httpx.AsyncClient) -> None:
        answer = await post(application, client, "ann", PASSWORD)
        assert answer.status_code == 503
        assert len(application.services.logins) == 0

    application.play(story)


def test_log_out_without_a_session_is_no_error(tmp_path: Path) -> None:
    application = Application(tmp_path)

    async def story(client: httpx.AsyncClient) -> None:
        answer = await client.post("/logout")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")

    application.play(story)
