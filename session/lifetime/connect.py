"""CONNECT: which session a client gets, and what the CONNACK says and waits for.

The order of [MQTT-3.1.4]: check, authenticate, take over, Clean Start, CONNACK, delivery. Of two
clients with one Client Identifier the one whose CONNECT came later has the session [MQTT-3.1.4-3],
whichever connection was opened first and whichever password was checked first. A refused CONNECT
changes nothing. The CONNACK of a stored session, or of one with a will, waits for its commit, and
everything behind it waits too: nothing is sent again from memory that a crash could undo. A CONNECT
may wait for lists of subscriptions in stores; it is judged anew after that. Before anything is
loaded, `settle_for` writes the open batch if it may hold rows of this client. It runs
only at the start of an event, so the store never holds half of one. Read next:
`session.lifetime.disconnect`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import CONNACK, V3, Connack, Connect
from mqtt.topics import levels_count, topic_problem
from session.delivery.delivery import Delivery
from session.delivery.fetching.awaited_lists import AwaitedList, Waiting
from session.delivery.fetching.proxies import Lookup
from session.history.session_events import (
    CLEAN_START,
    ENDED_WITH_CONNECTION,
    EXPIRED,
)
from session.lifetime.authentication import Authentication
from session.lifetime.context import ClientContext
from session.lifetime.disconnect import DisconnectHandler, server_reference
from session.lifetime.repository import Sessions
from session.lifetime.wills import Wills
from session.live.connection import Connection
from session.live.connection_states import (
    CONNECT_ACCEPTED,
    CONNECT_REFUSED,
    TAKEN_OVER,
    move,
)
from session.live.tick import STALLED_CHANGES_MAX
from session.publish.accept import Publishing
from session.scheduling.bans import Bans
from session.scheduling.kept_out import KeptOut
from session.state.session import EXPIRY_NEVER, Session
from session.state.will_record import ConnectionRecord, encode_connection
from storage.errors import DamagedRows
from storage.tables.tables import CONNECTIONS, seal
from storage.tables.timers import SESSION

CONNECT_RESULTS: Final = {
    reasons.MALFORMED_PACKET: "malformed",
    reasons.PROTOCOL_ERROR: "malformed",
    reasons.UNSUPPORTED_PROTOCOL_VERSION: "unsupported_version",
    reasons.CLIENT_IDENTIFIER_NOT_VALID: "client_id_not_valid",
    reasons.BAD_USER_NAME_OR_PASSWORD: "bad_credentials",
    reasons.NOT_AUTHORIZED: "not_authorized",
    reasons.BANNED: "banned",
    reasons.QUOTA_EXCEEDED: "quota_exceeded",
    reasons.SERVER_UNAVAILABLE: "server_unavailable",
    reasons.CONNECTION_RATE_EXCEEDED: "rate_exceeded",
    reasons.USE_ANOTHER_SERVER: "redirected",
    reasons.SERVER_MOVED: "redirected",
}


class ConnectHandler:
    """Accepts or refuses clients, and gives each its session."""

    def __init__(
        self,
        context: ClientContext,
        sessions: Sessions,
        delivery: Delivery,
        publishing: Publishing,
        wills: Wills,
        disconnects: DisconnectHandler,
        bans: Bans,
        kept_out: KeptOut,
        watch: Callable[[Connection], None],
    ) -> None:
        self._tick: Final = context.tick
        self._gate: Final = context.gate
        self._due: Final = context.due
        self._sessions: Final = sessions
        self._delivery: Final = delivery
        self._publishing: Final = publishing
        self._wills: Final = wills
        self._disconnects: Final = disconnects
        self._bans: Final = bans
        self._kept_out: Final = kept_out
        self._settings: Final = context.settings
        self._counters: Final = context.counters
        self._damage: Final = context.damage
        self._new_client_id: Final = context.ports.new_client_id
        self._settle_for: Final = context.settle_for
        self._watch: Final = watch
        self._observe: Final = context.observe
        self._session_events: Final = context.history.sessions
        self._proxies: Final = delivery.proxies
        self._last_number: int = 0  # of a CONNECT
        # Called with the connection once a CONNECT is decided after `connect` returned.
        self.decided: Callable[[Connection], None] = _unheard
        self.authentication: Final = Authentication(
            context, self._accept, self.refuse, disconnects.end
        )

    def connect(self, connection: Connection, packet: Connect) -> None:
        """Accept or refuse a CONNECT; `decided` is called if that happens after this returned."""
        self._last_number += 1
        connection.connect_number = self._last_number
        connection.version = packet.protocol_version
        connection.maximum_packet_size = packet.maximum_packet_size
        connection.client_id = packet.client_id
        connection.username = connection.identity or packet.username or ""
        connection.keep_alive_s = packet.keep_alive
        connection.clean_start = packet.clean_start
        connection.expiry_interval_s = _asked_expiry(packet)
        refusal = 0 if connection.refusal == reasons.QUOTA_EXCEEDED else connection.refusal
        refusal = refusal or self._refusal(packet)
        if not refusal and self._is_banned(connection, connection.username):
            refusal = reasons.BANNED  # before a password costs anything
        if refusal:
            self.refuse(connection, refusal)
            return
        if not packet.client_id:
            connection.client_id = self._new_client_id()
        self.authentication.begin(connection, packet, self.decided)

    def _refusal(self, packet: Connect) -> int:
        """Return the reason to refuse a CONNECT for what it says, or 0."""
        settings = self._settings
        if len(packet.client_id.encode()) > settings.client_id_bytes_max:
            return reasons.CLIENT_IDENTIFIER_NOT_VALID
        if not packet.client_id and packet.protocol_version < 5:
            if packet.protocol_version == V3 or not packet.clean_start:
                return reasons.CLIENT_IDENTIFIER_NOT_VALID  # [MQTT-3.1.3-8] of 3.1.1
        most = settings.keep_alive_max_s
        if most and packet.protocol_version < 5 and not 0 < packet.keep_alive <= most:
            # v3.1.1 cannot be told a smaller one, and has no code for this: mosquitto sends 2.
            return reasons.CLIENT_IDENTIFIER_NOT_VALID
        will = packet.will
        if will is not None:
            if topic_problem(will.topic) or levels_count(will.topic) > settings.topic_levels_max:
                return reasons.TOPIC_NAME_INVALID
            if will.qos > settings.maximum_qos:
                return reasons.QOS_NOT_SUPPORTED
            if will.retain and not settings.retain_available:
                return reasons.RETAIN_NOT_SUPPORTED
        return 0

    def _is_banned(self, connection: Connection, user: str) -> bool:
        return self._bans.find(connection.client_id, user, connection.remote) is not None

    def refuse(self, connection: Connection, reason_code: int) -> None:
        """Answer a CONNECT with an error and close; no session is touched [MQTT-3.1.4-2]."""
        self._proxies.awaited.forget(connection)
        result = CONNECT_RESULTS.get(reason_code, "other")
        self._counters.refuse(connection.listener, result)
        self._observe("refused", connection, reasons.name(reason_code))
        version = connection.version
        # v3.1.1 has no code for some reasons: then the connection is only closed [MQTT-3.2.2-6].
        if version >= 5 or (version and reasons.connack_v4(reason_code) >= 0):
            reference = server_reference(self._settings, reason_code)
            data = encode(
                Connack(session_present=False, reason_code=reason_code, server_reference=reference),
                version,
            )
            limit = connection.maximum_packet_size
            if limit and len(data) > limit:
                data = encode(Connack(session_present=False, reason_code=reason_code), version)
            if not limit or len(data) <= limit:
                self._counters.packets_sent[CONNACK] += 1
                self._gate.send(connection, data)
        move(connection, CONNECT_REFUSED)
        self._gate.close(connection)

    def _accept(
        self, connection: Connection, packet: Connect, identity: str, data: bytes | None
    ) -> None:
        """Accept the CONNECT of an authenticated client, once it has the lists it waits for.

        `data` is the Authentication Data for the CONNACK.
        """
        found = self._find(connection, packet, identity, data)
        if found is None:
            return
        is_new = self._begins(found, packet)
        wanted = self._proxies.awaited_by(connection.client_id, is_new=is_new)
        if not wanted:
            self._take_in(connection, packet, identity, found, {})
            return

        def waited(waiting: Waiting) -> None:
            if waiting.is_refused:
                self.refuse(connection, reasons.SERVER_UNAVAILABLE)
                return
            # The session may be another one by now, or this client's no more.
            found = self._find(connection, packet, identity, data)
            if found is not None:
                self._take_in(connection, packet, identity, found, waiting.had())

        def waited_for_long(waiting: Waiting) -> None:
            waited(waiting)
            self.decided(connection)

        waiting = self._proxies.awaited.begin(connection, wanted, waited_for_long)
        if waiting.is_decided:
            waited(waiting)

    def forget(self, connection: Connection) -> None:
        """Let a CONNECT wait for nothing more: its transport is lost."""
        self._proxies.awaited.forget(connection)

    def _find(
        self, connection: Connection, packet: Connect, identity: str, data: bytes | None
    ) -> "_Found | None":
        """Find the session of an authenticated client, None if the CONNECT was refused.

        Nothing of a session is changed.
        """
        client_id = connection.client_id
        if self._is_banned(connection, identity or connection.username):
            self.refuse(connection, reasons.BANNED)  # since `connect`, or by its proved name
            return None
        if client_id in self._kept_out:
            self.refuse(connection, reasons.SERVER_BUSY)  # it may come back a little later
            return None
        old = self._sessions.live.get(client_id)
        if old is not None and old.connect_number > connection.connect_number:
            self._overtaken(connection)
            return None
        refusal = self._excess(connection, identity, old)
        if refusal:
            self.refuse(connection, refusal)
            return None
        if not self._settle_for(client_id) and not self._needs_no_store(client_id, packet):
            self.refuse(connection, reasons.SERVER_UNAVAILABLE)
            return None
        session = None if old is None else old.session
        try:
            if old is None:
                session = self._sessions.load(client_id)
            refusal = self._owner_refusal(identity, session, old)
            if not refusal and session is not None and old is None:
                self._sessions.load_rest(session)
        except DamagedRows as problem:
            self._damage.note("session", problem, client_id)
            refusal = reasons.SERVER_UNAVAILABLE
        if not refusal and self._is_refused_by_store(packet, session, old):
            refusal = reasons.QUOTA_EXCEEDED
        if refusal:
            self.refuse(connection, refusal)
            return None
        connack = self._connack(connection, packet, data)
        if connack is None:
            self.refuse(connection, reasons.PACKET_TOO_LARGE)
            return None
        return _Found(old, session, connack)

    def _begins(self, found: "_Found", packet: Connect) -> bool:
        """Will the client get a new session?"""
        if found.session is None or packet.clean_start:
            return True
        if found.old is not None:
            return not found.session.expiry_interval_s
        return found.session.is_expired(self._tick.now)

    def _take_in(
        self,
        connection: Connection,
        packet: Connect,
        identity: str,
        found: "_Found",
        had: Mapping[str, AwaitedList],
    ) -> None:
        """Take over or create the session of a client, and answer. `had` are lists for it."""
        client_id = connection.client_id
        connack = found.connack
        changes = len(self._tick.batch) + self._publishing.end
        session = self._inherit(found.session, found.old, packet)
        connack.session_present = session is not None
        if session is None:
            session = Session(client_id, identity, self._tick.now)
            session.incarnation = self._sessions.next_incarnation()
            self._counters.sessions_created += 1
        else:
            self._counters.sessions_resumed += 1
        session.identity = identity  # a session without an owner gets this one
        session.expiry_interval_s = self._expiry_of(packet)
        if session.expiry_interval_s and not session.is_stored:
            self._sessions.create(session)
        self._begin(connection, session, packet, session_present=connack.session_present)
        is_changed = (
            session.is_stored
            or len(self._tick.batch) + self._publishing.end > changes
            or client_id in self._tick.ended
        )
        self._answer(connection, session, connack, is_changed=is_changed)
        self._sessions.attach(connection)
        if connack.session_present:
            self._delivery.resume(connection)
            if self._delivery.inbox.is_on:
                self._delivery.inbox.connected(connection)
        there: list[tuple[Lookup, AwaitedList]] = []
        if self._proxies.is_on:
            there = self._proxies.connected(connection, had, is_new=not connack.session_present)
        self._sessions.join_groups(connection)
        for lookup, rows in there:
            self._proxies.take_awaited(lookup, rows)

    def _excess(self, connection: Connection, identity: str, old: Connection | None) -> int:
        """Return the reason why there may not be one more connection, or 0.

        A takeover adds none. Asked only of clients that are authenticated: the answer to others
        would tell which Client Identifiers are connected.
        """
        if old is not None and self._owner_refusal(identity, old.session, old):
            old = None
        if connection.refusal == reasons.QUOTA_EXCEEDED:  # of its address
            if old is None or old.address != connection.address:
                return reasons.QUOTA_EXCEEDED
        most = self._settings.max_connections
        if most and old is None and len(self._sessions.live) >= most:
            return reasons.SERVER_BUSY
        return 0

    def _overtaken(self, connection: Connection) -> None:
        """Close a connection whose client has sent a later CONNECT, accepted meanwhile.

        It is as if it had been accepted first and taken over at once. No CONNACK can say that.
        """
        self._counters.refuse(connection.listener, "overtaken")
        self._observe("refused", connection, "overtaken by a later CONNECT")
        move(connection, CONNECT_REFUSED)
        self._gate.close(connection)

    def _owner_refusal(self, identity: str, session: Session | None, old: Connection | None) -> int:
        """Return the reason why this client may not have the session, or 0."""
        if session is None or not session.identity or session.identity == identity:
            return 0
        if old is None and session.is_expired(self._tick.now):
            return 0  # it has expired and is only not removed yet
        return reasons.NOT_AUTHORIZED

    def _is_refused_by_store(
        self, packet: Connect, session: Session | None, old: Connection | None
    ) -> bool:
        """Would this CONNECT need new rows while the store takes none?"""
        if not self._publishing.refuses_writes:
            return False
        if not self._expiry_of(packet) and not packet.will:
            return False
        return (
            session is None
            or packet.clean_start
            or not session.expiry_interval_s
            or (old is None and session.is_expired(self._tick.now))
        )

    def _needs_no_store(self, client_id: str, packet: Connect) -> bool:
        """Can this client be served while the store takes no writes?

        Only if it asks for nothing durable, and has no stored session that would have to end. An
        external store may be told of it, so the batch grows all the same.
        """
        if self._expiry_of(packet) or packet.will is not None:
            return False
        if len(self._tick.batch) > STALLED_CHANGES_MAX:
            return False
        try:
            return self._sessions.is_unknown(client_id)
        except DamagedRows as problem:
            self._damage.note("session", problem, client_id)
            return False

    def _expiry_of(self, packet: Connect) -> int:
        """Return the Session Expiry Interval in force, seconds."""
        asked = _asked_expiry(packet)
        most = self._settings.session_expiry_max_s
        return asked if most is None else min(asked, most)

    def _connack(
        self, connection: Connection, packet: Connect, data: bytes | None
    ) -> Connack | None:
        """Return the CONNACK that accepts a CONNECT, None if it is too large for the client."""
        connack = Connack(session_present=False)
        if packet.protocol_version < 5:
            return connack
        settings = self._settings
        expiry_interval_s = self._expiry_of(packet)
        if expiry_interval_s != packet.session_expiry_interval:
            connack.session_expiry_interval = expiry_interval_s
        connack.receive_maximum = settings.receive_maximum
        connack.maximum_qos = settings.maximum_qos
        connack.retain_available = settings.retain_available
        connack.maximum_packet_size = settings.maximum_packet_size
        connack.topic_alias_maximum = settings.topic_alias_maximum
        connack.wildcard_subscription_available = settings.wildcard_subscriptions
        connack.shared_subscription_available = settings.shared_subscriptions
        connack.subscription_identifier_available = settings.subscription_identifiers
        connack.assigned_client_id = None if packet.client_id else connection.client_id
        connack.authentication_method = packet.authentication_method  # [MQTT-4.12.0-5]
        connack.authentication_data = data
        keep_alive = self._keep_alive_of(packet)
        if keep_alive != packet.keep_alive:
            connack.server_keep_alive = keep_alive
        limit = packet.maximum_packet_size
        if not limit:
            connack.user_properties = settings.user_properties
            return connack
        if len(encode(connack, 5)) > limit:  # [MQTT-3.1.2-24]
            return None
        connack.user_properties = settings.user_properties
        if len(encode(connack, 5)) > limit:  # [MQTT-3.2.2-20]
            connack.user_properties = ()
        return connack

    def _keep_alive_of(self, packet: Connect) -> int:
        """Return the Keep Alive in force, seconds."""
        most = self._settings.keep_alive_max_s
        if not most or 0 < packet.keep_alive <= most:
            return packet.keep_alive
        return most

    def _inherit(
        self, session: Session | None, old: Connection | None, packet: Connect
    ) -> Session | None:
        """Return the session that the client resumes, or None; end a session it does not resume."""
        now = self._tick.now
        if session is None:
            return None
        if old is not None:
            self._counters.sessions_taken_over += 1
            ends = packet.clean_start or not session.expiry_interval_s
            will = old.will
            waits = will is not None and will.delay_interval > 0
            self._session_events.taken_over(old, session, reasons.SESSION_TAKEN_OVER)
            self._disconnects.end(
                old,
                TAKEN_OVER,
                reasons.SESSION_TAKEN_OVER,
                publish_will=ends or not waits,
                ends_session=ends,
                ending=CLEAN_START if packet.clean_start else ENDED_WITH_CONNECTION,
            )
            if ends:
                return None
            self._revive(session)
            return session
        if packet.clean_start or session.is_expired(now):
            if session.is_expired(now):
                self._counters.sessions_expired += 1
                self._disconnects.end_stored(session, EXPIRED, is_found=True)
            else:
                self._counters.sessions_terminated += 1
                self._disconnects.end_stored(session, CLEAN_START)
            return None
        self._revive(session)
        return session

    def _revive(self, session: Session) -> None:
        """Stop the expiry of a session that is connected again, and cancel its waiting will."""
        if not session.incarnation:
            session.incarnation = self._sessions.next_incarnation()  # a record of version 1
        if session.expiry_due_ms:
            name = session.client_id.encode()
            self._due.remove(self._tick.batch, session.expiry_due_ms, SESSION, name)
            session.expiry_due_ms = 0
        self._wills.resumed(session)
        session.disconnected_at_ms = 0

    def _begin(
        self, connection: Connection, session: Session, packet: Connect, *, session_present: bool
    ) -> None:
        """Bind the connection to its session, and write the connection's row if it needs one."""
        settings = self._settings
        session.connected_at_ms = self._tick.now
        session.protocol_version = packet.protocol_version
        session.begin_connection(packet.receive_maximum, settings.max_inflight)
        connection.session = session
        connection.username = session.identity or packet.username or ""
        connection.receive_maximum = packet.receive_maximum
        connection.problem_information = packet.request_problem_information
        connection.alias_out_max = min(
            packet.topic_alias_maximum, settings.outbound_topic_alias_maximum
        )
        connection.will = packet.will
        # [MQTT-3.1.2-22]: one and a half times
        connection.keep_alive_ms = self._keep_alive_of(packet) * 1500
        # From now on: how long its password was checked is not the client's silence.
        connection.last_received_ms = self._tick.now
        self._watch(connection)
        self._tick.mark(session)
        self._session_events.begun(
            connection,
            session,
            session_present=session_present,
            clean_start=packet.clean_start,
        )
        if session.is_stored or packet.will is not None:
            record = ConnectionRecord(
                session.identity,
                session.is_stored,
                session.connected_at_ms,
                session.expiry_interval_s,
                packet.will,
                session.incarnation,
            )
            value = seal(encode_connection(record))
            self._tick.batch.append((CONNECTIONS, session.client_id.encode(), value))
        if packet.will is not None:
            self._counters.wills["armed"] += 1
            self._session_events.will_armed(connection, session, packet.will)

    def _answer(
        self, connection: Connection, session: Session, connack: Connack, *, is_changed: bool
    ) -> None:
        """Send CONNACK 0; it waits for the commit if the CONNECT changed something."""
        data = encode(connack, connection.version)
        move(connection, CONNECT_ACCEPTED)
        self._counters.connects["accepted"] += 1
        how = "session resumed" if connack.session_present else "new session"
        self._observe("connected", connection, how if session.is_stored else "clean session")
        self._counters.packets_sent[CONNACK] += 1
        if is_changed:
            self._gate.send_connack_after_commit(connection, data)
        else:
            self._gate.send(connection, data)


def _asked_expiry(packet: Connect) -> int:
    """Return the Session Expiry Interval that a CONNECT asks for, seconds."""
    if packet.protocol_version < 5:
        return 0 if packet.clean_start else EXPIRY_NEVER
    return packet.session_expiry_interval


class _Found:
    """What an acceptable CONNECT has found, and the CONNACK for it."""

    __slots__ = ("connack", "old", "session")

    def __init__(self, old: Connection | None, session: Session | None, connack: Connack) -> None:
        self.old: Final = old  # the connection that the client has now
        self.session: Final = session  # its session, which may be over
        self.connack: Final = connack


def _unheard(connection: Connection) -> None:
    raise AssertionError("nobody goes on with this connection")
