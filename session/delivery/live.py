"""Sends a message that was just accepted to the connected sessions that match.

A session that keeps up gets the message at once. If its window is full, the message waits
(`session.delivery.window.send_window`). A session that lags reads it from its streams
(`session.delivery.backlog`). Messages that arrived together and differ only in their payloads are
sent together, as a run. Read next: `session.delivery.window.send_window`.
"""

from typing import Final

from mqtt.encoder import PACKET_ID
from mqtt.message import Message
from session.delivery.context import DeliveryContext
from session.delivery.outgoing import Outgoing
from session.delivery.publish_bytes import EncodedPublish, EncodedRun
from session.delivery.sender import Sender, bind_packet_id
from session.delivery.window.send_window import SendWindow
from session.live.connection import ACTIVE, Connection, Pending
from session.live.tick import STEPS_SHIFT
from session.routing.router import Target
from session.state.in_flight import FROM_LOG, UNSTORED_REFERENCE
from session.state.session import Session


class LiveDelivery:
    """Sends accepted messages to connected sessions."""

    def __init__(
        self, context: DeliveryContext, outgoing: Outgoing, sender: Sender, window: SendWindow
    ) -> None:
        self._tick: Final = context.tick
        self._routes: Final = context.routes
        self._counters: Final = context.counters
        self._deliveries: Final = context.history.deliveries
        self._gate: Final = context.gate
        self._is_open: Final = context.is_open
        self._outgoing: Final = outgoing
        self._sender: Final = sender
        self._window: Final = window

    def publish(self, message: Message, targets: list[Target]) -> None:
        """Deliver a message that was just accepted to every connected session that matches.

        If it has an offset, its log rows and its packet ids are in the same batch.
        """
        variants: dict[object, EncodedPublish] = {}
        for target in targets:
            self._hand_over(target, message, variants)

    def publish_run(
        self,
        message: Message,
        payloads: list[bytes],
        first: int,
        number: int,
        targets: list[Target],
    ) -> None:
        """Deliver a run: do what `publish` would do for each of its messages.

        `message` has all but the payloads. The first one has the offset `first` and the others
        follow; 0 = they are not stored. `number` is the number of the first one in the history.
        """
        variants: dict[object, EncodedRun] = {}
        messages: list[Message] = []
        each: list[dict[object, EncodedPublish]] = []
        for target in targets:
            if self._send_run(target, message, payloads, first, number, variants):
                continue
            if not messages:
                messages = _one_by_one(message, payloads, first, number)
                each = [{} for _ in messages]
            for index, single in enumerate(messages):
                self._hand_over(target, single, each[index])

    def _send_run(
        self,
        target: Target,
        message: Message,
        payloads: list[bytes],
        first: int,
        number: int,
        variants: dict[object, EncodedRun],
    ) -> bool:
        """Send a whole run to a session that keeps up; False = deliver its messages one by one."""
        connection = target.connection
        session = connection.session
        assert session is not None
        waiting = connection.waiting
        if (
            not self._is_open
            or connection.state != ACTIVE
            or not connection.writable
            or (waiting is not None and waiting.messages)
            or connection.alias_out_max
            or (target.no_local and message.publisher == session.client_id)
        ):
            return False
        qos = message.qos if message.qos < target.qos else target.qos
        count = len(payloads)
        if qos == 0:
            if first or self._gate.is_full(connection):
                return False
        elif (
            connection.is_lagging
            or (session.is_stored and not first)
            or session.send_quota < count
            or connection.has_queued()
            or connection.resend
        ):
            return False
        parts = self._outgoing.encode_run(
            connection, message, payloads, qos, target.identifiers, variants
        )
        limit = connection.maximum_packet_size
        if limit and parts.size_max > limit:
            return False
        self._counters.messages_sent[qos] += count
        self._counters.payload_bytes_sent += parts.payload_bytes
        if qos == 0:
            self._gate.send(connection, parts.joined())
            packet_ids = None
        else:
            packet_ids = self._bind_run(session, first, number, qos, count)
            self._gate.send_run(connection, parts.heads, packet_ids, parts.tails)
        if self._deliveries.wants_sent:
            size, now = parts.payload_bytes, self._tick.now
            self._deliveries.delivered_run(
                connection, session, message, first, number, count, size, packet_ids, qos, now
            )
        return True

    def _bind_run(
        self, session: Session, first: int, number: int, qos: int, count: int
    ) -> list[int]:
        """Bind packet ids to the messages of a run."""
        reference, flags = first, qos | FROM_LOG
        if not first and number:
            reference, flags = number, flags | UNSTORED_REFERENCE
        packet_ids = session.bind_run(reference, 1 if reference else 0, flags, count)
        if session.is_stored:
            session.position = first + count - 1
            self._tick.dirty[session] = None
        return packet_ids

    def _hand_over(
        self, target: Target, message: Message, variants: dict[object, EncodedPublish]
    ) -> None:
        """Deliver one message to one connected session that matches."""
        qos = message.qos
        offset = message.offset
        connection = target.connection
        session = connection.session
        assert session is not None
        identifiers = target.identifiers
        effective = qos if qos < target.qos else target.qos
        retain = message.retain and target.retain_as_published
        if target.no_local and message.publisher == session.client_id:
            options = self._outgoing.options(session, message)
            if options is None:
                # Do not send it later either, even if the subscription's options change.
                if connection.is_lagging:
                    pass  # the session comes to it in its streams
                elif connection.has_queued():
                    connection.passed_over = offset
                else:
                    self._sender.skip(session, offset)
                return
            effective, retain, identifiers = options
        if effective == 0:
            if offset and self._is_in_stream(session, message):
                self._send_stream_qos0(connection, message, identifiers, variants, retain=retain)
            else:
                self.send_qos0(connection, message, identifiers, variants, retain=retain)
            return
        if connection.is_lagging:
            # The session reads it from the store.
            if connection.arrivals is not None and offset:
                connection.arrivals.note(offset)
            return
        if session.is_stored and not offset:
            self._outgoing.drop(connection, message, "total_limit")
            return
        if (
            session.send_quota == 0
            or connection.has_queued()
            or connection.resend
            or not connection.writable
            or (connection.waiting is not None and self._gate.blocks_messages(connection))
        ):
            self._window.queue(connection, Pending(message, effective, retain, identifiers))
            return
        at_once = effective == 1 or not session.is_stored
        parts = self._outgoing.encode(
            connection,
            message,
            effective,
            identifiers,
            variants,
            retain=retain,
            at_once=at_once,
        )
        if parts is None:
            self._sender.skip(session, offset)
            return
        self._counters.payload_bytes_sent += len(message.payload)
        self._send_live(connection, session, parts, message, effective, retain=retain)

    def _send_live(
        self,
        connection: Connection,
        session: Session,
        parts: EncodedPublish,
        message: Message,
        qos: int,
        *,
        retain: bool,
    ) -> None:
        """Bind a packet id in the batch of the append, and send.

        At QoS 1 at once: a crash that loses the binding also loses the message. At QoS 2 to a
        stored session after the commit. A message never passes another one that waits.
        """
        tick = self._tick
        packet_id = bind_packet_id(session, message, message.offset, qos | FROM_LOG)
        self._counters.messages_sent[qos] += 1
        if self._deliveries.wants_sent:
            self._deliveries.delivered(
                connection, session, message, packet_id, qos, retain, tick.now
            )
        if session.is_stored:
            session.position = message.offset
            tick.dirty[session] = None
            if qos == 2:
                data = b"".join((parts[0], PACKET_ID[packet_id], parts[1]))
                self._gate.send_messages_after_commit(connection, data)
                return
        self._gate.send_message(connection, parts[0], packet_id, parts[1])

    def _is_in_stream(self, session: Session, message: Message) -> bool:
        """Is this stored message in one of the session's own streams?"""
        entries = self._routes.match(message.topic).entries
        self._tick.work += len(entries) >> STEPS_SHIFT
        for entry in entries:
            subscription = session.subscriptions.get(entry.topic_filter)
            if subscription is not None and subscription.holds:
                return True
        return False

    def _send_stream_qos0(
        self,
        connection: Connection,
        message: Message,
        identifiers: tuple[int, ...],
        variants: dict[object, EncodedPublish],
        *,
        retain: bool,
    ) -> None:
        """Send at QoS 0 a message that is also in the session's streams: in order, and once."""
        session = connection.session
        assert session is not None
        if connection.is_lagging:
            if connection.arrivals is not None:
                connection.arrivals.note(message.offset)
            return
        if connection.has_queued():
            self._window.queue(connection, Pending(message, 0, retain, identifiers))
            return
        self.send_qos0(connection, message, identifiers, variants, retain=retain)
        self._sender.skip(session, message.offset)

    def send_qos0(
        self,
        connection: Connection,
        message: Message,
        identifiers: tuple[int, ...],
        variants: dict[object, EncodedPublish],
        share_name: str = "",
        stream: int = 0,
        *,
        retain: bool,
    ) -> None:
        """Send at QoS 0; drop and count the message if the client reads too slowly.

        `share_name` is that of a shared subscription, `stream` its durable stream, 0 = none.
        """
        if not connection.writable or connection.state != ACTIVE:
            self._outgoing.drop(connection, message, "slow_consumer")
            return
        if connection.waiting is not None and self._gate.blocks_messages(connection):
            # It would have to wait behind messages that are not committed yet.
            self._outgoing.drop(connection, message, "slow_consumer")
            return
        parts = self._outgoing.encode(
            connection, message, 0, identifiers, variants, retain=retain, at_once=True
        )
        if parts is None:
            return
        self._counters.messages_sent[0] += 1
        self._counters.payload_bytes_sent += len(message.payload)
        if self._deliveries.wants_sent:
            session = connection.session
            assert session is not None
            self._deliveries.delivered(
                connection, session, message, 0, 0, retain, self._tick.now, share_name, stream
            )
        self._gate.send_message(connection, parts[0], 0, parts[1])


def _one_by_one(message: Message, payloads: list[bytes], first: int, number: int) -> list[Message]:
    """Return the messages of a run."""
    messages = [
        Message(
            message.topic,
            payload,
            message.qos,
            retain=False,
            properties=message.properties,
            publisher=message.publisher,
            accepted_at_ms=message.accepted_at_ms,
            expires_at_ms=message.expires_at_ms,
            offset=first + index if first else 0,
        )
        for index, payload in enumerate(payloads)
    ]
    if number:
        for index, single in enumerate(messages):
            single.number = number + index
    return messages
