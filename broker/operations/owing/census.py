"""Counts everything that is owed, and who needs which generation of the log: one look at a store.

Sessions are read once, in the order of their client ids, beside their subscriptions and
connections. What is remembered is a few sums, the sessions that are owed most, and for each set of
generations that sessions need how many need it. Must never change the store, which must not change
meanwhile. Read next: `broker.operations.sessions.backlogs`, `broker.operations.owing.pins`.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from broker.operations.looking.rows import Problems, readable_rows
from broker.operations.owing.pins import Needs, Pinned
from broker.operations.sessions.backlogs import Backlogs
from broker.operations.sessions.behind import Known
from broker.operations.sessions.inventory import UNDECODABLE, Unchanged
from mqtt.topics import split_shared
from session.state.backend_record import decode_backend
from session.state.records import decode_session
from session.state.session import Session
from session.state.shared_group_record import decode_group
from session.state.subscription import Subscription, decode_subscription
from storage.api import Row, Store
from storage.errors import CorruptRecord, DamagedRows
from storage.log.gaps import NO_GAPS, Gaps
from storage.log.generations import load_generations
from storage.log.message_log import GenerationReport, MessageLog, Stream, report_generations
from storage.tables.tables import (
    BACKENDS,
    CONNECTIONS,
    FILTERS,
    GROUPS,
    SESSIONS,
    SUBSCRIPTIONS,
    decode_filter,
    split_group_key,
    unseal,
)

TOP_MAX: Final = 20  # of those that are owed most
FILTERS_MAX: Final = 100_000  # whose numbers are remembered: 20 MB


class Sum:
    """What some sessions or groups are owed. A message that two of them are owed counts twice."""

    def __init__(self) -> None:
        self.holders: int = 0  # that are owed something
        self.messages: int = 0
        self.size_bytes: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """Add what one of them is owed."""
        if messages:
            self.holders += 1
            self.messages += messages
            self.size_bytes += size_bytes


class Top:
    """A session that is owed much."""

    __slots__ = ("client_id", "is_connected", "messages", "oldest_ms", "size_bytes")

    def __init__(
        self, client_id: str, is_connected: bool, messages: int, size_bytes: int, oldest_ms: int
    ) -> None:
        self.client_id: Final = client_id
        self.is_connected: Final = is_connected
        self.messages: Final = messages
        self.size_bytes: Final = size_bytes
        self.oldest_ms: Final = oldest_ms


class Census:
    """What was found."""

    def __init__(self, counted_ms: int, problems: Problems) -> None:
        self.counted_ms: Final = counted_ms  # broker time
        self.problems: Final = problems  # what could not be read, and is not counted
        self.sessions: int = 0  # that are stored
        self.offline: Final = Sum()
        self.online: Final = Sum()
        self.groups: Final = Sum()  # what waits for a group, or came back to it
        self.oldest_ms: int = 0  # when the oldest of all this was accepted, 0 = nothing is owed
        self.top: list[Top] = []  # by bytes
        # Oldest first; None = it has no row, and no messages.
        self.generations: list[GenerationReport | None] = []
        self.sessions_need: Final = Needs()
        self.groups_need: Final = Needs()
        self.backends_need: Final = Needs()
        # Sessions and others that cannot be read: what they need is not known, so all stay.
        self.unreadable: int = 0

    @property
    def messages(self) -> int:
        """Return how many messages are owed to all."""
        return self.offline.messages + self.online.messages + self.groups.messages

    @property
    def size_bytes(self) -> int:
        """Return the bytes of these: their topics and payloads."""
        return self.offline.size_bytes + self.online.size_bytes + self.groups.size_bytes

    def pinned(self) -> list[Pinned]:
        """Return the generations with those that need them, the oldest first."""
        return [
            Pinned(
                report,
                self.sessions_need.of(index),
                self.groups_need.of(index),
                self.backends_need.of(index),
                self.unreadable,
            )
            for index, report in enumerate(self.generations)
            if report is not None
        ]


def take(
    store: Store,
    now_ms: int,
    *,
    problems: Problems | None = None,
    known: Known | None = None,
    breathe: Callable[[], None] = lambda: None,
) -> Census:
    """Count what is in a store. `now_ms` is broker time; for `known` and `breathe` see `Backlogs`.

    What cannot be read is passed over and noted in `problems`. Raises `StorageError` if the log
    cannot be opened.
    """
    return _Counting(store, now_ms, problems or Problems(), known, breathe).run()


class _Counting:
    """One census that is under way."""

    def __init__(
        self,
        store: Store,
        now_ms: int,
        problems: Problems,
        known: Known | None,
        breathe: Callable[[], None],
    ) -> None:
        self._store: Final = store
        self._breathe: Final = breathe
        self._problems: Final = problems
        self._census: Final = Census(now_ms, problems)
        log: MessageLog | None = None
        generations = load_generations(store)
        if generations:
            log = MessageLog(Unchanged(store), layout=generations[-1].layout)
            log.open(now_ms)
        self._backlogs: Final = Backlogs(store, log, known=known, breathe=breathe)
        if self._backlogs.extents is not None:
            reports = {each.generation.number: each for each in report_generations(store)}
            numbers = self._backlogs.extents.numbers
            self._census.generations = [reports.get(number) for number in numbers]
        self._filter_ids: Final[dict[str, int]] = {}
        # Of those that are owed most: bytes, messages, client id, was it connected?
        self._top: Final[list[tuple[int, int, str, bool]]] = []
        self._oldest_offset = 1 << 63  # of what is known to be owed, behind positions

    def run(self) -> Census:
        """Read everything once."""
        census = self._census
        subscriptions = _Beside(self._rows(SUBSCRIPTIONS))
        connections = _Beside(self._rows(CONNECTIONS))
        for key, value in self._rows(SESSIONS):
            self._breathe()
            census.sessions += 1
            is_connected = bool(connections.of(key))
            with self._noted("session", key):
                session = decode_session(key.decode(), unseal(value, "record"))
                streams = self._streams(subscriptions.of(key))
                self._count(session, streams, is_connected)
        for key, value in self._rows(GROUPS):
            with self._noted("shared group", key):
                self._count_group(key, value)
        for key, value in self._rows(BACKENDS):
            with self._noted("backend", key):
                self._count_backend(key.decode(), value)
        self._name_top()
        return census

    @contextmanager
    def _noted(self, what: str, key: bytes) -> Iterator[None]:
        """Note what cannot be read, and go on."""
        try:
            yield
        except (DamagedRows, *UNDECODABLE) as problem:
            self._problems.note(f"{what} {key!r}", problem)
            self._census.unreadable += 1

    def _rows(self, family: str) -> Iterator[Row]:
        return readable_rows(self._store, family, b"", None, self._problems)

    def _streams(self, rows: list[Row]) -> list[Stream]:
        """Return the streams of the subscriptions of a session. Raises `DamagedRows`."""
        streams: list[Stream] = []
        for rest, value in rows:
            subscription = _subscription(rest.decode(), value)
            if subscription.share_name is None and subscription.holds:
                stream_filter = subscription.stream_filter
                number = self._filter_id(stream_filter)
                streams.append(Stream(number, stream_filter, subscription.since))
        return streams

    def _filter_id(self, topic_filter: str) -> int:
        found = self._filter_ids.get(topic_filter)
        if found is None:
            row = self._store.get(FILTERS, topic_filter.encode())
            if row is None:
                raise CorruptRecord(f"topic filter {topic_filter!r}: no row")
            if len(self._filter_ids) >= FILTERS_MAX:
                self._filter_ids.clear()
            found = self._filter_ids[topic_filter] = decode_filter(row)[0]
        return found

    def _count(self, session: Session, streams: list[Stream], is_connected: bool) -> None:
        backlog = self._backlogs.count(session, streams, with_bytes=True, with_oldest=False)
        messages = len(session.in_flight) + backlog.waiting
        if not messages:
            return
        size = backlog.size_bytes or 0
        census = self._census
        (census.online if is_connected else census.offline).add(messages, size)
        census.sessions_need.add(backlog.generations, messages, session.client_id)
        found = (size, messages, session.client_id, is_connected)
        if len(self._top) < TOP_MAX:
            heapq.heappush(self._top, found)
        else:
            heapq.heappushpop(self._top, found)
        self._note_age(backlog.oldest_ms)
        if backlog.waiting:
            self._look_at_age(backlog.first, session.position, streams, session.gaps)

    def _look_at_age(
        self, first: int, position: int, streams: list[Stream], gaps: Gaps = NO_GAPS
    ) -> None:
        """Note the oldest message behind a position, if it may be the oldest of all.

        `first` is its offset, if that is known. Times grow along the log, but for a second after a
        crash.
        """
        if max(first, position) >= self._oldest_offset:
            return
        if first:
            accepted_ms = self._backlogs.message(first)[1]
        else:
            first, accepted_ms = self._backlogs.first(position, streams, gaps, with_bytes=True)
        if first:
            self._oldest_offset = min(self._oldest_offset, first)
            self._note_age(accepted_ms)

    def _note_age(self, accepted_ms: int) -> None:
        """Note when something was accepted that is owed, 0 = it cannot be read."""
        census = self._census
        if accepted_ms and (not census.oldest_ms or accepted_ms < census.oldest_ms):
            census.oldest_ms = accepted_ms

    def _count_group(self, key: bytes, value: bytes) -> None:
        share_name, topic_filter = split_group_key(key)
        record = decode_group(unseal(value, "group"))
        streams = [Stream(self._filter_id(topic_filter), topic_filter, record.since)]
        behind = self._backlogs.behind(record.position, streams, with_bytes=True)
        size, generations = behind.size_bytes, behind.generations
        for offset in record.owed:
            message_size, accepted_ms = self._backlogs.message(offset)
            size += message_size
            generations |= self._backlogs.bit_of(offset)
            self._note_age(accepted_ms)
        messages = behind.messages + len(record.owed)
        self._census.groups.add(messages, size)
        if behind.messages:
            self._look_at_age(behind.first, record.position, streams)
        name = f"$share/{share_name}/{topic_filter}"
        self._census.groups_need.add(generations, messages, name)

    def _count_backend(self, name: str, value: bytes) -> None:
        """Note what an external store may read, and what it may have to read again."""
        record = decode_backend(unseal(value, "backend"))
        streams = [
            Stream(self._filter_id(topic_filter), topic_filter, since)
            for topic_filter, since in record.filters.items()
        ]
        position = max(record.floor[0], record.given_up[0])
        behind = self._backlogs.behind(position, streams, with_bytes=False)
        self._census.backends_need.add(behind.generations, behind.messages, name)

    def _name_top(self) -> None:
        """Look up since when those are owed something that are owed most."""
        for size, messages, client_id, is_connected in sorted(self._top, reverse=True):
            oldest_ms = 0
            with self._noted("session", client_id.encode()):
                value = self._store.get(SESSIONS, client_id.encode())
                assert value is not None, "a store that changes while it is read"
                session = decode_session(client_id, unseal(value, "record"))
                streams = self._streams(list(self._subscriptions_of(client_id)))
                oldest_ms = self._backlogs.count(session, streams, with_bytes=False).oldest_ms
            self._census.top.append(Top(client_id, is_connected, messages, size, oldest_ms))

    def _subscriptions_of(self, client_id: str) -> Iterator[Row]:
        start = client_id.encode() + b"\0"
        stop = client_id.encode() + b"\1"
        for key, value in readable_rows(self._store, SUBSCRIPTIONS, start, stop, self._problems):
            yield key[len(start) :], value


class _Beside:
    """Rows that begin with a client id, read beside the sessions, in the same order."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows: Final = rows
        self._next: Row | None = next(rows, None)

    def of(self, client: bytes) -> list[Row]:
        """Return the rows of a client without its id; call it with growing ids."""
        found: list[Row] = []
        while self._next is not None:
            key, value = self._next
            name, _, rest = key.partition(b"\0")
            if name > client:
                break
            if name == client:
                found.append((rest, value))
            self._next = next(self._rows, None)
        return found


def _subscription(topic_filter: str, row: bytes) -> Subscription:
    shared = split_shared(topic_filter)
    share_name, stream_filter = shared if shared is not None else (None, topic_filter)
    body = unseal(row, f"subscription {topic_filter!r}")
    return decode_subscription(topic_filter, share_name, stream_filter, body)
