"""The process that writes segments, as the broker runs it."""

import os
from pathlib import Path

import pytest

from broker.history.location import Place
from broker.history.segment_process_link import SegmenterFailed, SegmenterLink
from storage.history import segments
from storage.history.segment_names import last_exported, segment_names
from storage.tables.export_row import ExportProgress
from tests.broker.history.test_segment_process import packed

NOTHING = ExportProgress()

pytestmark = pytest.mark.full  # starts processes


def link(tmp_path: Path, before: ExportProgress = NOTHING) -> SegmenterLink:
    place = Place(tmp_path / "history", "edge", tmp_path / "lock")
    return SegmenterLink(place, seal_events=1000, keep_days=0, before=before)


def test_rows_come_back_as_a_durable_segment(tmp_path: Path) -> None:
    process = link(tmp_path)
    process.send([(1, 1, packed(1, 3)), (1, 4, packed(4))])
    sealed = process.seal()
    assert (sealed.segments, sealed.events, sealed.problem) == (1, 4, "")
    process.send([(1, 5, packed(5)), (1, 6, b"damaged")])
    sealed = process.seal()
    assert (sealed.segments, sealed.events) == (1, 1)
    assert len(sealed.damaged) == 1
    process.end()
    assert segments.verify(tmp_path / "history", thorough=True) == []
    assert last_exported(tmp_path / "history", "edge", 1) == 5


def test_what_a_library_says_on_stderr_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Does a warning of an allocator or a loader stop the export for ever?"""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    process = link(tmp_path)
    process.send([(1, 1, packed(1, 3))])
    assert process.seal().events == 3
    process.end()


def test_a_second_process_waits_for_the_first_and_writes_nothing_twice(tmp_path: Path) -> None:
    first = link(tmp_path)
    first.send([(1, 1, packed(1))])
    first.seal()
    second = link(tmp_path)
    second.send([(1, 1, packed(1)), (1, 2, packed(2))])
    first.send([(1, 2, packed(2))])
    first.seal()
    first.end()
    sealed = second.seal()
    assert (sealed.segments, sealed.events) == (0, 0)
    second.end()
    assert len(list(segment_names(tmp_path / "history"))) == 2
    third = link(tmp_path)
    third.send([(2, 1, packed(1))])
    sealed = third.seal()
    third.end()
    newest = segments.newest_piece(tmp_path / "history", "edge")
    assert newest is not None
    assert sealed.chain == (2, 1, newest.head)
    found = segments.survey(tmp_path / "history", thorough=True)
    assert (found.problems, found.chained.chained, len(found.chained.begins)) == ([], 3, 1)


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "history").touch()
    process = link(tmp_path)
    process.send([(1, 1, packed(1))])
    with pytest.raises(SegmenterFailed, match=r"^history segment [^\n]*/history: not a directory$"):
        process.seal()


def test_a_process_that_is_killed_says_so(tmp_path: Path) -> None:
    process = link(tmp_path)
    process.send([(1, 1, packed(1))])
    process.seal()
    process.kill()
    with pytest.raises(SegmenterFailed, match="signal 9"):
        process.seal()
    process.end()


def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('No module named pyarrow')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = link(tmp_path)
    with pytest.raises(SegmenterFailed, match=r"pyarrow; pip install '\.\[history\]'"):
        process.seal()


def test_a_signal_for_the_broker_does_not_end_it(tmp_path: Path) -> None:
    process = link(tmp_path)
    process.send([(1, 1, packed(1))])
    process.seal()
    os.kill(process.pid, 15)
    os.kill(process.pid, 2)
    process.send([(1, 2, packed(2))])
    assert process.seal().events == 1
    assert os.getsid(process.pid) != os.getsid(0)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    process.end()
