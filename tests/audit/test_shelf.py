"""Frames that are kept while a run lasts."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from audit.shelf import Shelf


def test_a_frame_is_made_once_and_is_there_until_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    made: list[int] = []

    def make() -> DataFrame:
        made.append(1)
        return spark.range(3).selectExpr("id", "array(named_struct('a', id)) AS nested")

    shelf = Shelf(spark, str(tmp_path / "work"))
    first = shelf.keep("some numbers", make)
    second = shelf.keep("some numbers", make)
    assert len(made) == 1
    assert sorted(row.id for row in second.collect()) == [0, 1, 2]
    assert first.dtypes == make().dtypes
    shelf.clear()
    assert not (tmp_path / "work").exists()


def test_what_a_killed_run_left_is_nobody_elses(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "work")
    Shelf(spark, place).keep("numbers", lambda: spark.range(3).toDF("id"))
    again = Shelf(spark, place)
    assert again.keep("numbers", lambda: spark.range(1).toDF("id")).count() == 1
