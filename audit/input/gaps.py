"""Gaps of the history: holes, lowered levels of detail, boots that do not follow each other.

Plain code over a few small rows, which `audit.input.batch_view` gets from Spark. A gap is an
interval of gseq of one node, both ends included. No check may report a violation that a gap
touches.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

from audit.input.events import SEQ_BITS, boot_of, gseq, seq_of

Kind = Literal["hole", "messages", "sampled"]

HOLE: Final = "hole"  # all rows are missing
MESSAGES: Final = "messages"  # rows about messages are missing, those about sessions are there
SAMPLED: Final = "sampled"  # rows about most messages are missing; the others have all rows

REASON_TRIMMED: Final = 1051  # rows deleted before their export: explains holes
REASON_BEGAN: Final = 1053
REASON_DETAIL: Final = 1054
REASON_RELEASES: Final = 1071

UNTOLD: Final = "not known"  # the level of a boot that shows neither its level nor messages

SEQ_MAX: Final = (1 << SEQ_BITS) - 1
# With more gaps than this, neighbours are joined, because Spark has to compile an expression with
# all of them. Joining makes more unknown, which is safe.
GAPS_MAX: Final = 128


@dataclass(frozen=True)
class Gap:
    """An interval of a node's history in which some or all rows are missing."""

    node: str
    from_gseq: int
    to_gseq: int
    reason: str
    kind: Kind
    explained: bool = True  # False: nothing in the history accounts for the hole

    def touches(self, node: str, start: int, end: int) -> bool:
        """Return whether anything from `start` to `end` could be in the gap."""
        return node == self.node and start <= self.to_gseq and end >= self.from_gseq

    @property
    def is_open(self) -> bool:
        """Return whether the gap lasts, as far as known, until its boot ends."""
        return seq_of(self.to_gseq) == SEQ_MAX


@dataclass(frozen=True)
class Boot:
    """One run of a broker, as far as its history is known."""

    node: str
    boot: int
    level: str  # of detail, when it began
    level_now: str  # of detail, where the known history ends
    sample: int  # N: one message in N has rows; 1 = every message
    first_seq: int
    last_seq: int
    first_us: int  # broker time of the first and last row, microseconds since 1970
    last_us: int
    clean: bool = False  # `shutdown` was the last row
    claimed: int | None = None  # last seq of the previous boot that this boot found on disk
    recovered: int | None = None  # gseq of `recovered`: the census is complete
    recovered_count: int | None = None
    has_damage: bool = False  # sessions could not be read then: which ones is not told
    # At `full` it records each packet id that a PUBREL frees in the batch that frees it.
    has_releases: bool = False

    @property
    def last_gseq(self) -> int:
        """Return the place of its last row."""
        return gseq(self.boot, self.last_seq)


@dataclass(frozen=True)
class Run:
    """Rows of one boot without a hole between them."""

    node: str
    boot: int
    first_seq: int
    last_seq: int
    first_us: int
    last_us: int


@dataclass(frozen=True)
class Mark:
    """A row about the history or the broker itself: boot, shutdown, recovered, history_gap."""

    node: str
    boot: int
    seq: int
    ev: str
    reason: int | None
    count: int | None
    detail: str | None


def boots(runs: Iterable[Run], marks: Iterable[Mark], before: Sequence[Boot] = ()) -> list[Boot]:
    """Return the boots in order: those known `before`, updated, and the new ones."""
    known = {(boot.node, boot.boot): boot for boot in before}
    for run in runs:
        key = run.node, run.boot
        old = known.get(key)
        if old is None:
            known[key] = Boot(
                run.node,
                run.boot,
                "",
                "",
                1,
                run.first_seq,
                run.last_seq,
                run.first_us,
                run.last_us,
            )
        else:
            known[key] = replace(
                old,
                first_seq=min(old.first_seq, run.first_seq),
                last_seq=max(old.last_seq, run.last_seq),
                first_us=min(old.first_us, run.first_us),
                last_us=max(old.last_us, run.last_us),
            )
    for mark in sorted(marks, key=_place):
        key = mark.node, mark.boot
        known[key] = _marked(known[key], mark)
    return [known[key] for key in sorted(known)]


def _marked(boot: Boot, mark: Mark) -> Boot:
    if mark.ev == "boot":
        level, sample = parse_level(mark.detail)
        boot = replace(boot, level=level, level_now=level, sample=sample, claimed=mark.count)
        return replace(boot, has_releases=mark.reason == REASON_RELEASES)
    if mark.ev == "shutdown":
        return replace(boot, clean=True)
    if mark.ev == "recovered":
        place = gseq(mark.boot, mark.seq)
        detail = mark.detail or ""
        has_damage = detail.endswith(" damaged") and not detail.endswith(" 0 damaged")
        return replace(boot, recovered=place, recovered_count=mark.count, has_damage=has_damage)
    if mark.ev == "history_gap" and mark.detail and mark.reason != REASON_TRIMMED:
        level, sample = parse_level(mark.detail)
        return replace(boot, level_now=level, sample=max(sample, boot.sample))
    return boot


def parse_level(detail: str | None) -> tuple[str, int]:
    """Return the level of detail and N of `sampled:1/N` (1 at every other level)."""
    name, _, share = (detail or "").partition(":")
    divisor = share.rpartition("/")[2]
    return name, int(divisor) if divisor.isdigit() and int(divisor) > 0 else 1


def _place(mark: Mark) -> tuple[str, int, int]:
    return mark.node, mark.boot, mark.seq


def holes(runs: Iterable[Run], known: Sequence[Boot], before: Sequence[Boot] = ()) -> list[Gap]:
    """Return the intervals without any row.

    `known` are all boots, `before` those of earlier batches as they were then: new rows must
    continue where those ended. The time before a node's first row is unknown, but not an error.
    """
    found = []
    ends = {(boot.node, boot.boot): boot.last_seq for boot in before}
    ordered = sorted(runs, key=lambda run: (run.node, run.boot, run.first_seq))
    for run in ordered:
        key = run.node, run.boot
        if key in ends and run.first_seq > ends[key] + 1:
            found.append(_hole(run.node, (run.boot, ends[key] + 1), (run.boot, run.first_seq - 1)))
        ends[key] = max(ends.get(key, 0), run.last_seq)
    old_nodes = {boot.node for boot in before}
    old = {(boot.node, boot.boot) for boot in before}
    previous: Boot | None = None
    for boot in known:
        if previous is None or previous.node != boot.node:
            if boot.node not in old_nodes and (boot.boot, boot.first_seq) != (1, 1):
                to = gseq(boot.boot, boot.first_seq) - 1
                found.append(Gap(boot.node, 0, to, "before the history begins", HOLE))
        elif (boot.node, boot.boot) not in old:
            found += _between(previous, boot)
        previous = boot
    return found


def _hole(node: str, start: tuple[int, int], end: tuple[int, int]) -> Gap:
    return Gap(node, gseq(*start), gseq(*end), "rows are missing", HOLE, explained=False)


def _between(before: Boot, after: Boot) -> list[Gap]:
    """Return the hole, if any, between two boots of one node."""
    start = before.boot, before.last_seq + 1
    if after.first_seq > 1:
        return [_hole(before.node, start, (after.boot, after.first_seq - 1))]
    if after.boot > before.boot + 1:
        if after.claimed:
            return [_hole(before.node, start, (after.boot, 0))]
        return [Gap(before.node, gseq(*start), gseq(after.boot, 0), "history was off", HOLE)]
    if after.claimed is not None and after.claimed > before.last_seq:
        return [_hole(before.node, start, (before.boot, after.claimed))]
    return []


def unfilled(gaps: Iterable[Gap], runs: Sequence[Run]) -> list[Gap]:
    """Return what remains of the gaps of earlier batches after late rows filled holes."""
    result = []
    for gap in gaps:
        parts = [gap] if gap.kind == HOLE and not gap.explained else []
        for run in runs:
            first, last = gseq(run.boot, run.first_seq), gseq(run.boot, run.last_seq)
            parts = [
                left
                for part in parts
                for left in (
                    _without(part, first, last) if part.touches(run.node, first, last) else [part]
                )
            ]
        result += parts if gap.kind == HOLE and not gap.explained else [gap]
    return result


def _without(gap: Gap, first: int, last: int) -> list[Gap]:
    before = replace(gap, to_gseq=min(gap.to_gseq, first - 1))
    after = replace(gap, from_gseq=max(gap.from_gseq, last + 1))
    return [part for part in (before, after) if part.from_gseq <= part.to_gseq]


def explain(found: Sequence[Gap], marks: Iterable[Mark]) -> list[Gap]:
    """Return the gaps, holes marked as explained if a later row reports as many deleted rows.

    Such a row explains a hole before it of exactly that size, or else the nearest ones. Several
    together may explain one: rows are deleted in slices, which each boot reports on its own.
    """
    result = sorted(found, key=lambda gap: (gap.node, gap.from_gseq))
    ordered = sorted(marks, key=_place)
    claimed = {(mark.node, mark.boot): mark.count or 0 for mark in ordered if mark.ev == "boot"}
    told: dict[str, list[list[int]]] = {}  # place and rows not used yet, in order
    for mark in ordered:
        if mark.ev != "history_gap" or mark.reason != REASON_TRIMMED:
            continue
        place = gseq(mark.boot, mark.seq)
        mine = told.setdefault(mark.node, [])
        mine.append([place, mark.count or 0])
        before = [
            index
            for index, gap in enumerate(result)
            if gap.node == mark.node and gap.to_gseq < place and not gap.explained
        ]
        exact = [index for index in before if _size(result[index], claimed) == mark.count]
        for index in reversed(exact or before):
            if _use(mine, result[index].to_gseq, _size(result[index], claimed)):
                result[index] = replace(result[index], explained=True, reason="outbox_trimmed")
    return result


def _use(told: list[list[int]], after: int, rows: int) -> bool:
    """Take so many rows from what was told behind a place, the newest first; False: too few."""
    usable = [each for each in reversed(told) if each[0] > after]
    if rows > sum(left for _, left in usable):
        return False
    for each in usable:
        taken = min(rows, each[1])
        each[1] -= taken
        rows -= taken
    return True


def _size(gap: Gap, claimed: Mapping[tuple[str, int], int]) -> int:
    """Return how many rows are missing at least; `claimed` is what boots said of those before.

    Of a hole over the end of a boot nobody knows how many rows that had.
    """
    if boot_of(gap.from_gseq) == boot_of(gap.to_gseq):
        return gap.to_gseq - gap.from_gseq + 1
    last = boot_of(gap.to_gseq)
    return max(1, seq_of(gap.to_gseq) or claimed.get((gap.node, last), 0))


def lowered(
    known: Sequence[Boot],
    marks: Iterable[Mark],
    found: Sequence[Gap],
    *,
    before: Sequence[Boot] = (),
    gaps_before: Sequence[Gap] = (),
    silent: Collection[tuple[str, int]] = (),
) -> list[Gap]:
    """Return the intervals in which the level of detail was below `full`.

    If the beginning of an interval fell into a hole, the interval begins with that hole. An
    interval without an end row ends with its boot; such open intervals of `gaps_before` continue.
    `silent` are boots (node, boot) that began at a level that is not known and is not `full`.
    """
    result = []
    changes: dict[tuple[str, int], list[Mark]] = {}
    for mark in sorted(marks, key=_place):
        if mark.detail and (mark.ev == "boot" or _changes_level(mark)):
            changes.setdefault((mark.node, mark.boot), []).append(mark)
    levels = {(boot.node, boot.boot): boot.level_now for boot in before}
    starts = {
        (gap.node, boot_of(gap.from_gseq)): gap.from_gseq for gap in gaps_before if gap.is_open
    }
    for boot in known:
        key = boot.node, boot.boot
        level, start = levels.get(key, ""), starts.get(key, gseq(boot.boot, 0))
        if not level and key in silent:
            level = UNTOLD
        for mark in changes.get(key, []):
            place = gseq(mark.boot, mark.seq)
            if mark.ev == "boot":
                level = parse_level(mark.detail)[0]
                continue
            if _kind(level) is None and mark.reason not in (REASON_BEGAN, REASON_DETAIL):
                missed = _last_hole(found, boot.node, place)
                start, level = (missed, "books") if missed is not None else (start, level)
            result += _lowered(boot.node, level, start, place)
            level, start = parse_level(mark.detail)[0], place
        result += _lowered(boot.node, level, start, gseq(boot.boot, SEQ_MAX))
    return result


def _changes_level(mark: Mark) -> bool:
    return mark.ev == "history_gap" and mark.reason != REASON_TRIMMED


def _kind(level: str) -> Kind | None:
    """Return what is missing at a level; "" (its row is missing) counts as full."""
    if level == "off":
        return HOLE
    if level in ("sessions", "books", UNTOLD):
        return MESSAGES
    return SAMPLED if level == "sampled" else None


def _lowered(node: str, level: str, start: int, end: int) -> list[Gap]:
    kind = _kind(level)
    return [] if kind is None else [Gap(node, start, end, f"detail {level}", kind)]


def _last_hole(found: Sequence[Gap], node: str, place: int) -> int | None:
    starts = [
        gap.from_gseq
        for gap in found
        if gap.kind == HOLE and gap.node == node and gap.to_gseq < place
        if boot_of(gap.from_gseq) == boot_of(place)
    ]
    return max(starts, default=None)


def fewer(found: Sequence[Gap], most: int = GAPS_MAX) -> list[Gap]:
    """Return at most about `most` gaps that cover all of `found`.

    Joins the closest neighbours of one node and kind, which makes more unknown.
    """
    merged = sorted(set(found), key=lambda gap: (gap.node, gap.kind, gap.from_gseq, gap.to_gseq))
    while len(merged) > most:
        pairs = [
            (right.from_gseq - left.to_gseq, index)
            for index, (left, right) in enumerate(pairwise(merged))
            if (left.node, left.kind) == (right.node, right.kind)
        ]
        if not pairs:
            break
        together = {index for _, index in sorted(pairs)[: len(merged) - most]}
        joined: list[Gap] = []
        for index, gap in enumerate(merged):
            if index and index - 1 in together:
                last = joined[-1]
                joined[-1] = replace(
                    last,
                    to_gseq=max(last.to_gseq, gap.to_gseq),
                    explained=last.explained and gap.explained,
                )
            else:
                joined.append(gap)
        merged = joined
    return merged
