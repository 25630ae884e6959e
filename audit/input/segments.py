"""The segments of a history that a run reads, and those that it cannot read.

The name of a segment says which rows it has. On a local disk its footer is compared with the name
before Spark sees it, because one torn file would end the whole run. Elsewhere the name is trusted,
and H1 finds missing rows.
"""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import SparkSession

from audit.files import is_local, list_files, local_path
from audit.input.events import gseq
from audit.input.gaps import HOLE, Gap
from storage.history.chain import Piece
from storage.history.segment_names import SegmentName
from storage.history.segments import check, examine

READERS: Final = 4  # threads; each has one column of one segment in memory

_NAME: Final = re.compile(
    r"(?:date=(?P<date>[\d-]{10})/hour=(?P<hour>\d\d)/)?"
    r"(?P<node>[^/]+)-(?P<boot>\d{8})-(?P<first>\d{16})-(?P<last>\d{16})\.parquet$"
)


@dataclass(frozen=True)
class Segment:
    """One file with the rows `first_seq`..`last_seq` of a boot."""

    path: str
    node: str
    boot: int
    first_seq: int
    last_seq: int
    hour: str  # "2026-01-02T03" (UTC) of its first row, "" if its folder has no hour

    @property
    def name(self) -> str:
        """Return the file's name, which is unique in a history."""
        return self.path.rpartition("/")[2]

    @property
    def key(self) -> str:
        """Return the key of the node and boot that its seqs belong to."""
        return f"{self.node}/{self.boot}"

    @property
    def on_disk(self) -> SegmentName:
        """Return it as a file of a local directory."""
        path = local_path(self.path)
        return SegmentName(path, self.node, self.boot, self.first_seq, self.last_seq)

    @property
    def gap(self) -> Gap:
        """Return the hole in the history if this segment is missing."""
        return Gap(
            self.node,
            gseq(self.boot, self.first_seq),
            gseq(self.boot, self.last_seq),
            f"unreadable segment {self.name}",
            HOLE,
            explained=False,
        )


def find(
    spark: SparkSession | None,
    directory: str,
    start: datetime | None = None,
    end: datetime | None = None,
) -> list[Segment]:
    """Return the segments below `directory` of the hours from `start` up to `end` (excluded).

    Other files are ignored. Times without a zone are UTC.
    """
    found = []
    first = f"{start:%Y-%m-%dT%H}" if start is not None else ""
    for path in list_files(spark, directory, ".parquet"):
        match = _NAME.search(path)
        if match is None:
            continue
        hour = f"{match['date']}T{match['hour']}" if match["date"] else ""
        if hour and (hour < first or (end is not None and not _begins_before(hour, end))):
            continue
        numbers = int(match["boot"]), int(match["first"]), int(match["last"])
        found.append(Segment(path, match["node"], *numbers, hour))
    return sorted(found, key=lambda s: (s.node, s.boot, s.first_seq, s.last_seq))


def rows(segments: Iterable[Segment]) -> int:
    """Return how many rows the segments have, as their names say."""
    return sum(segment.last_seq - segment.first_seq + 1 for segment in segments)


def readable(segments: list[Segment]) -> tuple[list[Segment], list[Segment]]:
    """Return (segments that can be read, segments that cannot or do not match their name)."""
    good: list[Segment] = []
    bad: list[Segment] = []
    for segment in segments:
        is_whole = not is_local(segment.path) or not check(segment.on_disk)
        (good if is_whole else bad).append(segment)
    return good, bad


def pieces(segments: Sequence[Segment]) -> list[Piece]:
    """Return what the segments on a local disk are in the chain, with the digests of their rows.

    Reads all of their rows; segments elsewhere are left out.
    """
    local = [segment.on_disk for segment in segments if is_local(segment.path)]
    with ThreadPoolExecutor(READERS) as pool:
        return [piece for _, piece in pool.map(lambda s: examine(s, thorough=True), local)]


def _begins_before(hour: str, end: datetime) -> bool:
    last = f"{end:%Y-%m-%dT%H}"
    inside = end.minute or end.second or end.microsecond
    return hour <= last if inside else hour < last
