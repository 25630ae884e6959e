"""Power cuts under load: what a kill -9 cannot show, because it leaves the page cache alone.

The broker is killed and everything it has not synced is taken from its files (see `powercut`). With
`durability = fsync` nothing acknowledged may be missing. With `durability = os`, which promises
nothing about power cuts, something must be: or else this test could not see a broker that does not
sync.
"""

import contextlib
import random
import signal
import time
from pathlib import Path
from typing import Final

import pytest

from broker.operations import checkpoint
from broker.operations.checkpoint import CheckpointError
from storage.history import segments
from storage.history.segment_names import segment_names
from tests.durability.iofault import build
from tests.durability.load import Publisher, Subscriber, finish, verdict
from tests.durability.machine import Machine
from tests.durability.powercut import HOW, NAMES, PAGES, ZEROS
from tests.durability.process import (
    POLL_SECONDS,
    READY_SECONDS,
    BrokerProcess,
    holdfast,
)
from tests.durability.rawclient import RawClient

CUTS: Final = 5
DRAIN_SECONDS: Final = 40.0


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize("cuts", [CUTS, pytest.param(100, marks=pytest.mark.slow)])
def test_fsync_loses_nothing_acknowledged_to_power_cuts(
    shim: Path, tmp_path: Path, cuts: int
) -> None:
    """Every cut leaves another kind of end: short, zeros, holes of pages and sectors, old names."""
    machine = Machine(shim, tmp_path, "fsync")
    rng = random.Random(cuts)
    port = machine.broker.port
    subscribers = [Subscriber(port, f"s{n}", qos=1 + n, version=4 + n, seed=n) for n in range(2)]
    publishers = [Publisher(port, f"p{n}", qos=1 + n, version=5 - n, rate=300) for n in range(2)]
    for subscriber in subscribers:
        subscriber.start()
    for subscriber in subscribers:
        assert subscriber.ready.wait(30.0)
    for publisher in publishers:
        publisher.start()
    lost = 0
    for cut in range(cuts):
        time.sleep(rng.uniform(0.2, 0.8))
        if cut % 3 == 2:
            machine.die_while_starting(rng.randrange(1, 80), HOW[cut % len(HOW)], rng)
        lost += machine.cut_power(HOW[cut % len(HOW)], rng)
    finish(publishers, subscribers, seconds=DRAIN_SECONDS)
    machine.broker.close()
    faults = verdict(publishers, subscribers)
    assert not faults, "\n".join(faults)
    assert lost > 0, "the cuts took nothing: they were none"


EXPORT: Final = {
    "HOLDFAST__HISTORY__DETAIL": "full",
    "HOLDFAST__HISTORY__SEAL_SECONDS": "1",
    "HOLDFAST__HISTORY__DRAIN_TIMEOUT": "30s",
}
# Where a broker dies: what it does then, and the files concerned.
TASKS: Final = {
    "checkpoint": "/copy",
    "history": "/history",
    "drain": "/data/",
}


@pytest.mark.parametrize("task", TASKS)
def test_a_power_cut_during_other_work_loses_nothing(shim: Path, tmp_path: Path, task: str) -> None:
    """The broker dies while it copies its database, exports its history or drains."""
    machine = Machine(shim, tmp_path, "fsync", EXPORT if task == "history" else {})
    try:
        _cut_during(task, machine)
    finally:
        machine.broker.close()
    if task == "history":
        directory = machine.broker.data_dir / "history"
        assert _segments(machine.broker) > 0
        assert segments.verify(directory, thorough=True) == []


def _cut_during(task: str, machine: Machine) -> None:
    broker, rng = machine.broker, random.Random(task)
    subscriber = RawClient(broker.port, "subscriber")
    subscriber.durable()
    subscriber.subscribe("cut/#", qos=1)
    subscriber.disconnect()
    sent = 0
    for turn, how in enumerate((ZEROS, NAMES, PAGES)):
        publisher = RawClient(broker.port, f"publisher{turn}")
        publisher.connect()
        publisher.publish_all([("cut/t", b"%d" % n) for n in range(sent, sent + 50)], qos=1)
        sent += 50
        machine.die_at(rng.randrange(1, 12), TASKS[task])
        if task == "checkpoint":
            with contextlib.suppress(CheckpointError):
                checkpoint.make(str(broker.data_dir), str(broker.data_dir / f"copy{turn}"))
        elif task == "drain":
            broker.signal(signal.SIGTERM)
            broker.wait_exit(READY_SECONDS)
        else:
            before = _segments(broker)
            _wait_for_export(broker, before)
        publisher.drop()
        machine.faults.clear()
        machine.cut_power(how, rng)
    subscriber.durable()
    received = [int(publish.payload) for publish in subscriber.take(sent)]
    assert received == list(range(sent))
    subscriber.drop()
    if task == "history":
        _wait_for_export(broker, _segments(broker))


def _segments(broker: BrokerProcess) -> int:
    return sum(1 for _ in segment_names(broker.data_dir / "history"))


def _wait_for_export(broker: BrokerProcess, before: int) -> None:
    """Return when the broker or its export has died, or a further segment is exported."""
    deadline = time.monotonic() + READY_SECONDS
    while (
        broker.is_running()
        and _segments(broker) <= before
        and "history_export_failed" not in broker.log()
    ):
        assert time.monotonic() < deadline, broker.tail()
        time.sleep(POLL_SECONDS)


def _kept_after_a_power_cut(shim: Path, directory: Path, durability: str) -> int | None:
    """Return how many of 300 acknowledged messages an offline session still has; None: it is gone.

    The broker refuses to start below its watermark; that too is a loss, and an honest one.
    """
    machine = Machine(shim, directory, durability)
    try:
        subscriber = RawClient(machine.broker.port, "subscriber")
        subscriber.durable()
        subscriber.subscribe("cut/#", qos=1)
        subscriber.disconnect()
        publisher = RawClient(machine.broker.port, "publisher")
        publisher.connect()
        publisher.publish_all([("cut/t", b"%d" % n) for n in range(300)], qos=1)
        machine.broker.arguments = ("--accept-data-loss",) if durability != "fsync" else ()
        machine.cut_power()
        publisher.drop()
        if not subscriber.durable().session_present:
            return None
        return len(subscriber.take_all(idle=0.7))
    finally:
        machine.broker.close()


def test_fsync_keeps_every_acknowledged_message(shim: Path, tmp_path: Path) -> None:
    assert _kept_after_a_power_cut(shim, tmp_path, "fsync") == 300


def test_os_does_not_and_the_cut_shows_it(shim: Path, tmp_path: Path) -> None:
    kept = _kept_after_a_power_cut(shim, tmp_path, "os")
    assert kept is None or kept < 300


def test_os_keeps_every_acknowledged_message_over_kill(tmp_path: Path) -> None:
    """What `durability = os` does promise: a crash of the process takes nothing."""
    broker = holdfast(tmp_path / "broker", env={"HOLDFAST__STORAGE__DURABILITY": "os"})
    broker.start()
    subscriber = RawClient(broker.port, "subscriber")
    subscriber.durable()
    subscriber.subscribe("cut/#", qos=1)
    publisher = RawClient(broker.port, "publisher")
    publisher.connect()
    publisher.publish_all([("cut/t", b"%d" % n) for n in range(300)], qos=1)
    broker.crash()
    publisher.drop()
    subscriber.resume()
    assert len(subscriber.take(300)) == 300
    subscriber.drop()
    broker.close()
