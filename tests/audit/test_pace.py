"""What a small run does otherwise, and that it leaves no trace of it."""

import threading

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from audit.input.kept_rows import few
from audit.pace import SMALL, SMALL_ROWS_MAX, in_few_files, is_small, paced, together


def test_a_run_is_small_up_to_a_number_of_rows(spark: SparkSession) -> None:
    for rows, small in ((0, True), (SMALL_ROWS_MAX, True), (SMALL_ROWS_MAX + 1, False)):
        with paced(spark, rows) as said:
            assert (said, is_small(spark)) == (small, small)


def test_the_settings_are_as_before_when_a_run_has_ended(spark: SparkSession) -> None:
    names = [*SMALL, "spark.sql.shuffle.partitions"]
    before = {name: spark.conf.get(name, None) for name in names}
    for rows in (1, SMALL_ROWS_MAX + 1):
        with pytest.raises(KeyError), paced(spark, rows):
            raise KeyError
        assert {name: spark.conf.get(name, None) for name in names} == before


def test_a_small_run_does_several_things_at_once_and_tells_them_in_order(
    spark: SparkSession,
) -> None:
    met = threading.Barrier(2)  # passed only if both wait at the same time

    def first() -> int:
        met.wait(60)
        return spark.range(3).count()

    def second() -> int:
        met.wait(60)
        return 2

    with paced(spark, 1):
        assert list(together(spark, [first, second])) == [3, 2]


def test_a_large_run_does_one_thing_after_the_other(spark: SparkSession) -> None:
    here: list[int] = []
    with paced(spark, SMALL_ROWS_MAX + 1):
        assert list(together(spark, [lambda: here.append(1), lambda: here.append(2)])) == [None] * 2
    assert here == [1, 2]


@pytest.mark.parametrize("rows", [1, SMALL_ROWS_MAX + 1])
def test_an_error_of_one_thing_is_raised(spark: SparkSession, rows: int) -> None:
    def fails() -> int:
        raise KeyError("this one")

    with paced(spark, rows), pytest.raises(KeyError, match="this one"):
        list(together(spark, [lambda: 1, fails]))


def test_only_a_large_run_copies_small_tables_to_all_tasks(spark: SparkSession) -> None:
    table = spark.range(10).withColumn("other", F.col("id") + 1)
    for rows, copied in ((1, False), (SMALL_ROWS_MAX + 1, True)):
        with paced(spark, rows):
            joined = spark.range(5).join(few(table), "id")
            assert ("BroadcastHashJoin" in _plan(joined)) is copied
            assert joined.count() == 5


def test_only_a_small_run_writes_a_table_by_one_task_whatever_its_size(
    spark: SparkSession,
) -> None:
    adaptive = "spark.sql.adaptive.enabled"  # which the Spark of tests has turned off
    before = spark.conf.get(adaptive)
    table = spark.range(9, numPartitions=3)
    with paced(spark, 1):
        assert "Coalesce 1" in _plan(in_few_files(table))
    with paced(spark, SMALL_ROWS_MAX + 1):
        spark.conf.set(adaptive, "true")
        try:
            plan = _plan(in_few_files(table))
        finally:
            spark.conf.set(adaptive, str(before))
    assert "REBALANCE" in plan and "Coalesce" not in plan


def _plan(frame: object) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[attr-defined]
