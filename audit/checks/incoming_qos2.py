"""D1, incoming half: between PUBLISH and PUBCOMP a QoS 2 packet identifier is accepted once."""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from audit.checks.gap_filter import Tally, tally
from audit.checks.stream_holders import ends, on_disk
from audit.input.batch_view import View
from audit.input.events import SEQ_BITS

# Not an event of the history: an exchange still open when an earlier run ended. It has the place of
# its `msg_accepted`, and session, pid and msg.
STILL_OPEN: Final = "#exchange"

REFUSED = 0x80  # a PUBREC with a reason code from here on ends the exchange


def accepted_twice(view: View) -> tuple[int, Tally]:
    """Return how many QoS 2 messages came in, and those accepted as new more than once.

    A crash may cut off the row of a PUBCOMP, so exchanges open at a crash are no evidence.
    """
    checked = _rows(view).where((F.col("ev") == "msg_accepted") & ~F.col("carried")).count()
    findings = _remarkable(view).where("held AND NOT carried")
    for boot in view.boots:
        if not boot.clean:
            died = (F.shiftright("from_gseq", SEQ_BITS) <= boot.boot) & (
                F.shiftright("to_gseq", SEQ_BITS) > boot.boot
            )
            findings = findings.where(~((F.col("node") == boot.node) & died))
    columns = ("node", "session", "pid", "msg", "ts", "other", "from_gseq", "to_gseq")
    found = tally(view, findings.select(*columns, F.lit("accepted_twice").alias("what")))
    return checked, found


def still_open(view: View) -> DataFrame:
    """Return the messages of exchanges that have not ended, of sessions that have not ended.

    Columns: node, session, pid, msg, ts, gseq, boot.
    """
    rows = _remarkable(view).where("next IS NULL")
    return rows.join(ends(view), ["node", "session"], "left_anti").select(
        *("node", "session", "pid", "msg", "ts"),
        F.col("to_gseq").alias("gseq"),
        F.shiftright("to_gseq", SEQ_BITS).alias("boot"),
    )


def _remarkable(view: View) -> DataFrame:
    """Return the messages accepted while their identifier was in use, or without a PUBCOMP."""
    return view.keep("remarkable exchanges", lambda: _exchanges(view).where("held OR next IS NULL"))


def _exchanges(view: View) -> DataFrame:
    accepted = F.col("ev").isin("msg_accepted", STILL_OPEN)
    exchange = Window.partitionBy("node", "session", "pid").orderBy("gseq")
    return (
        _rows(view)
        .select(
            *("node", "session", "pid", "msg", "ts", "carried"),
            accepted.alias("accepted"),
            F.coalesce(F.lag(accepted).over(exchange), F.lit(False)).alias("held"),
            F.lag("msg").over(exchange).alias("other"),
            F.lag("gseq").over(exchange).alias("from_gseq"),
            F.col("gseq").alias("to_gseq"),
            F.lead("gseq").over(exchange).alias("next"),
        )
        .where("accepted")
    )


def _rows(view: View) -> DataFrame:
    """Return the rows that begin and end exchanges with publishers at QoS 2.

    Messages carried because they are owed are left out: their PUBCOMP is not carried.
    """
    refused = (F.col("ev") == "pub_acked") & (F.col("reason") >= REFUSED)
    begins = (F.col("ev") == "msg_accepted") & (F.col("pub_qos") == 2) & ~F.col("carried")
    begins |= F.col("ev") == STILL_OPEN
    return on_disk(
        view,
        view.of(
            "msg_accepted",
            "pub_completed",
            "pub_acked",
            STILL_OPEN,
            columns=[
                *("node", "gseq", "ts", "ev", "session", "pid"),
                *("pub_qos", "msg", "reason", "carried"),
            ],
        ),
    ).where((F.col("pid") > 0) & (begins | (F.col("ev") == "pub_completed") | refused))
