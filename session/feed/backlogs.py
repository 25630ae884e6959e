"""How many bytes wait for a store, and where to cut when these are too many.

A backlog is what lies behind the store's cursor: the bytes of the log, whoever wanted them, for the
log goes only in whole generations; and the rows of events. Within a generation, and between two
marks of the events, bytes are shared out evenly: a look costs a few comparisons and reads nothing.
Pure but for the sample at the start. Read next: `session.feed.outlet`, which applies the limits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from session.state.backend_record import Cursor
from storage.api import Store
from storage.errors import CorruptRecord, DamagedRows
from storage.tables.feed_rows import decode_row, feed_key, split_feed_key
from storage.tables.tables import FEED, scan_readable

# First and last offset and bytes of each generation, the newest first.
Extents: TypeAlias = Sequence[tuple[int, int, int]]

MARKS_MAX: Final = 4096  # 100 bytes each; then every second one is forgotten
MARK_BYTES: Final = 64 << 10  # between two marks, at first
SAMPLE_ROWS: Final = 128  # whose size stands for all that the start finds
SAMPLE_MARKS: Final = 64


class EventSizes:
    """The bytes of the rows of events, as a curve over their numbers."""

    def __init__(self) -> None:
        # Number of an event, end of the log when it happened, bytes of all rows up to it.
        self._seqs: Final[list[int]] = [0]
        self._ends: Final[list[int]] = [0]
        self._totals: Final[list[int]] = [0]
        self._mark_bytes: int = MARK_BYTES
        self._seq: int = 0
        self._end: int = 0
        self._total: int = 0

    def open(self, store: Store, last: int, end: int) -> None:
        """Estimate what the store has, up to the event `last`; the log ends at `end`."""
        damages: list[DamagedRows] = []  # whoever reads the rows tells of them
        rows = scan_readable(store, FEED, b"", None, damages, count=SAMPLE_ROWS + 1)
        self._place(last, end, 0)
        if not rows:
            return
        before = split_feed_key(rows[0][0]) - 1
        is_all = len(rows) <= SAMPLE_ROWS
        sampled = rows if is_all else rows[:-1]
        upto = last if is_all else split_feed_key(rows[-1][0]) - 1
        size = sum([len(key) + len(value) for key, value in sampled])
        each = size / max(1, upto - before)
        self._place(before, 0, 0)
        for part in range(1, SAMPLE_MARKS):
            seq = before + (last - before) * part // SAMPLE_MARKS
            found = last_event(store, seq)
            if found is not None and found[1] > self._seqs[-1]:
                self._mark(found[1], found[0], int(each * (found[1] - before)))
        self._seq, self._end, self._total = last, end, int(each * (last - before))

    def add(self, seq: int, end: int, size: int) -> None:
        """Note a row whose last event is `seq`; the log ends at `end`."""
        self._seq, self._end = seq, end
        self._total += size
        if self._total - self._totals[-1] >= self._mark_bytes:
            self._mark(seq, end, self._total)

    def after(self, seq: int) -> int:
        """Return the bytes of the rows of events after `seq`."""
        if seq >= self._seq:
            return 0
        index = bisect_right(self._seqs, seq) - 1
        if index < 0:
            return self._total - self._totals[0]
        low, total = self._seqs[index], self._totals[index]
        is_last = index + 1 == len(self._seqs)
        high = self._seq if is_last else self._seqs[index + 1]
        next_total = self._total if is_last else self._totals[index + 1]
        return self._total - total - (next_total - total) * (seq - low) // (high - low)

    def upto(self, end: int) -> int:
        """Return the number of an event before which none happened behind `end` in the log."""
        if self._end <= end:
            return self._seq
        index = bisect_right(self._ends, end) - 1
        return self._seqs[index] if index >= 0 else 0

    def _place(self, seq: int, end: int, total: int) -> None:
        """Begin the curve here."""
        for each, value in ((self._seqs, seq), (self._ends, end), (self._totals, total)):
            each[:] = [value]
        self._seq, self._end, self._total = seq, end, total

    def _mark(self, seq: int, end: int, total: int) -> None:
        if len(self._seqs) >= MARKS_MAX:
            for each in (self._seqs, self._ends, self._totals):
                del each[1::2]
            self._mark_bytes *= 2
        self._seqs.append(seq)
        self._ends.append(end)
        self._totals.append(total)


def last_event(store: Store, seq: int) -> Cursor | None:
    """Return (end of the log, number) of the last event of the row that has `seq`.

    None if there is none, or it cannot be read.
    """
    try:
        row = store.last(FEED, b"", feed_key(seq + 1))
        event = None if row is None else decode_row(*row)[-1]
    except (DamagedRows, CorruptRecord):
        return None
    return None if event is None else (event.end, event.seq)


class Backlogs:
    """Measures backlogs, and finds where to cut them."""

    def __init__(self, store: Store, sizes: EventSizes, extents: Callable[[], Extents]) -> None:
        self._store: Final = store
        self._sizes: Final = sizes
        self._extents: Final = extents

    def size(self, cursor: Cursor, *, has_messages: bool, has_events: bool) -> tuple[int, int]:
        """Return the bytes of the log and of the events behind a cursor."""
        log = log_bytes(self._extents(), cursor[0]) if has_messages else 0
        return log, self._sizes.after(cursor[1]) if has_events else 0

    def cut(
        self, cursor: Cursor, upto: Cursor, left: int, *, has_messages: bool, has_events: bool
    ) -> Cursor:
        """Return the first cursor behind which at most about `left` bytes wait.

        Between `cursor` and `upto`. Of events and messages those go that happened first.
        """
        extents = self._extents() if has_messages else ()
        sizes = self._sizes

        def waiting(position: int, seq: int) -> int:
            return log_bytes(extents, position) + (sizes.after(seq) if has_events else 0)

        low, high = cursor[0], upto[0]
        while low < high:
            middle = (low + high) // 2
            if waiting(middle, max(cursor[1], sizes.upto(middle))) <= left:
                high = middle
            else:
                low = middle + 1
        position = low
        first = max(cursor[1], sizes.upto(position - 1))
        last = min(max(first, sizes.upto(position)), upto[1])
        seqs = range(min(first, last), last)
        seq = seqs.start + bisect_left(seqs, -left, key=lambda each: -waiting(position, each))
        if seq <= cursor[1]:
            return position, cursor[1]
        found = last_event(self._store, seq)  # the whole row
        if found is not None:
            position, seq = max(position, found[0]), max(seq, found[1])
        return min(position, upto[0]), min(seq, upto[1])


def log_bytes(extents: Extents, position: int) -> int:
    """Return the bytes of the log behind an offset."""
    total = 0
    for first, last, size in extents:
        if last <= position:
            break
        if first > position:
            total += size
        else:
            total += size * (last - position) // (last - first + 1)
    return total
