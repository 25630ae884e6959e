"""The commit gate: decides for every packet to a client whether it waits for a commit.

A *reply* is any packet to a client, PUBLISH included. A reply *promises* something if the client
may rely on a change that is not durable yet. It *waits* until the batch of its tick is committed.
The batch gets a serial when it is written; the commit of that serial *releases* the reply. All
other replies are sent at the end of their tick, unless they must keep an order [MQTT-4.6.0]:

- Behind a waiting CONNACK every reply waits, each for the batch of its own tick.
- `send`: PINGRESP, AUTH, DISCONNECT and refusals keep no other order.
- `reply` and `acknowledge`: PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK are sent in the
  order of what they answer. One that promises nothing is sent after all waiting replies.
- `send_message` and `send_run`: a message that is delivered when it is published is sent after all
  waiting messages. It may overtake other replies.
- `send_message_in_turn`: a message that is delivered later is sent after all waiting replies.
- `close_in_turn` closes after the last waiting reply; `close_at_once` closes at the end of the
  tick, and waiting replies are never sent [MQTT-3.14.4-1].

A reply that only keeps its order is released with the newest written reply before it, or waits for
the batch of this tick if one before it does. Commits come in the order of serials, so the replies
of a connection are released in the order in which they began to wait. Only this module changes
`Connection.output`, `Connection.waiting` and `Connection.is_over`. It is a layer below the delivery
of messages, because everything that sends needs it. Read next: `session.engine`, which reports when
a batch is written and when it is durable.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from mqtt.encoder import PACKET_ID
from session.counters import Counters
from session.live.connection import CLOSED, CLOSING, Connection, Replies, Waiting
from session.settings import Settings

# Memory of a waiting reply besides its bytes: without it a million PUBACKs waiting for a slow disk
# would count as 4 MB but take 45.
REPLY_COST: Final = 44


class CommitGate:
    """Holds the replies of all connections until they are written to their transports."""

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
        self._sending: list[Connection] = []  # with output
        self._closing: list[Connection] = []  # to close after their output is written
        self._unwritten: list[Replies] = []  # waiting for the batch of this tick
        self._written: deque[Replies] = deque()  # waiting for the commit of their serial, in order

    def __len__(self) -> int:
        return len(self._written)

    # Replies

    def send(self, connection: Connection, data: bytes) -> None:
        """Send a reply that keeps no order, except after the CONNACK."""
        waiting = connection.waiting
        if waiting is not None and waiting.has_connack:
            self._wait(connection, data, 0, 0)
        else:
            self._leave(connection, data)

    def send_after_commit(self, connection: Connection, data: bytes) -> None:
        """Send a reply that promises something, after the commit of this tick's batch."""
        self._wait(connection, data, 0, 0)

    def reply(self, connection: Connection, data: bytes, *, promises: bool) -> bool:
        """Send a reply in order, after the commit if it promises something; True if it waits."""
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
        """Send `count` PUBACKs in order; their messages count as inbound until these are sent.

        After waiting replies they wait for the batch of this tick even if they promise nothing.
        Returns True if they wait.
        """
        if promises or connection.waiting is not None:
            self._wait(connection, data, count, 0)
            return True
        connection.inbound_open -= count
        self._leave(connection, data)
        return False

    def send_connack_after_commit(self, connection: Connection, data: bytes) -> None:
        """Send a CONNACK after the commit of its session; all other replies wait behind it."""
        self._wait(connection, data, 0, 1)
        waiting = connection.waiting
        assert waiting is not None
        waiting.has_connack = True

    # Messages

    def send_message(
        self, connection: Connection, head: bytes, packet_id: int, tail: bytes
    ) -> None:
        """Send a message that was just published, after all waiting messages.

        The PUBLISH is `head`, the packet id (0 = none, QoS 0) and `tail`.
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
        """Send messages that were just published; the caller checked that no message waits."""
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
        """Send a PUBLISH that promises nothing, after all waiting replies."""
        waiting = connection.waiting
        if waiting is None:
            self._leave(connection, data)
        else:
            self._follow(connection, waiting, data, 1)

    def send_messages_after_commit(
        self, connection: Connection, data: bytes, count: int = 1
    ) -> None:
        """Send PUBLISHes after the commit of this tick's batch, which has their packet ids."""
        self._wait(connection, data, 0, count)

    def is_full(self, connection: Connection) -> bool:
        """Return whether too much waits to add messages of a backlog."""
        waiting = connection.waiting
        return waiting is not None and waiting.size > self._full_size

    def blocks_messages(self, connection: Connection) -> bool:
        """Return whether a message would have to wait behind others, and there is no room."""
        waiting = connection.waiting
        return waiting is not None and waiting.messages > 0 and waiting.size > self._full_size

    # The end of a connection

    def close(self, connection: Connection) -> None:
        """Close the transport at the end of this tick, after its output is written."""
        if connection.state != CLOSED:
            self._closing.append(connection)

    def close_in_turn(self, connection: Connection, *, promises: bool) -> None:
        """Close after all waiting replies, and after the commit if the end promises something.

        The caller has set the state to CLOSING.
        """
        if promises or connection.waiting is not None:
            self._wait(connection, b"", 0, 0)  # an empty reply: the close follows its release
        else:
            self.close(connection)

    def close_at_once(self, connection: Connection) -> None:
        """Close the transport at the end of this tick; waiting replies are never sent."""
        connection.is_over = True
        connection.waiting = None
        self.close(connection)

    def discard(self, connection: Connection) -> None:
        """Drop all replies of a connection whose transport is lost."""
        connection.is_over = True
        connection.output.clear()
        connection.waiting = None

    # The end of a tick

    def has_unwritten(self) -> bool:
        """Return whether a reply waits for the batch of this tick."""
        return bool(self._unwritten)

    def batch_written(self, serial: int, durable: int, now: int) -> None:
        """Let the replies of this tick wait for the commit of `serial`, the batch just written.

        Up to `durable` batches are committed. A tick that changed nothing writes no batch: then
        `serial` is that of an earlier one, and its replies may be released at once.
        """
        if not self._unwritten:
            return
        unwritten, self._unwritten = self._unwritten, []
        is_durable = serial <= durable
        for replies in unwritten:
            connection = replies.connection
            waiting = connection.waiting
            if waiting is None or waiting.unwritten is not replies:
                continue  # discarded meanwhile
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
        """Release the replies that wait for batches up to `serial`; `flush` sends them."""
        written = self._written
        while written and written[0].serial <= serial:
            replies = written.popleft()
            connection = replies.connection
            if connection.is_over:
                continue  # discarded meanwhile
            waiting = connection.waiting
            assert waiting is not None
            if waiting.newest is replies:
                waiting.newest = None
            self._release(replies, waiting, now)

    def flush(self) -> None:
        """Write the output of each connection with one call, then close."""
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
        """Yield a sentence for each invariant between two events that does not hold."""
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

    def _leave(self, connection: Connection, data: bytes) -> None:
        """Send a reply at the end of this tick."""
        output = connection.output
        if not output:
            self._sending.append(connection)
        output.append(data)

    def _wait(self, connection: Connection, data: bytes, acks: int, messages: int) -> None:
        """Let a reply wait for the commit of this tick's batch."""
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
        """Let a reply wait as long as the newest reply before it, and no longer."""
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
        """Send replies whose batch is durable at the end of this tick."""
        connection = replies.connection
        was_full = waiting.size > self._full_size
        waiting.size -= replies.size
        waiting.messages -= replies.messages
        if waiting.newest is None and waiting.unwritten is None:
            connection.waiting = None
        if waiting.has_connack:
            waiting.has_connack = False
            connection.last_received_ms = now  # the client could not send before the CONNACK
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
