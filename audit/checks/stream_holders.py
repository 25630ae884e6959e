"""Holders of streams: which session or shared group held which stream, and when.

The broker writes no row per subscriber when a message arrives: `msg_enqueued` names a stream, and
the message is owed to all holders of the stream at that place of the history. Intervals are of
gseq: from `from_gseq` (the row `subscribed`) to `to_gseq` (the row that ended it, or OPEN_END),
both excluded.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from audit.checks.log_checks import disk_losses
from audit.checks.packed_rows import OPEN_END
from audit.input import facts
from audit.input.batch_view import View
from audit.input.events import SEQ_BITS

BEGINNINGS = ("subscribed", "sub_restored")
SUBSCRIPTIONS = (*BEGINNINGS, "unsubscribed")
ENDS = ("session_expired", "session_terminated")


def holdings(view: View) -> DataFrame:
    """Return the intervals: node, session, tfilter, share, stream, no_local, from_gseq, to_gseq.

    A repeated subscription with the same stream continues the interval. A shared subscription has
    the stream of its group; the session was a member of it.
    """
    return view.keep("holdings", lambda: _holdings(view))


def _holdings(view: View) -> DataFrame:
    key = ["node", "session", "tfilter"]
    held = F.when(F.col("ev") != "unsubscribed", F.coalesce("stream", F.lit(0))).otherwise(0)
    own = F.coalesce("no_local", F.lit(False))
    rows = (
        on_disk(view, view.sessions)
        .where(F.col("ev").isin(*SUBSCRIPTIONS))
        .select(*key, "gseq", "share", held.alias("stream"), own.alias("no_local"))
    )
    inside = Window.partitionBy(*key).orderBy("gseq")
    kept = (F.lag("stream", 1, 0).over(inside) == F.col("stream")) & (
        (F.lag("no_local").over(inside) == F.col("no_local")) | (F.col("stream") == 0)
    )
    changed = rows.withColumn("kept", F.coalesce(kept, F.lit(False))).where(~F.col("kept"))
    intervals = changed.withColumn("next", F.lead("gseq").over(inside)).where("stream > 0")
    ended = intervals.join(ends(view), ["node", "session"], "left")
    to = F.least("next", F.when(F.col("end_gseq") > F.col("gseq"), F.col("end_gseq")))
    return ended.select(
        *key,
        "share",
        "stream",
        "no_local",
        F.col("gseq").alias("from_gseq"),
        F.coalesce(to, F.lit(OPEN_END)).alias("to_gseq"),
    )


def ends(view: View) -> DataFrame:
    """Return when sessions ended: node, session, end_gseq.

    A session without an expiry interval ends with its boot at the latest, even without a row.
    """
    newests = {boot.node: boot.boot for boot in view.boots}  # in order: the last of a node stays
    newest = F.coalesce(facts.of_node(F.col("node"), newests), F.lit(-1))
    said = F.when(F.col("ev").isin(*ENDS), F.col("gseq"))
    brief = F.col("ev").isin("session_created", "session_resumed") & (F.col("expiry_s") == 0)
    died = F.when(brief & (F.col("boot") < newest), F.shiftleft(F.col("boot") + 1, SEQ_BITS))
    rows = on_disk(view, view.sessions).withColumn("end_gseq", F.coalesce(said, died))
    found = rows.where("end_gseq IS NOT NULL").groupBy("node", "session")
    return found.agg(F.min("end_gseq").alias("end_gseq"))


def on_disk(view: View, frame: DataFrame) -> DataFrame:
    """Leave out rows that the broker's disk lost after they were exported.

    The next boot does not know them and reuses their numbers for other messages. H1, S5 and L2
    report the loss.
    """
    lost = [loss.interval for loss in disk_losses(view)]
    gone = facts.touches(F.col("node"), F.col("gseq"), F.col("gseq"), lost)
    return frame.where(~gone) if lost else frame


def joined(intervals: DataFrame, key: list[str]) -> DataFrame:
    """Return the union of the intervals with the same `key`.

    Columns: `key`, from_gseq, to_gseq.
    """
    before = Window.partitionBy(*key).orderBy("from_gseq", "to_gseq")
    earlier = before.rowsBetween(Window.unboundedPreceding, -1)
    apart = F.coalesce(F.col("from_gseq") > F.max("to_gseq").over(earlier), F.lit(True))
    islands = intervals.withColumn("apart", apart.cast("int")).withColumn(
        "island", F.sum("apart").over(before)
    )
    return (
        islands.groupBy(*key, "island")
        .agg(F.min("from_gseq").alias("from_gseq"), F.max("to_gseq").alias("to_gseq"))
        .drop("island")
    )


def groups(held: DataFrame) -> DataFrame:
    """Return when shared groups had members: node, share, stream, from_gseq, to_gseq."""
    return joined(held.where("share IS NOT NULL"), ["node", "share", "stream"])
