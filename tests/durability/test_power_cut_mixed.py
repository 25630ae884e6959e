"""Power cuts while everything happens that MQTT has: nothing that was promised may be missing.

Publishers and subscribers at QoS 1 and 2, takeovers, sessions that stay away or expire, wills with
and without delay, retained messages, shared groups that members join and leave; the broker rotates
its generations, exports its history, makes copies, reads its files anew and drains. The power fails
at any moment, also while the broker starts after the last cut.

`HOLDFAST_CUTS` is the number of cuts (4 here, 500 before a release), `HOLDFAST_CUT_SECONDS` ends
them earlier, `HOLDFAST_CUT_SEED` sets their timing.
"""

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from broker.operations import checkpoint
from broker.operations.checkpoint import CheckpointError
from storage.history import segments
from tests.durability.iofault import build
from tests.durability.load import Publisher, Subscriber, finish, verdict
from tests.durability.machine import Machine
from tests.durability.powercut import HOW
from tests.durability.process import POLL_SECONDS, let_run_for
from tests.durability.promises import (
    Fickle,
    Joiner,
    Keeper,
    Mortal,
    Party,
    Rivals,
    Sleeper,
    WillMaker,
)

CUTS: Final = int(os.environ.get("HOLDFAST_CUTS", "4"))
SECONDS: Final = float(os.environ.get("HOLDFAST_CUT_SECONDS", "inf"))
SEED: Final = int(os.environ.get("HOLDFAST_CUT_SEED", "1"))
RATE: Final = 15
CUT_SECONDS: Final = 30.0  # at most, on a busy machine
DRAIN_SECONDS: Final = 60.0
WILL_SECONDS: Final = 30.0
DYING_SECONDS: Final = 3.0  # the load brings about the call at which the broker dies, or not
SMALL: Final = {
    "HOLDFAST__STORAGE__GENERATION_SIZE": "64KiB",
    "HOLDFAST__STORAGE__GENERATION_AGE": "2s",
    "HOLDFAST__SESSION__PENDING_MESSAGES": "8",
    "HOLDFAST__SESSION__MAX_INFLIGHT": "10",
    "HOLDFAST__LIMITS__EXPIRY_SLICE": "3",
    "HOLDFAST__HISTORY__DETAIL": "full",
    "HOLDFAST__HISTORY__SEAL_SECONDS": "1",
    "HOLDFAST__HISTORY__DRAIN_TIMEOUT": "30s",
}


class Everybody:
    """All clients of one run."""

    def __init__(self, port: int, seed: int) -> None:
        self.publishers = [
            Publisher(port, f"p{n}", qos=1 + n % 2, version=4 + n // 2, rate=RATE) for n in range(4)
        ]
        self.subscribers: list[Subscriber] = [
            Subscriber(port, "s1", qos=1, version=4, seed=seed),
            Subscriber(port, "s2", qos=2, version=5, seed=seed + 1),
            Sleeper(port, "away1", qos=1, version=5, seed=seed + 2),
            Sleeper(port, "away2", qos=2, version=4, seed=seed + 3),
            Rivals(port, "rival", qos=2, version=5, seed=seed + 4),
        ]
        for number, (kind, group, qos) in enumerate(
            (
                (Subscriber, "exact", 2),
                (Sleeper, "exact", 2),
                (Sleeper, "crew", 1),
                (Joiner, "crew", 1),
                (Joiner, "crew", 1),
            )
        ):
            topic_filter = f"$share/{group}/load/#"
            member = kind(
                port,
                f"{group}{number}",
                qos=qos,
                version=5,
                seed=seed + 10 + number,
                topic_filter=topic_filter,
            )
            self.subscribers.append(member)
        self.watcher = Subscriber(
            port, "watcher", qos=2, version=5, seed=seed + 20, topic_filter="will/#"
        )
        self.makers = [WillMaker(port, f"t{n}", seed=seed + 30 + n) for n in range(3)]
        self.parties: Sequence[Party] = [
            *self.makers,
            *(Keeper(port, f"k{n}", seed=seed + 40 + n) for n in range(2)),
            *(Fickle(port, f"f{n}", seed=seed + 50 + n) for n in range(2)),
            *(Mortal(port, f"m{n}", seed=seed + 60 + n) for n in range(2)),
        ]

    def start(self) -> None:
        """Let everybody begin; subscribers first."""
        for subscriber in (*self.subscribers, self.watcher):
            subscriber.start()
        for subscriber in (*self.subscribers, self.watcher):
            assert subscriber.ready.wait(30.0), subscriber.violations
        for client in (*self.publishers, *self.parties):
            client.start()

    def finish(self) -> list[str]:
        """End everybody and return what went wrong."""
        for party in self.parties:
            party.finish()
        finish(self.publishers, self.subscribers, seconds=DRAIN_SECONDS)
        faults = verdict(self.publishers, self.subscribers)
        deadline = time.monotonic() + WILL_SECONDS
        while time.monotonic() < deadline and any(t.unpaid(self._wills(t)) for t in self.makers):
            time.sleep(POLL_SECONDS)
        self.watcher.finish()
        self.watcher.join(30.0)
        faults += self.watcher.violations
        for maker in self.makers:
            faults += maker.verdict(self._wills(maker))
        return faults + [fault for party in self.parties for fault in party.violations]

    def _wills(self, maker: WillMaker) -> dict[int, int]:
        received = list(self.watcher.received)
        return Counter(number for topic, number, _ in received if topic == maker.topic)

    def story(self) -> str:
        """Return how much was promised and kept."""
        messages = sum(len(publisher.acknowledged) for publisher in self.publishers)
        kept = ", ".join(f"{party.name} {party.kept}" for party in self.parties)
        return f"{messages} messages acknowledged; {kept}"


def _die(machine: Machine, path: str, nth: int) -> None:
    machine.die_at(nth, path)
    deadline = time.monotonic() + DYING_SECONDS
    while machine.broker.is_running() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _writing(machine: Machine, rng: random.Random) -> None:
    _die(machine, "/data/", rng.randrange(1, 150))


def _changing_files(machine: Machine, rng: random.Random) -> None:
    path = rng.choice((".sst", "MANIFEST", "/watermark", "/CURRENT", "/heartbeat"))
    _die(machine, path, rng.randrange(1, 4))


def _exporting(machine: Machine, rng: random.Random) -> None:
    _die(machine, "/history", rng.randrange(1, 20))


def _starting(machine: Machine, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 4)):
        machine.die_while_starting(rng.randrange(1, 120), rng.choice(HOW), rng)


def _copying(machine: Machine, rng: random.Random) -> None:
    data = machine.broker.data_dir
    machine.die_at(rng.randrange(1, 12), "/copy")
    with contextlib.suppress(CheckpointError):
        checkpoint.make(str(data), str(data / "copy"))


def _draining(machine: Machine, rng: random.Random) -> None:
    machine.broker.signal(signal.SIGTERM)
    _die(machine, "/data/", rng.randrange(1, 60))


def _reloading(machine: Machine, rng: random.Random) -> None:
    machine.broker.signal(signal.SIGHUP)
    time.sleep(rng.uniform(0.0, 0.05))


def _nothing(machine: Machine, rng: random.Random) -> None:
    pass


DURING: Final = (
    _nothing,
    _writing,
    _starting,
    _changing_files,
    _copying,
    _exporting,
    _draining,
    _reloading,
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


@pytest.mark.ci
def test_power_cuts_break_no_promise(shim: Path, tmp_path: Path) -> None:
    let_run_for(CUTS * CUT_SECONDS)
    machine = Machine(shim, tmp_path, "fsync", SMALL)
    rng = random.Random(SEED)
    everybody = Everybody(machine.broker.port, SEED * 1000)
    everybody.start()
    lost = cuts = 0
    begun = time.monotonic()
    try:
        while cuts < CUTS and time.monotonic() - begun < SECONDS:
            time.sleep(rng.uniform(0.1, 0.8))
            how, during = HOW[cuts % len(HOW)], DURING[cuts % len(DURING)]
            during(machine, rng)
            machine.faults.clear()
            lost += machine.cut_power(how, rng)
            shutil.rmtree(machine.broker.data_dir / "copy", ignore_errors=True)
            cuts += 1
            print(f"cut {cuts}: {how} while {during.__name__[1:]}; {everybody.story()}", flush=True)
        faults = everybody.finish()
    finally:
        machine.broker.close()
    print(f"{cuts} cuts took {lost} bytes and names; {everybody.story()}")
    assert not faults, "\n".join(faults)
    assert lost > 0, "the cuts took nothing: they were none"
    assert sum(party.kept for party in everybody.parties) > cuts, everybody.story()
    history = machine.broker.data_dir / "history"
    assert segments.verify(history, thorough=True) == []
