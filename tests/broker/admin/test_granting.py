"""Users and tokens as the API and the pages change them."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker.admin import records
from broker.admin.access.private_file import BadEntry, EntryRefused, NoEntry
from broker.admin.access.roles import Role
from broker.admin.access.tokens import EXPIRES_DAYS_MAX, Tokens
from broker.admin.access.users import Users
from broker.admin.granting import Granting

PASSWORD = "correct horse battery"
NOW_MS = 1_700_000_000_000


def do(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def granting(directory: Path) -> Granting:
    return Granting(Users(directory), Tokens(directory), lambda: NOW_MS)


def test_what_is_made_here_is_what_the_commands_read(tmp_path: Path) -> None:
    made = do(granting(tmp_path).add_user(records.UserWanted("anna", "admin", PASSWORD, True)))
    assert (made.name, made.role, made.payloads) == ("anna", "admin", True)
    found = Users(tmp_path).verify("anna", PASSWORD)
    assert found is not None and found.role is Role.ADMIN
    token = do(granting(tmp_path).add_token(records.TokenWanted("ci", "viewer", "1d"), 86_400))
    read = Tokens(tmp_path).find(token.token, NOW_MS + 86_399_999)
    assert read is not None and read.name == "ci"
    assert Tokens(tmp_path).find(token.token, NOW_MS + 86_400_000) is None


def test_what_is_not_given_stays(tmp_path: Path) -> None:
    here = granting(tmp_path)
    do(here.add_user(records.UserWanted("anna", "admin", PASSWORD, True)))
    do(here.add_user(records.UserWanted("bert", "admin", PASSWORD)))
    changed = do(here.change_user("bert", records.UserChange(role="viewer")))
    assert (changed.role, changed.payloads) == ("viewer", False)
    changed = do(here.change_user("anna", records.UserChange(payloads=False)))
    assert (changed.role, changed.payloads) == ("admin", False)
    user = do(here.set_password("bert", "another password"))
    assert user.role is Role.VIEWER
    assert Users(tmp_path).verify("bert", "another password") is not None


def test_the_last_admin_stays_and_what_is_not_there_is_said(tmp_path: Path) -> None:
    here = granting(tmp_path)
    do(here.add_user(records.UserWanted("anna", "admin", PASSWORD)))
    with pytest.raises(EntryRefused, match="last user with the role admin"):
        do(here.remove_user("anna"))
    with pytest.raises(EntryRefused, match="last user with the role admin"):
        do(here.change_user("anna", records.UserChange(role="viewer")))
    for work in (here.remove_user("x"), here.remove_token("x")):
        with pytest.raises(NoEntry, match="'x'"):
            do(work)
    with pytest.raises(BadEntry, match="at most 3660d"):
        seconds = EXPIRES_DAYS_MAX * 86_400 + 1
        do(here.add_token(records.TokenWanted("ci", "viewer", "3661d"), seconds))
