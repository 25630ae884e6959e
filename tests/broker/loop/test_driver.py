"""The engine on a loop: ticks, commits from their thread, timers, refusals and failures."""

import asyncio
import errno
import itertools
import threading
import time
from collections.abc import Callable

import pytest

from broker.loop import driver
from broker.loop.pace import WINDOW_MS, Pace
from mqtt import reasons
from mqtt.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Publish, Suback
from session.settings import Settings
from storage.api import Batch
from storage.errors import Recoverable, Unrecoverable, WriteStalled
from storage.history.packed_rows import expand, unpack
from storage.local.committer import Committer
from storage.local.direct_sync import DirectSync
from storage.local.rocks import RocksStore
from storage.tables.tables import HISTORY, unseal
from tests.broker.inside import InsideBroker, Peer, publish, run, subscribe
from tests.stand_in import replace_in
from tests.storage.local.patient_syncer import PatientSyncer, with_patience


class Disk:
    """Holds syncs back and lets them go, or fail."""

    def __init__(self, broker: InsideBroker, patch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.error: Exception | None = None
        sync = broker.store.sync

        def gated() -> None:
            self.gate.wait(30)
            if self.error is not None:
                raise self.error
            sync()

        patch.setattr(broker.store, "sync", gated)


async def durable_pair(broker: InsideBroker) -> tuple[Peer, Peer]:
    """Return a publisher and a durable subscriber of "a"."""
    subscriber = await broker.connect("subscriber", expiry=3600)
    subscriber.send(subscribe("a", 1))
    await subscriber.receive(Suback)
    return await broker.connect("publisher"), subscriber


def test_an_acknowledgement_waits_for_the_disk_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, subscriber = await durable_pair(broker)
        disk = Disk(broker, monkeypatch)
        publisher.send(publish("a"))
        assert (await subscriber.receive(Publish)).payload == b"x"
        subscriber.send(Pingreq())
        await subscriber.receive(Pingresp)
        await publisher.silence()
        commits = broker.counters.commits
        disk.gate.set()
        assert (await publisher.receive(Puback)).reason_code == 0
        await broker.until(lambda: broker.counters.commits > commits)
        assert broker.counters.commit_seconds.count == broker.counters.commits
        assert broker.counters.publish_ack_seconds.total >= broker.counters.commit_seconds.total

    run(scenario)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_disk_that_does_not_answer_stops_the_reading_from_publishers_and_from_nobody_else(
    monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    count = 30_000

    async def scenario(broker: InsideBroker) -> None:
        publisher, other = await durable_pair(broker)
        disk = Disk(broker, monkeypatch)
        publisher.send(*(publish("a", bytes(100), packet_id=number + 1) for number in range(count)))
        await broker.until(lambda: any(c.reading_paused for c in broker.engine._connections))
        other.send(Pingreq())
        while not isinstance(await other.receive(object), Pingresp):  # behind what it was sent
            pass
        read = broker.counters.messages_received[1]
        assert read < count // 2
        await publisher.silence()
        assert broker.counters.messages_received[1] == read
        disk.gate.set()
        for number in range(count):
            assert (await publisher.receive(Puback)).packet_id == number + 1

    settings = Settings()
    settings.receive_maximum = 65_535
    settings.held_bytes_max = 20_000
    run(scenario, settings=settings, loop=loop)


@pytest.mark.parametrize("durability", ["os", "interval:1000"])
def test_without_a_promise_of_the_disk_an_acknowledgement_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)
        disk = Disk(broker, monkeypatch)
        publisher.send(publish("a"))
        assert (await publisher.receive(Puback)).reason_code == 0
        disk.gate.set()

    run(scenario, durability=durability)


def test_what_arrives_in_one_iteration_is_one_batch() -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)
        before = broker.engine.written
        publisher.send(*[publish("a", packet_id=number) for number in range(1, 101)])
        for _ in range(100):
            await publisher.receive(Puback)
        assert broker.engine.written - before <= 10

    run(scenario)


def test_a_failed_sync_ends_everything_and_acknowledges_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)
        disk = Disk(broker, monkeypatch)
        disk.error = Unrecoverable("sync failed: I/O error")
        disk.gate.set()
        publisher.send(publish("a"))
        await broker.until(lambda: bool(broker.failures))
        assert str(broker.failures[0]) == "sync failed: I/O error"
        await publisher.silence()
        assert len(broker.failures) == 1

    run(scenario)


def test_an_exception_at_the_end_of_a_tick_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)

        def broken(now: int) -> bool:
            raise AssertionError("a bug")

        monkeypatch.setattr(broker.engine, "end_tick", broken)
        publisher.send(publish("a"))
        await broker.until(lambda: bool(broker.failures))
        await publisher.silence()
        assert repr(broker.failures) == "[AssertionError('a bug')]"

    run(scenario)


def test_an_exception_when_a_commit_is_released_ends_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)

        def broken(serial: int, now: int) -> None:
            raise AssertionError("a bug")

        monkeypatch.setattr(broker.engine, "committed", broken)
        publisher.send(publish("a"))
        await broker.until(lambda: bool(broker.failures))
        await publisher.silence()

    run(scenario)


def test_a_refused_write_is_tried_again_and_nothing_of_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, subscriber = await durable_pair(broker)
        write = broker.store.write
        refusals: list[Batch] = []

        def refuse_three_times(batch: Batch) -> None:
            if len(refusals) < 3:
                refusals.append(list(batch))
                raise Recoverable("No space left on device")
            write(batch)

        monkeypatch.setattr(broker.store, "write", refuse_three_times)
        publisher.send(publish("a"))
        subscriber.send(Pingreq())
        await broker.until(lambda: len(refusals) == 3)
        assert (await publisher.receive(Puback)).reason_code == 0
        assert broker.events("write_refused")
        assert broker.counters.commit_failures == 3
        assert not broker.failures

    run(scenario)


@pytest.mark.parametrize(
    ("refusal", "is_alarm"), [(WriteStalled("stall"), 0), (Recoverable("No space left"), 1)]
)
def test_a_stall_of_the_store_is_no_refusal_for_the_operator(
    monkeypatch: pytest.MonkeyPatch, refusal: Recoverable, is_alarm: int
) -> None:
    """A stall ends by itself; `writes_refused` raises an alert that asks for more disk."""

    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)
        seen: list[int] = []

        def refuse(batch: Batch) -> None:
            seen.append(broker.driver.gauges()["writes_refused"])
            raise refusal

        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "write", refuse)
            publisher.send(publish("a"))
            await broker.until(lambda: len(seen) >= 3)
        assert (await publisher.receive(Puback)).reason_code == 0
        assert seen[2:] == [is_alarm] * len(seen[2:])
        assert broker.driver.gauges()["writes_refused"] == 0

    run(scenario)


class PatientDisk:
    """Direct syncs that wait for the test."""

    def __init__(self) -> None:
        self.syncer: PatientSyncer

    def open(self, store: RocksStore) -> DirectSync:
        """Take the direct sync of a store."""
        self.syncer, direct = with_patience(store)
        return direct

    async def is_asked(self, broker: InsideBroker) -> None:
        """Wait until a commit needs a direct sync; let those of RocksDB go by."""
        await broker.until(lambda: self.syncer.wanted is not None)


async def _direct_pair(broker: InsideBroker, disk: PatientDisk) -> tuple[Peer, Peer]:
    """Return the durable pair, once the broker syncs directly and everything is durable."""
    keep = broker.loop.create_task(_sync_always(disk))
    pair = await durable_pair(broker)
    pair[0].send(publish("a"))
    await pair[0].receive(Puback)
    await pair[1].receive(Publish)
    await broker.until(_is_settled(broker))
    keep.cancel()
    return pair


async def _sync_always(disk: PatientDisk) -> None:
    while True:
        disk.syncer.sync()
        await asyncio.sleep(0.001)


def _is_settled(broker: InsideBroker) -> Callable[[], bool]:
    """Return the question whether all that was written is durable."""
    return lambda: not broker.driver.is_due and broker.driver._durable >= broker.engine.written


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_direct_sync_releases_what_waits_for_it(loop: str) -> None:
    disk = PatientDisk()

    async def scenario(broker: InsideBroker) -> None:
        publisher, subscriber = await _direct_pair(broker, disk)
        for _ in range(3):
            commits = broker.counters.commits
            publisher.send(publish("a"))
            await subscriber.receive(Publish)
            await disk.is_asked(broker)
            publisher.send(Pingreq())
            await publisher.receive(Pingresp)  # PUBACK would have been before it
            disk.syncer.sync()
            assert (await publisher.receive(Puback)).reason_code == 0
            assert broker.counters.commits > commits
        assert broker.counters.commit_seconds.count == broker.counters.commits

    run(scenario, loop=loop, direct=disk.open)


def test_a_failed_direct_sync_ends_the_broker_and_nothing_is_acknowledged() -> None:
    disk = PatientDisk()

    async def scenario(broker: InsideBroker) -> None:
        publisher, subscriber = await _direct_pair(broker, disk)
        publisher.send(publish("a"))
        await subscriber.receive(Publish)
        await disk.is_asked(broker)
        disk.syncer.fail(errno.EIO)
        await broker.until(lambda: bool(broker.failures))
        (failure,) = broker.failures
        assert isinstance(failure, Unrecoverable) and "Input/output error" in str(failure)
        assert broker.counters.commit_failures == 1
        await publisher.silence()

    run(scenario, direct=disk.open)


def test_commits_go_on_when_rocksdb_begins_another_log() -> None:
    """Does the broker come back to direct syncs by itself, also when it writes all the time?"""
    disk = PatientDisk()

    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await _direct_pair(broker, disk)
        keep = broker.loop.create_task(_sync_always(disk))
        for _ in range(3):
            broker.store.flush()
            for packet_id in range(1, 51):
                publisher.send(publish("a", packet_id=packet_id))
            for packet_id in range(1, 51):
                assert (await publisher.receive(Puback)).packet_id == packet_id
            submitted = len(disk.syncer.submitted)
            while len(disk.syncer.submitted) == submitted:
                publisher.send(publish("a"))
                await publisher.receive(Puback)
        await broker.until(_is_settled(broker))
        keep.cancel()

    run(scenario, direct=disk.open)


def test_the_compiled_build_syncs_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("storage.local._syncer", reason="the pure build has none")

    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)
        syncs: list[bool] = []
        sync = broker.store.sync

        def counted() -> None:
            syncs.append(True)
            sync()

        monkeypatch.setattr(broker.store, "sync", counted)
        for packet_id in range(1, 101):
            publisher.send(publish("a", packet_id=packet_id))
            assert (await publisher.receive(Puback)).packet_id == packet_id
        assert len(syncs) < 20

    run(scenario, loop="uvloop", direct=lambda store: store.open_direct())


def test_while_writes_are_refused_signs_of_life_go_beside_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash then is dated by them; twice in every period that the heartbeat would have."""
    signs: list[int] = []
    monkeypatch.setattr(Committer, "alive", lambda self, broker_ms: signs.append(broker_ms))
    settings = Settings()
    settings.heartbeat_ms = 100

    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)

        def refuse(batch: Batch) -> None:
            raise Recoverable("No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "write", refuse)
            publisher.send(publish("a"))
            await broker.until(lambda: len(signs) >= 4)
        assert all(later - sign >= 50 for sign, later in itertools.pairwise(signs))
        assert (await publisher.receive(Puback)).reason_code == 0
        shown = len(signs)
        await broker.until(lambda: broker.driver.now > signs[-1] + 300)
        assert len(signs) == shown, "the heartbeat is enough again"

    run(scenario, settings=settings)


def test_before_its_first_commit_a_broker_shows_no_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then the store has connections that the crash before ended: they stay dated so."""
    signs: list[int] = []
    monkeypatch.setattr(Committer, "alive", lambda self, broker_ms: signs.append(broker_ms))
    gate = threading.Event()
    sync = RocksStore.sync

    def gated(store: RocksStore) -> None:
        gate.wait(30)
        sync(store)

    monkeypatch.setattr(RocksStore, "sync", gated)

    async def scenario(broker: InsideBroker) -> None:
        tries: list[Batch] = []

        def refuse(batch: Batch) -> None:
            tries.append(batch)
            raise Recoverable("No space left on device")

        monkeypatch.setattr(broker.store, "write", refuse)
        try:
            client = await broker.peer()
            client.send(Connect("c", session_expiry_interval=10))
            await broker.until(lambda: len(tries) >= 3)
            assert not signs
        finally:
            gate.set()  # a failure must not wait for the committer
        await broker.until(lambda: len(signs) == 1)

    run(scenario)


def test_a_low_disk_refuses_what_would_have_to_be_stored() -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)
        broker.driver.note_disk_space(is_low=True, room_bytes=0)
        publisher.send(publish("a"))
        assert (await publisher.receive(Puback)).reason_code == reasons.QUOTA_EXCEEDED
        assert broker.driver.gauges()["writes_refused"] == 1
        broker.driver.note_disk_space(is_low=False, room_bytes=1 << 40)
        publisher.send(publish("a"))
        assert (await publisher.receive(Puback)).reason_code == 0
        assert broker.driver.gauges()["writes_refused"] == 0

    run(scenario)


def test_deadlines_are_met_without_any_traffic() -> None:
    settings = Settings()
    settings.connect_timeout_ms = 100

    async def scenario(broker: InsideBroker) -> None:
        silent = await broker.peer()
        await silent.closed()
        assert broker.counters.connects["timeout"] == 1
        (refused,) = broker.counters.refused.values()
        assert refused["timeout"] == 1

    run(scenario, settings=settings)


@pytest.mark.parametrize("first", ["timer", "callback"])
def test_what_came_while_the_process_slept_is_read_before_time_is_told(first: str) -> None:
    """A stopped process or a suspended machine: who kept his keep alive is not called silent."""

    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.peer()
        peer.send(Connect("c", keep_alive=1))
        await peer.receive(Connack)
        peer.send(Pingreq())
        if first == "callback":
            broker.loop.call_soon(broker.driver.run, lambda: None)
        time.sleep(2.0)  # noqa: ASYNC251
        await peer.receive(Pingresp)
        reason = (await peer.receive(Disconnect)).reason_code  # now it is silent
        assert reason == reasons.KEEP_ALIVE_TIMEOUT
        assert broker.counters.disconnects["keep_alive_timeout"] == 1

    run(scenario)


def test_a_bug_in_timed_work_is_counted_and_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "TIMEOUT_BUG_PAUSE_S", 0.05)
    settings = Settings()
    settings.heartbeat_ms = 10

    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("c")

        def broken(now: int) -> None:
            raise ValueError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(broker.engine, "handle_timeout", broken)
            await broker.until(lambda: broker.counters.internal_errors >= 3)
            before = broker.counters.internal_errors
            await asyncio.sleep(0.3)
            assert broker.counters.internal_errors - before < 10
        peer.send(Pingreq())
        await peer.receive(Pingresp)
        assert not broker.failures

    run(scenario, settings=settings)


def test_a_bug_in_timed_work_keeps_no_call_of_another_thread_from_being_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the verdict on a password: without it the CONNECT would never be answered."""

    async def scenario(broker: InsideBroker) -> None:
        def broken(now: int) -> None:
            raise ValueError("a bug")

        made = asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(broker.engine, "handle_timeout", broken)
            await asyncio.to_thread(broker.driver.run_from_thread, made.set)
            await asyncio.wait_for(made.wait(), 30)
        assert broker.counters.internal_errors == 1
        assert not broker.failures

    run(scenario)


def test_a_snapshot_is_read_on_the_loops_thread_for_another_one() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await broker.connect("c")
        snapshot = await asyncio.to_thread(broker.driver.take_snapshot, 10)
        assert snapshot is not None
        assert snapshot.gauges["sessions_online"] == 1
        assert snapshot.gauges["connections"] == 1
        assert "wal" in snapshot.storage_bytes

    run(scenario)


def test_no_snapshot_is_no_failure_when_the_loop_does_not_answer() -> None:
    brokers: list[InsideBroker] = []

    async def scenario(broker: InsideBroker) -> None:
        brokers.append(broker)
        assert broker.driver.take_snapshot(0.01) is None  # asked on the very thread it waits for

    run(scenario)
    assert brokers[0].driver.take_snapshot(0.01) is None  # the loop is closed


def test_work_of_other_threads_runs_on_the_loop_and_ends_in_a_tick() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("c")
        peer.send(subscribe("$SYS/x", 0))
        await peer.receive(Suback)
        threads: list[str] = []

        def say() -> None:
            threads.append(threading.current_thread().name)
            broker.engine.publish_system("$SYS/x", b"1", broker.driver.now)

        await asyncio.to_thread(broker.driver.run_from_thread, say)
        assert (await peer.receive(Publish)).payload == b"1"
        assert threads == [threading.current_thread().name]

        def broken() -> None:
            raise ValueError("a bug")

        await asyncio.to_thread(broker.driver.run_from_thread, broken)
        await broker.until(lambda: broker.counters.internal_errors == 1)

    run(scenario)


def test_a_drain_is_over_when_clients_are_gone_and_everything_is_durable() -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, subscriber = await durable_pair(broker)
        ended = [asyncio.create_task(peer.closed()) for peer in (publisher, subscriber)]
        drained = asyncio.create_task(broker.driver.drain(15))
        await asyncio.gather(*ended)
        for peer in (publisher, subscriber):
            peer.writer.close()
        assert await drained
        assert broker.driver.is_quiet()
        assert broker.engine.durable == broker.engine.written
        rows = broker.store.scan(HISTORY, b"", count=10_000)
        names = [e["ev"] for _, v in rows for e in expand(unpack(unseal(v, "row")), "n", 1)]
        assert names[-1] == "shutdown" and names.count("shutdown") == 1

    run(scenario)


def test_a_drain_gives_up_on_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: InsideBroker) -> None:
        publisher, _ = await durable_pair(broker)
        disk = Disk(broker, monkeypatch)
        publisher.send(publish("a"))
        assert not await broker.driver.drain(0.2)
        disk.gate.set()

    run(scenario)


@pytest.mark.parametrize("rest_ms", [0, 60_000])
def test_the_loop_rests_after_a_tick_as_long_as_its_pace_says(
    monkeypatch: pytest.MonkeyPatch, rest_ms: int
) -> None:
    rests: list[float] = []
    replace_in(monkeypatch, driver, "time", sleep=rests.append)
    later = 1_000_000_000

    async def scenario(broker: InsideBroker) -> None:
        publisher, subscriber = await durable_pair(broker)
        pace = broker.driver.pace = Pace(rest_ms)
        pace.look(later)
        pace.published(later + 1, 0)
        pace.look(later + WINDOW_MS)
        publisher.send(publish("a"))
        await subscriber.receive(Publish)
        await publisher.receive(Puback)
        assert bool(rests) is bool(rest_ms)
        assert all(0 < rest < rest_ms / 1000 for rest in rests)
        rests.clear()
        ended = asyncio.Event()
        broker.driver.run(broker.driver.loop.call_soon, ended.set)  # a timer's work, say
        await ended.wait()
        assert not rests, "what the sockets have would wait for it"

    run(scenario)
