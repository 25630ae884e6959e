"""Does the chain name every forgery that it can, and nobody who is honest?"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.history.segment_files import SegmentWriter
from storage.history import chain, events
from storage.history.chain import Link, Piece, follow, head_of
from storage.history.segment_names import SegmentName
from storage.history.segments import examine, survey, verify
from tests.storage.history import forging
from tests.storage.history.forging import Rows, edit, in_order, relabel, swap, unchain
from tests.storage.history.history_cases import NOW_MS, Tick

NODE = "edge"
HOUR_MS = 3_600_000
BOOTS = {1: 3, 2: 2, 3: 2}  # segments of each, three events in each


def write(
    writer: SegmentWriter, boot: int, first_seq: int, size: int = 3, now_ms: int = NOW_MS
) -> str:
    """Write a segment."""
    tick = Tick()
    tick.record(events.MSG_PERSISTED, n=size)
    return writer.write(boot, [tick.row(first_seq, now_ms)])


def history(directory: Path, boots: dict[int, int] | None = None) -> list[SegmentName]:
    """Write an honest history; return its segments in their order."""
    for boot, count in (boots or BOOTS).items():
        writer = SegmentWriter(directory, NODE, keep_days=0)  # a new process
        for number in range(count):
            write(writer, boot, 3 * number + 1)
    return in_order(directory)


def short(problems: list[str], directory: Path) -> list[str]:
    """Return problems without what all of them have."""
    return [
        line.replace(f"{directory}/date=2025-11-21/hour=07/", "").replace(f"{NODE} ", "")
        for line in problems
    ]


def name(boot: int, first: int, last: int) -> str:
    return f"{NODE}-{boot:08}-{first:016}-{last:016}.parquet"


def lie(rows: Rows) -> Rows:
    """Change a row."""
    rows[1]["msg"] = 99
    return rows


def drop(rows: Rows) -> Rows:
    """Remove a row, and number the others anew."""
    del rows[1]
    for seq, row in enumerate(rows, rows[0]["seq"]):
        row["seq"] = seq
    return rows


def move(by: int) -> Callable[[Rows], Rows]:
    def moved(rows: Rows) -> Rows:
        for row in rows:
            row["seq"] += by
        return rows

    return moved


def edit_a_row(all_of_them: list[SegmentName]) -> None:
    edit(all_of_them[1], lie)


def edit_a_row_and_its_digest(all_of_them: list[SegmentName]) -> None:
    edit(all_of_them[1], lie, digest="right")


def edit_a_row_and_the_whole_footer(all_of_them: list[SegmentName]) -> None:
    mine = edit(all_of_them[1], lie, digest="right")
    _, piece = examine(mine)
    relabel(mine, head=piece.computed)


def remove_a_row_and_number_the_boot_anew(all_of_them: list[SegmentName]) -> None:
    edit(all_of_them[1], drop, digest="right")
    edit(all_of_them[2], move(-1), digest="right")


def exchange_two_files(all_of_them: list[SegmentName]) -> None:
    swap(all_of_them[1], all_of_them[2])


def remove_a_file(all_of_them: list[SegmentName]) -> None:
    all_of_them[1].path.unlink()


def remove_a_file_and_number_the_boot_anew(all_of_them: list[SegmentName]) -> None:
    all_of_them[1].path.unlink()
    edit(all_of_them[2], move(-3), digest="right")


def remove_a_boot(all_of_them: list[SegmentName]) -> None:
    for segment in all_of_them[3:5]:
        segment.path.unlink()


def take_a_file_out_of_the_chain(all_of_them: list[SegmentName]) -> None:
    unchain(edit(all_of_them[1], lie))


FOLLOWS = "it was written after another segment than the one before it"
ROWS = "its rows were changed"
FOOTER = "its footer was changed"


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (edit_a_row, [f"boot 1, from event 4 on: {ROWS}: {name(1, 4, 6)}"]),
        (edit_a_row_and_its_digest, [f"boot 1, from event 4 on: {FOOTER}: {name(1, 4, 6)}"]),
        (
            edit_a_row_and_the_whole_footer,
            [f"boot 1, from event 7 on: {FOLLOWS}, {name(1, 4, 6)}: {name(1, 7, 9)}"],
        ),
        (
            remove_a_row_and_number_the_boot_anew,
            [
                f"boot 1, from event 4 on: {FOOTER}: {name(1, 4, 5)}",
                f"boot 1, from event 6 on: {FOOTER}: {name(1, 6, 8)}",
            ],
        ),
        (
            exchange_two_files,
            [
                f"{name(1, 4, 6)}: first_seq is 4 by its name and 7 by its footer",
                f"{name(1, 4, 6)}: last_seq is 6 by its name and 9 by its footer",
                f"{name(1, 7, 9)}: first_seq is 7 by its name and 4 by its footer",
                f"{name(1, 7, 9)}: last_seq is 9 by its name and 6 by its footer",
            ],
        ),
        (remove_a_file, ["boot 1: events 4 to 6 are missing"]),
        (
            remove_a_file_and_number_the_boot_anew,
            [
                f"boot 1, from event 4 on: {FOOTER}: {name(1, 4, 6)}",
                f"boot 1, from event 4 on: {FOLLOWS}, {name(1, 1, 3)}: {name(1, 4, 6)}",
            ],
        ),
        (
            remove_a_boot,
            [f"boot 3, from event 1 on: {FOLLOWS}, {name(1, 7, 9)}: {name(3, 1, 3)}"],
        ),
        (
            take_a_file_out_of_the_chain,
            [f"boot 1, from event 7 on: {FOLLOWS}, {name(1, 4, 6)}: {name(1, 7, 9)}"],
        ),
    ],
)
def test_a_forgery_is_named(
    attack: Callable[[list[SegmentName]], None], named: list[str], tmp_path: Path
) -> None:
    segments = history(tmp_path)
    assert verify(tmp_path, thorough=True) == []
    attack(segments)
    assert short(verify(tmp_path, thorough=True), tmp_path) == named


def test_the_end_or_a_whole_chain_written_anew_shows_nothing_here(tmp_path: Path) -> None:
    """`storage.history.witness` is for that."""
    segments = history(tmp_path)
    heads = [examine(each)[1].head for each in segments]
    edit(segments[1], lie)
    forging.rechain(tmp_path)
    for segment in segments[5:]:
        segment.path.unlink()
    assert verify(tmp_path, thorough=True) == []
    now = [examine(each)[1].head for each in in_order(tmp_path)]
    assert now[0] == heads[0]
    assert not set(now[1:]) & set(heads)


# What honest brokers, operators and earlier versions do.


def test_each_boot_follows_the_last_and_another_process_goes_on(tmp_path: Path) -> None:
    segments = history(tmp_path)
    pieces = [examine(each)[1] for each in segments]
    links = [piece.link for piece in pieces if piece.link is not None]
    assert [link.before for link in links] == [chain.NONE, *(link.head for link in links[:-1])]
    chained = survey(tmp_path, thorough=True).chained
    assert (chained.chained, chained.unchained, chained.begins) == (7, [], pieces_of(pieces[:1]))


def pieces_of(pieces: list[Piece]) -> list[Piece]:
    """Return pieces as a thorough survey has them."""
    return [replace(piece, digest=piece.link.digest) for piece in pieces if piece.link]


@pytest.mark.parametrize("removed", [1, 3, 4, 6])
def test_what_the_retention_has_removed_is_no_forgery(tmp_path: Path, removed: int) -> None:
    segments = history(tmp_path)
    for segment in segments[:removed]:
        segment.path.unlink()
    assert verify(tmp_path, thorough=True) == []
    later = SegmentWriter(tmp_path, NODE, keep_days=0)
    write(later, 4, 1)
    assert verify(tmp_path, thorough=True) == []


def test_after_everything_was_removed_a_chain_begins(tmp_path: Path) -> None:
    for segment in history(tmp_path):
        segment.path.unlink()
    history(tmp_path, {4: 2})
    assert verify(tmp_path, thorough=True) == []


def test_segments_of_an_earlier_version_are_followed(tmp_path: Path) -> None:
    for segment in history(tmp_path, {1: 2}):
        unchain(segment)
    history(tmp_path, {2: 2})
    found = survey(tmp_path, thorough=True)
    assert (found.problems, found.chained.chained, len(found.chained.unchained)) == ([], 2, 2)
    assert verify(tmp_path) == []  # their rows are not read: nothing can be said
    edit(in_order(tmp_path)[1], lie)
    assert short(verify(tmp_path, thorough=True), tmp_path) == [
        f"boot 2, from event 1 on: {FOLLOWS}, {name(1, 4, 6)}: {name(2, 1, 3)}"
    ]


def test_an_earlier_version_in_between_is_no_forgery(tmp_path: Path) -> None:
    history(tmp_path, {1: 2})
    for segment in history(tmp_path, {2: 2})[2:]:
        unchain(segment)
    history(tmp_path, {3: 2})
    found = survey(tmp_path, thorough=True)
    assert (found.problems, found.chained.chained, len(found.chained.unchained)) == ([], 4, 2)


def test_after_a_damaged_file_a_chain_begins_anew_and_only_the_file_is_named(
    tmp_path: Path,
) -> None:
    damaged = history(tmp_path, {1: 2})[-1]
    damaged.path.write_bytes(damaged.path.read_bytes()[:-100])
    history(tmp_path, {2: 1})
    (problem,) = verify(tmp_path, thorough=True)
    assert str(damaged.path) in problem
    assert len(survey(tmp_path).chained.begins) == 2


def test_a_file_that_is_damaged_later_accuses_no_other_one(tmp_path: Path) -> None:
    damaged = history(tmp_path)[1]
    damaged.path.write_bytes(damaged.path.read_bytes()[:-100])
    found = survey(tmp_path, thorough=True)
    (problem,) = found.problems
    assert str(damaged.path) in problem
    assert [piece.first_seq for piece in found.chained.unproven] == [7]


def test_rows_that_a_restored_backup_brings_back_are_a_branch(tmp_path: Path) -> None:
    """Their boot is older than what was exported since."""
    segments = history(tmp_path)
    segments[2].path.unlink()  # by the retention
    for segment in segments[:2]:
        segment.path.unlink()
    writer = SegmentWriter(tmp_path, NODE, keep_days=0)
    write(writer, 1, 7)
    write(writer, 4, 1)
    assert [each.piece.boot for each in survey(tmp_path).chained.breaks] == [2]
    in_order(tmp_path)[0].path.unlink()  # by the retention, at once
    assert verify(tmp_path, thorough=True) == []


def test_a_clock_that_was_set_back_changes_no_order(tmp_path: Path) -> None:
    history(tmp_path)
    for boot, hours in ((4, 30), (5, 2)):
        later = SegmentWriter(tmp_path, NODE, keep_days=0)
        write(later, boot, 1, now_ms=NOW_MS - hours * HOUR_MS)
        write(later, boot, 4, now_ms=NOW_MS - hours * HOUR_MS)
    found = survey(tmp_path, thorough=True)
    assert (found.problems, found.chained.chained, len(found.chained.begins)) == ([], 11, 1)


def test_nodes_have_chains_of_their_own(tmp_path: Path) -> None:
    history(tmp_path)
    other = SegmentWriter(tmp_path, "other", keep_days=0)
    write(other, 1, 1)
    write(other, 1, 4)
    found = survey(tmp_path, thorough=True)
    assert (found.problems, len(found.chained.begins)) == ([], 2)


# The chain alone.


def piece(boot: int, first_seq: int, before: str, *, is_copy: bool = False) -> Piece:
    """Return an honest segment of three rows."""
    last = first_seq + 2
    head = head_of(NODE, boot, first_seq, last, "d", before)
    link = Link("d", before, head, is_copy)
    return Piece(name(boot, first_seq, last), NODE, boot, first_seq, last, link, "d")


def test_the_head_is_written_down_here() -> None:
    """A change is a new version of the chain."""
    head = head_of(NODE, 7, 1, 3, "ab" * 32, "cd" * 32)
    assert head == "0b8b38dd47e4295322b28a122aa0fce9f341b8f66c894d4050492739234c7a8e"


def test_what_earlier_runs_knew_is_followed() -> None:
    first = piece(1, 1, chain.NONE)
    second = piece(1, 4, first.head)
    known = {NODE: {first.place: first.head}}
    assert follow([second], known).breaks == []
    other = {NODE: {first.place: "another"}}
    (found,) = follow([second], other).breaks
    assert (found.piece, found.what, found.before) == (second, FOLLOWS, None)
    # Nothing from before it is known, and what is known of other nodes tells nothing.
    for nothing in ({}, {"other": {first.place: "another"}}, {NODE: {(2, 1): "later"}}):
        assert follow([second], nothing).begins == [second]


def test_behind_a_copy_of_rows_nothing_is_proven() -> None:
    """`history export` keeps its own segment where the broker's has vanished."""
    copy = piece(1, 1, chain.NONE, is_copy=True)
    later = piece(1, 4, "head of the broker's own")
    found = follow([later, copy], {})
    assert (found.breaks, found.unproven) == ([], [later])
    assert follow([piece(1, 4, copy.head), copy], {}).unproven == []
