"""Which segments a run reads."""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from audit.input.events import gseq
from audit.input.segments import find, readable


def test_segments_are_found_by_their_names(spark: SparkSession, tmp_path: Path, history) -> None:
    history.node = "node-with-dashes"
    history.boot()
    history.row("gc_run")
    written = history.write(tmp_path, segments=2)
    (tmp_path / "other.parquet").write_bytes(b"")
    (tmp_path / "_temporary.parquet").write_bytes(b"")
    found = find(spark, str(tmp_path))
    assert [segment.path for segment in found] == [str(path) for path in written]
    assert [(s.node, s.boot, s.first_seq, s.last_seq, s.hour) for s in found] == [
        ("node-with-dashes", 1, 1, 1, "2026-01-02T03"),
        ("node-with-dashes", 1, 2, 2, "2026-01-02T03"),
    ]
    assert (found[1].gap.from_gseq, found[1].gap.to_gseq) == (gseq(1, 2), gseq(1, 2))
    four = datetime(2026, 1, 2, 4, tzinfo=UTC)
    assert find(spark, str(tmp_path), start=four) == []
    assert len(find(spark, str(tmp_path), end=four)) == 2
    assert find(spark, str(tmp_path), end=four.replace(hour=3)) == []


def test_what_is_torn_or_not_what_its_name_says_is_not_read(
    spark: SparkSession, tmp_path: Path, history
) -> None:
    history.boot()
    for _ in range(3):
        history.row("gc_run")
    good, torn, renamed, empty = history.write(tmp_path, segments=4)
    torn.write_bytes(torn.read_bytes()[:-20])
    renamed.rename(renamed.with_name(renamed.name.replace("0003", "0007")))
    empty.write_bytes(b"")
    whole, bad = readable(find(spark, str(tmp_path)))
    assert [segment.path for segment in whole] == [str(good)]
    assert len(bad) == 3
