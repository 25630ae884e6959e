"""The rows that were read for one store and not sent yet, and when they leave as a batch.

A batch leaves when it is full, or when nothing more is durable and its first row has waited for
others long enough. Holds values only; must never read or send. Read next:
`broker.backends.pump.pump`, which does both.
"""

from collections.abc import Sequence
from typing import Final

from broker.backends.rows import Cursor, Row, RowBatch
from session.feed.outlet import FeedPage
from storage.tables.feed_rows import GAP, FeedEvent, filled_for

BATCH_ROWS: Final = 500  # the most that may be configured
BATCH_BYTES: Final = 1 << 20
SLICE_ROWS: Final = 128  # read in one turn of the loop: 1 to 3 ms
# A cursor that passes over what others wanted is written this often: rows of events are kept until
# every store has passed them.
PASS_S: Final = 5.0


class Sent:
    """A batch that is not answered yet."""

    __slots__ = ("gaps", "oldest_ms", "upto")

    def __init__(self, upto: Cursor, rows: Sequence[Row]) -> None:
        self.upto: Final = upto
        self.oldest_ms: Final = made_ms(rows[0]) if rows else 0  # 0 = it has no rows
        self.gaps: Final = [
            row for row in rows if isinstance(row, FeedEvent) and row.kind == GAP
        ]  # told once they are confirmed


class RowBuffer:
    """Rows between two cursors: behind what was sent, up to what was read. Times are the loop's."""

    def __init__(self, batch_rows: int, linger_s: float) -> None:
        self._batch_rows: Final = batch_rows
        self._linger_s: Final = linger_s
        self._rows: list[Row] = []
        self._bytes: int = 0
        self._first_at: float = 0.0  # when the first of these was read
        self._sent: Cursor = (0, 0)
        self._sent_at: float = 0.0
        self.read: Cursor = (0, 0)
        self.is_dry = False  # has everything durable been read?

    def __bool__(self) -> bool:
        """Whether rows wait."""
        return bool(self._rows)

    def begin(self, cursor: Cursor) -> None:
        """Forget what was read: the rows after `cursor` are next."""
        self._rows = []
        self._bytes = 0
        self.read = self._sent = cursor
        self.is_dry = False

    @property
    def room(self) -> tuple[int, int]:
        """The rows and bytes of the next slice."""
        return min(SLICE_ROWS, self._batch_rows - len(self._rows)), BATCH_BYTES - self._bytes

    @property
    def oldest_ms(self) -> int:
        """When the first row was made, broker ms; 0 = there is none."""
        return made_ms(self._rows[0]) if self._rows else 0

    def is_full(self) -> bool:
        """Return whether the next batch has no room for another row."""
        return len(self._rows) >= self._batch_rows or self._bytes >= BATCH_BYTES

    def is_complete(self, now: float, *, is_idle: bool) -> bool:
        """Return whether a batch is to leave; `is_idle` = all batches are answered.

        A batch without rows tells the store of the cursor that was read.
        """
        if self.is_full():
            return True
        if self._rows:
            return self.is_dry and self.lingers_s(now) <= 0
        return now - self._sent_at >= PASS_S and self.read != self._sent and is_idle

    def lingers_s(self, now: float) -> float:
        """Return how long rows that are no full batch still wait for others."""
        return self._first_at + self._linger_s - now

    def add(self, page: FeedPage, now: float) -> None:
        """Add the rows of a page, which must be the one after what was read."""
        assert page.after == self.read, f"rows after {page.after}, expected {self.read}"
        if not self._rows:
            self._first_at = now
        self._rows += page.rows
        self._bytes += sum(map(_size, page.rows))
        self.read = page.upto

    def take(self, run: int, now: float) -> tuple[RowBatch, Sent]:
        """Return the next batch, which leaves now."""
        rows = self._rows
        batch = RowBatch(run, self._sent, self.read, rows)
        self._sent = self.read
        self._sent_at = now
        self._rows = []
        self._bytes = 0
        return batch, Sent(batch.upto, rows)


def made_ms(row: Row) -> int:
    """Return when a row was made, broker ms; 0 = it says nothing of how late the store is."""
    if isinstance(row, FeedEvent) and filled_for(row):
        return 0  # what was there before does not make the store late
    return row.at_ms if isinstance(row, FeedEvent) else row.accepted_at_ms


def _size(row: Row) -> int:
    if isinstance(row, FeedEvent):
        return len(row.client_id) + len(row.text) + len(row.body)
    return len(row.topic) + len(row.payload) + len(row.properties)
