"""One message to one connection, when its turn has come: packet id, bytes, and what it waits for.

A packet id that is bound later than in the batch of its message's append leaves only when the
binding is durable, at QoS 1 too: after a crash the store then knows every id that a client may have
seen. Whether the window has room is the caller's business. Read next: `session.delivery.window`.
"""

from typing import Final

from mqtt.encoder import PACKET_ID
from mqtt.message import Message
from session.delivery.context import DeliveryContext
from session.delivery.outgoing import Outgoing
from session.live.connection import Connection
from session.state.in_flight import FROM_LOG, SOURCE_MASK, UNSTORED_REFERENCE
from session.state.session import Session


class Sender:
    """Sends messages that waited or were read, and keeps each session's position."""

    def __init__(self, context: DeliveryContext, outgoing: Outgoing) -> None:
        self._tick: Final = context.tick
        self._gate: Final = context.gate
        self._counters: Final = context.counters
        self._deliveries: Final = context.history.deliveries
        self._outgoing: Final = outgoing

    def send_bound(
        self,
        connection: Connection,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        reference: int,
        source: int,
        *,
        after_commit: bool = False,
    ) -> int:
        """Bind a packet id and send when that is durable; returns the id, 0 if it was too large.

        For a session in memory it goes out at once, unless `after_commit`. The window has room.
        """
        session = connection.session
        assert session is not None
        parts = self._outgoing.encode(
            connection, message, qos, retain, identifiers, {}, at_once=False
        )
        if parts is None:
            if source == FROM_LOG:
                self.pass_over(session, reference)
            return 0
        packet_id = bind_packet_id(session, message, reference, qos | source)
        self._counters.messages_sent[qos] += 1
        if source == FROM_LOG and self._deliveries.is_on:
            now = self._tick.now
            self._deliveries.delivered(connection, session, message, packet_id, qos, retain, now)
        self._counters.payload_bytes_sent += len(message.payload)
        data = b"".join((parts[0], PACKET_ID[packet_id], parts[1]))
        if not session.is_stored:
            if after_commit:
                self._gate.send_messages_after_commit(connection, data)
            else:
                self._gate.send_message_in_turn(connection, data)
            return packet_id
        if source == FROM_LOG and reference > session.position:
            session.position = reference
        self._tick.dirty[session] = None
        self._gate.send_messages_after_commit(connection, data)
        return packet_id

    def send_qos0_in_order(
        self,
        connection: Connection,
        message: Message,
        retain: bool,
        identifiers: tuple[int, ...],
        *,
        is_retained: bool = False,
    ) -> None:
        """Send a stored message at QoS 0, behind what waits for this connection.

        One that `is_retained` answers a SUBSCRIBE.
        """
        parts = self._outgoing.encode(
            connection, message, 0, retain, identifiers, {}, at_once=False
        )
        if parts is not None:
            self._counters.messages_sent[0] += 1
            self._counters.payload_bytes_sent += len(message.payload)
            if self._deliveries.is_on:
                session = connection.session
                assert session is not None
                now = self._tick.now
                if is_retained:
                    self._deliveries.retained(connection, session, message, 0, 0, now)
                else:
                    self._deliveries.delivered(connection, session, message, 0, 0, retain, now)
            self._gate.send_message_in_turn(connection, parts[0] + parts[1])

    def pass_over(self, session: Session, offset: int) -> None:
        """A message is done without having been sent."""
        if session.is_stored and offset > session.position:
            session.position = offset
            self._tick.mark_late(session)


def bind_packet_id(session: Session, message: Message, reference: int, flags: int) -> int:
    """Bind a packet id to a message, which the history may know by a number of its own."""
    if not reference and message.number and not flags & SOURCE_MASK:
        return session.bind(message.number, flags | UNSTORED_REFERENCE)
    return session.bind(reference, flags)
