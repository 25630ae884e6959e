"""What a segment's name says is all that is needed to know what was exported."""

from pathlib import Path

import pytest

from storage.history.segment_names import (
    last_exported,
    newest_boot,
    parse_name,
    segment_names,
    segment_path,
)

HOUR_MS = 3_600_000
START_MS = 1_795_294_800_000  # 2026-11-21 21:00 UTC


def make(
    directory: Path, boot: int, first: int, last: int, *, node: str = "edge", hour: int = 0
) -> Path:
    """Put an empty file where a segment would be."""
    path = segment_path(
        directory, node, boot, first, last, first_ms=START_MS + hour * HOUR_MS + 59_999
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_segment_is_called_by_its_node_boot_and_events(tmp_path: Path) -> None:
    path = make(tmp_path, 7, 1, 500_000)
    assert path.relative_to(tmp_path).as_posix() == (
        "date=2026-11-21/hour=21/edge-00000007-0000000000000001-0000000000500000.parquet"
    )
    name = parse_name(path)
    assert name is not None
    assert (name.node, name.boot, name.first_seq, name.last_seq) == ("edge", 7, 1, 500_000)


@pytest.mark.parametrize(
    "name",
    [
        "edge-7-1-2.parquet",
        ".edge-00000007-0000000000000001-0000000000000002.parquet.tmp",
        "edge-00000007-0000000000000001-0000000000000002.parquet.tmp",
        "a-b-00000007-0000000000000001-0000000000000002.parquet",
        "_SUCCESS",
    ],
)
def test_other_files_are_no_segments(name: str) -> None:
    assert parse_name(Path(name)) is None


def test_segments_are_listed_in_order_of_time_and_others_are_not_looked_at(tmp_path: Path) -> None:
    second = make(tmp_path, 2, 11, 20)
    first = make(tmp_path, 2, 1, 10)
    later = make(tmp_path, 1, 1, 5, hour=5)  # another day
    other = make(tmp_path, 1, 1, 5, node="other")
    (second.parent / "notes.txt").touch()
    (tmp_path / "date=tomorrow").mkdir()
    (tmp_path / "date=2026-11-20").touch()
    assert [each.path for each in segment_names(tmp_path, "edge")] == [first, second, later]
    assert [each.path for each in segment_names(tmp_path)] == [first, second, other, later]


def test_the_newest_segment_of_a_boot_tells_what_of_it_is_exported(tmp_path: Path) -> None:
    assert last_exported(tmp_path / "absent", "edge", 1) == 0
    make(tmp_path, 1, 1, 10)
    make(tmp_path, 1, 11, 30, hour=1)
    make(tmp_path, 2, 1, 4, hour=1)
    make(tmp_path, 2, 5, 9, hour=2)
    make(tmp_path, 9, 1, 99, node="other", hour=3)
    assert last_exported(tmp_path, "edge", 1) == 30
    assert last_exported(tmp_path, "edge", 2) == 9
    assert last_exported(tmp_path, "edge", 3) == 0
    assert last_exported(tmp_path, "other", 9) == 99
    assert newest_boot(tmp_path, "edge") == 2
    assert newest_boot(tmp_path, "nobody") == 0
