"""Whose turn it is: what came from one client must not keep the loop from all the others.

A tick has a budget of work: bytes read and deliveries made. When it is used up, what else one read
has brought waits for the next tick, and so does what the socket still has; clients that bring
little are served all the same. So one tick takes milliseconds, however much a publisher sends and
however many subscribers it has, and holds about `tick_work_max` * 128 bytes of what came in. Must
never change the order of one client's packets. Read next: `session.engine`, which counts and asks.
"""

from collections.abc import Callable
from typing import Final

from mqtt.packet_runs import Received
from session.live.connection import ACTIVE, CLOSING, Connection
from session.live.tick import Tick

# Packets of one read, or runs of up to 64, that are handled whatever the budget says: PINGREQ and
# acknowledgements do not wait for a flood, and every client gets on.
SPARED_MAX: Final = 4
# A read of so many bytes has filled the loop's buffer, more or less: uvloop reads on at once, up to
# 32 times 250,000 bytes before anybody else gets a turn, unless it is told to pause.
LARGE_READ: Final = 65_536


class WorkBudget:
    """Clients that wait for the next tick, with what they have sent already."""

    def __init__(self, tick: Tick, work_max: int) -> None:
        self._tick: Final = tick
        self.work_max: Final = work_max
        self.spared: Final = min(SPARED_MAX, work_max)
        # Packets decoded and not handled. Not read from as long as it is in here.
        self.waiting: dict[Connection, list[Received]] = {}

    def postpone(self, connection: Connection, packets: list[Received]) -> None:
        """Let `packets`, and what is not read yet, wait until the next tick."""
        self.waiting[connection] = packets
        connection.transport.pause_reading()

    def add(self, connection: Connection, packets: list[Received]) -> None:
        """Let more packets wait behind those of a connection that waits already."""
        self.waiting[connection] += packets

    def take(self, connection: Connection) -> list[Received] | None:
        """Take what a connection waits with, to handle it now; None if it does not wait."""
        return self.waiting.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self.waiting.pop(connection, None)

    def is_full(self) -> bool:
        """Is the budget of this tick used up?"""
        return self._tick.work > self.work_max

    def read_enough(self, connection: Connection, size: int) -> None:
        """Read on after this tick only, if `size` bytes are a hint that there is more."""
        if size < LARGE_READ or not self.is_full():
            return
        if connection.state == ACTIVE and connection not in self.waiting:
            self.postpone(connection, [])

    def go_on(
        self,
        handle: Callable[[Connection, list[Received]], None],
        read_on: Callable[[Connection], None],
    ) -> None:
        """Handle what waited, as far as the budget of this tick goes, and read on from those."""
        waiting = self.waiting
        for connection in list(waiting):
            if self.is_full():
                break
            packets = waiting.pop(connection)
            if packets and connection.state < CLOSING:
                handle(connection, packets)
            if connection not in waiting:
                read_on(connection)
