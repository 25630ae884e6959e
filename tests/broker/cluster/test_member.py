"""Members of one cluster on one event loop: who leads, what is committed, what a deposed one does."""

import asyncio
from collections.abc import Iterator

import pytest

from broker.cluster.committing import ReplicatedCommitter
from broker.cluster.member import Member
from broker.observe.structured_log import Log as Lines
from storage.errors import Recoverable
from storage.local.memory import MemoryStore
from storage.replicated.replica import LEADS, Deposed, Leads, Settings
from storage.tables.tables import FAMILIES
from tests.broker.cluster.shared import Kept, Line, Log

NAMES = ("ann", "bob")
FAMILY = FAMILIES[-1]


class Town:
    """Two members, and what they told."""

    def __init__(self) -> None:
        self.log = Log()
        self.stores = {name: MemoryStore(FAMILIES) for name in NAMES}
        self.members: dict[str, Member] = {}
        self.led: asyncio.Queue[tuple[str, Leads]] = asyncio.Queue()
        self.deposed: asyncio.Queue[tuple[str, Deposed]] = asyncio.Queue()

    def start(self, name: str) -> Member:
        """Start a member."""
        settings = Settings(
            name, NAMES, address=f"{name}:1883", takeover_ms=400, heartbeat_ms=50, presence_ms=50
        )
        member = Member(settings, self.stores[name], self.log.open, Kept, log=Lines(level="error"))
        member.led = lambda told: self.led.put_nowait((name, told))
        member.deposed = lambda told: self.deposed.put_nowait((name, told))
        member.broker_ms = lambda: 5_000
        member.attach(asyncio.get_running_loop())
        self.members[name] = member
        return member

    def line(self, name: str) -> Line:
        """Return a member's line to the log."""
        at = list(self.members).index(name)
        return self.log.lines[at]

    def close(self) -> None:
        """End all."""
        for member in self.members.values():
            member.close()


@pytest.fixture
def town() -> Iterator[Town]:
    town = Town()
    yield town
    town.close()


def commits(member: Member) -> tuple[ReplicatedCommitter, "asyncio.Queue[int]"]:
    durable: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    return ReplicatedCommitter(member, durable.put_nowait, loop), durable


def test_one_leads_and_its_batches_reach_all(town: Town) -> None:
    async def run() -> None:
        for name in NAMES:
            town.start(name)
        async with asyncio.timeout(30):
            name, _ = await town.led.get()
            leader = town.members[name]
            committer, durable = commits(leader)
            leader.store.write([(FAMILY, b"key", b"value")])
            committer.request(1)
            assert await durable.get() == 1
            other = next(each for each in NAMES if each != name)
            while town.stores[other].get(FAMILY, b"key") != b"value":
                await asyncio.sleep(0.01)
            assert town.stores[name].get(FAMILY, b"key") == b"value"
            assert town.members[other].replica.leader == name
            assert town.members[other].replica.members.address(name) == f"{name}:1883"

    asyncio.run(run())


def test_a_request_without_a_write_is_durable_once_all_before_is(town: Town) -> None:
    async def run() -> None:
        for name in NAMES:
            town.start(name)
        async with asyncio.timeout(30):
            name, _ = await town.led.get()
            committer, durable = commits(town.members[name])
            committer.request(7)
            assert await durable.get() == 7

    asyncio.run(run())


def test_a_leader_that_was_cut_off_releases_nothing_and_learns_who_leads(town: Town) -> None:
    async def run() -> None:
        for name in NAMES:
            town.start(name)
        async with asyncio.timeout(30):
            first, _ = await town.led.get()
            leader, line = town.members[first], town.line(first)
            committer, durable = commits(leader)
            other = next(each for name, each in town.members.items() if name != first)
            while not other.replica.leader_ms:
                await asyncio.sleep(0.01)
            line.is_cut = True
            leader.store.write([(FAMILY, b"late", b"1")])
            committer.request(1)
            second, told = await town.led.get()
            assert second != first and told.alive_ms == 5_000 and told.silent_ms >= 400
            line.is_cut = False
            line.wake()
            assert await town.deposed.get() == (first, Deposed(second, f"{second}:1883"))
            assert durable.empty()
            with pytest.raises(Recoverable):
                leader.store.write([(FAMILY, b"later", b"1")])
            assert town.members[second].replica.role == LEADS

    asyncio.run(run())
