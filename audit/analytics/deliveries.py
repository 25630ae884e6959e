"""Statistics of deliveries: their outcome, their duration, and the backlog of sessions.

Computed from the deliveries of a batch, one row per (session, message), as `of` prepares them. An
open delivery is counted when it ends, in whichever batch that is, so all tables add up over
batches.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from audit.analytics.messages import MINUTE_US
from audit.analytics.sessions import bucket_of
from audit.checks import delivery_checks
from audit.input.batch_view import View
from audit.input.kept_rows import few

BACKLOGS_KEPT: Final = 50  # sessions per batch whose backlog curve is kept


def of(view: View) -> DataFrame:
    """Return the deliveries of a batch in the form used here.

    Columns: node, session (null: a group of which no member got it), msg, owed_us, done_us (null:
    open or unknown), outcome, attempts, and is_new (not open before the batch). A delivery that
    ended with its session is done at the session's end.
    """
    ends = (
        view.sessions.where(F.col("ev").isin("session_expired", "session_terminated"))
        .groupBy("node", "session")
        .agg(F.max(F.unix_micros("ts")).alias("end_us"))
    )
    at = {
        name: F.unix_micros(f"{name}_ts")
        for name in ("enqueued", "delivered", "acked", "completed", "gone")
    }
    known = F.coalesce(at["gone"], "end_us", at["acked"], at["delivered"], at["enqueued"])
    outcome = F.col("outcome")
    done = (
        F.when(outcome == "acked", at["acked"])
        .when(outcome == "completed", at["completed"])
        .when(outcome == "delivered_qos0", at["delivered"])
        .when(outcome.isin("expired", "dropped", "moved", "session_ended", "unsubscribed"), known)
    )
    return delivery_checks.table(view).join(few(ends), ["node", "session"], "left").select(
        "node", "session", "msg", at["enqueued"].alias("owed_us"), done.alias("done_us"),
        "outcome", "attempts", (~F.col("carried")).alias("is_new"),
    )  # fmt: skip


def fates(pairs: DataFrame) -> DataFrame:
    """Return (minute, fate, count), by the minute in which the message was owed.

    Fate `owed` counts each delivery once, in the batch in which it began; delivered, expired,
    dropped, ended, lost and unknown once, in the batch in which it was found. All others are open.
    """
    kind = (
        F.when(F.col("outcome").isin("acked", "completed", "delivered_qos0"), F.lit("delivered"))
        .when(F.col("outcome") == "expired", F.lit("expired"))
        .when(F.col("outcome") == "dropped", F.lit("dropped"))
        .when(F.col("outcome").isin("session_ended", "unsubscribed", "moved"), F.lit("ended"))
        .when(F.col("outcome").isin("lost", "unknown"), F.col("outcome"))
    )
    began = F.when(F.col("is_new"), F.lit("owed"))
    rows = pairs.where(F.col("owed_us").isNotNull()).select(
        (F.col("owed_us") - F.pmod("owed_us", F.lit(MINUTE_US))).alias("minute"),
        F.explode(F.array_compact(F.array(began, kind))).alias("fate"),
    )
    return rows.groupBy("minute", "fate").agg(F.count(F.lit(1)).alias("count"))


def latencies(pairs: DataFrame, names: DataFrame) -> DataFrame:
    """Return (tenant, client_id, bucket, count) of the times from stored to acknowledged."""
    acked = pairs.where(F.col("outcome").isin("acked", "completed") & F.col("owed_us").isNotNull())
    buckets = acked.groupBy(
        "node", "session", bucket_of(F.col("done_us") - F.col("owed_us")).alias("bucket")
    ).agg(F.count(F.lit(1)).alias("count"))
    return (
        buckets.join(names, ["node", "session"], "left")
        .groupBy(
            F.coalesce("tenant", F.lit("")).alias("tenant"),
            F.coalesce("client_id", F.lit("")).alias("client_id"),
            "bucket",
        )
        .agg(F.sum("count").alias("count"))
    )


def backlogs(pairs: DataFrame, names: DataFrame) -> DataFrame:
    """Return (tenant, client_id, minute, delta) of the sessions with the largest backlogs.

    `delta` is the number of deliveries owed from that minute on minus the number done in it. A
    delivery done in the minute in which it became owed is not counted.
    """
    begin = F.col("owed_us") - F.pmod("owed_us", F.lit(MINUTE_US))
    end = F.col("done_us") - F.pmod("done_us", F.lit(MINUTE_US))
    one = F.lit(1).cast("long")
    came = F.when(F.col("is_new"), F.struct(begin.alias("minute"), one.alias("delta")))
    went = F.when(
        F.col("done_us").isNotNull(), F.struct(end.alias("minute"), (-one).alias("delta"))
    )
    late = pairs.where(
        F.col("owed_us").isNotNull()
        & (F.col("done_us").isNull() | (begin != end) | ~F.col("is_new"))
    )
    steps = (
        late.select(
            "node", "session", F.explode(F.array_compact(F.array(came, went))).alias("step")
        )
        .groupBy("node", "session", F.col("step.minute").alias("minute"))
        .agg(F.sum("step.delta").alias("delta"))
    )
    life = Window.partitionBy("node", "session").orderBy("minute")
    levels = steps.withColumn("level", F.sum("delta").over(life))
    worst = (
        levels.groupBy("node", "session")
        .agg(F.max(F.abs("level")).alias("worst"))
        .orderBy(F.desc("worst"), "session")
        .limit(BACKLOGS_KEPT)
    )
    kept = steps.join(F.broadcast(worst.select("node", "session")), ["node", "session"])
    return kept.join(names, ["node", "session"], "left").select(
        F.coalesce("tenant", F.lit("")).alias("tenant"),
        F.coalesce("client_id", F.lit("")).alias("client_id"),
        "minute",
        "delta",
    )
