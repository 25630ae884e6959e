"""Writes rows of the history as Parquet, finds the newest segment, and removes old ones.

Imports pyarrow: only the process that writes the segments and commands may import it, never a
broker. Read next: `broker.history.segment_process`, `storage.history.segments`.
"""

from pathlib import Path
from typing import Final

from storage.history import chain
from storage.history.chain import Place
from storage.history.columns import expand_table
from storage.history.packed_rows import Row
from storage.history.segment_names import last_exported
from storage.history.segments import SegmentError, drop_older, newest_piece, write_segment
from storage.local import failpoint
from storage.time import machine_clocks

RETENTION_PERIOD_MS: Final = 3_600_000

__all__ = ["SegmentError", "SegmentWriter"]


class SegmentWriter:
    """Segments of one node in one directory."""

    def __init__(
        self,
        directory: Path,
        node: str,
        *,
        keep_days: int,
        is_copy: bool = False,
        before: Place = (0, 0),
        head: str = chain.NONE,
    ) -> None:
        """`keep_days` 0 keeps everything; `is_copy` marks the segments as made by a copy.

        `before` is where a segment of the same node ends that may be on another machine, `head` its
        head.
        """
        self._before: Final = before, head
        self._end: Place | None = None  # of the newest segment; None = not looked yet
        self._head: str = chain.NONE  # of that one
        self._directory: Final = directory
        self._node: Final = node
        self._keep_days: Final = keep_days
        self._is_copy: Final = is_copy
        self._dropped_ms = 0

    def write(self, boot: int, rows: list[Row]) -> str:
        """Write one segment, durable on return; return the head of the chain.

        Raises `SegmentError`.
        """
        if failpoint.hook is not None:
            failpoint.hook(failpoint.HISTORY_BEFORE_SEGMENT)
        end = self._look()
        table = expand_table(rows, self._node, boot)
        segment, head = write_segment(
            self._directory, table, self._node, boot, before=self._head, is_copy=self._is_copy
        )
        # Rows that a restored backup brought back are a branch: the retention may soon remove it.
        if (boot, segment.last_seq) > end:
            self._end, self._head = (boot, segment.last_seq), head
        return head

    def end(self) -> tuple[int, int, str] | None:
        """Return boot, last event and head of the newest segment, None = there is none.

        Raises `SegmentError`.
        """
        end = self._look()
        return (*end, self._head) if end > (0, 0) else None

    def _look(self) -> Place:
        """Find the newest segment at the first call; return where it ends."""
        if self._end is None:
            newest = newest_piece(self._directory, self._node)
            self._end, self._head = self._before
            if newest is not None and newest.place >= self._end:
                self._end, self._head = newest.place, newest.head
        return self._end

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
