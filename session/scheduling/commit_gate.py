"""What waits for which commit, and the one write per connection that carries what may go.

A reply that promises something is held in its tick, tied to the batch of that tick when it is
written, and released when that batch is durable. Must never release anything earlier, nor one reply
of a connection before an older one. Read next: `session.engine`, which says when.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from session.counters import Counters
from session.delivery.delivery import Delivery
from session.live.connection import CLOSED, CLOSING, REPLY_COST, Connection, Waiting
from session.live.tick import Tick
from session.settings import Settings


class Replies:
    """The held replies of all connections."""

    def __init__(
        self,
        tick: Tick,
        delivery: Delivery,
        settings: Settings,
        counters: Counters,
        read_on: Callable[[Connection], None],
    ) -> None:
        """`read_on` lets a connection be read from again that held too much."""
        self._tick: Final = tick
        self._window: Final = delivery.window
        self._shared: Final = delivery.shared
        self._counters: Final = counters
        self._read_on: Final = read_on
        self._held_max: Final = settings.held_bytes_max
        # Above it nobody adds messages, see `session.delivery.context`.
        self._messages_max: Final = min(settings.held_bytes_max, settings.out_buffer_bytes_max)
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def attach(self, serial: int, durable: int) -> None:
        """Tie the replies held in this tick to batch `serial`, which was just written."""
        tick = self._tick
        if not tick.holding:
            return
        holding, tick.holding = tick.holding, []
        is_durable = serial <= durable
        for connection in holding:
            data, connection.held = connection.held, []
            acks, connection.held_acks = connection.held_acks, 0
            messages, connection.held_messages = connection.held_messages, 0
            if not data or connection.state == CLOSED:
                continue
            waiting = Waiting(serial, connection, data, acks, messages)
            cost = REPLY_COST * len(data)
            waiting.size += cost
            connection.held_bytes += cost
            if is_durable and not connection.commits_owed:
                self._release(waiting)
                continue
            connection.commits_owed += 1
            connection.last_waiting = waiting
            self._waiting.append(waiting)
            if connection.held_bytes > self._held_max and not connection.reading_paused:
                connection.reading_paused = True
                connection.transport.pause_reading()

    def release(self, serial: int) -> None:
        """Let go, at the end of this tick, what waited for batches up to `serial`."""
        waiting = self._waiting
        while waiting and waiting[0].serial <= serial:
            item = waiting.popleft()
            item.connection.commits_owed -= 1
            if item.connection.last_waiting is item:
                item.connection.last_waiting = None
            self._release(item)

    def _release(self, item: Waiting) -> None:
        connection = item.connection
        was_full = connection.held_bytes > self._messages_max
        connection.held_bytes -= item.size
        connection.messages_behind -= item.messages
        if connection.state == CLOSED or connection.is_over:
            return  # [MQTT-3.14.4-1]
        if connection.gated:
            connection.gated = False
            connection.last_received_ms = self._tick.now  # its silence was ours until now
        if item.acks:
            connection.inbound_open -= item.acks
        connection.out.extend(item.data)
        if not connection.touched:
            connection.touched = True
            self._tick.touched.append(connection)
        if connection.state == CLOSING and not connection.commits_owed and not connection.held:
            self._tick.close(connection)
        session = connection.session
        if (
            connection.is_lagging
            or connection.pending
            or connection.resend
            or (session is not None and session.replays)
        ):
            self._window.send_waiting(connection)  # it stops when too much is held
        if was_full and connection.group_keys:
            self._shared.send_waiting(connection)
        if connection.reading_paused and connection.held_bytes <= self._held_max // 2:
            connection.reading_paused = False
            self._read_on(connection)

    def flush(self) -> None:
        """One write per connection, then the closes."""
        tick = self._tick
        touched, tick.touched = tick.touched, []
        counters = self._counters
        for connection in touched:
            connection.touched = False
            if connection.out and connection.state != CLOSED:
                data = b"".join(connection.out)
                connection.out.clear()
                counters.bytes_sent += len(data)
                connection.transport.write(data)
        closing, tick.closing = tick.closing, []
        for connection in closing:
            connection.transport.close()
