"""What the next batch has to see again of messages: the rows of everything that is still open.

Open are deliveries without an end, acknowledgements that publishers may still get, QoS 2 exchanges
with publishers, and the subscriptions that began what is owed. (The newest row of each subscription
and connection is kept by `audit.session_checks`.) A delivery that is over is forgotten: that it is
sent once more in a later batch is not noticed, nor is an order broken across batches.

One `msg_enqueued` makes a message owed to all who hold the stream, and some of them may be done
with it. So that row is not kept: what is still owed is a row per holder (`STILL_OWED`).
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from audit import incoming
from audit.book import book
from audit.events import NAMES, SCHEMA, SEQ_BITS
from audit.holdings import BEGINNINGS, holdings, on_disk
from audit.messages import messages
from audit.packed import OPEN_END, OUTCOME
from audit.rowset import STILL_OWED, node_name, owed
from audit.view import View


def carry(view: View) -> DataFrame:
    """Return the rows, with the columns of the history; one may be there twice."""
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
    # A group's message that was sent is its member's affair, as long as it is open there.
    sent = own.where("shared = 1").select("node", "msg").distinct()
    groups = groups.where("unsent").unionByName(
        groups.where("NOT unsent").join(sent, ["node", "msg"], "left_semi")
    )
    holders = own.unionByName(groups).drop("shared", "unsent")
    exchanges = _events(view, "msg_delivered", "msg_acked")
    arrivals = _events(view, "msg_accepted", "msg_persisted", "pub_acked")
    subscriptions = on_disk(view, view.sessions).where(F.col("ev").isin(*BEGINNINGS))
    began = holdings(view).where(F.col("to_gseq") == OPEN_END)
    began = began.select("node", "session", F.col("from_gseq").alias("gseq"))
    frames = (
        exchanges.join(own, ["node", "session", "msg"], "left_semi"),
        arrivals.join(holders, ["node", "msg"], "left_semi"),
        _still_owed(view, holders),
        _unanswered(view),
        arrivals.join(incoming.still_open(view), ["node", "boot", "msg"], "left_semi"),
        subscriptions.join(began, ["node", "session", "gseq"], "left_semi"),
    )
    return reduce(DataFrame.unionByName, (frame.select(*NAMES) for frame in frames))


def _still_owed(view: View, holders: DataFrame) -> DataFrame:
    """Return what these holders are owed, as rows of the history's columns."""
    keys = ["node", "group", "session", "msg"]
    # A session may hold one stream by several filters: it is owed until the last one ends.
    rows = (
        owed(view)
        .join(holders, keys, "left_semi")
        .groupBy(*keys, "stream", "gseq", "ts")
        .agg(F.max("to_gseq").alias("to_gseq"), F.min("doubt").alias("doubt"))
    )
    own = {
        "node": F.col("node"),
        "boot": F.shiftright("gseq", SEQ_BITS),
        "seq": F.col("gseq").bitwiseAND((1 << SEQ_BITS) - 1),
        "ts": F.col("ts"),
        "ev": F.lit(STILL_OWED),
        "session": F.when(F.col("group") == 0, F.col("session")),
        "msg": F.col("msg"),
        "stream": F.col("stream"),
        "position": F.col("to_gseq"),
        "dup": F.col("doubt"),
    }
    return rows.select(
        *(
            own.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in SCHEMA.fields
        )
    )


def _events(view: View, *evs: str) -> DataFrame:
    return on_disk(view, view.of(*evs, columns=[*NAMES, "gseq"]))


def _unanswered(view: View) -> DataFrame:
    """Return the rows of messages that a broker which is alive may still acknowledge."""
    alive = {boot.node: boot for boot in view.boots}
    recent = F.lit(False)
    for boot in alive.values():
        since = boot.last_us - view.settings.horizon_s * 1_000_000
        here = (F.col("node") == boot.node) & (F.col("boot") == boot.boot)
        recent |= here & (F.unix_micros("ts") >= since)
    waiting = messages(view).where("accepted IS NOT NULL AND pub_acked IS NULL AND NOT refused")
    keys = waiting.where("pub_qos > 0").select("node", "boot", "msg")
    rows = _events(view, "msg_accepted", "msg_persisted").where(recent)
    return rows.join(keys, ["node", "boot", "msg"], "left_semi")
