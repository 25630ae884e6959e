"""Writes rows of the history as Parquet, looks for what is there, and removes what is too old.

Imports pyarrow: only the process that writes the segments and commands may import it, never a
broker. Read next: `broker.history.segment_process`, `storage.history.segments`.
"""

from pathlib import Path
from typing import Final

from storage.history.columns import expand_table
from storage.history.packed_rows import Row
from storage.history.segment_names import last_exported
from storage.history.segments import SegmentError, drop_older, write_segment
from storage.local import failpoint
from storage.time import machine_clocks

RETENTION_PERIOD_MS: Final = 3_600_000

__all__ = ["SegmentError", "SegmentWriter"]


class SegmentWriter:
    """Segments of one node in one directory."""

    def __init__(self, directory: Path, node: str, *, keep_days: int) -> None:
        """`keep_days` 0 keeps everything."""
        self._directory: Final = directory
        self._node: Final = node
        self._keep_days: Final = keep_days
        self._dropped_ms = 0

    def write(self, boot: int, rows: list[Row]) -> None:
        """Write one segment, durable on return. Raises `SegmentError`."""
        if failpoint.hook is not None:
            failpoint.hook(failpoint.HISTORY_BEFORE_SEGMENT)
        write_segment(self._directory, expand_table(rows, self._node, boot), self._node, boot)

    def newest(self, boot: int) -> int:
        """Return the last event of a boot that is in a segment, 0 = none is."""
        return last_exported(self._directory, self._node, boot)

    def drop_old(self) -> str:
        """Remove segments past their time, and what crashes left, once an hour.

        Returns why that could not be done, "" if it could: the export goes on all the same.
        """
        now_ms = machine_clocks.wall_ms()
        if now_ms - self._dropped_ms >= RETENTION_PERIOD_MS:
            self._dropped_ms = now_ms
            try:
                drop_older(self._directory, self._node, self._keep_days, now_ms)
            except SegmentError as problem:
                return str(problem)
        return ""
