"""What a data directory holds, for people: sessions, their subscriptions, what waits for them.

Reads a store and never changes it, so the broker may be running; its directory is then seen as it
was when it was opened. Times on disk are broker time; the last heartbeat tells the wall-clock time
that belongs to it. Read next: `broker.operations.sessions.backlogs`, `storage.tables.tables`,
`session.state.records`.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

from broker.operations.sessions.backlogs import Backlog, Backlogs
from mqtt.topics import split_shared
from session.state.records import decode_session
from session.state.session import EXPIRY_NEVER, Session
from session.state.subscription import Subscription, decode_subscription
from storage.api import Batch, Store
from storage.errors import CorruptRecord, DamagedRows
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

# What a damaged value may raise in a decoder.
UNDECODABLE: Final = (ValueError, struct.error, IndexError)


class SessionReport:
    """One session as it is on disk."""

    __slots__ = ("backlog", "incoming", "is_connected", "session")

    def __init__(
        self, session: Session, is_connected: bool, incoming: int, backlog: Backlog
    ) -> None:
        self.session: Session = session  # with its subscriptions
        # Connected now, or when the broker was last alive.
        self.is_connected: bool = is_connected
        self.incoming: int = incoming  # QoS 2 ids received and not yet released by the client
        self.backlog: Backlog = backlog  # what it is owed

    @property
    def expires_ms(self) -> int:
        """Broker time at which the session ends if nothing happens, 0 = never or not yet known."""
        session = self.session
        if self.is_connected or session.expiry_interval_s == EXPIRY_NEVER:
            return 0
        return session.disconnected_at_ms + session.expiry_interval_s * 1000

    @property
    def since_ms(self) -> int:
        """Broker time since which it has been connected or away."""
        session = self.session
        return session.connected_at_ms if self.is_connected else session.disconnected_at_ms


class Inventory:
    """The sessions in one store."""

    def __init__(self, store: Store) -> None:
        """Open what is there; raise `StorageError` if it cannot be understood."""
        self.store: Final = store
        self._families = frozenset(store.families())
        self.log: MessageLog | None = None  # None: no message was ever stored
        self.heartbeat: Heartbeat | None = None
        if META in self._families:  # else no broker has written its first batch here yet
            value = store.get(META, HEARTBEAT_KEY)
            self.heartbeat = None if value is None else Heartbeat.decode(value)
            generations = load_generations(store)
            if generations:
                self.log = MessageLog(Unchanged(store), layout=generations[-1].layout)
                self.log.open(0 if self.heartbeat is None else self.heartbeat.broker_ms)
        self._backlogs: Final = Backlogs(store, self.log)

    def wall_ms(self, broker_ms: int) -> int:
        """Return what the wall clock showed (or will show) at a broker time, ms since 1970."""
        if self.heartbeat is None:
            return broker_ms
        return self.heartbeat.wall_ms + broker_ms - self.heartbeat.broker_ms

    def sessions(
        self,
        *,
        wanted: Callable[[str], bool] | None = None,
        is_offline: bool = False,
        with_bytes: bool = False,
        damaged: Callable[[str], None] | None = None,
        after: str | None = None,
    ) -> Iterator[SessionReport]:
        """Yield every session by client id, those behind `after`, if its client id is `wanted`.

        With `is_offline` only those that are not connected, and `with_bytes` with the bytes they
        are owed. What cannot be read is passed over, and `damaged` is told of it in one line.
        Without `damaged` it raises `DamagedRows`.
        """
        if SESSIONS not in self._families:
            return
        damages: list[DamagedRows] | None = None if damaged is None else []
        start = b"" if after is None else after.encode() + b"\0"
        for key, value in scan_all(self.store, SESSIONS, start, None, damages):
            try:
                client_id = _client_id(key)
                if wanted is not None and not wanted(client_id):
                    continue
                if is_offline and self._is_connected(client_id):
                    continue
                report = self._report(client_id, value, with_bytes)
            except DamagedRows as problem:
                if damaged is None:
                    raise
                damaged(str(problem))
                continue
            yield report
        for damage in damages or ():
            assert damaged is not None
            damaged(f"sessions: {damage}")

    def session(self, client_id: str, *, with_bytes: bool = False) -> SessionReport | None:
        """Return the session of `client_id`, or None. Raises `DamagedRows`."""
        if SESSIONS not in self._families:
            return None
        value = self.store.get(SESSIONS, client_id.encode())
        return None if value is None else self._report(client_id, value, with_bytes)

    def streams(self, session: Session) -> list[Stream]:
        """Return the streams whose messages are stored for a session. Raises `DamagedRows`."""
        return [
            Stream(self._filter_id(subscription), subscription.stream_filter, subscription.since)
            for subscription in session.subscriptions.values()
            if subscription.share_name is None and subscription.holds
        ]

    def _report(self, client_id: str, value: bytes, with_bytes: bool) -> SessionReport:
        """Return a session; raises `DamagedRows`, which names it, if it cannot be read."""
        try:
            session = decode_session(client_id, unseal(value, "record"))
            prefix = client_prefix(client_id)
            for key, row in scan_prefix(self.store, SUBSCRIPTIONS, prefix):
                session.add(_subscription(key[len(prefix) :].decode(), row))
            incoming = sum(1 for _ in scan_prefix(self.store, INCOMING, prefix))
            streams = self.streams(session)
            is_connected = self._is_connected(client_id)
            backlog = self._backlogs.count(session, streams, with_bytes=with_bytes)
        except DamagedRows as problem:
            raise CorruptRecord(f"session {client_id!r}: {problem}") from problem
        except UNDECODABLE as problem:
            text = str(problem).removeprefix(f"session {client_id!r}: ")
            raise CorruptRecord(f"session {client_id!r}: {text}") from problem
        return SessionReport(session, is_connected, incoming, backlog)

    def _is_connected(self, client_id: str) -> bool:
        return self.store.get(CONNECTIONS, client_id.encode()) is not None

    def _filter_id(self, subscription: Subscription) -> int:
        row = self.store.get(FILTERS, subscription.stream_filter.encode())
        if row is None:
            raise CorruptRecord(f"topic filter {subscription.stream_filter!r}: no row")
        return decode_filter(row)[0]


def _client_id(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as problem:
        raise CorruptRecord(f"session {key!r}: {problem}") from None


def _subscription(topic_filter: str, row: bytes) -> Subscription:
    shared = split_shared(topic_filter)
    share_name, stream_filter = shared if shared is not None else (None, topic_filter)
    what = f"subscription {topic_filter!r}"
    try:
        return decode_subscription(topic_filter, share_name, stream_filter, unseal(row, what))
    except ValueError as problem:
        raise CorruptRecord(f"{what}: {problem}") from problem


class Unchanged:
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
