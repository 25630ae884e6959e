"""One Spark session for all tests of the audit, and histories written by hand."""

import itertools
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import audit.spark
from audit.events import read
from audit.view import Settings, View, build
from storage.history.events import COLUMNS

ARROW_TYPES = {
    "dict": pa.dictionary(pa.int32(), pa.string()),
    "string": pa.string(),
    "time": pa.timestamp("us", tz="UTC"),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
}
ARROW_SCHEMA = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in COLUMNS])
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark of all tests: two threads and 1 GB."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        pytest.skip("no Java: scripts/setup --test says how to get it")
    scratch = tmp_path_factory.mktemp("spark")
    started = audit.spark.session(
        "tests",
        master="local[2]",
        memory="1g",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )
    yield started
    started.stop()


class History:
    """A history written row by row: `row` counts seq and time, `write` makes segments of it.

    Times are seconds since START. Columns that are not named are null.
    """

    def __init__(self, node: str = "n1") -> None:
        self.rows: list[dict[str, object]] = []
        self.node = node
        self.number = 0
        self.seq = 0
        self.now = 0.0

    def row(self, ev: str, *, wait: float = 0.001, **columns: object) -> dict[str, object]:
        """Append an event `wait` seconds after the last one; its row, which may be edited."""
        self.now += wait
        self.seq += 1
        row: dict[str, object] = {
            "v": 1,
            "node": self.node,
            "boot": self.number,
            "seq": self.seq,
            "ts": self.time(self.now),
            "mono_ns": int(self.now * 1e9),
            "ev": ev,
            "actor": "broker",
            **columns,
        }
        self.rows.append(row)
        return row

    def boot(self, detail: str = "full", **columns: object) -> dict[str, object]:
        """Start the next boot: seq counts from 1 again."""
        before, self.seq = self.seq, 0
        self.number += 1
        return self.row("boot", **{"detail": detail, "count": before, "position": 0, **columns})

    def lose(self, count: int = 1) -> None:
        """Leave a hole of `count` rows."""
        self.seq += count

    def time(self, seconds: float) -> datetime:
        """Return the time so many seconds after START."""
        return START + timedelta(seconds=seconds)

    def write(self, directory: Path, segments: int = 1) -> list[Path]:
        """Write the rows as about so many segments per boot, named as the exporter names them."""
        written = []
        for (node, boot), group in itertools.groupby(
            self.rows, key=lambda row: (row["node"], row["boot"])
        ):
            rows = list(group)
            size = -(-len(rows) // segments)
            for part in (rows[at : at + size] for at in range(0, len(rows), size)):
                first, last = part[0], part[-1]
                ts = first["ts"]
                assert isinstance(ts, datetime)
                folder = directory / f"date={ts:%Y-%m-%d}" / f"hour={ts:%H}"
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{node}-{boot:08}-{first['seq']:016}-{last['seq']:016}.parquet"
                table = pa.Table.from_pylist(part, ARROW_SCHEMA)
                pq.write_table(table.replace_schema_metadata(_footer(part)), path)
                written.append(path)
        return written


def _footer(rows: list[dict[str, object]]) -> dict[str, str]:
    first, last = rows[0], rows[-1]
    return {
        "holdfast.schema": "1",
        "holdfast.node": str(first["node"]),
        "holdfast.boot": str(first["boot"]),
        "holdfast.first_seq": str(first["seq"]),
        "holdfast.last_seq": str(last["seq"]),
        "holdfast.rows": str(len(rows)),
    }


class Views:
    """Makes a View of a History: through Parquet, as a run does."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.made = 0

    def __call__(self, history: History, **settings: int) -> View:
        self.made += 1
        folder = self.folder / f"history-{self.made}"
        history.write(folder)
        return build(self.spark, read(self.spark, str(folder)), settings=Settings(**settings))


@pytest.fixture
def history() -> History:
    """An empty history of node n1."""
    return History()


@pytest.fixture
def view(spark: SparkSession, tmp_path: Path) -> Views:
    """Call it with a History to get the View of it."""
    return Views(spark, tmp_path)
