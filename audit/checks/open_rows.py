"""The rows about messages that the next batch needs: those of everything still open.

Open are deliveries without an end, acknowledgements that publishers may still get, QoS 2 exchanges
with publishers, and the subscriptions by which messages are owed. (The newest row of each
subscription and connection is kept by `audit.checks.session_checks`.) A finished delivery is not
kept: a repeated sending in a later batch is not found, nor is a broken order across batches.

One `msg_enqueued` makes a message owed to all holders of the stream, and some of them may have got
it. So instead of that row, one row per holder is kept (`STILL_OWED`).
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.checks import incoming_qos2 as incoming
from audit.checks.packed_rows import OPEN_END, OUTCOME
from audit.checks.publish_checks import messages
from audit.checks.session_judgement import book
from audit.checks.session_rowset import STILL_OWED, node_name, owed
from audit.checks.stream_holders import BEGINNINGS, holdings, on_disk
from audit.input import facts
from audit.input.batch_view import View
from audit.input.events import SCHEMA, SEQ_BITS
from audit.input.kept_rows import Kept, few


def carry(view: View) -> Kept:
    """Return the rows of open messages, and one row per message still owed."""
    holders = view.keep("holders of open messages", lambda: _holders(view))
    own = holders.where("group = 0").select("node", "session", "msg")
    deliveries = _places(view, "msg_delivered", "msg_acked", columns=("session", "msg"))
    subscriptions = on_disk(view, view.sessions).where(F.col("ev").isin(*BEGINNINGS))
    began = holdings(view).where(F.col("to_gseq") == OPEN_END)
    began = began.select("node", "session", F.col("from_gseq").alias("gseq"))
    places = (
        deliveries.join(few(own), ["node", "session", "msg"], "left_semi"),
        _arrivals(view, holders.select("node", "msg").distinct()),
        subscriptions.join(began, ["node", "session", "gseq"], "left_semi"),
    )
    exchanges = incoming.still_open(view).withColumn("ev", F.lit(incoming.STILL_OPEN))
    return Kept(places, (_still_owed(view, holders), _made(exchanges)))


def _holders(view: View) -> DataFrame:
    """Return what is still owed: node, group, session (for a group: its stream), msg."""
    open_now = book(view).where((F.col("code") == 0) & (F.col("outcome") == OUTCOME["open"]))
    holders = open_now.select(
        node_name(view, F.col("owner")).alias("node"),
        F.col("owner").bitwiseAND(1).alias("group"),
        "session",
        "msg",
        "shared",
        F.isnull("delivered_gseq").alias("unsent"),
    )
    own, groups = holders.where("group = 0"), holders.where("group = 1")
    # A message that a group's member was sent is kept only while it is open for that member.
    sent = own.where("shared = 1").select("node", "msg").distinct()
    groups = groups.where("unsent").unionByName(
        groups.where("NOT unsent").join(sent, ["node", "msg"], "left_semi")
    )
    return own.unionByName(groups).drop("shared", "unsent")


def _arrivals(view: View, owed_messages: DataFrame) -> DataFrame:
    """Return the rows of acceptance of messages still owed, or still open with their publisher."""
    rows = _places(
        view, "msg_accepted", "msg_persisted", "pub_acked", columns=("boot", "ts", "msg")
    )
    publishing = view.keep("publishers not done", lambda: _publishing(view))
    both = rows.join(few(publishing), ["node", "boot", "msg"], "left").join(
        few(owed_messages.withColumn("is_owed", F.lit(True))), ["node", "msg"], "left"
    )
    return both.where(F.expr("is_owed OR is_open") | (F.expr("NOT is_open") & _recent(view)))


def _publishing(view: View) -> DataFrame:
    """Return the messages whose publishers may still get an answer: node, boot, msg, is_open.

    `is_open` are QoS 2 exchanges; for the others an answer is only possible for some time.
    """
    waiting = messages(view).where("accepted IS NOT NULL AND pub_acked IS NULL AND NOT refused")
    keys = ("node", "boot", "msg")
    unanswered = waiting.where("pub_qos > 0").select(*keys, F.lit(False).alias("is_open"))
    exchanges = incoming.still_open(view).select(*keys, F.lit(True).alias("is_open"))
    return exchanges.unionByName(unanswered).groupBy(*keys).agg(F.max("is_open").alias("is_open"))


def _recent(view: View) -> Column:
    """Return which rows are recent rows of running brokers, so that more may follow."""
    alive = {boot.node: boot for boot in view.boots}
    within_us = view.settings.horizon_s * 1_000_000
    since = {(boot.node, boot.boot): boot.last_us - within_us for boot in alive.values()}
    place = facts.of_boot(F.col("node"), F.col("boot"), since)
    return F.coalesce(F.unix_micros("ts") >= place, F.lit(False))


def _still_owed(view: View, holders: DataFrame) -> DataFrame:
    """Return the messages these holders are owed, as rows with the columns of the history."""
    keys = ["node", "group", "session", "msg"]
    # A session may hold a stream by several subscriptions: owed until the last one ends.
    rows = (
        owed(view, few(holders.select("node", "msg").distinct()))
        .join(few(holders), keys, "left_semi")
        .groupBy(*keys, "stream", "gseq", "ts")
        .agg(F.max("to_gseq").alias("to_gseq"), F.min("doubt").alias("doubt"))
    )
    told = {"ev": F.lit(STILL_OWED), "position": F.col("to_gseq"), "dup": F.col("doubt")}
    return _made(
        rows.withColumn("session", F.when(F.col("group") == 0, F.col("session"))).withColumns(told)
    )


def _made(rows: DataFrame) -> DataFrame:
    """Add the missing columns of the history to rows that are not events, at the place `gseq`."""
    place = {
        "boot": F.shiftright("gseq", SEQ_BITS),
        "seq": F.col("gseq").bitwiseAND((1 << SEQ_BITS) - 1),
    }
    placed = rows.withColumns(place)
    return placed.select(
        *(
            (F.col(field.name) if field.name in placed.columns else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in SCHEMA.fields
        )
    )


def _places(view: View, *evs: str, columns: Sequence[str]) -> DataFrame:
    return on_disk(view, view.of(*evs, columns=["node", "gseq", *columns]))
