"""An operator at work: connections are kicked and sessions ended, at any moment of a world.

What is asked is an event of the engine like a packet; what it promises is judged by
`tests.simulation.presence`, which learns here when a session was ended and when that was durable.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from storage.errors import DamagedRows, Recoverable
from tests.simulation.presence import Ended

if TYPE_CHECKING:
    from tests.simulation.world import World

KICKS: Final = 0.4  # share of what an operator asks; the rest ends sessions


class Operator:
    """Somebody who asks for ends of connections and sessions."""

    def __init__(self, world: "World") -> None:
        self._world: Final = world
        self.done: Final[Counter[str]] = Counter()  # what was asked for, and became of it

    def plan(self) -> None:
        """Draw when to ask for something, if this world has an operator."""
        world, most = self._world, self._world.profile.interventions
        if not most[1]:
            return
        for _ in range(world.random.randint(*most)):
            world.after(int(world.random.random() * world.profile.fault_ms), self._act)

    def _act(self) -> None:
        world = self._world
        process = world.up()
        if not world.faults or process is None or process.failed or process.frozen():
            return
        # The witness of all wills is left alone.
        client = world.random.choice([each for each in world.clients if not each.plan.faithful])
        is_kick = world.random.random() < KICKS
        reason = world.random.choice(("", "why"))
        now = process.broker_now()
        world.note("operator", client.name, is_kick)
        try:
            administration = process.engine.administer(now)
            if is_kick:
                if administration.kick(client.name, "operator", reason):
                    self.done["kicked"] += 1
            elif administration.end_session(client.name, "operator", reason):
                engine = process.engine
                self.done["ended"] += 1
                client.session_ended(Ended(now, engine, engine.settled_by))
        except Recoverable:
            self.done["refused"] += 1
        except DamagedRows:
            assert client.name in world.damages.clients
        process.schedule_tick()
