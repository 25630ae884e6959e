"""Power cuts under load: what a kill -9 cannot show, because it leaves the page cache alone.

The broker is killed and everything it has not synced is taken from its files (see `powercut`). With
`durability = fsync` nothing acknowledged may be missing. With `durability = os`, which promises
nothing about power cuts, something must be: or else this test could not see a broker that does not
sync.
"""

import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.durability.iofault import Faults, build
from tests.durability.load import Publisher, Subscriber, finish, verdict
from tests.durability.powercut import apply_power_cut, baseline
from tests.durability.process import BrokerProcess, holdfast
from tests.durability.rawclient import RawClient

CUTS: Final = 5
DRAIN_SECONDS: Final = 40.0


class Machine:
    """A broker and the machine it runs on, whose power can be cut."""

    def __init__(self, shim: Path, directory: Path, durability: str) -> None:
        self._side = directory / "side"
        faults = Faults(shim, directory / "rules", side=self._side)
        environment = faults.environment() | {"HOLDFAST__STORAGE__DURABILITY": durability}
        self.broker: BrokerProcess = holdfast(directory / "broker", env=environment)
        self.broker.data_dir.mkdir(parents=True)
        baseline(self.broker.data_dir, self._side)
        self.broker.start()

    def cut_power(self) -> int:
        """Kill, forget what was not synced, start with what is left; return the bytes lost.

        A database below its own watermark would refuse to start: none may ever be.
        """
        self.broker.kill()
        lost = apply_power_cut(self.broker.data_dir, self._side)
        self.broker.start()
        return lost


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize("cuts", [CUTS, pytest.param(100, marks=pytest.mark.slow)])
def test_fsync_loses_nothing_acknowledged_to_power_cuts(
    shim: Path, tmp_path: Path, cuts: int
) -> None:
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
    for _ in range(cuts):
        time.sleep(rng.uniform(0.2, 0.8))
        lost += machine.cut_power()
    finish(publishers, subscribers, seconds=DRAIN_SECONDS)
    machine.broker.close()
    faults = verdict(publishers, subscribers)
    assert not faults, "\n".join(faults)
    assert lost > 0, "the cuts took nothing: they were none"


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
