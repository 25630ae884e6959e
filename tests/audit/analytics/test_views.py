"""The views: what the documentation says of them, over tables as runs write them."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from audit.analytics import views
from tests.audit.numbers import Numbers
from tests.audit.scenario import MESSAGES

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "audit_in_duckdb.py"
IN_DUCKDB = {
    "string": "VARCHAR", "long": "BIGINT", "int": "INTEGER", "double": "DOUBLE",
    "boolean": "BOOLEAN", "time": "TIMESTAMP WITH TIME ZONE",
}  # fmt: skip
IN_SPARK = {"long": "bigint", "time": "timestamp"}
DAY_US = 86_400_000_000


def write(out: Path, name: str, batch: int, rows: list[dict[str, object]]) -> None:
    """Write a table of a batch."""
    folder = out / "tables" / name / f"batch={batch}"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The results of two small runs."""
    for batch, lost in enumerate((1, 2)):
        write(tmp_path, "clients", batch, [
            {"tenant": "t", "client_id": f"c{batch}", "connects": 5, "takeovers": 0, "lost": lost,
             "messages": 1, "total_bytes": 10, "deliveries": 3},
            {"tenant": "t", "client_id": "both", "connects": 1, "takeovers": 0, "lost": 0,
             "messages": 0, "total_bytes": 0, "deliveries": 0},
        ])  # fmt: skip
        write(tmp_path, "sessions", batch, [
            {"node": "n", "session": 1, "client_id": "c", "tenant": "t",
             "state": ("open", "ended")[batch], "created_at": None, "last_at": None,
             "ended_at": None, "connects": batch, "takeovers": 0, "expiry_s": 1, "subs": 0,
             "inflight": 0},
        ])  # fmt: skip
    write(tmp_path, "violations", 1, [
        {"invariant": "L2", "witness": '{"what": "lost", "node": "n", "msg": 4}'},
        {"invariant": "L2", "witness": '{"what": "lost", "node": "n", "suppressed": "why"}'},
    ])  # fmt: skip
    write(tmp_path, "fates", 0, [{"minute": DAY_US, "fate": "delivered", "count": 8}])
    write(tmp_path, "latency", 0, [{"tenant": "t", "client_id": "c", "bucket": 4, "count": 9}])
    return tmp_path


def test_batches_are_added_up_and_what_changed_is_as_last_known(out: Path) -> None:
    database = duckdb.connect()
    database.execute(views.sql(str(out), "duckdb"))

    def rows(question: str) -> list[tuple[object, ...]]:
        return database.execute(question).fetchall()

    assert rows("SELECT client_id, connects, lost FROM audit_clients ORDER BY client_id") == [
        ("both", 2, 0), ("c0", 5, 1), ("c1", 5, 2),
    ]  # fmt: skip
    assert rows("SELECT state, connects FROM audit_sessions") == [("ended", 1)]
    assert rows("SELECT batch, what, node, msg, suppressed FROM audit_violations ORDER BY msg") == [
        (1, "lost", "n", 4, None), (1, "lost", "n", None, "why"),
    ]  # fmt: skip
    assert rows("SELECT from_ms, to_ms, number FROM audit_latency")[0][0::2] == (4.0, 9)
    assert rows("SELECT minute::VARCHAR FROM audit_fates")[0][0].startswith("1970-01-02")  # type: ignore[attr-defined]


def test_a_table_that_is_not_there_has_no_view(out: Path) -> None:
    shutil.rmtree(out / "tables" / "fates")
    assert "audit_fates" not in views.sql(str(out), "duckdb")
    assert "audit_fates" in views.sql("s3a://bucket/out", "spark")


def test_a_place_may_have_any_name(tmp_path: Path, out: Path) -> None:
    place = tmp_path / "it's"
    shutil.copytree(out / "tables" / "fates", place / "tables" / "fates")
    database = duckdb.connect()
    database.execute(views.sql(str(place), "duckdb"))
    assert database.execute("SELECT number FROM audit_fates").fetchall() == [(8,)]


def test_the_documentation_has_every_view_with_its_columns() -> None:
    text = (ROOT / "docs" / "audit.md").read_text()
    assert "\n".join(views.documented()) in text


def test_the_example_answers_its_questions(out: Path, tmp_path: Path) -> None:
    command = tmp_path / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m broker "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(out)], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}",
             "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for title in runpy.run_path(str(EXAMPLE))["QUESTIONS"]:
        assert title in done.stdout
    assert "   L2 n 2 1\n" in done.stdout
    assert "   t c1 5 2\n   t c0 5 1\n" in done.stdout
    assert "   c 9 4.0\n" in done.stdout


def test_the_columns_of_real_tables_are_those_of_the_documentation(
    spark: SparkSession, halves: Numbers
) -> None:
    """Both engines say so, and both count the messages of the scenario."""
    database = duckdb.connect()
    database.execute(views.sql(str(halves.out), "duckdb"))
    there = [name for name, view in views.VIEWS.items()
             if (halves.out / "tables" / view.table).is_dir()]  # fmt: skip
    assert {"audit_violations", "audit_books", "audit_clients", "audit_fates"} <= set(there)
    for name in there:
        told = {column: kind for column, kind, _ in views.VIEWS[name].columns}
        found = {row[0]: row[1] for row in database.execute(f"DESCRIBE {name}").fetchall()}
        assert found == {column: IN_DUCKDB[kind] for column, kind in told.items()}, name
        spark.sql(views.statement(name, str(halves.out), "spark").rstrip(";"))
        kinds = dict(spark.table(name).dtypes)
        assert kinds == {column: IN_SPARK.get(kind, kind) for column, kind in told.items()}, name
    accepted = "SELECT sum(number) FROM audit_books WHERE stage = 'accepted' AND source = 'events'"
    assert database.execute(accepted).fetchall() == [(MESSAGES,)]
    assert [row[0] for row in spark.sql(accepted).collect()] == [MESSAGES]
