"""A long mixed load with kill -9 at even intervals: nothing is lost, and nothing grows.

`HOLDFAST_SOAK_SECONDS` is how long it runs (180 here, 1,800 before a release),
`HOLDFAST_SOAK_KILL_SECONDS` the time between two kills (20).
"""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.durability.mixed_load import Churn, MixedLoad
from tests.durability.process import BrokerProcess, holdfast, let_run_for

SECONDS: Final = float(os.environ.get("HOLDFAST_SOAK_SECONDS", "180"))
KILL_SECONDS: Final = float(os.environ.get("HOLDFAST_SOAK_KILL_SECONDS", "20"))
SEED: Final = int(os.environ.get("HOLDFAST_SOAK_SEED", "1"))
RATE: Final = 30
MIB: Final = 1024 * 1024


@dataclass
class Sample:
    """What a broker held right before it was killed."""

    rss_mib: float
    files: int
    descriptors: int
    disk_mib: float


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    small = {
        "HOLDFAST__STORAGE__GENERATION_SIZE": "1MiB",
        "HOLDFAST__STORAGE__GENERATION_AGE": "30s",
    }
    broker = holdfast(tmp_path / "broker", env=small)
    broker.start()
    yield broker
    broker.close()


def _sample(broker: BrokerProcess) -> Sample:
    files = size = 0
    for folder, folders, names in os.walk(broker.data_dir):
        if "history" in folders:
            folders.remove("history")  # grows until `history.retention` ends it
        for name in names:
            try:
                size += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue  # compacted away meanwhile
            files += 1
    descriptors = len(os.listdir(f"/proc/{broker.pid}/fd"))
    return Sample(broker.rss_bytes() / MIB, files, descriptors, size / MIB)


@pytest.mark.slow
def test_a_long_load_with_kills_loses_nothing_and_grows_nowhere(broker: BrokerProcess) -> None:
    let_run_for(SECONDS)
    load = MixedLoad(broker.port, SEED, rate=RATE)
    churn = [Churn(broker.port, SEED * 10 + number) for number in range(3)]
    load.start()
    for one in churn:
        one.start()
    samples = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(KILL_SECONDS)
        samples.append(_sample(broker))
        print(f"{load.acknowledged()} acknowledged, {samples[-1]}", flush=True)
        broker.crash()
    for one in churn:
        one.finish()
    faults = load.finish() + [fault for one in churn for fault in one.violations]
    assert not faults, "\n".join(faults)
    assert load.acknowledged() > SECONDS * RATE
    assert all(one.lives > len(samples) for one in churn)
    third = max(1, len(samples) // 3)
    for name, slack in (("rss_mib", 16.0), ("files", 40), ("descriptors", 40), ("disk_mib", 64.0)):
        first, last = (
            statistics.median(getattr(sample, name) for sample in part)
            for part in (samples[:third], samples[-third:])
        )
        assert last <= 1.5 * first + slack, f"{name} grows: {first} at first, {last} at last"
