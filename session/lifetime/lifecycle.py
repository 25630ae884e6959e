"""CONNECT to close: who may have which session, what a connection's end means, and wills.

The order of [MQTT-3.1.4]: check, authenticate, take over, Clean Start, CONNACK, delivery. A
refused CONNECT changes nothing. The CONNACK of a stored session, or of one with a will, waits for
its commit, and everything behind it waits with it: nothing is re-sent from memory that a crash
could take back. Whatever loads from the store is preceded by `settle`, which writes the open
batch, unless nothing of this client is in it; it runs only at the start of an event, so the store
never holds half of one. Read next: `session.lifetime.repository`.
"""

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.message import NEVER, Message
from mqtt.packets import CONNACK, DISCONNECT, V3, Connack, Connect, Disconnect, Will
from mqtt.topics import levels_count, topic_problem
from session.counters import Counters
from session.delivery.delivery import Delivery
from session.history.session_events import (
    CLEAN_START,
    CONNECTION_LOST,
    ENDED_WITH_CONNECTION,
    EXPIRED,
    NO_EXPIRY_LEFT,
    WILL_DISCONNECTED,
    WILL_REFUSED,
    WILL_RESUMED,
    Chronicle,
)
from session.lifetime.authentication import Authentication
from session.lifetime.repository import Sessions
from session.live.commit_gate import CommitGate
from session.live.connection import ACTIVE, CLOSED, CLOSING, Connection
from session.live.tick import Tick
from session.ports import Authenticator, Policy
from session.publish.accept import Publishing
from session.settings import Settings
from session.state.session import EXPIRY_NEVER, Session
from session.state.will_record import ConnectionRecord, decode_connection, encode_connection
from storage.errors import CorruptRecord
from storage.tables.tables import CONNECTIONS, seal, unseal
from storage.tables.timers import SESSION, WILL, Due
from storage.time.broker_clock import crash_time

# Told of what happens to a connection: event, connection, detail in words. Must not call back.
Observe: TypeAlias = Callable[[str, Connection, str], None]

WILL_RETRY_MS: Final = 1000  # a will that cannot be stored now is tried again this much later

CONNECT_RESULTS: Final = {
    reasons.MALFORMED_PACKET: "malformed",
    reasons.PROTOCOL_ERROR: "malformed",
    reasons.UNSUPPORTED_PROTOCOL_VERSION: "unsupported_version",
    reasons.CLIENT_IDENTIFIER_NOT_VALID: "client_id_not_valid",
    reasons.BAD_USER_NAME_OR_PASSWORD: "bad_credentials",
    reasons.NOT_AUTHORIZED: "not_authorized",
    reasons.QUOTA_EXCEEDED: "quota_exceeded",
    reasons.SERVER_UNAVAILABLE: "server_unavailable",
    reasons.CONNECTION_RATE_EXCEEDED: "rate_exceeded",
    reasons.USE_ANOTHER_SERVER: "redirected",
    reasons.SERVER_MOVED: "redirected",
}


class Lifecycle:
    """Begins and ends connections and sessions."""

    def __init__(
        self,
        tick: Tick,
        gate: CommitGate,
        due: Due,
        sessions: Sessions,
        delivery: Delivery,
        publishing: Publishing,
        settings: Settings,
        authenticator: Authenticator,
        policy: Policy,
        counters: Counters,
        new_client_id: Callable[[], str],
        settle: Callable[[], bool],
        settle_for: Callable[[str], bool],
        watch: Callable[[Connection], None],
        observe: Observe,
        chronicle: Chronicle,
    ) -> None:
        self._tick: Final = tick
        self._gate: Final = gate
        self._due: Final = due
        self._sessions: Final = sessions
        self._delivery: Final = delivery
        self._publishing: Final = publishing
        self._settings: Final = settings
        self._policy: Final = policy
        self._counters: Final = counters
        self._new_client_id: Final = new_client_id
        self._settle: Final = settle
        self._settle_for: Final = settle_for
        self._watch: Final = watch
        self._observe: Final = observe
        self._chronicle: Final = chronicle
        self.authentication: Final = Authentication(
            tick, gate, authenticator, counters, self.refuse, self.end
        )
        self._wills_refused = 0

    # CONNECT

    def connect(self, connection: Connection, packet: Connect, decided: Callable[[], None]) -> None:
        """Judge a CONNECT; `decided` is called if the verdict comes later than this returns."""
        connection.version = packet.protocol_version
        connection.maximum_packet_size = packet.maximum_packet_size
        connection.client_id = packet.client_id
        refusal = connection.refusal
        if refusal == reasons.QUOTA_EXCEEDED and packet.client_id in self._sessions.live:
            refusal = 0  # one more of its address, but it takes over one of those, most likely
        refusal = refusal or self._refusal(packet)
        if refusal:
            self.refuse(connection, refusal)
            return
        if not packet.client_id:
            packet.client_id = connection.client_id = self._new_client_id()
            assigned = packet.client_id
        else:
            assigned = None

        def accept(identity: str, data: bytes | None) -> None:
            self._accept(connection, packet, identity, assigned, data)

        self.authentication.begin(connection, packet, accept, decided)

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
            # It cannot be told a smaller one. There is no code for it either; mosquitto's is 2.
            return reasons.CLIENT_IDENTIFIER_NOT_VALID
        if settings.max_connections and len(self._sessions.live) >= settings.max_connections:
            if packet.client_id not in self._sessions.live:
                return reasons.SERVER_BUSY
        will = packet.will
        if will is not None:
            if topic_problem(will.topic) or levels_count(will.topic) > settings.topic_levels_max:
                return reasons.TOPIC_NAME_INVALID
            if will.qos > settings.maximum_qos:
                return reasons.QOS_NOT_SUPPORTED
            if will.retain and not settings.retain_available:
                return reasons.RETAIN_NOT_SUPPORTED
        return 0

    def refuse(self, connection: Connection, reason_code: int) -> None:
        """Answer a CONNECT with an error and close; no session is touched [MQTT-3.1.4-2]."""
        result = CONNECT_RESULTS.get(reason_code, "other")
        self._counters.connects[result] += 1
        self._observe("refused", connection, reasons.name(reason_code))
        version = connection.version
        # v3.1.1 has no code for some reasons: then a close says it [MQTT-3.2.2-6].
        if version >= 5 or (version and reasons.connack_v4(reason_code) >= 0):
            data = encode(
                Connack(False, reason_code, server_reference=self._reference(reason_code)), version
            )
            limit = connection.maximum_packet_size
            if limit and len(data) > limit:
                data = encode(Connack(False, reason_code), version)
            if not limit or len(data) <= limit:
                self._counters.packets_sent[CONNACK] += 1
                self._gate.send(connection, data)
        connection.state = CLOSING
        self._gate.close(connection)

    def _reference(self, reason_code: int) -> str | None:
        """Return the Server Reference that belongs to a reason code, if one does."""
        if reason_code == reasons.USE_ANOTHER_SERVER or reason_code == reasons.SERVER_MOVED:
            return self._settings.server_reference
        return None

    def _accept(
        self,
        connection: Connection,
        packet: Connect,
        identity: str,
        assigned: str | None,
        authentication_data: bytes | None,
    ) -> None:
        """The client is who it says: find, take over or make its session, and answer."""
        if not self._settle_for(packet.client_id) and not self._needs_no_store(packet):
            self.refuse(connection, reasons.SERVER_UNAVAILABLE)
            return
        changes = len(self._tick.batch) + self._publishing.end
        client_id = packet.client_id
        old = self._sessions.live.get(client_id)
        if old is not None and old.number > connection.number:
            # Its password took longer than that of a later connection, which has the session now.
            self.refuse(connection, reasons.SERVER_UNAVAILABLE)
            return
        try:
            session = old.session if old is not None else self._sessions.load(client_id)
            if session is not None and session.identity != identity and session.identity:
                if old is not None or not session.is_expired(self._tick.now):
                    self.refuse(connection, reasons.NOT_AUTHORIZED)
                    return
                # Past its time: it is gone, only nobody has cleaned up yet.
            if session is not None and old is None:
                self._sessions.load_rest(session)
        except CorruptRecord:
            self._counters.internal_errors += 1
            self.refuse(connection, reasons.SERVER_UNAVAILABLE)
            return
        expiry_interval_s = self._expiry_of(packet)
        starts_new = (
            session is None
            or packet.clean_start
            or not session.expiry_interval_s
            or (old is None and session.is_expired(self._tick.now))
        )
        if self._publishing.refuses_writes and (expiry_interval_s or packet.will) and starts_new:
            self.refuse(connection, reasons.QUOTA_EXCEEDED)
            return
        connack = self._connack(packet, expiry_interval_s, assigned, authentication_data)
        if connack is None:
            self.refuse(connection, reasons.PACKET_TOO_LARGE)
            return
        session = self._inherit(session, old, packet)
        session_present = session is not None
        if session is None:
            session = Session(client_id, identity, self._tick.now)
            session.incarnation = self._sessions.next_incarnation()
            self._counters.sessions_created += 1
        else:
            self._counters.sessions_resumed += 1
        session.identity = identity  # a session that was nobody's is theirs now
        session.expiry_interval_s = expiry_interval_s
        if expiry_interval_s and not session.is_stored:
            self._sessions.create(session)
        self._begin(connection, session, packet, session_present)
        connack.session_present = session_present
        is_changed = (
            session.is_stored
            or len(self._tick.batch) + self._publishing.end > changes
            or client_id in self._tick.ended
        )
        self._answer(connection, session, connack, is_changed)
        self._sessions.attach(connection)
        if session_present:
            self._delivery.resume(connection)
        self._sessions.join_groups(connection)

    def _needs_no_store(self, packet: Connect) -> bool:
        """Can this client be served while the store takes no writes?

        It asks for nothing durable, and has no session there that would have to end.
        """
        if self._expiry_of(packet) or packet.will is not None:
            return False
        return self._sessions.is_unknown(packet.client_id)

    def _keep_alive_of(self, packet: Connect) -> int:
        """Return the Keep Alive in force, seconds."""
        most = self._settings.keep_alive_max_s
        if not most or 0 < packet.keep_alive <= most:
            return packet.keep_alive
        return most

    def _expiry_of(self, packet: Connect) -> int:
        """Return the Session Expiry Interval in force, seconds."""
        if packet.protocol_version < 5:
            asked = 0 if packet.clean_start else EXPIRY_NEVER
        else:
            asked = packet.session_expiry_interval
        most = self._settings.session_expiry_max_s
        return asked if most is None else min(asked, most)

    def _inherit(
        self, session: Session | None, old: Connection | None, packet: Connect
    ) -> Session | None:
        """Return the session that the client goes on with; ends the one it does not."""
        now = self._tick.now
        if session is None:
            return None
        if old is not None:
            self._counters.sessions_taken_over += 1
            ends = packet.clean_start or not session.expiry_interval_s
            will = old.will
            waits = will is not None and will.delay_interval > 0
            self._chronicle.taken_over(old, session, reasons.SESSION_TAKEN_OVER)
            self.end(
                old,
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
                self.end_stored(session, EXPIRED, is_found=True)
            else:
                self._counters.sessions_terminated += 1
                self.end_stored(session, CLEAN_START)
            return None
        self._revive(session)
        return session

    def _revive(self, session: Session) -> None:
        """The session is connected again: it does not expire, a will not due yet is cancelled."""
        if not session.incarnation:
            session.incarnation = self._sessions.next_incarnation()  # a record of version 1
        name = session.client_id.encode()
        batch = self._tick.batch
        if session.expiry_due_ms:
            self._due.remove(batch, session.expiry_due_ms, SESSION, name)
            session.expiry_due_ms = 0
        if session.will_due_ms:
            waiting = self._due.get(session.will_due_ms, WILL, name)
            self._due.remove(batch, session.will_due_ms, WILL, name)
            if waiting is not None and session.will_due_ms <= self._tick.now:
                # It was due before the client came back, perhaps while the broker was down: only
                # nobody had got round to it [MQTT-3.1.3-9].
                record = decode_connection(waiting)
                assert record.will is not None
                self.fire(
                    session.client_id,
                    record.identity,
                    record.will,
                    session.incarnation,
                    session.will_due_ms,
                )
            elif waiting is not None:
                self._counters.wills["cancelled"] += 1
                record = decode_connection(waiting)
                assert record.will is not None
                self._chronicle.will_cancelled(
                    session.client_id,
                    record.identity,
                    session.incarnation,
                    record.will,
                    WILL_RESUMED,
                    session.will_due_ms,
                )
            session.will_due_ms = 0
        session.disconnected_at_ms = 0

    def _begin(
        self, connection: Connection, session: Session, packet: Connect, session_present: bool
    ) -> None:
        """Bind the connection to its session."""
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
        connection.expiry_interval_s = packet.session_expiry_interval
        # [MQTT-3.1.2-22]: one and a half times
        connection.keep_alive_ms = self._keep_alive_of(packet) * 1500
        self._watch(connection)
        self._tick.mark(session)
        self._chronicle.begun(
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
            self._chronicle.will_armed(connection, session, packet.will)

    def _connack(
        self,
        packet: Connect,
        expiry_interval_s: int,
        assigned: str | None,
        authentication_data: bytes | None,
    ) -> Connack | None:
        """Return what accepts a CONNECT, None if it is larger than the client takes."""
        connack = Connack(False)
        if packet.protocol_version < 5:
            return connack
        settings = self._settings
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
        connack.assigned_client_id = assigned
        connack.authentication_method = packet.authentication_method  # [MQTT-4.12.0-5]
        connack.authentication_data = authentication_data
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

    def _answer(
        self, connection: Connection, session: Session, connack: Connack, is_changed: bool
    ) -> None:
        """Send CONNACK 0, behind the commit if it has anything to commit."""
        data = encode(connack, connection.version)
        connection.state = ACTIVE
        self._counters.connects["accepted"] += 1
        how = "session resumed" if connack.session_present else "new session"
        self._observe("connected", connection, how if session.is_stored else "clean session")
        self._counters.packets_sent[CONNACK] += 1
        if is_changed:
            self._gate.send_connack_after_commit(connection, data)
        else:
            self._gate.send(connection, data)

    # The end of a connection

    def disconnect(self, connection: Connection, packet: Disconnect) -> int:
        """The client says goodbye; returns 0, or the reason code of its mistake."""
        session = connection.session
        assert session is not None
        expiry = packet.session_expiry_interval
        if expiry is not None and expiry != session.expiry_interval_s:
            if expiry and not connection.expiry_interval_s:
                return reasons.PROTOCOL_ERROR  # [MQTT-3.14.2-2] of the table: void, will fires
        ends = expiry == 0 or (expiry is None and not session.expiry_interval_s)
        if ends and session.is_stored:
            self._settle()
        had_expiry = session.expiry_interval_s > 0
        if expiry is not None:
            most = self._settings.session_expiry_max_s
            in_force = expiry if most is None else min(expiry, most)
            if in_force != session.expiry_interval_s:
                session.expiry_interval_s = in_force
                self._chronicle.expiry_changed(connection, session)
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
        connection.state = CLOSING
        # The end must be durable before the client sees it: the will is gone, the expiry set.
        tick = self._tick
        is_changed = bool(tick.batch or tick.dirty or self._publishing.is_pending)
        self._gate.close_in_turn(connection, promises=is_changed)
        return 0

    def end(
        self,
        connection: Connection,
        reason_code: int,
        *,
        publish_will: bool = True,
        ends_session: bool = False,
        ending: int = ENDED_WITH_CONNECTION,
    ) -> None:
        """End a connection from our side, with DISCONNECT to a v5 client behind its CONNACK.

        `ending` is what the history says of its session, if that ends too.
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
                ending=ending,
            )
        if was_active and connection.version >= 5:
            self._say_why(connection, reason_code)
        connection.state = CLOSING
        if was_active and connection.connack_waits():
            # A good CONNECT is answered with CONNACK 0 [MQTT-3.1.4-5]: that waits for its commit,
            # and the end behind it.
            self._gate.close_in_turn(connection, promises=False)
        else:
            self._gate.close_at_once(connection)

    def _say_why(self, connection: Connection, reason_code: int) -> None:
        """Send DISCONNECT; a Server Reference too long for the client is left out."""
        limit = connection.maximum_packet_size
        data = encode(Disconnect(reason_code, server_reference=self._reference(reason_code)), 5)
        if limit and len(data) > limit:
            data = encode(Disconnect(reason_code), 5)
            if len(data) > limit:
                return  # [MQTT-3.1.2-24]
        self._counters.packets_sent[DISCONNECT] += 1
        self._gate.send(connection, data)

    def lost(self, connection: Connection) -> None:
        """The transport is gone: the network failed, or both sides had finished."""
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
        connection.state = CLOSED
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
        """Part a connection from its session, and settle what becomes of session and will.

        A stored session that ends here needs a written batch: the caller has settled.
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
        self._chronicle.disconnected(connection, session, reason, by_client=by_client)
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
        if will is None:
            return
        if not publish_will:
            self._counters.wills["cancelled"] += 1
            why = WILL_DISCONNECTED if by_client else WILL_RESUMED
            self._chronicle.will_cancelled(
                session.client_id, session.identity, session.incarnation, will, why
            )
        elif ends or will.delay_interval == 0:
            self.fire(session.client_id, session.identity, will, session.incarnation)
        else:
            self._arm(session, will, now)

    def _arm(self, session: Session, will: Will, closed_at_ms: int) -> None:
        """Let a will wait for its delay or the session's end, whichever comes first."""
        at_ms = closed_at_ms + will.delay_interval * 1000  # [MQTT-3.1.3-9]
        if session.expiry_due_ms:
            at_ms = min(at_ms, session.expiry_due_ms)
        session.will_due_ms = at_ms
        record = ConnectionRecord(session.identity, True, 0, 0, will, session.incarnation)
        name = session.client_id.encode()
        self._due.add(self._tick.batch, at_ms, WILL, name, encode_connection(record))
        self._chronicle.will_delayed(
            session.client_id, session.identity, session.incarnation, will, at_ms
        )

    def fire(
        self, client_id: str, identity: str, will: Will, incarnation: int, due_ms: int = 0
    ) -> None:
        """Publish a will now; its deletion is in the same batch, so it fires once.

        `due_ms` is what it has waited for, 0 if it has not waited.
        """
        # A will on a topic of the server is refused here and not at CONNECT, like its PUBLISH:
        # mosquitto's bridges come with one and would never connect.
        is_reserved = will.topic.startswith("$")
        if is_reserved or not self._policy.may_publish(identity, client_id, will.topic):
            self._refuse_will(client_id, identity, will, incarnation, due_ms)
            return
        now = self._tick.now
        expiry = will.message_expiry_interval
        message = Message(
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            will.properties,
            client_id,
            now,
            NEVER if expiry is None else now + expiry * 1000,
        )
        self._publishing.receipts.publisher_of_will(client_id, identity)
        self._chronicle.will_begins(client_id, identity, incarnation)
        accepted = self._publishing.accept(message, self._publishing.route(will.topic))
        self._chronicle.will_ends()
        if accepted.reason_code < 0x80:
            self._counters.wills["fired"] += 1
            self._chronicle.will_fired(client_id, identity, incarnation, will, message, due_ms)
            return
        if not self._publishing.refuses_writes:
            # A limit refuses it, not the disk. That may last for ever, and there is no publisher
            # to be told.
            self._refuse_will(client_id, identity, will, incarnation, due_ms)
            return
        record = ConnectionRecord(identity, False, 0, 0, will, incarnation)
        at_ms = now + WILL_RETRY_MS
        # Not the session's own will, and no other one either: a client may leave several behind.
        self._wills_refused += 1
        name = client_id.encode() + b"\0" + struct.pack(">QI", now, self._wills_refused)
        self._due.add(self._tick.batch, at_ms, WILL, name, encode_connection(record))
        if not due_ms:  # else the history knows that it waits
            self._chronicle.will_delayed(client_id, identity, incarnation, will, at_ms)

    def _refuse_will(
        self, client_id: str, identity: str, will: Will, incarnation: int, due_ms: int
    ) -> None:
        self._counters.wills["refused"] += 1
        self._chronicle.will_cancelled(client_id, identity, incarnation, will, WILL_REFUSED, due_ms)

    # Sessions without a connection

    def end_stored(self, session: Session, ending: int, *, is_found: bool = False) -> None:
        """End a disconnected session: its waiting will fires, its rows go. The caller settled."""
        name = session.client_id.encode()
        waiting = None
        if session.will_due_ms:
            waiting = self._due.get(session.will_due_ms, WILL, name)
            self._due.remove(self._tick.batch, session.will_due_ms, WILL, name)
        self._sessions.end(session, None, ending, is_found=is_found)
        if waiting is not None:
            record = decode_connection(waiting)
            assert record.will is not None
            self.fire(
                session.client_id,
                record.identity,
                record.will,
                session.incarnation,
                session.will_due_ms,
            )

    def will_is_due(self, name: bytes, value: bytes, due_ms: int) -> None:
        """Fire a will whose time has come; the caller removes its entry in the same batch."""
        record = decode_connection(value)
        assert record.will is not None
        client_id = name.split(b"\0")[0].decode()
        self.fire(client_id, record.identity, record.will, record.incarnation, due_ms)

    def expire(self, client_id: str, due_ms: int) -> None:
        """End a session if it is still disconnected and this is still its time."""
        if client_id in self._sessions.live:
            return
        try:
            session = self._sessions.load(client_id)
            if session is None or session.expiry_due_ms != due_ms:
                return
            self._sessions.load_rest(session)
        except CorruptRecord:
            self._counters.internal_errors += 1  # its rows stay for an operator to look at
            return
        self._counters.sessions_expired += 1
        self.end_stored(session, EXPIRED)

    def recover(self, client_id: str, value: bytes, alive_ms: int) -> None:
        """Do what the end of a connection would have done, for one that a crash ended.

        `alive_ms` is the last sign of life before the crash; that the client connected is another.
        """
        record = decode_connection(unseal(value, "connection"))
        tick = self._tick
        crashed_at_ms = crash_time(
            max(alive_ms, record.connected_at_ms), self._settings.heartbeat_ms
        )
        # After a reboot with the wall clock set back, broker time may repeat what came after the
        # last heartbeat: nothing has ended in the future.
        closed_at_ms = min(crashed_at_ms, tick.now)
        tick.batch.append((CONNECTIONS, client_id.encode(), None))
        session = None
        if record.is_stored:
            try:
                session = self._sessions.load(client_id)
            except CorruptRecord:
                self._counters.internal_errors += 1  # refused when its client comes
        if session is not None:
            session.disconnected_at_ms = closed_at_ms
            session.expiry_due_ms = session.expires_at(closed_at_ms)
            if session.expiry_due_ms:
                name = client_id.encode()
                self._due.add(tick.batch, session.expiry_due_ms, SESSION, name)
            if not session.incarnation:
                session.incarnation = self._sessions.next_incarnation()  # a record of version 1
            self._chronicle.crashed(session)
            if record.will is not None:
                self._arm(session, record.will, closed_at_ms)
            self._sessions.write(session)
        elif record.will is not None:
            name = client_id.encode() + b"\0" + closed_at_ms.to_bytes(8, "big")
            self._due.add(tick.batch, closed_at_ms, WILL, name, encode_connection(record))
            self._chronicle.will_delayed(
                client_id, record.identity, record.incarnation, record.will, closed_at_ms
            )
