"""Does every property hold in every world, and is a world the same in every process?"""

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.simulation import rare
from tests.simulation.command import archived, run_chunk, run_seed
from tests.simulation.making import make_world
from tests.simulation.profiles import PROFILES
from tests.simulation.world import World

SEEDS: Final = int(os.environ.get("HOLDFAST_SIM_SEEDS", "300"))
CHUNK: Final = 20
JOBS: Final = min(2, os.cpu_count() or 1)
DEEP_SEEDS: Final = 20_000
ROOT: Final = Path(__file__).parents[2]


class History:
    """What came of many worlds."""

    def __init__(self) -> None:
        self.worlds = 0
        self.failures: list[str] = []
        self.reached: dict[str, int] = {}


def live_through(start: int, count: int) -> History:
    history = History()
    jobs = [(s, min(CHUNK, start + count - s), None) for s in range(start, start + count, CHUNK)]
    with multiprocessing.get_context("spawn").Pool(JOBS) as pool:
        for worlds, failures, found in pool.imap(run_chunk, jobs):
            history.worlds += worlds
            history.failures.extend(problem for _, problem in failures)
            for name, number in found.items():
                history.reached[name] = history.reached.get(name, 0) + number
    return history


@pytest.fixture(scope="module")
def history() -> History:
    return live_through(0, SEEDS)


def test_every_property_holds_in_every_world(history: History) -> None:
    assert not history.failures, "\n\n".join(history.failures[:3])
    assert history.worlds == SEEDS


def test_rare_states_that_no_world_reached_are_named() -> None:
    """`scripts/sim` fails with these names; .ci/run has the worlds that must reach them all."""
    first, *others = rare.RARE
    assert rare.never_reached(dict.fromkeys(others, 1)) == [first]
    assert rare.never_reached(dict.fromkeys(rare.RARE, 1)) == []
    with pytest.raises(AssertionError, match="not in RARE"):
        rare.never_reached({"no such state": 1})


def test_every_property_holds_whatever_an_operator_ends() -> None:
    done: Counter[str] = Counter()
    for seed in range(SEEDS // 5):
        world = World(seed, "operator")
        world.run()
        done.update(world.operator.done)
    assert done["kicked"] and done["ended"] and done["purges"] and done["purges of groups"]
    assert done["purges by topic"] and done["purges of nothing"] and done["purges with a kick"]
    assert done["banned"] and done["pardoned"]
    assert done["kept out"] and done["kept out after a crash"]


@pytest.mark.slow
def test_every_property_holds_in_many_more_worlds() -> None:
    history = live_through(1_000_000, DEEP_SEEDS)
    assert not history.failures, "\n\n".join(history.failures[:3])


@pytest.mark.parametrize(("seed", "profile"), list(archived()))
def test_what_failed_once_holds(seed: int, profile: str | None) -> None:
    problem = run_seed(seed, profile)
    assert problem is None, problem


@pytest.mark.parametrize("profile", PROFILES)
def test_every_kind_of_world_is_the_same_twice(profile: str) -> None:
    first, second = make_world(7, profile), make_world(7, profile)
    assert first.run() == second.run()
    assert first.trace == second.trace


def test_a_world_has_the_same_trace_in_any_process() -> None:
    def hashes(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation.command", "--hash", "--seeds", "12"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        ).stdout

    first = hashes("1")
    assert len(set(first.split())) == 24  # 12 seeds and 12 hashes
    assert hashes("2") == first
    assert hashes("random") == first


def test_other_seeds_make_other_worlds() -> None:
    assert World(1, "mixed").run() != World(2, "mixed").run()
