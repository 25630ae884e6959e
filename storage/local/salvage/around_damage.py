"""Reads every row of a family that can be read, and notes where rows are missing.

A scan ends at a damaged block, so the first key behind it is searched for, more thoroughly than a
broker does. Must never end before the last row that can be read, and must always end. Read next:
`storage.local.salvage.source`, `storage.local.key_search`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, Protocol

from storage.api import Row
from storage.errors import DamagedRows
from storage.local.key_search import Seek, can_seek, first_behind, first_between

PAGE_MAX: Final = 512  # rows of a page
PAGE_BYTES: Final = 1 << 20  # about what a page holds; one row may be larger
# Bytes by which the key of a row may differ from the last one read, to be told from its neighbours.
KEY_MORE: Final = 24
# Bytes of a key that a search tells apart, and so a limit of its steps: a key may have 64 KiB.
SEARCHED_BYTES: Final = 256
DIGITS: Final = b"0123456789"


class Damaged(Protocol):
    """A store in which some rows cannot be read: `storage.local.rocks.RocksStore`."""

    def families(self) -> list[str]:
        """Return the names of all column families."""
        ...

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None. Raises `DamagedRows`."""
        ...

    def scan_blindly(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        """Return at most `count` rows, in order. Raises `DamagedRows` if one cannot be read."""
        ...


class Gap(NamedTuple):
    """A stretch of keys in which rows cannot be read."""

    family: str
    after: bytes  # the last key that was read before it, b"" = none
    before: bytes | None  # the first key that was read behind it, None = none
    problem: str


class RowsAround:
    """The rows of one family, read once from its beginning to its end."""

    def __init__(
        self, store: Damaged, family: str, second: Callable[[], Damaged | None] | None = None
    ) -> None:
        """Prepare to read.

        `second` returns a store without the damaged tables, None if there is none: it knows keys
        of rows in the stretch of a damaged block that are not in that block.
        """
        self._store: Final = store
        self._family: Final = family
        self._second: Final = second
        self.gaps: Final[list[Gap]] = []

    def rows(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[Row]:
        """Yield every row with start <= key < stop that can be read, page by page."""
        after, count = b"", 8
        while True:
            try:
                rows = self._store.scan_blindly(self._family, start, stop, count=count)
            except DamagedRows as error:
                if count > 1:
                    count //= 2  # up to the damage
                    continue
                following = self._behind(start, stop)
                gap = Gap(self._family, after, following, " ".join(str(error).split()))
                self.gaps.append(gap)
                yield from self._inside(start, stop if following is None else following)
                if following is None:
                    return
                start, count = following, 8
                continue
            yield from rows
            if len(rows) < count:
                return
            after = rows[-1][0]
            start = after + b"\0"
            mean = sum([len(key) + len(value) for key, value in rows]) // len(rows) + 1
            count = max(1, min(PAGE_MAX, 4 * count, PAGE_BYTES // mean))

    def _inside(self, start: bytes, stop: bytes | None) -> Iterator[Row]:
        """Yield the rows of a gap that can be read singly: a newer table has them."""
        second = None if self._second is None else self._second()
        if second is None or self._family not in second.families():
            return
        for key, _ in RowsAround(second, self._family).rows(start, stop):
            try:
                value = self._store.get(self._family, key)
            except DamagedRows:
                continue  # its newest version is in the damaged block
            if value is not None:
                yield key, value

    def _behind(self, start: bytes, stop: bytes | None) -> bytes | None:
        """Return the first key behind the damage at `start` whose row can be read, or None."""
        size = min(len(start) + KEY_MORE, SEARCHED_BYTES)
        seek = partial(self._seek, stop)
        first = first_behind(seek, start, stop, size)
        if first is None:
            return None
        low = int.from_bytes(start[:size].ljust(size, b"\0"))
        while (found := self._near(seek, start, first)) is not None:
            first = first_between(seek, low, int.from_bytes(found), size)
        row = seek(first)
        return None if row is None else row[0]

    def _near(self, seek: Seek, start: bytes, first: bytes) -> bytes | None:
        """Return a place between `start` and `first` that can be read, if one is found.

        `first` may be the end of another damaged stretch. Names are not spread evenly over all
        bytes, so names like the last one are tried, with other letters.
        """
        if not start.isascii():
            return None
        size = len(first)
        letters = [bytes((each,)) for each in sorted({*start, *DIGITS} - {0})]
        for kept in range(min(len(start), size) - 1, -1, -1):
            for one in letters:
                for two in (b"", *letters):
                    place = (start[:kept] + one + two)[:size].ljust(size, b"\0")
                    if start < place < first and can_seek(seek, place):
                        return place
        return None

    def _seek(self, stop: bytes | None, key: bytes) -> Row | None:
        rows = self._store.scan_blindly(self._family, key, stop, count=1)
        return rows[0] if rows else None
