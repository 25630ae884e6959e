"""Statistics of messages: the stages they reached, their fan-out, and how long they were stored.

One pass aggregates the rows of a message into seven numbers (no strings, because with a string in
the aggregation buffer Spark sorts instead of hashing). From these come the books by minute of
acceptance, the fan-out of publishers, messages that expired unread, and the storage bill.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.input.batch_view import View

# `flags` is a sum of these, so that one number holds four counts; (position, bits).
PERSISTED_ONE: Final = (0, 8)
ACKED_ONE: Final = (8, 8)
EXPIRED_ONE: Final = (16, 22)
DELIVERED_ONE: Final = (38, 22)

HOUR_US: Final = 3_600_000_000
MINUTE_US: Final = 60_000_000
_UNSTORED: Final = 1 << 62


def minute_of(ts: Column) -> Column:
    """Return the start of a time's minute, in microseconds."""
    return _start(F.unix_micros(ts), MINUTE_US)


def hour_of(micros: Column) -> Column:
    """Return the start of the hour, in microseconds."""
    return _start(micros, HOUR_US)


def _start(micros: Column, step: int) -> Column:
    return micros - F.pmod(micros, F.lit(step))


def counted(place: tuple[int, int]) -> Column:
    """Return how often a message was counted at this place of `flags`."""
    shift, bits = place
    return F.shiftright("flags", shift).bitwiseAND(F.lit((1 << bits) - 1))


def tenants(view: View) -> DataFrame:
    """Return (tenant_code, tenant) of all publishers."""
    rows = view.of("msg_accepted", columns=("tenant",)).distinct()
    named = rows.select(
        _tenant_code().alias("tenant_code"), F.coalesce("tenant", F.lit("")).alias("tenant")
    )
    return view.keep("tenants", named.distinct)


def _tenant_code() -> Column:
    return F.xxhash64(F.coalesce("tenant", F.lit("")))


def node_code() -> Column:
    """Return the hash of a node; message numbers are unique only within a node."""
    return F.xxhash64("node")


def client_code() -> Column:
    """Return the hash of (tenant, client_id), used in aggregation buffers."""
    return F.xxhash64(F.coalesce("tenant", F.lit("")), F.coalesce("client_id", F.lit("")))


def messages(view: View, deliveries: DataFrame | None) -> DataFrame:
    """Return one row per message with any row in the batch.

    Columns: node_code, msg, client (code of the publisher), tenant_code, bytes, accepted_us (null:
    accepted before this batch and not carried), flags (`counted`), fresh (1: accepted in this
    batch), freed_us (when the last delivery was done; null: never owed), open (deliveries not
    done). `deliveries` has node, msg, done_us (null: open), or is None if the history has none.
    """
    is_accepted, is_new = F.col("ev") == "msg_accepted", ~F.col("carried")
    again = (F.col("ev") == "msg_delivered") & (F.col("attempt") > 1)
    one = (
        F.when(F.col("carried") | is_accepted | F.coalesce(again, F.lit(False)), F.lit(0))
        .when(F.col("ev") == "msg_persisted", F.lit(1 << PERSISTED_ONE[0]))
        .when(F.col("ev") == "pub_acked", F.lit(1 << ACKED_ONE[0]))
        .when(F.col("ev") == "msg_expired", F.lit(1 << EXPIRED_ONE[0]))
        .otherwise(F.lit(1 << DELIVERED_ONE[0]))
    )
    said = {
        "client": client_code(),
        "tenant_code": _tenant_code(),
        "bytes": F.coalesce("bytes", F.lit(0)).cast("long"),
        "accepted_us": F.unix_micros("ts"),
        "fresh": is_new.cast("long"),
    }
    # One pass: rows of a message are close together, so most are aggregated where they are read.
    passed = (
        view.of(
            *("msg_accepted", "msg_persisted", "pub_acked", "msg_expired", "msg_delivered"),
            columns=(
                *("carried", "node", "ev", "tenant", "client_id", "ts", "msg", "bytes", "attempt"),
            ),
        )
        .where(F.col("msg").isNotNull() & (is_accepted | is_new))
        .select(
            node_code().alias("node_code"),
            "msg",
            one.cast("long").alias("flags"),
            *(F.when(is_accepted, value).alias(name) for name, value in said.items()),
            F.lit(None).cast("long").alias("freed_us"),
            F.lit(0).cast("long").alias("open"),
        )
    )
    parts = [passed]
    if deliveries is not None:
        parts.append(
            deliveries.select(
                node_code().alias("node_code"),
                "msg",
                F.col("done_us").alias("freed_us"),
                F.col("done_us").isNull().cast("long").alias("open"),
            )
        )
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    return rows.groupBy("node_code", "msg").agg(
        *(F.max(name).alias(name) for name in ("client", "tenant_code", "bytes")),
        F.max("accepted_us").alias("accepted_us"),
        F.sum(F.coalesce("flags", F.lit(0))).alias("flags"),
        F.max(F.coalesce("fresh", F.lit(0))).alias("fresh"),
        F.max("freed_us").alias("freed_us"),
        F.sum(F.coalesce("open", F.lit(0))).alias("open"),
    )


def fan_out(table: DataFrame) -> DataFrame:
    """Return (client, deliveries): how many sessions got the messages of each publisher."""
    return (
        table.where(F.col("client").isNotNull())
        .groupBy("client")
        .agg(F.sum(counted(DELIVERED_ONE)).alias("deliveries"))
    )


def waste(table: DataFrame) -> DataFrame:
    """Return one row: how many deliveries expired unread, and the bytes stored for them."""
    times = counted(EXPIRED_ONE)
    return table.agg(
        F.coalesce(F.sum(times), F.lit(0)).alias("expired"),
        F.coalesce(F.sum(times * F.coalesce("bytes", F.lit(0))), F.lit(0)).alias("expired_bytes"),
    )


def storage(table: DataFrame) -> DataFrame:
    """Return (tenant_code, hour, delta, moment), the changes of a tenant's stored bytes.

    A message is stored once, from its acceptance until it is owed to nobody. `delta` is the sum of
    bytes added and removed within the hour, `moment` the sum of these bytes times the seconds left
    in the hour. So the byte-seconds of an hour are level at its start * 3600 + moment, and the rows
    of several batches can be added.
    """
    known = table.where(
        F.col("accepted_us").isNotNull() & (F.col("msg") < _UNSTORED) & (F.col("bytes") > 0)
    )
    owed = F.col("freed_us").isNotNull() | (F.col("open") > 0)
    came = known.where(owed & (F.col("fresh") > 0)).select(
        "tenant_code", F.col("accepted_us").alias("at"), F.col("bytes")
    )
    went = known.where(F.col("freed_us").isNotNull() & (F.col("open") == 0)).select(
        "tenant_code",
        F.greatest("freed_us", "accepted_us").alias("at"),
        (-F.col("bytes")).alias("bytes"),
    )
    left_s = (F.lit(HOUR_US) - F.pmod(F.col("at"), F.lit(HOUR_US))) / F.lit(1e6)
    return (
        came.unionByName(went)
        .groupBy("tenant_code", hour_of(F.col("at")).alias("hour"))
        .agg(
            F.sum("bytes").alias("delta"),
            F.sum(F.col("bytes").cast("double") * left_s).alias("moment"),
        )
    )
