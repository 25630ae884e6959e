"""The files of the exported history: what a segment is called, and which ones there are.

    DIRECTORY/date=2026-11-21/hour=21/NODE-00000007-0000000000000001-0000000000500000.parquet

Date and hour (UTC) are those of the first event. The name alone says what is exported already, so
nothing here needs more than file names; pyarrow is for `storage.history.segments`. Names that are
none of ours are not looked at.
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
    """What the name of a segment says: events `first_seq` to `last_seq` of a boot of a node."""

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
    """Return where a segment belongs whose first event was at `first_ms` (ms since 1970)."""
    moment = datetime.fromtimestamp(first_ms // 1000, UTC)
    name = f"{node}-{boot:0{BOOT_DIGITS}}-{first_seq:0{SEQ_DIGITS}}-{last_seq:0{SEQ_DIGITS}}"
    return directory / f"date={moment:%Y-%m-%d}" / f"hour={moment:%H}" / (name + SUFFIX)


def parse_name(path: Path) -> SegmentName | None:
    """Return what the name of a file says, None if it is no segment's."""
    found = NAME.fullmatch(path.name)
    if found is None:
        return None
    node, boot, first_seq, last_seq = found.groups()
    return SegmentName(path, node, int(boot), int(first_seq), int(last_seq))


def hours(directory: Path, *, newest_first: bool = False) -> Iterator[Path]:
    """Yield the folders of hours in order of time; nothing for a directory that is not there."""
    for date in _folders(directory, DATE, newest_first):
        if _is_day(date.name.removeprefix("date=")):
            yield from _folders(date, HOUR, newest_first)


def names_in(hour: Path, node: str | None = None) -> list[SegmentName]:
    """Return the segments (of one node) in the folder of an hour, in the order of their events."""
    found = [parse_name(hour / name) for name in _listed(hour)]
    segments = [each for each in found if each is not None and node in (None, each.node)]
    return sorted(segments, key=lambda each: (each.node, each.boot, each.first_seq))


def segment_names(directory: Path, node: str | None = None) -> Iterator[SegmentName]:
    """Yield every segment (of one node) by its hour, and by boot and events within it."""
    for hour in hours(directory):
        yield from names_in(hour, node)


def newest_boot(directory: Path, node: str) -> int:
    """Return the last boot of `node` that has a segment, 0 = none has."""
    for hour in hours(directory, newest_first=True):
        segments = names_in(hour, node)
        if segments:
            return max(each.boot for each in segments)
    return 0


def last_exported(directory: Path, node: str, boot: int) -> int:
    """Return the last event of a boot that is in a segment, 0 = none is.

    Broker time never goes back, so the newest folder with segments of the boot has it.
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
