"""The fake network: a TCP connection as two byte pipes with delay, splits, cuts, half-open ends.

Bytes arrive in order, in pieces of any size, some time after they were sent. After a cut only a
prefix of the bytes in transit arrives. One end is the engine's transport, the other is the socket
of a simulated client. Must never lose a byte of a connection that was not cut. Read next:
`tests.simulation.process`.
"""

from typing import TYPE_CHECKING, Final

from session.live.connection import AUTHENTICATING, CLOSING
from tests.simulation.presence import MAYBE, NO, YES, Attempt, Closing
from tests.simulation.rare import sometimes

if TYPE_CHECKING:
    from session.live.connection import Connection
    from tests.simulation.client import Client
    from tests.simulation.process import BrokerProcess
    from tests.simulation.world import World

HIGH_WATER: Final = 600  # bytes waiting for the client at which the engine is told to pause
LOW_WATER: Final = 150
TICK_MAX_MS: Final = 5  # the engine decides on an end at most this long before it closes


class Link:
    """One TCP connection between a client and one incarnation of the broker."""

    __slots__ = (
        "attempt",
        "client",
        "client_gone",
        "closing",
        "connection",
        "cut_off",
        "delivered",
        "disconnect_ends",
        "disconnect_starts",
        "disconnected_ms",
        "down",
        "down_busy",
        "engine_closed",
        "lost",
        "number",
        "paused",
        "process",
        "reading_paused",
        "sent",
        "stalled_until",
        "up",
        "up_busy",
        "world",
    )

    def __init__(self, world: "World", client: "Client", process: "BrokerProcess") -> None:
        self.world = world
        self.client = client
        self.process = process
        world.link_count += 1
        self.number = world.link_count
        self.up = bytearray()  # client to broker, under way
        self.down = bytearray()  # broker to client, under way
        self.up_busy = False  # is its next arrival in the world's heap?
        self.down_busy = False
        self.sent = 0  # bytes the client sent
        self.delivered = 0  # bytes the engine was given
        self.disconnect_starts = 0  # `sent` before the DISCONNECT
        self.disconnect_ends = 0  # `sent` after the DISCONNECT; 0 = none sent
        self.disconnected_ms = 0  # broker time when the engine was given all of it
        self.client_gone = False  # the client has left this connection
        self.cut_off = False  # nothing passes any more
        self.engine_closed = False  # the engine called close()
        self.lost = False  # transport_lost was called
        self.paused = False  # pause_writing was called
        self.reading_paused = False
        self.stalled_until = 0  # the client does not read before
        self.closing: Closing | None = None
        self.attempt: Attempt | None = None
        self.connection: Connection = process.open(self)

    # The client's side

    def send(self, data: bytes) -> None:
        """The client sends."""
        if self.cut_off or self.client_gone:
            return
        self.up += data
        self.sent += len(data)
        if not self.up_busy:
            self.up_busy = True
            self.world.after(self.world.latency(), self._deliver_up)

    def leave(self, notice_ms: int) -> None:
        """The client is gone without a word: a prefix of what is under way arrives.

        The broker notices after `notice_ms`; until then the connection is half open.
        """
        if self.client_gone:
            return
        self.client_gone = True
        world = self.world
        if not self.cut_off and not self.lost:
            count = world.prefix(len(self.up))
            if count and not self.reading_paused and not self.process.frozen():
                self._hand_up(count)
            count = world.prefix(len(self.down))
            if count and not self.cut_off:
                self.client.receive(self, bytes(self.down[:count]))
        self.cut_off = True
        self.up.clear()
        self.down.clear()
        self.client.lost(self)
        if self.engine_closed or not self.lost:
            world.after(notice_ms, self._broker_notices)

    def read_on(self) -> None:
        """The client reads again at once."""
        if self.stalled_until > self.world.now:
            self.stalled_until = 0
            self.world.after(1, self._deliver_down)

    def close_softly(self) -> None:
        """The client closes its socket: everything it sent arrives, then the end."""
        if self.client_gone:
            return
        self.client_gone = True
        self.down.clear()
        self.client.lost(self)
        self.world.after(self.world.latency() + 5, self._arrive_and_end)

    def _arrive_and_end(self) -> None:
        if self.process.thaws(self._arrive_and_end):
            return
        if self.up and not self.cut_off and not self.lost and not self.reading_paused:
            self._hand_up(len(self.up))
        self.cut_off = True
        self._broker_notices()

    def _hand_up(self, count: int) -> None:
        before = self.disconnect_starts - self.delivered
        if self.disconnect_ends and 0 < before < count:
            self._hand_over(before)  # so that one sees whether the DISCONNECT will be read
            count -= before
        self._hand_over(count)

    def _hand_over(self, count: int) -> None:
        data = bytes(self.up[:count])
        del self.up[:count]
        self.delivered += count
        is_read = self.connection.state < CLOSING  # nothing is after a takeover or a mistake
        if 0 < self.disconnect_ends <= self.delivered and not self.disconnected_ms and is_read:
            self.disconnected_ms = self.process.broker_now()
        self.process.receive(self, data)

    def _deliver_up(self) -> None:
        if self.process.thaws(self._deliver_up):
            return
        self.up_busy = False
        if self.cut_off or self.lost or self.reading_paused or not self.up:
            return
        world = self.world
        count = len(self.up)
        if count > 1 and world.chance(world.split):
            count = 1 + int(world.random.random() * (count - 1))
        self._hand_up(count)
        if self.up and not self.up_busy and not self.reading_paused:
            self.up_busy = True
            world.after(world.latency(), self._deliver_up)

    # The engine's side: its transport

    def write(self, data: bytes) -> None:
        """The engine sends."""
        if self.cut_off or self.lost or self.client_gone or self.engine_closed:
            return
        self.down += data
        if not self.down_busy:
            self.down_busy = True
            self.world.after(self.world.latency(), self._deliver_down)
        if len(self.down) > HIGH_WATER and not self.paused:
            self.paused = True
            sometimes("writing_paused")
            self.process.engine.pause_writing(self.connection)

    def close(self) -> None:
        """The engine closes once everything is written."""
        if self.engine_closed or self.lost:
            return
        self.engine_closed = True
        self.note_closing()
        if not self.down_busy:
            self.down_busy = True
            self.world.after(self.world.latency(), self._deliver_down)

    def pause_reading(self) -> None:
        """The engine wants no more bytes for now."""
        self.reading_paused = True

    def resume_reading(self) -> None:
        """The engine wants bytes again."""
        if not self.reading_paused:
            return
        self.reading_paused = False
        if self.up and not self.up_busy:
            self.up_busy = True
            self.world.after(self.world.latency(), self._deliver_up)

    def _deliver_down(self) -> None:
        world = self.world
        if self.stalled_until > world.now and not self.client_gone and not self.cut_off:
            world.after(self.stalled_until - world.now, self._deliver_down)
            return
        self.down_busy = False
        if self.down and not self.cut_off and not self.client_gone:
            count = len(self.down)
            if count > 1 and world.chance(world.split):
                count = 1 + int(world.random.random() * (count - 1))
            data = bytes(self.down[:count])
            del self.down[:count]
            self.client.receive(self, data)
        if self.paused and len(self.down) <= LOW_WATER and not self.lost:
            self.paused = False
            self.process.resume_writing(self)
        if self.down and not self.cut_off and not self.client_gone:
            if not self.down_busy:
                self.down_busy = True
                world.after(world.latency(), self._deliver_down)
        elif self.engine_closed:
            self._broker_notices()
            self._client_notices()

    def _broker_notices(self) -> None:
        if self.lost or self.process.dead or self.process.thaws(self._broker_notices):
            return
        if self.connection.state == AUTHENTICATING:
            sometimes("connection_lost_while_judged")
        self.note_closing()
        self.lost = True
        self.process.transport_lost(self)

    def _client_notices(self) -> None:
        if not self.client_gone:
            self.client_gone = True
            self.cut_off = True
            self.client.lost(self)

    # Both

    def note_closing(self, serial: int = 0) -> None:
        """The connection ends at the broker now: note when, and what it had read.

        `serial` of the batch that its end is in, at the latest; 0 = the next one.
        """
        if self.closing is not None:
            return
        hi = self.process.broker_now()
        lo = hi - TICK_MAX_MS if self.engine_closed else hi
        if self.disconnected_ms:
            lo = hi = self.disconnected_ms
        read = YES if self.disconnected_ms else NO
        if read == YES and self.connection in self.process.engine._turns.waiting:
            # It waits for its turn. A CONNECT on another connection may come before it: nothing
            # orders packets of two connections.
            read = MAYBE
        # A close in answer to DISCONNECT says that its consequences are durable.
        promised = self.engine_closed and self.disconnected_ms
        serial = 0 if promised else serial or self.process.next_serial()
        self.closing = Closing(lo, hi, read, serial)
        self.process.closings.append(self.closing)
        if self.attempt is not None:
            self.attempt.closing = self.closing
        self.client.closed_at_broker(self)

    def ended(self, lo: int, hi: int) -> Closing:
        """The next broker says that the connection ended between these times, if it was open."""
        if self.closing is None:
            read = MAYBE if self.disconnected_ms else NO
            self.closing = Closing(min(lo, self.disconnected_ms or lo), hi, read, 0)
            if self.attempt is not None:
                self.attempt.closing = self.closing
            self.client.closed_at_broker(self)
        return self.closing

    def broker_died(self, lo: int, hi: int) -> None:
        """The broker crashed: what it had written may still arrive, then the end."""
        self.ended(lo, hi)
        self.lost = True
        if not self.client_gone:
            count = len(self.down) if self.world.chance(0.5) else self.world.prefix(len(self.down))
            data = bytes(self.down[:count])
            self.down.clear()
            if data:
                self.client.receive(self, data)
        self.cut_off = True
        self.down.clear()
        self.up.clear()
        self._client_notices()
