"""What a fold needs besides the rows: boots, gaps, and where earlier batches ended.

Small plain values, because they are sent to every Spark worker.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from audit.input.gaps import HOLE, Boot, Gap

SECOND: Final = 1_000_000  # times are microseconds


class Intervals:
    """Intervals of gseq of one node, which may overlap."""

    def __init__(self, gaps: Iterable[Gap]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for gap in sorted(gaps, key=lambda gap: gap.from_gseq):
            if self._ends and gap.from_gseq <= self._ends[-1] + 1:
                self._ends[-1] = max(self._ends[-1], gap.to_gseq)
            else:
                self._starts.append(gap.from_gseq)
                self._ends.append(gap.to_gseq)

    def touch(self, start: int, end: int) -> bool:
        """Return whether anything from `start` to `end` is in an interval."""
        at = bisect_left(self._ends, start)
        return at < len(self._starts) and self._starts[at] <= end


@dataclass(frozen=True)
class Node:
    """One node: its boots in order, its gaps, and where the last batch ended."""

    boots: tuple[Boot, ...]
    holes: Intervals  # all rows are missing here
    silences: Intervals  # rows about messages are missing here
    before_us: int = 0  # broker time up to which earlier batches have judged
    before_gseq: int = 0
    is_cut: bool = False  # its history begins late: sessions may be older
    _by_number: dict[int, Boot] = field(default_factory=dict)

    def boot(self, number: int) -> Boot:
        """Return a boot by its number."""
        return self._by_number[number]

    def deadline(self, due_us: int, within_us: int) -> int | None:
        """Return the deadline of what is due at `due_us`, None if it is not determined yet.

        The broker has `within_us` for it, without interruption in one boot: it cannot act while it
        is down. A deadline returned once never changes when more of the history becomes known.
        """
        for boot in self.boots:
            start = max(due_us, boot.first_us)
            if boot.last_us > start + within_us:
                return start + within_us
        return None

    @property
    def last_us(self) -> int:
        """Return the broker time of the last known row."""
        return max((boot.last_us for boot in self.boots), default=0)


@dataclass(frozen=True)
class Known:
    """The context of a fold: nodes by name, and the settings."""

    nodes: Mapping[str, Node]
    tolerance_us: int
    witnesses_max: int


def known(
    boots: Iterable[Boot],
    gaps: Iterable[Gap],
    before: Iterable[Boot],
    *,
    tolerance_s: int,
    witnesses_max: int,
) -> Known:
    """Return the context of a fold; `before` are the boots at the end of the last batch."""
    boots, gaps, before = list(boots), list(gaps), list(before)
    nodes = {}
    for name in sorted({boot.node for boot in boots}):
        # The time before the first row is not a gap between two rows.
        mine = [gap for gap in gaps if gap.node == name and gap.from_gseq > 0]
        own = tuple(boot for boot in boots if boot.node == name)
        nodes[name] = Node(
            own,
            Intervals(gap for gap in mine if gap.kind == HOLE),
            Intervals(mine),
            max((boot.last_us for boot in before if boot.node == name), default=0),
            max((boot.last_gseq for boot in before if boot.node == name), default=0),
            any(gap.node == name and gap.from_gseq == 0 for gap in gaps),
            {boot.boot: boot for boot in own},
        )
    return Known(nodes, tolerance_s * SECOND, witnesses_max)
