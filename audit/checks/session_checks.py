"""S1 to S5, W1 and G1: Spark groups the rows by client, `session_lifetimes` judges them.

Rows about sessions are few compared with those about messages, so one pass of plain Python over
them, client by client, is cheap, and easier to read than a dozen window functions. The number of
messages in flight comes summed up per connection (`_balances`).
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.checks import fold_findings, session_lifetimes, will_publications, wills
from audit.checks.fold_findings import Findings
from audit.checks.log_checks import disk_losses, lost_messages
from audit.checks.session_lifetimes import Client, Life
from audit.checks.verdict import Outcome
from audit.input import events, gaps, session_columns
from audit.input import fold_context as known_module
from audit.input.batch_view import View
from audit.input.fold_context import SECOND, Known, Node, known
from audit.input.kept_rows import Kept
from audit.input.session_columns import BALANCE, COLUMNS, SessionRow
from audit.spark import frame_of

# The modules sent to the workers of a cluster with the job, beside this one.
_TRAVELLERS: Final = (
    events,
    fold_findings,
    gaps,
    known_module,
    session_lifetimes,
    session_columns,
    wills,
)

INVARIANTS: Final = ("S1", "S2", "S3", "S4", "S5", "W1", "G1")
OUT_BATCH: Final = 4096  # rows returned to Spark at once

# Drop reasons of messages that may be in flight; all others apply before a message is sent.
_INFLIGHT_DROPS: Final = (1027, 1029, 1030, 1031)
_MESSAGES: Final = (
    "msg_delivered",
    "retained_sent",
    "msg_acked",
    "msg_completed",
    "msg_dropped",
    "msg_expired",
    "msg_moved",
)
_MESSAGE_COLUMNS: Final = (
    "node",
    "boot",
    "gseq",
    "ts",
    "ev",
    "session",
    "conn",
    "pid",
    "qos",
    "dup",
    "attempt",
    "reason",
    "count",
    "msg",
    "carried",
)

# The rows that the fold returns, by kind:
# count    name=invariant, a=checked, b=violated, c=unknown
# witness  name=invariant, text=JSON
# row      node, gseq: a row that the next batch needs
# balance  node, client_id, session, a=conn, b=least, c=most, d=fresh starts, e=fresh ends,
#          f, g=others, h=had_hole, i, j=odd of the Life, k=again
# session  node, client_id, session, name=state, text=tenant, a..l as in `_session`
_NUMBERS: Final = "abcdefghijkl"
_OUT: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("text", pa.string()),
        ("node", pa.string()),
        ("client_id", pa.string()),
        ("session", pa.int64()),
        ("gseq", pa.int64()),
        *((letter, pa.int64()) for letter in _NUMBERS),
    ]
)
_OUT_DDL: Final = (
    "kind string, name string, text string, node string, client_id string, session long, gseq long"
    + "".join(f", {letter} long" for letter in _NUMBERS)
)
_Out = tuple[object, ...]


def check(view: View) -> list[Outcome]:
    """Return S1 to S5, W1 and G1."""
    counts = {invariant: [0, 0, 0] for invariant in INVARIANTS}
    witnesses: dict[str, list[dict[str, object]]] = {invariant: [] for invariant in INVARIANTS}
    for row in _folded(view).where(F.col("kind").isin("count", "witness")).collect():
        if row.kind == "count":
            counts[row.name] = [
                old + new for old, new in zip(counts[row.name], (row.a, row.b, row.c), strict=True)
            ]
        else:
            witnesses[row.name].append(json.loads(row.text))
    for invariant, found in (("S5", _disk_losses(view)), ("G1", _odd_collections(view))):
        counts[invariant][0] += len(found)
        counts[invariant][1] += len(found)
        witnesses[invariant] = [*found, *witnesses[invariant]]
    twice = will_publications.without_event(view)
    counts["W1"] = [
        old + new
        for old, new in zip(
            counts["W1"], (twice.violated, twice.violated, twice.unknown), strict=True
        )
    ]
    witnesses["W1"] += twice.witnesses
    most = view.settings.witnesses_max
    outcomes = []
    for invariant in INVARIANTS:
        checked, violated, unknown = counts[invariant]
        first = sorted(witnesses[invariant], key=_order)[:most]
        outcomes.append(Outcome(invariant, checked, violated, unknown, first))
    return outcomes


def carry(view: View) -> Kept:
    """Return the rows from which the next batch rebuilds the sessions that have not ended."""
    folded = _folded(view)
    return Kept((folded.where(F.col("kind") == "row"),), (_kept_balances(view, folded),))


def tables(view: View) -> dict[str, DataFrame]:
    """Return the table `sessions`: the present state of every session with a row in this batch."""
    numbers = (
        "created_us",
        "last_us",
        "ended_us",
        "left_us",
        "end_reason",
        "connects",
        "takeovers",
        "expiry_s",
        "subs",
        "inflight",
        "position",
    )
    times = [
        F.timestamp_micros(letter).alias(name.removesuffix("_us") + "_at")
        if name.endswith("_us")
        else F.col(letter).alias(name)
        for letter, name in zip(_NUMBERS, numbers, strict=False)
    ]
    rows = _folded(view).where(F.col("kind") == "session")
    names = {"node": "node", "client_id": "client_id", "session": "session"}
    names |= {"text": "tenant", "name": "state"}
    first = [F.col(old).alias(new) for old, new in names.items()]
    return {"sessions": rows.select(*first, *times)}


def _order(witness: dict[str, object]) -> tuple[str, int, int]:
    numbers = [witness.get("boot"), witness.get("seq")]
    boot, seq = (number if isinstance(number, int) else 0 for number in numbers)
    return str(witness.get("node")), boot, seq


def _disk_losses(view: View) -> list[dict[str, object]]:
    return [
        {
            "what": "the disk lost what was promised",
            "node": loss.node,
            "boot": loss.boot,
            "seq": loss.from_seq,
            "to_seq": loss.to_seq,
            "messages": lost_messages(view, loss),
        }
        for loss in disk_losses(view)
    ]


def _odd_collections(view: View) -> list[dict[str, object]]:
    rows = view.of("gc_run", columns=["node", "boot", "seq", "count"]).where(F.col("count") < 0)
    return [
        {"what": "a garbage collection with a negative count", **row.asDict()}
        for row in rows.orderBy("node", "boot", "seq").take(view.settings.witnesses_max)
    ]


# The pass over the rows


def _folded(view: View) -> DataFrame:
    """Return the rows of the fold over all clients; computed once per batch."""
    return view.keep("session fold", lambda: _fold(view))


def _fold(view: View) -> DataFrame:
    rows = _session_rows(view)
    if view.has_messages:
        rows = rows.unionByName(_balances(view))
    ordered = rows.repartition("node", "client_id").sortWithinPartitions(
        "node", "client_id", "gseq", F.col("ev") == BALANCE
    )
    # Workers of a cluster get the code with the job: they need pyspark and pyarrow, not Holdfast.
    # Only these modules: a data source cannot be sent like that.
    for module in (sys.modules[__name__], *_TRAVELLERS):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # untyped
    return ordered.mapInArrow(_worker(known_of(view)), _OUT_DDL)


def known_of(view: View) -> Known:
    """Return what folds need to know of the view."""
    return known(
        view.boots,
        view.gaps,
        view.boots_before,
        tolerance_s=view.settings.expiry_tolerance_s,
        witnesses_max=view.settings.witnesses_max,
    )


def _session_rows(view: View) -> DataFrame:
    own = {
        "us": F.unix_micros("ts"),
        "at_us": F.unix_micros("at"),
        "least": F.when(F.col("ev") == BALANCE, F.col("count")),
        "most": F.when(F.col("ev") == BALANCE, F.col("msg_last")),
        "fresh_starts": F.when(F.col("ev") == BALANCE, F.col("rmax")).cast("long"),
        "fresh_ends": F.when(F.col("ev") == BALANCE, F.col("queued")).cast("long"),
        "again": F.when(F.col("ev") == BALANCE, F.col("total_bytes")),
    }
    rows = view.sessions.where(F.col("client_id").isNotNull() & F.col("session").isNotNull())
    return rows.select(*(own.get(name, F.col(name)).alias(name) for name in COLUMNS))


def _balances(view: View) -> DataFrame:
    """Return one row per connection with the change of the number of packet ids in flight.

    It has the place of the first row that it sums up. No string is aggregated: the client
    identifier is joined to the sums, which are few.
    """
    ends_us = frame_of(
        view.spark,
        [(boot.node, boot.boot, boot.last_us) for boot in view.boots],
        "node string, boot long, last_us long",
    )
    rows = view.of(*_MESSAGES, columns=_MESSAGE_COLUMNS).where(
        ~F.col("carried") & F.col("session").isNotNull()
    )
    start, end, loose = _starts(), _ends(), _may_end()
    again = F.coalesce((F.col("ev") == "msg_delivered") & (F.col("qos") > 0) & ~start, F.lit(False))
    rows = rows.join(F.broadcast(ends_us), ["node", "boot"])
    # What a crash may undo: the end of any exchange, but at QoS 2 no PUBLISH and no PUBREC.
    fresh = F.unix_micros("ts") >= F.col("last_us") - SECOND
    sums = (
        rows.where(start | end | again | (loose > 0))
        .groupBy("node", "boot", "session", "conn")
        .agg(
            F.min("gseq").alias("gseq"),
            F.min(F.unix_micros("ts")).alias("us"),
            F.sum(start.cast("long") - end.cast("long")).alias("most"),
            F.sum(loose).alias("loose"),
            F.count_if(again).alias("again"),
            F.count_if(start & fresh & (F.col("qos") == 1)).alias("fresh_starts"),
            F.count_if(end & fresh).alias("fresh_ends"),
        )
    )
    clients = (
        view.sessions.where(F.col("client_id").isNotNull())
        .select("node", "session", "client_id")
        .distinct()
    )
    filled = {
        "ev": F.lit(BALANCE),
        "carried": F.lit(False),
        "least": F.col("most") - F.col("loose"),
    }
    named = sums.join(clients, ["node", "session"]).withColumns(filled)
    types = {field.name: field.dataType for field in _session_rows(view).schema.fields}
    return named.select(
        *(
            F.col(name) if name in named.columns else F.lit(None).cast(types[name]).alias(name)
            for name in COLUMNS
        )
    )


def _starts() -> Column:
    """Return the condition that a row puts a packet id in flight."""
    again = F.coalesce(F.col("dup"), F.lit(False))
    first = F.coalesce(F.col("attempt") == 1, ~again)
    delivered = (F.col("ev") == "msg_delivered") & (F.col("qos") > 0) & first
    retained = (F.col("ev") == "retained_sent") & (F.col("pid") > 0) & ~again
    return F.coalesce(delivered | retained, F.lit(False))


def _ends() -> Column:
    """Return the condition that a row frees a packet id."""
    refused = (F.col("qos") == 2) & (F.col("reason") >= 0x80)
    acked = (F.col("ev") == "msg_acked") & ((F.col("qos") == 1) | refused)
    return F.coalesce(acked | (F.col("ev") == "msg_completed"), F.lit(False))


def _may_end() -> Column:
    """Return how many packet ids a row may free; its messages need not have been in flight."""
    dropped = (F.col("ev") == "msg_dropped") & F.col("reason").isin(*_INFLIGHT_DROPS)
    gone = F.col("ev").isin("msg_expired", "msg_moved") | F.coalesce(dropped, F.lit(False))
    return F.when(gone, F.coalesce(F.col("count"), F.lit(1))).otherwise(0)


def _kept_balances(view: View, folded: DataFrame) -> DataFrame:
    """Return the balances of present connections, as rows with the columns of the history."""
    ends = {boot.node: boot for boot in view.boots}
    places = frame_of(
        view.spark,
        [(node, boot.boot, boot.last_seq, boot.last_us) for node, boot in ends.items()],
        "node string, boot long, seq long, us long",
    )
    rows = folded.where(F.col("kind") == "balance").join(F.broadcast(places), "node")
    own = {
        "ev": F.lit(BALANCE),
        "ts": F.timestamp_micros("us"),
        "conn": F.col("a"),
        "count": F.col("b"),
        "msg_last": F.col("c"),
        "rmax": F.col("d"),
        "queued": F.col("e"),
        "subs": F.col("f"),
        "subs_check": F.col("g"),
        "qos": F.col("h"),
        "inflight": F.col("i"),
        "position": F.col("j"),
        "total_bytes": F.col("k"),
    }
    same = ("node", "boot", "seq", "client_id", "session")
    return rows.select(
        *(
            own.get(field.name, F.col(field.name) if field.name in same else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in events.SCHEMA.fields
        )
    )


# In a Spark worker


def _worker(facts: Known) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pending: list[_Out] = []
        for out in _judge(_tuples(batches), facts):
            pending.append(out)
            if len(pending) == OUT_BATCH:
                yield _batch(pending)
                pending = []
        if pending:
            yield _batch(pending)

    return work


def _tuples(batches: Iterator[pa.RecordBatch]) -> Iterator[SessionRow]:
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        yield from map(SessionRow._make, zip(*columns, strict=True))


def _batch(rows: list[_Out]) -> pa.RecordBatch:
    columns: list[Any] = list(zip(*rows, strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _OUT, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_OUT)


def _judge(rows: Iterator[SessionRow], facts: Known) -> Iterator[_Out]:
    """Feed each client its rows; yield its results, and at the end the findings."""
    found = Findings(facts.witnesses_max)
    client: Client | None = None
    name: tuple[str, str] | None = None
    for row in rows:
        if (row.node, row.client_id) != name:
            if client is not None and name is not None:
                yield from _left(client, name, facts.nodes[name[0]])
            name = row.node, row.client_id
            client = Client(facts, facts.nodes[row.node], found)
        assert client is not None
        client.feed(row)
    if client is not None and name is not None:
        yield from _left(client, name, facts.nodes[name[0]])
    for invariant, counts, witnesses in found:
        yield _out("count", invariant, numbers=counts)
        for witness in witnesses:
            yield _out("witness", invariant, json.dumps(witness))


def _left(client: Client, name: tuple[str, str], node: Node) -> Iterator[_Out]:
    """Finish a client; yield its results."""
    client.finish()
    for life in [*client.over, *client.lives.values()]:
        if life.last.gseq > node.before_gseq:
            yield _session(life, name)
    for life in client.lives.values():
        for place in life.rows():
            yield _out("row", node=name[0], gseq=place)
        numbers: list[int | None] = [
            life.conn or 0,
            life.least,
            life.most,
            life.fresh_starts,
            life.fresh_ends,
        ]
        changed = life.was_doubted
        if changed or (life.is_connected and life.is_moving):
            numbers.extend([*(life.others or (None, None)), int(life.had_hole)])
            numbers.extend([*(life.odd or (None, None)), life.again])
            yield _out("balance", None, None, *name, life.session, numbers=numbers)


def _session(life: Life, name: tuple[str, str]) -> _Out:
    census = life.census
    ended = life.ended
    state = "online" if life.is_connected else "offline"
    if ended is not None or life.is_gone:
        state = "ended"
    numbers = [
        life.created_us,
        life.last.us,
        ended.us if ended is not None else None,
        life.left_us,
        ended.reason if ended is not None else None,
        life.connects,
        life.takeovers,
        life.expiry_s,
        len(life.subscriptions) + life.others[0] if life.others is not None else None,
        census.inflight if census is not None else None,
        census.position if census is not None else None,
    ]
    return _out("session", state, life.tenant, *name, life.session, numbers=numbers)


def _out(
    kind: str,
    name: str | None = None,
    text: str | None = None,
    node: str | None = None,
    client_id: str | None = None,
    session: int | None = None,
    gseq: int | None = None,
    numbers: list[Any] | None = None,
) -> _Out:
    values = numbers or []
    filled = [*values, *[None] * (len(_NUMBERS) - len(values))]
    return kind, name, text, node, client_id, session, gseq, *filled
