"""Traces: stretches of a node's history in which one client is recorded in full. Plain code.

While an operator traces a client, the broker records all of its rows, also at `books` and
`sampled`; the rows of others stay as few as the level says. So its rows are left out where all
sessions are compared, and judged on their own (`audit.checks.traced_checks`). A trace ends with its
row, or with its boot. A change of the level, and the end of a batch, divide it: what happens across
is not judged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from audit.input.events import gseq
from audit.input.gaps import HOLE, SAMPLED, Boot, Gap, parse_level

BEGAN: Final = "trace_began"
GOES_ON: Final = "trace_goes_on"
ENDED: Final = "trace_ended"
EVENTS: Final = (BEGAN, GOES_ON, ENDED)

# Events of messages that are recorded of a traced client whatever the level.
TRACED: Final = (
    "msg_accepted",
    "msg_enqueued",
    "msg_persisted",
    "pub_acked",
    "pub_completed",
    "pub_released",
    "pub_dup_received",
    "msg_delivered",
    "msg_acked",
    "msg_completed",
    "msg_dropped",
    "msg_expired",
    "msg_moved",
    "retained_sent",
)
RAISED: Final = ("books", "sampled")  # the levels at which a trace records more
# With more stretches than this, neighbours are joined, as gaps are.
STRETCHES_MAX: Final = 128


@dataclass(frozen=True)
class TraceMark:
    """A row about a trace."""

    node: str
    boot: int
    gseq: int
    us: int
    ev: str
    client_id: str
    detail: str


@dataclass(frozen=True)
class Trace:
    """A stretch of a node's history, both ends included, in which a client's rows are complete."""

    node: str
    client_id: str
    from_gseq: int
    to_gseq: int
    from_us: int
    to_us: int
    level: str  # what was recorded of the others
    sample: int = 1
    begins_at: int = 0  # gseq of the row that tells of it
    is_open: bool = False  # it goes on behind what is known


@dataclass(frozen=True)
class Stretch:
    """A stretch of a node's history with rows that are there because of some trace."""

    node: str
    from_gseq: int
    to_gseq: int
    sample: int  # one message in so many is there anyway; 0 = none


def traces(
    marks: Iterable[TraceMark], boots: Sequence[Boot], before: Sequence[Boot] = ()
) -> list[Trace]:
    """Return the stretches of all traces that raised the level, those of this batch only.

    `boots` are all boots in order, `before` those at the end of the last batch. A trace whose
    beginning is not known is left out: nothing tells from where on the rows are complete.
    """
    known = {(boot.node, boot.boot): boot for boot in boots}
    newest = {boot.node: boot.boot for boot in boots}
    ends = {boot.node: boot.last_gseq for boot in before}
    found: list[Trace] = []
    for (node, number, _), line in _lines(marks).items():
        boot = known[node, number]
        for mark, after in zip(line, [*line[1:], None], strict=True):
            if mark.ev == ENDED:
                continue
            is_open = after is None and newest[node] == number and not boot.clean
            to_gseq, to_us = (
                (boot.last_gseq, boot.last_us) if after is None else (after.gseq, after.us)
            )
            level, sample = parse_level(mark.detail.partition(", ")[0])
            if level not in RAISED or to_gseq <= ends.get(node, 0):
                continue
            trace = Trace(
                node, mark.client_id, mark.gseq, to_gseq, mark.us, to_us, level, sample,
                mark.gseq, is_open,
            )  # fmt: skip
            found.append(_behind(trace, ends.get(node, 0), boot))
    return sorted(found, key=lambda trace: (trace.node, trace.from_gseq, trace.client_id))


def _lines(marks: Iterable[TraceMark]) -> dict[tuple[str, int, str], list[TraceMark]]:
    """Return the rows about traces by node, boot and client, in order."""
    lines: dict[tuple[str, int, str], list[TraceMark]] = {}
    for mark in sorted(set(marks), key=lambda each: (each.node, each.gseq)):
        lines.setdefault((mark.node, mark.boot, mark.client_id), []).append(mark)
    return lines


def unjudged(
    marks: Iterable[TraceMark], boots: Sequence[Boot], gaps: Sequence[Gap]
) -> list[Stretch]:
    """Return where rows may be because of traces whose beginning is not known.

    It reaches back to where the level was lowered: there nothing else is recorded of messages.
    """
    samples = {(boot.node, boot.boot): boot.sample for boot in boots}
    found = []
    for (node, number, _), line in _lines(marks).items():
        first = line[0]
        if first.ev == BEGAN:
            continue
        for gap in gaps:
            if gap.kind != HOLE and gap.touches(node, first.gseq - 1, first.gseq - 1):
                sample = samples[node, number] if gap.kind == SAMPLED else 0
                found.append(Stretch(node, max(gap.from_gseq, gseq(number, 0)), first.gseq, sample))
    return found


def _behind(trace: Trace, end: int, boot: Boot) -> Trace:
    """Return what of a trace is behind `end`, where the last batch ended."""
    if trace.from_gseq > end:
        return trace
    return replace(trace, from_gseq=end + 1, from_us=max(trace.from_us, boot.first_us))


def stretches(
    found: Iterable[Trace], gaps: Sequence[Gap], more: Iterable[Stretch] = ()
) -> list[Stretch]:
    """Return where rows are because of traces, or `more`: few stretches, apart at one level.

    Between two that lie in one gap of the same level nothing else is recorded of messages, so
    they are joined if there are too many.
    """
    lowered = [gap for gap in gaps if gap.kind != HOLE]
    merged: list[Stretch] = []
    ordered = sorted(
        [
            *more,
            *(Stretch(each.node, each.from_gseq, each.to_gseq, _anyway(each)) for each in found),
        ],
        key=lambda each: (each.node, each.sample, each.from_gseq),
    )
    for stretch in ordered:
        last = merged[-1] if merged else None
        if last is not None and _alike(last, stretch) and stretch.from_gseq <= last.to_gseq:
            merged[-1] = replace(last, to_gseq=max(last.to_gseq, stretch.to_gseq))
        else:
            merged.append(stretch)
    return merged if len(merged) <= STRETCHES_MAX else _joined(merged, lowered)


def _anyway(trace: Trace) -> int:
    return trace.sample if trace.level == "sampled" else 0


def _alike(one: Stretch, other: Stretch) -> bool:
    return (one.node, one.sample) == (other.node, other.sample)


def _joined(merged: Sequence[Stretch], lowered: Sequence[Gap]) -> list[Stretch]:
    """Return the stretches with neighbours joined that lie in one gap."""
    joined = [merged[0]]
    for before, stretch in pairwise(merged):
        last = joined[-1]
        inside = any(
            gap.node == stretch.node
            and gap.from_gseq <= before.from_gseq
            and stretch.to_gseq <= gap.to_gseq
            for gap in lowered
        )
        if inside and _alike(last, stretch):
            joined[-1] = replace(last, to_gseq=stretch.to_gseq)
        else:
            joined.append(stretch)
    return joined
