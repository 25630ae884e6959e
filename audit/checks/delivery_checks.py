"""L2, D1, D2, D3, F1, O1 and E1, and the table `deliveries`: one row per (session, message)."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.checks import expiry_check, order_check
from audit.checks import incoming_qos2 as incoming
from audit.checks.gap_filter import Tally, tallies
from audit.checks.log_checks import disk_losses
from audit.checks.packed_rows import OUTCOMES, UNSTORED
from audit.checks.publish_checks import messages
from audit.checks.session_judgement import BOOK, book, suspected, suspicions
from audit.checks.session_rowset import node_name, node_number
from audit.checks.stream_holders import holdings
from audit.checks.verdict import Outcome
from audit.input import facts
from audit.input.batch_view import View
from audit.input.kept_rows import few
from audit.pace import is_small

CHECKS: Final = ("L2", "D1", "D2", "D3", "F1")


def check(view: View) -> list[Outcome]:
    """Return L2, D1, D2, D3, F1, O1 and E1; L2 has the facts about all deliveries."""
    counts = [
        (invariant, is_unknown, number)
        for (invariant, _, is_unknown), number in suspected(view).items()
        if invariant in CHECKS
    ]
    found = tallies(view, suspicions(view), CHECKS, counts)
    sums = _sums(view)
    incoming_checked, twice = incoming.accepted_twice(view)
    found["D1"] = found["D1"].with_(twice)
    found["L2"] = lost = found["L2"].with_(_lost_by_the_disk(view))
    counted = {
        "L2": sums["owed"],
        "D1": sums["qos2"] + incoming_checked,
        "D2": sums["attempts"],
        "D3": sums["attempts"],
        "F1": sums["attempts"],
    }
    told = ("delivered", "redelivered", "duplicated", "duplicated_qos2", "open")
    facts = {name: sums[name] for name in told}
    facts["lost"] = lost.violated
    order, expired = order_check.check(view), expiry_check.check(view)
    return [
        found[name].outcome(view, name, counted[name], facts=dict(facts) if name == "L2" else None)
        for name in CHECKS
    ] + [order, expired]


def _lost_by_the_disk(view: View) -> Tally:
    """Return the messages that the broker reported as durable and that are no longer on disk."""
    losses = disk_losses(view)
    if not losses:
        return Tally()
    place = F.col("accepted")
    gone = facts.touches(F.col("node"), place, place, [loss.interval for loss in losses])
    promised = F.col("pub_acked").isNotNull() | F.col("persisted").isNotNull()
    rows = messages(view).where(gone & promised & (F.col("msg") < UNSTORED))
    lost = rows.select(
        "node",
        F.lit(None).cast("long").alias("session"),
        "msg",
        F.lit("lost_by_the_disk").alias("what"),
        F.col("accepted").alias("from_gseq"),
        F.greatest("pub_acked", "persisted").alias("to_gseq"),
        F.lit("L2").alias("invariant"),
        # The evidence is rows that exist; missing rows do not weaken it.
        F.lit(False).alias("unknown"),
    )
    return tallies(view, lost, ["L2"])["L2"]


def tables(view: View) -> dict[str, DataFrame]:
    """Return the tables by name: `deliveries`."""
    return {"deliveries": table(view)}


def table(view: View) -> DataFrame:
    """Return the table `deliveries`; in a small run computed once, in a large one each time."""
    return view.keep("deliveries", lambda: _table(view)) if is_small(view.spark) else _table(view)


def _table(view: View) -> DataFrame:
    """Return the table `deliveries`.

    A row is the outcome of one message for one session, or, with a null session, for a shared group
    of which no member was sent it. `queued_us` is the time until the first sending, `acked_us` from
    there to PUBACK or PUBREC, both in microseconds. `carried` rows were also in the table of an
    earlier run, open there.
    """
    group = F.col("owner").bitwiseAND(1) == 1
    unsent = F.isnull("delivered_gseq") & (F.col("owed") == 1)
    rows = _doubted(view, book(view).where((F.col("code") == 0) & (~group | unsent)))
    groups = holdings(view).where("share IS NOT NULL").select("node", "stream", "share")
    named = groups.select(
        (node_number(view, F.col("node")) * 2 + 1).cast("int").alias("owner"),
        F.col("stream").alias("session"),
        "share",
    )
    rows = rows.join(few(named.distinct()), ["owner", "session"], "left")
    outcome = F.element_at(F.array(*map(F.lit, OUTCOMES)), F.col("outcome").cast("int") + 1)
    return rows.select(
        node_name(view, F.col("owner")).alias("node"),
        F.when(~group, F.col("session")).alias("session"),
        F.when(group, F.col("share")).alias("share"),
        "msg",
        "stream",
        (F.col("owed") == 1).alias("owed"),
        (F.col("shared") == 1).alias("shared"),
        "qos",
        "pid",
        *(name for name, _ in BOOK if name.endswith("_gseq")),
        *(F.timestamp_micros(n).alias(n) for n, _ in BOOK if n.endswith("_ts")),
        "reason",
        "attempts",
        F.when(F.col("doubt"), F.lit("unknown")).otherwise(outcome).alias("outcome"),
        (F.col("delivered_ts") - F.col("enqueued_ts")).alias("queued_us"),
        (F.col("acked_ts") - F.col("delivered_ts")).alias("acked_us"),
        (F.col("carried") == 1).alias("carried"),
    )


def _doubted(view: View, rows: DataFrame) -> DataFrame:
    """Add `doubt`: the message would count as lost, but a gap of the history makes it unknown."""
    doubts = suspicions(view).where((F.col("invariant") == "L2") & F.col("unknown"))
    if not any(name == "L2" and unknown for name, _, unknown in suspected(view)):
        return rows.withColumn("doubt", F.lit(False))
    session = F.col("owner_session").alias("session")
    keys = doubts.select("owner", session, "msg", F.lit(True).alias("doubt")).distinct()
    return rows.join(few(keys), ["owner", "session", "msg"], "left")


def _sums(view: View) -> dict[str, int]:
    """Return totals over all deliveries, in one Spark job."""
    group = F.col("owner").bitwiseAND(1) == 1
    unsent = F.isnull("delivered_gseq")
    new = ~group & (F.col("code") == 0)
    fresh = F.col("carried") == 0

    def total(value: Column) -> Column:
        return F.coalesce(F.sum(F.when(new, value)), F.lit(0))

    # A message of a group is owed once, to the group, whichever member it is sent to.
    owed = (F.col("owed") == 1) & fresh & (F.col("code") == 0)
    begun = (F.col("first_is_new") == 1) | (F.isnull("delivered_gseq") & fresh)
    still_open = (F.col("outcome") == OUTCOMES.index("open")) & (~group | unsent)
    row = book(view).agg(
        F.count(F.when(owed, 1)).alias("owed"),
        total((F.col("first_is_new") == 1).cast("int")).alias("delivered"),
        total(F.col("sent_new") - F.col("first_is_new")).alias("redelivered"),
        total(F.col("duplicates_new")).alias("duplicated"),
        total(F.when(F.col("qos") == 2, F.col("duplicates_new"))).alias("duplicated_qos2"),
        total(F.col("sent_new")).alias("attempts"),
        total(((F.col("qos") == 2) & begun).cast("int")).alias("qos2"),
        F.count(F.when(still_open & (F.col("code") == 0), 1)).alias("open"),
    )
    return {name: int(value) for name, value in row.collect()[0].asDict().items()}
