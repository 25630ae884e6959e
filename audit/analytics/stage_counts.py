"""Books: how many messages passed each stage in each minute, with checksums of their ids.

There are two independent counts: the broker counts while it works (`books` rows, at every level
from `books` up), and this module counts the events of every message (levels `sampled` and `full`).
The checksums find errors that cancel out in the count, such as one lost and one duplicated message.
They are sums (of offsets; of squares of their last 30 bits) modulo 2 ** 61, so batches add up.
Messages never stored, and dropped ranges of messages, add nothing to them.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.analytics.messages import ACKED_ONE, PERSISTED_ONE, counted, minute_of, tenants
from audit.input.batch_view import View
from storage.history.events import CHECK_BITS, CHECK_ROOT_BITS, UNSTORED

KEYS: Final = ("source", "tenant", "minute", "stage")
NUMBERS: Final = ("count", "total_bytes", "check1", "check2")

_LOW_BITS: Final = 31
_LOW: Final = (1 << _LOW_BITS) - 1
_MODULUS: Final = (1 << CHECK_BITS) - 1

# Event -> stage, for stages counted in the minute of the event.
_SENDING: Final = {
    "msg_acked": "acked",
    "msg_completed": "completed",
    "msg_dropped": "dropped",
    "msg_expired": "expired",
}


def from_broker(view: View) -> DataFrame:
    """Return the broker's own books: KEYS and NUMBERS, one row per stage, minute and tenant."""
    rows = view.of(
        "books",
        columns=("carried", "tenant", "bin", "stage", "count", "total_bytes", "check1", "check2"),
    ).where(~F.col("carried"))
    return (
        rows.withColumn("minute", F.unix_micros("bin"))
        .withColumn("source", F.lit("broker"))
        .withColumn("tenant", F.coalesce("tenant", F.lit("")))
        .transform(added_up)
    )


def from_events(view: View, messages: DataFrame) -> DataFrame:
    """Return the books of the events themselves: KEYS and NUMBERS.

    `messages` is the table of `audit.analytics.messages.messages`. Bytes are known only for stages
    whose rows have them: accepted, stored and ack_owed; elsewhere they are null.
    """
    parts = [_accepted(view), _sent(view), _by_message(view, messages)]
    return reduce(DataFrame.unionByName, parts)


def _accepted(view: View) -> DataFrame:
    """Count the accepted messages, those stored, and those that need an acknowledgement."""
    rows = view.of(
        "msg_accepted",
        columns=("carried", "tenant", "ts", "msg", "bytes", "pub_qos", "actor"),
    ).where(~F.col("carried"))
    sums = rows.select(
        F.coalesce("tenant", F.lit("")).alias("tenant"),
        minute_of(F.col("ts")).alias("minute"),
        (F.col("msg") < UNSTORED).alias("is_stored"),
        ((F.col("pub_qos") > 0) & (F.col("actor") == "client")).alias("is_owed"),
        F.lit(1).cast("long").alias("count"),
        F.coalesce("bytes", F.lit(0)).cast("long").alias("total_bytes"),
        *_checks(F.col("msg")),
    ).transform(_added, "tenant", "minute", "is_stored", "is_owed")
    stages = {"accepted": F.lit(True), "stored": F.col("is_stored"), "ack_owed": F.col("is_owed")}
    return _staged(sums, stages)


def _sent(view: View) -> DataFrame:
    rows = view.of(
        "msg_delivered",
        "retained_sent",
        *_SENDING,
        columns=("carried", "ev", "tenant", "ts", "msg", "msg_last", "dup", "count"),
    ).where(~F.col("carried"))
    stage = F.when(
        F.col("ev").isin("msg_delivered", "retained_sent"),
        F.when(F.col("dup"), F.lit("redelivered")).otherwise(F.lit("delivered")),
    )
    for event, name in _SENDING.items():
        stage = stage.when(F.col("ev") == event, F.lit(name))
    return (
        rows.select(
            F.coalesce("tenant", F.lit("")).alias("tenant"),
            minute_of(F.col("ts")).alias("minute"),
            stage.alias("stage"),
            F.when(F.col("ev") == "msg_dropped", F.coalesce("count", F.lit(1)))
            .otherwise(F.lit(1))
            .cast("long")
            .alias("count"),
            F.lit(None).cast("long").alias("total_bytes"),
            *_checks(F.when(F.isnull("msg_last"), F.col("msg"))),
        )
        .withColumn("source", F.lit("events"))
        .transform(_added, *KEYS)
    )


def _by_message(view: View, messages: DataFrame) -> DataFrame:
    """Count the durable and the acknowledged messages, by the minute of acceptance."""
    sums = (
        messages.where(F.col("accepted_us").isNotNull())
        .select(
            "tenant_code",
            (F.floor(F.col("accepted_us") / 60_000_000) * 60_000_000).cast("long").alias("minute"),
            (counted(PERSISTED_ONE) > 0).alias("is_persisted"),
            (counted(ACKED_ONE) > 0).alias("is_acked"),
            F.lit(1).cast("long").alias("count"),
            F.lit(None).cast("long").alias("total_bytes"),
            *_checks(F.col("msg")),
        )
        .transform(_added, "tenant_code", "minute", "is_persisted", "is_acked")
        .join(F.broadcast(tenants(view)), "tenant_code", "left")
        .withColumn("tenant", F.coalesce("tenant", F.lit("")))
    )
    stages = {"persisted": F.col("is_persisted"), "pub_acked": F.col("is_acked")}
    return _staged(sums, stages)


def _staged(sums: DataFrame, stages: Mapping[str, Column]) -> DataFrame:
    """Return sums as rows of the books, one for each stage whose condition a sum meets."""
    passed = [F.when(condition, F.lit(stage)) for stage, condition in stages.items()]
    rows = sums.withColumn("stage", F.explode(F.array_compact(F.array(*passed))))
    return added_up(rows.withColumn("source", F.lit("events")))


def _checks(msg: Column) -> tuple[Column, Column]:
    """Return the two numbers that a message adds to the checksums; null adds nothing."""
    stored = F.coalesce(F.when(msg < UNSTORED, msg), F.lit(0).cast("long"))
    root = stored.bitwiseAND(F.lit((1 << CHECK_ROOT_BITS) - 1))
    return stored.alias("x1"), (root * root).alias("x2")


def _added(rows: DataFrame, *keys: str) -> DataFrame:
    """Return the sums per key; numbers below 2**61 are added in halves so that none overflows."""
    halves = []
    for name in ("x1", "x2"):
        halves.append(F.sum(F.col(name).bitwiseAND(F.lit(_LOW))).alias(f"{name}_low"))
        halves.append(F.sum(F.shiftright(name, _LOW_BITS)).alias(f"{name}_high"))
    sums = rows.groupBy(*keys).agg(
        F.sum("count").alias("count"), F.sum("total_bytes").alias("total_bytes"), *halves
    )
    return sums.select(
        *keys,
        "count",
        "total_bytes",
        _whole("x1").alias("check1"),
        _whole("x2").alias("check2"),
    )


def _whole(name: str) -> Column:
    """Combine the sums of two halves, modulo 2 ** 61."""
    kept = F.lit((1 << (CHECK_BITS - _LOW_BITS)) - 1)
    high = F.shiftleft(F.col(f"{name}_high").bitwiseAND(kept), _LOW_BITS)
    return (high + F.col(f"{name}_low").bitwiseAND(F.lit(_MODULUS))).bitwiseAND(F.lit(_MODULUS))


def added_up(rows: DataFrame) -> DataFrame:
    """Return the books of several batches as one: KEYS and NUMBERS."""
    return _added(rows.withColumn("x1", F.col("check1")).withColumn("x2", F.col("check2")), *KEYS)
