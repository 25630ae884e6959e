"""The budget of work per tick, so that one busy client cannot block the others.

Work is bytes read, packets handled, index rows and deliveries of their messages, and the steps of
every other loop whose length a client chooses (`session.live.tick` has the units). When the budget
is used up, the remaining packets of a read are postponed to the next tick, and the socket is not
read until then; clients that send little are still served, up to twice the budget. So one tick
takes milliseconds and holds the rows of one budget, however much a publisher sends and whatever it
matches. One message is never divided: a tick may exceed the budget by the last one. Must never
change the order of one client's packets. Read next: `session.engine`, which counts the work.
"""

from collections.abc import Callable
from typing import Final

from mqtt.packet_runs import Received
from session.live.connection import ACTIVE, CLOSING, Connection
from session.live.tick import Tick

# Packets of one read, or runs of up to 64, that are handled even without budget: who sends little
# does not wait behind a flood. Above CEILING budgets only PINGREQ and acknowledgements are.
SPARED_MAX: Final = 4
CEILING: Final = 2
# Bytes decoded before the packets in them are handled: 8,192 of the smallest. A packet takes up to
# a hundred times the memory of its bytes, and decoding is work too.
SLICE_BYTES: Final = 16_384
SPARED_BYTES: Final = 256  # the same without budget
# Work that a client whose packets were postponed may do in its turn, however many wait: little in
# its first turn, so that those who send little need not wait for floods, and more in later ones. A
# flood is then handled in runs, which cost less, and has a turn every few ticks.
FIRST_TURN: Final = 64
LATER_TURN: Final = 1024
# A read of this size nearly fills the buffer of the event loop: uvloop then reads again at once, up
# to 32 times 250,000 bytes before other connections are served, unless reading is paused.
LARGE_READ: Final = 65_536


class WorkBudget:
    """Connections with packets that are postponed to the next tick."""

    def __init__(self, tick: Tick, work_max: int) -> None:
        self._tick: Final = tick
        self.work_max: Final = work_max
        self.ceiling: Final = CEILING * work_max
        self.spared: Final = min(SPARED_MAX, work_max)
        # Decoded packets that are not handled yet. A connection in here is not read from.
        self.waiting: dict[Connection, list[Received]] = {}
        # Those of them that had no turn yet, in their order: who sends little is served first.
        self._newcomers: dict[Connection, None] = {}
        self._is_going_on = False
        tick.work_max = work_max

    def postpone(self, connection: Connection, packets: list[Received]) -> None:
        """Postpone `packets`, all bytes after them, and further reading to the next tick."""
        self.waiting[connection] = packets
        if not self._is_going_on:
            self._newcomers[connection] = None
        connection.transport.pause_reading()

    def slice_bytes(self) -> int:
        """Return how many bytes of a read to decode at once."""
        return SPARED_BYTES if self._tick.work > self.work_max else SLICE_BYTES

    def add(self, connection: Connection, packets: list[Received]) -> None:
        """Postpone more packets of a connection that has postponed ones."""
        self.waiting[connection] += packets

    def forget(self, connection: Connection) -> None:
        """Forget a lost connection."""
        self.waiting.pop(connection, None)
        self._newcomers.pop(connection, None)

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
        """Handle postponed packets within the budget of this tick, and read on after them.

        Newcomers get half of the budget, and what the others leave. In each group everybody has a
        turn before anybody has another.
        """
        newcomers = list(self._newcomers)
        others = [connection for connection in self.waiting if connection not in self._newcomers]
        half = self.work_max // 2 if others else self.work_max
        self._is_going_on = True
        served = self._give_turns(newcomers, half, FIRST_TURN, handle, read_on)
        self._give_turns(others, self.work_max, LATER_TURN, handle, read_on)
        self._give_turns(newcomers[served:], self.work_max, FIRST_TURN, handle, read_on)
        self._is_going_on = False
        self._tick.work_max = self.work_max

    def _give_turns(
        self,
        connections: list[Connection],
        work_max: int,
        share_min: int,
        handle: Callable[[Connection, list[Received]], None],
        read_on: Callable[[Connection], None],
    ) -> int:
        """Give a turn to each connection until this tick has done so much work; return how many."""
        tick = self._tick
        waiting = self.waiting
        left = len(connections)
        for connection in connections:
            if tick.work > work_max:
                break
            share = max(share_min, (work_max - tick.work) // left)
            tick.work_max = min(work_max, tick.work + share)
            left -= 1
            packets = waiting.pop(connection, None)
            self._newcomers.pop(connection, None)
            if packets is None:
                continue
            if (packets or connection.decoder.is_cut) and connection.state < CLOSING:
                handle(connection, packets)
            if connection not in waiting:
                read_on(connection)
        return len(connections) - left
