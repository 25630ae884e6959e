"""What the next batch has to see again of messages: the rows of everything that is still open.

Open are deliveries without an end, acknowledgements that publishers may still get, QoS 2 exchanges
with publishers, and the subscriptions that began what is owed. (The newest row of each subscription
and connection is kept by `audit.session_checks`.) A delivery that is over is forgotten: that it is
sent once more in a later batch is not noticed, nor is an order broken across batches.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from audit import incoming
from audit.book import book
from audit.events import NAMES
from audit.holdings import holdings, on_disk
from audit.messages import messages
from audit.packed import OPEN_END, OUTCOME
from audit.rowset import node_name
from audit.view import View


def carry(view: View) -> DataFrame:
    """Return the rows, with the columns of the history; one may be there twice."""
    deliveries = book(view).where((F.col("code") == 0) & (F.col("outcome") == OUTCOME["open"]))
    group = F.col("owner").bitwiseAND(1) == 1
    deliveries = deliveries.where(~group | F.isnull("delivered_gseq")).select(
        node_name(view, F.col("owner")).alias("node"), "session", "msg"
    )
    exchanges = _events(view, "msg_delivered", "msg_acked")
    arrivals = _events(view, "msg_accepted", "msg_enqueued")
    accepted = _events(view, "msg_accepted")
    subscriptions = on_disk(view, view.sessions).where(F.col("ev").isin("subscribed"))
    began = holdings(view).where(F.col("to_gseq") == OPEN_END)
    began = began.select("node", "session", F.col("from_gseq").alias("gseq"))
    frames = (
        exchanges.join(deliveries.distinct(), ["node", "session", "msg"], "left_semi"),
        arrivals.join(deliveries.select("node", "msg").distinct(), ["node", "msg"], "left_semi"),
        _unanswered(view),
        accepted.join(incoming.still_open(view), ["node", "gseq"], "left_semi"),
        subscriptions.join(began, ["node", "session", "gseq"], "left_semi"),
    )
    return reduce(DataFrame.unionByName, (frame.select(*NAMES) for frame in frames))


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
