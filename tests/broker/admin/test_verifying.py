"""A password is verified for few at once, and who fails too often has to wait."""

import asyncio
from pathlib import Path

import pytest

from broker.admin.access.admin_log import AdminLog
from broker.admin.access.lockout import FIRST_S, NAME_FAILURES_MAX, Lockout
from broker.admin.access.roles import Role
from broker.admin.access.users import Users
from broker.admin.problems import Refused
from broker.admin.verifying import HASHING_WAITING_MAX, Verifying

PASSWORD = "correct horse battery"


class Place:
    """A directory with a user, and a clock."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 1.0
        users = Users(directory)
        users.add("ann", Role.VIEWER, payloads=False, password=PASSWORD, now_ms=1)
        log = AdminLog(directory, lambda: 1_700_000_000_000, lambda: self.now_s)
        self.verifying = Verifying(users, Lockout(), log, lambda: self.now_s)


def test_failures_lock_out_for_a_time_whatever_the_password_is_for(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def play() -> None:
        verifying = place.verifying
        for _ in range(NAME_FAILURES_MAX):
            with pytest.raises(Refused, match="the old one is wrong") as refused:
                await verifying.verify(
                    "ann", "x", "", what="change password", wrong="the old one is wrong"
                )
            assert refused.value.status == 403
        with pytest.raises(Refused, match="too many failures") as refused:
            await verifying.verify("ann", PASSWORD, "")
        assert refused.value.status == 429
        place.now_s += FIRST_S
        assert (await verifying.verify("ann", PASSWORD, "")).name == "ann"
        verifying.succeeded("ann")
        with pytest.raises(Refused) as refused:
            await verifying.verify("ann", "x", "")
        assert refused.value.status == 401
        await verifying.verify("ann", PASSWORD, "")

    asyncio.run(play())


def test_only_few_wait_for_a_hash(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def play() -> None:
        many = [place.verifying.verify("ann", PASSWORD, "") for _ in range(HASHING_WAITING_MAX + 3)]
        found = await asyncio.gather(*many, return_exceptions=True)
        refused = [each for each in found if isinstance(each, Refused)]
        assert [each.status for each in refused] == [503] * 3

    asyncio.run(play())
