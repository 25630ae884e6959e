"""A database as a data source of Spark: `spark.read.format("holdfast")`.

    spark.dataSource.register(HoldfastSource)
    spark.read.format("holdfast").option("table", "sessions").load("/var/lib/holdfast")

Options: `path`, a checkpoint or a data directory; `table`, by default the history; `damaged`, fail
or skip; `node`, the name that rows of the history get; `waiting_max`, how far a queue is counted.
The path has to be there on every machine that reads. It takes no filters from Spark: 4.3.0 forgets
that it has handed one over, and counts wrongly ever after. docs/forensics.md has the tables and
examples. Read next: `audit.database.reading`.
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

# The types of columns as Spark calls them.
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
    """One table of one database. Every fault of the options or the database is a `SourceError`."""

    @classmethod
    def name(cls) -> str:
        """Return what `format` calls it."""
        return NAME

    def schema(self) -> str:
        """Return the columns of the table."""
        columns = columns_of(_table(self.options))
        return ", ".join(f"`{name}` {_DDL[kind]}" for name, kind in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the table."""
        return HoldfastReader(self.options)


class _Piece(InputPartition):
    """What one opening of the database reads, on its way to whoever does."""

    def __init__(self, parts: list[Part]) -> None:
        super().__init__(None)
        self.parts = parts


class HoldfastReader(DataSourceReader):
    """Reads a table in parts, each with an opening of its own.

    The database of a running broker is opened once, because each opening is another moment.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._table = _table(options)

    def partitions(self) -> list[InputPartition]:
        """Return what can be read at the same time; looks at the database and reads no rows."""
        with open_with(self._options) as database:
            parts = plan(database, self._table)
            if database.is_live or not parts:  # Spark wants one piece at least
                return [_Piece(parts)]
        return [_Piece([part]) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        assert isinstance(partition, _Piece)
        with open_with(self._options) as database:
            for part in partition.parts:
                yield from read(database, self._table, part)


def open_with(options: Mapping[str, str]) -> Database:
    """Open the database that options name; raises `SourceError`."""
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
    """Return the events that the database at `path` still holds, as those of segments are read.

    They are what was not exported yet, and have the columns of `audit.input.events.SCHEMA`. `node`
    has to be the broker's name if both are to be joined; by default it is read from the data
    directory. Raises `SourceError` if there is no database of ours, before Spark has anything to
    do.
    """
    options = {"path": path, "node": node, "damaged": damaged}
    open_with(options).close()
    spark.dataSource.register(HoldfastSource)
    return spark.read.format(NAME).options(table=HISTORY, **options).load().select(*NAMES)


def frame_beyond(
    spark: SparkSession, path: str, exported: Mapping[tuple[str, int], int], *, node: str = ""
) -> DataFrame:
    """Return the events of the database at `path` that no segment has.

    `exported` says of each (node, boot) up to which seq segments go. A database that does not know
    its node's name takes it from there, if there is but one. Raises `SourceError`.
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
