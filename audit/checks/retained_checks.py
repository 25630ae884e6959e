"""R1: a retained message that is sent is the last one set on its topic.

A subscriber is owed the message that was retained when it subscribed, even if the topic has got
another one before it is sent. So a copy of an older message is correct if the session subscribed
while that message was the retained one, and wrong otherwise.
"""

from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from audit.checks.verdict import Outcome
from audit.input import facts
from audit.input.batch_view import View
from audit.input.events import boot_of, seq_of
from audit.input.gaps import HOLE
from audit.input.kept_rows import Kept

CHANGES: Final = ("retained_set", "retained_cleared", "retained_expired")
_COLUMNS: Final = ("node", "topic", "gseq", "ev", "ts", "at", "session", "client_id", "carried")


def check(view: View) -> list[Outcome]:
    """Return R1. It checks each copy that was sent for the first time."""
    served = view.of("retained_sent", columns=[*_COLUMNS, "dup", "retain"])
    # A copy without RETAIN came from an external store.
    is_ours = F.coalesce(F.col("retain"), F.lit(True))
    is_again = F.coalesce(F.col("dup"), F.lit(False))
    served = served.where(~F.col("carried") & ~is_again & is_ours).drop("retain")
    sent, odd = _compared(view, served.drop("dup"))
    verdicts: dict[str, int] = {}
    witnesses: list[dict[str, object]] = []
    if odd:
        judged = view.keep("odd retained", lambda: _judged(view, served.drop("dup")))
        verdicts = {
            row.verdict: row["count"] for row in judged.groupBy("verdict").count().collect()
        }
        wrong = judged.where(F.col("verdict") == "violated").orderBy("node", "gseq")
        witnesses = [_witness(row) for row in wrong.take(view.settings.witnesses_max)]
    unjudged = verdicts.get("unknown", 0) + verdicts.get("before", 0)
    return [
        Outcome(
            "R1",
            sent - unjudged,
            verdicts.get("violated", 0),
            verdicts.get("unknown", 0),
            witnesses,
        )
    ]


def carry(view: View) -> Kept:
    """Return the last retained message of each topic, and those replaced within the horizon."""
    rows = view.of(*CHANGES, columns=("node", "gseq", "ts", "ev", "topic"))
    following = Window.partitionBy("node", "topic").orderBy("gseq")
    end = _last_us(view) - view.settings.horizon_s * 1_000_000
    next_us = F.lead(F.unix_micros("ts")).over(following)
    is_last = F.col("next_us").isNull() & (F.col("ev") == "retained_set")
    is_fresh = F.coalesce(F.col("next_us"), F.unix_micros("ts")) >= end
    return Kept((rows.withColumn("next_us", next_us).where(is_last | is_fresh),))


def _last_us(view: View) -> Column:
    return F.coalesce(facts.of_node(F.col("node"), view.lasts_us), F.lit(0))


def _beside_current(view: View, served: DataFrame) -> DataFrame:
    """Return the copies sent, each with the last change of its topic before it."""
    changes = view.of(*CHANGES, columns=_COLUMNS)
    before = (
        Window.partitionBy("node", "topic")
        .orderBy("gseq")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    is_change = F.col("ev") != "retained_sent"
    both = served.unionByName(changes)
    return (
        both.withColumn("last_gseq", F.last(F.when(is_change, F.col("gseq")), True).over(before))
        .withColumn("last_ts", F.last(F.when(is_change, F.col("ts")), True).over(before))
        .withColumn(
            "last_at",
            # -1: nothing retained; null: unknown
            F.last(
                F.when(F.col("ev") == "retained_set", F.unix_micros("at")).when(is_change, -1), True
            ).over(before),
        )
        .where(~is_change)
    )


def _is_current() -> Column:
    return F.coalesce(F.unix_micros("at") == F.col("last_at"), F.lit(False))


def _compared(view: View, served: DataFrame) -> tuple[int, int]:
    """Return how many copies were sent, and how many of them were not the current message."""
    row = _beside_current(view, served).agg(
        F.count(F.lit(1)).alias("sent"), F.count_if(~_is_current()).alias("odd")
    )
    counts = row.collect()[0]
    return counts.sent, counts.odd


def _judged(view: View, served: DataFrame) -> DataFrame:
    """Return the copies that were not the current message, each with a verdict.

    `before` = the topic may have been set before the history began, so it is unknown.
    """
    odd = (
        _beside_current(view, served).where(~_is_current()).withColumn("at_us", F.unix_micros("at"))
    )
    following = Window.partitionBy("node", "topic").orderBy("gseq")
    changes = view.of(*CHANGES, columns=["node", "topic", "gseq", "ev", "at"])
    values = (
        changes.withColumn("until", F.lead("gseq").over(following))
        .where(F.col("ev") == "retained_set")
        .select("node", "topic", F.unix_micros("at").alias("at_us"), "gseq", "until")
        .groupBy("node", "topic", "at_us")
        .agg(F.min("gseq").alias("set_gseq"), F.max("until").alias("until"))
    )
    subscribed = view.sessions.where(F.col("ev") == "subscribed").select(
        "node", "session", F.col("gseq").alias("sub"), F.unix_micros("ts").alias("sub_us")
    )
    keys = ["node", "gseq", "session", "topic", "at_us"]
    own = odd.join(values, ["node", "topic", "at_us"], "left").join(
        subscribed, ["node", "session"], "left"
    )
    earlier = F.col("sub") < F.col("gseq")
    during = F.col("sub").between(F.col("set_gseq"), F.col("until")) & earlier
    # The row that set it is no longer known: it may have been current when the session subscribed.
    perhaps = F.col("set_gseq").isNull() & earlier & (F.col("sub_us") >= F.col("at_us"))
    perhaps = perhaps & F.coalesce(F.col("sub_us") <= F.unix_micros("last_ts"), F.lit(True))
    found = own.groupBy(*keys, "client_id", "last_gseq", "last_at").agg(
        F.coalesce(F.max(during.cast("int")), F.lit(0)).alias("during"),
        F.coalesce(F.max(perhaps.cast("int")), F.lit(0)).alias("perhaps"),
    )
    start = F.coalesce(F.col("last_gseq"), F.lit(1)) + 1
    cut = facts.of_node(F.col("node"), {gap.node: 1 for gap in view.gaps if gap.from_gseq == 0})
    verdict = (
        F.when(F.col("during") == 1, "ok")
        .when(F.col("last_gseq").isNull() & cut.isNotNull(), "before")
        .when(view.touches_gap(F.col("node"), start, F.col("gseq") - 1, [HOLE]), "unknown")
        .when(F.col("perhaps") == 1, "unknown")
        .otherwise("violated")
    )
    return found.withColumn("verdict", verdict)


def _witness(row: Row) -> dict[str, Any]:
    served = row.at_us
    what = "a retained message was served that is not the last one of its topic"
    if row.last_at is None:
        what = "a retained message was served that was never set"
    elif row.last_at < 0:
        what = "a retained message was served that was no longer there"
    return {
        "what": what,
        "node": row.node,
        "client_id": row.client_id,
        "session": row.session,
        "boot": boot_of(row.gseq),
        "seq": seq_of(row.gseq),
        "topic": row.topic,
        "served_at_us": served,
        "last_at_us": row.last_at,
    }
