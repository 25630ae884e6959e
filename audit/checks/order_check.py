"""O1: first deliveries of a publisher's messages on a topic keep the order of acceptance.

Order is promised per publisher, topic and QoS, not across them, and not to shared groups. Messages
are numbered in the order of acceptance, so a session that was sent everything in ascending order is
correct. Only sessions with an inversion are checked again, with the publishers and topics of their
messages. A delivery before its message was stored for the session is out of order, too.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from audit.checks import packed_rows as packed
from audit.checks.gap_filter import tallies, tally
from audit.checks.session_judgement import book, suspected, suspicions
from audit.checks.session_rowset import node_name
from audit.checks.stream_holders import on_disk
from audit.checks.verdict import Outcome
from audit.input.batch_view import View
from audit.input.kept_rows import few

EARLY: Final = "before_its_acceptance"  # a suspicion that needs no second look


def check(view: View) -> Outcome:
    """Return O1. It counts the first deliveries."""
    found = suspicions(view).where(F.col("invariant") == "O1")
    is_early = F.col("what") == EARLY
    counts = suspected(view)
    told = [("O1", unknown, counts.get(("O1", EARLY, unknown), 0)) for unknown in (False, True)]
    early = tallies(view, found.where(is_early), ["O1"], told)["O1"]
    suspects = (
        found.where(~is_early).select("owner", F.col("owner_session").alias("session")).distinct()
    )
    first = book(view).where(_first())
    checked = first.where("first_is_new = 1").count()
    if not any(name == "O1" and what != EARLY for name, what, _ in counts):
        return early.outcome(view, "O1", checked)
    late = tally(view, _inversions(view, first, suspects))
    return early.with_(late).outcome(view, "O1", checked)


def _first() -> Column:
    own = F.col("owner").bitwiseAND(1) == 0
    return (F.col("code") == 0) & own & (F.col("shared") == 0) & F.col("delivered_gseq").isNotNull()


def _inversions(view: View, first: DataFrame, suspects: DataFrame) -> DataFrame:
    """Return the first deliveries that came after that of a later message in the same order."""
    sent = first.join(few(suspects), ["owner", "session"]).select(
        node_name(view, F.col("owner")).alias("node"),
        "session",
        "msg",
        "qos",
        "delivered_gseq",
        "delivered_ts",
        (F.col("first_is_new") == 1).alias("is_new"),
    )
    accepted = on_disk(
        view, view.of("msg_accepted", columns=["node", "gseq", "msg", "pub", "topic"])
    ).select(
        "node", F.col("gseq").alias("accepted"), "msg", "pub", F.xxhash64("topic").alias("topic")
    )
    # Ids of messages that were never in the log can be compared only among themselves.
    stored = (F.col("msg") < packed.UNSTORED).alias("stored")
    lane = Window.partitionBy("node", "session", "pub", "topic", "qos", "stored")
    before = lane.orderBy("delivered_gseq").rowsBetween(Window.unboundedPreceding, -1)
    newest = F.max(F.struct("msg", "delivered_gseq")).over(before)
    return (
        accepted.join(few(sent), ["node", "msg"])
        .select("*", stored)
        .withColumn("newest", newest)
        .where((F.col("newest.msg") > F.col("msg")) & F.col("is_new"))
        .select(
            "node",
            "session",
            "msg",
            "pub",
            "qos",
            F.lit("after_a_later_one").alias("what"),
            F.col("newest.msg").alias("other"),
            # Before that it may have been sent, and not recorded.
            F.least("accepted", "newest.delivered_gseq").alias("from_gseq"),
            F.col("delivered_gseq").alias("to_gseq"),
            F.timestamp_micros("delivered_ts").alias("ts"),
        )
    )
