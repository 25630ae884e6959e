"""A change has its lines in the log before and after, and needs its role."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from broker.admin.access.admin_log import AdminLogError
from broker.admin.access.roles import Role, Who
from broker.admin.asking import BadCursor
from broker.admin.problems import Refused
from broker.admin.services import demand, demand_payloads
from broker.admin.sources.lanes import NotThere
from tests.broker.admin.application import Application


def who(role: Role, *, payloads: bool = False) -> Who:
    return Who("ann", role, payloads, "token", "127.0.0.1")


def lines(directory: Path) -> list[dict[str, Any]]:
    path = directory / "admin.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def change(application: Application, role: Role, work: Any) -> Any:
    """Have somebody with a role change something that is for operators."""
    details = {"client_id": "boat"}

    async def run() -> Any:
        return await application.services.change(
            who(role), Role.OPERATOR, "kick client", details, work
        )

    try:
        return asyncio.run(run())
    finally:
        application.services.close()


def test_the_line_is_there_before_the_change_begins(tmp_path: Path) -> None:
    async def work() -> str:
        (asked,) = lines(tmp_path)
        assert (asked["outcome"], asked["client_id"]) == ("asked", "boat")
        return "result"

    assert change(Application(tmp_path), Role.ADMIN, work) == "result"
    assert [each["outcome"] for each in lines(tmp_path)] == ["asked", "done"]


def test_what_fails_is_told_as_that(tmp_path: Path) -> None:
    async def work() -> None:
        raise NotThere("no client 'boat' is connected")

    with pytest.raises(NotThere):
        change(Application(tmp_path), Role.OPERATOR, work)
    assert lines(tmp_path)[-1]["outcome"] == "404 no client 'boat' is connected"


def test_of_a_change_that_is_interrupted_the_log_does_not_say_that_it_was_done(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        change(Application(tmp_path), Role.OPERATOR, work)
    assert lines(tmp_path)[-1]["outcome"] == "not known: interrupted"


def test_without_a_role_nothing_is_done_and_nothing_written(tmp_path: Path) -> None:
    async def work() -> None:
        raise AssertionError

    with pytest.raises(Refused, match="for the role operator; 'ann' is viewer"):
        change(Application(tmp_path), Role.VIEWER, work)
    assert lines(tmp_path) == []


def test_without_its_line_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "admin.log").symlink_to("/dev/full")

    async def work() -> None:
        raise AssertionError

    with pytest.raises(AdminLogError, match="No space left"):
        change(Application(tmp_path), Role.OPERATOR, work)


def test_roles_and_the_permission_to_read_payloads_are_asked_for() -> None:
    demand(who(Role.OPERATOR), Role.OPERATOR)
    with pytest.raises(Refused) as unknown:
        demand(None, Role.VIEWER)
    assert unknown.value.status == 401
    with pytest.raises(Refused) as lower:
        demand(who(Role.OPERATOR), Role.ADMIN)
    assert lower.value.status == 403
    demand_payloads(who(Role.VIEWER, payloads=True))
    with pytest.raises(Refused, match="payloads"):
        demand_payloads(who(Role.ADMIN))


def test_lines_of_the_log_that_somebody_has_spoilt_are_told_as_far_as_they_go(
    tmp_path: Path,
) -> None:
    application = Application(tmp_path)
    (tmp_path / "admin.log").write_text(
        'nothing\n{"at": 7}\n{"at": "x", "what": 5, "more": [1]}\n[]\n{"at": "y"}\n'
    )

    async def run() -> None:
        page = await application.services.admin_log(None, 1)
        assert [each.at for each in page.items] == ["y"]
        page = await application.services.admin_log(page.next, 5)
        assert [(each.at, each.details) for each in page.items] == [("x", {"more": [1]})]
        with pytest.raises(BadCursor):
            await application.services.admin_log("00", 5)

    asyncio.run(run())
    application.services.close()
