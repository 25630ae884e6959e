"""The audit as a stream: new segments become batches, and what was done is not done again."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from audit.checks import log_checks
from audit.run import Part
from audit.stream import watch
from tests.audit.conftest import History

LOG = (Part("the log", log_checks.check),)


def segments_of(folder: Path) -> list[Path]:
    """Write a history of two segments."""
    history = History("a")
    history.boot()
    for _ in range(9):
        history.row("gc_run", count=0)
    return history.write(folder, segments=2)


def test_new_segments_are_audited_once_each(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "history", tmp_path / "out"
    first, second = segments_of(folder)
    second.rename(tmp_path / "hidden")
    seen: list[tuple[int, int, str]] = []

    def done(document: dict[str, Any], exit_code: int) -> None:
        seen.append((document["batch"], document["rows"], document["status"]))

    def look() -> None:
        watch(spark, str(folder), str(out), every_s=None, progress=lambda _: None, done=done,
              parts=LOG)  # fmt: skip

    look()
    (tmp_path / "hidden").rename(second)
    look()
    look()
    assert seen == [(0, 5, "ok"), (1, 5, "ok")]
    # A micro-batch that is played again, as after a crash before its commit, finds nothing new.
    (out / "state" / "stream" / "commits" / "1").unlink()
    (out / "state" / "stream" / "commits" / ".1.crc").unlink(missing_ok=True)
    look()
    assert seen[2:] == [(1, 5, "ok")]
    assert sorted(path.name for path in (out / "tables" / "violations").iterdir()) == [
        "batch=0", "batch=1",
    ]  # fmt: skip
    assert json.loads((out / "verdict.json").read_text())["batch"] == 1
    assert first.exists()


def test_a_torn_segment_and_a_file_that_is_none_do_not_end_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, out = tmp_path / "history", tmp_path / "out"
    first, second = segments_of(folder)
    second.write_bytes(second.read_bytes()[:-9])
    (first.parent / "of-somebody-else.parquet").write_text("no Parquet")
    seen: list[tuple[str, int]] = []
    watch(spark, str(folder), str(out), every_s=None, progress=lambda _: None, parts=LOG,
          done=lambda document, _: seen.append((document["status"], document["rows"])))  # fmt: skip
    assert seen == [("violated", 5)]


def test_what_ends_a_batch_is_said_as_a_run_says_it(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "history", tmp_path / "out"
    segments_of(folder)
    (out / "state").mkdir(parents=True)
    (out / "state" / "batch-00000000.json").write_text('{"version": 7}')
    with pytest.raises(ValueError, match="state of version 7"):
        watch(spark, str(folder), str(out), every_s=None, progress=lambda _: None, parts=LOG,
              done=lambda *_: None)  # fmt: skip
