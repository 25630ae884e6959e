"""Reads the history of a data directory: its segments, and the rows still in the database.

Only reads, so the broker may be running. The database is opened before the segments are listed: a
row that is deleted in between is then in one of the segments. Without
pyarrow the segments are left out, and `left_out` counts them. Read next: `broker.history.queries`.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from broker.history.location import Place
from storage.errors import DamagedRows
from storage.history.packed_rows import Row, expand, split_history_key, unpack
from storage.history.segment_names import SegmentName, hours, last_exported, names_in
from storage.local.rocks import RocksStore
from storage.tables.tables import HISTORY, scan_all, unseal

Event: TypeAlias = dict[str, object]
LAST_KEY: Final = b"\xff" * 13
TIMES: Final = ("ts", "at", "bin")


def can_read_segments() -> bool:
    """Return whether pyarrow is installed."""
    try:
        return importlib.util.find_spec("pyarrow") is not None
    except ImportError:
        return False


class History:
    """The history of one node, as it was when it was opened."""

    def __init__(self, database: Path, place: Place) -> None:
        """Open the database. Raises `StorageError`."""
        self.left_out: int = 0  # segments that could not be read for want of pyarrow
        self.damaged: list[str] = []  # what is wrong with segments and rows that are left out
        self._named: Final[set[str]] = set()  # what of the rows is in `damaged`
        self._place: Final = place
        self._store: Final = RocksStore(database, read_only=True)
        self._exported: dict[int, int] = {}
        self._can_read: Final = can_read_segments()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def rows(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (boot, first seq, value) of every row of the database, as it is.

        Rows in a block that cannot be read are left out and named in `damaged`.
        """
        for key, value in self._rows_before(None):
            found = self._split(key)
            if found is not None:
                yield *found, value

    def unexported(self) -> Iterator[tuple[int, Row]]:
        """Yield (boot, row) of what no segment has yet, in its order.

        Damaged rows are left out and named in `damaged`.
        """
        for key, value in self._rows_before(None):
            row = self._row(key, value)
            if row is not None:
                yield row

    def unexported_reversed(self) -> Iterator[tuple[int, Row]]:
        """Yield the same, the newest first."""
        stop = LAST_KEY
        while HISTORY in self._store.families():
            try:
                found = self._store.last(HISTORY, b"", stop)
            except DamagedRows:  # a search backwards does not come past it
                for key, value in reversed(list(self._rows_before(stop))):
                    row = self._row(key, value)
                    if row is not None:
                        yield row
                return
            if found is None:
                return
            stop = found[0]
            row = self._row(*found)
            if row is not None:
                yield row

    def sealed(self, *, newest_first: bool = False, since_hour: str = "") -> Iterator[SegmentName]:
        """Yield the segments, from a folder "date=.../hour=..." on."""
        for hour in hours(self._place.directory, newest_first=newest_first):
            if f"{hour.parent.name}/{hour.name}" < since_hour:
                continue
            names = names_in(hour, self._place.node)
            yield from reversed(names) if newest_first else names

    def events_of(self, segment: SegmentName, where: Any = None) -> list[Event]:
        """Return the events of a segment for which `where` (a filter of pyarrow's) holds.

        Times are microseconds since 1970. A segment that cannot be read gives none and is added
        to `damaged`. One that the retention has just removed gives none.
        """
        if not self._can_read:
            self.left_out += 1
            return []
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(segment.path, filters=where, partitioning=None)
            for name in TIMES:
                at = table.schema.get_field_index(name)
                table = table.set_column(at, name, table.column(name).cast(pa.int64()))
        except FileNotFoundError:
            return []
        except (OSError, pa.ArrowException, KeyError) as problem:
            said = str(problem).splitlines() or [type(problem).__name__]
            self.damaged.append(f"history segment {segment.path}: {said[0]}")
            return []
        events: list[Event] = table.to_pylist()
        return events

    def expand(self, boot: int, row: Row) -> Iterator[Event]:
        """Yield the events of a row."""
        return expand(row, self._place.node, boot)

    def _rows_before(self, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of the database that can be read, up to `stop`."""
        if HISTORY not in self._store.families():
            return
        damages: list[DamagedRows] = []
        yield from scan_all(self._store, HISTORY, b"", stop, damages)
        for damage in damages:
            self._note(str(damage))

    def _note(self, problem: str) -> None:
        """Name damage once, however often it is met."""
        if problem not in self._named:
            self._named.add(problem)
            self.damaged.append(problem)

    def _split(self, key: bytes) -> tuple[int, int] | None:
        """Return (boot, first seq) of a key, None if it is damaged."""
        try:
            return split_history_key(key)
        except ValueError as problem:
            self._note(str(problem))
            return None

    def _row(self, key: bytes, value: bytes) -> tuple[int, Row] | None:
        """Return (boot, row), None if a segment has it too or it is damaged."""
        found = self._split(key)
        if found is None:
            return None
        boot, first_seq = found
        if boot not in self._exported:
            self._exported[boot] = last_exported(self._place.directory, self._place.node, boot)
        if first_seq <= self._exported[boot]:
            return None
        try:
            return boot, unpack(unseal(value, "history row"))
        except (DamagedRows, ValueError) as problem:
            self._note(f"boot {boot}, from event {first_seq} on: {problem}")
            return None
