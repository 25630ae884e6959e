"""What was recorded of each node, and when."""

from audit.input import coverage, gaps
from audit.input.coverage import Span
from audit.input.events import gseq
from audit.input.gaps import Boot, Gap, Mark

SECOND = 1_000_000


def boot(number: int = 1, level: str = "full", *, node: str = "n", last: int = 100) -> Boot:
    """Return a boot of `last` rows, one a second, that began at 1000 seconds times its number."""
    first_us = 1000 * number * SECOND
    end_us = first_us + last * SECOND
    return Boot(node, number, level, level, 1, 1, last, first_us, end_us)


def gap(start: int, end: int, kind: gaps.Kind, *, number: int = 1, node: str = "n") -> Gap:
    """Return a gap within a boot."""
    return Gap(node, gseq(number, start), gseq(number, end), "why", kind)


def told(spans: list[Span]) -> list[tuple[str, str, int, int]]:
    """Return node, what was recorded, and the seconds from and to."""
    return [
        (span.node, span.recorded, span.from_us // SECOND, span.to_us // SECOND) for span in spans
    ]


def test_each_node_has_spans_of_its_own() -> None:
    books = gap(0, gaps.SEQ_MAX, gaps.MESSAGES, node="b")
    found = coverage.spans([boot(node="a"), boot(node="b", level="books")], [books])
    assert told(found) == [("a", "full", 1000, 1100), ("b", "sessions", 1000, 1100)]
    assert found[1].reason == "why"


def test_a_gap_splits_a_boot_and_the_worst_one_counts() -> None:
    lowered = gap(11, 60, gaps.MESSAGES)
    found = coverage.spans([boot()], [lowered, gap(41, 80, gaps.HOLE)])
    assert told(found) == [
        ("n", "full", 1000, 1010),
        ("n", "sessions", 1010, 1040),
        ("n", "nothing", 1040, 1080),
        ("n", "full", 1080, 1100),
    ]
    assert [span.to_gseq + 1 for span in found[:-1]] == [span.from_gseq for span in found[1:]]


def test_boots_at_the_same_level_are_one_span() -> None:
    assert told(coverage.spans([boot(1), boot(2), boot(3)], [])) == [("n", "full", 1000, 3100)]


def test_what_is_missing_between_two_boots_is_a_span() -> None:
    off = Gap("n", gseq(1, 101), gseq(4, 0), "history was off", gaps.HOLE)
    assert told(coverage.spans([boot(1), boot(4)], [off])) == [
        ("n", "full", 1000, 1100),
        ("n", "nothing", 1100, 4000),
        ("n", "full", 4000, 4100),
    ]


def test_one_row_that_is_missing_between_two_boots_is_a_span() -> None:
    off = Gap("n", gseq(1, 101), gseq(1, 101), "rows are missing", gaps.HOLE)
    assert ("n", "nothing", 1100, 2000) in told(coverage.spans([boot(1), boot(2)], [off]))


def test_the_time_before_the_first_row_is_no_span() -> None:
    began = Gap("n", 0, gseq(1, 0), "before the history begins", gaps.HOLE)
    assert told(coverage.spans([boot()], [began])) == [("n", "full", 1000, 1100)]


def test_a_sample_that_was_configured_tests_and_one_of_a_full_outbox_does_not() -> None:
    sampled = gap(0, gaps.SEQ_MAX, gaps.SAMPLED)
    (wanted,) = coverage.spans([boot(level="sampled")], [sampled])
    (lowered,) = coverage.spans([boot(level="full")], [sampled])
    assert (wanted.recorded, wanted.has("messages")) == ("sample", True)
    assert (lowered.recorded, lowered.has("messages")) == ("lowered", False)


def test_a_batch_has_only_what_is_new_in_it() -> None:
    books = gap(0, gaps.SEQ_MAX, gaps.MESSAGES)
    spans = coverage.spans([boot(1, level="books"), boot(2)], [books])
    assert told(coverage.since(spans, [])) == told(spans)
    assert told(coverage.since(spans, [boot(1, last=40)])) == [
        ("n", "sessions", 1040, 1100),
        ("n", "full", 2000, 2100),
    ]
    assert told(coverage.since(spans, [boot(1)])) == [("n", "full", 2000, 2100)]
    assert coverage.since(spans, [boot(1), boot(2)]) == []


def test_a_boot_that_shows_neither_its_level_nor_messages_is_not_taken_for_full() -> None:
    late = Boot("n", 7, "", "", 1, 50, 90, 0, SECOND)
    began = gaps.lowered([late], [], [], silent={("n", 7)})
    assert [(each.kind, each.reason) for each in began] == [("messages", "detail not known")]
    assert gaps.lowered([late], [], []) == []
    restored = Mark("n", 7, 70, "history_gap", 1052, 3, "full")
    (lowered,) = gaps.lowered([late], [restored], [], silent={("n", 7)})
    assert (lowered.from_gseq, lowered.to_gseq) == (gseq(7, 0), gseq(7, 70))
