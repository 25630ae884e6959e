"""A database opened for reading: a checkpoint, or the database of a running broker.

Never changes it. An opened database is a snapshot: later writes of a running broker are not in it.
Only this module and `audit.database.reading` know how sessions and messages are stored, and the
verdict of an audit depends on neither. Read next: `audit.database.reading`,
`storage.tables.tables`.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from session.state.records import decode_session
from session.state.session import Session
from session.state.subscription import Subscription, decode_subscription
from storage.errors import DamagedRows, StorageError
from storage.local.data_directory import is_in_use
from storage.local.rocks import RocksStore
from storage.log.gaps import NO_GAPS, Gaps, outside
from storage.log.generations import LAYOUTS, Generation, load_generations
from storage.log.layouts.api import Slab, Stream
from storage.tables.tables import (
    FILTERS,
    META,
    SUBSCRIPTIONS,
    check_format,
    client_prefix,
    decode_filter,
    scan_prefix,
    unseal,
)
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

NODE_FILE: Final = "history.node"  # beside the database, in its data directory
NODE_UNKNOWN: Final = "unknown"

FAIL: Final = "fail"
SKIP: Final = "skip"

# The limit of counting one queue: counting reads an index, 1 to 2 million entries a second.
WAITING_MAX: Final = 1_000_000
COUNTS_KEPT: Final = 10_000  # cached counts: sessions with the same filter often have the same

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class SourceError(Exception):
    """The database, or a row of it, cannot be read; the message is one line."""


class Database:
    """A database opened for reading. Close it, or use it in a `with`."""

    def __init__(
        self,
        path: str | Path,
        *,
        damaged: str = FAIL,
        node: str = "",
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """Open a checkpoint, a directory of RocksDB, or the data directory around one.

        `damaged` decides about a row that does not decode: FAIL raises, SKIP calls `on_damage` and
        leaves it out. `node` is the node name for rows of the history, by default that of the data
        directory. Raises `SourceError`.
        """
        if damaged not in (FAIL, SKIP):
            raise SourceError(f"damaged = {damaged!r}: expected {FAIL} or {SKIP}")
        self.path: Final = _find(Path(path))
        self.is_live: Final = is_in_use(self.path) or is_in_use(self.path.parent)
        self.node: Final = node or _node(self.path)
        self.on_damage: Callable[[str], None] = _ignore
        self._damaged: Final = damaged
        self.waiting_max: Final = waiting_max
        self._counts: dict[tuple[object, ...], int] = {}
        self._offset_ms = 0  # from broker time to wall time
        self.generations: list[Generation] = []
        self._slabs: dict[int, Slab] = {}
        self.families: frozenset[str] = frozenset()
        try:
            self.store: Final = RocksStore(self.path, read_only=True)
        except StorageError as error:
            raise SourceError(f"{self.path}: {error}") from error
        try:
            self._open()
        except (StorageError, ValueError) as error:
            self.close()
            raise SourceError(f"{self.path}: {error}") from error

    def _open(self) -> None:
        self.families = frozenset(self.store.families())
        if META not in self.families:
            raise SourceError(f"{self.path}: a database, but none of Holdfast's")
        check_format(self.store, [])
        value = self.store.get(META, HEARTBEAT_KEY)
        if value is not None:
            heartbeat = Heartbeat.decode(value)
            self._offset_ms = heartbeat.wall_ms - heartbeat.broker_ms
        for generation in load_generations(self.store):
            slab = LAYOUTS[generation.layout](self.store, generation.number)
            if self.families.issuperset(slab.families):  # else it is being dropped
                self.generations.append(generation)
                self._slabs[generation.number] = slab

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._slabs.clear()
        self.store.close()

    # --- for the tables ---

    def decoded(self, what: str, decode: Callable[..., T], *values: Any) -> T | None:
        """Return the row decoded by `decode`, None if it is damaged and `damaged` is SKIP."""
        try:
            return decode(*values)
        except (DamagedRows, ValueError) as error:
            if self._damaged == FAIL:
                raise SourceError(f"{self.path}: damaged: {what}: {error}") from error
            self.on_damage(f"{what}: {error}")
            return None

    def time(self, broker_ms: int) -> datetime | None:
        """Return broker time as wall-clock time; None for 0, which means "not set"."""
        if not broker_ms:
            return None
        return _EPOCH + timedelta(milliseconds=broker_ms + self._offset_ms)

    def subscription(self, key: bytes, value: bytes) -> tuple[str, Subscription] | None:
        """Return (client_id, subscription) of a row, None if it is damaged."""
        return self.decoded(f"subscription {key!r}", _subscription, key, value)

    def session_alone(self, key: bytes, value: bytes) -> Session | None:
        """Return the session of a row without its subscriptions, None if it is damaged."""
        return self.decoded(f"session {key!r}", _session, key, value)

    def session(self, key: bytes, value: bytes) -> Session | None:
        """Return the session of a row with its subscriptions, None if it is damaged."""
        session = self.session_alone(key, value)
        if session is None:
            return None
        for row_key, row in scan_prefix(self.store, SUBSCRIPTIONS, client_prefix(key.decode())):
            found = self.subscription(row_key, row)
            if found is not None:
                session.add(found[1])
        return session

    def stream(self, topic_filter: str, since: int) -> Stream | None:
        """Return the stream of a durable filter, None if it has none or its row is damaged."""
        value = self.store.get(FILTERS, topic_filter.encode())
        if value is None:
            return None
        found = self.decoded(f"topic filter {topic_filter!r}", decode_filter, value)
        return None if found is None else Stream(found[0], topic_filter, since)

    def held(self, session: Session) -> list[tuple[Subscription, Stream]]:
        """Return the subscriptions whose messages are stored for the session, with their stream."""
        found = []
        for subscription in session.subscriptions.values():
            if subscription.share_name is None and subscription.holds:
                stream = self.stream(subscription.stream_filter, subscription.since)
                if stream is not None:
                    found.append((subscription, stream))
        return found

    def waiting(
        self, streams: list[Stream], position: int, gaps: Gaps = NO_GAPS
    ) -> dict[int, int] | None:
        """Return how many messages wait after `position`, by generation.

        What is in the gaps does not wait. Only generations with waiting messages are included. A
        message in several of the streams counts once. The sum stops at `waiting_max`. None if an
        index is damaged and is skipped.
        """
        found: dict[int, int] = {}
        left = self.waiting_max
        for generation in self.generations:
            if streams and position < generation.last_offset and left:
                what = f"generation {generation.number}, index of {streams}"
                after = max(position, generation.first_offset - 1)
                for first, last in outside(gaps, after + 1, generation.last_offset):
                    number = generation.number
                    count = self.decoded(what, self._count, streams, first, last, number, left)
                    if count is None:
                        return None
                    if count:
                        found[number] = found.get(number, 0) + count
                        left -= count
        return found

    def generation_of(self, offset: int) -> int | None:
        """Return the number of the generation that holds an offset, None if it was dropped."""
        for generation in self.generations:
            if generation.first_offset <= offset <= generation.last_offset:
                return generation.number
        return None

    def slab(self, number: int) -> Slab:
        """Return the messages of a generation."""
        return self._slabs[number]

    def _count(self, streams: list[Stream], first: int, last: int, number: int, most: int) -> int:
        key = (number, first, last, most, *((s.filter_id, s.since) for s in streams))
        count = self._counts.get(key)
        if count is None:
            count = 0
            reader = self._slabs[number].reader(streams, first - 1)
            while count < most and reader.position < last:
                count += reader.skip(most - count, last, 0)
            if reader.damage is not None:
                raise reader.damage
            if len(self._counts) >= COUNTS_KEPT:
                self._counts.clear()
            self._counts[key] = count
        return count


def _ignore(problem: str) -> None:
    pass


def _find(path: Path) -> Path:
    """Return the RocksDB directory: `path` itself, or the one in the data directory `path`."""
    for candidate in (path, path / "db"):
        if (candidate / "CURRENT").is_file():
            return candidate
    if not path.exists():
        raise SourceError(f"{path}: no such directory")
    raise SourceError(f"{path}: no database, expected a checkpoint or a data directory of Holdfast")


def _node(path: Path) -> str:
    for directory in (path, path.parent):
        try:
            name = (directory / NODE_FILE).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if name:
            return name
    return NODE_UNKNOWN


def _session(key: bytes, value: bytes) -> Session:
    return decode_session(key.decode(), unseal(value, "value"))


def _subscription(key: bytes, value: bytes) -> tuple[str, Subscription]:
    client_id, zero, name = key.partition(b"\0")
    if not zero:
        raise ValueError(f"key of {len(key)} bytes without a zero byte")
    topic_filter = name.decode()
    share_name, stream_filter = None, topic_filter
    if topic_filter.startswith("$share/"):
        _, share_name, stream_filter = topic_filter.split("/", 2)
    body = unseal(value, "value")
    decoded = decode_subscription(topic_filter, share_name, stream_filter, body)
    return client_id.decode(), decoded
