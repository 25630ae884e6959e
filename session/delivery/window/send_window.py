"""The send window of a session, and the messages that wait for room in it.

The window is the number of QoS > 0 messages that may be in flight to a client. When it is full, new
messages are bound ahead (`session.delivery.window.ahead`) or wait in a bounded queue. When the
queue is full too, a stored session lags: it reads its streams from the store. Read next:
`session.delivery.backlog`.
"""

from collections.abc import Iterator
from typing import Final

from session.delivery.context import DeliveryContext
from session.delivery.outgoing import Outgoing
from session.delivery.redelivery import Redelivery
from session.delivery.sender import Sender
from session.delivery.window.ahead import AheadBinder
from session.live.connection import ACTIVE, Connection, Pending
from session.state.in_flight import FROM_LOG
from session.state.session import Session


class SendWindow:
    """Queues messages that have no room, and sends them when they have."""

    def __init__(
        self,
        context: DeliveryContext,
        outgoing: Outgoing,
        sender: Sender,
        redelivery: Redelivery,
        ahead: AheadBinder,
    ) -> None:
        self._tick: Final = context.tick
        self._settings: Final = context.settings
        self._gate: Final = context.gate
        self._outgoing: Final = outgoing
        self._sender: Final = sender
        self._redelivery: Final = redelivery
        self._ahead: Final = ahead

    def queue(self, connection: Connection, item: Pending) -> None:
        """Bind a message ahead, or queue it until the window has room.

        If the queue is full, a stored session lags; for one in memory `on_limit` says which message
        is dropped.
        """
        session = connection.session
        assert session is not None
        if self._ahead.take(connection, item):
            return
        settings = self._settings
        pending = connection.pending
        size = len(item.message.payload)
        if session.is_stored:
            limit, bytes_max = settings.pending_messages_max, settings.pending_bytes_max
        else:
            limit, bytes_max = settings.clean_queue_messages_max, settings.clean_queue_bytes_max
        fits = not pending or connection.pending_bytes + size <= bytes_max
        if len(pending) < limit and fits:
            connection.queue(item)
        elif session.is_stored:
            # All queued messages are in the log, above its position and what is bound ahead.
            connection.clear_queue()
            self._lag(connection)
        elif settings.on_limit == "drop_oldest" and limit:
            self._outgoing.drop(connection, connection.next_pending().message, "queue_full")
            while pending and connection.pending_bytes + size > bytes_max:
                self._outgoing.drop(connection, connection.next_pending().message, "queue_full")
            connection.queue(item)
        else:
            self._outgoing.drop(connection, item.message, "queue_full")

    def _lag(self, connection: Connection) -> None:
        """Let the session read its streams from the store from now on."""
        connection.is_lagging = True
        connection.cursor = None
        connection.arrivals = None
        connection.passed_over = 0
        self.send_waiting(connection)

    def _pass_over(self, connection: Connection, session: Session) -> None:
        """Move the position past what the session is not owed, once nothing waits before it."""
        if connection.passed_over and not connection.has_queued():
            self._sender.skip(session, connection.passed_over)
            connection.passed_over = 0

    def send_waiting(self, connection: Connection) -> None:
        """Send the messages that wait for this connection while its window has room."""
        session = connection.session
        if session is None:
            return
        if not connection.has_room():
            if connection.resend and connection.writable and connection.state == ACTIVE:
                self._redelivery.resend_waiting(connection)
            if connection.ahead and not connection.resend:
                self._ahead.send(connection)
                self._pass_over(connection, session)
            if not connection.has_room():
                self._ahead.fill(connection)
                return
        pending = connection.pending
        now = self._tick.now
        while pending and session.send_quota > 0 and not self._gate.is_full(connection):
            item = connection.next_pending()
            message = item.message
            if message.expires_at_ms and message.expires_at_ms <= now:
                self._outgoing.expire(connection, session, message)
                self._sender.skip(session, message.offset)
                continue
            if item.qos == 0:
                self._sender.send_qos0_in_order(
                    connection, message, item.identifiers, retain=item.retain
                )
                self._sender.skip(session, message.offset)
                continue
            self._sender.send_bound(
                connection,
                message,
                item.qos,
                item.identifiers,
                message.offset,
                FROM_LOG,
                retain=item.retain,
            )
        self._pass_over(connection, session)
        if session.send_quota == 0:
            self._ahead.fill(connection)
        elif connection.is_lagging or session.replays:
            self._tick.readers[connection] = None

    def invariants(self, connection: Connection) -> Iterator[str]:
        """Yield what must hold of a connection's deliveries and does not."""
        session = connection.session
        if session is None:
            return
        yield from self._ahead.invariants(connection)
        if connection.is_lagging and connection.passed_over:
            yield f"{session.client_id}: lags and passes over up to {connection.passed_over}"
        if connection.is_lagging and connection.pending:
            yield f"{session.client_id}: lags and has {len(connection.pending)} pending"
        if connection.pending and not session.is_stored:
            return
        position = connection.bound_to(session)
        for item in connection.pending:
            if item.message.offset <= position:
                yield (
                    f"{session.client_id}: offset {item.message.offset} is pending,"
                    f" but all up to {position} are bound"
                )
