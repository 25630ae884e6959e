"""Users, tokens and one's own password over the API."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.admin.access.roles import Role
from broker.admin.access.users import NAME_OF_FILE
from broker.admin.api.table import BASE
from tests.broker.admin.application import PASSWORD, Application
from tests.broker.admin.web.test_signing_in import post

OTHER = "another password"


def lines(application: Application) -> list[dict[str, Any]]:
    path = application.data_dir / "admin.log"
    return [json.loads(line) for line in path.read_text().splitlines()]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def csrf_of(client: httpx.AsyncClient) -> dict[str, str]:
    """Return the header that a change with the client's cookie needs."""
    page = (await client.get("/password")).text
    return {"X-CSRF-Token": page.partition('name="csrf" value="')[2].partition('"')[0]}


def test_a_user_is_added_changed_and_removed_and_no_secret_is_logged(tmp_path: Path) -> None:
    application = Application(tmp_path)
    application.user("anna", Role.ADMIN)
    headers = bearer(application.token(Role.ADMIN, name="root"))

    async def story(client: httpx.AsyncClient) -> None:
        wanted = {"name": "bert", "role": "viewer", "password": PASSWORD}
        made = await client.post(f"{BASE}/users", json=wanted, headers=headers)
        assert (made.status_code, made.json()["role"]) == (200, "viewer")
        again = await client.post(f"{BASE}/users", json=wanted, headers=headers)
        assert (again.status_code, again.json()["detail"]) == (
            409,
            "there is a user 'bert' already",
        )
        change = {"role": "operator", "password": OTHER}
        changed = await client.post(f"{BASE}/users/bert", json=change, headers=headers)
        assert changed.json()["role"] == "operator"
        assert (await post(application, client, "bert", OTHER)).status_code == 303
        assert (await client.get(f"{BASE}/me")).json()["name"] == "bert"
        gone = await client.delete(f"{BASE}/users/bert", headers=headers)
        assert gone.json() == {"name": "bert"}
        assert (await client.get(f"{BASE}/me")).status_code == 401
        assert (await client.delete(f"{BASE}/users/bert", headers=headers)).status_code == 404
        last = await client.delete(f"{BASE}/users/anna", headers=headers)
        assert last.status_code == 409 and "last user with the role admin" in last.text

    application.play(story)
    said = [(each["what"], each.get("user"), each["outcome"]) for each in lines(application)]
    assert said[:2] == [("add user", "bert", "asked"), ("add user", None, "done")]
    assert ("change user", "bert", "asked") in said and ("remove user", "bert", "asked") in said
    text = (tmp_path / "admin.log").read_text()
    assert PASSWORD not in text and OTHER not in text
    assert PASSWORD not in (tmp_path / NAME_OF_FILE).read_text()


def test_a_token_is_told_once_and_lets_in_until_it_is_removed(tmp_path: Path) -> None:
    application = Application(tmp_path)
    headers = bearer(application.token(Role.ADMIN, name="root"))

    async def story(client: httpx.AsyncClient) -> None:
        wanted = {"name": "ci", "role": "viewer", "expires": "1d", "payloads": True}
        made = (await client.post(f"{BASE}/tokens", json=wanted, headers=headers)).json()
        mine = bearer(made["token"])
        me = (await client.get(f"{BASE}/me", headers=mine)).json()
        assert me == {"name": "ci", "role": "viewer", "payloads": True, "how": "token"}
        listed = await client.get(f"{BASE}/tokens", headers=headers)
        assert "ci" in listed.text and made["token"] not in listed.text
        refused = await client.post(f"{BASE}/tokens", json=wanted, headers=mine)
        assert refused.status_code == 403
        long = await client.post(
            f"{BASE}/tokens", json=wanted | {"expires": "9999d"}, headers=headers
        )
        assert long.status_code == 400 and "3660d" in long.text
        gone = await client.delete(f"{BASE}/tokens/ci", headers=headers)
        assert gone.json() == {"name": "ci"}
        assert (await client.get(f"{BASE}/me", headers=mine)).status_code == 401
        none = await client.post(
            f"{BASE}/me/password", json={"old": "x", "new": OTHER}, headers=headers
        )
        assert none.status_code == 409 and "a token has no password" in none.text

    application.play(story)
    assert "hf_" not in (tmp_path / "admin.log").read_text()


@pytest.mark.parametrize("role", list(Role))
def test_everybody_changes_their_own_password_with_the_old_one(tmp_path: Path, role: Role) -> None:
    application = Application(tmp_path)
    application.user("ann", role)

    async def story(client: httpx.AsyncClient) -> None:
        await post(application, client, "ann", PASSWORD)
        headers = await csrf_of(client)
        path = f"{BASE}/me/password"
        wrong = await client.post(path, json={"old": "x", "new": OTHER}, headers=headers)
        assert (wrong.status_code, wrong.json()["detail"]) == (403, "the old password is wrong")
        plain = await client.post(path, json={"old": PASSWORD, "new": OTHER})
        assert plain.status_code == 403 and "CSRF" in plain.text
        done = await client.post(path, json={"old": PASSWORD, "new": OTHER}, headers=headers)
        assert done.json() == {"name": "ann"}
        assert (await client.get(f"{BASE}/me")).status_code == 401
        assert (await post(application, client, "ann", OTHER)).status_code == 303

    application.play(story)
    said = [(each["what"], each["outcome"]) for each in lines(application)]
    assert ("change password", "refused") in said and ("change password", "done") in said
