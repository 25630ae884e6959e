"""The three words of a verdict."""

import pytest

from audit.checks.verdict import INVARIANTS, Outcome, overall


@pytest.mark.parametrize(
    ("counts", "possible", "status"),
    [
        ((5, 0, 0), True, "ok"),
        ((0, 0, 0), True, "ok"),
        ((5, 1, 3), True, "violated"),
        ((5, 0, 3), True, "unknown"),
        ((0, 0, 0), False, "unknown"),
        ((5, 0, 0), False, "ok"),
    ],
)
def test_a_violation_outweighs_what_is_unknown(
    counts: tuple[int, int, int], possible: bool, status: str
) -> None:
    assert Outcome("H1", *counts, possible=possible).status == status


def test_the_verdict_is_the_worst_there_is() -> None:
    ok, unknown, violated = Outcome("H1", 1, 0, 0), Outcome("L1", 1, 0, 1), Outcome("L2", 1, 1, 0)
    assert overall([ok]) == "ok"
    assert overall([ok, unknown]) == "unknown"
    assert overall([ok, unknown, violated]) == "violated"


def test_there_are_eighteen_invariants() -> None:
    assert len(INVARIANTS) == 18
    assert all(invariant.title and invariant.source for invariant in INVARIANTS.values())
