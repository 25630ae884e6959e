"""Does every property of the simulation hold when the broker moves from node to node?"""

from collections import Counter

import pytest

from tests.simulation.cluster.mutants import every_other_leader_is_not_heard
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.planting import Patcher
from tests.simulation.report import failure

PROFILE = "cluster"
WORLDS = 24
UNHEARD_WORLDS = 8
# What these worlds must reach: the ends of leaders, and what became of them.
REACHED = (
    "claims",
    "copied",
    "deposed",
    "leader: cut",
    "leader: kill",
    "leader: pause",
    "leader: pause in between",
    "leader: power",
    "lose",
    "moved",
    "resigned",
    "site",
    "trimmed",
    "zombies",
)


def live_through(first: int, count: int) -> Counter[str]:
    """Run worlds; return what happened in them."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        world = ClusterWorld(seed, PROFILE)
        try:
            world.run()
        except Exception as error:  # whatever leaves the engine is a finding
            pytest.fail(failure(world, error))
        seen += world.machines.seen
        seen["acknowledged"] += sum(sent.acked_step > 0 for sent in world.oracle.sent)
        seen["delivered"] += world.oracle.deliveries
    return seen


def test_nothing_acknowledged_is_lost_by_a_takeover() -> None:
    seen = live_through(0, WORLDS)
    for what in REACHED:
        assert seen[what] > 0, (what, seen)
    assert seen["elections"] > 2 * WORLDS
    assert seen["acknowledged"] > 20 * WORLDS
    assert seen["delivered"] > 30 * WORLDS


def test_broker_time_holds_when_every_other_leader_is_not_heard() -> None:
    patcher = Patcher()
    every_other_leader_is_not_heard(patcher)
    try:
        seen = live_through(0, UNHEARD_WORLDS)
    finally:
        patcher.undo()
    assert seen["elections"] > UNHEARD_WORLDS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_nothing_acknowledged_is_lost_by_many_takeovers(part: int) -> None:
    live_through(100_000 + part * 10_000, 500)
