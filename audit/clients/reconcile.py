"""What clients logged beside what the history says: C1 to C5, as one more part of an audit.

The logs are held against the whole history, not only against its new segments, and again in each
run: they may be older or newer than what a batch has. Nothing of a single message comes to the
driver but the witnesses.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from audit.checks.stream_holders import holdings, joined
from audit.checks.verdict import Outcome
from audit.clients import folding, places, reading
from audit.clients.judgement import Life
from audit.clients.will_copies import will_copies
from audit.input import events, segments
from audit.input.batch_view import View
from audit.input.events import boot_of, seq_of
from audit.input.gaps import HOLE, MESSAGES, SAMPLED
from audit.input.segments import Segment

INVARIANTS: Final = ("C1", "C2", "C3", "C4", "C5")
_EVENTS: Final = (
    "session_created",
    "session_resumed",
    "session_purged",
    "msg_accepted",
    "msg_delivered",
    "msg_acked",
    "msg_completed",
    "msg_dropped",
    "msg_expired",
    "retained_sent",
)
# Their rows name a message, and its topic is in another row.
_OF_MESSAGES: Final = ("msg_delivered", "msg_dropped", "msg_expired")
_COLUMNS: Final = (
    *("client_id", "node", "gseq", "ev", "conn", "sp", "msg", "topic", "pid", "qos", "pub_qos"),
    *("bytes", "reason"),
)
_SHOWN: Final = ("client_id", "publisher", "topic", "hash", "pid", "log", "n")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Clients = tuple[DataFrame, Sequence[Segment]]


def opened(
    spark: SparkSession,
    patterns: Sequence[str],
    history: str,
    start: datetime | None = None,
    end: datetime | None = None,
) -> Clients:
    """Return the logs and all segments that can be read. Raises `places.LogError`."""
    logs = reading.read(spark, places.files(patterns))
    good, _ = segments.readable(segments.find(spark, history, start, end))
    return logs, good


def check(view: View, clients: Clients) -> list[Outcome]:
    """Return C1 to C5."""
    logs, all_segments = clients
    history = _history(view, all_segments)
    names = F.broadcast(logs.select("client_id").distinct())
    rows = view.keep("rows of logged clients", lambda: _rows(history, names))
    lives = [Life(boot.node, boot.boot, boot.clean) for boot in view.boots]
    folded = view.keep(
        "judged logs",
        lambda: (
            logs.groupBy("client_id")
            .cogroup(rows.groupBy("client_id"))
            .applyInArrow(folding.of_client(lives), folding.DDL)
        ),
    )
    of_topics = folded.where(F.col("kind").isin("published", "received", "dropped"))
    lost = view.keep(
        "judged topics",
        lambda: of_topics.groupBy("topic").applyInArrow(folding.of_topic, folding.DDL),
    )
    wills = will_copies(view, logs, history, folded)
    found = folded.unionByName(lost).unionByName(wills)
    return _outcomes(view, found)


def _history(view: View, all_segments: Sequence[Segment]) -> DataFrame:
    """Return all events: those of the batch, and those of segments of earlier ones."""
    new = {segment.name for segment in view.segments}
    older = [segment.path for segment in all_segments if segment.name not in new]
    fresh = view.events.where(~F.col("carried"))
    if not older:
        return fresh
    return fresh.unionByName(events.read(view.spark, "", files=older))


def _rows(history: DataFrame, names: DataFrame) -> DataFrame:
    """Return the rows of the clients that have logs; messages with their topic and length."""
    wanted = history.where(F.col("ev").isin(*_EVENTS)).join(names, "client_id", "left_semi")
    rows = wanted.select(
        *_COLUMNS,
        F.unix_micros("ts").alias("us"),
        F.coalesce(F.col("msg_last") != F.col("msg"), F.lit(False)).alias("several"),
    )
    is_sent = F.col("ev").isin(*_OF_MESSAGES) & F.col("topic").isNull()
    accepted = history.where("ev = 'msg_accepted' AND msg IS NOT NULL").select(
        "node", "msg", F.col("topic").alias("its_topic"), F.col("gseq").alias("accepted")
    )
    sent = rows.where(is_sent)
    # After a disk has lied, a number may name two messages: the newest one before the row.
    named = (
        sent.select("node", "msg", "gseq")
        .where("msg IS NOT NULL")
        .join(accepted, ["node", "msg"])
        .where(F.col("accepted") < F.col("gseq"))
        .groupBy("node", "gseq")
        .agg(F.max_by("its_topic", "accepted").alias("its_topic"))
    )
    told = sent.join(named, ["node", "gseq"], "left").withColumn(
        "topic", F.when(~F.col("several"), F.col("its_topic"))
    )
    return rows.where(~is_sent).unionByName(told.drop("its_topic")).drop("several")


def _outcomes(view: View, found: DataFrame) -> list[Outcome]:
    findings = view.keep(
        "findings of clients", lambda: _marked(view, found.where("kind = 'finding'"))
    )
    checked = {
        row.invariant: row.total
        for row in found.where("kind = 'count'")
        .groupBy("invariant")
        .agg(F.sum("count").alias("total"))
        .collect()
    }
    counts: dict[tuple[str, bool], int] = {
        (row.invariant, row.unknown): row.total
        for row in findings.groupBy("invariant", "unknown")
        .agg(F.sum("count").alias("total"))
        .collect()
    }
    outcomes = []
    for name in INVARIANTS:
        violated = counts.get((name, False), 0)
        witnesses = []
        if violated:
            guilty = findings.where((F.col("invariant") == name) & ~F.col("unknown"))
            ordered = guilty.orderBy("node", "to_gseq", "client_id", "log", "n")
            witnesses = [_witness(row) for row in ordered.take(view.settings.witnesses_max)]
        total = max(checked.get(name, 0), violated)
        outcomes.append(Outcome(name, total, violated, counts.get((name, True), 0), witnesses))
    return outcomes


def _marked(view: View, findings: DataFrame) -> DataFrame:
    """Add `unknown`: not certain, touches a gap, or a crash may have taken what is missing."""
    place = F.col("node"), F.col("from_gseq"), F.col("to_gseq")
    of_messages = F.coalesce(view.touches_gap(*place, (HOLE, MESSAGES, SAMPLED)), F.lit(True))
    of_sessions = F.coalesce(view.touches_gap(*place, (HOLE,)), F.lit(True))
    touches = F.when(F.col("invariant") == "C4", of_sessions).otherwise(of_messages)
    nowhere = F.col("node").isNull() | F.col("from_gseq").isNull() | F.col("to_gseq").isNull()
    doubtful = findings.where(F.coalesce("durable", F.lit(False)))
    marked = findings.withColumn("unknown", ~F.col("certain") | nowhere | touches)
    if doubtful.isEmpty():
        return marked
    keys = ["node", "topic", "from_gseq", "to_gseq"]
    held = _held(view, doubtful.select(*keys).distinct())
    return (
        marked.join(held, keys, "left")
        # Nobody had a stored subscription: nothing was promised, and a crash may take the rows.
        .where(~F.coalesce("durable", F.lit(False)) | F.col("unknown") | F.col("held").isNotNull())
        .withColumn("unknown", F.col("unknown") | ~F.coalesce("held", F.lit(True)))
        .drop("held")
    )


def _held(view: View, doubtful: DataFrame) -> DataFrame:
    """Return the places with a matching stored subscription; `held`: one was there all along."""
    held = joined(holdings(view).where(~F.col("no_local")), ["node", "tfilter"]).select(
        F.col("node").alias("there"),
        F.col("from_gseq").alias("since"),
        F.col("to_gseq").alias("until"),
        pattern(F.col("tfilter")).alias("pattern"),
    )
    touching = (F.col("since") < F.col("to_gseq")) & (F.col("until") > F.col("from_gseq"))
    matching = (F.col("node") == F.col("there")) & touching & F.rlike("topic", F.col("pattern"))
    inside = (F.col("since") < F.col("from_gseq")) & (F.col("until") > F.col("to_gseq"))
    found = doubtful.join(held, matching).withColumn("inside", inside.cast("int"))
    return found.groupBy(*doubtful.columns).agg((F.max("inside") == 1).alias("held"))


def pattern(tfilter: Column) -> Column:
    """Return the regular expression of the topics that a topic filter matches."""
    own = F.regexp_replace(tfilter, r"^\$share/[^/]*/", "")
    quoted = F.replace(own, F.lit("\\E"), F.lit("\\E\\\\E\\Q"))
    levels = F.regexp_replace(quoted, r"(^|/)\+(?=/|$)", r"$1\\E[^/]*\\Q")
    tail = F.when(own == "#", F.lit(".*\\Q")).otherwise(
        F.concat(F.lit("\\Q"), F.regexp_replace(levels, r"/#$", r"\\E(/.*)?\\Q"))
    )
    is_wild = own.startswith("#") | own.startswith("+")
    # A wildcard in front does not match a topic that begins with `$` [MQTT-4.7.2-1].
    front = F.when(is_wild, F.lit("(?s)^(?!\\$)")).otherwise(F.lit("(?s)^"))
    return F.concat(front, tail, F.lit("\\E$"))


def _witness(row: Row) -> dict[str, Any]:
    witness: dict[str, Any] = {"what": row.what, "node": row.node}
    witness |= {name: row[name] for name in _SHOWN if row[name] is not None}
    if row["count"] > 1:
        witness["count"] = row["count"]
    if row.at_us is not None:
        at = _EPOCH + timedelta(microseconds=row.at_us)
        witness["at"] = at.isoformat(timespec="milliseconds")
    for name in ("from", "to"):
        place = row[f"{name}_gseq"]
        witness[name] = {"boot": boot_of(place), "seq": seq_of(place)}
    return witness
