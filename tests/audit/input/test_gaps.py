"""Decisions about gaps over small rows; Spark is not needed."""

import pytest

from audit.input.events import gseq
from audit.input.gaps import (
    SEQ_MAX,
    Boot,
    Gap,
    Mark,
    Run,
    boots,
    explain,
    fewer,
    holes,
    lowered,
    parse_level,
    unfilled,
)


def _boot(boot: int, last_seq: int, level: str = "full") -> Boot:
    return Boot("n", boot, level, level, 1, 1, last_seq, 0, 0)


def _mark(boot: int, seq: int, ev: str, **more: object) -> Mark:
    values = {"reason": None, "count": None, "detail": None, **more}
    return Mark("n", boot, seq, ev, **values)  # type: ignore[arg-type]


def test_levels_are_read_with_their_share() -> None:
    assert parse_level("sampled:1/64") == ("sampled", 64)
    assert parse_level("full") == ("full", 1)
    assert parse_level(None) == ("", 1)


def test_a_level_below_full_is_a_gap_of_its_whole_boot() -> None:
    marks = [_mark(1, 1, "boot", detail="books"), _mark(2, 1, "boot", detail="full")]
    known = boots([Run("n", 1, 1, 9, 0, 0), Run("n", 2, 1, 9, 0, 0)], marks)
    assert lowered(known, marks, []) == [
        Gap("n", gseq(1, 0), gseq(1, SEQ_MAX), "detail books", "messages")
    ]


def test_a_gap_ends_with_the_row_that_says_so() -> None:
    marks = [
        _mark(1, 1, "boot", detail="full"),
        _mark(1, 5, "history_gap", reason=1053, detail="sampled:1/8"),
        _mark(1, 9, "history_gap", reason=1050, count=70, detail="full"),
    ]
    known = boots([Run("n", 1, 1, 20, 0, 0)], marks)
    assert lowered(known, marks, []) == [
        Gap("n", gseq(1, 5), gseq(1, 9), "detail sampled", "sampled")
    ]
    assert known[0].sample == 8


def test_a_gap_that_was_open_is_closed_by_a_later_batch() -> None:
    marks = [
        _mark(1, 1, "boot", detail="full"),
        _mark(1, 5, "history_gap", reason=1053, detail="books"),
    ]
    first = boots([Run("n", 1, 1, 6, 0, 0)], marks)
    gaps = lowered(first, marks, [])
    assert gaps[0].is_open
    more = [_mark(1, 9, "history_gap", reason=1050, count=70, detail="full")]
    second = boots([Run("n", 1, 7, 12, 0, 0)], more, first)
    assert lowered(second, more, [], before=first, gaps_before=gaps) == [
        Gap("n", gseq(1, 5), gseq(1, 9), "detail books", "messages")
    ]


def test_an_end_without_a_beginning_reaches_back_to_the_hole_it_fell_into() -> None:
    marks = [
        _mark(1, 1, "boot", detail="full"),
        _mark(1, 9, "history_gap", reason=1050, count=70, detail="full"),
    ]
    known = boots([Run("n", 1, 1, 3, 0, 0), Run("n", 1, 6, 12, 0, 0)], marks)
    found = holes([Run("n", 1, 1, 3, 0, 0), Run("n", 1, 6, 12, 0, 0)], known)
    assert [(gap.from_gseq, gap.to_gseq) for gap in found] == [(gseq(1, 4), gseq(1, 5))]
    assert lowered(known, marks, found) == [
        Gap("n", gseq(1, 4), gseq(1, 9), "detail books", "messages")
    ]


def test_the_next_batch_goes_on_where_the_last_one_ended() -> None:
    before = [_boot(1, 10)]
    joined = [Run("n", 1, 11, 20, 0, 0)]
    assert holes(joined, boots(joined, [], before), before) == []
    apart = [Run("n", 1, 14, 20, 0, 0)]
    (gap,) = holes(apart, boots(apart, [], before), before)
    assert (gap.from_gseq, gap.to_gseq, gap.explained) == (gseq(1, 11), gseq(1, 13), False)


def test_fewer_gaps_cover_all_of_them() -> None:
    many = [Gap("n", at, at + 1, "rows are missing", "hole", False) for at in range(0, 900, 9)]
    many.append(Gap("m", 0, 1, "rows are missing", "hole", False))
    merged = fewer(many, 10)
    assert len(merged) <= 10
    assert all(
        any(m.touches(g.node, g.from_gseq, g.to_gseq) and m.from_gseq <= g.from_gseq
            and m.to_gseq >= g.to_gseq for m in merged)
        for g in many
    )  # fmt: skip


def _hole(start: int, end: int) -> Gap:
    return Gap("n", gseq(1, start), gseq(1, end), "rows are missing", "hole", explained=False)


def test_rows_thrown_away_explain_the_hole_of_their_size_or_the_nearest() -> None:
    thrown = _mark(1, 90, "history_gap", reason=1051, count=4)
    found = explain([_hole(10, 13), _hole(20, 22)], [thrown])
    assert [gap.explained for gap in found] == [True, False]
    found = explain([_hole(10, 11), _hole(20, 22), _hole(95, 96)], [thrown])
    assert [gap.explained for gap in found] == [False, True, False]


def _thrown(boot: int, seq: int, count: int) -> Mark:
    return _mark(boot, seq, "history_gap", reason=1051, count=count)


def test_rows_thrown_away_in_slices_explain_one_hole_together() -> None:
    slices = [_thrown(1, 90, 16), _thrown(1, 91, 16), _thrown(1, 95, 8)]
    assert [gap.explained for gap in explain([_hole(10, 49)], slices)] == [True]
    assert [gap.explained for gap in explain([_hole(10, 50)], slices)] == [False]
    # What was thrown away by then explains no hole behind it.
    found = explain([_hole(10, 12), _hole(93, 96)], [*slices, _thrown(1, 99, 1)])
    assert [gap.explained for gap in found] == [True, False]


def test_rows_thrown_away_explain_a_hole_over_the_end_of_a_boot() -> None:
    """The new boot throws away what the last one left, and its own first rows."""
    runs = [Run("n", 1, 1, 31, 0, 0), Run("n", 2, 29, 80, 0, 0)]
    for counts, expected in (((11, 28), True), ((39,), True), ((11, 27), True), ((11, 10), False)):
        marks = [_mark(1, 1, "boot", detail="full")]
        marks += [_thrown(2, 70 + at, count) for at, count in enumerate(counts)]
        found = explain(holes(runs, boots(runs, marks)), marks)
        assert [gap.explained for gap in found] == [expected], counts


def test_rows_thrown_away_explain_a_whole_boot_that_is_missing() -> None:
    runs = [Run("n", 1, 1, 31, 0, 0), Run("n", 3, 1, 80, 0, 0)]
    for count, expected in ((50, True), (49, False)):
        marks = [_mark(1, 1, "boot"), _mark(3, 1, "boot", count=50), _thrown(3, 60, count)]
        found = explain(holes(runs, boots(runs, marks)), marks)
        assert [gap.explained for gap in found] == [expected]


def test_rows_that_come_late_fill_a_hole() -> None:
    left = unfilled([_hole(10, 19)], [Run("n", 1, 12, 14, 0, 0)])
    assert left == [_hole(10, 11), _hole(15, 19)]
    assert unfilled([_hole(10, 19)], [Run("n", 1, 10, 19, 0, 0)]) == []
    assert unfilled([_hole(10, 19)], [Run("m", 1, 10, 19, 0, 0)]) == [_hole(10, 19)]


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [
        (9, []),
        (10, []),
        (11, [(gseq(1, 11), gseq(1, 11))]),
        (13, [(gseq(1, 11), gseq(1, 13))]),
    ],
)
def test_the_next_boot_tells_of_a_last_row_that_is_missing(
    claimed: int, expected: list[tuple[int, int]]
) -> None:
    runs = [Run("n", 1, 1, 10, 0, 0), Run("n", 2, 1, 5, 0, 0)]
    marks = [
        _mark(1, 1, "boot", detail="full"),
        _mark(2, 1, "boot", detail="full", count=claimed),
    ]
    found = holes(runs, boots(runs, marks))
    assert [(gap.from_gseq, gap.to_gseq) for gap in found] == expected
    assert not any(gap.explained for gap in found)
