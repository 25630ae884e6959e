"""The events and books that go into the next batch, packed into rows of the history.

`publish_events` and `delivery_events` (messages) and `session_events` (all else) put fixed-width
records here. Each batch takes one row per millisecond of records, so the history in the store ends
at the same tick boundary as the state. Records cause no batch at once: they wait for the next one,
at most `progress_delay_ms`. The sequence numbers of events have no gaps. Knows no clock. The
meaning of a record is defined in `storage.history.packed_rows`.
"""

import hashlib
from typing import Final

from session.history.stage_counts import FIELDS, MINUTE_MS, STAGE_COUNT, Book, decode_book
from session.history.traced import Traced
from session.settings import Settings
from session.state.session import Session
from storage.api import Batch, Store
from storage.errors import CorruptRecord, DamagedRows
from storage.history import events
from storage.history.packed_rows import (
    HAS_COUNT,
    HAS_POSITION,
    HAS_REASON,
    NAME_CHARACTERS_MAX,
    NAMES_MAX,
    REASON_SHIFT,
    TEXT2_SHIFT,
    TEXT_SHIFT,
    history_key,
    pack,
    shortened,
)
from storage.tables.tables import BOOKS, HISTORY, scan_all, seal

RECORDS_MAX: Final = 8192  # of one row: 640 KiB of words, and their extras
NAMES_OF_ROW_MAX: Final = 60_000
NAMES_BYTES_MAX: Final = 1 << 20  # of a row: the exporter reads whole rows
UTF8_BYTES_MAX: Final = 4  # of a character
BOOKS_DELAY_MS: Final = 1000  # how long books that changed may wait for a batch
# Books of past minutes that one batch may close, and how long they stay open after their minute:
# messages are acknowledged a little later than they are accepted.
BOOKS_CLOSED_MAX: Final = 256
BOOKS_ENDED_MAX: Final = 4096  # that the last batch of a boot may close: 5 MB of records
BOOKS_GRACE_MS: Final = 5000
NEVER_MS: Final = 1 << 62
HASH_BYTES: Final = 16
HASHES_MAX: Final = 65_536  # names whose hash is cached
HASHES_CHARACTERS_MAX: Final = 8 << 20

# Position of the boot in the id of a message that is not stored.
UNSTORED_BOOT_SHIFT: Final = 40

# Reasons for dropping a message, by their names in `session.counters`.
DROPPED: Final = {
    "queue_full": 1020,
    "too_large": 1021,
    "session_limit": 1023,
    "total_limit": 1024,
    "not_authorized": 1025,
    "storage_refused": 1026,
    "max_age": 1027,
    "slow_consumer": 1028,
    "damaged": 1031,
    "purged": 1032,
}

# Prefix of words of the broker among the names: no name of a client can begin with it.
_WORDS: Final = "\0\0"
_GAP_BEGINS: Final = 1053
_DAMAGED: Final = 1055


class Recorder:
    """Collects records and books for the next batch."""

    def __init__(self, settings: Settings) -> None:
        self._delay_ms: Final = settings.progress_delay_ms
        self._level_wanted: int = settings.history_level
        self._sample_wanted: int = max(1, settings.history_sample)
        self._hash_key: Final = settings.history_hash_key.encode()
        self._hashes_names: Final = settings.history_hash_names
        self._hashes: dict[str, str] = {}
        self._hashes_characters: int = 0
        self.level: int = events.OFF
        self.sample: int = 1  # one message in so many is recorded
        self.is_on: bool = False  # anything at all
        self.has_books: bool = False
        self.has_messages: bool = False  # rows of single messages: some of them
        self.is_sampled: bool = False  # of one message in `sample`
        self.is_full: bool = False  # every message
        # Is somebody traced of whom more is recorded than the level says?
        self.has_traces: bool = False
        self.traced: Final = Traced()
        self.boot: int = 0
        self.boot_ms: int = 0
        self.seq: int = 0  # of the last event that was packed
        self.outbox_bytes: int = 0  # rows of this boot that were written and not trimmed yet
        self.events: int = 0  # recorded in this boot
        self.suppressed: int = 0  # missing from the history of this boot
        self._tally: int = 0  # messages that passed any stage, counted by the books
        self._gap_began: int = -1  # the tally when the current gap began
        # The open row.
        self._now: int = 0
        self._words: list[int] = []
        self._extras: list[int] = []
        self._names: dict[str, int] = {}
        self._whos: dict[Session, int] = {}
        self._count: int = 0  # events of the open row
        self._has_words: bool = False  # some of its names are words of the broker
        self._has_long: bool = False  # some of its names may have to be shortened
        self._names_bytes: int = 0
        self._rows: list[tuple[bytes, bytes]] = []
        self._due_ms: int = 0  # when the records must be written, 0 = there are none
        # Books that are not closed: of the current minute by tenant, and all by key.
        self._minute_ms: int = -MINUTE_MS  # no minute yet
        self._books: dict[str, Book] = {}
        self._open_books: dict[bytes, Book] = {}
        self._close_ms: int = 0  # when to look for books to close
        self._dirty_books: list[Book] = []
        self._books_due_ms: int = 0
        self._booked_ms: int = 0  # when a book was last asked for
        self._damaged_books: list[bytes] = []
        self._unread_books: int = 0  # places with books that the store could not read
        self._is_ending: bool = False  # the level of detail does not change any more

    def begin(self, boot: int, now: int, store: Store) -> None:
        """Begin a boot, whose first event has number 1, with the books that a crash left.

        A damaged book is deleted and recorded as a gap: it must not keep the broker from starting.
        """
        self.boot = boot
        self.boot_ms = now
        self._now = now
        self._set(self._level_wanted, self._sample_wanted)
        damages: list[DamagedRows] = []
        for key, value in scan_all(store, BOOKS, b"", None, damages):
            try:
                self._open_books[key] = decode_book(key, value)
            except CorruptRecord:
                self._damaged_books.append(key)
        self._unread_books = len(damages)

    def _set(self, level: int, sample: int) -> None:
        self.level = level
        self.sample = sample if level == events.SAMPLED else 1
        self.is_on = level > events.OFF
        self.has_books = level >= events.BOOKS_LEVEL
        self.is_sampled = level == events.SAMPLED
        self.is_full = level == events.FULL
        self.traces_changed()

    def traces_changed(self) -> None:
        """Look again who is traced: the rows of these clients are complete from `books` up."""
        self.has_traces = bool(self.traced.clients) and self.has_books and not self.is_full
        self.has_messages = self.level >= events.SAMPLED or self.has_traces

    def traces(self, client_id: str) -> bool:
        """Return whether a client's rows are recorded that the level leaves out."""
        return self.has_traces and client_id in self.traced.clients

    def describe(self) -> str:
        """Return the level in force in the form of the setting: `sampled:1/100`."""
        if self.level == events.SAMPLED:
            return f"sampled:1/{self.sample}"
        return events.LEVELS[self.level]

    # Records

    def put(
        self,
        w0: int,
        session: int,
        conn: int,
        names: int,
        w4: int,
        count: int = 1,
        w6: int = 0,
        w7: int = 0,
        w8: int = 0,
        w9: int = 0,
        more: int = 0,
    ) -> None:
        """Add a record of `count` events and of `more` further ones.

        Call `at` first; what `who`, `text`, `share` and `extra` returned before it is not valid.
        """
        self._words.extend((w0, session, conn, names, w4, count, w6, w7, w8, w9))
        self._count += count + more
        if not self._due_ms:
            self._due_ms = self._now + self._delay_ms

    def at(self, now: int) -> None:
        """Set the broker time of the next record; call it before anything else for a record."""
        if now != self._now or len(self._words) >= RECORDS_MAX * 10:
            self._turn()
            self._now = now
        elif len(self._names) >= NAMES_OF_ROW_MAX or self._names_bytes >= NAMES_BYTES_MAX:
            self._turn()

    def who(self, session: Session) -> int:
        """Return the number of the name of a session's client and tenant."""
        number = self._whos.get(session, 0)
        if not number:
            number = self.name(f"{session.client_id}\0{session.identity}")
            self._whos[session] = number
        return number

    def name(self, text: str) -> int:
        """Return the number of a name in the open row; 0 is none."""
        names = self._names
        number = names.get(text, 0)
        if not number:
            number = len(names) + 1
            assert number <= NAMES_MAX
            names[text] = number
            size = len(text)
            self._names_bytes += size if text.isascii() else UTF8_BYTES_MAX * size
            if size > NAME_CHARACTERS_MAX:
                self._has_long = True
        return number

    def text(self, text: str) -> int:
        """Return the number of a topic or topic filter, shifted for a record's names."""
        return self.name(text) << TEXT_SHIFT

    def words(self, text: str) -> int:
        """Return the number of words of the broker, shifted as for `text`; they are not hashed."""
        self._has_words = True
        return self.name(_WORDS + text) << TEXT_SHIFT

    def recorded(self, text: str) -> str:
        """Return a name as it is recorded: hashed, or shortened."""
        return self._hashed(text) if self._hashes_names else shortened(text)

    def share(self, text: str) -> int:
        """Return the number of a share name, shifted for a record's names."""
        return self.name(text) << TEXT2_SHIFT

    def backend(self, text: str) -> int:
        """Return the number of an external store, shifted for a record's names; not hashed."""
        self._has_words = True
        return self.name(_WORDS + text) << TEXT2_SHIFT

    @property
    def hashes_names(self) -> bool:
        """Return whether names that clients chose are recorded as hashes."""
        return self._hashes_names

    def extra(self, numbers: list[int]) -> int:
        """Store a list of numbers in the open row and return its place, for a record."""
        at = len(self._extras)
        self._extras.extend(numbers)
        return ~at

    def _turn(self) -> None:
        """Pack the open row and begin the next one."""
        if not self._words:
            return
        names = list(self._names)
        if self._hashes_names:
            names = [self._hashed(name) for name in names]
        elif self._has_long:
            names = [_plain(name) for name in names]
        elif self._has_words:
            names = [name.removeprefix(_WORDS) for name in names]
        first = self.seq + 1
        body = pack(self._now, self.boot_ms, first, self._count, self._words, self._extras, names)
        self._rows.append((history_key(self.boot, first), seal(body)))
        self.seq += self._count
        self.events += self._count
        self._words = []
        self._extras = []
        self._names = {}
        self._whos = {}
        self._count = 0
        self._has_words = self._has_long = False
        self._names_bytes = 0

    def _hashed(self, name: str) -> str:
        """Return a keyed hash of a name, of each part if it has two."""
        if name.startswith(_WORDS):
            return name.removeprefix(_WORDS)
        known = self._hashes.get(name)
        if known is None:
            if len(self._hashes) >= HASHES_MAX or self._hashes_characters >= HASHES_CHARACTERS_MAX:
                self._hashes.clear()
                self._hashes_characters = 0
            self._hashes_characters += len(name)
            parts = [self._hash(part.encode()) if part else "" for part in name.split("\0")]
            known = self._hashes[name] = "\0".join(parts)
        return known

    def _hash(self, text: bytes) -> str:
        return hashlib.blake2b(text, digest_size=HASH_BYTES, key=self._hash_key).hexdigest()

    # Books

    def book(self, tenant: str, now: int) -> Book:
        """Return the open book of a tenant for the current minute."""
        self._booked_ms = now
        if not self._minute_ms <= now < self._minute_ms + MINUTE_MS:
            self._minute_ms = now - now % MINUTE_MS
            self._books.clear()
        book = self._books.get(tenant)
        if book is None:
            book = Book(tenant, self._minute_ms)
            # A crash may have left a book of the same minute.
            book = self._books[tenant] = self._open_books.setdefault(book.key(), book)
        return book

    def count(
        self, book: Book, stage: int, count: int, size: int, check1: int, check2: int
    ) -> None:
        """Count messages in a book; it is written with the next batch, or BOOKS_DELAY_MS later."""
        self._tally += count
        book.add(stage, count, size, check1, check2)
        if not book.is_dirty:
            book.is_dirty = True
            self._dirty_books.append(book)
            if not self._books_due_ms:
                self._books_due_ms = self._booked_ms + BOOKS_DELAY_MS

    def end(self, batch: Batch, now: int) -> None:
        """Record the open books, because the broker ends; only its last event may follow.

        The next boot records those beyond `BOOKS_ENDED_MAX`, as after a crash.
        """
        self._close_books(batch, now, NEVER_MS, BOOKS_ENDED_MAX)
        self._is_ending = True

    def _close_books(self, batch: Batch, now: int, until_ms: int, most: int) -> None:
        """Record at most `most` books whose time was over at `until_ms` and delete their rows."""
        closed: list[bytes] = []
        for key, book in self._open_books.items():
            if book.bin_ms + MINUTE_MS + BOOKS_GRACE_MS > until_ms:
                continue
            if len(closed) == most:
                break  # the next batch closes more
            closed.append(key)
            batch.append((BOOKS, key, None))
            self.at(now)
            who = self.name(f"\0{book.tenant}")
            values = book.values
            for stage in range(STAGE_COUNT):
                at = stage * FIELDS
                if values[at]:
                    self.put(
                        events.BOOKS | stage << REASON_SHIFT,
                        0,
                        0,
                        who,
                        book.bin_ms,
                        1,
                        values[at],
                        values[at + 1],
                        values[at + 2],
                        values[at + 3],
                    )
            book.begin_again()  # later counts are recorded separately, and added by the reader
        for key in closed:
            del self._open_books[key]
        if len(closed) < most:
            self._close_ms = now - now % MINUTE_MS + MINUTE_MS + BOOKS_GRACE_MS

    # Batches

    def is_due(self, now: int) -> bool:
        """Return whether a batch must be written now for records or books alone."""
        due_ms = self.next_deadline()
        return due_ms is not None and due_ms <= now

    def hurry(self) -> None:
        """Make the records due at the end of this tick."""
        if self._due_ms:
            self._due_ms = self._now

    def next_deadline(self) -> int | None:
        """Return when a batch must be written for records or books, None = there are none."""
        if self._due_ms and (not self._books_due_ms or self._due_ms < self._books_due_ms):
            return self._due_ms
        return self._books_due_ms or None

    def seal(self, batch: Batch, now: int) -> None:
        """Move all records and changed books into the batch that is about to be written."""
        if self._open_books and now >= self._close_ms:
            self._close_books(batch, now, now, BOOKS_CLOSED_MAX)
        if self._damaged_books or self._unread_books:
            for key in self._damaged_books:
                batch.append((BOOKS, key, None))
            self._put_gap(_DAMAGED, len(self._damaged_books) + self._unread_books, now, 0)
            self._damaged_books.clear()
            self._unread_books = 0
        self._turn()
        for key, value in self._rows:
            batch.append((HISTORY, key, value))
            self.outbox_bytes += len(value)
        self._rows.clear()
        for book in self._dirty_books:
            if book.is_dirty:
                book.is_dirty = False
                self._open_books.setdefault(book.key(), book)
                batch.append((BOOKS, book.key(), book.encode()))
        self._dirty_books.clear()
        self._due_ms = self._books_due_ms = 0

    # Detail

    def change(self, level: int, sample: int, reason: int, now: int, position: int) -> None:
        """Change the level of detail, and record where a gap begins or ends.

        Events of sessions are recorded at every level. `position` is the end of the log.
        """
        if self._is_ending or (level == self.level and sample == self.sample):
            return
        wanted = self._level_wanted
        was_whole = self.level == wanted and self.sample == self._sample_of(wanted)
        is_whole = level == wanted and sample == self._sample_of(wanted)
        self._set(level, sample)
        if was_whole:
            self._gap_began = self._tally
            self._put_gap(_GAP_BEGINS, 0, now, position)
            self._tell_traces(now)
            return
        missed = max(0, self._tally - self._gap_began)
        self.suppressed += missed
        self._gap_began = self._tally
        self._put_gap(reason, missed, now, position)
        if not is_whole:
            self._put_gap(_GAP_BEGINS, 0, now, position)
        self._tell_traces(now)

    def want(self, level: int, sample: int, now: int, position: int) -> None:
        """Take another level of detail as the configured one, and record the change.

        If less is recorded at present, that stays in force until `change` ends it.
        """
        wanted = self._level_wanted
        if level == wanted and sample == self._sample_wanted:
            return
        was_whole = self.level == wanted and self.sample == self._sample_of(wanted)
        self._level_wanted, self._sample_wanted = level, sample
        if not was_whole and level >= self.level and (level, sample) != (self.level, self.sample):
            return
        missed = 0 if was_whole else max(0, self._tally - self._gap_began)
        self.suppressed += missed
        self._gap_began = self._tally
        self._set(level, sample)
        self._put_gap(events.DETAIL_CHANGED, missed, now, position)
        self._tell_traces(now)

    def _tell_traces(self, now: int) -> None:
        """Record at which level the traces go on."""
        for client_id in self.traced.clients:
            self.at(now)
            detail = self.words(f"{self.describe()}, the level has changed")
            self.put(events.TRACE_GOES_ON, 0, 0, self.name(f"{client_id}\0") | detail, 0)

    def trimmed(self, size: int) -> None:
        """Count `size` bytes of this boot's rows as deleted."""
        self.outbox_bytes -= size

    def lost(self, count: int, lost_before: int, reason: int, now: int, position: int) -> None:
        """Record a gap of `count` events that were deleted before they were exported.

        `lost_before` events more belong to it that were counted as suppressed already. With the
        history off the gap is counted, but not recorded.
        """
        self.suppressed += count
        if self.is_on:
            self._put_gap(reason, count + lost_before, now, position)

    def _sample_of(self, level: int) -> int:
        return self._sample_wanted if level == events.SAMPLED else 1

    def _put_gap(self, reason: int, count: int, now: int, position: int) -> None:
        self.at(now)
        self.put(
            events.HISTORY_GAP | HAS_REASON | HAS_COUNT | HAS_POSITION | reason << REASON_SHIFT,
            0,
            0,
            self.words(self.describe()),
            position,
            w9=count,
        )


def _plain(name: str) -> str:
    """Return a name as it is recorded without hashing, each part shortened."""
    if name.startswith(_WORDS):
        return name.removeprefix(_WORDS)
    return "\0".join([shortened(part) for part in name.split("\0")])
