"""From cases to a tally: what is wrong is counted, unless a gap of the history touches it."""

from pyspark.sql import functions as F

from audit.checks.gap_filter import against_gaps, tallies, weigh
from audit.input.events import gseq

_CASE = "node string, session long, from_gseq long, to_gseq long, what string, number long"
_WITNESS = ("node", "session", "from_gseq", "to_gseq", "what")


def _history_with_a_hole(history) -> None:
    history.boot()
    history.session("someone", 1).create()
    history.lose(2)
    history.row("gc_run")
    history.row("gc_run")


def test_cases_are_summed_and_the_wrong_ones_named_in_one_go(history, view) -> None:
    _history_with_a_hole(history)
    made = view(history)
    session = 1 << 40 | 1
    cases = made.spark.createDataFrame(
        [
            ("n1", session, gseq(1, 5), gseq(1, 6), None, 1),  # nothing is wrong
            ("n1", session, gseq(1, 5), gseq(1, 6), "second", 10),
            ("n1", session, gseq(1, 1), gseq(1, 2), "first", 100),
            ("n1", session, gseq(1, 2), gseq(1, 5), "in the hole", 1000),
            ("n1", session, None, gseq(1, 5), "nobody knows where", None),
        ],
        _CASE,
    )
    sums = {"number": F.col("number"), "wrong": F.col("what").isNotNull(), "none": F.lit(None)}
    counted, found = weigh(made, cases, _WITNESS, sums)
    assert counted == {"number": 1111, "wrong": 4, "none": 0}
    assert (found.violated, found.unknown) == (2, 2)
    assert found.witnesses == [
        {
            "what": what, "node": "n1", "client_id": "someone", "session": session,
            "from": {"boot": 1, "seq": start}, "to": {"boot": 1, "seq": end},
        }
        for what, start, end in (("first", 1, 2), ("second", 5, 6))
    ]  # fmt: skip


def test_cases_that_are_all_right_have_no_witness_and_no_sum(history, view) -> None:
    _history_with_a_hole(history)
    made = view(history)
    none = made.spark.createDataFrame([], _CASE)
    counted, found = weigh(made, none, _WITNESS, {"number": F.col("number")})
    assert counted == {"number": 0}
    assert (found.violated, found.unknown, found.witnesses) == (0, 0, [])


def test_each_invariant_has_its_first_witnesses_in_order(history, view) -> None:
    _history_with_a_hole(history)
    made = view(history, witnesses_max=2)
    rows = [
        (name, "n1", None, gseq(1, 5), gseq(1, place), f"{name} at {place}", 0)
        for name in ("L2", "D2", "F1")
        for place in (9, 7, 8)
        if name != "F1"
    ]
    findings = against_gaps(
        made, made.spark.createDataFrame(rows, f"invariant string, {_CASE}").drop("number")
    )
    found = tallies(made, findings, ["L2", "D2", "F1"])
    assert {name: tally.violated for name, tally in found.items()} == {"L2": 3, "D2": 3, "F1": 0}
    for name in ("L2", "D2"):
        told = [witness["what"] for witness in found[name].witnesses]
        assert told == [f"{name} at 7", f"{name} at 8"]
    given = tallies(made, findings, ["L2", "D2"], [("L2", False, 3), ("D2", True, 1)])
    assert (given["D2"].unknown, given["D2"].witnesses) == (1, [])
    assert len(given["L2"].witnesses) == 2
