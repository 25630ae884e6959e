"""One run of the audit: new segments in, tables and a verdict out.

The order makes a run repeatable: first the tables of the batch are written, over those of an
earlier attempt, then the verdict, and last the state that completes the batch
(`audit.batch_state`). Each part of the audit is a module with `check`, and optionally `carry` and
`tables`; PARTS lists them all.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from audit import batch_state as state
from audit.analytics import tables as analytics
from audit.analytics import witness_rows
from audit.checks import (
    backend_checks,
    chain_check,
    delivery_checks,
    log_checks,
    open_rows,
    publish_checks,
    retained_checks,
    retained_owed,
    session_checks,
    suppressions,
    traced_checks,
)
from audit.checks.suppressions import Rule
from audit.checks.verdict import INVARIANTS, Outcome, Status, overall
from audit.files import is_local, join, read_text, remove, write_text
from audit.input import events, kept_rows, segments
from audit.input.batch_view import Settings, View, build
from audit.input.coverage import Span
from audit.input.frame_cache import Shelf
from audit.input.kept_rows import Kept
from audit.input.segments import Segment
from audit.pace import in_few_files, paced, together
from audit.spark import frame_of
from storage.history.events import REASONS
from storage.history.witness import Witness

VERDICT_VERSION: Final = 1
EXIT_CODES: Final[dict[Status, int]] = {"ok": 0, "violated": 2, "unknown": 3}

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One module of the audit."""

    name: str
    check: Callable[[View], list[Outcome]]
    # The rows that the next batch needs.
    carry: Callable[[View], Kept] | None = None
    # Tables to write, by name.
    tables: Callable[[View], dict[str, DataFrame]] | None = None


PARTS: Final = (
    Part("the log", log_checks.check, log_checks.carry),
    Part("the chain", chain_check.check),
    Part("sessions", session_checks.check, session_checks.carry, session_checks.tables),
    Part("retained messages", retained_checks.check, retained_checks.carry),
    Part("retained messages owed", retained_owed.check),
    Part("messages on their way in", publish_checks.check),
    Part("deliveries", delivery_checks.check, open_rows.carry, delivery_checks.tables),
    Part("traces", traced_checks.check, traced_checks.carry),
    Part("external stores", backend_checks.check, backend_checks.carry),
    Part("numbers", analytics.check, analytics.carry, analytics.tables),
)


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run; `document` is the content of verdict.json."""

    document: dict[str, Any]

    @property
    def status(self) -> Status:
        """Return the verdict for the batch."""
        status: Status = self.document["status"]
        return status

    @property
    def exit_code(self) -> int:
        """Return 0 (ok), 2 (violated) or 3 (unknown)."""
        return EXIT_CODES[self.status]


@dataclass(frozen=True)
class Wishes:
    """What an operator asks of a run besides its verdict."""

    verdict_only: bool = False  # no tables, no stories
    rules: Sequence[Rule] = ()
    today: date = date.min  # on which a rule must not have expired


class NothingToAudit(Exception):
    """There is no segment, and no earlier batch."""


def run(
    spark: SparkSession,
    history_dir: str,
    out_dir: str,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    progress: Progress,
    batch: int | None = None,
    settings: Settings | None = None,
    only: Collection[str] | None = None,
    parts: Sequence[Part] = PARTS,
    from_db: str | None = None,
    witnesses: Sequence[Witness] = (),
    wishes: Wishes | None = None,
    always: bool = False,
) -> Verdict:
    """Audit the segments that no batch has consumed; return the verdict, which is then on disk.

    `only` limits the new segments to these names, as handed out by a stream. `batch` repeats a
    complete batch with the same segments. Without new segments the last verdict is returned again.
    Raises NothingToAudit if there is none, ValueError if the state in `out_dir` is of another
    version.

    `always` makes a batch even of no new segments: the parts have something else to judge.

    `from_db` is a checkpoint or a data directory whose events without a segment are audited, too.
    The state of such a batch is not kept: the next run repeats it with segments. Raises SourceError
    if there is no Holdfast database. `witnesses` are compared with all that is known.
    """
    wishes = wishes or Wishes()
    found = segments.find(spark, history_dir, start, end)
    before = state.load(spark, out_dir, None if batch is None else batch - 1)
    chosen = _chosen(spark, out_dir, found, before, batch, only)
    if not chosen and from_db is None and not (always and before.batch >= 0):
        return _last_verdict(spark, out_dir, history_dir, before, wishes, witnesses)
    progress(f"batch {before.batch + 1}: {len(chosen)} new segments of {len(found)}")
    good, bad = segments.readable(chosen)
    for segment in bad:
        progress(f"cannot be read, or is not what its name says: {segment.path}")
    ahead = None if from_db is None else _rows_ahead(spark, from_db, out_dir, found, before)
    count = segments.rows(good) + (0 if ahead is None else ahead.count())
    with paced(spark, count) as small, _shelf(spark, out_dir, in_memory=small) as shelf:
        view = _view(spark, out_dir, shelf, before, good, bad, settings, ahead, witnesses)
        progress(f"{count:,} rows, {len(view.boots)} boots, {len(view.gaps)} gaps")
        outcomes, told = suppressions.apply(
            _checks(view, parts, progress), wishes.rules, wishes.today
        )
        totals = _totals(before.totals, outcomes)
        after = before.after(good, view.boots, view.gaps, totals, chain_check.heads(view))
        document = _document(view, good, outcomes, after)
        document |= {"history": history_dir, "rows": count, "suppressions": told}
        if from_db is not None:
            document["database"] = from_db
        document["facts"] = _facts(view, outcomes)
        writes = [partial(_write_rows, view, parts, out_dir, after.batch, progress)]
        if not wishes.verdict_only:
            batch = after.batch
            writes += [
                partial(_write_tables, view, parts, outcomes, out_dir, batch, progress),
                partial(witness_rows.write, view, outcomes, out_dir, batch),
            ]
        for _ in together(spark, writes):
            pass
    _save(spark, out_dir, document, after, completes=from_db is None)
    progress(f"verdict: {document['status']}")
    return Verdict(document)


def _chosen(
    spark: SparkSession,
    out_dir: str,
    found: Sequence[Segment],
    before: state.State,
    batch: int | None,
    only: Collection[str] | None,
) -> list[Segment]:
    """Return the segments of this batch: those of an earlier one, or those that are new."""
    if batch is not None and batch in state.batches(spark, out_dir):
        again = set(state.load(spark, out_dir, batch).segments)
        return [segment for segment in found if segment.name in again]
    new = [segment for segment in found if not before.has(segment)]
    return new if only is None else [segment for segment in new if segment.name in only]


def _save(
    spark: SparkSession,
    out_dir: str,
    document: dict[str, Any],
    after: state.State,
    *,
    completes: bool,
) -> None:
    """Write the verdict, and behind it the state that completes the batch, if it is to."""
    text = json.dumps(document, indent=1)
    write_text(spark, join(out_dir, "verdicts", f"batch-{after.batch:08}.json"), text)
    write_text(spark, join(out_dir, "verdict.json"), text)
    if completes:
        state.save(spark, out_dir, after)
        if after.batch > 1:
            remove(spark, state.rows_place(out_dir, after.batch - 2))


def expected_rows(
    history_dir: str, out_dir: str, start: datetime | None = None, end: datetime | None = None
) -> int | None:
    """Return how many rows a run would read, before Spark is there; None if that is unknown.

    Known are local places only. Raises ValueError as `run` does.
    """
    if not (is_local(history_dir) and is_local(out_dir)):
        return None
    before = state.load(None, out_dir)
    found = segments.find(None, history_dir, start, end)
    return segments.rows(segment for segment in found if not before.has(segment))


def _last_verdict(
    spark: SparkSession,
    out_dir: str,
    history_dir: str,
    before: state.State,
    wishes: Wishes,
    witnesses: Sequence[Witness],
) -> Verdict:
    """Return the verdict of the last batch, with the rules of today."""
    if before.batch < 0:
        raise NothingToAudit(f"{history_dir}: no segment of a history")
    place = join(out_dir, "verdicts", f"batch-{before.batch:08}.json")
    document = json.loads(read_text(spark, place))
    again = suppressions.judged_again(document, wishes.rules, wishes.today)
    if again["suppressions"] != document.get("suppressions", []):
        text = json.dumps(again, indent=1)
        write_text(spark, place, text)
        write_text(spark, join(out_dir, "verdict.json"), text)
        state.save(spark, out_dir, replace(before, totals=again["totals"]))
        document = again
    heads = before.heads_by_place
    return Verdict(
        chain_check.with_witnesses(document, witnesses, before.boots, before.gaps, heads)
    )


@contextmanager
def _shelf(spark: SparkSession, out_dir: str, *, in_memory: bool) -> Iterator[Shelf]:
    """Provide a shelf for this run only, and remove it at the end.

    On a local disk a run has `out_dir` to itself, so files left by a killed run are removed too.
    """
    work = join(out_dir, "state", "work")
    if is_local(out_dir):
        remove(spark, work)
    shelf = Shelf(spark, join(work, uuid4().hex), in_memory=in_memory)
    try:
        yield shelf
    finally:
        shelf.clear()


def _view(
    spark: SparkSession,
    out_dir: str,
    shelf: Shelf,
    before: state.State,
    good: Sequence[Segment],
    bad: Sequence[Segment],
    settings: Settings | None,
    ahead: DataFrame | None,
    witnesses: Sequence[Witness],
) -> View:
    rows = events.read(spark, "", files=[segment.path for segment in good])
    if ahead is not None:
        rows = rows.unionByName(ahead)
    if before.batch >= 0:
        rows = rows.unionByName(events.carried(spark, state.rows_place(out_dir, before.batch)))
    return build(
        spark,
        rows,
        shelf=shelf,
        boots_before=before.boots,
        gaps_before=before.gaps,
        unreadable=[segment.gap for segment in bad],
        settings=settings,
        segments=[*good, *bad],
        heads_before=before.heads_by_place,
        witnesses=witnesses,
    )


def _rows_ahead(
    spark: SparkSession,
    database: str,
    out_dir: str,
    found: Sequence[Segment],
    before: state.State,
) -> DataFrame:
    """Return a database's events without a segment; read once, because a live database changes."""
    exported: dict[tuple[str, int], int] = {}
    ends = [((segment.node, segment.boot), segment.last_seq) for segment in found]
    ends += [((boot.node, boot.boot), boot.last_seq) for boot in before.boots]
    for key, seq in ends:
        exported[key] = max(seq, exported.get(key, 0))
    # Imported here: it needs the storage engine, which the driver of a cluster may lack.
    from audit.database.spark_source import frame_beyond

    place = join(out_dir, "state", "database")
    frame_beyond(spark, database, exported).write.mode("overwrite").parquet(place)
    return events.read(spark, place)


def _checks(view: View, parts: Sequence[Part], progress: Progress) -> list[Outcome]:
    def checked(part: Part) -> tuple[list[Outcome], float]:
        began = time.monotonic()
        return part.check(view), time.monotonic() - began

    outcomes: dict[str, Outcome] = {}
    covered = view.new_spans
    found_by = together(view.spark, [partial(checked, part) for part in parts])
    for part, (found_here, seconds) in zip(parts, found_by, strict=True):
        for found in found_here:
            before = outcomes.get(found.invariant)
            outcome = (
                found.within(covered)
                if before is None
                else before.plus(found, view.settings.witnesses_max)
            )
            outcomes[outcome.invariant] = outcome
            progress(
                f"  {outcome.invariant} {outcome.status}: {outcome.checked:,} checked, "
                f"{outcome.violated:,} violated, {outcome.unknown:,} unknown"
            )
        progress(f"{part.name}: {seconds:.1f} s")
    return list(outcomes.values())


def _totals(
    before: dict[str, dict[str, int]], outcomes: Sequence[Outcome]
) -> dict[str, dict[str, int]]:
    totals = {name: dict(counts) for name, counts in before.items()}
    for outcome in outcomes:
        counts = totals.setdefault(outcome.invariant, {"checked": 0, "violated": 0, "unknown": 0})
        counts["checked"] += outcome.checked
        counts["violated"] += outcome.violated - outcome.suppressed
        counts["unknown"] += outcome.unknown
    return totals


def _document(
    view: View, good: Sequence[Segment], outcomes: list[Outcome], after: state.State
) -> dict[str, Any]:
    """Return verdict.json without `facts`: the batch, and the totals of all batches so far."""
    return {
        "version": VERDICT_VERSION,
        "status": overall(outcomes),
        "batch": after.batch,
        "segments": len(good),
        "rows": segments.rows(good),
        "from": _time(min((boot.first_us for boot in view.boots), default=0)),
        "to": _time(max((boot.last_us for boot in view.boots), default=0)),
        "invariants": {
            outcome.invariant: {
                "title": INVARIANTS[outcome.invariant].title,
                "source": INVARIANTS[outcome.invariant].source,
                "status": outcome.status,
                "checked": outcome.checked,
                "violated": outcome.violated,
                "suppressed": outcome.suppressed,
                "unknown": outcome.unknown,
                "untested": [_told(span) for span in outcome.untested],
                "witnesses": outcome.witnesses,
                "facts": outcome.facts,
            }
            for outcome in outcomes
        },
        "totals": after.totals,
        "boots": [asdict(boot) for boot in view.boots],
        "gaps": [asdict(gap) for gap in view.gaps],
        "coverage": [_told(span) for span in view.spans],
        "traces": [_with_times(trace) for trace in traced_checks.told(view)],
        "settings": asdict(view.settings),
    }


def _told(span: Span) -> dict[str, Any]:
    return {
        "node": span.node,
        "from": _time(span.from_us),
        "to": _time(span.to_us),
        "recorded": span.recorded,
        "sample": span.sample,
        "reason": span.reason,
    }


def _with_times(trace: dict[str, Any]) -> dict[str, Any]:
    times = {"from": _time(trace.pop("from_us")), "to": _time(trace.pop("to_us"))}
    return {**trace, **times}


def _facts(view: View, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return facts about this batch: rows by event, drops by reason, and counts of the checks."""
    fresh = view.events.where(~F.col("carried")).select("ev", "dup", "reason", "count")
    is_drop = F.col("ev") == "msg_dropped"
    counted = fresh.groupBy("ev", F.when(is_drop, F.col("reason")).alias("reason")).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.coalesce("dup", F.lit(False))).alias("dup"),
        F.sum(F.when(is_drop, F.col("count"))).alias("count"),
    )
    rows: dict[str, tuple[int, int]] = {}
    dropped: dict[str, int] = {}
    for row in counted.collect():
        before = rows.get(row.ev, (0, 0))
        rows[row.ev] = (before[0] + row.rows, before[1] + row.dup)
        if row.ev == "msg_dropped":
            dropped[REASONS.get(row.reason, str(row.reason))] = row["count"]
    names = {
        "accepted": "msg_accepted",
        "acknowledged": "pub_acked",
        "delivered": "msg_delivered",
        "acked": "msg_acked",
        "completed": "msg_completed",
        "expired": "msg_expired",
    }
    facts: dict[str, Any] = {fact: rows.get(ev, (0, 0))[0] for fact, ev in names.items()}
    facts["redelivered"] = rows.get("msg_delivered", (0, 0))[1]
    facts["dropped"] = dict(sorted(dropped.items()))
    for outcome in outcomes:
        for fact in ("cut_off", "duplicated", "duplicated_qos2", "open", "lost"):
            if fact in outcome.facts:
                facts[fact] = outcome.facts[fact]
    facts["events"] = {ev: count for ev, (count, _) in sorted(rows.items())}
    return facts


def _write_tables(
    view: View,
    parts: Sequence[Part],
    outcomes: Sequence[Outcome],
    out_dir: str,
    batch: int,
    progress: Progress,
) -> None:
    found = [
        (outcome.invariant, json.dumps(witness, default=str))
        for outcome in outcomes
        for witness in outcome.witnesses
    ]
    tables = {"violations": frame_of(view.spark, found, "invariant string, witness string")}
    made = [partial(part.tables, view) for part in parts if part.tables is not None]
    for some in together(view.spark, made):
        tables |= some

    def write(name: str, table: DataFrame) -> None:
        began = time.monotonic()
        table.write.mode("overwrite").parquet(join(out_dir, "tables", name, f"batch={batch}"))
        progress(f"table {name}: {time.monotonic() - began:.1f} s")

    for _ in together(view.spark, [partial(write, *each) for each in tables.items()]):
        pass


def _write_rows(
    view: View, parts: Sequence[Part], out_dir: str, batch: int, progress: Progress
) -> None:
    began = time.monotonic()
    place = state.rows_place(out_dir, batch)
    carried = [partial(part.carry, view) for part in parts if part.carry is not None]
    rows = kept_rows.rows(view, together(view.spark, carried))
    in_few_files(rows).write.mode("overwrite").parquet(place)
    progress(f"rows kept for the next batch: {time.monotonic() - began:.1f} s")


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds")
