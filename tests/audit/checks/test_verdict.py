"""The three words of a verdict."""

import pytest

from audit.checks.verdict import INVARIANTS, OF_CLIENTS, Outcome, overall
from audit.input.coverage import Recorded, Span


@pytest.mark.parametrize(
    ("counts", "status"),
    [((5, 0, 0), "ok"), ((0, 0, 0), "ok"), ((5, 1, 3), "violated"), ((5, 0, 3), "unknown")],
)
def test_a_violation_outweighs_what_is_unknown(counts: tuple[int, int, int], status: str) -> None:
    assert Outcome("H1", *counts).status == status


@pytest.mark.parametrize(
    ("recorded", "statuses"),
    [
        ("full", {"H1": "ok", "S5": "ok", "R1": "ok", "D1": "ok"}),
        ("sample", {"H1": "ok", "S5": "ok", "R1": "ok", "D1": "ok"}),
        ("lowered", {"H1": "ok", "S5": "ok", "R1": "unknown", "D1": "unknown"}),
        ("sessions", {"H1": "ok", "S5": "ok", "R1": "unknown", "D1": "unknown"}),
        ("nothing", {"H1": "unknown", "S5": "unknown", "R1": "unknown", "D1": "unknown"}),
    ],
)
def test_one_stretch_of_one_node_without_the_rows_needed_makes_an_invariant_unknown(
    recorded: Recorded, statuses: dict[str, str]
) -> None:
    covered = [Span("good", 1, 9, 1, 9, "full"), Span("bad", 1, 9, 1, 9, recorded)]
    found = {name: Outcome(name, 1000, 0, 0).within(covered) for name in statuses}
    assert {name: outcome.status for name, outcome in found.items()} == statuses
    for outcome in found.values():
        assert outcome.unknown == len(outcome.untested)
        assert [span.node for span in outcome.untested] == ["bad"] * outcome.unknown


def test_what_could_not_be_tested_hides_no_violation() -> None:
    covered = [Span("n", 1, 9, 1, 9, "nothing")]
    assert Outcome("S5", 10, 1, 2).within(covered).status == "violated"


def test_the_verdict_is_the_worst_there_is() -> None:
    ok, unknown, violated = Outcome("H1", 1, 0, 0), Outcome("L1", 1, 0, 1), Outcome("L2", 1, 1, 0)
    assert overall([ok]) == "ok"
    assert overall([ok, unknown]) == "unknown"
    assert overall([ok, unknown, violated]) == "violated"


def test_there_are_twenty_invariants() -> None:
    assert len(INVARIANTS) - len(OF_CLIENTS) == 20
    assert all(invariant.title and invariant.source for invariant in INVARIANTS.values())


def test_two_parts_of_one_invariant_are_one_outcome() -> None:
    one = Outcome("L2", 3, 1, 2, [{"what": "a"}])
    both = one.plus(Outcome("L2", 4, 2, 0, [{"what": "b"}, {"what": "c"}]), 2)
    assert (both.checked, both.violated, both.unknown) == (7, 3, 2)
    assert both.witnesses == [{"what": "a"}, {"what": "b"}]
