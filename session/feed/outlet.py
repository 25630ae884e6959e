"""What external stores still have to get, and how far each of them has come.

A backend is a reader of the log like a shared subscription: it holds filters, and a cursor says
what its store has confirmed. Messages and events are read from the database alone, in one order,
and only once they are durable: a store is never told of what a crash could take back. Must never
wait: the shell asks for rows, sends them, and reports what was confirmed. Read next:
`session.feed.recorder`, which writes the events, `session.lifetime.feeds`, which opens the
backends, and `broker.backends.pump`, the shell.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from mqtt.message import Message
from session.feed.dead_letters import DeadLetter, DeadLetters
from session.feed.recorder import FeedRecorder
from session.live.core import Core, Database
from session.settings import Feed
from session.state.backend_record import BackendRecord, Cursor, encode_backend
from storage.errors import CorruptRecord, DamagedRows
from storage.log.message_log import Cursor as LogCursor
from storage.log.message_log import Generation, Stream
from storage.tables.feed_rows import (
    AGAIN,
    FOREIGN,
    GAP,
    FeedEvent,
    decode_row,
    feed_key,
    filled_for,
    split_feed_key,
)
from storage.tables.tables import (
    BACKENDS,
    FEED,
    scan_readable,
    seal,
)

Row: TypeAlias = Message | FeedEvent

READ_MESSAGES: Final = 128  # read from the log at once
READ_ROWS: Final = 4  # of events, at once; a row may have those of a thousand clients
SCAN_MAX: Final = 2048  # rows without a match that one call looks at
TRIM_ROWS: Final = 8  # deleted at once; they are read for it
# Between two places that a store may be read from again; less if rows are kept for a short time.
MARK_MS: Final = 10_000
MARKS_SHIFT: Final = 3
TIDY_MS: Final = 2000


class FeedPage:
    """Rows in order: everything for a backend after one cursor, up to and including another."""

    __slots__ = ("after", "lost", "rows", "upto")

    def __init__(self, after: Cursor) -> None:
        self.after: Final = after
        self.upto: Cursor = after
        self.rows: list[Row] = []
        self.lost: int = 0  # messages and events that cannot be read


class FeedStats:
    """The figures of a backend."""

    __slots__ = ("dead_letters", "events_behind", "messages_behind")

    def __init__(self, messages_behind: int, events_behind: int, dead_letters: int) -> None:
        # At most so many: those of other subscribers and other backends are among them.
        self.messages_behind: Final = messages_behind
        self.events_behind: Final = events_behind
        self.dead_letters: Final = dead_letters


class Backend:
    """One backend: its record, and what was read ahead of what was confirmed."""

    def __init__(self, feed: Feed, record: BackendRecord) -> None:
        self.feed: Final = feed
        self.record: Final = record
        self.streams: list[Stream] = []
        # Cursors that were confirmed, with their time, oldest first: the floor moves along them, as
        # long as the store is heard of. One that is away may have lost rows when it went.
        self.marks: Final[deque[tuple[int, Cursor]]] = deque()
        self.heard_ms: int = 0  # when the store was last heard of
        # Where reading is: what was returned, what was read ahead.
        self.read: Cursor = record.cursor
        self.messages: Final[deque[Message]] = deque()
        self.events: Final[deque[FeedEvent]] = deque()
        self.next_key: bytes = b""  # of the next row of events, b"" = to be looked up
        self.log_cursor: LogCursor | None = None

    def restart(self, cursor: Cursor) -> None:
        """Read on from `cursor`."""
        self.read = cursor
        self.messages.clear()
        self.events.clear()
        self.next_key = b""
        self.log_cursor = None


class FeedOutlet:
    """All backends of the broker, for the shell and for the sweep."""

    def __init__(self, core: Core, database: Database, recorder: FeedRecorder) -> None:
        self._tick: Final = core.tick
        self._damage: Final = core.damage
        self._store: Final = database.store
        self._log: Final = database.log
        self._recorder: Final = recorder
        self._letters: Final = DeadLetters(core.tick, database.store, core.damage, recorder)
        self.backends: Final[dict[str, Backend]] = {}
        self._dirty: Final[dict[Backend, None]] = {}
        # Ends of written batches: (serial, offset, number of an event), and of the durable ones.
        self._written: Final[deque[tuple[int, int, int]]] = deque()
        self._last_written: Cursor = (0, 0)
        self._durable: Cursor = (0, 0)
        self._trimmed: int = 0  # rows of events up to this number are deleted
        self.tidy_ms: int = 0  # when to tidy next

    def add(self, backend: Backend) -> None:
        """Add a backend; its record is written with this batch."""
        self.backends[backend.feed.name] = backend
        self._dirty[backend] = None

    # For the shell

    def names(self) -> list[str]:
        """Return the names of the backends."""
        return list(self.backends)

    def cursor(self, name: str) -> Cursor:
        """Return the cursor that the store of a backend has confirmed."""
        return self.backends[name].record.cursor

    def floor(self, name: str) -> Cursor:
        """Return the oldest cursor from which a backend can be read again."""
        return self.backends[name].record.floor

    def instance(self, name: str) -> str:
        """Return what marks the rows that this database has written to the store."""
        return self.backends[name].record.instance

    def end(self) -> Cursor:
        """Return the cursor behind everything that there is. Not all of it is durable yet."""
        return self._log.end, self._recorder.seq

    def begin(self, name: str, cursor: Cursor) -> None:
        """Read on from `cursor`, which is between the floor and the end.

        What the store had confirmed beyond it is lost there, and counts as not confirmed.
        """
        backend = self.backends[name]
        record, end = backend.record, self.end()
        position = min(max(cursor[0], record.floor[0]), end[0])
        seq = min(max(cursor[1], record.floor[1]), end[1])
        backend.restart((position, seq))
        if position < record.cursor[0] or seq < record.cursor[1]:
            record.cursor = (min(position, record.cursor[0]), min(seq, record.cursor[1]))
            marks = backend.marks
            while marks and (
                marks[-1][1][0] > record.cursor[0] or marks[-1][1][1] > record.cursor[1]
            ):
                marks.pop()
            self._dirty[backend] = None

    def renew(self, name: str, instance: str) -> None:
        """Mark the rows of a backend otherwise from now on: its store knows more than we do."""
        backend = self.backends[name]
        backend.record.instance = instance
        self._dirty[backend] = None

    def confirm(self, name: str, cursor: Cursor, dead: Sequence[DeadLetter] = ()) -> None:
        """Note that the store has everything up to `cursor`, but for the dead letters.

        They are durable with the commit of this tick's batch. A crash before that repeats the rows.
        """
        backend = self.backends[name]
        record = backend.record
        if record.retries:
            dead = self._letters.settle(name, record, cursor, dead)
        for letter in dead:
            self._letters.add(name, record, letter)
        record.cursor = (max(record.cursor[0], cursor[0]), max(record.cursor[1], cursor[1]))
        backend.heard_ms = self._tick.now
        self._mark(backend)
        self._dirty[backend] = None

    def heard(self, name: str) -> None:
        """Note that the store is there and has lost nothing of what it has confirmed."""
        self.backends[name].heard_ms = self._tick.now

    def stats(self, name: str) -> FeedStats:
        """Return the figures of a backend."""
        record = self.backends[name].record
        end, seq = self._log.end, self._recorder.seq
        behind = end - record.cursor[0] if self.backends[name].streams else 0
        return FeedStats(max(0, behind), max(0, seq - record.cursor[1]), record.dead_letters)

    def note_changed(self, name: str) -> None:
        """Write the record of a backend with this tick's batch."""
        self._dirty[self.backends[name]] = None

    # Dead letters, for an operator

    def dead_letters(self, name: str, after: int, count: int) -> list[tuple[int, DeadLetter]]:
        """Return dead letters of a backend behind the number `after`, with theirs.

        Of the next `count`: those that can be read, and were not deleted in this tick.
        """
        return self._letters.page(name, after, count)

    def is_retried(self, name: str, number: int) -> bool:
        """Is a dead letter sent again, and not confirmed yet?"""
        return self._letters.is_under_way(name, self.backends[name].record, number)

    def retried(self, name: str) -> list[int]:
        """Return the numbers of the events that carry dead letters and are not confirmed."""
        return list(self.backends[name].record.retries)

    def retry_dead_letter(self, name: str, number: int) -> str:
        """Send a dead letter again, behind what waits; return why that cannot be.

        "" = it is durable with the commit of this tick's batch.
        """
        return self._letters.retry(name, self.backends[name].record, number)

    def drop_dead_letter(self, name: str, number: int) -> str:
        """Delete a dead letter; return why that cannot be.

        "" = it is durable with the commit of this tick's batch.
        """
        backend = self.backends[name]
        self._dirty[backend] = None
        return self._letters.drop(name, backend.record, number)

    # Reading

    def read(self, name: str, count: int, bytes_max: int) -> FeedPage | None:
        """Return the next rows of a backend, None if there are none for now.

        At most `count`, and about `bytes_max` bytes. A page without rows only moves the cursor:
        ask again. Raises the store's errors; call `begin` before reading on after one.
        """
        backend = self.backends[name]
        page = FeedPage(backend.read)
        size = 0
        while len(page.rows) < count and size < bytes_max:
            row = self._next(backend, page)
            if row is None:
                break
            page.rows.append(row)
            if isinstance(row, FeedEvent):
                backend.read = (max(backend.read[0], row.end), row.seq)
                size += len(row.client_id) + len(row.text) + len(row.body)
            else:
                backend.read = (row.offset, backend.read[1])
                size += len(row.topic) + len(row.payload) + len(row.properties)
        page.upto = backend.read
        return page if page.rows or page.lost or page.upto != page.after else None

    def _next(self, backend: Backend, page: FeedPage) -> Row | None:
        """Return the next row of a backend, None if there is none or much was passed over."""
        event = self._next_event(backend, page)
        position, seq = backend.read
        if event is None and seq < self._durable[1]:
            return None  # events that this backend does not want were passed over
        limit = self._durable[0] if event is None else min(event.end, self._durable[0])
        if position < limit:
            if not backend.messages:
                self._read_messages(backend, page)
            if backend.messages and backend.messages[0].offset <= limit:
                return backend.messages.popleft()
            reached = self._reached(backend)
            backend.read = (max(position, min(reached, limit)), seq)
            if reached < limit:
                return None  # there may be more messages before the event
        if event is not None:
            backend.events.popleft()
        return event

    def _reached(self, backend: Backend) -> int:
        """Return the offset up to which all messages of a backend were read."""
        if backend.messages:
            return backend.messages[0].offset - 1
        if not backend.streams:
            return self._durable[0]
        assert backend.log_cursor is not None
        if backend.log_cursor.is_at_end:
            return max(backend.log_cursor.position, self._durable[0])
        return backend.log_cursor.position

    def _read_messages(self, backend: Backend, page: FeedPage) -> None:
        if not backend.streams:
            return
        cursor = backend.log_cursor
        if cursor is None:
            cursor = backend.log_cursor = self._log.cursor(backend.streams, backend.read[0])
        missing = cursor.missing
        backend.messages.extend(cursor.next(READ_MESSAGES, SCAN_MAX))
        page.lost += cursor.missing - missing
        if cursor.lost:
            page.lost += len(self._damage.passed_over(cursor))

    def _next_event(self, backend: Backend, page: FeedPage) -> FeedEvent | None:
        """Return the next event that a backend wants, which stays the next one.

        None: there is none that is durable, or much was passed over. Then the cursor has moved.
        """
        events = backend.events
        last = self._durable[1]
        position, seq = backend.read
        if not events and seq < last:
            self._read_events(backend, page)
            seq = split_feed_key(backend.next_key) - 1
        if events:
            seq = events[0].seq - 1
        backend.read = (position, max(backend.read[1], min(seq, last)))
        return events[0] if events and events[0].seq <= last else None

    def _read_events(self, backend: Backend, page: FeedPage) -> None:
        """Read rows of events ahead, and place `next_key` behind them."""
        after = backend.read[1]
        start = backend.next_key or self.key_of(after + 1)
        damages: list[DamagedRows] = []
        rows = scan_readable(self._store, FEED, start, None, damages, count=READ_ROWS)
        if damages:
            self._damage.note_all("feed", damages)
            page.lost += 1
        following = after + 1
        for key, value in rows:
            page.lost += max(0, split_feed_key(key) - following)
            try:
                found = decode_row(key, value)
            except CorruptRecord as problem:
                self._damage.note("feed", problem)
                page.lost += 1
                following = max(following, split_feed_key(key) + 1)
                continue
            following = max(following, found[-1].seq + 1)
            backend.events.extend(
                event for event in found if event.seq > after and _wants(backend.feed, event)
            )
        if len(rows) < READ_ROWS:
            following = max(following, self._last_written[1] + 1)  # what is not there is lost
        backend.next_key = feed_key(following)
        if page.lost and self._letters.not_read(backend.record, after, following, backend.events):
            self._dirty[backend] = None

    def key_of(self, seq: int) -> bytes:
        """Return the key of the row that has the event `seq`, or a key before all later ones."""
        try:
            row = self._store.last(FEED, b"", feed_key(seq + 1))
        except DamagedRows:
            return feed_key(0)  # the rows before it are passed over
        return feed_key(seq) if row is None else row[0]

    # For the tick

    def seal(self) -> None:
        """Put the records that changed into the batch."""
        for backend in self._dirty:
            value = seal(encode_backend(backend.record))
            self._tick.batch.append((BACKENDS, backend.feed.name.encode(), value))
        self._dirty.clear()

    def seal_retries(self) -> None:
        """Note which events carry dead letters; call it once the events are in the batch."""
        for event in self._recorder.again:
            backend = self.backends[event.username]
            backend.record.retries[event.seq] = event.offset
            self._dirty[backend] = None
        self._recorder.again.clear()
        self.seal()

    def written(self, serial: int, end: int) -> None:
        """Note where the log and the events end with batch `serial`, which is written."""
        if not self.backends:
            return
        self._letters.written()
        upto = (end, self._recorder.seq)
        if upto != self._last_written:
            self._last_written = upto
            self._written.append((serial, *upto))

    def committed(self, serial: int) -> None:
        """Let everything be read up to the end of batch `serial`, which is durable."""
        written = self._written
        while written and written[0][0] <= serial:
            _, position, seq = written.popleft()
            self._durable = (position, seq)

    # Space

    def owed(self, name: str) -> tuple[list[Stream], int]:
        """Return the streams of a backend, and the offset after which it may read them."""
        backend = self.backends[name]
        return backend.streams, backend.record.floor[0]

    def generation_lost(self, generation: Generation, why: str) -> None:
        """Tell each backend that still had to get messages of a generation which is dropped now."""
        last = generation.last_offset
        for name, backend in self.backends.items():
            position = backend.record.cursor[0]
            if not backend.streams or position >= last:
                continue
            try:
                owed = self._log.first_owed(backend.streams, position, generation=generation.number)
            except DamagedRows:
                owed = max(position + 1, generation.first_offset)  # for all that is known
            if owed is not None:
                self._recorder.lost(name, why, owed, last)

    def tidy(self, now: int) -> None:
        """Move the floors, and delete a slice of the events that nobody reads any more."""
        if now < self.tidy_ms:
            return
        self.tidy_ms = now + TIDY_MS
        for backend in self.backends.values():
            marks = backend.marks
            floor = backend.record.floor
            while marks and marks[0][0] + backend.feed.keep_ms <= backend.heard_ms:
                floor = marks.popleft()[1]
            if floor != backend.record.floor:
                backend.record.floor = floor
                self._dirty[backend] = None
        if self._trim():
            self.tidy_ms = now + 1

    def _mark(self, backend: Backend) -> None:
        marks = backend.marks
        now = self._tick.now
        interval_ms = min(MARK_MS, backend.feed.keep_ms >> MARKS_SHIFT)
        if not marks or now - marks[-1][0] >= interval_ms:
            marks.append((now, backend.record.cursor))

    def _trim(self) -> bool:
        """Delete a slice of rows of events before all floors; return whether there may be more."""
        least = min((each.record.floor[1] for each in self.backends.values()), default=0)
        if least <= self._trimmed:
            return False
        damages: list[DamagedRows] = []
        stop = feed_key(least + 1)
        start = feed_key(self._trimmed)
        rows = scan_readable(self._store, FEED, start, stop, damages, count=TRIM_ROWS + 1)
        if damages:
            self._damage.note_all("feed", damages)
        # The last one may have events behind the floor; it also says which number was the last.
        for key, _ in rows[:-1]:
            self._tick.batch.append((FEED, key, None))
            self._trimmed = split_feed_key(key)
        return len(rows) > TRIM_ROWS

    def invariants(self) -> Iterator[str]:
        """Yield what must hold of the backends and does not."""
        for name, backend in self.backends.items():
            record = backend.record
            if record.floor[0] > record.cursor[0] or record.floor[1] > record.cursor[1]:
                yield f"backend {name}: its floor {record.floor} is above its {record.cursor}"
            if record.cursor[0] > self._log.end or record.cursor[1] > self._recorder.seq:
                yield f"backend {name}: has confirmed {record.cursor}, which is not there yet"


def _wants(feed: Feed, event: FeedEvent) -> bool:
    if event.kind == AGAIN:
        return event.username == feed.name
    if event.kind == GAP and event.body and event.body != feed.name.encode():
        return False
    if event.kind in FOREIGN and event.username and event.username != feed.name:
        return False  # it is about a message of another store
    if filled_for(event) not in ("", feed.name):
        return False
    return bool(feed.kinds & 1 << event.kind)
