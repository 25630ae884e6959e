"""Kill -9 in a loop under load: no acknowledged loss, no QoS 2 duplicate, no order break.

`HOLDFAST_KILL_CYCLES` is the number of kills (20 here, 200 before a release), `HOLDFAST_KILL_SEED`
sets their timing.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import paho.mqtt.client as paho
import pytest

from tests.durability.foreign import PahoPair
from tests.durability.load import Publisher, Subscriber, finish, verdict
from tests.durability.process import BrokerProcess, holdfast

CYCLES: Final = int(os.environ.get("HOLDFAST_KILL_CYCLES", "20"))
SEED: Final = int(os.environ.get("HOLDFAST_KILL_SEED", "1"))
DRAIN_SECONDS: Final = 60.0
RATE: Final = 250  # messages a second of each publisher
# Where the broker kills itself, by the names of `storage.writer`: the windows a clock rarely hits.
FAILPOINTS: Final = ("before_write", "after_write_before_sync", "after_sync_before_reply")


class Load:
    """Four publishers and six durable subscribers, two of them a shared group."""

    def __init__(self, port: int, seed: int) -> None:
        self.publishers = [
            Publisher(port, f"p{number}", qos=1 + number % 2, version=4 + number // 2, rate=RATE)
            for number in range(4)
        ]
        self.subscribers = [
            Subscriber(port, f"s{n}", qos=1 + n % 2, version=4 + n // 2, seed=seed * 100 + n)
            for n in range(4)
        ]
        self.subscribers += [
            Subscriber(
                port,
                f"g{n}",
                qos=2,
                version=5,
                seed=seed * 100 + 10 + n,
                topic_filter="$share/group/load/#",
            )
            for n in range(2)
        ]

    def start(self) -> None:
        """Let the subscribers subscribe, then begin to publish."""
        for subscriber in self.subscribers:
            subscriber.start()
        for subscriber in self.subscribers:
            assert subscriber.ready.wait(30.0), subscriber.violations
        for publisher in self.publishers:
            publisher.start()

    def finish(self) -> list[str]:
        """End the load and return what went wrong."""
        finish(self.publishers, self.subscribers, seconds=DRAIN_SECONDS)
        return verdict(self.publishers, self.subscribers)

    def acknowledged(self) -> int:
        """Return how many messages were acknowledged."""
        return sum(len(publisher.acknowledged) for publisher in self.publishers)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = holdfast(tmp_path / "broker")
    broker.start()
    yield broker
    broker.close()


def test_nothing_acknowledged_is_lost_over_many_kills(broker: BrokerProcess) -> None:
    rng = random.Random(SEED)
    load = Load(broker.port, SEED)
    pairs = [
        PahoPair(broker.port, "paho-v4", qos=2, protocol=paho.MQTTv311),
        PahoPair(broker.port, "paho-v5", qos=1, protocol=paho.MQTTv5),
    ]
    load.start()
    for _ in range(CYCLES):
        time.sleep(rng.uniform(0.05, 0.9))
        broker.crash()
    faults = load.finish()
    for pair in pairs:
        pair.finish(seconds=DRAIN_SECONDS)
        faults += pair.verdict()
    assert not faults, "\n".join(faults)
    # The loop must have meant something: a load that never got going proves nothing.
    assert load.acknowledged() > CYCLES * 50
    assert all(len(pair.received) > CYCLES for pair in pairs)


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_nothing_acknowledged_is_lost_when_killed_inside_a_commit(
    broker: BrokerProcess, failpoint: str
) -> None:
    load = Load(broker.port, SEED)
    load.start()
    rng = random.Random(SEED)
    for _ in range(3):
        time.sleep(0.2)
        broker.kill()
        broker.env["HOLDFAST_FAILPOINT"] = f"{failpoint}:{rng.randrange(20, 120)}"
        broker.start()
        assert broker.wait_exit(20.0) == -9
        del broker.env["HOLDFAST_FAILPOINT"]
        broker.start()
    faults = load.finish()
    assert not faults, "\n".join(faults)
    assert load.acknowledged() > 100
