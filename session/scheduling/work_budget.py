"""The budget of work per tick, so that one busy client cannot block the others.

Work is bytes read and deliveries made. When the budget is used up, the remaining packets of a read
are postponed to the next tick, and the socket is not read until then; clients that send little are
still served. So one tick takes milliseconds, however much a publisher sends and however many
subscribers it has, and reads about `tick_work_max` * 128 bytes. Must never change the order of one
client's packets. Read next: `session.engine`, which counts the work.
"""

from collections.abc import Callable
from typing import Final

from mqtt.packet_runs import Received
from session.live.connection import ACTIVE, CLOSING, Connection
from session.live.tick import Tick

# Packets of one read, or runs of up to 64, that are handled even without budget: PINGREQ and
# acknowledgements do not wait behind a flood, and every client makes progress.
SPARED_MAX: Final = 4
# A read of this size nearly fills the buffer of the event loop: uvloop then reads again at once, up
# to 32 times 250,000 bytes before other connections are served, unless reading is paused.
LARGE_READ: Final = 65_536


class WorkBudget:
    """Connections with packets that are postponed to the next tick."""

    def __init__(self, tick: Tick, work_max: int) -> None:
        self._tick: Final = tick
        self.work_max: Final = work_max
        self.spared: Final = min(SPARED_MAX, work_max)
        # Decoded packets that are not handled yet. A connection in here is not read from.
        self.waiting: dict[Connection, list[Received]] = {}

    def postpone(self, connection: Connection, packets: list[Received]) -> None:
        """Postpone `packets`, and further reading, to the next tick."""
        self.waiting[connection] = packets
        connection.transport.pause_reading()

    def add(self, connection: Connection, packets: list[Received]) -> None:
        """Postpone more packets of a connection that has postponed ones."""
        self.waiting[connection] += packets

    def take(self, connection: Connection) -> list[Received] | None:
        """Remove and return the postponed packets of a connection, None if it has none."""
        return self.waiting.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """Forget a lost connection."""
        self.waiting.pop(connection, None)

    def is_full(self) -> bool:
        """Return whether the budget of this tick is used up."""
        return self._tick.work > self.work_max

    def read_enough(self, connection: Connection, size: int) -> None:
        """Pause reading until the next tick if the budget is used up and the read was large."""
        if size < LARGE_READ or not self.is_full():
            return
        if connection.state == ACTIVE and connection not in self.waiting:
            self.postpone(connection, [])

    def go_on(
        self,
        handle: Callable[[Connection, list[Received]], None],
        read_on: Callable[[Connection], None],
    ) -> None:
        """Handle postponed packets within the budget of this tick, and read on after them."""
        waiting = self.waiting
        for connection in list(waiting):
            if self.is_full():
                break
            packets = waiting.pop(connection)
            if packets and connection.state < CLOSING:
                handle(connection, packets)
            if connection not in waiting:
                read_on(connection)
