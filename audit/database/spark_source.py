"""A database as a data source of Spark: `spark.read.format("holdfast")`.

    spark.dataSource.register(HoldfastSource)
    spark.read.format("holdfast").option("table", "sessions").load("/var/lib/holdfast")

Options: `path`, a checkpoint or a data directory; `table`, by default the history; `damaged`, fail
or skip; `node`, the node name for rows of the history; `waiting_max`, the limit of counting a
queue. The path must exist on every machine that reads. It accepts no filters from Spark: Spark
4.3.0 forgets that it has pushed one down, and then counts wrongly. docs/forensics.md has the tables
and examples. Read next: `audit.database.reading`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from audit.database.reader import FAIL, NODE_UNKNOWN, WAITING_MAX, Database, SourceError
from audit.database.reading import HISTORY, columns_of, plan, read
from audit.database.table_columns import Part
from audit.input.events import NAMES

NAME: Final = "holdfast"
OPTIONS: Final = ("path", "table", "damaged", "node", "waiting_max")

# Spark's names of the column types.
_DDL: Final = {
    "dict": "string",
    "string": "string",
    "time": "timestamp",
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
}


class HoldfastSource(DataSource):
    """One table of one database. Errors of the options or the database raise `SourceError`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns of the table."""
        columns = columns_of(_table(self.options))
        return ", ".join(f"`{name}` {_DDL[kind]}" for name, kind in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the table."""
        return HoldfastReader(self.options)


class _Piece(InputPartition):
    """The parts that one opening of the database reads; sent to a worker."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__(None)
        self.parts = parts


class HoldfastReader(DataSourceReader):
    """Reads a table in parts, opening the database for each.

    The database of a running broker is opened only once, because each opening is another snapshot.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._table = _table(options)

    def partitions(self) -> list[InputPartition]:
        """Return the pieces that can be read in parallel; opens the database but reads no rows."""
        with open_with(self._options) as database:
            parts = plan(database, self._table)
            if database.is_live or not parts:  # Spark needs at least one piece
                return [_Piece(parts)]
        return [_Piece([part]) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        assert isinstance(partition, _Piece)
        with open_with(self._options) as database:
            for part in partition.parts:
                yield from read(database, self._table, part)


def open_with(options: Mapping[str, str]) -> Database:
    """Open the database given by the options; raises `SourceError`."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise SourceError(f"option {unknown[0]!r}: expected one of {', '.join(OPTIONS)}")
    path = options.get("path", "")
    if not path:
        raise SourceError("option 'path': expected a checkpoint or a data directory")
    most = options.get("waiting_max", str(WAITING_MAX))
    if not most.isdecimal() or int(most) == 0:
        raise SourceError(f"option 'waiting_max': {most!r}: expected a number above 0")
    return Database(
        path.removeprefix("file:"),
        damaged=options.get("damaged", FAIL),
        node=options.get("node", ""),
        waiting_max=int(most),
    )


def history_frame(
    spark: SparkSession, path: str, *, node: str = "", damaged: str = FAIL
) -> DataFrame:
    """Return the events that the database at `path` still holds, in the form of segment rows.

    They are the events not exported yet, with the columns of `audit.input.events.SCHEMA`. To join
    them with segments, `node` must be the broker's name; by default it is read from the data
    directory. Raises `SourceError` if there is no Holdfast database, before Spark does anything.
    """
    options = {"path": path, "node": node, "damaged": damaged}
    open_with(options).close()
    spark.dataSource.register(HoldfastSource)
    return spark.read.format(NAME).options(table=HISTORY, **options).load().select(*NAMES)


def frame_beyond(
    spark: SparkSession, path: str, exported: Mapping[tuple[str, int], int], *, node: str = ""
) -> DataFrame:
    """Return the events of the database at `path` that are in no segment.

    `exported` has, for each (node, boot), the last seq in a segment. A database without a node name
    takes it from there if there is only one. Raises `SourceError`.
    """
    if not node:
        with open_with({"path": path}) as database:
            node = database.node
        nodes = {name for name, _ in exported}
        if node == NODE_UNKNOWN and nodes:
            if len(nodes) > 1:
                raise SourceError(f"{path}: of which node? Expected one of {', '.join(nodes)}")
            node = nodes.pop()
    frame = history_frame(spark, path, node=node)
    for (name, boot), seq in sorted(exported.items()):
        if name == node:
            frame = frame.where((F.col("boot") != boot) | (F.col("seq") > seq))
    return frame


def _table(options: Mapping[str, str]) -> str:
    name = options.get("table", HISTORY)
    columns_of(name)
    return name
