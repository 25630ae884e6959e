"""What was recorded because of traces: judged as at `full`, for the traced clients only.

All rows of a traced client are there from `trace_began` to `trace_ended`, those of others are not.
So two small views are made of these rows: one with the sessions of traced clients alone, for what
they were sent and owed, and one with all sessions, for what was accepted. Of a session only that is
judged whose evidence lies in one stretch of a trace; what began before it or ended behind it wrongs
nobody. What cannot be judged here is not counted: the level of the others says that it is unknown.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.checks import delivery_checks, publish_checks, retained_checks
from audit.checks.retained_checks import CHANGES
from audit.checks.verdict import Outcome
from audit.input.batch_view import COMMON, View, within
from audit.input.conditions import any_of
from audit.input.events import NAMES
from audit.input.gaps import HOLE
from audit.input.kept_rows import Kept
from audit.input.traces import EVENTS, TRACED, Trace
from audit.spark import frame_of

# Sessions that are judged; Spark compiles an expression with all of them.
SESSIONS_MAX: Final = 128
# Rows without a client, or of another one: they tell what the traced client was owed.
_OF_MESSAGES: Final = ("msg_accepted", "msg_enqueued", "msg_persisted")
_COLUMNS: Final = (*NAMES, "gseq", "carried")

_Key = tuple[str, str, int]  # node, client_id, gseq of the beginning of the stretch
Judged = tuple[str, int, int, int]  # node, session, from, to


def check(view: View) -> list[Outcome]:
    """Return what the traces show: L1 to L3, D1 to D3, F1, O1, E1 and R1, only what is certain."""
    if not view.traces:
        return []
    sessions = [each for found in _sessions(view).values() for each in found]
    if not sessions:
        return []
    outcomes = [
        *publish_checks.check(_of_publishers(view)),
        *retained_checks.check(_of_publishers(view)),
        *delivery_checks.check(_of_holders(view, sessions)),
    ]
    return [replace(outcome, unknown=0, facts={}) for outcome in outcomes]


def carry(view: View) -> Kept:
    """Return the rows that tell of traces which go on: the next batch has more of them."""
    if not any(trace.is_open for trace in view.traces):
        return Kept()
    rows = view.of(*EVENTS, columns=("node", "gseq"))
    wanted = any_of(
        (F.col("node") == trace.node) & (F.col("gseq") == trace.begins_at)
        for trace in view.traces
        if trace.is_open
    )
    return Kept((rows.where(wanted),))


def told(view: View) -> list[dict[str, Any]]:
    """Return the stretches of traces, with how many sessions were judged in each and how many not.

    Those beyond `SESSIONS_MAX` are not.
    """
    if not view.traces:
        return []
    judged, seen = _sessions(view), _seen(view)
    return [
        {
            "node": trace.node,
            "client_id": trace.client_id,
            "from_us": trace.from_us,
            "to_us": trace.to_us,
            "level": trace.level,
            "judged": len(judged.get(_key(trace), ())),
            "not_judged": len(seen.get(_key(trace), ())) - len(judged.get(_key(trace), ())),
        }
        for trace in view.traces
    ]


def _key(trace: Trace) -> _Key:
    return trace.node, trace.client_id, trace.from_gseq


def _sessions(view: View) -> dict[_Key, list[Judged]]:
    """Return the sessions to judge in each stretch, at most `SESSIONS_MAX` in all."""
    found: dict[_Key, list[Judged]] = {}
    left = SESSIONS_MAX
    for key, sessions in _seen(view).items():
        found[key] = sessions[:left]
        left -= len(found[key])
    return found


def _seen(view: View) -> dict[_Key, list[Judged]]:
    """Return the sessions that have a row in a stretch, and the one that was there before it."""
    rows = view.keep("sessions in traces", lambda: _own_sessions(view)).collect()
    seen: dict[_Key, list[Judged]] = {}
    for row in sorted(rows):
        key = row.node, row.client_id, row.since
        seen.setdefault(key, []).append((row.node, row.session, row.since, row.until))
    return seen


def _own_sessions(view: View) -> DataFrame:
    assert view.traced is not None
    rows = view.traced.where(within(view.stretches) & F.col("session").isNotNull())
    columns = ("node", "client_id", "session", "gseq")
    own = rows.select(*columns).join(F.broadcast(_places(view)), ["node", "client_id"])
    own = own.where(F.col("gseq").between(F.col("since"), F.col("until")))
    own = own.select("node", "client_id", "session", "since", "until")
    before = view.sessions.select(*columns).join(F.broadcast(_places(view)), ["node", "client_id"])
    newest = (
        before.where((F.col("gseq") < F.col("since")) & F.col("session").isNotNull())
        .groupBy("node", "client_id", "since", "until")
        .agg(F.max_by("session", "gseq").alias("session"))
    )
    return own.unionByName(newest).distinct()


def _places(view: View) -> DataFrame:
    places = [(each.node, each.client_id, each.from_gseq, each.to_gseq) for each in view.traces]
    return frame_of(view.spark, places, "node string, client_id string, since long, until long")


def _of_publishers(view: View) -> View:
    """Return the view of what was accepted, with the rows of all sessions."""
    rows = view.sessions.unionByName(view.rare.where(F.col("ev").isin(*CHANGES)))
    return _made(view, "traced publishers", rows)


def _of_holders(view: View, sessions: list[Judged]) -> View:
    """Return the view of what the sessions of traced clients were sent and owed.

    Their shared subscriptions are left out: other members may have got the messages.
    """
    chosen = frame_of(
        view.spark, sorted({each[:2] for each in sessions}), "node string, session long"
    )
    rows = view.sessions.join(F.broadcast(chosen), ["node", "session"], "left_semi")
    rows = rows.where(F.col("share").isNull())
    made = _made(view, "traced holders", rows)
    # A message may wait until the trace ends; nobody knows what comes behind it.
    ends_us: dict[str, int] = {}
    for trace in view.traces:
        ends_us[trace.node] = min(trace.to_us, ends_us.get(trace.node, trace.to_us))
    return replace(made, judged=sessions, ends_us=ends_us)


def _made(view: View, name: str, others: DataFrame) -> View:
    """Return a view of the traced messages and of `others`, with frames of its own."""
    shelf = view.shelf.below(name)
    columns = [F.col(column) for column in _COLUMNS]
    messages = view.keep("traced messages", lambda: _messages(view))
    events = shelf.keep("events", lambda: messages.unionByName(others.select(*columns)))
    rare = events.where(~F.col("ev").isin(*sorted(COMMON)))
    holes = [gap for gap in view.gaps if gap.kind == HOLE]
    return replace(
        view, shelf=shelf, events=events, rare=rare, gaps=holes, traces=(), stretches=(),
        traced=None,
    )  # fmt: skip


def _messages(view: View) -> DataFrame:
    """Return the rows of messages in the traces: those of the traced, and what they were owed.

    The packet identifiers of other publishers are left out: their exchanges are not recorded.
    """
    assert view.traced is not None
    wanted = within(view.stretches) & F.col("ev").isin(*TRACED) & ~F.col("carried")
    places = F.broadcast(_places(view).withColumnsRenamed({"node": "there", "client_id": "whose"}))
    own = (F.col("node") == F.col("there")) & (F.col("client_id") == F.col("whose"))
    own &= F.col("gseq").between(F.col("since"), F.col("until"))
    rows = view.traced.where(wanted).join(places, own, "left")
    is_own = F.col("there").isNotNull()
    kept = rows.where(is_own | F.col("ev").isin(*_OF_MESSAGES))
    return kept.select(*_columns(F.when(is_own, F.col("pid"))))


def _columns(pid: Column) -> Iterator[Column]:
    for name in _COLUMNS:
        yield pid.alias("pid") if name == "pid" else F.col(name)
