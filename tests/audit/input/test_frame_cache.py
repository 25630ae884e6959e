"""Frames that are kept while a run lasts."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from audit.input.frame_cache import Shelf


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
    assert list((tmp_path / "work" / "some-numbers").glob("*.parquet"))
    shelf.clear()
    assert not (tmp_path / "work").exists()


def test_a_shelf_below_another_has_frames_of_its_own_and_goes_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(spark, str(tmp_path / "work"))
    below = shelf.below("some traces")
    assert shelf.below("some traces") is below
    assert shelf.keep("numbers", lambda: spark.range(3)).count() == 3
    assert below.keep("numbers", lambda: spark.range(2)).count() == 2
    shelf.clear()
    assert not (tmp_path / "work").exists()
