"""One Spark session for all tests of the audit, and histories written by hand."""

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from audit.checks.fold_findings import Findings
from audit.checks.session_lifetimes import Client
from audit.input import gaps
from audit.input.batch_view import MARKS, SESSION_EVENTS, Settings, View, build
from audit.input.events import gseq, read
from audit.input.fold_context import known
from audit.input.frame_cache import Shelf
from audit.input.segments import find
from audit.input.session_columns import COLUMNS as SESSION_COLUMNS
from audit.input.session_columns import SessionRow
from storage.history.events import COLUMNS, RELEASES_RECORDED
from tests.audit.numbers import halves, whole
from tests.audit.small_spark import small_spark

__all__ = ["halves", "whole"]  # fixtures

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
    started = small_spark("tests", tmp_path_factory.mktemp("spark"))
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
        own = {"detail": detail, "count": before, "position": 0, "reason": RELEASES_RECORDED}
        return self.row("boot", **{**own, **columns})

    def session(self, client_id: str = "c", number: int = 1) -> "Player":
        """Return someone who writes the rows of one session."""
        return Player(self, client_id, self.number << 40 | number)

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


class Player:
    """Writes the rows of one session; keeps what the broker would say of its sizes."""

    def __init__(self, history: History, client_id: str, session: int) -> None:
        self.history = history
        self.client_id = client_id
        self.number = session
        self.conn = 0
        self.expiry_s = 3600
        self.filters: dict[str, int] = {}
        self.inflight = 0

    def row(self, ev: str, *, wait: float = 0.001, **columns: object) -> dict[str, object]:
        """Append a row about the session."""
        own = {"tenant": "t", "client_id": self.client_id, "session": self.number}
        return self.history.row(ev, wait=wait, **{**own, "conn": self.conn, **columns})

    def sized(self, ev: str, *, wait: float = 0.001, **columns: object) -> dict[str, object]:
        """Append a row that says how big the session is."""
        check = sum(crc32(f"{name}\0{qos}".encode()) for name, qos in self.filters.items())
        sizes = {
            "expiry_s": self.expiry_s,
            "subs": len(self.filters),
            "subs_check": check,
            "inflight": self.inflight,
            "position": 0,
        }
        return self.row(ev, wait=wait, **{**sizes, **columns})

    def create(self, *, wait: float = 0.001, **columns: object) -> dict[str, object]:
        """Connect for the first time."""
        self.conn = len(self.history.rows)
        given = {"sp": False, "clean_start": False, **columns}
        return self.sized("session_created", wait=wait, **given)

    def resume(self, *, wait: float = 0.001, **columns: object) -> dict[str, object]:
        """Connect again."""
        self.conn = len(self.history.rows)
        given = {"sp": True, "clean_start": False, **columns}
        return self.sized("session_resumed", wait=wait, **given)

    def leave(
        self, reason: int = 0, *, wait: float = 0.001, **columns: object
    ) -> dict[str, object]:
        """Disconnect."""
        row = self.sized("session_disconnected", wait=wait, reason=reason, **columns)
        self.conn = 0
        return row

    def subscribe(self, name: str, qos: int = 1) -> dict[str, object]:
        """Subscribe."""
        self.filters[name] = qos
        return self.row("subscribed", tfilter=name, qos=qos, position=0)

    def unsubscribe(self, name: str) -> dict[str, object]:
        """Unsubscribe."""
        del self.filters[name]
        return self.row("unsubscribed", tfilter=name, position=0)

    def expire(self, *, wait: float = 0.001, **columns: object) -> dict[str, object]:
        """Expire."""
        given = {"subs_check": None, "actor": "gc", **columns}
        return self.sized("session_expired", wait=wait, **given)


def _footer(rows: list[dict[str, object]]) -> dict[str, str]:
    first, last = rows[0], rows[-1]
    return {
        "holdfast.schema": "1",
        "holdfast.node": str(first["node"]),
        "holdfast.boot": str(first["boot"]),
        "holdfast.first_seq": str(first["seq"]),
        "holdfast.last_seq": str(last["seq"]),
        "holdfast.rows": str(len(rows)),
        "holdfast.counts": json.dumps(Counter(str(row["ev"]) for row in rows)),
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
        return build(
            self.spark,
            read(self.spark, str(folder)),
            shelf=Shelf(self.spark, str(self.folder / f"work-{self.made}"), in_memory=True),
            settings=Settings(**settings),
            segments=find(self.spark, str(folder)),
        )


@pytest.fixture
def history() -> History:
    """An empty history of node n1."""
    return History()


@pytest.fixture
def view(spark: SparkSession, tmp_path: Path) -> Views:
    """Call it with a History to get the View of it."""
    return Views(spark, tmp_path)


def _session_row(row: dict[str, object]) -> SessionRow:
    def us(name: str) -> int | None:
        value = row.get(name)
        assert value is None or isinstance(value, datetime)
        return None if value is None else int(value.timestamp() * 1e6)

    boot, seq = row["boot"], row["seq"]
    assert isinstance(boot, int) and isinstance(seq, int)
    given = {"gseq": gseq(boot, seq), "us": us("ts"), "at_us": us("at"), "carried": False}
    return SessionRow(*(given.get(name, row.get(name)) for name in SESSION_COLUMNS))


def judge_sessions(history: History) -> Findings:
    """Judge the sessions of a history of one node, without Spark."""
    runs, marks = [], []
    for row in history.rows:
        boot, seq, ts = row["boot"], row["seq"], row["ts"]
        assert isinstance(boot, int) and isinstance(seq, int) and isinstance(ts, datetime)
        us = int(ts.timestamp() * 1e6)
        last = runs[-1] if runs else None
        if last is not None and (last.boot, last.last_seq) == (boot, seq - 1):
            runs[-1] = gaps.Run("n1", boot, last.first_seq, seq, last.first_us, us)
        else:
            runs.append(gaps.Run("n1", boot, seq, seq, us, us))
        if row["ev"] in MARKS:
            columns = [row.get(name) for name in ("reason", "count", "detail")]
            marks.append(gaps.Mark("n1", boot, seq, str(row["ev"]), *columns))
    boots = gaps.boots(runs, marks)
    found_gaps = gaps.explain(gaps.holes(runs, boots), marks)
    found_gaps += gaps.lowered(boots, marks, found_gaps)
    facts = known(boots, found_gaps, [], tolerance_s=60, witnesses_max=100)
    findings = Findings(100)
    clients: dict[object, Client] = {}
    for row in history.rows:
        if row["ev"] in SESSION_EVENTS:
            name = row["client_id"]
            clients.setdefault(name, Client(facts, facts.nodes["n1"], findings))
            clients[name].feed(_session_row(row))
    for client in clients.values():
        client.finish()
    return findings


@pytest.fixture
def verdicts() -> Callable[[History], dict[str, tuple[int, int, int]]]:
    """Call it with a History to get the counts of each invariant about sessions that counted."""

    def judge(history: History) -> dict[str, tuple[int, int, int]]:
        return {
            invariant: (counts[0], counts[1], counts[2])
            for invariant, counts, _ in judge_sessions(history)
        }

    return judge


@pytest.fixture
def accused() -> Callable[[History], list[tuple[str, str]]]:
    """Call it with a History to get (invariant, what) of each violation about sessions."""

    def judge(history: History) -> list[tuple[str, str]]:
        return [
            (invariant, str(witness["what"]))
            for invariant, _, witnesses in judge_sessions(history)
            for witness in witnesses
        ]

    return judge
