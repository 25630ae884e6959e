"""What a data directory holds, for people: sessions, their subscriptions, what waits for them.

Reads a store and never changes it, so the broker may be running; its directory is then seen as it
was when it was opened. Times on disk are broker time; the last heartbeat tells the wall-clock time
that belongs to it. Read next: `storage.tables.tables`,
`session.state.records`.
"""

from collections.abc import Iterator
from typing import Final

from mqtt.topics import split_shared
from session.state.records import decode_session
from session.state.session import EXPIRY_NEVER, Session
from session.state.subscription import Subscription, decode_subscription
from storage.api import Batch, Store
from storage.errors import CorruptRecord
from storage.log.generations import load_generations
from storage.log.message_log import MessageLog, Stream
from storage.tables.tables import (
    CONNECTIONS,
    FILTERS,
    INCOMING,
    META,
    SESSIONS,
    SUBSCRIPTIONS,
    client_prefix,
    decode_filter,
    scan_all,
    scan_prefix,
    unseal,
)
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

# Counting the messages that wait for a session reads an index; this bounds a list of many sessions.
WAITING_COUNT_MAX: Final = 1000


class SessionReport:
    """One session as it is on disk."""

    __slots__ = ("incoming", "is_connected", "session", "waiting")

    def __init__(self, session: Session, is_connected: bool, incoming: int, waiting: int) -> None:
        self.session: Session = session  # with its subscriptions
        # Connected now, or when the broker was last alive.
        self.is_connected: bool = is_connected
        self.incoming: int = incoming  # QoS 2 ids received and not yet released by the client
        # Messages behind its position, beside those in flight; WAITING_COUNT_MAX is "at least".
        self.waiting: int = waiting

    @property
    def expires_ms(self) -> int:
        """Broker time at which the session ends if nothing happens, 0 = never or not yet known."""
        session = self.session
        if self.is_connected or session.expiry_interval_s == EXPIRY_NEVER:
            return 0
        return session.disconnected_at_ms + session.expiry_interval_s * 1000


class Inventory:
    """The sessions in one store."""

    def __init__(self, store: Store) -> None:
        """Open what is there; raise `StorageError` if it cannot be understood."""
        self._store = store
        self._families = frozenset(store.families())
        self._log: MessageLog | None = None
        self._heartbeat: Heartbeat | None = None
        if META not in self._families:
            return  # no broker has written its first batch here yet
        value = store.get(META, HEARTBEAT_KEY)
        self._heartbeat = None if value is None else Heartbeat.decode(value)
        generations = load_generations(store)
        if generations:
            self._log = MessageLog(_Unchanged(store), layout=generations[-1].layout)
            self._log.open(0 if self._heartbeat is None else self._heartbeat.broker_ms)

    def wall_ms(self, broker_ms: int) -> int:
        """Return what the wall clock showed (or will show) at a broker time, ms since 1970."""
        if self._heartbeat is None:
            return broker_ms
        return self._heartbeat.wall_ms + broker_ms - self._heartbeat.broker_ms

    def sessions(self) -> Iterator[SessionReport]:
        """Yield every session by client id. Raises `CorruptRecord` at one that does not decode."""
        if SESSIONS in self._families:
            for key, value in scan_all(self._store, SESSIONS, b"", None):
                yield self._report(key.decode(), value)

    def session(self, client_id: str) -> SessionReport | None:
        """Return the session of `client_id`, or None."""
        if SESSIONS not in self._families:
            return None
        value = self._store.get(SESSIONS, client_id.encode())
        return None if value is None else self._report(client_id, value)

    def _report(self, client_id: str, value: bytes) -> SessionReport:
        what = f"session {client_id!r}"
        try:
            session = decode_session(client_id, unseal(value, what))
        except ValueError as problem:
            raise CorruptRecord(f"{what}: {problem}") from problem
        prefix = client_prefix(client_id)
        for key, row in scan_prefix(self._store, SUBSCRIPTIONS, prefix):
            subscription = _subscription(key[len(prefix) :].decode(), row)
            session.add(subscription)
        incoming = sum(1 for _ in scan_prefix(self._store, INCOMING, prefix))
        is_connected = self._store.get(CONNECTIONS, client_id.encode()) is not None
        return SessionReport(session, is_connected, incoming, self._waiting(session))

    def _waiting(self, session: Session) -> int:
        if self._log is None:
            return 0
        streams = [
            Stream(self._filter_id(subscription), subscription.stream_filter, subscription.since)
            for subscription in session.subscriptions.values()
            if subscription.share_name is None and subscription.holds
        ]
        if not streams:
            return 0
        cursor = self._log.cursor(streams, session.position)
        waiting = 0
        while waiting < WAITING_COUNT_MAX:
            skipped = cursor.skip(WAITING_COUNT_MAX - waiting)
            if not skipped:
                break
            waiting += skipped
        return waiting

    def _filter_id(self, subscription: Subscription) -> int:
        row = self._store.get(FILTERS, subscription.stream_filter.encode())
        if row is None:
            raise CorruptRecord(f"topic filter {subscription.stream_filter!r}: no row")
        return decode_filter(row)[0]


def _subscription(topic_filter: str, row: bytes) -> Subscription:
    shared = split_shared(topic_filter)
    share_name, stream_filter = shared if shared is not None else (None, topic_filter)
    what = f"subscription {topic_filter!r}"
    try:
        return decode_subscription(topic_filter, share_name, stream_filter, unseal(row, what))
    except ValueError as problem:
        raise CorruptRecord(f"{what}: {problem}") from problem


class _Unchanged:
    """A store that ignores writes: opening a log deletes leftovers, which is the broker's to do."""

    def __init__(self, store: Store) -> None:
        self.get = store.get
        self.get_many = store.get_many
        self.get_uncached = store.get_uncached
        self.scan = store.scan
        self.last = store.last
        self.families = store.families

    def write(self, batch: Batch) -> None:
        """Do nothing."""

    def sync(self) -> None:
        """Do nothing."""

    def create_family(self, family: str) -> None:
        """Do nothing."""

    def drop_family(self, family: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: whoever opened the store closes it."""
