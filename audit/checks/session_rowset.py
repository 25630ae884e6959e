"""Pack the history for the judgement: what sessions did, were sent, and were owed."""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.checks import packed_rows as packed
from audit.checks.packed_rows import OPEN_END
from audit.checks.stream_holders import ends, groups, holdings, on_disk
from audit.input import facts
from audit.input.batch_view import View
from audit.input.gaps import HOLE
from audit.input.kept_rows import are_few, few
from audit.pace import is_small

# Not an event of the history: a message owed to one holder and still open when an earlier run ended
# (`audit.checks.open_rows`). It has the place of its `msg_enqueued`; `session` is null for a group,
# `position` is the end of the holding or OPEN_END, `dup` is the doubt.
STILL_OWED: Final = "#owed"

_MESSAGES = {
    "msg_delivered": packed.DELIVERED,
    "msg_acked": packed.ACKED,
    "msg_completed": packed.COMPLETED,
    "msg_dropped": packed.DROPPED,
    "msg_expired": packed.EXPIRED,
    "msg_moved": packed.MOVED,
    "retained_sent": packed.RETAINED,
}
_COLUMNS = (
    *("node", "ev", "session", "gseq", "ts", "conn", "msg", "msg_last", "pid", "qos", "dup"),
    *("attempt", "reason", "share", "stream", "carried"),
)


def node_number(view: View, node: Column) -> Column:
    """Return the index of a node in the sorted names of all nodes."""
    numbers = {name: number for number, name in enumerate(nodes(view))}
    return F.coalesce(facts.of_node(node, numbers), F.lit(0)).cast("int")


def nodes(view: View) -> list[str]:
    """Return the names of the nodes, sorted."""
    return sorted({boot.node for boot in view.boots})


def node_name(view: View, owner: Column) -> Column:
    """Return the name of the node that `owner` (of a packed row) belongs to."""
    names = nodes(view) or [""]
    return facts.name_at(names, F.shiftright(owner, 1))


def clock(view: View) -> packed.Clock:
    """Return the facts about the nodes that the judgement needs."""
    number = {name: index for index, name in enumerate(nodes(view))}
    newest = {number[boot.node]: boot.boot for boot in view.boots}  # boots come in order
    crashed: dict[int, list[int]] = {index: [] for index in number.values()}
    died_us: dict[int, list[int]] = {index: [] for index in number.values()}
    for boot in view.boots:
        if not boot.clean:
            crashed[number[boot.node]].append(boot.boot)
            died_us[number[boot.node]].append(boot.last_us)
    return packed.Clock(
        end_us={index: view.last_us(name) for name, index in number.items()},
        boot=newest,
        crashed=crashed,
        died_us=died_us,
        horizon_us=view.settings.horizon_s * 1_000_000,
    )


def rowset(view: View) -> DataFrame:
    """Return all rows that the judgement of sessions and groups needs, packed."""
    held = holdings(view)
    events = _of_messages(view)
    own = events.where("session IS NOT NULL")
    parts = [_packed(view, own, F.col("session"), 0), _of_sessions(view), _owed(view)]
    if not held.where("share IS NOT NULL").isEmpty():
        parts.append(_packed(view, _of_groups(events, held), F.col("stream"), 1))
    return reduce(DataFrame.unionByName, parts)


def _of_messages(view: View) -> DataFrame:
    return on_disk(view, view.of(*_MESSAGES, columns=_COLUMNS))


def _of_groups(events: DataFrame, held: DataFrame) -> DataFrame:
    """Return the rows about messages of shared groups, with the group's stream.

    A row without a stream counts for every group of its name that the session was in, or, if the
    session's subscription is unknown, for all groups of that name. That is harmless: for a message
    that a group was not owed, the row has no effect.
    """
    keys = ["node", "session", "share"]
    shared = held.where("share IS NOT NULL").groupBy(*keys)
    members = shared.agg(F.collect_set("stream").alias("streams"))
    all_streams = members.groupBy("node", "session").agg(
        F.flatten(F.collect_list("streams")).alias("all_streams")
    )
    named_so = members.groupBy("node", "share").agg(
        F.array_distinct(F.flatten(F.collect_list("streams"))).alias("any_streams")
    )
    ended = F.col("ev").isin("msg_dropped", "msg_expired")
    told = (
        events.where(F.col("share").isNotNull() | ended)
        .join(few(members), keys, "left")
        .join(few(named_so), ["node", "share"], "left")
        .join(few(all_streams), ["node", "session"], "left")
        .where("share IS NOT NULL OR all_streams IS NOT NULL")
    )
    by_name = F.when(F.col("share").isNull(), F.col("all_streams")).otherwise(
        F.coalesce("streams", "any_streams")
    )
    named = F.when(F.col("stream").isNotNull(), F.array("stream")).otherwise(by_name)
    return told.withColumn("stream", F.explode(named))


def _packed(view: View, events: DataFrame, session: Column, group: int) -> DataFrame:
    """Return rows about messages, packed, for sessions (`group` 0) or groups (1)."""
    kind = reduce(
        lambda rest, pair: F.when(F.col("ev") == pair[0], pair[1]).otherwise(rest),
        list(_MESSAGES.items())[1:],
        F.lit(packed.DELIVERED),
    )
    a = F.when(F.col("ev") == "msg_dropped", F.col("msg_last")).otherwise(F.col("conn"))
    b = _bits(
        kind,
        (packed.QOS, F.col("qos")),
        (packed.DUP, F.col("dup")),
        (packed.ATTEMPT, F.least(F.col("attempt"), F.lit(3))),
        (packed.SHARED, F.col("share").isNotNull()),
        (packed.CARRIED, F.col("carried")),
        (packed.REASON, F.col("reason")),
        (packed.PID, F.col("pid")),
    )
    return _row(view, events, group, session, msg=F.col("msg"), a=a, b=b)


def _of_sessions(view: View) -> DataFrame:
    """Return the rows about sessions, packed: connections, positions and ends."""
    rows = on_disk(view, view.sessions)
    carried = (packed.CARRIED, F.col("carried"))
    connected = _bits(
        F.lit(packed.CONNECTED),
        (packed.DUP, F.col("ev") == "session_resumed"),
        carried,
        (packed.EXTRA, F.greatest(F.lit(0), F.col("rmax"))),
    )
    session, none = F.col("session"), F.lit(-1)
    starts = rows.where(F.col("ev").isin("session_created", "session_resumed"))
    breaks = rows.where(F.col("ev").isin("session_disconnected", "session_restored"))
    places = rows.where(
        F.col("ev").isin("session_resumed", "session_disconnected", "session_restored")
        & F.col("position").isNotNull()
    )
    finals = ends(view).select(
        "node", "session", F.col("end_gseq").alias("gseq"), F.timestamp_micros(F.lit(0)).alias("ts")
    )
    return reduce(
        DataFrame.unionByName,
        (
            _row(view, starts, 0, session, msg=none, a=F.col("conn"), b=connected),
            _row(view, breaks, 0, session, msg=none, a=none, b=_bits(packed.OFFLINE, carried)),
            _row(
                view,
                places,
                0,
                session,
                msg=none,
                a=F.col("position"),
                b=_bits(packed.POSITION, carried),
            ),
            _row(view, finals, 0, session, msg=none, a=none, b=_bits(packed.ENDED)),
        ),
    )


def owed(view: View, only: DataFrame | None = None) -> DataFrame:
    """Return one row per message, stream and holder: sessions and groups that held the stream.

    Columns: node, group (0: a session, 1: a group), session (of a group: its stream), msg, stream,
    gseq and ts of `msg_enqueued`, to_gseq (end of the holding, or OPEN_END), doubt, carried.
    Messages accepted before this batch are included only if still open. `only` limits the messages
    (node, msg); None means all.
    """

    def told(ev: str, *columns: str) -> DataFrame:
        rows = on_disk(view, view.of(ev, columns=["node", "gseq", "msg", *columns]))
        return rows if only is None else rows.join(only, ["node", "msg"], "left_semi")

    enqueued = told("msg_enqueued", "ts", "stream")
    held = holdings(view).withColumn("doubt_from", _first_hole(view, F.col("from_gseq")))
    shared = groups(holdings(view)).withColumn("doubt_from", _first_hole(view, F.col("from_gseq")))
    copied = not is_small(view.spark) and are_few(held)
    held_then = F.col("gseq").between(F.col("from_gseq"), F.col("to_gseq"))
    doubt = F.coalesce(F.col("gseq") >= F.col("doubt_from"), F.lit(False))

    def joined(rows: DataFrame, holders: DataFrame, keys: list[str]) -> DataFrame:
        table = F.broadcast(holders) if copied else holders
        return rows.join(table, keys).where(held_then).withColumn("doubt", doubt)

    def frame(rows: DataFrame, group: int, session: str, *, carried: bool) -> DataFrame:
        holder = (F.lit(group).alias("group"), F.col(session).alias("session"))
        same = ("node", "msg", "stream", "gseq", "ts", "to_gseq", "doubt")
        return rows.select(*holder, *same, F.lit(carried).alias("carried"))

    sessions = held.where("share IS NULL")
    parts = [
        frame(
            joined(enqueued, sessions.where("NOT no_local"), ["node", "stream"]),
            0,
            "session",
            carried=False,
        ),
        frame(joined(enqueued, shared, ["node", "stream"]), 1, "stream", carried=False),
    ]
    deaf = sessions.where("no_local")
    if not deaf.isEmpty():
        own = deaf.select("node", "session", F.col("session").alias("pub")).distinct()
        # A will is accepted in its client's name, and the row of that names no session.
        wills = told("will_fired", "session").withColumnRenamed("session", "pub")
        accepted = told("msg_accepted", "pub").unionByName(wills)
        published = accepted.join(few(own), ["node", "pub"])
        others = joined(enqueued, deaf, ["node", "stream"]).join(
            published.select("node", "msg", "session"), ["node", "msg", "session"], "left_anti"
        )
        parts.append(frame(others, 0, "session", carried=False))
    if view.boots_before:  # there was an earlier run
        columns = ["node", "gseq", "ts", "msg", "stream", "session", "position", "dup"]
        kept = on_disk(view, view.of(STILL_OWED, columns=columns))
        ended = kept.where(F.col("position") < OPEN_END).select(
            "*", F.col("position").alias("to_gseq"), F.col("dup").alias("doubt")
        )
        lasting = kept.where(F.col("position") == OPEN_END)
        of_sessions, of_groups = F.col("session").isNotNull(), F.col("session").isNull()
        still = joined(lasting.where(of_sessions), sessions, ["node", "stream", "session"])
        theirs = joined(lasting.where(of_groups), shared, ["node", "stream"])
        parts += [
            frame(ended.where(of_sessions), 0, "session", carried=True),
            frame(ended.where(of_groups), 1, "stream", carried=True),
            frame(still, 0, "session", carried=True),
            frame(theirs, 1, "stream", carried=True),
        ]
    return reduce(DataFrame.unionByName, parts)


def _owed(view: View) -> DataFrame:
    """Return the rows of `owed`, packed."""
    b = _bits(packed.OWED, (packed.CARRIED, F.col("carried")), (packed.DOUBT, F.col("doubt")))
    to, stream = F.col("to_gseq"), F.col("stream")
    return _row(
        view, owed(view), F.col("group"), F.col("session"), msg=F.col("msg"), a=to, b=b,
        stream=stream,
    )  # fmt: skip


def _first_hole(view: View, since: Column) -> Column:
    """Return where the first hole after `since` begins; a subscription may have ended in it."""
    holes = [(gap.node, gap.from_gseq, gap.to_gseq) for gap in view.gaps if gap.kind == HOLE]
    return facts.first_after(F.col("node"), since, holes)


def _row(
    view: View,
    frame: DataFrame,
    group: Column | int,
    session: Column,
    *,
    msg: Column,
    a: Column,
    b: Column,
    stream: Column | None = None,
) -> DataFrame:
    none = F.lit(-1).cast("long")
    return frame.select(
        (node_number(view, F.col("node")) * 2 + group).cast("long").alias("owner"),
        session.cast("long").alias("session"),
        "gseq",
        F.unix_micros("ts").alias("ts"),
        F.coalesce(msg.cast("long"), none).alias("msg"),
        F.coalesce(a.cast("long"), none).alias("a"),
        b.alias("b"),
        (none if stream is None else stream).alias("stream"),
    )


def _bits(kind: Column | int, *fields: tuple[tuple[int, int], Column]) -> Column:
    """Return the packed number. A null field becomes 0, one that does not fit all ones."""
    number = F.lit(kind).cast("long") if isinstance(kind, int) else kind.cast("long")
    for (shift, bits), value in fields:
        whole = F.coalesce(value.cast("long"), F.lit(0).cast("long"))
        number = number.bitwiseOR(F.shiftleft(F.least(whole, F.lit((1 << bits) - 1)), shift))
    return number
