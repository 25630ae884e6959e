"""Does Spark read a database as it is, and say in one line why it cannot?"""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from audit.checks import log_checks
from audit.database.reader import SourceError
from audit.database.spark_source import HoldfastReader, HoldfastSource, history_frame
from audit.input.events import SCHEMA
from audit.run import Part, Verdict, run
from storage.history.columns import expand_table
from storage.history.packed_rows import unpack
from storage.history.segments import write_segment
from storage.local.data_directory import DataDirectory
from storage.local.rocks import RocksStore
from storage.tables.tables import SESSIONS
from tests.audit.databases import NODE, harbour, rows_of, written
from tests.session.harness import Broker


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with something in every table."""
    return written(harbour("full"), tmp_path_factory.mktemp("harbour"))


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    """Spark that knows the format `holdfast`."""
    spark.dataSource.register(HoldfastSource)
    return spark


@pytest.fixture(scope="module")
def tables(source: SparkSession, data: Path) -> SparkSession:
    """Spark with views of the tables that examples ask."""
    for name in ("queues", "in_flight"):
        load(source, data, name).createOrReplaceTempView(name)
    return source


def load(spark: SparkSession, data: Path, name: str, **options: str) -> DataFrame:
    return spark.read.format("holdfast").options(table=name, **options).load(str(data))


def test_every_row_of_a_table_comes_with_its_types(tables: SparkSession, data: Path) -> None:
    found = [row.asDict() for row in load(tables, data, "sessions").collect()]
    for row in found:
        for name in ("created_at", "connected_at", "disconnected_at", "expires_at"):
            row[name] = row[name] and row[name].timestamp()
    wanted = rows_of(data, "sessions")
    for row in wanted:
        for name in ("created_at", "connected_at", "disconnected_at", "expires_at"):
            row[name] = row[name] and row[name].timestamp()
    assert sorted(found, key=lambda row: row["client_id"]) == wanted


def test_the_examples_of_the_documentation_answer(tables: SparkSession) -> None:
    text = (Path(__file__).parents[3] / "docs" / "forensics.md").read_text()
    largest, holds = [block.partition("```")[0] for block in text.split("```sql\n")[1:]]
    assert [tuple(row) for row in tables.sql(holds).collect()] == [
        ("boat", None, 3),
        ("crane", None, 3),
        ("pilot", None, 3),
        (None, "tugs", 3),
    ]
    assert tuple(tables.sql(largest).collect()[0]) == ("crane", None, 8)


def test_a_filter_changes_no_later_count(tables: SparkSession, data: Path) -> None:
    frame = load(tables, data, "queues")
    assert frame.where("client_id = 'boat'").count() == 2
    assert frame.count() == 9


def test_the_history_has_the_columns_of_segments(spark: SparkSession, data: Path) -> None:
    frame = history_frame(spark, str(data))
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in SCHEMA]
    rows = frame.orderBy("seq").collect()
    columns = ("node", "boot", "seq", "mono_ns", "ev", "client_id", "msg", "topic", "stream")
    wanted = rows_of(data, "history")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        tuple(row[name] for name in columns) for row in wanted
    ]
    assert len(wanted) > 30 and {row["node"] for row in wanted} == {NODE}
    (row,) = history_frame(spark, str(data), node="other").select("node").distinct().collect()
    assert row.node == "other"


def test_a_damaged_row_fails_the_job_in_one_line_or_is_left_out(
    tables: SparkSession, tmp_path: Path
) -> None:
    data = written(harbour(), tmp_path)
    store = RocksStore(data / "db")
    store.write([(SESSIONS, b"boat", b"torn")])
    store.close()
    with pytest.raises(PythonException, match=r"SourceError: .*damaged: session b'boat'"):
        load(tables, data, "sessions").collect()
    skipping = load(tables, data, "sessions", damaged="skip")
    assert {row.client_id for row in skipping.collect()} == {"crane", "ferry", "pilot", "tug"}


def test_what_is_no_database_is_said_before_spark_does_anything(
    source: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="no such directory"):
        history_frame(source, str(tmp_path / "nowhere"))
    with pytest.raises(AnalysisException, match="SourceError: table 'nix': expected one of"):
        load(source, tmp_path, "nix")


def test_a_run_looks_ahead_into_the_database_and_counts_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    broker = Broker(history_detail="full")
    broker.durable("c", "t").drop()
    for _ in range(4):
        broker.publish("t")
    data = written(broker, tmp_path / "data")
    ticks = [unpack(value[4:]) for _, value in broker.rows("history")]
    assert len(ticks) > 2
    write_segment(tmp_path / "history", expand_table(ticks[:2], NODE, 1), NODE, 1)
    total = sum(tick.events for tick in ticks)
    in_segment = ticks[0].events + ticks[1].events
    parts = (Part("the log", log_checks.check),)

    def audit(**options: str) -> Verdict:
        out = str(tmp_path / "out")
        return run(spark, str(tmp_path / "history"), out, progress=str, parts=parts, **options)  # type: ignore[arg-type]

    ahead = audit(from_db=str(data))
    assert ahead.document["rows"] == total > in_segment
    assert ahead.document["database"] == str(data)
    assert ahead.document["invariants"]["H1"]["violated"] == 0
    behind = audit()
    assert (behind.document["batch"], behind.document["rows"]) == (0, in_segment)
    assert "database" not in behind.document
    again = audit(from_db=str(data))
    assert (again.document["batch"], again.document["rows"]) == (1, total - in_segment)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "x", "tabel": "queues"}, "option 'tabel': expected one of path, table"),
        ({}, "option 'path': expected a checkpoint or a data directory"),
        ({"path": "x", "waiting_max": "many"}, "option 'waiting_max': 'many': expected a number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        HoldfastReader(options).partitions()


def test_a_running_broker_is_opened_once_a_table(data: Path) -> None:
    options = {"path": str(data), "table": "queues"}
    assert len(HoldfastReader(options).partitions()) == 2  # of sessions, and of groups
    lock = DataDirectory(data)
    try:
        assert len(HoldfastReader(options).partitions()) == 1
    finally:
        lock.close()
        (data / "lock").unlink()
