"""When a serial of the engine counts as durable in a cluster."""

import asyncio
from typing import cast

import pytest

from broker.cluster.committing import ReplicatedCommitter
from broker.cluster.member import Member


class Written:
    """As much of a member as a committer needs."""

    def __init__(self) -> None:
        self.written = self.settled = 10
        self.committed = lambda index: None


@pytest.fixture
def member() -> Written:
    return Written()


def committer(member: Written, told: list[int]) -> ReplicatedCommitter:
    loop = asyncio.get_running_loop()
    return ReplicatedCommitter(cast(Member, member), told.append, loop)


def test_a_serial_waits_for_the_last_record_that_was_written_before_it(member: Written) -> None:
    async def run() -> None:
        told: list[int] = []
        found = committer(member, told)
        member.written = 12
        found.request(1)
        member.written = 13
        found.request(2)
        found.request(3)
        member.committed(11)
        await asyncio.sleep(0)
        assert told == []
        member.committed(12)
        assert told == [1]
        member.committed(13)
        assert told == [1, 3]

    asyncio.run(run())


def test_what_needs_nothing_new_is_told_at_once_but_never_inside_the_request(
    member: Written,
) -> None:
    async def run() -> None:
        told: list[int] = []
        found = committer(member, told)
        found.request(4)
        assert told == []
        await asyncio.sleep(0)
        assert told == [4]

    asyncio.run(run())


def test_what_a_recovery_has_written_is_not_durable_before_it_is_committed(
    member: Written,
) -> None:
    async def run() -> None:
        told: list[int] = []
        member.written = 12
        found = committer(member, told)
        found.request(1)
        await asyncio.sleep(0)
        assert told == []
        member.committed(12)
        assert told == [1]

    asyncio.run(run())


def test_nothing_is_told_after_the_end(member: Written) -> None:
    async def run() -> None:
        told: list[int] = []
        found = committer(member, told)
        member.written = 11
        found.request(1)
        found.close()
        member.committed(11)
        assert told == []
        assert found.fileno() == -1 and found.collect() == 0

    asyncio.run(run())
