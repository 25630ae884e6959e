"""Reading segments: the schema, the order, and which folders are read."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from audit.input.events import NAMES, boot_of, gseq, read, seq_of
from storage.history.events import COLUMNS


def test_a_gseq_is_boot_and_seq() -> None:
    place = gseq(3, 70_000)
    assert (boot_of(place), seq_of(place)) == (3, 70_000)
    assert gseq(2, 1 << 39) < gseq(3, 1)


def test_every_column_of_the_history_is_read(spark: SparkSession, tmp_path: Path, history) -> None:
    history.boot()
    history.row("msg_accepted", topic="a/b", msg=7, qos=1, retain=True, at=history.time(9.5))
    history.write(tmp_path)
    frame = read(spark, str(tmp_path))
    assert frame.columns == [*(name for name, _ in COLUMNS), "gseq", "carried"]
    row = frame.where("ev = 'msg_accepted'").collect()[0]
    assert (row.topic, row.msg, row.qos, row.retain, row.gseq) == ("a/b", 7, 1, True, gseq(1, 2))
    assert row.carried is False
    assert row.share is None


def test_a_column_that_old_segments_do_not_have_is_null(
    spark: SparkSession, tmp_path: Path, history
) -> None:
    history.boot()
    path = history.write(tmp_path)[0]
    table = pq.ParquetFile(path).read()
    pq.write_table(table.drop_columns(["check2", "detail"]), path)
    row = read(spark, str(tmp_path)).collect()[0]
    assert (row.detail, row.check2) == (None, None)


def test_only_the_folders_of_the_hours_are_read(
    spark: SparkSession, tmp_path: Path, history
) -> None:
    history.boot()
    history.write(tmp_path)  # hour 03
    history.rows.clear()
    history.row("gc_run", wait=3600, count=0)
    history.write(tmp_path)  # hour 04
    four = datetime(2026, 1, 2, 4, tzinfo=UTC)
    evs = [row.ev for row in read(spark, str(tmp_path), start=four).collect()]
    assert evs == ["gc_run"]
    evs = [row.ev for row in read(spark, str(tmp_path), end=four).collect()]
    assert evs == ["boot"]
    evs = [row.ev for row in read(spark, str(tmp_path), end=four.replace(minute=1)).collect()]
    assert sorted(evs) == ["boot", "gc_run"]


def test_named_segments_are_read_and_no_others(
    spark: SparkSession, tmp_path: Path, history
) -> None:
    history.boot()
    history.row("gc_run")
    first, second = history.write(tmp_path, segments=2)
    assert [row.ev for row in read(spark, str(tmp_path), files=[str(first)]).collect()] == ["boot"]
    assert [row.ev for row in read(spark, str(tmp_path), files=[str(second)]).collect()] == [
        "gc_run"
    ]
    empty = read(spark, str(tmp_path), files=[])
    assert empty.count() == 0
    assert set(NAMES) < set(empty.columns)
