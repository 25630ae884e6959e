"""Frames that are kept while a run lasts."""

from concurrent.futures import ThreadPoolExecutor
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


def test_a_shelf_in_memory_writes_no_file_and_cuts_plans(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(spark, str(tmp_path / "work"), in_memory=True)
    kept = shelf.keep("doubled", lambda: spark.range(3).selectExpr("id * 2 AS twice"))
    assert sorted(row.twice for row in kept.collect()) == [0, 2, 4]
    assert "Range" not in kept._jdf.queryExecution().toString()
    assert shelf.below("more").keep("one", lambda: spark.range(1)).count() == 1
    assert not (tmp_path / "work").exists()
    shelf.clear()
    assert shelf.keep("doubled", lambda: spark.range(1)).count() == 1


def test_two_threads_that_want_a_frame_make_it_once(spark: SparkSession, tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> DataFrame:
        made.append(1)
        return spark.range(3)

    shelf = Shelf(spark, str(tmp_path / "work"), in_memory=True)
    with ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(lambda _: shelf.keep("numbers", make), range(8)))
    assert len(made) == 1 and all(frame is kept[0] for frame in kept)


def test_a_value_is_made_once_for_each_shelf_and_forgotten_at_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    shelf = Shelf(spark, str(tmp_path / "work"), in_memory=True)
    made: list[int] = []

    def make() -> int | None:
        made.append(1)
        return None  # a value, too

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: shelf.value("number", make), range(8))) == [None] * 8
    assert len(made) == 1
    assert shelf.below("more").value("number", lambda: 7) == 7
    shelf.clear()
    assert shelf.value("number", lambda: 9) == 9
