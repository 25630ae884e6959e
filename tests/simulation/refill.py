"""A store that has lost what it knew of clients, and is told again by a backfill.

Once the order is durable, whatever the store was told before counts for nothing: at the end it must
know who is connected, every subscription and every retained message all the same, whatever crashed
meanwhile. Its random numbers are its own. Read next: `session.feed.backfill`.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from session.state.backend_record import PARTS
from tests.simulation.rare import sometimes

if TYPE_CHECKING:
    from tests.simulation.mirror import Mirror, Pump

SHARE: Final = 0.4  # of the worlds with a mirror
BEGIN: Final = 0.02  # share of steps in which an operator has an idea
NAME: Final = "mirror"


class Refill:
    """What the store has forgotten, over all processes of a world."""

    def __init__(self, mirror: "Mirror") -> None:
        self.random: Final = Random(mirror.world.seed * 5 + 3)
        self.is_on: Final = mirror.is_on and self.random.random() < SHARE
        self.world: Final = mirror.world
        self.forgotten: int = 0  # the number of the last event that counts for nothing
        self.began_in: object = None  # the process that was told to
        self.has_late = not self.is_on or self.random.random() < 0.5  # or once more at the end

    def step(self, pump: "Pump") -> None:
        """Do what an operator does now and then."""
        if not self.is_on:
            return
        process = pump.process
        engine = process.engine
        engine.backfill.slice_rows = 1
        is_late = not self.world.faults and not self.has_late
        if not pump.filling and (is_late or (self.world.faults and self.random.random() < BEGIN)):
            seq = engine.feeds.end()[1]
            if engine.backfill.begin(NAME, sum(PARTS)) == "":
                self.has_late |= is_late
                pump.filling = (process.next_serial(), seq)
                process.schedule_tick()
        fill = engine.backfill.fill(NAME)
        if pump.filling and engine.durable >= pump.filling[0]:
            self.forgotten, self.began_in = pump.filling[1], process
            pump.filling = None
            sometimes("store_forgot_clients")
        if fill is not None and fill.parts and fill.rows and self.began_in is not process:
            sometimes("backfill_went_on_after_crash")

    def is_done(self, pump: "Pump") -> bool:
        """Is no backfill under way?"""
        fill = pump.process.engine.backfill.fill(NAME)
        return self.has_late and pump.filling is None and (fill is None or not fill.parts)
