"""A run: batches that neither overlap nor forget, verdicts, exit codes."""

import json
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from audit import batch_state
from audit.checks import log_checks
from audit.checks.suppressions import Rule
from audit.run import NothingToAudit, Part, Wishes, run

# What batches, verdicts and exit codes need; the other parts have tests of their own.
LOG = (Part("the log", log_checks.check, log_checks.carry),)


def _quiet(_line: str) -> None:
    """Nobody watches."""


def test_batches_consume_each_segment_once_and_a_late_one_fills_its_hole(
    spark: SparkSession, tmp_path: Path, history
) -> None:
    source, out = tmp_path / "history", str(tmp_path / "out")
    history.boot()
    for _ in range(5):
        history.row("gc_run", count=0)
    history.row("shutdown")
    parts = history.write(source, segments=3)
    late = parts[1].rename(tmp_path / "late")

    lines: list[str] = []
    first = run(spark, str(source), out, progress=lines.append, parts=LOG)
    assert (first.status, first.exit_code) == ("violated", 2)
    assert first.document["batch"] == 0
    assert first.document["rows"] == 4
    assert lines[0] == "batch 0: 2 new segments of 2"
    assert lines[-1] == "verdict: violated"

    late.rename(parts[1])
    second = run(spark, str(source), out, progress=_quiet, parts=LOG)
    assert (second.status, second.exit_code) == ("ok", 0)
    assert (second.document["batch"], second.document["rows"]) == (1, 3)
    assert second.document["gaps"] == []
    assert batch_state.load(spark, out).consumed == {"n1/1": [(1, 7)]}

    again = run(spark, str(source), out, progress=_quiet, parts=LOG)
    assert again.document == second.document
    redone = run(spark, str(source), out, progress=_quiet, batch=1, parts=LOG)
    assert redone.document == second.document
    assert batch_state.batches(spark, out) == [0, 1]
    assert json.loads((tmp_path / "out" / "verdict.json").read_text()) == second.document
    found = spark.read.parquet(f"{out}/tables/violations")
    assert [(row.invariant, row.batch) for row in found.collect()] == [("H1", "0")]


def test_a_torn_segment_is_a_hole_and_no_crash(
    spark: SparkSession, tmp_path: Path, history
) -> None:
    source = tmp_path / "history"
    history.boot()
    history.row("gc_run", count=0)
    _, torn = history.write(source, segments=2)
    torn.write_bytes(torn.read_bytes()[:50])
    verdict = run(spark, str(source), str(tmp_path / "out"), progress=_quiet, parts=LOG)
    assert verdict.status == "violated"
    (witness,) = verdict.document["invariants"]["H1"]["witnesses"]
    assert witness["reason"] == f"unreadable segment {torn.name}"


def test_a_verdict_alone_has_no_tables_and_what_is_suppressed_does_not_count(
    spark: SparkSession, tmp_path: Path, history
) -> None:
    source, out = tmp_path / "history", tmp_path / "out"
    history.boot()
    history.row("gc_run", count=0)
    history.lose(3)
    for _ in range(2):
        history.row("gc_run", count=0)
    history.row("shutdown")
    last = history.write(source, segments=3)[-1]
    rule = Rule("H1", "segments were deleted by hand", date(2026, 12, 1), node="n1")
    late = last.rename(tmp_path / last.name)
    wishes = Wishes(verdict_only=True, rules=[rule], today=date(2026, 11, 1))
    told = run(spark, str(source), str(out), progress=_quiet, parts=LOG, wishes=wishes)
    found = told.document["invariants"]["H1"]
    # No violation counts, but what was in the hole is as unknown as before.
    assert (told.exit_code, found["status"]) == (3, "unknown")
    assert (found["violated"], found["suppressed"]) == (1, 1)
    assert found["witnesses"][0]["suppressed"] == "segments were deleted by hand"
    assert told.document["totals"]["H1"]["violated"] == 0
    assert [each["state"] for each in told.document["suppressions"]] == ["used"]
    assert sorted(each.name for each in out.iterdir()) == ["state", "verdict.json", "verdicts"]

    # Without a rule it counts again, and the other way round; nothing else is judged again.
    bare = run(spark, str(source), str(out), progress=_quiet, parts=LOG)
    assert (bare.exit_code, bare.document["totals"]["H1"]["violated"]) == (2, 1)
    assert json.loads((out / "verdict.json").read_text()) == bare.document
    again = run(spark, str(source), str(out), progress=_quiet, parts=LOG, wishes=wishes)
    assert again.document == told.document
    assert batch_state.load(spark, str(out)).totals == told.document["totals"]

    late.rename(last)
    after = run(spark, str(source), str(out), progress=_quiet, parts=LOG)
    assert after.document["batch"] == 1, "the state of the verdict alone was kept"
    assert (out / "tables" / "violations" / "batch=1").is_dir()
    assert (out / "stories" / "batch-00000001.json").read_text().startswith("[")


def test_no_segment_is_said_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NothingToAudit, match="no segment of a history"):
        run(spark, str(tmp_path), str(tmp_path / "out"), progress=_quiet, parts=LOG)
