"""The end of a connection and the end of a session.

A connection ends by DISCONNECT, by the broker, by a lost transport, or by a crash, which the next
start finds (`recover`). A session ends with its connection, by Clean Start, or when it expires.
Before a stored session ends, `settle` writes the open batch, so that the store has all its rows.
Read next: `session.lifetime.wills`, `session.lifetime.repository`.
"""

from typing import Final

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import DISCONNECT, Disconnect
from session.history.session_events import (
    CONNECTION_LOST,
    ENDED_WITH_CONNECTION,
    EXPIRED,
    NO_EXPIRY_LEFT,
)
from session.lifetime.context import ClientContext
from session.lifetime.repository import Sessions
from session.lifetime.wills import Wills
from session.live.connection import ACTIVE, CLOSED, CLOSING, Connection
from session.live.connection_states import DISCONNECT_RECEIVED, TRANSPORT_LOST, move
from session.publish.accept import Publishing
from session.settings import Settings
from session.state.session import Session
from session.state.will_record import decode_connection
from storage.errors import DamagedRows
from storage.tables.tables import CONNECTIONS, unseal
from storage.tables.timers import SESSION
from storage.time.broker_clock import crash_time


def server_reference(settings: Settings, reason_code: int) -> str | None:
    """Return the Server Reference that belongs to a reason code, if one does."""
    if reason_code == reasons.USE_ANOTHER_SERVER or reason_code == reasons.SERVER_MOVED:
        return settings.server_reference
    return None


class DisconnectHandler:
    """Ends connections and sessions."""

    def __init__(
        self,
        context: ClientContext,
        sessions: Sessions,
        publishing: Publishing,
        wills: Wills,
    ) -> None:
        self._tick: Final = context.tick
        self._gate: Final = context.gate
        self._due: Final = context.due
        self._sessions: Final = sessions
        self._publishing: Final = publishing
        self._wills: Final = wills
        self._settings: Final = context.settings
        self._counters: Final = context.counters
        self._damage: Final = context.damage
        self._settle: Final = context.settle
        self._observe: Final = context.observe
        self._session_events: Final = context.history.sessions

    def disconnect(self, connection: Connection, packet: Disconnect) -> int:
        """Handle a DISCONNECT of the client; return 0, or the reason code of its mistake."""
        session = connection.session
        assert session is not None
        expiry = packet.session_expiry_interval
        if expiry is not None and expiry != session.expiry_interval_s:
            if expiry and not connection.expiry_interval_s:
                return (
                    reasons.PROTOCOL_ERROR
                )  # [MQTT-3.14.2-2]: the DISCONNECT is void, so the will fires
        ends = expiry == 0 or (expiry is None and not session.expiry_interval_s)
        if ends and session.is_stored:
            self._settle()
        had_expiry = session.expiry_interval_s > 0
        if expiry is not None:
            most = self._settings.session_expiry_max_s
            in_force = expiry if most is None else min(expiry, most)
            if in_force != session.expiry_interval_s:
                session.expiry_interval_s = in_force
                self._session_events.expiry_changed(connection, session)
        with_will = packet.reason_code != reasons.SUCCESS
        self._counters.disconnects["with_will" if with_will else "normal"] += 1
        self._observe("disconnected", connection, "with will" if with_will else "normal")
        self._leave(
            connection,
            packet.reason_code,
            publish_will=with_will,
            ends_session=ends,
            ending=NO_EXPIRY_LEFT if had_expiry else ENDED_WITH_CONNECTION,
            by_client=True,
        )
        move(connection, DISCONNECT_RECEIVED)
        # The client may see the end only when it is durable: the will deleted, the expiry set.
        tick = self._tick
        is_changed = bool(tick.batch or tick.dirty or self._publishing.is_pending)
        self._gate.close_in_turn(connection, promises=is_changed)
        return 0

    def end(
        self,
        connection: Connection,
        event: str,
        reason_code: int,
        *,
        publish_will: bool = True,
        ends_session: bool = False,
        ending: int = ENDED_WITH_CONNECTION,
        reason_string: str | None = None,
    ) -> None:
        """End a connection from our side; a v5 client gets a DISCONNECT, after its CONNACK.

        `event` is what ended it (`session.live.connection_states`). `ending` is why its session
        ends, for the history, if it ends by `ends_session`. `reason_string` is for the client.
        """
        if connection.state in (CLOSING, CLOSED):
            return
        was_active = connection.state == ACTIVE
        session = connection.session
        if was_active:
            self._observe("closed", connection, reasons.name(reason_code))
        if session is not None:
            if session.is_stored and (ends_session or not session.expiry_interval_s):
                self._settle()
            self._leave(
                connection,
                reason_code,
                publish_will=publish_will,
                ends_session=ends_session,
                ending=ending if ends_session else ENDED_WITH_CONNECTION,
            )
        if was_active and connection.version >= 5:
            self._send_disconnect(connection, reason_code, reason_string)
        move(connection, event)
        if was_active and connection.connack_waits():
            # A good CONNECT is answered with CONNACK 0 [MQTT-3.1.4-5]: it waits for its commit, and
            # the close waits behind it.
            self._gate.close_in_turn(connection, promises=False)
        else:
            self._gate.close_at_once(connection)

    def _send_disconnect(
        self, connection: Connection, reason_code: int, reason_string: str | None
    ) -> None:
        """Send DISCONNECT; what would make it too long for the client is left out."""
        limit = connection.maximum_packet_size
        reference = server_reference(self._settings, reason_code)
        packet = Disconnect(reason_code, reason_string=reason_string, server_reference=reference)
        data = encode(packet, 5)
        if limit and len(data) > limit:
            data = encode(Disconnect(reason_code), 5)
            if len(data) > limit:
                return  # [MQTT-3.1.2-24]
        self._counters.packets_sent[DISCONNECT] += 1
        self._gate.send(connection, data)

    def lost(self, connection: Connection) -> None:
        """Handle the end of the transport: the network failed, or both sides had closed."""
        if connection.state == ACTIVE:
            session = connection.session
            assert session is not None
            self._counters.disconnects["connection_lost"] += 1
            self._observe("lost", connection, "connection closed without DISCONNECT")
            if session.is_stored and not session.expiry_interval_s:
                self._settle()
            self._leave(
                connection, CONNECTION_LOST, publish_will=True, ends_session=False, by_client=True
            )
        move(connection, TRANSPORT_LOST)
        self._gate.discard(connection)

    def _leave(
        self,
        connection: Connection,
        reason: int,
        *,
        publish_will: bool,
        ends_session: bool,
        ending: int = ENDED_WITH_CONNECTION,
        by_client: bool = False,
    ) -> None:
        """Separate a connection from its session; end or keep the session, and handle the will.

        If a stored session ends here, the caller has called `settle`.
        """
        session = connection.session
        assert session is not None
        tick = self._tick
        now = tick.now
        will, connection.will = connection.will, None
        was_stored = session.is_stored
        ends = ends_session or not session.expiry_interval_s
        if was_stored or will is not None:
            tick.batch.append((CONNECTIONS, session.client_id.encode(), None))
        self._sessions.detach(connection)
        self._session_events.disconnected(connection, session, reason, by_client=by_client)
        if ends:
            self._sessions.end(session, connection, ending)
        else:
            session.disconnected_at_ms = now
            session.expiry_due_ms = session.expires_at(now)
            if session.expiry_due_ms:
                name = session.client_id.encode()
                self._due.add(tick.batch, session.expiry_due_ms, SESSION, name)
            tick.mark(session)
        connection.session = None
        if will is not None:
            self._wills.leave(
                session, will, is_published=publish_will, at_once=ends, by_client=by_client
            )

    # Sessions without a connection

    def end_stored(self, session: Session, ending: int, *, is_found: bool = False) -> None:
        """End a disconnected session: publish its waiting will and delete its rows.

        The caller has called `settle`.
        """
        will_due_ms = session.will_due_ms
        waiting = self._wills.take(session)
        self._sessions.end(session, None, ending, is_found=is_found)
        if waiting is not None:
            self._wills.fire_waiting(session, waiting, will_due_ms)

    def expire(self, client_id: str, due_ms: int) -> None:
        """End a session if it is still disconnected and its expiry is still due at `due_ms`."""
        if client_id in self._sessions.live:
            return
        try:
            session = self._sessions.load(client_id)
            if session is None or session.expiry_due_ms != due_ms:
                return
            self._sessions.load_rest(session)
        except DamagedRows as problem:
            self._damage.note("session", problem, client_id)  # its rows stay for an operator
            return
        self._counters.sessions_expired += 1
        self.end_stored(session, EXPIRED)

    def recover(self, client_id: str, value: bytes, alive_ms: int) -> None:
        """Do for a connection that a crash ended what its end would have done.

        Raises `DamagedRows` if its row cannot be read; the row stays for an operator.
        `alive_ms` is when the broker was last known alive; it was alive too when the client
        connected.
        """
        record = decode_connection(unseal(value, "connection"))
        tick = self._tick
        crashed_at_ms = crash_time(
            max(alive_ms, record.connected_at_ms), self._settings.heartbeat_ms
        )
        # After a reboot with the wall clock set back, broker time may repeat the time after the
        # last heartbeat: the connection cannot have ended in the future.
        closed_at_ms = min(crashed_at_ms, tick.now)
        session = None
        if record.is_stored:
            try:
                session = self._sessions.load(client_id)
            except DamagedRows as problem:
                self._damage.note("session", problem, client_id)  # CONNECT refuses its client
                self._wills.part(client_id, record, closed_at_ms)
                return
        tick.batch.append((CONNECTIONS, client_id.encode(), None))
        if session is not None:
            session.disconnected_at_ms = closed_at_ms
            session.expiry_due_ms = session.expires_at(closed_at_ms)
            if session.expiry_due_ms:
                name = client_id.encode()
                self._due.add(tick.batch, session.expiry_due_ms, SESSION, name)
            if not session.incarnation:
                session.incarnation = self._sessions.next_incarnation()  # a record of version 1
            self._session_events.crashed(session)
            if record.will is not None:
                self._wills.arm(session, record.will, closed_at_ms)
            self._sessions.write(session)
        elif record.will is not None:
            self._wills.arm_without_session(client_id, record, closed_at_ms)
