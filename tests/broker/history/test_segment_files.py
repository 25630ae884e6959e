"""Rows as Parquet, and what is removed in time."""

from pathlib import Path

import pytest

from broker.history.segment_files import SegmentError, SegmentWriter
from storage.history import segments
from storage.history.segment_names import segment_names, segment_path
from tests.storage.history.history_cases import everything_else, run_of_messages

DAY_MS = 86_400_000


def test_rows_are_one_segment_and_found_again(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "edge", keep_days=30)
    first = run_of_messages().row()
    writer.write(7, [first, everything_else().row(first.first_seq + first.events)])
    (segment,) = segment_names(tmp_path, "edge")
    assert (segment.boot, segment.first_seq) == (7, 1)
    assert writer.newest(7) == segment.last_seq
    assert writer.newest(8) == 0
    assert segments.verify(tmp_path, thorough=True) == []


def test_old_segments_go_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_795_294_800_000
    monkeypatch.setattr("storage.time.machine_clocks.wall_ms", lambda: now_ms)
    paths = [
        segment_path(tmp_path, "edge", 1, seq, seq, first_ms=now_ms - days * DAY_MS)
        for seq, days in ((1, 40), (2, 3), (3, 1))
    ]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.touch()
    assert SegmentWriter(tmp_path, "edge", keep_days=0).drop_old() == ""
    assert [path.exists() for path in paths] == [True, True, True]
    writer = SegmentWriter(tmp_path, "edge", keep_days=30)
    assert writer.drop_old() == ""
    assert [path.exists() for path in paths] == [False, True, True]
    now_ms += 28 * DAY_MS
    assert writer.drop_old() == ""
    assert [path.exists() for path in paths] == [False, False, True]
    now_ms += 1000 * DAY_MS
    writer._dropped_ms = now_ms - 3_599_999
    assert writer.drop_old() == ""
    assert paths[2].exists()


def test_what_cannot_be_removed_is_said_and_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "date=2020-01-01").mkdir()
    (tmp_path / "date=2020-01-01" / "hour=01").mkdir()
    path = segment_path(tmp_path, "edge", 1, 1, 1, first_ms=1_577_840_400_000)
    path.mkdir()  # no file
    problem = SegmentWriter(tmp_path, "edge", keep_days=1).drop_old()
    assert problem.startswith("history directory ")


def test_a_directory_that_is_gone_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "history").touch()
    with pytest.raises(SegmentError, match=r"history segment .*history/date="):
        SegmentWriter(tmp_path / "history", "edge", keep_days=0).write(1, [run_of_messages().row()])
