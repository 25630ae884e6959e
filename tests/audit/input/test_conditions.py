"""Conditions of a whole fleet: flat enough for Spark's stack, and right."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from audit.input.conditions import any_of, value_of

FLEET = 2_000  # as a chain, a tenth of it overflows the stack


def test_one_of_many_conditions_holds_or_none(spark: SparkSession) -> None:
    frame = spark.range(0, FLEET + 2)
    wanted = any_of(F.col("id") == number for number in range(1, FLEET + 1))
    assert frame.where(wanted).count() == FLEET
    assert frame.where(any_of([])).count() == 0


def test_each_text_has_its_number_and_others_have_none(spark: SparkSession) -> None:
    frame = spark.range(0, 5).select(F.concat(F.lit("n"), F.col("id")).alias("node"))
    numbers = {f"n{number}": 10 * number for number in range(1, FLEET)}
    found = frame.select(value_of(F.col("node"), numbers, -1).alias("number")).collect()
    assert [row.number for row in found] == [-1, 10, 20, 30, 40]
    assert frame.select(value_of(F.col("node"), {}, 7)).distinct().collect()[0][0] == 7
