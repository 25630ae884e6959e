"""Sends again what was in flight when the session's last connection ended [MQTT-4.4.0-1].

In the same order and with the same packet ids. A message that cannot be sent again is dropped: its
client may not receive it any more, it is too large for this connection, or it is gone from the log.
At QoS 2 PUBREL is sent in its place. Read next: `session.delivery.mailbox`.
"""

from typing import Final

from mqtt.encoder import PACKET_ID, pubrel
from mqtt.message import Message
from mqtt.packets import PUBREL
from mqtt.topics import SHARE_PREFIX
from session.delivery.context import DeliveryContext
from session.delivery.fetching.inbox import Inbox
from session.delivery.mailbox import Mailbox
from session.delivery.outgoing import Outgoing
from session.delivery.publish_bytes import encode_delivery
from session.live.connection import Connection
from session.state.in_flight import (
    FROM_GROUP,
    FROM_MAILBOX,
    PERHAPS_SENT,
    QOS_MASK,
    REFERENCE_SHIFT,
    RELEASED,
    SOURCE_MASK,
)
from session.state.session import Session
from storage.errors import DamagedRows

# Bytes sent again to one session in one tick; the last message may exceed it.
RESEND_BYTES_MAX: Final = 1 << 20


class Redelivery:
    """Sends messages in flight again."""

    def __init__(
        self, context: DeliveryContext, outgoing: Outgoing, mailbox: Mailbox, inbox: Inbox
    ) -> None:
        self._tick: Final = context.tick
        self._log: Final = context.log
        self._counters: Final = context.counters
        self._losses: Final = context.losses
        self._damage: Final = context.damage
        self._deliveries: Final = context.history.deliveries
        self._gate: Final = context.gate
        self._is_open: Final = context.is_open
        self._outgoing: Final = outgoing
        self._mailbox: Final = mailbox
        self._inbox: Final = inbox

    def resend_all(self, connection: Connection) -> None:
        """Send again what was in flight when the session's last connection ended.

        PUBREL does not need room in the window. A PUBLISH without room is sent when there is some,
        before any new message. The caller has written the batch.
        """
        session = connection.session
        assert session is not None
        for packet_id, entry in list(session.in_flight.items()):
            if entry & RELEASED:
                self._counters.redeliveries += 1
                self._send_pubrel(connection, packet_id)
            elif connection.resend or session.send_quota == 0 or self._gate.is_full(connection):
                connection.send_later(packet_id)
            else:
                self._resend(connection, session, packet_id, entry)

    def resend_waiting(self, connection: Connection) -> None:
        """Send again what had no room before; if it is much, the rest in the next tick."""
        session = connection.session
        assert session is not None
        waiting = connection.resend
        size = 0
        while waiting and session.send_quota > 0 and not self._gate.is_full(connection):
            if size >= RESEND_BYTES_MAX:
                self._tick.readers[connection] = None  # continue in the next tick
                return
            packet_id = waiting.popleft()
            entry = session.in_flight.get(packet_id)
            if entry is not None and not entry & RELEASED:
                size += self._resend(connection, session, packet_id, entry)

    def _resend(self, connection: Connection, session: Session, packet_id: int, entry: int) -> int:
        """Send a message in flight again; return its size, 0 if it is dropped."""
        try:
            loaded = self._load_in_flight(session, packet_id, entry)
        except DamagedRows as problem:
            where = f"packet id {packet_id}"
            self._damage.note("message", problem, session.client_id, where)
            return self._give_up(connection, session, packet_id, entry, "damaged")
        if loaded is None:
            return self._give_up(connection, session, packet_id, entry, "max_age")
        message, retain, identifiers = loaded
        if not self._is_open and not self._outgoing.is_permitted(session, message.topic):
            return self._give_up(connection, session, packet_id, entry, "not_authorized")
        qos = entry & QOS_MASK
        head, tail = encode_delivery(
            connection.version,
            message,
            qos,
            identifiers,
            self._tick.now,
            retain=retain,
            dup=True,
        )
        limit = connection.maximum_packet_size
        if limit and len(head) + len(tail) + 2 > limit:
            return self._give_up(connection, session, packet_id, entry, "too_large")
        session.take_quota_again(packet_id)
        self._counters.redeliveries += 1
        self._record(connection, session, packet_id, entry, message, retain=retain)
        self._counters.messages_sent[qos] += 1
        self._counters.payload_bytes_sent += len(message.payload)
        self._gate.send_message_in_turn(connection, b"".join((head, PACKET_ID[packet_id], tail)))
        return len(head) + len(tail)

    def _record(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        entry: int,
        message: Message,
        *,
        retain: bool,
    ) -> None:
        """Record that a message is sent again: for the first time in the history if perhaps so."""
        deliveries, now = self._deliveries, self._tick.now
        if not entry & PERHAPS_SENT:
            if deliveries.is_on:
                deliveries.delivered_again(
                    connection, session, packet_id, entry, message, retain, now
                )
            return
        qos = entry & QOS_MASK
        if deliveries.wants_sent:
            deliveries.delivered(connection, session, message, packet_id, qos, retain, now)
        if qos == 1:
            self._tick.mark_late(session)
        else:
            self._tick.mark(session)

    def _load_in_flight(
        self, session: Session, packet_id: int, entry: int
    ) -> tuple[Message, bool, tuple[int, ...]] | None:
        """Read (message, RETAIN, subscription identifiers) of an in-flight entry from the store."""
        reference = entry >> REFERENCE_SHIFT
        if entry & SOURCE_MASK == FROM_MAILBOX:
            copy = self._mailbox.load(session, reference)
            if copy is None:
                return None
            identifiers = (copy.identifier,) if copy.identifier else ()
            return copy.message, copy.origin is None, identifiers
        message = self._log.get(reference)
        if message is None:
            return None
        if entry & SOURCE_MASK == FROM_GROUP:
            share_name, stream_filter = session.leases[packet_id]
            shared = session.subscriptions.get(f"{SHARE_PREFIX}{share_name}/{stream_filter}")
            if shared is None:
                return message, False, ()
            identifier = shared.identifier
            retain = message.retain and session.keeps_retain(shared)
            return message, retain, (identifier,) if identifier else ()
        options = self._outgoing.matching(session, message)
        if options is None:  # unsubscribed since: an exchange that began is completed
            return message, False, ()
        return message, options[1], options[2]

    def _give_up(
        self, connection: Connection, session: Session, packet_id: int, entry: int, reason: str
    ) -> int:
        """Drop a message in flight; return 0, the bytes of messages sent.

        Behave as if it had been sent [MQTT-3.1.2-25]: a QoS 2 exchange goes on with PUBREL, because
        the client may hold the packet id. One that never had the message answers with PUBCOMP too.
        """
        self._counters.drop(reason)
        if self._losses.tell is not None:
            self._losses.tell(session.client_id, "", reason, 1)
        if self._deliveries.is_on:
            if entry & PERHAPS_SENT and entry & QOS_MASK == 2:
                self._deliveries.sent_before(connection, session, packet_id, entry, self._tick.now)
            self._deliveries.dropped_in_flight(
                session, connection.number, packet_id, entry, reason, self._tick.now
            )
        if self._inbox.is_on:
            self._inbox.given_up(session, entry)
        self._mailbox.remove(session, entry)
        self._tick.mark(session)
        if session.give_up(packet_id):
            self._send_pubrel(connection, packet_id)
        return 0

    def _send_pubrel(self, connection: Connection, packet_id: int) -> None:
        self._counters.packets_sent[PUBREL] += 1
        self._gate.send_after_commit(connection, pubrel(packet_id))
