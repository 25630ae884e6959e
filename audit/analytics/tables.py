"""The statistics of a batch: the tables it writes, and the rows the next batch needs.

All tables are sums, so several batches give the same as one run over everything, and a batch that
is repeated replaces its own files. `audit.analytics.merge` adds them up for the report.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from audit.analytics import deliveries, sessions, stage_counts
from audit.analytics import messages as analytics_messages
from audit.checks.verdict import Outcome
from audit.input.batch_view import View
from audit.input.kept_rows import Kept, few
from audit.pace import in_few_files


def check(view: View) -> list[Outcome]:
    """Return nothing: statistics have no verdict."""
    return []


def carry(view: View) -> Kept:
    """Return the first rows of everything that has not ended in this batch."""
    places = [sessions.still_retained(view), sessions.still_there(view)]
    if view.has_messages:
        owed = few(_messages(view).where("open > 0").select("node_code", "msg"))
        # With the rows of their acknowledgements, or the next batch takes them for unanswered.
        said = view.of(
            "msg_accepted", "msg_persisted", "pub_acked", columns=("node", "gseq", "msg")
        )
        coded = said.withColumn("node_code", analytics_messages.node_code())
        places.append(coded.join(owed, ["node_code", "msg"], "left_semi"))
    return Kept(tuple(places))


def tables(view: View) -> dict[str, DataFrame]:
    """Return the tables of the batch by name, except those its level of detail cannot fill."""
    written = {
        "durations": sessions.durations(view),
        "moves": sessions.moves(view),
        "drops": sessions.drops(view),
        "retained": sessions.retained(view),
        "clock_steps": sessions.clock_steps(view),
    }
    broker = stage_counts.from_broker(view)
    if not view.has_messages:
        written["books_minute"] = broker
        written["clients"] = sessions.clients(view, None)
        return {name: in_few_files(table) for name, table in written.items()}
    messages = _messages(view)
    written["books_minute"] = broker.unionByName(stage_counts.from_events(view, messages))
    written["clients"] = sessions.clients(view, analytics_messages.fan_out(messages))
    written["waste"] = analytics_messages.waste(messages)
    written["storage"] = _named(view, analytics_messages.storage(messages))
    pairs, names = _pairs(view), sessions.names(view)
    written["fates"] = deliveries.fates(pairs)
    written["latency"] = deliveries.latencies(pairs, names)
    written["backlog"] = deliveries.backlogs(pairs, names)
    return {name: in_few_files(table) for name, table in written.items()}


def _pairs(view: View) -> DataFrame:
    return view.keep("deliveries counted", lambda: deliveries.of(view))


def _messages(view: View) -> DataFrame:
    def make() -> DataFrame:
        return analytics_messages.messages(view, _pairs(view).select("node", "msg", "done_us"))

    return view.keep("messages counted", make)


def _named(view: View, table: DataFrame) -> DataFrame:
    """Return the table with `tenant` in the place of `tenant_code`."""
    named = table.join(F.broadcast(analytics_messages.tenants(view)), "tenant_code", "left")
    return named.withColumn("tenant", F.coalesce("tenant", F.lit(""))).drop("tenant_code")
