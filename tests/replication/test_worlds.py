"""Worlds of the replicated store: what was released is nowhere lost, doubled or out of order."""

from collections import Counter

import pytest

from tests.replication.run import run
from tests.replication.world import World

REACHED = (
    "claims",
    "copied",
    "cut",
    "cut all",
    "deposed",
    "disk",
    "elections",
    "fork",
    "gone",
    "kill",
    "lose",
    "pause",
    "pause in between",
    "power",
    "site",
    "trimmed",
    "twin",
)


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_nothing_released_is_lost(first: int) -> None:
    for seed in range(first, first + 20):
        run(World(seed))


def test_worlds_reach_what_can_go_wrong() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1000, 1040):
        world = run(World(seed))
        seen += world.seen
        seen["released"] += len(world.oracle.released)
    for what in REACHED:
        assert seen[what] > 0, (what, seen)
    assert seen["released"] > 2000
