"""R2: a subscription that asks for retained messages gets those that match.

R1 judges what was served; this judges what was not. A row `subscribed` says that its SUBSCRIBE asks
for retained messages. Each topic that had one then, and kept it, is owed to the session until its
connection or the subscription ends. A copy may wait: for a receive window that is full, a socket, a
turn. So it is missed only if the session stayed connected beyond the horizon, nothing was dropped
for it, and it was sent less than its window holds. What had an expiry, or may have had one, wrongs
nobody.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from audit.checks import topic_matching
from audit.checks.gap_filter import Tally, tally_marked
from audit.checks.retained_checks import CHANGES
from audit.checks.routing_check import matcher
from audit.checks.verdict import Outcome
from audit.input import facts
from audit.input.batch_view import View
from audit.input.events import SEQ_BITS
from audit.input.kept_rows import few
from audit.spark import frame_of
from storage.history.events import SHORTENED

# What ends the connection or the session.
_ENDS: Final = (
    "session_created",
    "session_resumed",
    "session_taken_over",
    "session_disconnected",
    "session_expired",
    "session_terminated",
)
_DROPS: Final = ("msg_dropped", "session_purged")
RECEIVE_MAXIMUM: Final = 65_535  # of a client that names none
_SUB: Final = ("node", "session", "sub")


def check(view: View) -> list[Outcome]:
    """Return R2. It checks each retained message that a new subscription asked for and got."""
    asked = view.of(
        "subscribed",
        columns=[
            *("node", "session", "client_id", "tfilter", "conn", "boot"),
            *("gseq", "ts", "retain", "share", "carried"),
        ],
    )
    asked = asked.where("retain AND share IS NULL AND conn > 0 AND NOT carried").select(
        *("node", "session", "client_id", "tfilter", "conn", "boot", "ts"),
        F.col("gseq").alias("sub"),
    )
    if asked.isEmpty():
        return [Outcome("R2", 0, 0, 0)]
    owed = view.keep("retained messages asked for", lambda: _owed(view, asked))
    served = _served(view)
    keys = ["node", "session", "topic"]
    # Whatever was sent of the topic since: a new message may have overtaken the retained one.
    got = owed.join(few(served), keys).where(F.col("sent") > F.col("sub"))
    got = got.select(*_SUB, "topic").distinct()
    missing = view.keep(
        "retained messages not sent", lambda: owed.join(got, [*_SUB, "topic"], "left_anti")
    )
    found = Tally() if missing.isEmpty() else _missed(view, missing)
    return [found.outcome(view, "R2", got.count() + found.violated)]


def _owed(view: View, asked: DataFrame) -> DataFrame:
    """Return what was retained and matched when a SUBSCRIBE asked for it."""
    changes = view.of(*CHANGES, columns=["node", "topic", "gseq", "ev", "msg"])
    changes = changes.where("topic IS NOT NULL").where(~F.col("topic").rlike(SHORTENED))
    following = Window.partitionBy("node", "topic").orderBy("gseq")
    kept = (
        changes.withColumn("until", F.lead("gseq").over(following))
        .where("ev = 'retained_set'")
        .select("node", "topic", "msg", F.col("gseq").alias("since"), "until")
    )
    filters = [row.tfilter for row in asked.select("tfilter").distinct().collect()]
    named = [(topic_matching.without_share(name), n) for n, name in enumerate(filters)]
    numbers = frame_of(
        view.spark, list(zip(filters, range(len(filters)), strict=True)),
        "tfilter string, filter int",
    )  # fmt: skip
    topics = kept.select("node", "topic").distinct()
    matched = topics.mapInArrow(matcher(named), "node string, topic string, filter int")
    there = (F.col("since") < F.col("sub")) & (
        F.col("until").isNull() | (F.col("until") > F.col("sub"))
    )
    return (
        matched.join(F.broadcast(numbers), "filter")
        .drop("filter")
        .join(asked, ["node", "tfilter"])
        .join(kept, ["node", "topic"])
        .where(there)
    )


def _served(view: View) -> DataFrame:
    """Return what sessions were sent: node, session, topic, sent (the last place)."""
    copies = view.of("retained_sent", columns=["node", "session", "topic", "gseq"])
    return copies.groupBy("node", "session", "topic").agg(F.max("gseq").alias("sent"))


def _missed(view: View, missing: DataFrame) -> Tally:
    """Return what was due and not sent."""
    ended = _with_end(view, missing)
    horizon = view.settings.horizon_s * 1_000_000
    waited = F.col("end_us") - F.unix_micros("ts") > horizon
    kept = F.col("until").isNull() | (F.col("until") > F.col("end"))
    due = view.keep("retained messages due", lambda: ended.where(waited & kept))
    return Tally() if due.isEmpty() else tally_marked(view, _doubted(view, due))


def _doubted(view: View, due: DataFrame) -> DataFrame:
    """Return what was due and not sent with `unknown`: something may explain it."""
    sessions = few(due.select("node", "session").distinct())
    sent = view.of(
        "retained_sent", "msg_delivered", columns=["node", "session", "conn", "boot", "qos"]
    )
    counted = (
        sent.where("qos > 0")
        .join(sessions, ["node", "session"], "left_semi")
        .groupBy("node", "session", "conn", "boot")
        .agg(F.count(F.lit(1)).alias("sent"))
    )
    windows = (
        view.sessions.where("ev IN ('session_created', 'session_resumed')")
        .join(sessions, ["node", "session"], "left_semi")
        .groupBy("node", "session", "conn", "boot")
        .agg(F.min("rmax").alias("rmax"))
    )
    dropped = (
        view.of(*_DROPS, columns=["node", "session"])
        .join(sessions, ["node", "session"], "left_semi")
        .distinct()
        .withColumn("dropped", F.lit(True))
    )
    live = _overtaken(view, due)
    place = ["node", "session", "conn", "boot"]
    judged = (
        due.join(counted, place, "left")
        .join(windows, place, "left")
        .join(dropped, ["node", "session"], "left")
        .join(live, [*_SUB, "topic"], "left_anti")
        .join(_lasting(view, due), ["node", "msg"], "left")
    )
    room = F.coalesce("sent", F.lit(0)) < F.coalesce("rmax", F.lit(RECEIVE_MAXIMUM))
    unknown = ~room | F.coalesce("dropped", F.lit(False)) | F.isnull("lasts")
    unknown |= view.touches_gap(F.col("node"), F.col("since"), F.col("end"))
    expires = F.col("lasts") == F.lit(False)
    return judged.where(~F.coalesce(expires, F.lit(False))).select(
        *("node", "session", "msg", "topic", "tfilter", "ts"),
        F.lit("a retained message was not sent to a subscription that asks for it").alias("what"),
        F.col("sub").alias("from_gseq"),
        F.col("end").alias("to_gseq"),
        F.coalesce(unknown, F.lit(True)).alias("unknown"),
    )


def _with_end(view: View, missing: DataFrame) -> DataFrame:
    """Add where and when the connection, the subscription or the history ended."""
    sessions = few(missing.select("node", "session").distinct())
    ends = (
        view.sessions.where(F.col("ev").isin(*_ENDS, "subscribed", "unsubscribed"))
        .select(
            "node", "session", F.col("gseq").alias("place"), F.unix_micros("ts").alias("us"),
            F.when(F.col("ev").isin("subscribed", "unsubscribed"), F.col("tfilter")).alias("own"),
        )
        .join(sessions, ["node", "session"], "left_semi")
    )  # fmt: skip
    touching = (F.col("place") > F.col("sub")) & (
        F.col("own").isNull() | (F.col("own") == F.col("tfilter"))
    )
    first = (
        missing.join(ends, ["node", "session"])
        .where(touching)
        .groupBy(*_SUB, "topic")
        .agg(F.min("place").alias("place"), F.min_by("us", "place").alias("us"))
    )
    joined = missing.join(first, [*_SUB, "topic"], "left")
    last, last_us = _last(view)
    same_boot = F.shiftright("place", SEQ_BITS) == F.col("boot")
    own = F.coalesce(same_boot, F.lit(False))
    return joined.withColumns(
        {
            "end": F.when(own, F.col("place")).otherwise(last),
            "end_us": F.when(own, F.col("us")).otherwise(last_us),
        }
    )


def _last(view: View) -> tuple[Column, Column]:
    """Return the last place and time of a row's boot."""
    places = {(boot.node, boot.boot): boot.last_gseq for boot in view.boots}
    times = {
        (boot.node, boot.boot): min(boot.last_us, view.last_us(boot.node)) for boot in view.boots
    }
    node, boot = F.col("node"), F.col("boot")
    return facts.of_boot(node, boot, places), facts.of_boot(node, boot, times)


def _overtaken(view: View, due: DataFrame) -> DataFrame:
    """Return what need not be sent: the session has got a later message of the topic."""
    sessions = few(due.select("node", "session").distinct())
    topics = few(due.select("node", "topic").distinct())
    accepted = (
        view.of("msg_accepted", columns=["node", "msg", "topic"])
        .where("msg IS NOT NULL")
        .join(topics, ["node", "topic"], "left_semi")
    )
    sent = (
        view.of("msg_delivered", columns=["node", "session", "msg", "gseq"])
        .join(sessions, ["node", "session"], "left_semi")
        .join(few(accepted), ["node", "msg"])
        .select("node", "session", "topic", "gseq")
    )
    found = due.select(*_SUB, "topic").join(sent, ["node", "session", "topic"])
    return found.where(F.col("gseq") > F.col("sub")).select(*_SUB, "topic").distinct()


def _lasting(view: View, due: DataFrame) -> DataFrame:
    """Return which messages have no expiry: node, msg, lasts."""
    messages = few(due.select("node", "msg").distinct())
    accepted = view.of("msg_accepted", columns=["node", "msg", "expiry_s"])
    return (
        accepted.join(messages, ["node", "msg"], "left_semi")
        .groupBy("node", "msg")
        .agg((F.max("expiry_s").isNull()).alias("lasts"))
    )
