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

import pytest

from tests.durability.mixed_load import MixedLoad
from tests.durability.process import BrokerProcess, holdfast

CYCLES: Final = int(os.environ.get("HOLDFAST_KILL_CYCLES", "20"))
EDGE_CYCLES: Final = max(5, CYCLES // 4)
SEED: Final = int(os.environ.get("HOLDFAST_KILL_SEED", "1"))
# Where the broker kills itself, by the names of `storage.local.committer`: the windows a clock
# rarely hits.
FAILPOINTS: Final = ("before_write", "after_write_before_sync", "after_sync_before_reply")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = holdfast(tmp_path / "broker")
    broker.start()
    yield broker
    broker.close()


def _kill_in_a_loop(broker: BrokerProcess, cycles: int) -> None:
    rng = random.Random(SEED)
    load = MixedLoad(broker.port, SEED)
    load.start()
    for _ in range(cycles):
        time.sleep(rng.uniform(0.05, 0.9))
        broker.crash()
    faults = load.finish()
    assert not faults, "\n".join(faults)
    # The loop must have meant something: a load that never got going proves nothing.
    assert load.acknowledged() > cycles * 50
    for publisher in load.foreign_publishers:
        assert len(publisher.acknowledged) > cycles * 5
    for subscriber in load.foreign_subscribers:
        assert sum(1 for *_, qos in subscriber.received if qos == 2) > cycles * 10


def test_nothing_acknowledged_is_lost_over_many_kills(broker: BrokerProcess) -> None:
    _kill_in_a_loop(broker, CYCLES)


@pytest.mark.parametrize(
    "layout",
    [
        "blocks",
        pytest.param("filters", marks=pytest.mark.ci),
        pytest.param("timeline", marks=pytest.mark.ci),
    ],
)
def test_nothing_acknowledged_is_lost_at_the_edges(tmp_path: Path, layout: str) -> None:
    """The same where everything is small: generations come and go, and sessions always lag."""
    small = {
        "HOLDFAST__STORAGE__LAYOUT": layout,
        "HOLDFAST__STORAGE__GENERATION_SIZE": "64KiB",
        "HOLDFAST__STORAGE__GENERATION_AGE": "1s",
        "HOLDFAST__SESSION__PENDING_MESSAGES": "4",
        "HOLDFAST__SESSION__MAX_INFLIGHT": "6",
        "HOLDFAST__LIMITS__EXPIRY_SLICE": "3",
        "HOLDFAST__LIMITS__OUT_BUFFER": "2KiB",
    }
    broker = holdfast(tmp_path / "broker", env=small)
    broker.start()
    try:
        _kill_in_a_loop(broker, EDGE_CYCLES)
        assert broker.metrics()["holdfast_generations"] < 10, "old generations are not dropped"
    finally:
        broker.close()


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_nothing_acknowledged_is_lost_when_killed_inside_a_commit(
    broker: BrokerProcess, failpoint: str
) -> None:
    load = MixedLoad(broker.port, SEED)
    load.start()
    rng = random.Random(SEED)
    for _ in range(3):
        time.sleep(0.2)
        broker.kill()
        broker.env["HOLDFAST_FAILPOINT"] = f"{failpoint}:{rng.randrange(20, 120)}"
        broker.launch()  # it may be killed before anybody sees it ready
        assert broker.wait_exit(20.0) == -9
        del broker.env["HOLDFAST_FAILPOINT"]
        broker.start()
    faults = load.finish()
    assert not faults, "\n".join(faults)
    assert load.acknowledged() > 100
