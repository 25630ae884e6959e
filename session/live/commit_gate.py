"""What leaves now, and what waits for which commit: all that the broker sends goes through here.

A *reply* is any packet to a client, a PUBLISH too. One that promises something *waits* for the
batch of its tick, which makes the promise true. When the batch is written it has a serial; the
commit of that serial *releases* the reply. Every other reply leaves at the end of its tick, unless
it has to keep its order [MQTT-4.6.0]:

- Behind a CONNACK that waits, everything waits, each reply for the batch of its own tick.
- `send`: PINGRESP, AUTH, DISCONNECT and refusals keep no order beside that.
- `reply` and `acknowledge`: PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK leave in the order
  of what they answer: one that promises nothing stays behind all that waits.
- `send_message` and `send_run`: a message that is published now stays behind every message that
  waits. It passes other replies: these have no order with it.
- `send_message_in_turn`: a message that is sent later than it was published stays behind all that
  waits.
- `close_in_turn` closes when everything is out; `close_at_once` ends the connection with what this
  tick sends: what waits is never sent [MQTT-3.14.4-1].

What only stays behind others is released with the newest of them, or waits for this tick's batch if
one of them does. Commits come in the order of serials, so replies of a connection are released in
the order in which they began to wait. Only this module changes `Connection.output`,
`Connection.waiting` and `Connection.is_over`. It is below the delivery of messages, because
everything that sends needs it. Read next: `session.engine`, which says when a batch is written and
when it is durable.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from mqtt.encoder import PACKET_ID
from session.counters import Counters
from session.live.connection import CLOSED, CLOSING, Connection, Replies, Waiting
from session.settings import Settings

# What a reply that waits costs in memory beside its bytes: without it a million PUBACKs that wait
# for a slow disk would count as 4 MB and take 45.
REPLY_COST: Final = 44


class CommitGate:
    """The replies of all connections, until they are with their transports."""

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        *,
        send_pending: Callable[[Connection], None],
        send_shared: Callable[[Connection], None],
        resume_reading: Callable[[Connection], None],
    ) -> None:
        """Take what to call when replies of a connection were released.

        `send_pending` sends messages that are waiting for room, `send_shared` those of its shared
        subscriptions. `resume_reading` reads from it again after too many replies were waiting.
        """
        self._counters: Final = counters
        self._send_pending: Final = send_pending
        self._send_shared: Final = send_shared
        self._resume_reading: Final = resume_reading
        # A client is not read from while more than the first is waiting for it. Above the second it
        # gets no new messages either: what is released must fit into its transport.
        self._size_max: Final = settings.held_bytes_max
        self._full_size: Final = min(settings.held_bytes_max, settings.out_buffer_bytes_max)
        self._sending: list[Connection] = []  # those with output
        self._closing: list[Connection] = []  # to be closed once their output is out
        self._unwritten: list[Replies] = []  # wait for the batch of this tick
        self._written: deque[Replies] = deque()  # wait for the commit of their serial, in order

    def __len__(self) -> int:
        return len(self._written)

    # Replies

    def send(self, connection: Connection, data: bytes) -> None:
        """Send a reply that keeps no order, except behind the CONNACK."""
        waiting = connection.waiting
        if waiting is not None and waiting.has_connack:
            self._wait(connection, data, 0, 0)
        else:
            self._leave(connection, data)

    def send_after_commit(self, connection: Connection, data: bytes) -> None:
        """Send a reply that promises something."""
        self._wait(connection, data, 0, 0)

    def reply(self, connection: Connection, data: bytes, *, promises: bool) -> bool:
        """Send a reply in its order, after the commit if it promises something; does it wait?"""
        waiting = connection.waiting
        if promises:
            self._wait(connection, data, 0, 0)
            return True
        if waiting is None:
            self._leave(connection, data)
            return False
        self._follow(connection, waiting, data, 0)
        return True

    def acknowledge(
        self, connection: Connection, data: bytes, count: int, *, promises: bool
    ) -> bool:
        """Send `count` PUBACKs as `reply` does; their messages are open until these leave.

        Behind others they wait for the batch of this tick, whether they promise something or not.
        """
        if promises or connection.waiting is not None:
            self._wait(connection, data, count, 0)
            return True
        connection.inbound_open -= count
        self._leave(connection, data)
        return False

    def send_connack_after_commit(self, connection: Connection, data: bytes) -> None:
        """Send a CONNACK whose session is in this batch; everything else stays behind it."""
        self._wait(connection, data, 0, 1)
        waiting = connection.waiting
        assert waiting is not None
        waiting.has_connack = True

    # Messages

    def send_message(
        self, connection: Connection, head: bytes, packet_id: int, tail: bytes
    ) -> None:
        """Send a PUBLISH of now: it passes replies that wait, but no message.

        `packet_id` stands between `head` and `tail`, 0 = none (QoS 0).
        """
        waiting = connection.waiting
        if waiting is not None and waiting.messages:
            middle = PACKET_ID[packet_id] if packet_id else b""
            self._follow(connection, waiting, b"".join((head, middle, tail)), 1)
            return
        output = connection.output
        if not output:
            self._sending.append(connection)
        output.append(head)
        if packet_id:
            output.append(PACKET_ID[packet_id])
        output.append(tail)

    def send_run(
        self,
        connection: Connection,
        heads: list[bytes],
        packet_ids: list[int],
        tails: list[bytes],
    ) -> None:
        """Send PUBLISHes of now; the caller knows that no message waits."""
        waiting = connection.waiting
        assert waiting is None or not waiting.messages
        output = connection.output
        if not output:
            self._sending.append(connection)
        for index in range(len(packet_ids)):
            output.append(heads[index])
            output.append(PACKET_ID[packet_ids[index]])
            output.append(tails[index])

    def send_message_in_turn(self, connection: Connection, data: bytes) -> None:
        """Send a PUBLISH that promises nothing, behind everything that waits."""
        waiting = connection.waiting
        if waiting is None:
            self._leave(connection, data)
        else:
            self._follow(connection, waiting, data, 1)

    def send_messages_after_commit(
        self, connection: Connection, data: bytes, count: int = 1
    ) -> None:
        """Send PUBLISHes whose packet ids are bound in this batch."""
        self._wait(connection, data, 0, count)

    def is_full(self, connection: Connection) -> bool:
        """Does so much wait that no message from a backlog may be added?"""
        waiting = connection.waiting
        return waiting is not None and waiting.size > self._full_size

    def blocks_messages(self, connection: Connection) -> bool:
        """Would a message have to wait behind others where there is no more room?"""
        waiting = connection.waiting
        return waiting is not None and waiting.messages > 0 and waiting.size > self._full_size

    # The end of a connection

    def close(self, connection: Connection) -> None:
        """Close the transport at the end of this tick, after what leaves with it."""
        if connection.state != CLOSED:
            self._closing.append(connection)

    def close_in_turn(self, connection: Connection, *, promises: bool) -> None:
        """Close when everything that waits is out, and after the commit if the end promises it.

        The caller has set the state to CLOSING.
        """
        if promises or connection.waiting is not None:
            self._wait(connection, b"", 0, 0)  # a reply without bytes: the close is the last word
        else:
            self.close(connection)

    def close_at_once(self, connection: Connection) -> None:
        """Close the transport at the end of this tick; what waits is never sent."""
        connection.is_over = True
        connection.waiting = None
        self.close(connection)

    def discard(self, connection: Connection) -> None:
        """Forget what would be sent: the transport is gone."""
        connection.is_over = True
        connection.output.clear()
        connection.waiting = None

    # The end of a tick

    def has_unwritten(self) -> bool:
        """Does a reply wait for the batch of this tick?"""
        return bool(self._unwritten)

    def batch_written(self, serial: int, durable: int, now: int) -> None:
        """The batch of this tick is written and has the serial `serial`; `durable` are committed.

        A tick that changed nothing writes no batch: then it is the serial of an earlier one.
        """
        if not self._unwritten:
            return
        unwritten, self._unwritten = self._unwritten, []
        is_durable = serial <= durable
        for replies in unwritten:
            connection = replies.connection
            waiting = connection.waiting
            if waiting is None or waiting.unwritten is not replies:
                continue  # discarded
            waiting.unwritten = None
            cost = REPLY_COST * len(replies.data)
            replies.size += cost
            waiting.size += cost
            if is_durable and waiting.newest is None:
                self._release(replies, waiting, now)
                continue
            replies.serial = serial
            waiting.newest = replies
            self._written.append(replies)
            if waiting.size > self._size_max and not connection.reading_paused:
                connection.reading_paused = True
                connection.transport.pause_reading()

    def release(self, serial: int, now: int) -> None:
        """Let go, at the end of this tick, what waited for batches up to `serial`."""
        written = self._written
        while written and written[0].serial <= serial:
            replies = written.popleft()
            connection = replies.connection
            if connection.is_over:
                continue  # discarded
            waiting = connection.waiting
            assert waiting is not None
            if waiting.newest is replies:
                waiting.newest = None
            self._release(replies, waiting, now)

    def flush(self) -> None:
        """One write per connection, then the closes."""
        sending, self._sending = self._sending, []
        counters = self._counters
        for connection in sending:
            output = connection.output
            if output and connection.state != CLOSED:
                data = b"".join(output)
                output.clear()
                counters.bytes_sent += len(data)
                connection.transport.write(data)
        closing, self._closing = self._closing, []
        for connection in closing:
            connection.transport.close()

    def invariants(self) -> Iterator[str]:
        """Yield what must hold between two events and does not."""
        sums: dict[Connection, tuple[int, int]] = {}
        serial = 0
        for replies in (*self._written, *self._unwritten):
            connection = replies.connection
            if replies.serial and replies.serial < serial:
                yield f"batch {replies.serial} is behind batch {serial}"
            serial = replies.serial
            if not connection.is_over:
                size, messages = sums.get(connection, (0, 0))
                sums[connection] = (size + replies.size, messages + replies.messages)
        for connection, (size, messages) in sums.items():
            waiting = connection.waiting
            if waiting is None or waiting.size != size or waiting.messages != messages:
                yield f"connection {connection.number}: {messages} messages wait, {size} bytes"

    # Inside

    def _leave(self, connection: Connection, data: bytes) -> None:
        """Send at the end of this tick."""
        output = connection.output
        if not output:
            self._sending.append(connection)
        output.append(data)

    def _wait(self, connection: Connection, data: bytes, acks: int, messages: int) -> None:
        """Send after the commit of this tick's batch."""
        waiting = connection.waiting
        if waiting is None:
            waiting = connection.waiting = Waiting()
        replies = waiting.unwritten
        if replies is None:
            replies = waiting.unwritten = Replies(connection)
            self._unwritten.append(replies)
        replies.data.append(data)
        replies.acks += acks
        replies.messages += messages
        waiting.messages += messages
        size = len(data)
        replies.size += size
        waiting.size += size

    def _follow(self, connection: Connection, waiting: Waiting, data: bytes, messages: int) -> None:
        """Send with the newest reply that waits, and no later."""
        newest = waiting.newest
        if newest is None or waiting.unwritten is not None or waiting.has_connack:
            self._wait(connection, data, 0, messages)
            return
        newest.data.append(data)
        newest.messages += messages
        waiting.messages += messages
        size = len(data)
        newest.size += size
        waiting.size += size

    def _release(self, replies: Replies, waiting: Waiting, now: int) -> None:
        """Let replies leave whose batch is durable."""
        connection = replies.connection
        was_full = waiting.size > self._full_size
        waiting.size -= replies.size
        waiting.messages -= replies.messages
        if waiting.newest is None and waiting.unwritten is None:
            connection.waiting = None
        if waiting.has_connack:
            waiting.has_connack = False
            connection.last_received_ms = now  # its silence was ours until now
        connection.inbound_open -= replies.acks
        output = connection.output
        if not output:
            self._sending.append(connection)
        output.extend(replies.data)
        if connection.state == CLOSING and connection.waiting is None:
            self.close(connection)
        is_member_with_room = was_full and bool(connection.group_keys)
        if is_member_with_room or connection.has_backlog():
            self._send_pending(connection)
            if is_member_with_room:
                self._send_shared(connection)
        # What was just sent may be waiting for a commit in turn.
        if connection.reading_paused and connection.waiting_size() <= self._size_max // 2:
            connection.reading_paused = False
            self._resume_reading(connection)
