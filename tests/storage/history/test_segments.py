"""Is a segment whole and durable under its name, and is every disagreement noticed?"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.history import events, segments
from storage.history import packed_rows as rows
from storage.history.chain import Link, head_of
from storage.history.columns import ARROW_SCHEMA, expand_table
from storage.history.row_digest import digest_of
from storage.history.segment_names import segment_names
from storage.history.segments import (
    Segment,
    SegmentError,
    drop_older,
    newest_piece,
    read_footer,
    split_for_segments,
    survey,
    verify,
    write_segment,
)
from tests.stand_in import replace_in
from tests.storage.history.history_cases import NODE, NOW_MS, Tick, everything_else, run_of_messages
from tests.storage.log_cases import GOLDEN

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FOLDER = "date=2025-11-21/hour=07"  # of NOW_MS


def table_of(first_seq: int = 1, *, boot: int = 1, now_ms: int = NOW_MS, size: int = 3) -> pa.Table:
    """Return a table of `size` events of one tick."""
    tick = Tick()
    tick.record(events.MSG_PERSISTED, n=size)
    return expand_table([tick.row(first_seq, now_ms)], NODE, boot)


def write(directory: Path, first_seq: int = 1, **options: int) -> Segment:
    """Write a segment of three events, or as told."""
    table = table_of(first_seq, **options)
    return write_segment(directory, table, NODE, options.get("boot", 1))[0]


def rewrite(segment: Segment, meta: dict[str, str] | None = None, rows: int | None = None) -> None:
    """Write a segment again with other words in its footer, or fewer events."""
    table = pq.read_table(segment.path, partitioning=None)
    old = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    table = table.replace_schema_metadata(old | (meta or {}))
    pq.write_table(table.slice(0, rows), segment.path)


def facts(found: Iterable[Segment]) -> list[tuple[Path, str, int, int, int]]:
    """Return segments as something that compares."""
    return [(each.path, each.node, each.boot, each.first_seq, each.last_seq) for each in found]


def there(directory: Path) -> list[tuple[Path, str, int, int, int]]:
    """Return all segments of a directory."""
    return facts(segment_names(directory))


def tree(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


# Writing


def test_a_segment_lies_under_its_hour_and_is_named_after_its_events(tmp_path: Path) -> None:
    segment = write(tmp_path, 5, boot=3)
    name = f"{FOLDER}/{NODE}-00000003-0000000000000005-0000000000000007.parquet"
    assert tree(tmp_path) == [name]
    assert facts([segment]) == [(tmp_path / name, NODE, 3, 5, 7)] == there(tmp_path)


def test_a_segment_holds_what_was_written(tmp_path: Path) -> None:
    rows = [everything_else().row(1), run_of_messages().row(9)]
    table = expand_table(rows, NODE, 1)
    segment, _ = write_segment(tmp_path, table, NODE, 1)
    read = pq.read_table(segment.path, partitioning=None)
    assert read.schema.equals(ARROW_SCHEMA)
    assert read.to_pylist() == table.to_pylist()
    assert verify(tmp_path, thorough=True) == []


def test_the_footer_says_what_is_inside(tmp_path: Path) -> None:
    table = expand_table([run_of_messages().row(9)], NODE, 2)
    segment, head = write_segment(tmp_path, table, NODE, 2, before="the one before")
    counts = {
        "msg_accepted": 3,
        "msg_enqueued": 6,
        "msg_persisted": 3,
        "pub_acked": 3,
        "msg_delivered": 2,
    }
    footer = read_footer(segment.path)
    digest = digest_of(pq.read_table(segment.path, partitioning=None))
    link = Link(digest, "the one before", head_of(NODE, 2, 9, 25, digest, "the one before"))
    assert footer == segments.Footer(1, NODE, 2, 9, 25, 17, counts, link)
    assert head == link.head
    written = pq.read_metadata(segment.path).metadata
    ours = {k.decode(): v.decode() for k, v in written.items() if k.startswith(b"holdfast.")}
    assert json.loads(ours.pop("holdfast.counts")) == counts
    assert ours == {
        "holdfast.schema": "1",
        "holdfast.node": NODE,
        "holdfast.boot": "2",
        "holdfast.first_seq": "9",
        "holdfast.last_seq": "25",
        "holdfast.rows": "17",
        "holdfast.chain": "1",
        "holdfast.digest": link.digest,
        "holdfast.before": link.before,
        "holdfast.head": link.head,
    }


@pytest.mark.parametrize(
    ("golden", "head"),
    [
        ("segment-v1.parquet", ""),
        ("segment-v2.parquet", "c0befda8aa593020a9d7f894c4ada5d9751590d0ac9a25a63a8736f97b61689c"),
    ],
)
def test_segments_of_all_versions_are_read(tmp_path: Path, golden: str, head: str) -> None:
    """The first version has no chain."""
    path = tmp_path / FOLDER / f"{NODE}-00000001-0000000000000001-0000000000000025.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes((GOLDEN / golden).read_bytes())
    found = survey(tmp_path, thorough=True)
    assert (found.problems, found.segments, found.events) == ([], 1, 25)
    link = read_footer(path).link
    assert head == ("" if link is None else link.head)
    newest = newest_piece(tmp_path, NODE)
    assert newest is not None
    assert newest.head == (head or newest.implied) != ""


def test_many_long_names_are_written_once_each(tmp_path: Path) -> None:
    """Does Parquet write every name with every event when the names are more than 1 MiB?"""
    tick = Tick()
    for number in range(40):
        who = f"{number}".ljust(65_000, "x") + "\0"
        tick.record(events.MSG_PERSISTED, rows.HAS_MSG, who=who, n=10, words={4: 1})
    segment, _ = write_segment(tmp_path, expand_table([tick.row()], NODE, 1), NODE, 1)
    columns = pq.read_metadata(segment.path).row_group(0)
    sizes = {
        columns.column(at).path_in_schema: columns.column(at).total_uncompressed_size
        for at in range(columns.num_columns)
    }
    assert sizes["client_id"] < 41 * 65_100


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    segment = write(tmp_path)
    before = segment.path.read_bytes()
    assert facts([write(tmp_path)]) == facts([segment]) == there(tmp_path)
    assert segment.path.read_bytes() == before


def test_a_segment_is_synced_before_its_name_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))

    def record_replace(old: Path, new: Path) -> None:
        replace(old, new)
        steps.append((old.name, new.name))

    replace_in(monkeypatch, segments, "os", fsync=record_fsync, replace=record_replace)
    directory = tmp_path / "history"
    name = write(directory).path.name
    day, hour = FOLDER.split("/")
    assert steps == [
        ("sync", tmp_path.name),
        ("sync", "history"),
        ("sync", day),
        ("sync", f".{name}.unfinished"),
        (f".{name}.unfinished", name),
        ("sync", hour),
    ]


def test_a_disk_that_refuses_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".unfinished"):
            raise OSError(28, "No space left on device")

    replace_in(monkeypatch, segments, "os", fsync=refuse)
    with pytest.raises(SegmentError, match=r"^history segment .*parquet: No space left on device$"):
        write(tmp_path)
    assert tree(tmp_path) == []


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SegmentError, match=r"file: not a directory$"):
        write(tmp_path / "file" / "history")


def test_events_that_are_not_one_segment_are_refused(tmp_path: Path) -> None:
    table = table_of()
    hole = pa.concat_tables([table, table_of(5)])
    for wrong in (table.slice(0, 0), hole, table.select(["seq", "ts", "boot", "ev"])):
        with pytest.raises(AssertionError):
            write_segment(tmp_path, wrong, NODE, 1)
    for node in (".hidden", "_x", "a/b", "a b", "a-b"):
        with pytest.raises(AssertionError):
            write_segment(tmp_path, table, node, 1)


# Splitting


def test_a_table_is_cut_at_the_hour_at_holes_and_at_boots() -> None:
    next_hour_ms = NOW_MS - NOW_MS % HOUR_MS + HOUR_MS
    table = pa.concat_tables(
        [
            table_of(1, now_ms=next_hour_ms - 1),
            table_of(4, now_ms=next_hour_ms),
            table_of(7, now_ms=next_hour_ms),
            table_of(11, now_ms=next_hour_ms),
            table_of(14, boot=2, now_ms=next_hour_ms),
        ]
    )
    pieces = list(split_for_segments(table))
    assert [piece.column("seq").to_pylist() for piece in pieces] == [
        [1, 2, 3],
        [4, 5, 6, 7, 8, 9],
        [11, 12, 13],
        [14, 15, 16],
    ]


def test_a_table_is_cut_at_the_most_events_of_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "EVENTS_MAX", 4)
    pieces = split_for_segments(table_of(size=9))
    assert [piece.num_rows for piece in pieces] == [4, 4, 1]


def test_no_events_are_no_segment() -> None:
    assert list(split_for_segments(ARROW_SCHEMA.empty_table())) == []


# Verification


def test_sound_segments_have_no_problems(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 4, now_ms=NOW_MS + HOUR_MS)
    write(tmp_path, 1, boot=2)
    assert verify(tmp_path) == verify(tmp_path, thorough=True) == []


@pytest.mark.parametrize("kept", [0, 3, 100, 4_000, -1])
def test_a_torn_file_is_named(tmp_path: Path, kept: int) -> None:
    write(tmp_path, 1)
    segment = write(tmp_path, 4)
    segment.path.write_bytes(segment.path.read_bytes()[:kept])
    (problem,) = verify(tmp_path)
    assert problem.startswith(f"history segment {segment.path}: ")
    assert "\n" not in problem
    with pytest.raises(SegmentError):
        read_footer(segment.path)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("node", "other", "node is node7 by its name and other by its footer"),
        ("boot", "2", "boot is 1 by its name and 2 by its footer"),
        ("first_seq", "2", "first_seq is 1 by its name and 2 by its footer"),
        ("last_seq", "4", "last_seq is 3 by its name and 4 by its footer"),
        ("counts", '{"msg_acked": 2}', "3 rows, but 2 by the counts of its footer"),
        ("chain", "2", "chain 2, this version knows 1"),
        ("schema", "2", "schema 2, this version knows 1"),
        ("rows", "4", "3 rows, expected 4"),
        ("rows", "many", "invalid literal for int"),
        ("counts", "{", "Expecting property name"),
        ("counts", "[3]", r"counts [3]"),
        ("counts", '{"msg_acked": "3"}', "counts {'msg_acked': '3'}"),
    ],
)
def test_name_footer_and_events_have_to_agree(
    tmp_path: Path, key: str, value: str, problem: str
) -> None:
    segment = write(tmp_path)
    rewrite(segment, {f"holdfast.{key}": value})
    problems = verify(tmp_path)
    assert any(problem in found and str(segment.path) in found for found in problems), problems


def test_a_missing_event_at_the_end_of_a_file_is_noticed(tmp_path: Path) -> None:
    rewrite(write(tmp_path), rows=2)
    (problem,) = verify(tmp_path)
    assert problem.endswith("2 rows, expected 3")


def test_a_parquet_file_of_somebody_else_is_noticed(tmp_path: Path) -> None:
    segment = write(tmp_path)
    pq.write_table(pa.table({"seq": [1, 2, 3]}), segment.path)
    (problem,) = verify(tmp_path)
    assert problem.endswith("no 'holdfast.counts' in its footer")
    with pytest.raises(SegmentError, match="no 'holdfast"):
        read_footer(segment.path)


def test_a_file_that_readers_would_take_for_a_segment_is_noticed(tmp_path: Path) -> None:
    folder = write(tmp_path).path.parent
    for name in ("part-0.parquet", "_SUCCESS", ".hidden"):
        (folder / name).write_bytes(b"")
    assert verify(tmp_path) == [f"{folder}/part-0.parquet: not a name of a segment"]


def test_other_events_than_the_footer_says_are_noticed_by_reading_them(tmp_path: Path) -> None:
    segment = write(tmp_path)
    old = pq.read_schema(segment.path).metadata
    other = expand_table([everything_else().row()], NODE, 1).slice(1, 3)
    pq.write_table(other.replace_schema_metadata(old), segment.path)
    assert verify(tmp_path) == []
    assert verify(tmp_path, thorough=True) == [
        f"{segment.path}: its events are not those of its footer",
        f"{segment.path}: its events are not as many of each kind as its footer says",
        f"{NODE} boot 1, from event 1 on: its rows were changed: {segment.path.name}",
    ]


def test_damaged_events_are_noticed_by_reading_them(tmp_path: Path) -> None:
    segment, _ = write_segment(tmp_path, table_of(size=1000), NODE, 1)
    whole = segment.path.read_bytes()
    row_group: Any = pq.read_metadata(segment.path).row_group(0)
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        start = column.dictionary_page_offset or column.data_page_offset
        at = start + column.total_compressed_size - 1
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        segment.path.write_bytes(bytes(damaged))
        assert verify(tmp_path) == []
        (problem,) = verify(tmp_path, thorough=True)
        assert str(segment.path) in problem


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([(1, 3), (7, 3)], "boot 1: events 4 to 6 are missing"),
        ([(1, 3), (3, 3)], "boot 1: events 3 to 3 are there twice"),
        ([(1, 9), (4, 3)], "boot 1: events 4 to 6 are there twice"),
    ],
)
def test_seqs_that_are_missing_or_there_twice_are_named(
    tmp_path: Path, ranges: list[tuple[int, int]], problem: str
) -> None:
    for first_seq, size in ranges:
        write(tmp_path, first_seq, size=size)
    assert verify(tmp_path) == [f"{NODE} {problem}"]


def test_a_survey_says_what_it_has_seen(tmp_path: Path) -> None:
    for boot in (1, 2):
        write(tmp_path, boot=boot)
    write_segment(tmp_path, table_of(size=5), "other", 1)
    seen = survey(tmp_path)
    assert (seen.problems, seen.segments, seen.events) == ([], 3, 11)
    assert (seen.boots, seen.nodes) == (3, 2)


def test_what_the_retention_removes_meanwhile_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)
    write(tmp_path, 4)

    def remove(path: Path) -> segments.Footer:
        if "0001-0000000000000003" in path.name:
            path.unlink()
        return read_footer(path)

    monkeypatch.setattr(segments, "read_footer", remove)
    seen = survey(tmp_path)
    assert (seen.problems, seen.segments) == ([], 1)


def test_after_an_overlap_the_sequence_goes_on_behind_the_longer_one(tmp_path: Path) -> None:
    for first_seq, size in ((1, 9), (4, 3), (10, 3)):
        write(tmp_path, first_seq, size=size)
    assert len(verify(tmp_path)) == 1


def test_only_the_first_boot_of_a_node_may_lack_its_beginning(tmp_path: Path) -> None:
    write(tmp_path, 4)
    assert verify(tmp_path) == []
    write(tmp_path, 4, boot=2)
    write_segment(tmp_path, table_of(9), "other", 1)
    assert verify(tmp_path) == [f"{NODE} boot 2: events 1 to 3 are missing"]


# Retention


def test_hours_that_ended_before_the_time_to_keep_are_removed_whole(tmp_path: Path) -> None:
    hour_ms = NOW_MS - NOW_MS % HOUR_MS
    old, young = write(tmp_path, 1), write(tmp_path, 4, now_ms=hour_ms + HOUR_MS)
    ended_ms = hour_ms + HOUR_MS
    assert drop_older(tmp_path, NODE, 7, ended_ms + 7 * DAY_MS - 1) == []
    assert facts(drop_older(tmp_path, NODE, 7, ended_ms + 7 * DAY_MS)) == facts([old])
    assert there(tmp_path) == facts([young])
    assert not old.path.parent.exists()
    assert young.path.parent.parent.exists()
    assert facts(drop_older(tmp_path, NODE, 7, ended_ms + 8 * DAY_MS)) == facts([young])
    assert list(tmp_path.iterdir()) == []


def test_zero_days_keep_everything(tmp_path: Path) -> None:
    segment = write(tmp_path)
    assert drop_older(tmp_path, NODE, 0, NOW_MS + 10_000 * DAY_MS) == []
    assert there(tmp_path) == facts([segment])


def test_what_is_not_ours_is_not_removed(tmp_path: Path) -> None:
    segment = write(tmp_path)
    foreign = segment.path.parent / "notes.txt"
    foreign.write_text("mine")
    assert facts(drop_older(tmp_path, NODE, 1, NOW_MS + 10 * DAY_MS)) == facts([segment])
    assert foreign.read_text() == "mine"


def test_what_a_crash_left_unfinished_goes_when_its_hour_is_over(tmp_path: Path) -> None:
    segment = write(tmp_path)
    unfinished = segment.path.parent / f".{segment.path.name}.unfinished"
    unfinished.write_bytes(b"PAR1")
    hour_ms = NOW_MS - NOW_MS % HOUR_MS
    drop_older(tmp_path, NODE, 0, hour_ms + HOUR_MS - 1)
    assert unfinished.exists()
    drop_older(tmp_path, NODE, 0, hour_ms + HOUR_MS)
    assert not unfinished.exists()
    assert there(tmp_path) == facts([segment])


def test_unfinished_segments_go_with_their_hour(tmp_path: Path) -> None:
    segment = write(tmp_path)
    (segment.path.parent / f".{segment.path.name}.unfinished").write_bytes(b"PAR1")
    drop_older(tmp_path, NODE, 1, NOW_MS + 10 * DAY_MS)
    assert list(tmp_path.iterdir()) == []


def test_what_is_another_nodes_stays_finished_or_not(tmp_path: Path) -> None:
    """Does a broker that shares the directory remove what its neighbour keeps for longer?"""
    mine = write(tmp_path)
    theirs, _ = write_segment(tmp_path, table_of(), "other", 1)
    at_work = theirs.path.parent / f".other-{mine.path.name.partition('-')[2]}.unfinished"
    at_work.write_bytes(b"PAR1")
    assert facts(drop_older(tmp_path, NODE, 1, NOW_MS + 10 * DAY_MS)) == facts([mine])
    assert there(tmp_path) == facts([theirs])
    assert at_work.exists()
    assert facts(drop_older(tmp_path, "other", 1, NOW_MS + 10 * DAY_MS)) == facts([theirs])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["date=2025-13-45/hour=07", "date=2025-11-21/hour=24"])
def test_a_folder_of_no_hour_is_left_alone(tmp_path: Path, folder: str) -> None:
    """Does a folder that somebody made stop the retention, and the export with it?"""
    segment = write(tmp_path)
    (tmp_path / folder).mkdir(parents=True)
    assert facts(drop_older(tmp_path, NODE, 1, NOW_MS + 10 * DAY_MS)) == facts([segment])
    assert (tmp_path / folder).is_dir()


def test_a_folder_that_cannot_be_emptied_is_one_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path).path
    path.unlink()
    path.mkdir()
    with pytest.raises(SegmentError, match=r"^history directory .*: Is a directory$"):
        drop_older(tmp_path, NODE, 1, NOW_MS + 10 * DAY_MS)


def test_a_directory_that_is_not_there_has_nothing_to_verify_or_remove(tmp_path: Path) -> None:
    assert verify(tmp_path / "absent") == drop_older(tmp_path / "absent", NODE, 1, NOW_MS) == []
