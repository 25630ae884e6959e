"""Run a world to its end. Read next: `tests.replication.world`, `tests.replication.misfortune`."""

from typing import Final

from tests.replication.misfortune import happen, heal, never_return, site
from tests.replication.world import SITE, World

STEPS: Final = 700
GONE_IN: Final = 8  # one world of so many of its kind ends with a node that does not return


def run(world: World, steps: int = STEPS) -> World:
    """Run, heal, judge. Raises `Failure`."""
    for node in world.nodes.values():
        node.start(world.now)
    for _ in range(steps):
        if world.random.random() < world.badness:
            happen(world)
        if world.site_due and world.now >= world.site_due:
            world.site_due = 0
            site(world)
        world.step()
    heal(world)
    world.settle()
    if world.kind == SITE and world.seed % GONE_IN == 0:
        never_return(world)
    return world
