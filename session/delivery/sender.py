"""Sends one waiting or stored message to one connection: binds the packet id, encodes, sends.

If a packet id is bound in a later batch than the append of its message, the PUBLISH waits for the
commit of the binding, at QoS 1 too: after a crash the store then knows every id that a client may
have seen. The caller checks that the window has room. Read next:
`session.delivery.window.send_window`.
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
    """Sends messages that waited or were read, and moves each session's position."""

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
        identifiers: tuple[int, ...],
        reference: int,
        source: int,
        *,
        retain: bool,
        after_commit: bool = False,
    ) -> int:
        """Bind a packet id and send the message; return the id, or 0 if it must not be sent.

        The PUBLISH waits for the commit if the session is stored, or if `after_commit`. The window
        must have room.
        """
        session = connection.session
        assert session is not None
        parts = self._outgoing.encode(
            connection, message, qos, identifiers, {}, retain=retain, at_once=False
        )
        if parts is None:
            if source == FROM_LOG:
                self.skip(session, reference)
            return 0
        packet_id = bind_packet_id(session, message, reference, qos | source)
        self._counters.messages_sent[qos] += 1
        if source == FROM_LOG and self._deliveries.wants_sent:
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
        identifiers: tuple[int, ...],
        *,
        retain: bool,
        is_retained: bool = False,
        is_ours: bool = True,
        after_commit: bool = False,
        message_id: str = "",
    ) -> bool:
        """Send a stored message at QoS 0, behind everything that waits for this connection.

        `is_retained` says that it answers a SUBSCRIBE and is not in the log; `is_ours` that it is
        retained here, or for the log; `message_id` is what the store calls it that it came from.
        False if it must not be sent.
        """
        parts = self._outgoing.encode(
            connection, message, 0, identifiers, {}, retain=retain, at_once=False
        )
        if parts is None:
            return False
        self._counters.messages_sent[0] += 1
        self._counters.payload_bytes_sent += len(message.payload)
        if self._deliveries.wants_sent:
            session = connection.session
            assert session is not None
            now = self._tick.now
            if is_retained:
                self._deliveries.retained(
                    connection,
                    session,
                    message,
                    0,
                    0,
                    now,
                    retain=retain and is_ours,
                    message_id=message_id,
                )
            else:
                self._deliveries.delivered(connection, session, message, 0, 0, retain, now)
        if after_commit:
            self._gate.send_messages_after_commit(connection, parts[0] + parts[1])
        else:
            self._gate.send_message_in_turn(connection, parts[0] + parts[1])
        return True

    def skip(self, session: Session, offset: int) -> None:
        """Move a stored session's position past a message that is not sent."""
        if session.is_stored and offset > session.position:
            session.position = offset
            self._tick.mark_late(session)


def bind_packet_id(session: Session, message: Message, reference: int, flags: int) -> int:
    """Bind a packet id to a message; one that is not stored is bound to its history number."""
    if not reference and message.number and not flags & SOURCE_MASK:
        return session.bind(message.number, flags | UNSTORED_REFERENCE)
    return session.bind(reference, flags)
