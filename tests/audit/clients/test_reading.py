"""Logs of clients are read whole, each record once, or one line says what is wrong and where."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from audit.clients.places import LogError
from audit.clients.reading import read
from tests.audit.clients.logbook import Logbook
from tests.audit.conftest import History


def records() -> list[dict[str, object]]:
    """Return three records."""
    history = History()
    history.boot()
    client = Logbook(history, "c", 1)
    client.connect(present=False)
    client.publish(1, "t", "one")
    return client.records


def lines(*found: dict[str, object]) -> str:
    """Return records as lines of JSON, fields that are null left out."""
    short = [{name: value for name, value in each.items() if value is not None} for each in found]
    return "".join(json.dumps(each) + "\n" for each in short)


def test_json_lines_and_parquet_are_read_and_each_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, two, three = records()
    (tmp_path / "a.jsonl").write_text(lines(one, two) + "\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(two).encode()))
    pq.write_table(pa.Table.from_pylist([two, three]), tmp_path / "c.parquet")
    found = read(spark, [str(path) for path in sorted(tmp_path.iterdir())])
    told = sorted(found.collect(), key=lambda row: row.n)
    assert [(row.n, row.event, row.topic) for row in told] == [
        (1, "connected", None),
        (2, "published", "t"),
        (3, "puback", None),
    ]


def test_a_bad_record_is_named_with_file_and_line(spark: SparkSession, tmp_path: Path) -> None:
    one, two, _ = records()
    text = tmp_path / "a.jsonl"
    text.write_text(lines(one, {**two, "bytes": -1}))
    with pytest.raises(LogError) as problem:
        read(spark, [str(text)])
    assert str(problem.value) == (
        f"{text}: line 2: bytes: expected a whole number from 0 to 268435455, found -1"
    )
    table = tmp_path / "b.parquet"
    pq.write_table(pa.Table.from_pylist([{**two, "qos": 7}]), table)
    with pytest.raises(LogError) as problem:
        read(spark, [str(table)])
    assert str(problem.value) == (
        f"{table}: n 2 of log 'log-c': qos: expected a whole number from 0 to 2, found 7"
    )
    pq.write_table(pa.table({"log": ["a"], "n": ["1"], "client_id": ["c"]}), table)
    with pytest.raises(LogError, match="at_us: expected this column, found none"):
        read(spark, [str(table)])
    wrong = pa.Table.from_pylist([{**two, "n": "1"}])
    pq.write_table(wrong, table)
    with pytest.raises(LogError, match="n: expected a column of long, found string"):
        read(spark, [str(table)])
