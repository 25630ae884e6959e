"""The settings that keep a local audit right: time zone, ANSI, loopback, no page on a port."""

import sys
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import audit.spark
from audit.spark import frame_of


def test_times_are_utc_and_overflows_are_errors(spark: SparkSession) -> None:
    row = spark.sql("select date_format(timestamp_seconds(0), 'yyyy-MM-dd HH:mm') as t").first()
    assert row is not None and row.t == "1970-01-01 00:00"
    with pytest.raises(PySparkException):
        spark.range(1).select(F.expr("cast(9223372036854775807 as bigint) + 1")).collect()


def test_nothing_listens_beyond_the_loopback_address(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"


def test_a_small_run_has_one_compiler() -> None:
    small, large = (audit.spark._java_options(small=small) for small in (True, False))
    assert "-XX:TieredStopAtLevel=1" in small and "-XX:TieredStopAtLevel=1" not in large
    assert "-XX:Tier4InvocationThreshold" in large
    assert "log4j2.properties" in small and "log4j2.properties" in large


def test_workers_run_this_python(spark: SparkSession) -> None:
    ran = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert ran == [sys.executable]


def test_the_session_of_the_process_is_used_again(spark: SparkSession) -> None:
    again = audit.spark.session("again", conf={"spark.sql.shuffle.partitions": "2"})
    assert again.sparkContext is spark.sparkContext


def test_a_few_rows_are_a_frame_without_a_worker(spark: SparkSession) -> None:
    rows = [("n1", 1, None), ("n2", 2, datetime(2026, 1, 2, tzinfo=UTC))]
    frame = frame_of(spark, rows, "node string, boot long, at timestamp")
    assert [tuple(row) for row in frame.select("node", "boot").collect()] == [("n1", 1), ("n2", 2)]
    assert [row.us for row in frame.selectExpr("unix_micros(at) AS us").collect()] == [
        None,
        1_767_312_000_000_000,
    ]
    assert frame_of(spark, [], "node string, boot long").collect() == []
