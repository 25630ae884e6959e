"""The history as a DataFrame: Parquet segments, read with an explicit schema.

`gseq` (boot << 40 | seq) is the order of all rows of a node; never order by `ts`. `carried` marks
rows that an earlier run has already counted and kept for this one.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from audit.spark import frame_of
from storage.history.events import COLUMNS

SEQ_BITS: Final = 40  # of a gseq, of a session and of a message that was never stored

_TYPES: Final[dict[str, DataType]] = {
    "dict": StringType(),
    "string": StringType(),
    "time": TimestampType(),
    "bool": BooleanType(),
    "int8": ByteType(),
    "int16": ShortType(),
    "int32": IntegerType(),
    "int64": LongType(),
}

# Explicit, because Spark silently drops a column that only newer segments have.
SCHEMA: Final = StructType([StructField(name, _TYPES[kind]) for name, kind in COLUMNS])
NAMES: Final = tuple(name for name, _ in COLUMNS)


def gseq(boot: int, seq: int) -> int:
    """Return the place of event `seq` of `boot` in the order of its node."""
    return boot << SEQ_BITS | seq


def boot_of(place: int) -> int:
    """Return the boot of a gseq."""
    return place >> SEQ_BITS


def seq_of(place: int) -> int:
    """Return the seq, within its boot, of a gseq."""
    return place & ((1 << SEQ_BITS) - 1)


def read(
    spark: SparkSession,
    directory: str,
    start: datetime | None = None,
    end: datetime | None = None,
    files: Iterable[str] | None = None,
) -> DataFrame:
    """Return the events in `directory`: the columns of SCHEMA, `gseq` and `carried` (false).

    With `files`, exactly those segments are read and `start` and `end` are ignored. Otherwise all
    segments in the folders of hours from `start` up to `end` (excluded): a segment is never split,
    because its numbers must stay without holes. Times without a zone are UTC.
    """
    reader = spark.read.schema(SCHEMA)
    if files is not None:
        paths = list(files)
        frame = reader.parquet(*paths) if paths else frame_of(spark, [], SCHEMA)
    else:
        frame = reader.parquet(directory)
        if "hour" in frame.columns:
            folder = F.concat_ws("T", F.col("date").cast("string"), F.col("hour").cast("string"))
            if start is not None:
                frame = frame.where(folder >= F.lit(f"{start:%Y-%m-%dT%H}"))
            if end is not None:
                frame = frame.where(_before(folder, end))
    return frame.select(*NAMES, gseq_column().alias("gseq"), F.lit(False).alias("carried"))


def carried(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows that an earlier run kept in `path`, marked as carried."""
    frame = spark.read.schema(SCHEMA).parquet(path)
    return frame.select(*NAMES, gseq_column().alias("gseq"), F.lit(True).alias("carried"))


def gseq_column() -> Column:
    """Return the expression of a row's place in the order of its node."""
    return F.shiftleft(F.col("boot"), SEQ_BITS).bitwiseOR(F.col("seq"))


def _before(folder: Column, end: datetime) -> Column:
    """Return the condition that a folder of an hour begins before `end`."""
    last = f"{end:%Y-%m-%dT%H}"
    inside = end.minute or end.second or end.microsecond
    return folder <= F.lit(last) if inside else folder < F.lit(last)
