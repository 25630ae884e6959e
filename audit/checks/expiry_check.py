"""E1: no message is sent first after its expiry, and none is dropped as expired before it.

Times are broker time (`ts` never jumps back), from the row of acceptance on. A message that was
sent once may be sent again after its expiry.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from audit.checks.gap_filter import tally
from audit.checks.session_judgement import book
from audit.checks.session_rowset import node_number
from audit.checks.stream_holders import on_disk
from audit.checks.verdict import Outcome
from audit.input.batch_view import View
from audit.input.kept_rows import few

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
    ).persist()
    judged = book(view).where(
        (F.col("code") == 0)
        & (F.col("owner").bitwiseAND(1) == 0)
        & (F.col("delivered_gseq").isNotNull() | F.col("gone_ts").isNotNull())
    )
    both = judged.join(few(expiring), ["owner", "msg"])
    late = F.col("delivered_ts") > F.col("deadline") + ROUNDING_US
    late &= F.col("first_is_new") == 1
    early = F.isnull("reason") & (F.col("gone_ts") < F.col("deadline") - ROUNDING_US)
    rows = both.select(
        "node",
        "session",
        "msg",
        "from_gseq",
        F.when(late, F.col("delivered_gseq")).otherwise(F.col("gone_gseq")).alias("to_gseq"),
        _when(late).alias("ts"),
        (F.isnull("delivered_gseq") | (F.col("first_is_new") == 1)).alias("is_new"),
        F.timestamp_micros("deadline").alias("deadline"),
        F.when(late, "delivered_after_expiry").when(early, "expired_early").alias("what"),
    ).persist()
    checked = rows.where("is_new").count()
    found = rows.where("what IS NOT NULL").drop("is_new")
    outcome = tally(view, found).outcome(view, "E1", checked)
    rows.unpersist()
    expiring.unpersist()
    return outcome


def _when(late: Column) -> Column:
    return F.timestamp_micros(F.when(late, F.col("delivered_ts")).otherwise(F.col("gone_ts")))
