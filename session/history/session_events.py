"""History events of sessions, wills, retained messages and the broker.

The engine calls it where the state changes, so an event is in the same batch as the change. Every
level of detail but `off` records all of them; with `off` each call returns at once. Decides
nothing. Read next: `session.history.recorder`, `session.history.publish_events` (messages),
docs/history.md.
"""

from typing import Final
from zlib import crc32

from mqtt import reasons
from mqtt.message import Message
from mqtt.packets import Will
from session.feed.recorder import FeedRecorder
from session.history.recorder import UNSTORED_BOOT_SHIFT, Recorder
from session.live.connection import Connection
from session.live.tick import Tick
from session.state.in_flight import REFERENCE_SHIFT
from session.state.session import Session
from session.state.subscription import Subscription
from storage.api import Store
from storage.errors import DamagedRows
from storage.history import events
from storage.history.packed_rows import (
    ACTOR_SHIFT,
    CLEAN_START_SHIFT,
    HAS_AT,
    HAS_BYTES,
    HAS_COUNT,
    HAS_EXPIRY,
    HAS_MSG,
    HAS_POSITION,
    HAS_QOS,
    HAS_REASON,
    HAS_SESSION_STATE,
    HAS_STREAM,
    NO_LOCAL_SHIFT,
    NULL,
    PROTO_SHIFT,
    QOS_SHIFT,
    REASON_SHIFT,
    RETAIN_SHIFT,
    SP_SHIFT,
    history_key,
    split_history_key,
    unpack,
)
from storage.log.message_log import MessageLog
from storage.tables.ban_rows import ADDRESS, CLIENT_ID
from storage.tables.tables import HISTORY, load_boot, unseal

# Reasons of the end of a connection or session that MQTT has no code for (`events.REASONS`).
CONNECTION_LOST: Final = 1001
BROKER_CRASHED: Final = 1002
ENDED_WITH_CONNECTION: Final = 1010
CLEAN_START: Final = 1011
NO_EXPIRY_LEFT: Final = 1012
ENDED_BY_OPERATOR: Final = 1014
EXPIRED: Final = 0  # no reason code: the event is `session_expired`
# Why a will is not published.
WILL_DISCONNECTED: Final = 1040
WILL_RESUMED: Final = 1041
WILL_REFUSED: Final = 1042

_CLIENT: Final = events.CLIENT << ACTOR_SHIFT
_GC: Final = events.GC << ACTOR_SHIFT
_ADMIN: Final = events.ADMIN << ACTOR_SHIFT
_STATE: Final = HAS_SESSION_STATE | HAS_POSITION
_BEGUN: Final = _STATE | HAS_EXPIRY | _CLIENT
_TAKEN_OVER: Final = events.SESSION_TAKEN_OVER | HAS_REASON
_DISCONNECTED: Final = events.SESSION_DISCONNECTED | _STATE | HAS_EXPIRY | HAS_REASON
_EXPIRY_CHANGED: Final = events.SESSION_EXPIRY_CHANGED | HAS_EXPIRY | _CLIENT
_EXPIRED: Final = events.SESSION_EXPIRED | _STATE | HAS_EXPIRY
_TERMINATED: Final = events.SESSION_TERMINATED | HAS_POSITION | HAS_REASON
_PURGED: Final = events.SESSION_PURGED | HAS_POSITION | HAS_COUNT | _ADMIN
_RESTORED: Final = events.SESSION_RESTORED | _STATE | HAS_EXPIRY
_SUBSCRIBED: Final = events.SUBSCRIBED | HAS_STREAM | HAS_POSITION | HAS_QOS | _CLIENT
_UNSUBSCRIBED: Final = events.UNSUBSCRIBED | HAS_STREAM | HAS_POSITION | _CLIENT
_WILL_ARMED: Final = events.WILL_ARMED | HAS_QOS | HAS_EXPIRY | _CLIENT
_WILL_DELAYED: Final = events.WILL_DELAYED | HAS_AT
_WILL_FIRED: Final = events.WILL_FIRED | HAS_QOS
_WILL_CANCELLED: Final = events.WILL_CANCELLED | HAS_REASON
_RETAINED_SET: Final = events.RETAINED_SET | HAS_BYTES | HAS_QOS | HAS_AT
_RETAINED_CLEARED: Final = events.RETAINED_CLEARED | HAS_AT
_RETAINED_EXPIRED: Final = events.RETAINED_EXPIRED | _GC
_BOOT: Final = (
    events.BOOT | HAS_COUNT | HAS_POSITION | HAS_REASON | events.RELEASES_RECORDED << REASON_SHIFT
)
_SHUTDOWN: Final = events.SHUTDOWN | HAS_POSITION
_RECOVERED: Final = events.RECOVERED | HAS_COUNT | HAS_POSITION
_GC_RUN: Final = events.GC_RUN | HAS_COUNT | _GC
_BAN_ADDED: Final = events.BAN_ADDED | HAS_AT | _ADMIN
_BAN_REMOVED: Final = events.BAN_REMOVED | _ADMIN
_BAN_EXPIRED: Final = events.BAN_EXPIRED | _GC
_OPERATOR_ACTION: Final = events.OPERATOR_ACTION | HAS_COUNT | _ADMIN


class SessionEvents:
    """Records all events but those of messages."""

    def __init__(
        self,
        recorder: Recorder,
        tick: Tick,
        log: MessageLog,
        live: dict[str, Connection],
        feed: FeedRecorder,
    ) -> None:
        """Take the recorder; `live` has the connections by client id, as `Sessions` keeps them."""
        self._recorder: Final = recorder
        self._tick: Final = tick
        self._log: Final = log
        # Session and name of the client whose will is being published. A retained will is recorded
        # with these: the client may have another session by now.
        self._will_of: tuple[int, str] | None = None
        self._live: Final = live
        self._feed: Final = feed
        # The operator who has asked for what happens just now, and why; "" = nobody has.
        self.asked_by: str = ""

    @property
    def is_on(self) -> bool:
        """Return whether anything is recorded."""
        return self._recorder.is_on

    # Sessions

    def begun(
        self, connection: Connection, session: Session, *, session_present: bool, clean_start: bool
    ) -> None:
        """Record an accepted CONNECT: a session is created, or resumed in its loaded state."""
        self._feed.connected(session.client_id, connection.username, is_stored=session.is_stored)
        recorder = self._recorder
        if not recorder.is_on:
            return
        recorder.at(self._tick.now)
        w0 = _BEGUN | session.protocol_version << PROTO_SHIFT
        if session_present:
            w0 |= events.SESSION_RESUMED | 1 << SP_SHIFT
        else:
            w0 |= events.SESSION_CREATED
        if clean_start:
            w0 |= 1 << CLEAN_START_SHIFT
        self._put_state(
            w0, session, connection.number, self._position_of(session), connection.receive_maximum
        )

    def _position_of(self, session: Session) -> int:
        """Return the position of a session: up to there the history tells what it got.

        For one that is not stored it is the end of the log. The disk may be further on: there,
        messages have packet ids before they are sent.
        """
        if not session.is_stored:
            return self._log.end
        doubts = session.perhaps_sent()
        if doubts:
            return min(entry >> REFERENCE_SHIFT for entry in doubts) - 1
        return session.position

    def _put_state(
        self,
        w0: int,
        session: Session,
        conn: int,
        position: int,
        receive_maximum: int = NULL,
        at_ms: int = 0,
        is_loaded: bool = True,
        detail: int = 0,
    ) -> None:
        recorder = self._recorder
        state = recorder.extra(
            [
                len(session.subscriptions) if is_loaded else NULL,
                len(session.in_flight) - len(session.perhaps_sent()),
                self._check_of(session) if is_loaded else NULL,
                receive_maximum,
                at_ms,
            ]
        )
        recorder.put(
            w0,
            session.incarnation,
            conn,
            recorder.who(session) | detail,
            position,
            w7=state,
            w8=session.expiry_interval_s,
        )

    def _check_of(self, session: Session) -> int:
        """Return a check sum of all subscriptions, which does not depend on their order."""
        check = 0
        recorded = self._recorder.recorded
        for topic_filter, subscription in session.subscriptions.items():
            check += crc32(f"{recorded(topic_filter)}\0{subscription.qos}".encode())
        return check

    def taken_over(self, connection: Connection, session: Session, reason_code: int) -> None:
        """Record that another connection of the same client takes over the session."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            w0 = _TAKEN_OVER | reason_code << REASON_SHIFT
            recorder.put(w0, session.incarnation, connection.number, recorder.who(session), 0)

    def disconnected(
        self, connection: Connection, session: Session, reason: int, *, by_client: bool
    ) -> None:
        """Record the end of a connection; `reason` is a reason code or CONNECTION_LOST."""
        if reason != reasons.SESSION_TAKEN_OVER:
            self._feed.disconnected(session.client_id, connection.username)
        recorder = self._recorder
        if not recorder.is_on:
            return
        recorder.at(self._tick.now)
        w0 = _DISCONNECTED | reason << REASON_SHIFT
        detail = 0
        if by_client:
            w0 |= _CLIENT
        elif self.asked_by:
            w0 |= _ADMIN
            detail = recorder.words(self.asked_by)
        position = self._position_of(session)
        self._put_state(w0, session, connection.number, position, detail=detail)

    def crashed(self, session: Session) -> None:
        """Record that the session was disconnected by a crash of the broker.

        Without its subscriptions, which are not loaded at the start; the census records them.
        """
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            w0 = _DISCONNECTED | BROKER_CRASHED << REASON_SHIFT
            self._put_state(
                w0,
                session,
                0,
                self._position_of(session),
                at_ms=session.disconnected_at_ms,
                is_loaded=False,
            )

    def expiry_changed(self, connection: Connection, session: Session) -> None:
        """Record a new Session Expiry Interval of a DISCONNECT."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            recorder.put(
                _EXPIRY_CHANGED,
                session.incarnation,
                connection.number,
                recorder.who(session),
                0,
                w8=session.expiry_interval_s,
            )

    def ended(self, session: Session, reason: int, *, is_found: bool) -> None:
        """Record the end of a session, before it is deleted.

        `is_found`: a CONNECT of its client found it expired.
        """
        self._feed.session_ended(session.client_id)
        recorder = self._recorder
        if not recorder.is_on:
            return
        recorder.at(self._tick.now)
        end = self._log.end
        if reason == EXPIRED:
            w0 = _EXPIRED | (_CLIENT if is_found else _GC)
            self._put_state(w0, session, 0, end, NULL, session.expiry_due_ms)
            return
        w0 = _TERMINATED | reason << REASON_SHIFT
        names = recorder.who(session)
        if self.asked_by:
            w0 |= _ADMIN
            names |= recorder.words(self.asked_by)
        else:
            w0 |= _CLIENT
        recorder.put(w0, session.incarnation, 0, names, end)

    def restored(self, session: Session) -> None:
        """Record a session that was in the store at the start of the broker."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            self._put_state(_RESTORED, session, 0, self._position_of(session))

    def purged(self, session: Session, count: int, by: str, topic: str | None = None) -> None:
        """Record that an operator has dropped messages that waited for a session.

        `topic` is the topic filter that they match, None = any.
        """
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            if topic is not None:
                by = f"topic {recorder.recorded(topic)}, {by}"
            names = recorder.who(session) | recorder.words(by)
            recorder.put(_PURGED, session.incarnation, 0, names, session.position, w9=count)

    # Subscriptions

    def subscribed(
        self,
        connection: Connection | None,
        session: Session,
        subscription: Subscription,
        stream: int,
        since: int,
        *,
        asks_retained: bool,
    ) -> None:
        """Record a new or changed subscription; `stream` is its stream in the log, or 0."""
        self._feed.subscribed(
            session.client_id,
            _username(connection, session),
            subscription.topic_filter,
            subscription.qos,
        )
        recorder = self._recorder
        if recorder.traced.clients and subscription.share_name is None:
            recorder.traced.hold(session.client_id, stream)
        if not recorder.is_on:
            return
        recorder.at(self._tick.now)
        w0 = _SUBSCRIBED | subscription.qos << QOS_SHIFT
        if subscription.no_local:
            w0 |= 1 << NO_LOCAL_SHIFT
        if asks_retained:
            w0 |= 1 << RETAIN_SHIFT
        names = recorder.who(session) | self._names_of(subscription)
        recorder.put(w0, session.incarnation, _number(connection), names, since, w7=stream)

    def unsubscribed(
        self,
        connection: Connection | None,
        session: Session,
        subscription: Subscription,
        stream: int,
    ) -> None:
        """Record the end of a subscription."""
        self._feed.unsubscribed(
            session.client_id,
            _username(connection, session),
            subscription.topic_filter,
            subscription.qos,
        )
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            names = recorder.who(session) | self._names_of(subscription)
            end = self._log.end
            number = _number(connection)
            recorder.put(_UNSUBSCRIBED, session.incarnation, number, names, end, w7=stream)

    def _names_of(self, subscription: Subscription) -> int:
        names = self._recorder.text(subscription.topic_filter)
        if subscription.share_name is not None:
            names |= self._recorder.share(subscription.share_name)
        return names

    # Wills

    def will_armed(self, connection: Connection, session: Session, will: Will) -> None:
        """Record the will of a connection."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            recorder.put(
                _WILL_ARMED | will.qos << QOS_SHIFT,
                session.incarnation,
                connection.number,
                recorder.who(session) | recorder.text(will.topic),
                0,
                w8=will.delay_interval,
            )

    def will_delayed(
        self, client_id: str, identity: str, incarnation: int, will: Will, at_ms: int
    ) -> None:
        """Record that a will waits for its Will Delay Interval, until `at_ms`."""
        self._put_will(_WILL_DELAYED, client_id, identity, incarnation, will, w8=at_ms)

    def will_cancelled(
        self,
        client_id: str,
        identity: str,
        incarnation: int,
        will: Will,
        reason: int,
        due_ms: int = 0,
    ) -> None:
        """Record that a will is not published; `due_ms` is when a delayed one was due, or 0."""
        w0 = _WILL_CANCELLED | reason << REASON_SHIFT | (HAS_AT if due_ms else 0)
        self._put_will(w0, client_id, identity, incarnation, will, w8=due_ms)

    def will_begins(self, client_id: str, identity: str, incarnation: int) -> None:
        """Record what is retained from now until `will_ends` as sent by the will's session."""
        self._will_of = (incarnation, f"{client_id}\0{identity}")

    def will_ends(self) -> None:
        """End what `will_begins` began."""
        self._will_of = None

    def will_fired(
        self,
        client_id: str,
        identity: str,
        incarnation: int,
        will: Will,
        message: Message,
        due_ms: int = 0,
    ) -> None:
        """Record that a will was published as `message`; `due_ms` as for `will_cancelled`."""
        message_id = self._id_of(message)
        w0 = _WILL_FIRED | will.qos << QOS_SHIFT | (HAS_AT if due_ms else 0)
        if message_id:
            w0 |= HAS_MSG
        self._put_will(w0, client_id, identity, incarnation, will, message_id, due_ms)

    def _put_will(
        self,
        w0: int,
        client_id: str,
        identity: str,
        incarnation: int,
        will: Will,
        w4: int = 0,
        w8: int = 0,
    ) -> None:
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            names = recorder.name(f"{client_id}\0{identity}") | recorder.text(will.topic)
            recorder.put(w0, incarnation, 0, names, w4, w8=w8)

    # Retained messages

    def retained_kept(self, message: Message) -> None:
        """Record a new retained message, or with an empty payload, that it was cleared."""
        recorder = self._recorder
        if not recorder.is_on:
            return
        recorder.at(self._tick.now)
        incarnation, who = self._publisher_of(message)
        names = recorder.name(who) | recorder.text(message.topic)
        at_ms = message.accepted_at_ms
        if not message.payload:
            w0 = _RETAINED_CLEARED | _ADMIN if self.asked_by else _RETAINED_CLEARED
            recorder.put(w0, incarnation, 0, names, 0, w8=at_ms)
            return
        w0 = _RETAINED_SET | message.qos << QOS_SHIFT
        message_id = self._id_of(message)
        if message_id:
            w0 |= HAS_MSG
        size = len(message.payload)
        recorder.put(w0, incarnation, 0, names, message_id, w7=size, w8=at_ms)

    def _id_of(self, message: Message) -> int:
        """Return the id of a message in the history; 0 = it has none."""
        if message.offset or not message.number:
            return message.offset
        return events.UNSTORED | self._recorder.boot << UNSTORED_BOOT_SHIFT | message.number

    def _publisher_of(self, message: Message) -> tuple[int, str]:
        if self._will_of is not None:
            return self._will_of
        connection = self._live.get(message.publisher)
        session = None if connection is None else connection.session
        if session is None:
            return 0, f"{message.publisher}\0"
        return session.incarnation, f"{session.client_id}\0{session.identity}"

    def retained_expired(self, topic: str) -> None:
        """Record that a retained message expired."""
        self._feed.retained_gone(topic)
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            recorder.put(_RETAINED_EXPIRED, 0, 0, recorder.text(topic), 0)

    # The broker

    def booted(self, store: Store, member: str) -> None:
        """Record the start of the broker, as the first event of its boot.

        `member` is its name in a cluster, "" = it is alone.
        """
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            boot, told = load_boot(store)
            # 0 if the store has no history of the boot before this one.
            before = max(told, last_seq(store, boot)) if boot == recorder.boot - 1 else 0
            detail = recorder.words(recorder.describe())
            recorder.put(_BOOT, 0, 0, detail, self._log.end, w9=before)
            if member:
                recorder.put(events.MEMBER_LEADS, 0, 0, recorder.words(member), 0)

    def recovered(self, sessions: int, restored: int, damaged: int) -> None:
        """Record that all `sessions` in the store at the start were examined.

        `restored` of them have an event of their own, `damaged` cannot be read, and the clients of
        the others have connected since.
        """
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            detail = recorder.words(f"{restored} restored, {damaged} damaged")
            recorder.put(_RECOVERED, 0, 0, detail, self._log.end, w9=sessions)

    def collected(self, count: int) -> None:
        """Record how many due wills, sessions and retained messages were examined."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            recorder.put(_GC_RUN, 0, 0, 0, 0, w9=count)

    # Operators

    def banned(self, kind: bytes, value: str, until_ms: int, asker: str) -> None:
        """Record that an operator has banned a client, a user or an address."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            recorder.put(_BAN_ADDED, 0, 0, self._of_ban(kind, value, asker), 0, w8=until_ms)

    def unbanned(self, kind: bytes, value: str, asker: str) -> None:
        """Record the end of a ban: `asker` has removed it, and "" = its time is over."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            w0 = _BAN_REMOVED if asker else _BAN_EXPIRED
            recorder.put(w0, 0, 0, self._of_ban(kind, value, asker), 0)

    def _of_ban(self, kind: bytes, value: str, asker: str) -> int:
        """Return the names of a ban: a client or its user, or the address in words."""
        recorder = self._recorder
        if kind == ADDRESS:
            address = f"address {recorder.recorded(value)}"
            return recorder.words(f"{address}, {asker}" if asker else address)
        who = recorder.name(f"{value}\0" if kind == CLIENT_ID else f"\0{value}")
        return who | recorder.words(asker) if asker else who

    def acted(self, what: str, topic: str, count: int, asker: str) -> None:
        """Record what an operator has done to `count` messages of a topic or topic filter."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            words = recorder.words(f"{what} {recorder.recorded(topic)}, {asker}")
            recorder.put(_OPERATOR_ACTION, 0, 0, words, 0, w9=count)

    def shut_down(self) -> None:
        """Record the orderly shutdown of the broker, as its last event."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            recorder.put(_SHUTDOWN, 0, 0, 0, self._log.end)


def last_seq(store: Store, boot: int) -> int:
    """Return the last event of a boot whose row is in the store, 0 if there is none.

    A row that cannot be read does not count: a damaged history must not keep the broker from
    starting.
    """
    try:
        row = store.last(HISTORY, history_key(boot, 0), history_key(boot + 1, 0))
    except DamagedRows:
        return 0
    if row is None:
        return 0
    key, value = row
    first = split_history_key(key)[1]
    try:
        return first + unpack(unseal(value, "history row")).events - 1
    except (ValueError, DamagedRows):
        return first - 1


def _username(connection: Connection | None, session: Session) -> str:
    """Return the user name of a client; one that is away has the proved one, if any."""
    return session.identity if connection is None else connection.username


def _number(connection: Connection | None) -> int:
    """Return the number of a connection, 0 = none: an external store has changed a subscription."""
    return 0 if connection is None else connection.number
