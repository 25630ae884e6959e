"""A run: batches that neither overlap nor forget, verdicts, exit codes."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from audit import batch_state
from audit.checks import log_checks
from audit.run import NothingToAudit, Part, run

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


def test_no_segment_is_said_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NothingToAudit, match="no segment of a history"):
        run(spark, str(tmp_path), str(tmp_path / "out"), progress=_quiet, parts=LOG)
