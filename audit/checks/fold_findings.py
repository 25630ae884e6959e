"""Counts and witnesses of what a fold over rows finds; plain, and small enough to send around."""

from collections.abc import Iterator
from typing import Final

CHECKED: Final = 0
VIOLATED: Final = 1
UNKNOWN: Final = 2


class Findings:
    """What was found so far: per invariant three counts and the first witnesses."""

    def __init__(self, witnesses_max: int) -> None:
        self.witnesses_max = witnesses_max
        self.counts: dict[str, list[int]] = {}
        self.witnesses: dict[str, list[dict[str, object]]] = {}

    def ok(self, invariant: str) -> None:
        """Count something that is as it should be."""
        self._count(invariant)[CHECKED] += 1

    def unknown(self, invariant: str) -> None:
        """Count something that cannot be judged."""
        self._count(invariant)[UNKNOWN] += 1

    def violated(self, invariant: str, what: str, **evidence: object) -> None:
        """Count a violation and keep its evidence, if there is room."""
        counts = self._count(invariant)
        counts[CHECKED] += 1
        counts[VIOLATED] += 1
        kept = self.witnesses.setdefault(invariant, [])
        if len(kept) < self.witnesses_max:
            kept.append({"what": what, **evidence})

    def judge(self, invariant: str, wrong: bool, what: str, **evidence: object) -> None:
        """Count a violation if `wrong`, or else something that is as it should be."""
        if wrong:
            self.violated(invariant, what, **evidence)
        else:
            self.ok(invariant)

    def __iter__(self) -> Iterator[tuple[str, list[int], list[dict[str, object]]]]:
        """Yield (invariant, counts, witnesses)."""
        for invariant, counts in sorted(self.counts.items()):
            yield invariant, counts, self.witnesses.get(invariant, [])

    def _count(self, invariant: str) -> list[int]:
        return self.counts.setdefault(invariant, [0, 0, 0])
