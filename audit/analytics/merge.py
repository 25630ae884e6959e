"""Merge the tables of all batches into a Picture, the numbers of the report.

Spark adds up everything large; the constants here limit what comes to the driver. A history of any
length becomes at most `BINS_MAX` bins of time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from audit.analytics import oddities, stage_counts, witness_rows
from audit.analytics.oddities import Difference, Hour, Moves
from audit.checks.verdict import INVARIANTS
from audit.files import is_local, join, list_files, local_path, read_text
from audit.input import facts
from audit.input.coverage import TESTED
from audit.input.events import boot_of
from audit.pace import is_small, together
from audit.report import trend
from audit.report.summary import (
    Backlog,
    Bill,
    Boot,
    Check,
    Churn,
    Covered,
    Drop,
    Finding,
    Gap,
    Histogram,
    Minute,
    Picture,
    Run,
    Slow,
    Suppression,
    Talker,
    Traced,
)
from audit.report.text import untested_words
from audit.spark import frame_of
from storage.history.events import REASONS

BINS_MAX: Final = 240
HOURS_MAX: Final = 50_000  # tenant hours searched for unusual ones
TENANTS_MAX: Final = 200  # in the bill
CLIENTS_MAX: Final = 10  # shown per list
BACKLOGS_MAX: Final = 6
DIFFERENCES_MAX: Final = 1000  # lines of the books, in one finding
GAPS_MAX: Final = 100
LOSSES_MAX: Final = 10_000  # violations of S5 that are assigned to boots
STEPS_MAX: Final = 50
REASONS_MAX: Final = 5  # named for each invariant that could not be tested everywhere
SLOW_MIN: Final = 20  # acknowledgements of a client before it can be called slow

_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"  # where Spark writes it
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_MINUTE_US: Final = 60_000_000
_HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True)
class Tables:
    """The tables below `out_dir`, over all batches."""

    spark: SparkSession
    out_dir: str

    def get(self, name: str) -> DataFrame | None:
        """Return the rows of all batches of a table, None if none was ever written."""
        place = join(self.out_dir, "tables", name)
        files = list_files(self.spark, place, ".parquet")
        if not files:
            return None
        schema = _schema(files[0])
        reader = self.spark.read if schema is None else self.spark.read.schema(schema)
        return reader.parquet(place)

    def rows(self, name: str, keys: Sequence[str], sums: Sequence[str]) -> DataFrame | None:
        """Return a table's sums per key over all batches."""
        table = self.get(name)
        if table is None:
            return None
        if not keys:
            return table.agg(*(F.sum(column).alias(column) for column in sums))
        return table.groupBy(*keys).agg(*(F.sum(column).alias(column) for column in sums))


def _schema(file: str) -> StructType | None:
    """Return the schema of a table by one of its files, for which Spark would run a job.

    None if the file is not on this machine, or not from Spark.
    """
    if not is_local(file):
        return None
    told = (pq.read_schema(local_path(file)).metadata or {}).get(_SCHEMA)
    return None if told is None else StructType.fromJson(json.loads(told))


def picture(
    spark: SparkSession, out_dir: str, document: dict[str, Any], *, made_us: int, seconds: float
) -> Picture:
    """Return the numbers of all batches for the report of `document` (verdict.json)."""
    tables = Tables(spark, out_dir)
    shown = _frame(document, made_us, seconds, _losses(tables))
    shown.stories = witness_rows.read(spark, out_dir, document["batch"])
    shown.runs = _runs(spark, out_dir)
    # Bins, bills and the number of clients come first: the other sections need them.
    for sections in (
        (_books, _clients),
        (_fates, _durations, _latency, _backlogs, _drops, _retained, _bills, _moves),
    ):
        for found in together(spark, [partial(each, tables, shown) for each in sections]):
            shown.findings += found or []
    shown.findings += oddities.growing_backlogs(shown.backlogs)
    steps = tables.get("clock_steps")
    if steps is not None:
        rows = steps.orderBy("at_us").limit(STEPS_MAX).collect()
        shown.findings += oddities.clock_steps((row.at_us, row.node, row.detail) for row in rows)
    return shown


def write_findings(spark: SparkSession, out_dir: str, findings: Sequence[Finding]) -> None:
    """Replace the table `findings`, which is about all batches together."""
    rows = [(f.kind, f.at_us, f.tenant, f.subject, f.reason, float(f.score)) for f in findings]
    schema = "kind string, at_us long, tenant string, subject string, reason string, score double"
    found = frame_of(spark, rows, schema).coalesce(1)
    found.write.mode("overwrite").parquet(join(out_dir, "tables", "findings"))


# -- from verdict.json -----------------------------------------------------------------------------


def _losses(tables: Tables) -> list[dict[str, Any]]:
    """Return the witnesses, from all batches, of state that did not survive a boot."""
    table = tables.get("violations")
    if table is None:
        return []
    rows = table.where("invariant = 'S5'").select("witness").limit(LOSSES_MAX).collect()
    found = [json.loads(row.witness) for row in rows]
    return [witness for witness in found if "suppressed" not in witness]


def _frame(
    document: dict[str, Any], made_us: int, seconds: float, losses: Sequence[dict[str, Any]]
) -> Picture:
    checks = []
    for name, invariant in INVARIANTS.items():
        found = document["invariants"].get(name)
        if found is None:
            continue
        title = invariant.title
        untested = found.get("untested", [])  # not in verdicts of earlier versions
        sentence = f"{title[:1].upper()}{title[1:]} ({invariant.source})"
        total = document.get("totals", {}).get(name, {})
        suppressed = found.get("suppressed", 0)
        mine = {**found, "violated": found["violated"] - suppressed}
        checked, violated, unknown = (
            max(0, total.get(key, 0) - mine[key]) for key in ("checked", "violated", "unknown")
        )
        checks.append(
            Check(
                name, title, sentence, found["status"], found["checked"], found["violated"],
                found["unknown"], _reasons(untested), list(found["witnesses"]),
                (checked, violated, unknown), len(untested), TESTED[invariant.needs],
                suppressed,
            )
        )  # fmt: skip
    boots = _boots(document, losses)
    return Picture(
        title=str(document.get("history", "")),
        outcome=document["status"],
        checks=checks,
        made_us=made_us,
        from_us=min((boot.began_us for boot in boots), default=None),
        to_us=max((boot.ended_us for boot in boots), default=None),
        events=sum(document.get("facts", {}).get("events", {}).values()) or document["rows"],
        segments=document["segments"],
        seconds=seconds,
        details=sorted(
            {b[key] for b in document["boots"] for key in ("level", "level_now")} - {""}
        ),
        batches=document["batch"] + 1,
        boots=boots,
        gaps=_gaps(document),
        coverage=[
            Covered(
                span["node"], _us(span["from"]), _us(span["to"]), span["recorded"],
                span["reason"], span["sample"],
            )
            for span in document.get("coverage", [])
        ],
        traces=[
            Traced(each["node"], each["client_id"], each["judged"], each["not_judged"])
            for each in document.get("traces", [])
        ],
        suppressions=[Suppression(**each) for each in document.get("suppressions", [])],
    )  # fmt: skip


def _runs(spark: SparkSession, out_dir: str) -> list[Run]:
    """Return the verdicts of the last runs, of their files."""
    places = list_files(spark, join(out_dir, "verdicts"), ".json")[-trend.RUNS_MAX :]
    return [trend.run_of(json.loads(read_text(spark, place))) for place in places]


def _reasons(untested: Sequence[dict[str, Any]]) -> list[str]:
    """Return where an invariant could not be tested, as sentences."""
    found = [untested_words(span) for span in untested[:REASONS_MAX]]
    if len(untested) > REASONS_MAX:
        found.append(f"and {len(untested) - REASONS_MAX} times more")
    return found


def _us(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1e6)


def _boots(document: dict[str, Any], losses: Sequence[dict[str, Any]]) -> list[Boot]:
    """Return the boots; the sessions before a boot are known only if S5 could check them all."""
    rows = document["boots"]
    last = {boot["node"]: boot["boot"] for boot in rows}
    following = {(row["node"], row["boot"]): row for row in rows}
    total = document.get("totals", {}).get("S5", {})
    # If all violations are listed and nothing was unknown, there are no other losses.
    is_told = total.get("unknown") == 0 and total.get("violated") == len(losses)
    # Sessions from before the first row of a node, without rows since, are unknown.
    begun = {gap["node"]: boot_of(gap["to_gseq"]) for gap in document["gaps"] if _is_start(gap)}
    boots = []
    for row in rows:
        if row["clean"]:
            end = "clean"
        else:
            end = "open" if last[row["node"]] == row["boot"] else "crash"
        after = following.get((row["node"], row["boot"] + 1), {}).get("recovered_count")
        lost = sum(
            witness.get("node") == row["node"] and _ended_boot(witness) == row["boot"]
            for witness in losses
        )
        is_known = is_told and not lost and row["boot"] > begun.get(row["node"], 0)
        # If nothing is missing, the sessions found are all that existed before.
        before = after if is_known else None
        boots.append(
            Boot(
                row["node"], row["boot"], row["first_us"], row["last_us"],
                end,  # type: ignore[arg-type] # one of the three above
                before, after, lost,
            )
        )  # fmt: skip
    return boots


def _is_start(gap: dict[str, Any]) -> bool:
    """Return whether a gap is the time before the first row of a node."""
    return bool(gap["from_gseq"] == 0)


def _ended_boot(witness: dict[str, Any]) -> int:
    """Return the boot at whose end the loss of an S5 witness happened.

    A missing session names the boot after it, a loss of the disk the boot itself, and a changed
    session is a row of the boot after it.
    """
    if "after_boot" in witness:
        return int(witness["after_boot"]) - 1
    return int(witness["boot"]) - ("to_seq" not in witness)


def _gaps(document: dict[str, Any]) -> list[Gap]:
    """Return the gaps with times estimated from the boots around them."""
    anchors: dict[str, list[tuple[int, int]]] = {}
    for boot in document["boots"]:
        points = anchors.setdefault(boot["node"], [])
        points.append((boot["boot"] << 40 | boot["first_seq"], boot["first_us"]))
        points.append((boot["boot"] << 40 | boot["last_seq"], boot["last_us"]))
    gaps = []
    for gap in document["gaps"][:GAPS_MAX]:
        points = sorted(anchors.get(gap["node"], []))
        if not points or _is_start(gap):
            continue  # nothing existed there
        begin, end = gap["from_gseq"], gap["to_gseq"]
        is_open = end & ((1 << 40) - 1) == (1 << 40) - 1
        whole = gap["kind"] == "hole" and begin >> 40 == end >> 40 and not is_open
        gaps.append(
            Gap(
                gap["node"], begin >> 40, _time_of(points, begin),
                _time_of(points, end), gap["reason"], end - begin + 1 if whole else None,
                _GAP_WORDS[gap["kind"]] + ("" if gap["explained"] else " Nothing explains it."),
            )
        )  # fmt: skip
    return gaps


_GAP_WORDS: Final = {
    "hole": "Whatever happened is not recorded.",
    "messages": "Sessions are recorded, single messages are not.",
    "sampled": "Only some messages are recorded.",
}


def _time_of(points: Sequence[tuple[int, int]], place: int) -> int:
    """Return the time at a gseq, interpolated between the two nearest known points."""
    before = [point for point in points if point[0] <= place]
    after = [point for point in points if point[0] > place]
    if not before:
        return after[0][1]
    if not after:
        return before[-1][1]
    (low, low_us), (high, high_us) = before[-1], after[0]
    if low >> 40 != high >> 40:
        return low_us
    return low_us + (high_us - low_us) * (place - low) // max(high - low, 1)


# -- books -----------------------------------------------------------------------------------------


def _bin_s(span_us: int) -> int:
    for step in _STEPS_S:
        if span_us <= step * 1_000_000 * BINS_MAX:
            return step
    return -(-span_us // (86_400_000_000 * BINS_MAX)) * 86_400


def _books(tables: Tables, shown: Picture) -> list[Finding]:
    table = tables.get("books_minute")
    if table is None:
        return []
    books = stage_counts.added_up(table)
    if is_small(tables.spark):
        books = books.localCheckpoint()  # it is used eleven times
    keys = ["tenant", "minute", "stage"]
    # The broker's own books if there are any, otherwise those of the events.
    one = books.groupBy(*keys).agg(
        F.coalesce(
            F.max(F.when(F.col("source") == "broker", F.col("count"))), F.max("count")
        ).alias("count"),
        F.coalesce(
            F.max(F.when(F.col("source") == "broker", F.col("total_bytes"))), F.max("total_bytes")
        ).alias("total_bytes"),
    )
    bounds = one.agg(F.min("minute"), F.max("minute")).collect()[0]
    if bounds[0] is not None:
        shown.bin_s = _bin_s(bounds[1] + _MINUTE_US - bounds[0])
        step = shown.bin_s * 1_000_000
        rows = (
            one.groupBy((F.col("minute") - F.pmod("minute", F.lit(step))).alias("at"), "stage")
            .agg(F.sum("count").alias("count"))
            .collect()
        )
        shown.minutes = _minutes(rows, step, "stage")
    hourly = _tenant_hours(one)
    shown.bills = _bill_rows(hourly)
    found = oddities.unusual_hours(
        Hour(row.tenant, row.hour, row.accepted or 0)
        for row in hourly.where("accepted > 0").limit(HOURS_MAX).collect()
    )
    return [*found, *oddities.books(_differences(books, shown))]


def _minutes(rows: Sequence[Row], step: int, column: str) -> list[Minute]:
    """Return all bins from the first to the last; bins without a row are zero."""
    found: dict[int, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row.at, {})[row[column]] = row["count"]
    if not found:
        return []
    return [Minute(at, found.get(at, {})) for at in range(min(found), max(found) + 1, step)]


def _tenant_hours(one: DataFrame) -> DataFrame:
    stages = ("accepted", "delivered", "redelivered", "dropped", "expired")
    numbers = [
        F.sum(F.when(F.col("stage") == stage, F.col("count"))).alias(stage) for stage in stages
    ]
    size = F.sum(F.when(F.col("stage") == "accepted", F.col("total_bytes"))).alias("total_bytes")
    hour = (F.col("minute") - F.pmod("minute", F.lit(_HOUR_US))).alias("hour")
    return one.groupBy("tenant", hour).agg(*numbers, size)


def _bill_rows(hourly: DataFrame) -> list[Bill]:
    rows = (
        hourly.groupBy("tenant")
        .agg(*(F.sum(name).alias(name) for name in ("accepted", "total_bytes", "delivered",
                                                      "dropped")))
        .orderBy(F.desc_nulls_last("total_bytes"), "tenant")
        .limit(TENANTS_MAX)
        .collect()
    )  # fmt: skip
    return [
        Bill(row.tenant, row.accepted or 0, row.total_bytes or 0, row.delivered or 0,
             row.dropped or 0, 0.0)
        for row in rows
    ]  # fmt: skip


def _differences(books: DataFrame, shown: Picture) -> list[Difference]:
    """Return where the broker's books and the events differ, and where stages do not balance.

    What is owed to publishers was acknowledged, or could not be: their connections were gone.
    Leaves out minutes that touch a gap, and the first and last two minutes of a boot: there one of
    the two books may be incomplete.
    """
    names = ("count", "check1", "check2")

    def of(source: str, stage: str | None = None) -> DataFrame:
        rows = books.where(F.col("source") == source)
        if stage is not None:
            rows = rows.where(F.col("stage") == stage).drop("stage")
        renamed = [F.col(name).alias(f"{name}_{source}") for name in names]
        keys = ["tenant", "minute", *(["stage"] if stage is None else [])]
        return rows.select(*keys, *(renamed if stage is None else [F.col(n) for n in names]))

    broker, events = of("broker"), of("events")
    both = broker.join(events, ["tenant", "minute", "stage"]).select(
        "tenant", "minute", "stage", F.lit("the events").alias("other"),
        *(F.col(f"{name}_broker").alias(name) for name in names),
        *(F.col(f"{name}_events").alias(f"other_{name}") for name in names),
    )  # fmt: skip
    for stage, parts, other in (
        ("persisted", ("persisted",), "stored"),
        ("pub_acked", ("pub_acked", "unanswered"), "ack_owed"),
    ):
        own = books.where((F.col("source") == "broker") & F.col("stage").isin(*parts))
        left = stage_counts.added_up(own.withColumn("stage", F.lit(stage)))
        right = of("broker", other).select(
            "tenant", "minute", *(F.col(name).alias(f"other_{name}") for name in names)
        )
        line = right.join(left.select("tenant", "minute", *names), ["tenant", "minute"], "left")
        line = line.fillna(0, list(names))
        both = both.unionByName(
            line.withColumn("stage", F.lit(stage))
            .withColumn("other", F.lit(f"stage {other}"))
            .select(both.columns)
        )
    differs = F.lit(False)
    for name in names:
        differs = differs | (F.col(name) != F.col(f"other_{name}"))
    rows = both.where(differs & ~_explained(shown)).orderBy("minute").limit(DIFFERENCES_MAX)
    return [
        Difference(
            row.tenant, row.minute, row.stage, row.other, row["count"], row.other_count,
            row["count"] == row.other_count,
        )
        for row in rows.collect()
    ]  # fmt: skip


def _explained(shown: Picture) -> Any:
    """Return the condition that a minute is near the begin or end of a boot, or touches a gap."""
    spans = []
    for boot in shown.boots:
        spans.append((boot.began_us - _MINUTE_US, boot.began_us))
        spans.append((boot.ended_us - 2 * _MINUTE_US, boot.ended_us + _MINUTE_US))
    spans += [
        (gap.from_us - 2 * _MINUTE_US, gap.to_us + _MINUTE_US)
        for gap in shown.gaps
        if gap.to_us is not None
    ]
    return facts.is_within(F.col("minute"), spans)


def _fates(tables: Tables, shown: Picture) -> None:
    table = tables.get("fates")
    if table is None:
        return
    step = shown.bin_s * 1_000_000
    rows = (
        table.groupBy((F.col("minute") - F.pmod("minute", F.lit(step))).alias("at"), "fate")
        .agg(F.sum("count").alias("count"))
        .collect()
    )
    shown.owed = _minutes(rows, step, "fate")
    for minute in shown.owed:
        done = sum(number for fate, number in minute.stages.items() if fate != "owed")
        minute.stages["open"] = max(minute.stages.get("owed", 0) - done, 0)


# -- times -----------------------------------------------------------------------------------------


def _durations(tables: Tables, shown: Picture) -> None:
    rows = tables.rows("durations", ["kind", "bucket"], ["count"])
    for row in [] if rows is None else rows.collect():
        kind = shown.offline if row.kind == "offline" else shown.ages
        kind.buckets[row.bucket] = row["count"]


def _latency(tables: Tables, shown: Picture) -> None:
    table = tables.get("latency")
    if table is None:
        return
    for row in table.groupBy("bucket").agg(F.sum("count").alias("count")).collect():
        shown.latency.buckets[row.bucket] = row["count"]
    # The mean of the buckets is the logarithm of the geometric mean: good enough for sorting.
    keys = ["tenant", "client_id"]
    slowest = (
        table.groupBy(*keys)
        .agg(
            F.sum("count").alias("times"),
            (F.sum(F.col("bucket") * F.col("count")) / F.sum("count")).alias("mean"),
        )
        .where(F.col("times") >= SLOW_MIN)
        .orderBy(F.desc("mean"), *keys)
        .limit(CLIENTS_MAX)
    )
    rows = table.join(F.broadcast(slowest.select(*keys)), keys).collect()
    found: dict[tuple[str, str], Histogram] = {}
    for row in rows:
        buckets = found.setdefault((row.tenant, row.client_id), Histogram()).buckets
        buckets[row.bucket] = buckets.get(row.bucket, 0) + row["count"]
    slow = [Slow(tenant, client_id, latency) for (tenant, client_id), latency in found.items()]
    shown.slow = sorted(slow, key=lambda one: -(one.latency.quantile_ms(0.5) or 0))


def _backlogs(tables: Tables, shown: Picture) -> None:
    rows = tables.rows("backlog", ["tenant", "client_id", "minute"], ["delta"])
    if rows is None:
        return
    step = shown.bin_s * 1_000_000
    binned = rows.groupBy(
        "tenant", "client_id", (F.col("minute") - F.pmod("minute", F.lit(step))).alias("at")
    ).agg(F.sum("delta").alias("delta"))
    changes: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in binned.orderBy("tenant", "client_id", "at").collect():
        changes.setdefault((row.tenant, row.client_id), []).append((row.at, row.delta))
    curves = []
    for (tenant, client_id), own in changes.items():
        level = 0
        points = []
        for at, delta in own:
            level += delta
            points.append((at, max(level, 0)))
        if shown.to_us is not None and points[-1][0] < shown.to_us:
            points.append((shown.to_us, points[-1][1]))
        curves.append(Backlog(tenant, client_id, points, points[-1][1] - points[0][1]))
    shown.backlogs = sorted(curves, key=lambda curve: -curve.worst)[:BACKLOGS_MAX]


# -- who and how much ------------------------------------------------------------------------------


def _clients(tables: Tables, shown: Picture) -> list[Finding]:
    numbers = ("connects", "takeovers", "lost", "messages", "total_bytes", "deliveries")
    rows = tables.rows("clients", ["tenant", "client_id"], numbers)
    if rows is None:
        return []
    rows = rows.cache()
    try:
        total, publishers, connecting, middle = rows.agg(
            F.sum("messages"),
            F.count_if(F.col("messages") > 0),
            F.count_if(F.col("connects") > 0),
            F.median(F.when(F.col("connects") > 0, F.col("connects"))),
        ).collect()[0]
        talkers = rows.where("messages > 0").orderBy(F.desc("messages"), "tenant", "client_id")
        shown.talkers = [
            Talker(row.tenant, row.client_id, row.messages, row.total_bytes, row.deliveries)
            for row in talkers.limit(CLIENTS_MAX).collect()
        ]
        movers = rows.where("connects > 0").orderBy(F.desc("connects"), "tenant", "client_id")
        shown.churn = [
            Churn(row.tenant, row.client_id, row.connects, row.takeovers, row.lost)
            for row in movers.limit(CLIENTS_MAX).collect()
        ]
    finally:
        rows.unpersist()
    seconds = ((shown.to_us or 0) - (shown.from_us or 0)) / 1e6
    shown.clients = connecting
    found = oddities.one_client(shown.talkers, total or 0, publishers)
    return [*found, *oddities.flapping(shown.churn, float(middle or 0), seconds)]


def _moves(tables: Tables, shown: Picture) -> list[Finding]:
    rows = tables.rows("moves", ["minute"], ["connects", "lost"])
    if rows is None:
        return []
    minutes = [Moves(row.minute, row.connects, row.lost) for row in rows.collect()]
    return oddities.mass_disconnects(minutes, shown.clients)


def _drops(tables: Tables, shown: Picture) -> None:
    rows = tables.rows("drops", ["reason"], ["count"])
    known = 0
    for row in [] if rows is None else rows.orderBy(F.desc("count")).collect():
        reason = REASONS.get(row.reason, f"reason {row.reason}")
        shown.drops.append(Drop(reason, row["count"]))
        known += row["count"]
    booked = sum(minute.stages.get("dropped", 0) for minute in shown.minutes)
    if booked > known:
        shown.drops.append(Drop("reason not recorded at this level of detail", booked - known))
    waste = tables.rows("waste", [], ["expired", "expired_bytes"])
    if waste is not None:
        row = waste.collect()[0]
        shown.expired, shown.expired_bytes = row.expired or 0, row.expired_bytes or 0
    shown.expired = shown.expired or sum(m.stages.get("expired", 0) for m in shown.minutes)


def _retained(tables: Tables, shown: Picture) -> None:
    rows = tables.rows("retained", ["minute"], ["topics", "bytes"])
    if rows is None:
        return
    step = shown.bin_s * 1_000_000
    binned = rows.groupBy((F.col("minute") - F.pmod("minute", F.lit(step))).alias("at")).agg(
        F.sum("topics").alias("topics"), F.sum("bytes").alias("bytes")
    )
    topics = size = 0
    for row in binned.orderBy("at").collect():
        topics += row.topics
        size += row.bytes
        shown.retained.append((row.at, topics, size))


def _bills(tables: Tables, shown: Picture) -> None:
    """Convert changes of the stored bytes into byte-hours, hour by hour, to the history's end."""
    rows = tables.rows("storage", ["tenant", "hour"], ["delta", "moment"])
    if rows is None or shown.to_us is None:
        return
    bills = {bill.tenant: bill for bill in shown.bills}
    changes: dict[str, dict[int, tuple[int, float]]] = {}
    for row in rows.where(F.col("tenant").isin(list(bills))).collect() if bills else []:
        changes.setdefault(row.tenant, {})[row.hour] = row.delta, row.moment
    for tenant, own in changes.items():
        bills[tenant].hours = byte_hours(own, shown.to_us)
        bills[tenant].byte_hours = sum(value for _, value in bills[tenant].hours)


def byte_hours(changes: dict[int, tuple[int, float]], end_us: int) -> list[tuple[int, float]]:
    """Return (hour, byte-hours) from changes per hour: (bytes, bytes times seconds left in it).

    The last hour counts only up to the end of the history.
    """
    result = []
    level = 0
    for hour in range(min(changes), end_us + 1, _HOUR_US):
        delta, moment = changes.get(hour, (0, 0.0))
        seconds = level * 3600 + moment
        level += delta
        rest_s = (hour + _HOUR_US - end_us) / 1e6
        if rest_s > 0:
            seconds -= level * rest_s
        result.append((hour, max(seconds, 0.0) / 3600))
    return result
