"""E1: no message is sent first after its expiry, and none is dropped as expired before it.

Times are broker time (`ts` never jumps back), from the row of acceptance on. A message that was
sent once may be sent again after its expiry.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.checks.gap_filter import weigh
from audit.checks.session_judgement import book
from audit.checks.session_rowset import node_number
from audit.checks.stream_holders import on_disk
from audit.checks.verdict import Outcome
from audit.input.batch_view import View
from audit.input.kept_rows import few
from audit.pace import is_small

NEVER: Final = 0xFFFF_FFFF  # seconds
# Tolerance in both directions: MQTT counts whole seconds.
ROUNDING_US: Final = 1_000_000


def check(view: View) -> Outcome:
    """Return E1. It counts deliveries and expiries of messages with an expiry."""
    accepted = on_disk(
        view, view.of("msg_accepted", columns=["node", "gseq", "ts", "msg", "expiry_s"])
    ).where(F.col("expiry_s").isNotNull() & (F.col("expiry_s") < NEVER))
    deadline = F.unix_micros("ts") + F.col("expiry_s") * 1_000_000
    owner = (node_number(view, F.col("node")) * 2).cast("int").alias("owner")
    expiring = accepted.select(
        "node", owner, "msg", F.col("gseq").alias("from_gseq"), deadline.alias("deadline")
    )
    judged = book(view).where(
        (F.col("code") == 0)
        & (F.col("owner").bitwiseAND(1) == 0)
        & (F.col("delivered_gseq").isNotNull() | F.col("gone_ts").isNotNull())
    )
    if is_small(view.spark):
        return _outcome(view, judged, expiring)
    expiring = expiring.persist()  # they are counted before they are joined
    outcome = _outcome(view, judged, few(expiring))
    expiring.unpersist()
    return outcome


def _outcome(view: View, judged: DataFrame, expiring: DataFrame) -> Outcome:
    late = F.col("delivered_ts") > F.col("deadline") + ROUNDING_US
    late &= F.col("first_is_new") == 1
    early = F.isnull("reason") & (F.col("gone_ts") < F.col("deadline") - ROUNDING_US)
    cases = judged.join(expiring, ["owner", "msg"]).select(
        "node",
        "session",
        "msg",
        "from_gseq",
        F.when(late, F.col("delivered_gseq")).otherwise(F.col("gone_gseq")).alias("to_gseq"),
        _when(late).alias("ts"),
        F.timestamp_micros("deadline").alias("deadline"),
        F.when(late, "delivered_after_expiry").when(early, "expired_early").alias("what"),
        (F.isnull("delivered_gseq") | (F.col("first_is_new") == 1)).alias("is_new"),
    )
    columns = [name for name in cases.columns if name != "is_new"]
    sums, found = weigh(view, cases, columns, {"checked": F.col("is_new")})
    return found.outcome(view, "E1", sums["checked"])


def _when(late: Column) -> Column:
    return F.timestamp_micros(F.when(late, F.col("delivered_ts")).otherwise(F.col("gone_ts")))
