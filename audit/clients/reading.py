"""Read the logs of clients: JSON lines or Parquet, each record checked by a worker.

A record that is not as docs/audit-clients.md says ends the audit with one line that names it:
nothing is left out silently, because what a log lacks would look like a loss.
"""

import gzip
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from audit.clients import records
from audit.clients.places import LogError
from audit.files import is_local
from audit.spark import frame_of

_KINDS: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "boolean": pa.bool_(),
}
DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in records.FIELDS.items())
_BAD: Final = ("problem", "file", "line")
_CHECKED: Final = f"{DDL}, problem string, file string, line string"
_ARROW: Final = pa.schema(
    [
        *((name, _KINDS[kind]) for name, kind in records.FIELDS.items()),
        *((name, pa.string()) for name in _BAD),
    ]
)
BATCH: Final = 10_000


def read(spark: SparkSession, places: Sequence[str]) -> DataFrame:
    """Return the records of all logs, each once. Raises LogError."""
    tables = [place for place in places if place.endswith(".parquet")]
    texts = [place for place in places if not place.endswith(".parquet")]
    frames = [_table(spark, place) for place in tables]
    if texts:
        lines = spark.read.text(texts).select("value", F.col("_metadata.file_path").alias("file"))
        frames.append(lines.where(F.trim("value") != "").mapInArrow(_of_lines(), _CHECKED))
    checked = frame_of(spark, [], _CHECKED)
    for frame in frames:
        checked = checked.unionByName(frame)
    checked = checked.persist(StorageLevel.DISK_ONLY)  # read and checked once
    bad = checked.where("problem IS NOT NULL").limit(1).collect()
    if bad:
        raise LogError(_told(bad[0].file, bad[0].line, bad[0].problem, texts))
    return checked.drop(*_BAD).dropDuplicates(["log", "n"])


def _table(spark: SparkSession, place: str) -> DataFrame:
    frame = spark.read.parquet(place)
    kinds = dict(frame.dtypes)
    for name in ("log", "n", "client_id", "at_us", "event"):
        if name not in kinds:
            raise LogError(f"{place}: {name}: expected this column, found none")
    columns = []
    for name, kind in records.FIELDS.items():
        column = F.col(f"`{name}`") if name in kinds else F.lit(None)
        if name == "v":
            column = F.coalesce(column, F.lit(records.VERSION))
        columns.append(column.try_cast(kind).alias(name))
        if name in kinds and not _is_like(kinds[name], kind) and _has(frame, name):
            raise LogError(f"{place}: {name}: expected a column of {kind}, found {kinds[name]}")
    named = frame.select(*columns, F.lit(place).alias("file"))
    return named.mapInArrow(_of_rows(), _CHECKED)


def _has(frame: DataFrame, name: str) -> bool:
    """Return whether a column has a value; without any, its type says nothing."""
    return not frame.where(F.col(f"`{name}`").isNotNull()).limit(1).isEmpty()


def _is_like(found: str, wanted: str) -> bool:
    if wanted in ("int", "long"):
        return found in ("tinyint", "smallint", "int", "bigint")
    return found == wanted


def _told(file: str, line: str, problem: str, texts: Sequence[str]) -> str:
    """Return the one line about a bad record; its number is looked up in a local file."""
    place = file.removeprefix("file:")
    place = "/" + place.lstrip("/") if file.startswith("file:") else file
    if texts and is_local(place) and not line.startswith("n "):
        number = _number_of(place, line)
        if number is not None:
            return f"{place}: line {number}: {problem}"
    return f"{place}: {line[:60]}: {problem}"


def _number_of(place: str, line: str) -> int | None:
    opened: IO[str]
    try:
        if place.endswith(".gz"):
            opened = gzip.open(place, "rt", encoding="utf-8", errors="replace")
        else:
            opened = open(place, encoding="utf-8", errors="replace")
        with opened as lines:
            for number, text in enumerate(lines, 1):
                if text.rstrip("\r\n") == line:
                    return number
    except OSError:
        return None  # it was there when Spark read it: the text of the line says enough
    return None


_Run = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _of_lines() -> _Run:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = []
            lines = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            for line, file in lines:
                record, problem = records.parsed(line)
                found.append(_checked(record, problem, file, line))
            yield _batch(found)

    return run


def _of_rows() -> _Run:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = []
            for record in batch.to_pylist():
                file = record.pop("file")
                name = f"n {record['n']} of log {record['log']!r}"
                found.append(_checked(record, records.problem(record), file, name))
            yield _batch(found)

    return run


def _checked(
    record: dict[str, object], problem: str | None, file: str, line: str
) -> tuple[object, ...]:
    if problem is None:
        return (*records.row(record), None, None, None)
    return (*(None for _ in records.FIELDS), problem, file, line)


def _batch(found: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) or [()] * len(_ARROW)
    arrays = [
        pa.array(list(column), each.type) for column, each in zip(columns, _ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
