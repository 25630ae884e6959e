"""Members of one cluster on one event loop: who leads, what is committed, who is deposed."""

import asyncio

import pytest

from broker.cluster import member as members
from broker.cluster.committing import ReplicatedCommitter
from broker.cluster.member import Database, Member
from storage.errors import Recoverable, StorageError, Unrecoverable, WriteStalled
from storage.local.memory import MemoryStore
from storage.replicated import anchors, batch_codec
from storage.replicated.overlay import ReplicatedStore
from storage.replicated.record import Position
from storage.replicated.roles.terms import DEPOSED, LEADS, Anchor, Deposed
from storage.tables.tables import FAMILIES
from storage.time import machine_clocks
from tests.broker.cluster.town import FAMILY, NAMES, Town, until


class Told:
    """A log of a process that keeps the names of its lines."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def warning(self, event: str, text: str, **fields: object) -> None:
        self._told.append(event)

    info = warning


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
            assert not leader._tail.is_new
            committer, durable = commits(leader)
            leader.store.write([(FAMILY, b"key", b"value")])
            committer.request(1)
            assert await durable.get() == 1
            other = next(each for each in NAMES if each != name)
            await until(lambda: town.stores[other].get(FAMILY, b"key") == b"value")
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


def test_why_a_log_is_not_heard_is_told_once_and_its_end(town: Town) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            await town.elect()
            member, line = town.members["bob"], town.line("bob")
            told: list[str] = []
            member._log = Told(told)  # type: ignore[assignment,misc]
            line.said = "connection refused"
            now = machine_clocks.boottime_ms() + 7500
            member._note_silence(now)
            member._note_silence(now + 1000)
            assert member.unheard.startswith("for ")
            assert member.unheard.endswith(" s: connection refused")
            assert told == ["cluster_log_silent"]
            line.wake()
            await until(lambda: not member.unheard)
            assert told == ["cluster_log_silent", "cluster_log_heard"]
            line.refusal = "not allowed"
            await until(lambda: member.unheard == "to take anything: not allowed")
            assert told[2:] == ["cluster_log_silent"]

    asyncio.run(run())


def test_without_room_for_anchors_those_of_before_stay() -> None:
    """A leader refuses new messages then, as a node alone does; it does not end."""
    store = MemoryStore(FAMILIES)
    database = Database(store, ReplicatedStore(store, lambda batch: 0))
    first, second = (Anchor(Position(1, each, b"d" * 16), each) for each in (1, 2))
    database.remember([first])
    store.fail_writes = Recoverable("No space left on device")
    database.remember([first, second])
    with pytest.raises(Recoverable):
        database.remember([second], is_synced=True)
    assert anchors.load(store) == [first]
    store.fail_writes = None
    database.save_again()
    assert anchors.load(store) == [first, second] and not database.unsaved


def test_whatever_is_raised_when_the_log_is_taken_ends_the_process(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim of another node may be in what was taken and is lost now."""

    async def run() -> None:
        async with asyncio.timeout(30):
            name = await town.elect()
            other = next(each for each in town.members.values() if each is not town.members[name])
            failed: asyncio.Queue[StorageError] = asyncio.Queue()
            other.failed = failed.put_nowait
            monkeypatch.setattr(batch_codec, "encode", lambda operations: b"no batch")
            town.members[name].store.write([(FAMILY, b"key", b"value")])
            found = await failed.get()
            assert str(found).startswith("internal error of this node: BadBatch: ")

    asyncio.run(run())


def test_a_follower_whose_database_stalls_reads_no_more_until_it_goes_on(town: Town) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            stores = {name: MemoryStore(FAMILIES) for name in NAMES}
            town.stores.update(stores)
            leader = town.members[name := await town.elect()]
            other = next(each for each in NAMES if each != name)
            store, follower, line = stores[other], town.members[other], town.line(other)
            store.fail_writes = WriteStalled("Write stall")
            leader.store.write([(FAMILY, b"1", b"x")])
            await until(lambda: follower._is_paused)
            assert follower.replica.is_refused
            read = line._place
            leader.store.write([(FAMILY, b"2", b"x")])
            await until(lambda: not leader.store.pending)
            assert line._place == read
            store.fail_writes = None
            await until(lambda: store.get(FAMILY, b"2") == b"x")

    asyncio.run(run())


def test_a_leader_that_is_deposed_before_it_has_a_broker_tells_that_one(town: Town) -> None:
    """It may wait for the answer of Kafka about the topic, and say nothing meanwhile."""

    async def run() -> None:
        async with asyncio.timeout(30):
            name = await town.elect()
            leader, line = town.members[name], town.line(name)
            line.is_cut = True
            second, _ = await town.led.get()
            leader.deposed = lambda told: None
            line.is_cut = False
            line.wake()
            await until(lambda: leader.replica.role == DEPOSED)
            leader.detach()
            leader.deposed = lambda told: town.deposed.put_nowait((name, told))
            leader.attach(asyncio.get_running_loop())
            assert await town.deposed.get() == (name, Deposed(second, f"{second}:1883"))

    asyncio.run(run())


def test_a_watermark_that_cannot_be_written_ends_the_process(town: Town) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            member = town.members[await town.elect()]
            failed: asyncio.Queue[StorageError] = asyncio.Queue()
            member.failed = failed.put_nowait

            def fail() -> None:
                raise Unrecoverable("watermark: Input/output error")

            member._database_synced = fail  # type: ignore[misc]
            member.store.write([(FAMILY, b"key", b"value")])
            assert str(await failed.get()) == "watermark: Input/output error"

    asyncio.run(run())


@pytest.mark.parametrize("limit", ["PENDING_BYTES_MAX", "PENDING_MAX"])
def test_a_leader_takes_only_so_much_until_the_log_has_it(
    town: Town, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            name = await town.elect()
            leader, line = town.members[name], town.line(name)
            await until(lambda: not leader.store.pending)
            monkeypatch.setattr(members, limit, 2)
            line.is_cut = True
            for key in (b"1", b"2"):
                leader.store.write([(FAMILY, key, b"x" * (key == b"2"))])
            with pytest.raises(WriteStalled, match="2 batches wait until the log has them"):
                leader.store.write([(FAMILY, b"3", b"x")])
            loop, leader._loop = leader._loop, None
            leader.store.write([(FAMILY, b"4", b"x")])  # of a recovery
            leader._loop = loop
            line.is_cut = False
            leader.replica._writing.send_again(0)
            await until(lambda: not leader.store.pending)
            leader.store.write([(FAMILY, b"3", b"x")])

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
            await until(lambda: other.replica.leader_ms > 0)
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
