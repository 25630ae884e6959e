"""L1 and L3: acknowledged messages were on disk before, and are in every stream they match.

One row per message and boot, from the rows about its acceptance. Rows that the disk lost after
their export count like all others: they were true when they were written.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.checks import routing_check
from audit.checks.gap_filter import Tally, weigh
from audit.checks.packed_rows import REFUSED, UNSTORED
from audit.checks.verdict import Outcome
from audit.input import facts
from audit.input.batch_view import View
from audit.input.gaps import Boot

_COLUMNS = ("node", "boot", "gseq", "ev", "msg", "pub_qos", "reason", "topic", "stream", "carried")


def check(view: View) -> list[Outcome]:
    """Return L1 and L3; L1 has the facts about accepted messages."""
    sums, found = _judged(view)
    first = found.outcome(view, "L1", sums["checked"], facts=_facts(view, sums))
    return [first, routing_check.check(view, messages(view), sums)]


def messages(view: View) -> DataFrame:
    """Return one row per (node, boot, msg), computed once.

    accepted, persisted, pub_acked: gseq of the first such row, or null. refused: the PUBACK or
    PUBREC had an error. streams, streams_sum: the number of streams that have the message, and the
    sum of their hashes; wanted, wanted_sum: the same for the streams that should have it. The sums
    are compared first; where they differ, streams are compared one by one.
    """
    return view.keep("messages on their way in", lambda: _messages(view))


def _messages(view: View) -> DataFrame:
    rows = view.of(
        "msg_accepted", "msg_persisted", "pub_acked", "msg_enqueued", columns=_COLUMNS
    ).where("msg IS NOT NULL")
    rows = routing_check.with_wanted(view, rows)
    accepted, acked = F.col("ev") == "msg_accepted", F.col("ev") == "pub_acked"
    refused = F.coalesce(F.col("reason") >= REFUSED, F.lit(False))
    enqueued = F.col("ev") == "msg_enqueued"
    good = acked & ~refused

    def first(of: Column) -> Column:
        return F.min(F.when(of, F.col("gseq")))

    return rows.groupBy("node", "boot", "msg").agg(
        first(accepted).alias("accepted"),
        first(F.col("ev") == "msg_persisted").alias("persisted"),
        first(good).alias("pub_acked"),
        F.max(F.when(accepted, F.col("pub_qos"))).alias("pub_qos"),
        F.coalesce(F.max(acked & refused), F.lit(False)).alias("refused"),
        F.coalesce(F.max(accepted & F.col("carried")), F.lit(False)).alias("carried"),
        F.coalesce(F.max(good & F.col("carried")), F.lit(False)).alias("acked_before"),
        F.count(F.when(enqueued, 1)).alias("streams"),
        F.coalesce(F.sum(F.when(enqueued, routing_check.hashed(F.col("stream")))), F.lit(0)).alias(
            "streams_sum"
        ),
        F.coalesce(F.max("wanted"), F.lit(0)).alias("wanted"),
        F.coalesce(F.max("wanted_sum"), F.lit(0)).alias("wanted_sum"),
    )


def _judged(view: View) -> tuple[dict[str, int], Tally]:
    """Return what L1 and L3 count of all messages, and the violations of L1: in one Spark job.

    cut_off: accepted at QoS 1 or 2 in a boot that crashed, without a row of its acknowledgement.
    The publisher may have got one all the same, because the row is written after the sending.
    """
    is_accepted = F.col("accepted").isNotNull()
    stored = F.col("pub_acked").isNotNull() & (F.col("msg") < UNSTORED)
    judged = stored & is_accepted & ~F.col("acked_before")
    late = F.col("persisted").isNull() | (F.col("persisted") > F.col("pub_acked"))
    what = F.when(F.isnull("persisted"), "never_persisted").otherwise("persisted_late")
    # An earlier batch that saw both the message and the crash has already counted it.
    died = _died(view.boots) & ~(F.col("carried") & _died(view.boots_before))
    owed = F.isnull("pub_acked") & ~F.col("refused") & (F.col("pub_qos") > 0)
    sums = {
        "checked": judged,
        "accepted": is_accepted & ~F.col("carried"),
        "acknowledged": _acked() & is_accepted,
        "cut_off": owed & died & is_accepted,
        "acknowledged_late": _acked() & ~is_accepted,
        **routing_check.sums(),
    }
    cases = messages(view).select(
        "*",
        F.lit(None).cast("long").alias("session"),
        F.when(judged & late, what).alias("what"),
        F.col("accepted").alias("from_gseq"),
        F.greatest("pub_acked", F.coalesce("persisted", "pub_acked")).alias("to_gseq"),
    )
    return weigh(view, cases, ("node", "session", "msg", "what", "from_gseq", "to_gseq"), sums)


def _acked() -> Column:
    return F.col("pub_acked").isNotNull() & ~F.col("acked_before")


def _facts(view: View, sums: dict[str, int]) -> dict[str, object]:
    """Return the numbers of messages accepted, acknowledged, and cut off by a crash."""
    facts = {name: sums[name] for name in ("accepted", "acknowledged", "cut_off")}
    if sums["acknowledged_late"]:
        # Acknowledged in a later boot: QoS 2, sent again by a client that got no PUBREC.
        rows = messages(view).where(_acked())
        late = rows.where(F.isnull("accepted")).select("node", "msg").distinct()
        before = rows.where(F.col("accepted").isNotNull()).select("node", "msg")
        facts["acknowledged"] += late.join(before, ["node", "msg"], "left_anti").count()
    return dict(facts)


def _died(boots: Sequence[Boot]) -> Column:
    """Return the condition that a row is of a boot that ended without a shutdown row."""
    newest = {boot.node: boot.boot for boot in sorted(boots, key=lambda boot: boot.boot)}
    crashed = {
        (boot.node, boot.boot): 1
        for boot in boots
        if boot.boot < newest[boot.node] and not boot.clean
    }
    return facts.of_boot(F.col("node"), F.col("boot"), crashed).isNotNull()
