"""Worlds of the replicated store: what was released is nowhere lost, doubled or out of order."""

from collections import Counter

import pytest

from tests.replication.world import World


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_nothing_released_is_lost(first: int) -> None:
    for seed in range(first, first + 20):
        World(seed).run()


def test_worlds_reach_what_can_go_wrong() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        world = World(seed)
        world.run()
        seen += world.seen
        seen["released"] += len(world.released)
    for what in ("elections", "deposed", "lost", "kill", "power", "cut", "pause", "released"):
        assert seen[what] > 20, (what, seen)
