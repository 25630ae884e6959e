"""Packet ids bound ahead of the send window, so that a small one costs no commit for each message.

A packet id must be durable before its PUBLISH is sent, or after a crash another message might get
it. A client with Receive Maximum 1 would cost a commit for each message. So while its window is
full, the next messages get their packet ids in the batch that is written anyway, and each is sent
as soon as an acknowledgement makes room. Until then the client knows nothing of it: the message
takes no quota, it is not in flight, the session's position is before it, and no row of the history
tells it. When the connection ends the ids are free again. Only a crash leaves them in the record;
then the messages may have been sent, and are sent again with DUP (`session.state.records`).

Only a client whose window was full several times has messages bound ahead: for one that gets a few
there is nothing to gain, and after a crash its messages have DUP only if they were sent. And only
plain messages, those that nothing else may overtake or change: QoS 1 and 2, from the session's own
streams, without an expiry. Where retained or fetched messages wait for the same room, nothing is
bound ahead. Read next: `session.delivery.backlog`.
"""

from collections.abc import Iterator
from typing import Final

from mqtt.encoder import PACKET_ID
from mqtt.message import Message
from session.delivery.context import DeliveryContext
from session.delivery.fetching.inbox import Inbox
from session.delivery.outgoing import Outgoing
from session.delivery.sender import Sender
from session.live.connection import ACTIVE, Ahead, Connection, Pending
from session.state.in_flight import FROM_LOG
from session.state.session import PACKET_ID_MAX, Session
from storage.log.message_log import Cursor

# Packet ids of one session bound ahead; more are bound when half of them are sent, so a commit
# serves 64 messages. A backlog at Receive Maximum 10 takes 16 % longer with 64, no less with 256
# (27 November 2026).
AHEAD_MAX: Final = 128
# Payloads of one session kept in memory for it; the last message may exceed it.
AHEAD_BYTES_MAX: Final = 1 << 16
# A larger window has enough messages in each batch.
WINDOW_MAX: Final = 256


class AheadBinder:
    """Binds packet ids ahead, and sends their messages when there is room."""

    def __init__(
        self, context: DeliveryContext, outgoing: Outgoing, sender: Sender, inbox: Inbox
    ) -> None:
        self._tick: Final = context.tick
        self._settings: Final = context.settings
        self._gate: Final = context.gate
        self._counters: Final = context.counters
        self._deliveries: Final = context.history.deliveries
        self._outgoing: Final = outgoing
        self._sender: Final = sender
        self._inbox: Final = inbox

    def room(self, connection: Connection, session: Session) -> int:
        """Return how many messages may be bound ahead now."""
        if (
            session.send_quota
            or not 0 < session.send_quota_max <= WINDOW_MAX
            or not session.is_stored
            or not connection.writable
            or connection.state != ACTIVE
            or connection.full_windows < self._settings.ahead_after
            or connection.ahead_after > session.position
            or connection.ahead_bytes >= AHEAD_BYTES_MAX
            or connection.resend
            or session.replays
            or connection.arrivals is not None
            or connection.plan is not None
            or connection.trim is not None
            or (self._inbox.is_on and self._inbox.is_fetched_for(session))
        ):
            return 0
        bound = len(connection.ahead)
        return max(0, min(AHEAD_MAX - bound, PACKET_ID_MAX - bound - len(session.in_flight)))

    def take(self, connection: Connection, item: Pending) -> bool:
        """Bind a packet id to a message that was just accepted; False if it must be queued.

        It is in the batch of the append, so at QoS 1 it need not be durable before it is sent: a
        crash that loses the packet id also loses the message.
        """
        session = connection.session
        assert session is not None
        if connection.pending or connection.is_lagging or not _is_plain(item.message, item.qos):
            return False
        if not self.room(connection, session):
            return False
        self._bind(connection, session, item, 0 if item.qos == 1 else self._tick.written + 1)
        return True

    def fill(self, connection: Connection) -> None:
        """Bind packet ids to the next messages that wait, if few are bound."""
        session = connection.session
        assert session is not None
        if len(connection.ahead) > AHEAD_MAX // 2 or not connection.waits_for_room():
            return
        if connection.full_windows < self._settings.ahead_after:
            connection.full_windows += 1
            return
        room = self.room(connection, session)
        if connection.is_lagging:
            if room:
                self._tick.readers[connection] = None
            return
        serial = self._tick.written + 1
        while room and connection.pending and connection.ahead_bytes < AHEAD_BYTES_MAX:
            item = connection.pending[0]
            if not _is_plain(item.message, item.qos):
                return
            self._bind(connection, session, connection.next_pending(), serial)
            room -= 1

    def page(self, connection: Connection, session: Session, cursor: Cursor) -> int:
        """Return how many messages of a backlog to read, to bind packet ids to them."""
        if len(connection.ahead) > AHEAD_MAX // 2:
            return 0
        size_left = AHEAD_BYTES_MAX - connection.ahead_bytes
        return min(self.room(connection, session), max(1, size_left // cursor.message_size))

    def bind_page(self, connection: Connection, session: Session, messages: list[Message]) -> int:
        """Bind packet ids to messages of a backlog; return how many, up to one that is not plain.

        Those behind it are read again when it is their turn, and no more is bound ahead before:
        so no message is read more than twice.
        """
        serial = self._tick.written + 1
        for at, message in enumerate(messages):
            options = self._outgoing.options(session, message)
            if options is None or not _is_plain(message, options[0]):
                connection.ahead_after = messages[-1].offset
                return at
            item = Pending(message, *options)
            self._bind(connection, session, item, serial)
        return len(messages)

    def _bind(self, connection: Connection, session: Session, item: Pending, serial: int) -> None:
        packet_id = session.reserve(item.message.offset, item.qos | FROM_LOG)
        connection.add_ahead(Ahead(item, packet_id, serial))
        self._tick.mark(session)

    def send(self, connection: Connection) -> None:
        """Send messages whose packet ids are bound while the window has room."""
        session = connection.session
        assert session is not None
        tick = self._tick
        while (
            connection.ahead
            and session.send_quota > 0
            and connection.writable
            and not self._gate.is_full(connection)
        ):
            held = connection.next_ahead()
            item = held.item
            message = item.message
            parts = None
            if self._is_too_old(message):
                self._outgoing.drop(connection, message, "max_age")
            else:
                parts = self._outgoing.encode(
                    connection,
                    message,
                    item.qos,
                    item.identifiers,
                    {},
                    retain=item.retain,
                    at_once=False,
                )
            if parts is None:
                session.unreserve(held.packet_id)
                self._sender.skip(session, message.offset)
                continue
            session.send_reserved(held.packet_id)
            session.position = message.offset
            self._counters.messages_sent[item.qos] += 1
            self._counters.payload_bytes_sent += len(message.payload)
            if self._deliveries.wants_sent:
                self._deliveries.delivered(
                    connection, session, message, held.packet_id, item.qos, item.retain, tick.now
                )
            if item.qos == 1:
                tick.mark_late(session)
            else:
                tick.mark(session)  # the history of QoS 2 is exact after a crash
            data = b"".join((parts[0], PACKET_ID[held.packet_id], parts[1]))
            if held.serial <= tick.durable:
                self._gate.send_message_in_turn(connection, data)
            else:
                self._gate.send_messages_after_commit(connection, data)

    def _is_too_old(self, message: Message) -> bool:
        max_age_ms = self._settings.max_age_s * 1000
        return bool(max_age_ms) and message.accepted_at_ms + max_age_ms <= self._tick.now

    def invariants(self, connection: Connection) -> Iterator[str]:
        """Yield what must hold of packet ids bound ahead and does not."""
        session = connection.session
        assert session is not None
        bound = [held.packet_id for held in connection.ahead]
        reserved = list(session.reserved or ())
        if bound != reserved:
            yield f"{session.client_id}: {bound} are bound ahead, but {reserved} are reserved"
        size = sum(len(held.item.message.payload) for held in connection.ahead)
        if size != connection.ahead_bytes:
            yield f"{session.client_id}: {connection.ahead_bytes} bytes ahead, not {size}"


def _is_plain(message: Message, qos: int) -> bool:
    return qos > 0 and not message.expires_at_ms
