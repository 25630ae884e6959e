"""The input of every check: the events of one batch, its gaps, and the settings.

In a large run the events are never in memory as a whole: `of` reads only the columns and events
requested. It reads `COMMON` events, of which every message has some, from Parquet each time. All
others are few and cached after one pass. In a small run (`audit.pace`) all are in memory, because
opening some files twenty times costs more. What is there because of a trace only is left out;
`traced` has it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from audit.input import coverage, facts
from audit.input import gaps as gaps_module
from audit.input import segments as segments_module
from audit.input import traces as traces_module
from audit.input.conditions import any_of
from audit.input.coverage import Span
from audit.input.frame_cache import Shelf
from audit.input.gaps import Boot, Gap, Kind, Mark, Run
from audit.input.segments import Segment
from audit.input.session_columns import BALANCE
from audit.input.traces import Stretch, Trace, TraceMark
from audit.spark import frame_of
from storage.history.chain import Piece, Place
from storage.history.witness import Witness

# Rows are counted in buckets of 2 ** 16: 10 million rows are 153 buckets.
BUCKET_BITS: Final = 16

COMMON: Final = frozenset(
    (
        "msg_accepted",
        "msg_enqueued",
        "msg_persisted",
        "pub_acked",
        "pub_completed",
        "pub_released",
        "msg_delivered",
        "msg_acked",
        "msg_completed",
        "msg_dropped",
        "msg_expired",
        "msg_moved",
    )
)
MARKS: Final = ("boot", "shutdown", "recovered", "history_gap")
SESSION_EVENTS: Final = (
    "session_created",
    "session_resumed",
    "session_taken_over",
    "session_disconnected",
    "session_expiry_changed",
    "session_expired",
    "session_terminated",
    "session_restored",
    "subscribed",
    "unsubscribed",
    "sub_restored",
    "will_armed",
    "will_delayed",
    "will_fired",
    "will_cancelled",
    BALANCE,
)


@dataclass(frozen=True)
class Settings:
    """The settings that affect a verdict."""

    horizon_s: int = 300  # a message owed for longer to a session that could get it is lost
    expiry_tolerance_s: int = 60  # how late sessions and wills may be: the broker works in turns
    witnesses_max: int = 100  # per invariant


@dataclass(frozen=True)
class Doubled:
    """Rows of a boot that are in the history more than once: `rows` too many, between two seqs."""

    node: str
    boot: int
    first_seq: int
    last_seq: int
    rows: int


@dataclass(frozen=True)
class View:
    """The events of one batch and the facts about them.

    `events` has the columns of `audit.input.events.SCHEMA`, `gseq` and `carried`. `rare` has the
    same columns, and all events except the COMMON ones.
    """

    spark: SparkSession
    shelf: Shelf
    events: DataFrame
    rare: DataFrame
    gaps: Sequence[Gap]
    boots: Sequence[Boot]
    boots_before: Sequence[Boot] = ()  # as at the end of the last batch
    gaps_before: Sequence[Gap] = ()
    duplicates: Sequence[Doubled] = ()  # those rows are taken once here
    settings: Settings = field(default_factory=Settings)
    traces: Sequence[Trace] = ()  # stretches in which a client is recorded in full
    stretches: Sequence[Stretch] = ()  # where rows are because of these
    traced: DataFrame | None = None  # the events with those rows; None = there are no traces
    # Only of the views that `audit.checks.traced_checks` makes: from where to where a session is
    # judged (node, session, from, to), None = everywhere; and when the judgement of a node ends.
    judged: Sequence[tuple[str, int, int, int]] | None = None
    ends_us: Mapping[str, int] = field(default_factory=dict)
    segments: Sequence[Segment] = ()  # that are new in this batch, also those that cannot be read
    # Of the newest segments of earlier batches, by node: their heads in the chain.
    heads_before: Mapping[str, Mapping[Place, str]] = field(default_factory=dict)
    witnesses: Sequence[Witness] = ()

    @cached_property
    def pieces(self) -> list[Piece]:
        """Return what `segments` are in the chain, those on a local disk; reads all their rows."""
        return segments_module.pieces(self.segments)

    def keep(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Return the frame `name`, computed once and cached until the shelf is cleared."""
        return self.shelf.keep(name, make)

    def of(self, *evs: str, columns: Sequence[str]) -> DataFrame:
        """Return only these events and only these columns."""
        wanted = F.col("ev") == evs[0] if len(evs) == 1 else F.col("ev").isin(*evs)
        rows = self.rare if COMMON.isdisjoint(evs) else self.events
        return rows.where(wanted).select(*columns)

    @property
    def sessions(self) -> DataFrame:
        """Return the rows about sessions, subscriptions and wills."""
        return self.rare.where(F.col("ev").isin(*SESSION_EVENTS))

    @property
    def new_gaps(self) -> list[Gap]:
        """Return the gaps that are new in this batch."""
        old = [gap for gap in self.gaps_before if not gap.is_open]
        return [gap for gap in self.gaps if not _covered(gap, old)]

    def touches_gap(
        self,
        node: Column,
        start: Column,
        end: Column,
        kinds: Iterable[Kind] = (gaps_module.HOLE, gaps_module.MESSAGES, gaps_module.SAMPLED),
    ) -> Column:
        """Return the condition that the interval of gseq `start`..`end` touches a gap.

        Checks of messages use all kinds of gaps, checks of sessions only holes. Null where `start`
        or `end` is null.
        """
        wanted = set(kinds)
        places = [(gap.node, gap.from_gseq, gap.to_gseq) for gap in self.gaps if gap.kind in wanted]
        return facts.touches(node, start, end, places)

    def is_judged(self, node: Column, session: Column, start: Column, end: Column) -> Column:
        """Return the condition that a session is judged from gseq `start` to `end`."""
        if self.judged is None:
            return F.lit(True)
        conditions = [
            (node == name) & (session == number) & (start >= since) & (end <= until)
            for name, number, since, until in self.judged
        ]
        return F.coalesce(any_of(conditions), F.lit(False))

    @cached_property
    def spans(self) -> list[Span]:
        """Return what was recorded of each node, and when, as far as known."""
        return coverage.spans(self.boots, self.gaps)

    @property
    def new_spans(self) -> list[Span]:
        """Return the part of `spans` that is new in this batch."""
        return coverage.since(self.spans, self.boots_before)

    @property
    def has_messages(self) -> bool:
        """Return whether any part of the history has rows of at least some messages."""
        return any(span.recorded in ("full", "sample") for span in self.spans)

    @cached_property
    def lasts_us(self) -> dict[str, int]:
        """Return the broker time of the last row of each node, in microseconds since 1970."""
        lasts: dict[str, int] = {}
        for boot in self.boots:
            lasts[boot.node] = max(boot.last_us, lasts.get(boot.node, 0))
        return {**lasts, **self.ends_us}

    def last_us(self, node: str) -> int:
        """Return the broker time of the last row of a node, in microseconds since 1970."""
        return self.lasts_us.get(node, 0)


def build(
    spark: SparkSession,
    told: DataFrame,
    *,
    shelf: Shelf,
    boots_before: Sequence[Boot] = (),
    gaps_before: Sequence[Gap] = (),
    unreadable: Sequence[Gap] = (),
    settings: Settings | None = None,
    segments: Sequence[Segment] = (),
    heads_before: Mapping[str, Mapping[Place, str]] | None = None,
    witnesses: Sequence[Witness] = (),
) -> View:
    """Return the view of the events `told`; finds their holes in one pass over few columns.

    What ends with `before` is from earlier batches. `unreadable` are the gaps of segments that
    could not be read. `segments` are named in findings.
    """
    events = shelf.keep("events", lambda: told) if shelf.in_memory else told
    fresh = events.where(~F.col("carried"))
    runs, doubled = _runs(fresh)
    if doubled:
        # Carried rows that are not events share the place of an event, but not its name.
        once = events.dropDuplicates(["node", "gseq", "ev", "session"])
        events = shelf.keep("events once", lambda: once) if shelf.in_memory else once
    rare = shelf.keep("rare events", lambda: events.where(~F.col("ev").isin(*sorted(COMMON))))
    marks, trace_marks = _marks(rare)
    boots = gaps_module.boots(runs, marks, boots_before)
    holes = gaps_module.holes(runs, boots, boots_before)
    missing = [hole for hole in holes if not _covered(hole, unreadable)]
    found = [*unreadable, *gaps_module.explain(missing, marks)]
    closed = gaps_module.unfilled([gap for gap in gaps_before if not gap.is_open], runs)
    traces = traces_module.traces(trace_marks, boots, boots_before)
    low = gaps_module.lowered(boots, marks, found, before=boots_before, gaps_before=gaps_before)
    others = traces_module.unjudged(trace_marks, boots, low)
    stretches = traces_module.stretches(traces, low, others)
    traced = events if traces else None
    if stretches:
        extra = is_extra(stretches)
        events, rare = events.where(~extra), rare.where(~extra)
    lowered = gaps_module.lowered(
        boots,
        marks,
        [*closed, *found],
        before=boots_before,
        gaps_before=gaps_before,
        silent=_silent(events, boots),
    )
    return View(
        spark,
        shelf,
        events,
        rare,
        gaps_module.fewer([*closed, *found, *lowered]),
        boots,
        boots_before,
        gaps_before,
        doubled,
        settings or Settings(),
        traces,
        stretches,
        traced,
        segments=segments,
        heads_before=heads_before or {},
        witnesses=witnesses,
    )


def within(stretches: Iterable[Stretch]) -> Column:
    """Return the condition that a row is in one of the stretches."""
    places = [(each.node, each.from_gseq, each.to_gseq) for each in stretches]
    return facts.touches(F.col("node"), F.col("gseq"), F.col("gseq"), places)


def is_extra(stretches: Iterable[Stretch]) -> Column:
    """Return the condition that a row is there because of a trace only."""
    given = list(stretches)
    rows = F.lit(False)
    for sample in sorted({each.sample for each in given}):
        here = within(each for each in given if each.sample == sample)
        if sample:
            here &= F.coalesce(F.pmod("msg", F.lit(sample)) != 0, F.lit(True))
        rows |= here
    return F.col("ev").isin(*traces_module.TRACED) & rows


def _silent(events: DataFrame, boots: Sequence[Boot]) -> set[tuple[str, int]]:
    """Return the boots (node, boot) of unknown level that have no row about a message.

    Nothing tells whether messages were recorded, so nothing can be said of them.
    """
    unknown = {(boot.node, boot.boot) for boot in boots if not boot.level}
    if not unknown:
        return set()
    told = events.where(F.col("ev").isin(*sorted(COMMON))).select("node", "boot").distinct()
    return unknown - {(row.node, row.boot) for row in told.collect()}


def _covered(gap: Gap, by: Sequence[Gap]) -> bool:
    return any(
        other.node == gap.node and other.from_gseq <= gap.from_gseq and other.to_gseq >= gap.to_gseq
        for other in by
    )


def _marks(rare: DataFrame) -> tuple[list[Mark], list[TraceMark]]:
    """Return the marks of boots, and those of traces, also what an earlier batch has kept."""
    is_mark = ~F.col("carried") & F.col("ev").isin(*MARKS)
    is_trace = F.col("ev").isin(*traces_module.EVENTS) & F.col("client_id").isNotNull()
    names = ("node", "boot", "seq", "ev", "reason", "count", "detail", "gseq", "client_id")
    marks, traces = set(), []
    told = rare.where(is_mark | is_trace).select(*names, F.unix_micros("ts").alias("us"))
    for row in told.collect():
        if row.ev in MARKS:
            marks.add(Mark(*row[: names.index("gseq")]))
        else:
            place = (row.node, row.boot, row.gseq, row.us)
            traces.append(TraceMark(*place, row.ev, row.client_id, row.detail or ""))
    return list(marks), traces


def _runs(fresh: DataFrame) -> tuple[list[Run], list[Doubled]]:
    """Return the runs of rows without holes, and the duplicate rows of each boot.

    Counts by buckets first, because a window over all rows of a node would run in a single task.
    """
    bucket = F.shiftright("seq", BUCKET_BITS)
    counted = (
        fresh.select("node", "boot", "seq", bucket.alias("bucket"), F.unix_micros("ts").alias("us"))
        .groupBy("node", "boot", "bucket")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("seq").alias("low"),
            F.max("seq").alias("high"),
            F.sum(F.col("seq") - F.shiftleft("bucket", BUCKET_BITS)).alias("sum"),
            F.min("us").alias("first_us"),
            F.max("us").alias("last_us"),
        )
        .collect()
    )
    runs = []
    odd = []
    for row in counted:
        base = row.bucket << BUCKET_BITS
        whole = row.rows == row.high - row.low + 1
        if whole and 2 * row["sum"] == row.rows * (row.low + row.high - 2 * base):
            runs.append(Run(row.node, row.boot, row.low, row.high, row.first_us, row.last_us))
        else:
            odd.append(row)
    more, doubled = _odd_runs(fresh, odd)
    return _joined([*runs, *more]), doubled


def _odd_runs(fresh: DataFrame, odd: Sequence[object]) -> tuple[list[Run], list[Doubled]]:
    """Return the runs in the buckets with holes or duplicate rows, and the latter by boot."""
    if not odd:
        return [], []
    bucket = F.shiftright("seq", BUCKET_BITS)
    keys = frame_of(
        fresh.sparkSession,
        [(row.node, row.boot, row.bucket) for row in odd],  # type: ignore[attr-defined]
        "node string, boot long, bucket long",
    )
    rows = fresh.select(
        "node", "boot", "seq", bucket.alias("bucket"), F.unix_micros("ts").alias("us")
    ).join(F.broadcast(keys), ["node", "boot", "bucket"])
    once = rows.groupBy("node", "boot", "bucket", "seq").agg(
        F.count(F.lit(1)).alias("times"), F.min("us").alias("us")
    )
    before = Window.partitionBy("node", "boot", "bucket").orderBy("seq")
    jumps = once.withColumn("jump", F.col("seq") - F.lag("seq").over(before) != 1)
    part = F.sum(F.coalesce(F.col("jump").cast("int"), F.lit(0))).over(before)
    runs = (
        jumps.withColumn("part", part)
        .groupBy("node", "boot", "bucket", "part")
        .agg(
            F.min("seq").alias("low"),
            F.max("seq").alias("high"),
            F.min("us").alias("first_us"),
            F.max("us").alias("last_us"),
            F.sum(F.col("times") - 1).alias("doubled"),
            F.min(F.when(F.col("times") > 1, F.col("seq"))).alias("first_doubled"),
            F.max(F.when(F.col("times") > 1, F.col("seq"))).alias("last_doubled"),
        )
        .collect()
    )
    found = [Run(r.node, r.boot, r.low, r.high, r.first_us, r.last_us) for r in runs]
    doubled: dict[tuple[str, int], Doubled] = {}
    for row in runs:
        if row.doubled:
            own = Doubled(row.node, row.boot, row.first_doubled, row.last_doubled, row.doubled)
            other = doubled.get((row.node, row.boot), replace(own, rows=0))
            doubled[row.node, row.boot] = replace(
                own,
                first_seq=min(own.first_seq, other.first_seq),
                last_seq=max(own.last_seq, other.last_seq),
                rows=own.rows + other.rows,
            )
    return found, [doubled[key] for key in sorted(doubled)]


def _joined(runs: Iterable[Run]) -> list[Run]:
    """Return the runs with adjacent ones joined."""
    joined: list[Run] = []
    for run in sorted(runs, key=lambda run: (run.node, run.boot, run.first_seq)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.node, last.boot) == (run.node, run.boot)
            and run.first_seq <= last.last_seq + 1
        ):
            joined[-1] = Run(
                last.node,
                last.boot,
                last.first_seq,
                max(last.last_seq, run.last_seq),
                min(last.first_us, run.first_us),
                max(last.last_us, run.last_us),
            )
        else:
            joined.append(run)
    return joined
