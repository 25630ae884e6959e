"""D1, incoming half: between PUBLISH and PUBCOMP a QoS 2 packet identifier is accepted once."""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from audit.checks.gap_filter import Tally, tally
from audit.checks.stream_holders import ends, on_disk
from audit.input.batch_view import View
from audit.input.events import SEQ_BITS
from audit.spark import frame_of

# Not an event of the history: an exchange still open when an earlier run ended. It has the place of
# its `msg_accepted`, and session, conn, pid and msg.
STILL_OPEN: Final = "#exchange"

_ENDS: Final = ("pub_released", "pub_completed")
REFUSED = 0x80  # a PUBREC with a reason code from here on ends the exchange


def accepted_twice(view: View) -> tuple[int, Tally]:
    """Return how many QoS 2 messages came in, and those accepted as new more than once.

    Across a crash only DUP=1 is evidence. With DUP=0 the client says that the message is new: paho
    does so after two attempts to reconnect, when it has forgotten its PUBREL. And the broker must
    have recorded each PUBREL with the change that it caused (`Boot.has_releases`). Otherwise the
    row of a PUBCOMP may be cut off by the crash, or never be written because its connection was
    gone, and the identifier was free.
    """
    checked = _rows(view).where((F.col("ev") == "msg_accepted") & ~F.col("carried")).count()
    columns = ("node", "session", "pid", "msg", "ts", "other", "from_gseq", "to_gseq")
    findings = _with_boots(view, _remarkable(view).where("held AND NOT carried"))
    again = F.coalesce(F.col("dup"), F.lit(False))
    same_conn = (F.col("conn") == F.col("conn_before")) & (F.col("from_boot") == F.col("to_boot"))
    is_proof = (
        F.when(F.col("crashes") > 0, again & (F.col("silent") == 0))
        .when(F.col("silent") > 0, again | same_conn)
        .otherwise(F.lit(True))
    )
    proved = findings.where(F.coalesce(is_proof, F.lit(False)))
    found = tally(view, proved.select(*columns, F.lit("accepted_twice").alias("what")))
    return checked, found


def _with_boots(view: View, findings: DataFrame) -> DataFrame:
    """Add from_boot, to_boot, `crashes` between the two rows, and how many boots are `silent`.

    A silent boot does not record every PUBREL.
    """
    places = []
    crashes: dict[str, int] = {}
    silent: dict[str, int] = {}
    for boot in view.boots:  # in order
        node = boot.node
        before = silent.get(node, 0)
        silent[node] = before + (not boot.has_releases)
        places.append((node, boot.boot, crashes.get(node, 0), before, silent[node]))
        crashes[node] = crashes.get(node, 0) + (not boot.clean)

    def named(end: str) -> DataFrame:
        names = ("node", f"{end}_boot", f"{end}_crashes", f"{end}_before", f"{end}_silent")
        types = ("string", "long", "long", "long", "long")
        schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
        return F.broadcast(frame_of(view.spark, places, schema))

    return (
        findings.withColumn("from_boot", F.shiftright("from_gseq", SEQ_BITS))
        .withColumn("to_boot", F.shiftright("to_gseq", SEQ_BITS))
        .join(named("from"), ["node", "from_boot"])
        .join(named("to"), ["node", "to_boot"])
        .withColumn("crashes", F.col("to_crashes") - F.col("from_crashes"))
        .withColumn("silent", F.col("to_silent") - F.col("from_before"))
    )


def still_open(view: View) -> DataFrame:
    """Return the messages of exchanges that have not ended, of sessions that have not ended.

    Columns: node, session, conn, pid, msg, ts, gseq, boot.
    """
    rows = _remarkable(view).where("next IS NULL")
    return rows.join(ends(view), ["node", "session"], "left_anti").select(
        *("node", "session", "conn", "pid", "msg", "ts"),
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
            *("node", "session", "pid", "msg", "ts", "carried", "conn", "dup"),
            accepted.alias("accepted"),
            F.coalesce(F.lag(accepted).over(exchange), F.lit(False)).alias("held"),
            F.lag("msg").over(exchange).alias("other"),
            F.lag("gseq").over(exchange).alias("from_gseq"),
            F.lag("conn").over(exchange).alias("conn_before"),
            F.col("gseq").alias("to_gseq"),
            F.lead("gseq").over(exchange).alias("next"),
        )
        .where("accepted")
    )


def _rows(view: View) -> DataFrame:
    """Return the rows that begin and end exchanges with publishers at QoS 2.

    PUBREL ends one, and so does its PUBCOMP: some brokers record only that. Messages carried
    because they are owed are left out: what ended their exchange is not carried.
    """
    refused = (F.col("ev") == "pub_acked") & (F.col("reason") >= REFUSED)
    begins = (F.col("ev") == "msg_accepted") & (F.col("pub_qos") == 2) & ~F.col("carried")
    begins |= F.col("ev") == STILL_OPEN
    return on_disk(
        view,
        view.of(
            "msg_accepted",
            *_ENDS,
            "pub_acked",
            STILL_OPEN,
            columns=[
                *("node", "gseq", "ts", "ev", "session", "conn", "pid"),
                *("pub_qos", "msg", "dup", "reason", "carried"),
            ],
        ),
    ).where((F.col("pid") > 0) & (begins | F.col("ev").isin(*_ENDS) | refused))
