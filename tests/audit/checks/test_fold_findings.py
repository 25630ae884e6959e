"""Counts and witnesses."""

from audit.checks.fold_findings import Findings


def test_violations_count_as_checked_and_only_the_first_are_kept() -> None:
    found = Findings(1)
    found.ok("S1")
    found.judge("S1", False, "nothing")
    found.judge("S1", True, "first", seq=1)
    found.violated("S1", "second")
    found.unknown("S2")
    assert list(found) == [
        ("S1", [4, 2, 0], [{"what": "first", "seq": 1}]),
        ("S2", [0, 0, 1], []),
    ]
