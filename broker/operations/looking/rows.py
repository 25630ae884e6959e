"""Rows of a store for an operator who looks: page by page, past what is damaged.

What cannot be read is noted and never hides the rows behind it. Must never write. Read next:
`broker.operations.looking.topic_readers`.
"""

from collections.abc import Iterator
from typing import Final

from storage.api import Row, Store
from storage.errors import DamagedRows
from storage.history.words import printable
from storage.tables.tables import CONNECTIONS, SCAN_PAGE, scan_readable

# Rows of the first page, and of one after large rows: a retained message may have 256 MiB.
PAGE_FIRST: Final = 4
PAGE_BYTES_MAX: Final = 1 << 20  # of a page that may be followed by a larger one
PROBLEMS_MAX: Final = 100  # lines about damage that are kept; further ones are counted


class Problems:
    """What could not be read, a line each."""

    __slots__ = ("_lines", "count")

    def __init__(self) -> None:
        self._lines: Final[list[str]] = []
        self.count: int = 0

    def note(self, what: str, problem: Exception | str) -> None:
        """Note that `what` cannot be read; control characters in it are escaped."""
        self.count += 1
        if self.count <= PROBLEMS_MAX:
            self._lines.append(printable(f"{what}: {problem}"))

    def lines(self) -> Iterator[str]:
        """Yield what was noted, and how much more there was."""
        yield from self._lines
        if self.count > PROBLEMS_MAX:
            yield f"and {self.count - PROBLEMS_MAX} more that cannot be read"


def readable_rows(
    store: Store, family: str, start: bytes, stop: bytes | None, problems: Problems
) -> Iterator[Row]:
    """Yield the rows with start <= key < stop that can be read; note the others in `problems`.

    A family that the store does not have yet has no rows. Raises the store's other errors.
    """
    if family not in store.families():
        return
    page = PAGE_FIRST
    while True:
        damages: list[DamagedRows] = []
        rows = scan_readable(store, family, start, stop, damages, count=page)
        for damage in damages:
            problems.note(f"rows of {family}", damage)
        yield from rows
        if len(rows) < page:
            return
        start = rows[-1][0] + b"\0"
        is_large = sum(len(value) for _, value in rows) > PAGE_BYTES_MAX // 4
        page = PAGE_FIRST if is_large else min(4 * page, SCAN_PAGE)


def is_connected(store: Store, client_id: str, problems: Problems) -> bool:
    """Return whether a client is connected, or was when the broker was last alive.

    If that cannot be read it is noted, and the answer is no.
    """
    try:
        return store.get(CONNECTIONS, client_id.encode()) is not None
    except DamagedRows as problem:
        problems.note(f"connection of {client_id!r}", problem)
        return False
