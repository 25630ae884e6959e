"""W1: a will is accepted once: every acceptance has the `will_fired` that names its message."""

from typing import Final

from pyspark.sql import functions as F

from audit.checks.gap_filter import Tally, tally
from audit.checks.stream_holders import on_disk
from audit.input import facts
from audit.input.batch_view import View
from audit.input.kept_rows import few

# The broker publishes and records a will in one tick. This many rows may be between the two: one
# for each stream and subscriber that gets it.
BETWEEN_MAX: Final = 1 << 20


def without_event(view: View) -> Tally:
    """Return the wills that were accepted, and that no row says were published.

    A will is what the broker accepts in a client's name. The row of the publication has the same
    time. So it is not missed where the known history of a boot ends in that moment.
    """
    names = ("node", "boot", "gseq", "ts", "msg", "client_id", "actor", "carried")
    accepted = on_disk(view, view.of("msg_accepted", columns=names)).where(
        (F.col("actor") == "broker") & ~F.col("carried") & (F.col("client_id") != "")
    )
    fired = on_disk(view, view.of("will_fired", columns=("node", "gseq", "msg")))
    lasts_us = {(boot.node, boot.boot): boot.last_us for boot in view.boots}
    last_us = facts.of_boot(F.col("node"), F.col("boot"), lasts_us)
    is_last = F.coalesce(F.unix_micros("ts") >= last_us, F.lit(False))
    lost = accepted.where(~is_last).join(
        few(fired.select("node", "msg")), ["node", "msg"], "left_anti"
    )
    return tally(
        view,
        lost.select(
            "node",
            F.lit(None).cast("long").alias("session"),
            "client_id",
            "msg",
            F.lit("accepted without a will_fired").alias("what"),
            F.col("gseq").alias("from_gseq"),
            (F.col("gseq") + BETWEEN_MAX).alias("to_gseq"),
            "ts",
        ),
    )
