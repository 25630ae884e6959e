"""B1: what the history says that external stores were told balances with what was stored.

Stored messages are matched with the filters of each store by code of the audit, and counted for
each range of offsets that the store was told of, with checksums: one pass over `msg_accepted`, in
which every distinct topic of a batch of rows is matched once. The ranges are few, one for each
minute and store, so the rest is plain code (`audit.checks.backend_story`). It needs rows of all
messages: at lower levels of detail ranges only have to follow each other, and the rest is unknown.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from audit.checks import backend_counting, backend_story, topic_matching
from audit.checks.backend_counting import Wanted
from audit.checks.backend_story import EVENTS, Stored, Story
from audit.checks.stream_holders import on_disk
from audit.checks.verdict import Outcome
from audit.input.batch_view import View
from audit.input.gaps import HOLE, MESSAGES, SAMPLED
from audit.input.kept_rows import Kept
from audit.spark import frame_of
from storage.history.events import UNSTORED

_COLUMNS: Final = (
    "node", "boot", "gseq", "ev", "backend", "reason", "bin", "msg", "msg_last", "count", "check1",
    "check2", "position", "tfilter", "carried",
)  # fmt: skip
_COUNTED: Final = (
    "story int, range int, count long, check1 long, check2 long, doubtful long, low long, high long"
)
_OPEN: Final = "node string, gseq long"


def check(view: View) -> list[Outcome]:
    """Return B1. It counts each range of each store once, and each place where they break off."""
    told = _stories(view)
    if not told:
        return [Outcome("B1", 0, 0, 0)]
    stored = _stored(view, told)
    found = backend_story.judge(told, stored, _touches(view))
    facts: dict[str, object] = {
        "told_again": sum(story.told_again for story in told),
        "waiting": {
            f"{story.node} {story.backend}": stored.get((at, len(story.ranges)), Stored()).count
            for at, story in enumerate(told)
            if not story.is_over
        },
    }
    most = view.settings.witnesses_max
    violated = len(found.witnesses)
    return [Outcome("B1", found.checked, violated, found.unknown, found.witnesses[:most], facts)]


def carry(view: View) -> Kept:
    """Return the newest filters and range of each store, and the messages behind that range."""
    told = _stories(view)
    if not told:
        return Kept()
    stored = _stored(view, told)
    places = {place for story in told if not story.is_over for place in _newest(view, story)}
    # And the message before those: a message that is missing later was accepted behind it.
    for at, story in enumerate(told):
        size = len(story.ranges)
        before = [stored.get((at, part), Stored()).high for part in range(-1, size)]
        if max(before) >= 0:
            places.add((story.node, max(before)))
    return Kept((frame_of(view.spark, sorted(places), _OPEN), _waiting(view, told)))


def _rows(view: View) -> list[Row]:
    """Return the rows about stores: a few for each minute and store."""

    def read() -> list[Row]:
        return on_disk(view, view.of(*EVENTS, columns=_COLUMNS)).collect()

    return view.shelf.value("what stores were told", read)


def _stories(view: View) -> list[Story]:
    return backend_story.stories(_rows(view))


def _newest(view: View, story: Story) -> Iterator[tuple[str, int]]:
    """Yield the places of rows of a store that the next batch needs."""
    own = [r for r in _rows(view) if (r.node, r.backend) == (story.node, story.backend)]
    boot = story.statements[-1].boot if story.statements else -1
    upto = story.upto or 0
    last = story.ranges[-1] if story.ranges else None
    for row in own:
        if row.ev in ("backend_opened", "backend_follows"):
            is_needed = row.boot == boot
        elif row.ev == "backend_told":
            is_needed = last is not None and last.place <= row.gseq <= last.end
        else:
            is_needed = row.ev == "backend_gap" and row.msg_last > upto
        if is_needed:
            yield story.node, row.gseq


def _touches(view: View) -> backend_story.Touches:
    def touches(node: str, start: int, end: int, with_messages: bool) -> bool:
        kinds = (HOLE, MESSAGES, SAMPLED) if with_messages else (HOLE,)
        return any(gap.kind in kinds and gap.touches(node, start, end) for gap in view.gaps)

    return touches


def _messages(view: View, told: Sequence[Story]) -> DataFrame:
    """Return the messages that were stored on the nodes that have stores."""
    rows = view.of("msg_accepted", columns=["node", "gseq", "msg", "topic"])
    of_nodes = F.col("node").isin(sorted({story.node for story in told}))
    return on_disk(view, rows.where(of_nodes & (F.col("msg") < UNSTORED)))


def _stored(view: View, told: Sequence[Story]) -> dict[tuple[int, int], Stored]:
    """Return what was stored for each range of each story."""

    def count() -> DataFrame:
        messages = _messages(view, told).select("node", "gseq", "msg", "topic")
        parts = messages.mapInArrow(_counter(_wanted(told)), _COUNTED)
        sums = [
            # Sums of sums modulo 2 ** 61 would overflow: the halves do not.
            F.sum(F.col(name).bitwiseAND((1 << 31) - 1)).alias(f"{name}_low")
            for name in ("check1", "check2")
        ] + [F.sum(F.shiftright(name, 31)).alias(f"{name}_high") for name in ("check1", "check2")]
        return parts.groupBy("story", "range").agg(
            F.sum("count").alias("count"),
            F.sum("doubtful").alias("doubtful"),
            F.min("low").alias("low"),
            F.max("high").alias("high"),
            *sums,
        )

    rows = view.keep("what was stored for stores", count).collect()
    return {(row.story, row.range): _read(row) for row in rows}


def _read(row: Row) -> Stored:
    check1 = row.check1_low + (row.check1_high << 31)
    check2 = row.check2_low + (row.check2_high << 31)
    return Stored(row["count"], check1, check2, row.doubtful, row.low, row.high)


def _waiting(view: View, told: Sequence[Story]) -> DataFrame:
    """Return the places of messages that a store wants and was not told of yet."""
    messages = _messages(view, told).select("node", "gseq", "msg", "topic")
    return messages.mapInArrow(_finder(_wanted(told)), _OPEN)


def _wanted(told: Sequence[Story]) -> list[Wanted]:
    return [
        Wanted(
            story.node,
            [(part.first, part.last, part.statement) for part in story.ranges],
            story.gaps,
            [story.wants(number) for number in range(len(story.statements))],
        )
        for story in told
    ]


def _counter(
    wanted: list[Wanted],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark runs on messages: what each range of each story has."""
    _ship()
    counting = backend_counting.Counting

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tallies = counting(wanted)
        for batch in batches:
            tallies.add(batch)
        yield tallies.table()

    return run


def _finder(
    wanted: list[Wanted],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark runs on messages: those that were not told yet."""
    _ship()
    counting = backend_counting.Counting

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tallies = counting(wanted)
        for batch in batches:
            yield tallies.waiting(batch)

    return run


def _ship() -> None:
    for module in (topic_matching, backend_counting):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # untyped
