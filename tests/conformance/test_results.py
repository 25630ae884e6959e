"""The sum of a run."""

import dataclasses

from conformance.results import Outcome, Report, Result, count
from conformance.statements import Statement


def result(version: int, outcome: Outcome) -> Result:
    return Result(Statement("X-01", version, "X", "server", "yes", ""), outcome, "Says.")


def report(*results: Result) -> Report:
    return Report("toy 1", "toy", (4, 5), False, "", "2026-01-02T03:04:05Z", 12.4, results)


def test_outcomes_are_counted_by_version() -> None:
    made = report(result(4, "pass"), result(4, "fail"), result(5, "not run"))
    assert made.counts() == {"pass": 1, "fail": 1, "not run": 1}
    assert made.counts(5) == {"not run": 1}
    assert count(made.results) == made.counts()


def test_only_failures_and_errors_make_the_run_fail() -> None:
    assert report(result(4, "pass"), result(5, "not run"), result(5, "not testable")).exit_code == 0
    assert report(result(4, "pass"), result(5, "fail")).exit_code == 1
    assert report(result(4, "error")).exit_code == 1
    broken = dataclasses.replace(report(result(4, "pass")), problems=("x cannot be imported",))
    assert broken.exit_code == 1


def test_the_summary_is_one_line_with_all_numbers() -> None:
    made = report(result(4, "pass"), result(4, "fail"), result(5, "not run"), result(5, "error"))
    assert made.summary() == (
        "toy 1: MQTT 3.1.1: 1 passed, 1 failed; "
        "MQTT 5.0: 0 passed, 0 failed, 1 errors, 1 not run (12 s)"
    )
    assert "toy 1, strict:" in dataclasses.replace(made, strict=True).summary()
