"""The file names of the exported history: naming segments and listing them.

    DIRECTORY/date=2026-11-21/hour=21/NODE-00000007-0000000000000001-0000000000500000.parquet

Date and hour (UTC) are those of the first event. The names alone show what is exported already, so
this module reads no file and needs no pyarrow (`storage.history.segments` does). Other file names
are ignored.
"""

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

SUFFIX: Final = ".parquet"
BOOT_DIGITS: Final = 8
SEQ_DIGITS: Final = 16
NAME: Final = re.compile(r"([A-Za-z0-9_.]+)-(\d{8})-(\d{16})-(\d{16})\.parquet")
DATE: Final = re.compile(r"date=(\d{4}-\d{2}-\d{2})")
HOUR: Final = re.compile(r"hour=([01]\d|2[0-3])")


class SegmentName:
    """The parts of a segment's name: events `first_seq` to `last_seq` of a boot of a node."""

    __slots__ = ("boot", "first_seq", "last_seq", "node", "path")

    def __init__(self, path: Path, node: str, boot: int, first_seq: int, last_seq: int) -> None:
        self.path: Path = path
        self.node: str = node
        self.boot: int = boot
        self.first_seq: int = first_seq
        self.last_seq: int = last_seq


def segment_path(
    directory: Path, node: str, boot: int, first_seq: int, last_seq: int, *, first_ms: int
) -> Path:
    """Return the path of a segment whose first event was at `first_ms` (ms since 1970)."""
    moment = datetime.fromtimestamp(first_ms // 1000, UTC)
    name = f"{node}-{boot:0{BOOT_DIGITS}}-{first_seq:0{SEQ_DIGITS}}-{last_seq:0{SEQ_DIGITS}}"
    return directory / f"date={moment:%Y-%m-%d}" / f"hour={moment:%H}" / (name + SUFFIX)


def parse_name(path: Path) -> SegmentName | None:
    """Return the parts of a file's name, None if it is not a segment's."""
    found = NAME.fullmatch(path.name)
    if found is None:
        return None
    node, boot, first_seq, last_seq = found.groups()
    return SegmentName(path, node, int(boot), int(first_seq), int(last_seq))


def hours(directory: Path, *, newest_first: bool = False) -> Iterator[Path]:
    """Yield the folders of hours in order of time; nothing if the directory does not exist."""
    for date in _folders(directory, DATE, newest_first):
        if _is_day(date.name.removeprefix("date=")):
            yield from _folders(date, HOUR, newest_first)


def names_in(hour: Path, node: str | None = None) -> list[SegmentName]:
    """Return the segments in the folder of an hour, ordered by node, boot and first event.

    With `node`, only those of that node.
    """
    found = [parse_name(hour / name) for name in _listed(hour)]
    segments = [each for each in found if each is not None and node in (None, each.node)]
    return sorted(segments, key=lambda each: (each.node, each.boot, each.first_seq))


def segment_names(directory: Path, node: str | None = None) -> Iterator[SegmentName]:
    """Yield every segment, or those of `node`, by hour and within it as `names_in`."""
    for hour in hours(directory):
        yield from names_in(hour, node)


def newest_boot(directory: Path, node: str) -> int:
    """Return the last boot of `node` that has a segment, 0 if none has."""
    for hour in hours(directory, newest_first=True):
        segments = names_in(hour, node)
        if segments:
            return max(each.boot for each in segments)
    return 0


def last_exported(directory: Path, node: str, boot: int) -> int:
    """Return the seq of the last event of a boot that is in a segment, 0 if there is none.

    Broker time never goes back, so it is in the newest folder with segments of the boot.
    """
    for hour in hours(directory, newest_first=True):
        segments = names_in(hour, node)
        of_boot = [each.last_seq for each in segments if each.boot == boot]
        if of_boot:
            return max(of_boot)
        if any(each.boot < boot for each in segments):
            return 0
    return 0


def _is_day(text: str) -> bool:
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _folders(parent: Path, pattern: re.Pattern[str], newest_first: bool) -> list[Path]:
    names = [name for name in _listed(parent) if pattern.fullmatch(name)]
    return [parent / name for name in sorted(names, reverse=newest_first)]


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
