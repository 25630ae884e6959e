"""What was recorded of each node, and when: whether an invariant could be tested there.

An invariant is proved only for a node and a time whose rows it needs. A span is a stretch of one
node's history in which the same was recorded. Plain code over boots and gaps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from audit.input.events import gseq
from audit.input.gaps import HOLE, MESSAGES, SAMPLED, Boot, Gap

# What a span has rows of: every message; one message in `sample`, as was configured, or because the
# level was lowered; sessions, but no single messages; nothing.
Recorded = Literal["full", "sample", "lowered", "sessions", "nothing"]
Need = Literal["sessions", "messages"]  # the rows that an invariant needs

_WORST: Final = (HOLE, MESSAGES, SAMPLED)
# What must have been recorded for an invariant to be tested.
TESTED: Final[dict[Need, frozenset[Recorded]]] = {
    "sessions": frozenset(("full", "sample", "lowered", "sessions")),
    "messages": frozenset(("full", "sample")),
}


@dataclass(frozen=True)
class Span:
    """A stretch of one node's history in which the same was recorded."""

    node: str
    from_gseq: int
    to_gseq: int
    from_us: int
    to_us: int
    recorded: Recorded
    reason: str = ""
    sample: int = 1

    def has(self, need: Need) -> bool:
        """Return whether an invariant that needs such rows could be tested here."""
        return self.recorded in TESTED[need]


def spans(boots: Sequence[Boot], gaps: Iterable[Gap]) -> list[Span]:
    """Return the spans of every node from its first known row to its last, in order."""
    found: list[Span] = []
    of_node: dict[str, list[Gap]] = {}
    for gap in gaps:
        if gap.from_gseq > 0:  # the time before the first row is nobody's
            of_node.setdefault(gap.node, []).append(gap)
    before: Boot | None = None
    for boot in boots:
        own = of_node.get(boot.node, [])
        if before is not None and before.node == boot.node:
            found += _between(before, boot, own)
        found += _within(boot, own)
        before = boot
    return _joined(found)


def since(found: Iterable[Span], before: Iterable[Boot]) -> list[Span]:
    """Return what of the spans is after `before`, the boots at the end of the last batch."""
    ends: dict[str, Boot] = {boot.node: boot for boot in before}
    result = []
    for span in found:
        end = ends.get(span.node)
        if end is None or span.from_gseq > end.last_gseq:
            result.append(span)
        elif span.to_gseq > end.last_gseq:
            result.append(replace(span, from_gseq=end.last_gseq + 1, from_us=end.last_us))
    return result


def _within(boot: Boot, gaps: Sequence[Gap]) -> list[Span]:
    """Return the spans of one boot's known rows."""
    first, last = gseq(boot.boot, boot.first_seq), boot.last_gseq
    touching = [gap for gap in gaps if gap.touches(boot.node, first, last)]
    starts = {first}
    for gap in touching:
        starts.update(at for at in (gap.from_gseq, gap.to_gseq + 1) if first < at <= last)
    ordered = sorted(starts)
    found = []
    for at, after in zip(ordered, [*ordered[1:], last + 1], strict=True):
        worst = _worst(touching, at)
        begin, end = _time(boot, at), _time(boot, after)
        found.append(_span(boot, at, after - 1, begin, end, worst))
    return found


def _between(before: Boot, after: Boot, gaps: Sequence[Gap]) -> list[Span]:
    """Return the span, if any, of rows missing between the known rows of two boots."""
    start, end = before.last_gseq + 1, gseq(after.boot, after.first_seq) - 1
    missing = [gap for gap in gaps if gap.kind == HOLE and gap.touches(before.node, start, end)]
    if not missing:
        return []
    return [_span(before, start, end, before.last_us, after.first_us, missing[0])]


def _worst(gaps: Sequence[Gap], at: int) -> Gap | None:
    here = [gap for gap in gaps if gap.from_gseq <= at <= gap.to_gseq]
    return min(here, key=lambda gap: _WORST.index(gap.kind), default=None)


def _span(boot: Boot, start: int, end: int, from_us: int, to_us: int, gap: Gap | None) -> Span:
    if gap is None:
        return Span(boot.node, start, end, from_us, to_us, "full")
    place = boot.node, start, end, from_us, to_us
    if gap.kind == SAMPLED:
        recorded: Recorded = "sample" if boot.level == "sampled" else "lowered"
        return Span(*place, recorded, gap.reason, boot.sample)
    return Span(*place, "nothing" if gap.kind == HOLE else "sessions", gap.reason)


def _time(boot: Boot, place: int) -> int:
    """Return about when the row at a gseq of the boot was written."""
    rows = max(boot.last_seq - boot.first_seq + 1, 1)
    passed = place - gseq(boot.boot, boot.first_seq)
    return boot.first_us + (boot.last_us - boot.first_us) * min(passed, rows) // rows


def _joined(found: Sequence[Span]) -> list[Span]:
    """Return the spans with neighbours joined of which the same was recorded."""
    joined: list[Span] = []
    for span in found:
        last = joined[-1] if joined else None
        if last is not None and _alike(last, span):
            joined[-1] = replace(last, to_gseq=span.to_gseq, to_us=span.to_us)
        else:
            joined.append(span)
    return joined


def _alike(one: Span, other: Span) -> bool:
    same = ("node", "recorded", "reason", "sample")
    return all(getattr(one, name) == getattr(other, name) for name in same)
