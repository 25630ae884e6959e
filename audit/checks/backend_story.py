"""B1 without Spark: what the history says that external stores were told, and whether it balances.

A story is everything about one store of one node: at each start the filters in force, then ranges
of offsets with what became of their messages, and gaps. The ranges must follow each other. Each
must have as many messages as were stored that match the filters in force, with the same checksums.
Read next: `audit.checks.backend_checks`, which counts those.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from audit.input.events import SEQ_BITS
from storage.history.events import (
    CHECK_BITS,
    CONFIRMED,
    DEAD_LETTERED,
    LOST_THERE,
    NAMES_HASHED,
    NOT_COUNTED,
    REFUSED,
    TOLD_AGAIN,
    UNREADABLE,
)

EVENTS: Final = (
    "backend_opened",
    "backend_follows",
    "backend_told",
    "backend_gap",
    "backend_forgotten",
)
SOFT: Final = (UNREADABLE, NOT_COUNTED)  # of these ranges some were told: how many is not known
FATES: Final = {CONFIRMED: "confirmed", DEAD_LETTERED: "dead_lettered", REFUSED: "refused"}
CHECK_MASK: Final = (1 << CHECK_BITS) - 1
UNBALANCED: Final = "a mirrored minute does not balance"
HOLE: Final = "messages lie between two ranges that the store was told of"
OVERLAP: Final = "messages are in two ranges that the store was told of"
NEVER: Final = 1 << 62


@dataclass
class Statement:
    """The filters of a store in one boot, each with the offset behind which it reads."""

    boot: int
    place: int
    count: int
    is_hashed: bool
    filters: list[tuple[str, int]] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Return whether all filters are, so that topics can be matched with them."""
        return len(self.filters) == self.count and not self.is_hashed


@dataclass
class Range:
    """Messages that a store was told of, accepted in one minute."""

    first: int
    last: int
    place: int  # of its first row
    end: int  # of its last row
    minute: datetime
    is_carried: bool
    statement: int  # its number in the story, -1 = it is not known
    fates: dict[str, int] = field(default_factory=dict)
    check1: int = 0
    check2: int = 0


@dataclass
class Stored:
    """The messages of a range that were stored and match a filter."""

    count: int = 0
    check1: int = 0
    check2: int = 0
    doubtful: int = 0  # whose topic is shortened
    low: int = NEVER  # places of the first and last stored message of the range, matching or not
    high: int = -1


@dataclass
class Break:
    """Where ranges do not follow each other."""

    what: str
    first: int
    last: int
    start: int  # places between which it lies
    end: int
    is_carried: bool


@dataclass
class Story:
    """Everything about one store of one node."""

    node: str
    backend: str
    statements: list[Statement] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    soft: list[tuple[int, int]] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    told_again: int = 0
    lost_there: int = 0
    upto: int | None = None  # the last offset that was told of
    place: int = 0  # of the last row that said so
    is_over: bool = False

    def take(self, row: Any) -> None:
        """Take in the next row of the history."""
        if row.ev == "backend_opened":
            self._join(row.position, row, is_range=False)
            hashed = row.reason == NAMES_HASHED
            self.statements.append(Statement(row.boot, row.gseq, row["count"], hashed))
            self.is_over = False
        elif row.ev == "backend_follows":
            if self.statements and self.statements[-1].boot == row.boot:
                self.statements[-1].filters.append((row.tfilter, row.position))
        elif row.ev == "backend_told":
            self._told(row)
        elif row.ev == "backend_gap":
            if row.reason == LOST_THERE:
                self.lost_there += not row.carried
            else:
                (self.soft if row.reason in SOFT else self.gaps).append((row.msg, row.msg_last))
        else:
            self.is_over = True
            self.upto = None

    def _told(self, row: Any) -> None:
        if row.reason == TOLD_AGAIN:
            self.told_again += 0 if row.carried else row["count"]
            return
        last = self.ranges[-1] if self.ranges else None
        # A range has a row for each fate, one behind the other.
        is_same = (
            last is not None
            and (last.first, last.last, last.end) == (row.msg, row.msg_last, row.gseq - 1)
            and FATES[row.reason] not in last.fates
        )
        if not is_same:
            self._join(row.msg - 1, row, is_range=True)
            last = Range(
                row.msg, row.msg_last, row.gseq, row.gseq, row.bin, row.carried,
                len(self.statements) - 1,
            )  # fmt: skip
            self.ranges.append(last)
            self.upto = max(row.msg_last, self.upto or 0)
        assert last is not None
        last.end = self.place = row.gseq
        last.fates[FATES[row.reason]] = row["count"]
        last.check1 = (last.check1 + row.check1) & CHECK_MASK
        last.check2 = (last.check2 + row.check2) & CHECK_MASK

    def _join(self, upto: int, row: Any, *, is_range: bool) -> None:
        """See whether what comes follows what was told before."""
        before = self.upto
        if before is not None and upto > before:
            if not any(first <= before + 1 and last >= upto for first, last in self.gaps):
                self._break(HOLE, before + 1, upto, row)
        elif before is not None and upto < before:
            last = min(before, row.msg_last) if is_range else before
            self._break(OVERLAP, upto + 1, last, row)
        if not is_range:
            self.upto = upto
        self.place = row.gseq

    def _break(self, what: str, first: int, last: int, row: Any) -> None:
        self.breaks.append(Break(what, first, last, self.place, row.gseq, row.carried))

    def wants(self, number: int) -> dict[str, int]:
        """Return the filters of a statement, each with the offset behind which it reads."""
        return dict(self.statements[number].filters) if number >= 0 else {}


def stories(rows: Iterable[Any]) -> list[Story]:
    """Return the story of each store; `rows` have node, gseq and the columns of their events."""
    found: dict[tuple[str, str], Story] = {}
    for row in sorted(rows, key=lambda row: (row.node, row.gseq)):
        story = found.setdefault((row.node, row.backend), Story(row.node, row.backend))
        story.take(row)
    return list(found.values())


# Does what happened between two places of a node touch a gap of its history? With messages, or not.
Touches = Callable[[str, int, int, bool], bool]


@dataclass
class Verdicts:
    """What was found about all stores."""

    checked: int = 0
    unknown: int = 0
    witnesses: list[dict[str, object]] = field(default_factory=list)


def judge(
    told: Sequence[Story], stored: dict[tuple[int, int], Stored], touches: Touches
) -> Verdicts:
    """Compare each new range with what was stored: by the number of the story and of the range.

    Range -1 is before all of a story, and that behind the last one is what was not told yet.
    """
    found = Verdicts()
    for number, story in enumerate(told):
        for each in story.breaks:
            if each.is_carried:
                continue
            if touches(story.node, each.start, each.end, False):
                found.unknown += 1
                continue
            found.checked += 1
            found.witnesses.append(_witness(story, each.what, each.first, each.last, each.end))
        lows, highs = _bounds(number, story, stored)
        for at, part in enumerate(story.ranges):
            if part.is_carried:
                continue
            there = stored.get((number, at), Stored())
            if is_balanced(part, there):
                found.checked += 1
            elif not _is_decided(story, part, there) or touches(
                story.node, highs[at], min(lows[at + 1], part.place), True
            ):
                found.unknown += 1
            else:
                found.checked += 1
                found.witnesses.append(_unbalanced(story, part, there))
    return found


def is_balanced(part: Range, there: Stored) -> bool:
    """Return whether a store was told of exactly what was stored for it."""
    told = sum(part.fates.values()), part.check1, part.check2
    return told == (there.count, there.check1 & CHECK_MASK, there.check2 & CHECK_MASK)


def _is_decided(story: Story, part: Range, there: Stored) -> bool:
    """Return whether it is known which messages the range must have."""
    if part.statement < 0 or not story.statements[part.statement].is_known or there.doubtful:
        return False
    return not any(first <= part.last and last >= part.first for first, last in story.soft)


def _bounds(
    number: int, story: Story, stored: dict[tuple[int, int], Stored]
) -> tuple[list[int], list[int]]:
    """Return, for each range, places before and behind which its messages were accepted.

    Offsets rise with places: the neighbours of a range say where a message must have been.
    """
    size = len(story.ranges)
    highs = [stored.get((number, -1), Stored()).high]
    for at in range(size):
        highs.append(max(highs[-1], stored.get((number, at), Stored()).high))
    lows = [stored.get((number, size), Stored()).low]
    for at in reversed(range(size)):
        lows.append(min(lows[-1], stored.get((number, at), Stored()).low))
    lows.reverse()
    return lows, [max(0, high) for high in highs]


def _unbalanced(story: Story, part: Range, there: Stored) -> dict[str, object]:
    witness = _witness(story, UNBALANCED, part.first, part.last, part.place)
    told = {fate: part.fates.get(fate, 0) for fate in FATES.values()}
    return {
        **witness,
        "minute": part.minute.isoformat(),
        "stored": there.count,
        **told,
        "same_messages": sum(told.values()) != there.count or "no: the checksums differ",
    }


def _witness(story: Story, what: str, first: int, last: int, place: int) -> dict[str, object]:
    return {
        "what": what,
        "node": story.node,
        "backend": story.backend,
        "first_message": first,
        "last_message": last,
        "at": {"boot": place >> SEQ_BITS, "seq": place & ((1 << SEQ_BITS) - 1)},
        "next": f"holdfast backend verify {story.backend}",
    }
