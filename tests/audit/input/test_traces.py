"""From where to where a traced client is recorded in full: by rows, levels, boots and batches."""

from dataclasses import replace

from audit.input.events import gseq
from audit.input.gaps import HOLE, MESSAGES, SAMPLED, SEQ_MAX, Boot, Gap
from audit.input.traces import (
    STRETCHES_MAX,
    Stretch,
    Trace,
    TraceMark,
    stretches,
    traces,
    unjudged,
)

BOOK = "books"


def boot(number: int, last: int = 100, *, clean: bool = False) -> Boot:
    return Boot("n", number, BOOK, BOOK, 1, 1, last, 1000, 1000 + last, clean)


def mark(ev: str, seq: int, detail: str = "books, anna", client: str = "c", number: int = 1):
    return TraceMark("n", number, gseq(number, seq), 1000 + seq, f"trace_{ev}", client, detail)


def places(found: list[Trace]) -> list[tuple[str, int, int, str, int]]:
    """Return client, first and last seq, level and sample of each."""
    seqs = SEQ_MAX
    return [
        (each.client_id, each.from_gseq & seqs, each.to_gseq & seqs, each.level, each.sample)
        for each in found
    ]


def test_a_trace_is_from_its_first_row_to_its_last() -> None:
    found = traces([mark("ended", 60, "books, its time is over"), mark("began", 10)], [boot(1)])
    assert places(found) == [("c", 10, 60, "books", 1)]
    assert (found[0].from_us, found[0].to_us, found[0].is_open) == (1010, 1060, False)


def test_a_trace_without_an_end_ends_with_its_boot() -> None:
    """The newest boot of a node goes on, unless it has ended in order."""
    marks = [mark("began", 10)]
    assert traces(marks, [boot(1)])[0].is_open
    for boots in ([boot(1, clean=True)], [boot(1), boot(2)]):
        (trace,) = traces(marks, boots)
        assert places([trace]) == [("c", 10, 100, "books", 1)] and not trace.is_open


def test_another_level_divides_a_trace_and_full_needs_none() -> None:
    found = traces(
        [
            mark("began", 10, "full, anna"),
            mark("goes_on", 20, "sampled:1/50, the level has changed"),
            mark("goes_on", 30, "books, the level has changed"),
            mark("goes_on", 40, "sessions, the level has changed"),
            mark("ended", 50, "sessions, its time is over"),
        ],
        [boot(1)],
    )
    assert places(found) == [("c", 20, 30, "sampled", 50), ("c", 30, 40, "books", 1)]


def test_a_trace_whose_beginning_is_not_known_is_left_out() -> None:
    assert traces([mark("ended", 60)], [boot(1)]) == []


def test_clients_and_traces_are_kept_apart() -> None:
    found = traces(
        [
            mark("began", 10),
            mark("began", 20, client="d"),
            mark("ended", 30),
            mark("ended", 40, client="d"),
            mark("began", 50),
        ],
        [boot(1)],
    )
    assert [each[:3] for each in places(found)] == [("c", 10, 30), ("d", 20, 40), ("c", 50, 100)]


def test_a_batch_has_only_what_is_new_of_a_trace() -> None:
    marks = [mark("began", 10)]
    found = traces(marks, [boot(1, 200)], [boot(1, 100)])
    assert places(found) == [("c", 101, 200, "books", 1)]
    assert found[0].begins_at == gseq(1, 10)
    assert traces([*marks, mark("ended", 90)], [boot(1, 200)], [boot(1, 100)]) == []
    assert traces(marks, [boot(1, 100), boot(2)], [boot(1, 100)]) == []


def test_stretches_of_one_level_that_overlap_are_one() -> None:
    one = traces([mark("began", 10), mark("ended", 30)], [boot(1)])[0]
    other = replace(one, client_id="d", from_gseq=gseq(1, 20), to_gseq=gseq(1, 40))
    later = replace(one, from_gseq=gseq(1, 50), to_gseq=gseq(1, 60))
    sampled = replace(one, level="sampled", sample=8)
    assert stretches([one, other, later, sampled], []) == [
        Stretch("n", gseq(1, 10), gseq(1, 40), 0),
        Stretch("n", gseq(1, 50), gseq(1, 60), 0),
        Stretch("n", gseq(1, 10), gseq(1, 30), 8),
    ]


def test_too_many_stretches_in_one_gap_are_joined() -> None:
    one = traces([mark("began", 10), mark("ended", 30)], [boot(1)])[0]
    many = [
        replace(one, from_gseq=gseq(1, 10 * at), to_gseq=gseq(1, 10 * at + 1))
        for at in range(1, STRETCHES_MAX + 2)
    ]
    (joined,) = stretches(many, [Gap("n", gseq(1, 1), gseq(1, SEQ_MAX), "", MESSAGES)])
    assert (joined.from_gseq, joined.to_gseq) == (many[0].from_gseq, many[-1].to_gseq)
    assert len(stretches(many, [])) == len(many)


def test_the_rows_of_a_trace_without_a_beginning_are_known_as_such() -> None:
    """Its first rows may be in a hole, or in a segment that was deleted."""
    low = Gap("n", gseq(1, 5), gseq(1, SEQ_MAX), "", MESSAGES)
    hole = Gap("n", gseq(1, 20), gseq(1, 30), "", HOLE)
    assert unjudged([mark("ended", 60)], [boot(1)], [hole, low]) == [
        Stretch("n", gseq(1, 5), gseq(1, 60), 0)
    ]
    few = replace(low, kind=SAMPLED)
    sampled = replace(boot(1), sample=10)
    assert unjudged([mark("goes_on", 60)], [sampled], [few]) == [
        Stretch("n", gseq(1, 5), gseq(1, 60), 10)
    ]
    assert unjudged([mark("began", 10), mark("ended", 60)], [boot(1)], [low]) == []
    assert unjudged([mark("ended", 60)], [boot(1)], []) == []
    assert stretches([], [], unjudged([mark("ended", 60)], [boot(1)], [low]))
