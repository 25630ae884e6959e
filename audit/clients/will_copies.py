"""C3, of wills: a client gets a will as often as the history says that it was published."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from audit.clients import folding
from audit.input.batch_view import View
from audit.input.events import SEQ_BITS

SETTLED_US: Final = 1_000_000  # the client's log and the history go on so long behind the copies


def will_copies(view: View, logs: DataFrame, history: DataFrame, folded: DataFrame) -> DataFrame:
    """Return the findings, and how many wills were received.

    Only messages that are a logged client's will, byte by byte, count. Other messages of the same
    length on its topic excuse as many copies. A crash between two copies excuses them: the will may
    have been published twice, because the first time was not durable.
    """
    wills = (
        logs.where("event = 'connected' AND will_topic IS NOT NULL")
        .select(
            F.col("will_topic").alias("topic"),
            F.col("will_hash").alias("hash"),
            F.col("will_bytes").alias("bytes"),
        )
        .distinct()
    )
    if wills.isEmpty():
        return folded.where(F.lit(False))
    shared = (
        logs.where("event = 'subscribed' AND filter LIKE '$share/%'").select("client_id").distinct()
    )
    live = folded.where("kind = 'received' AND NOT dup AND NOT retain AND gseq IS NOT NULL")
    got = (
        live.join(F.broadcast(wills), ["topic", "hash"])
        .join(F.broadcast(shared), "client_id", "left_anti")
        .groupBy("client_id", "node", "topic", "hash", "bytes")
        .agg(
            F.count(F.lit(1)).alias("got"),
            F.min("gseq").alias("from_gseq"),
            F.max("gseq").alias("to_gseq"),
            F.max_by("log", "gseq").alias("log"),
            F.max_by("n", "gseq").alias("n"),
            F.max_by("at_us", "gseq").alias("at_us"),
        )
    )
    # The row of a will comes behind its delivery: it must be in the history by then.
    last = live.groupBy("client_id").agg(F.max("at_us").alias("last_us"))
    told = _with_published(history, wills, got).join(last, "client_id")
    more = told.withColumn("count", F.col("got") - F.col("fired") - F.col("others"))
    boot, after = F.shiftright("from_gseq", SEQ_BITS), F.shiftright("to_gseq", SEQ_BITS) + 1
    begin, end = F.shiftleft(boot, SEQ_BITS), F.shiftleft(after, SEQ_BITS)
    certain = (after == boot + 1) & ~view.touches_gap(F.col("node"), begin, end - 1)
    certain &= F.col("last_us") - F.col("at_us") >= SETTLED_US
    findings = more.where("count > 0 AND got > 1").select(
        F.lit("finding").alias("kind"),
        F.lit("C3").alias("invariant"),
        F.lit("a will was received more often than it was published").alias("what"),
        certain.alias("certain"),
        *("client_id", "node", "topic", "hash", "count", "from_gseq", "to_gseq"),
        *("log", "n", "at_us"),
    )
    counts = told.agg(F.coalesce(F.sum("got"), F.lit(0)).alias("count")).select(
        F.lit("count").alias("kind"), F.lit("C3").alias("invariant"), "count"
    )
    both = findings.unionByName(counts, allowMissingColumns=True)
    missing = {
        name: F.lit(None).cast("string" if kind == "text" else "boolean" if kind == "flag" else
                                "long")
        for name, kind in folding.FOLDED.items()
        if name not in both.columns
    }  # fmt: skip
    return both.withColumns(missing).select(*folding.FOLDED)


def _with_published(history: DataFrame, wills: DataFrame, got: DataFrame) -> DataFrame:
    """Add how often a will was published on the topic, and other messages of the length."""
    topics = F.broadcast(wills.select("topic").distinct())
    is_other = (F.col("ev") == "msg_accepted") & F.col("session").isNotNull()
    there = history.where((F.col("ev") == "will_fired") | is_other).join(topics, "topic")
    fired = F.broadcast(
        there.where("ev = 'will_fired'").groupBy("node", "topic").agg(F.count("ev").alias("fired"))
    )
    others = F.broadcast(
        there.where("ev = 'msg_accepted'")
        .groupBy("node", "topic", "bytes")
        .agg(F.count("ev").alias("others"))
    )
    return (
        got.join(fired, ["node", "topic"], "left")
        .join(others, ["node", "topic", "bytes"], "left")
        .na.fill(0, ["fired", "others"])
    )
