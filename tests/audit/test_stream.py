"""The audit as a stream: new segments become batches, and what was done is not done again."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from audit import log_checks
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
