"""What external stores still have to get, and how far each of them has come.

A backend is a reader of the log like a shared subscription: it holds filters, and a cursor says
what its store has confirmed. Messages and events are read from the database alone, in one order,
and only once they are durable: a store is never told of what a crash could take back. Must never
wait: the shell asks for rows, sends them, and reports what was confirmed. Read next:
`session.feed.recorder`, which writes the events, `session.lifetime.feeds`, which opens the
backends, and `broker.backends.pump.pump`, the shell.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeAlias

from mqtt.message import Message
from mqtt.topics import matches
from session.feed.backlogs import Backlogs, Extents
from session.feed.dead_letters import DeadLetter, DeadLetters
from session.feed.recorder import FeedRecorder
from session.feed.told_counts import ToldCounts, ToldHistory, Unconfirmed
from session.live.core import Core, Database
from session.settings import Feed
from session.state.backend_record import BackendRecord, Cursor, encode_backend
from storage.errors import CorruptRecord, DamagedRows
from storage.history.events import BACKLOG_FULL, LOST_THERE, NOT_KEPT, UNREADABLE
from storage.log.message_log import Cursor as LogCursor
from storage.log.message_log import Generation, Stream
from storage.tables.feed_rows import (
    AGAIN,
    GAP,
    PUBLISHED,
    FeedEvent,
    decode_row,
    feed_key,
    is_for,
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
# Between two looks at how full the backlogs are, while batches are written; between them one may
# grow beyond its limit. A full one is cut, or counts as full, until an eighth is free again.
FULL_MS: Final = 50
ROOM_SHIFT: Final = 3

_UNWRITTEN: Final = 1 << 62


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

    __slots__ = ("backlog_bytes", "dead_letters", "events_behind", "messages_behind")

    def __init__(
        self, messages_behind: int, events_behind: int, backlog_bytes: int, dead_letters: int
    ) -> None:
        # At most so many: those of other subscribers and other backends are among them.
        self.messages_behind: Final = messages_behind
        self.events_behind: Final = events_behind
        self.backlog_bytes: Final = backlog_bytes  # `session.feed.backlogs`
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
        self.unconfirmed: Final[Unconfirmed] = deque()
        self.messages: Final[deque[Message]] = deque()
        self.events: Final[deque[FeedEvent]] = deque()
        self.next_key: bytes = b""  # of the next row of events, b"" = to be looked up
        self.log_cursor: LogCursor | None = None
        self.last_row: Cursor = record.cursor  # behind the last row that was returned
        self.is_refusing = False  # is a message that it wants refused?
        self.drops: int = 0  # how often its oldest rows were given up, since the start
        # The batch which says what was given up, 0 = it is durable.
        self.given_up_serial: int = 0

    def restart(self, cursor: Cursor) -> None:
        """Read on from `cursor`."""
        self.read = self.last_row = cursor
        self.messages.clear()
        self.events.clear()
        self.next_key = b""
        self.log_cursor = None

    def waits_from(self) -> Cursor:
        """Return the cursor behind which rows wait: what was passed over does not."""
        record, read = self.record, self.read
        position, seq = record.cursor
        if position >= self.last_row[0] and seq >= self.last_row[1]:
            position, seq = max(position, read[0]), max(seq, read[1])
        given_up = record.given_up
        return max(position, given_up[0]), max(seq, given_up[1])


class FeedOutlet:
    """All backends of the broker, for the shell and for the sweep."""

    def __init__(
        self,
        core: Core,
        database: Database,
        recorder: FeedRecorder,
        extents: Callable[[], Extents],
        history: ToldHistory,
    ) -> None:
        """`extents` tells what generations there are, with their sizes."""
        self._tick: Final = core.tick
        self._damage: Final = core.damage
        self._store: Final = database.store
        self._log: Final = database.log
        self._recorder: Final = recorder
        self._letters: Final = DeadLetters(core.tick, database.store, core.damage, recorder)
        self._counts: Final = ToldCounts(core.tick, database.log, history)
        self.backends: Final[dict[str, Backend]] = {}
        self._dirty: Final[dict[Backend, None]] = {}
        # Ends of written batches: (serial, offset, number of an event), and of the durable ones.
        self._written: Final[deque[tuple[int, int, int]]] = deque()
        self._last_written: Cursor = (0, 0)
        self._durable: Cursor = (0, 0)
        self._trimmed: int = 0  # rows of events up to this number are deleted
        self._backlogs: Final = Backlogs(database.store, recorder.sizes, extents)
        self._limited: Final[list[Backend]] = []
        self._full_ms: int = 0  # when to look next whether they are full
        # Called with the filters whose messages are refused, when these change.
        self.refused: Callable[[frozenset[str]], None] = _ignored
        self.tidy_ms: int = 0  # when to tidy next

    def add(self, backend: Backend) -> None:
        """Add a backend; its record is written with this batch."""
        self.backends[backend.feed.name] = backend
        self._letters.open(backend.feed.name, backend.record)
        if backend.feed.backlog_bytes_max:
            self._limited.append(backend)
        self._counts.opened(backend.feed.name, backend.record.told, backend.record.filters)
        self._dirty[backend] = None

    def forget(self, name: str, record: BackendRecord) -> None:
        """Tell the history that a backend is not configured any more."""
        self._counts.forgotten(name, record.told)

    def close(self) -> None:
        """Tell the history how far each backend is, because the broker ends."""
        for name, backend in self.backends.items():
            self._counts.close(name, backend.record.told, backend.record.told.counted)
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

    def told_from(self, name: str) -> Cursor:
        """Return the oldest cursor behind which all was told that is confirmed: no gap of a limit.

        It is not behind the cursor.
        """
        record = self.backends[name].record
        floor, given_up, cursor = record.floor, record.given_up, record.cursor
        return (
            max(floor[0], min(given_up[0], cursor[0])),
            max(floor[1], min(given_up[1], cursor[1])),
        )

    def instance(self, name: str) -> str:
        """Return what marks the rows that this database has written to the store."""
        return self.backends[name].record.instance

    def end(self) -> Cursor:
        """Return the cursor behind everything that there is. Not all of it is durable yet."""
        return self._log.end, self._recorder.seq

    def begin(self, name: str, cursor: Cursor) -> None:
        """Read on from `cursor`, which is between the floor and the end.

        Raises the store's errors if rows lie before it that were not confirmed. What the store
        had confirmed beyond it is lost there, and counts as not confirmed.
        """
        backend = self.backends[name]
        record, end = backend.record, self.end()
        position = min(max(cursor[0], record.floor[0]), end[0])
        seq = min(max(cursor[1], record.floor[1]), end[1])
        if position > record.told.counted:  # it says that it has them
            self._counts.unheard(name, record.told, backend.streams, position, (), ())
            self._dirty[backend] = None
        backend.restart((position, seq))
        backend.unconfirmed.clear()
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

    def confirm(
        self,
        name: str,
        cursor: Cursor,
        dead: Sequence[DeadLetter] = (),
        refused: Collection[Cursor] = (),
    ) -> None:
        """Note that the store has everything up to `cursor`, but for the dead letters.

        And but for rows that it has refused, too, and that are not kept. All is durable with the
        commit of this tick's batch. A crash before that repeats the rows. Raises the store's
        errors for rows that were not read before they were confirmed.
        """
        backend = self.backends[name]
        record = backend.record
        letters = {letter.at for letter in dead}
        read = backend.read[0]
        self._counts.confirm(
            name, record.told, backend.unconfirmed, min(cursor[0], read), letters, refused
        )
        if cursor[0] > read:
            self._counts.unheard(
                name,
                record.told,
                backend.streams,
                cursor[0],
                {at[0] for at in letters},
                {at[0] for at in refused},
            )
        if record.retries:
            dead = self._letters.settle(name, record, cursor, dead)
        for letter in dead:
            self._letters.add(name, record, letter)
        record.cursor = (max(record.cursor[0], cursor[0]), max(record.cursor[1], cursor[1]))
        backend.heard_ms = self._tick.now
        if backend.is_refusing:
            self._full_ms = 0  # there may be room
        self._mark(backend)
        self._dirty[backend] = None

    def heard(self, name: str) -> None:
        """Note that the store is there and has lost nothing of what it has confirmed."""
        self.backends[name].heard_ms = self._tick.now

    def stats(self, name: str) -> FeedStats:
        """Return the figures of a backend."""
        backend = self.backends[name]
        record = backend.record
        end, seq = self._log.end, self._recorder.seq
        position = max(record.cursor[0], record.given_up[0])
        behind = end - position if backend.streams else 0
        events_behind = seq - max(record.cursor[1], record.given_up[1])
        size = sum(self._waiting(backend))
        return FeedStats(max(0, behind), max(0, events_behind), size, record.dead_letters)

    def is_refusing(self, name: str) -> bool:
        """Are messages for a backend refused, because too much waits for it?"""
        return self.backends[name].is_refusing

    def drops(self, name: str) -> int:
        """Return how often the oldest rows of a backend were given up, since the start."""
        return self.backends[name].drops

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
        if backend.given_up_serial:
            return None  # until it is durable what does not come
        page = FeedPage(backend.read)
        self._pass_given_up(backend, page)
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
                backend.unconfirmed.append((backend.read, row.accepted_at_ms))
                size += len(row.topic) + len(row.payload) + len(row.properties)
            backend.last_row = backend.read
        page.upto = backend.read
        return page if page.rows or page.lost or page.upto != page.after else None

    def _pass_given_up(self, backend: Backend, page: FeedPage) -> None:
        """Go to the end of what was given up, and tell of it as a gap."""
        record, read = backend.record, backend.read
        position, seq = record.given_up
        if read[0] >= position and read[1] >= seq:
            return
        upto = (max(read[0], position), max(read[1], seq))
        backend.restart(upto)
        # Dead letters that were to be sent again stay what they are.
        for each in [each for each in record.retries if read[1] < each <= seq]:
            del record.retries[each]
            self._dirty[backend] = None
        message, event = record.given_up_message, record.given_up_event
        if not message and not event:
            return  # the rules wanted nothing of it
        why = "dropped by backlog_bytes_max"
        if event:
            why += f" (events {event} to {seq}, too)"
        gap = FeedEvent(GAP, self._tick.now, upto[0], "", why, seq=upto[1])
        if message:
            gap.offset, gap.accepted_ms = message, position
        gap.body = backend.feed.name.encode()
        page.rows.append(gap)

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
        missing, before = cursor.missing, cursor.position
        backend.messages.extend(cursor.next(READ_MESSAGES, SCAN_MAX))
        lost = cursor.missing - missing
        if cursor.lost:
            lost += len(self._damage.passed_over(cursor))
        if lost:
            page.lost += lost
            self._gap(backend, UNREADABLE, before + 1, cursor.position)

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
        if not self._dirty:
            return  # a look at an empty dict costs more than all else without backends
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
        if self._limited:
            for backend in self._limited:
                if backend.given_up_serial == _UNWRITTEN:
                    backend.given_up_serial = serial
            if self._tick.now >= self._full_ms:
                self._look_for_full()
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
        for backend in self._limited:
            if backend.given_up_serial <= serial:
                backend.given_up_serial = 0

    # Space

    def owed(self, name: str) -> tuple[list[Stream], int]:
        """Return the streams of a backend, and the offset after which it may read them."""
        backend = self.backends[name]
        record = backend.record
        return backend.streams, max(record.floor[0], record.given_up[0])

    def generation_lost(self, generation: Generation, why: str) -> None:
        """Tell each backend that still had to get messages of a generation which is dropped now.

        What it had confirmed cannot be sent again: a store that loses that is told so.
        """
        last = generation.last_offset
        for name, backend in self.backends.items():
            if not backend.streams:
                continue
            self._pass_floor(backend, generation)
            position = max(backend.record.cursor[0], backend.record.given_up[0])
            if position >= last:
                continue
            owed = self._first_owed(backend, position, generation)
            if owed is not None:
                self._recorder.lost(name, why, owed, last)
                first = max(position + 1, generation.first_offset)
                self._gap(backend, NOT_KEPT, first, last)

    def _pass_floor(self, backend: Backend, generation: Generation) -> None:
        """Move the floor behind what a backend has confirmed of a generation that is dropped."""
        record = backend.record
        position, seq = record.floor
        upto = min(record.cursor[0], generation.last_offset)
        if position >= upto:
            return
        owed = self._first_owed(backend, position, generation)
        if owed is not None and owed <= upto:
            record.floor = (upto, seq)
            self._dirty[backend] = None

    def _first_owed(self, backend: Backend, position: int, generation: Generation) -> int | None:
        """Return the first message of a generation that a backend wants behind a position."""
        try:
            return self._log.first_owed(backend.streams, position, generation=generation.number)
        except DamagedRows:
            return max(position + 1, generation.first_offset)  # for all that is known

    # Limits

    def _waiting(self, backend: Backend) -> tuple[int, int]:
        """Return the bytes of messages and of events that wait for a store."""
        return self._backlogs.size(
            backend.waits_from(),
            has_messages=bool(backend.streams),
            has_events=backend.feed.has_events,
        )

    def _look_for_full(self) -> list[Backend]:
        """See which backlogs are full, and who is refused; return those whose oldest rows go."""
        self._full_ms = self._tick.now + FULL_MS
        full: list[Backend] = []
        has_changed = False
        for backend in self._limited:
            limit = backend.feed.backlog_bytes_max
            log, events = self._waiting(backend)
            if log + events > limit:
                # Events cannot be refused: if they alone are too many, they go with what is among.
                if backend.feed.on_full == "drop_oldest" or events > limit:
                    full.append(backend)
                    self.tidy_ms = 1
                is_refusing = backend.feed.on_full == "reject"
            else:
                room = limit - log - events
                is_refusing = backend.is_refusing and room < limit >> ROOM_SHIFT
            has_changed |= is_refusing != backend.is_refusing
            backend.is_refusing = is_refusing
        if has_changed:
            refusing = [backend.feed.filters for backend in self._limited if backend.is_refusing]
            self.refused(frozenset(each for filters in refusing for each in filters))
        return full

    def _give_up(self, backend: Backend) -> None:
        """Give up the oldest rows of a backend until an eighth of what may wait is free."""
        feed, record = backend.feed, backend.record
        limit = feed.backlog_bytes_max
        since = backend.waits_from()
        position, seq = self._backlogs.cut(
            since,
            self._last_written,
            limit - (limit >> ROOM_SHIFT),
            has_messages=bool(backend.streams),
            has_events=feed.has_events,
        )
        if position <= since[0] and seq <= since[1]:
            return  # the rest is in no batch yet
        passed = record.given_up
        if record.cursor[0] >= passed[0] and record.cursor[1] >= passed[1]:
            record.given_up_message = record.given_up_event = 0  # those are told
        if not record.given_up_message and backend.streams:
            record.given_up_message = self._first_wanted(backend, since[0], position)
        if not record.given_up_event and feed.has_events and seq > since[1]:
            record.given_up_event = since[1] + 1
        record.given_up = (max(since[0], position), max(since[1], seq))
        if backend.streams:
            self._gap(backend, BACKLOG_FULL, since[0] + 1, record.given_up[0])
        # Rows before the cursor go with them: a store that loses those is told so.
        record.floor = record.cursor
        backend.marks.clear()
        backend.drops += 1
        backend.given_up_serial = _UNWRITTEN
        self._dirty[backend] = None

    def _gap(self, backend: Backend, reason: int, first: int, last: int) -> None:
        """Tell the history that messages do not come."""
        self._counts.gap(backend.feed.name, backend.record.told, reason, first, last)
        self._dirty[backend] = None

    def note_lost_there(self, name: str, first: int, last: int) -> None:
        """Tell the history that the store has lost messages, which are not kept any more."""
        self._gap(self.backends[name], LOST_THERE, first, last)

    def _first_wanted(self, backend: Backend, after: int, upto: int) -> int:
        """Return the first message that a backend wants between two offsets, 0 = there is none."""
        for generation in self._log.list_generations():
            if generation.last_offset > after and generation.first_offset <= upto:
                owed = self._first_owed(backend, after, generation)
                if owed is not None:
                    return owed if owed <= upto else 0
        return 0

    def tidy(self, now: int) -> None:
        """Move the floors, and delete a slice of the events that nobody reads any more."""
        if now < self.tidy_ms:
            return
        full = self._look_for_full() if self._limited else ()
        self.tidy_ms = now + TIDY_MS
        for backend in full:
            self._give_up(backend)
        for name, backend in self.backends.items():
            if not backend.unconfirmed and self._counts.close_if_due(name, backend.record.told):
                self._dirty[backend] = None
            marks = backend.marks
            floor = backend.record.floor
            while marks and marks[0][0] + backend.feed.keep_ms <= backend.heard_ms:
                position, seq = marks.popleft()[1]
                floor = (max(floor[0], position), max(floor[1], seq))
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
        records = [backend.record for backend in self.backends.values()]
        least = min([max(each.floor[1], each.given_up[1]) for each in records], default=0)
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


def _ignored(filters: frozenset[str]) -> None:
    pass


def _wants(feed: Feed, event: FeedEvent) -> bool:
    if not is_for(feed.name, event):
        return False
    if event.kind == PUBLISHED:
        return any(matches(each, event.text) for each in feed.qos0)
    return event.kind == AGAIN or bool(feed.kinds & 1 << event.kind)
