"""The judged rows of all sessions: one pass over the history, shared by every check of messages.

The rows of a session and the messages it was owed are grouped (`audit.checks.session_rowset`) and
judged with numpy in Python workers (`audit.checks.judge_session`). This module compares the
suspicions with the gaps of the history; only those that touch none become violations.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from audit.checks import judge_session, message_outcomes, sending_checks
from audit.checks import packed_rows as packed
from audit.checks.gap_filter import against_gaps
from audit.checks.packed_rows import SUSPICIONS, Clock
from audit.checks.session_rowset import clock, node_name, rowset
from audit.input.batch_view import View

# A row takes about 300 bytes of a worker's memory while it is judged.
PARTITION_ROWS: Final = 300_000
BATCH_ROWS: Final = 65_536

_LONG, _INT, _SHORT, _BYTE = T.LongType(), T.IntegerType(), T.ShortType(), T.ByteType()
# The result of the workers: deliveries (code 0) and suspicions. -1 becomes null.
BOOK: Final[tuple[tuple[str, T.DataType], ...]] = (
    ("code", _BYTE),
    ("owner", _INT),
    ("session", _LONG),
    ("msg", _LONG),
    ("stream", _LONG),
    ("owed", _BYTE),
    ("shared", _BYTE),
    ("qos", _BYTE),
    ("pid", _INT),
    ("conn", _LONG),
    ("enqueued_gseq", _LONG),
    ("enqueued_ts", _LONG),
    ("delivered_gseq", _LONG),
    ("delivered_ts", _LONG),
    ("sent_last_gseq", _LONG),
    ("acked_gseq", _LONG),
    ("acked_ts", _LONG),
    ("completed_gseq", _LONG),
    ("completed_ts", _LONG),
    ("gone_gseq", _LONG),
    ("gone_ts", _LONG),
    ("reason", _SHORT),
    ("attempts", _INT),
    ("outcome", _BYTE),
    ("first_is_new", _BYTE),
    ("sent_new", _INT),
    ("duplicates_new", _INT),
    ("carried", _BYTE),
)
# Where the columns of a suspicion are put in a row of the book.
_PLACES: Final = {
    "code": "code",
    "owner": "owner",
    "session": "session",
    "msg": "msg",
    "qos": "qos",
    "pid": "pid",
    "conn": "conn",
    "from_gseq": "enqueued_gseq",
    "to_gseq": "sent_last_gseq",
    "ts": "enqueued_ts",
    "other": "gone_gseq",
}
_SCHEMA: Final = T.StructType([T.StructField(name, kind) for name, kind in BOOK])
_NAMES: Final = {"bigint": "int64", "int": "int32", "smallint": "int16", "tinyint": "int8"}
_ARROW: Final = [(name, _NAMES[kind.simpleString()]) for name, kind in BOOK]


def book(view: View) -> DataFrame:
    """Return the judged rows of all sessions, computed once and cached on disk.

    `code` 0 is a delivery, any other a suspicion (see `audit.checks.packed_rows.SUSPICIONS`).
    """
    return view.keep("judged deliveries", lambda: _judged(view))


def _judged(view: View) -> DataFrame:
    total = sum(boot.last_seq - boot.first_seq + 1 for boot in view.boots)
    least = int(view.spark.conf.get("spark.sql.shuffle.partitions") or 1)
    count = max(least, -(-total // PARTITION_ROWS))
    rows = rowset(view).repartition(count, "owner", "session")
    return rows.mapInArrow(_judge(clock(view)), _SCHEMA)


def suspicions(view: View) -> DataFrame:
    """Return the suspicions with `invariant`, `what`, and `unknown` if they touch a gap."""
    rows = book(view).where("code > 0")
    words = F.array(*(F.lit(SUSPICIONS[code][1]) for code in sorted(SUSPICIONS)))
    checks = F.array(*(F.lit(SUSPICIONS[code][0]) for code in sorted(SUSPICIONS)))
    group = F.col("owner").bitwiseAND(1) == 1
    lost_copy = F.isnull("msg")
    findings = rows.select(
        F.element_at(checks, F.col("code").cast("int")).alias("invariant"),
        F.element_at(words, F.col("code").cast("int")).alias("what"),
        node_name(view, F.col("owner")).alias("node"),
        F.when(~group, F.col("session")).alias("session"),
        "msg",
        F.when(lost_copy, True).alias("retained_copy"),
        "pid",
        "qos",
        F.col("enqueued_gseq").alias("from_gseq"),
        F.col("sent_last_gseq").alias("to_gseq"),
        F.timestamp_micros("enqueued_ts").alias("ts"),
        F.col("gone_gseq").alias("other"),
        "owner",
        F.col("session").alias("owner_session"),
    )
    return against_gaps(view, findings)


def suspected(view: View) -> dict[tuple[str, str, bool], int]:
    """Return how many suspicions there are by (invariant, what, unknown), counted once."""

    def count() -> dict[tuple[str, str, bool], int]:
        rows = suspicions(view).groupBy("invariant", "what", "unknown").count().collect()
        return {(row.invariant, row.what, row.unknown): row["count"] for row in rows}

    return view.shelf.value("suspicions counted", count)


def _judge(
    now: Clock,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark runs on all rows of some sessions.

    The modules it needs are sent with it: workers need numpy and pyarrow, not Holdfast.
    """
    for module in (packed, message_outcomes, sending_checks, judge_session):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # untyped
    judge = judge_session.trace
    columns, places, kinds = packed.PACKED, _PLACES, _ARROW

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces = list(batches)
        if not pieces:
            return
        rows = pa.Table.from_batches(pieces)
        del pieces
        deliveries, found = judge({name: rows[name].to_numpy() for name in columns}, now)
        placed = {places[name]: column for name, column in found.items()}
        for table in (placed,) if deliveries is None else (deliveries, placed):
            size = len(table["owner"])
            table = {"code": np.zeros(size, np.int64), **table}
            arrays = [_array(table.get(name), size, kind) for name, kind in kinds]
            names = [name for name, _ in kinds]
            yield from pa.Table.from_arrays(arrays, names).to_batches(BATCH_ROWS)

    return run


def _array(values: packed.Longs | None, size: int, kind: str) -> pa.Array:
    """Return a column for Spark, null where negative, or all null if `values` is None."""
    if values is None:
        return pa.nulls(size, kind)
    return pa.array(values, mask=values < 0).cast(kind)
