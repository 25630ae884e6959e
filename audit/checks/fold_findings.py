"""Counts and witnesses of the findings of a fold; plain values that Spark workers can return."""

from collections.abc import Iterator
from typing import Final

CHECKED: Final = 0
VIOLATED: Final = 1
UNKNOWN: Final = 2


class Findings:
    """The findings so far: per invariant three counts and the first witnesses."""

    def __init__(self, witnesses_max: int) -> None:
        self.witnesses_max = witnesses_max
        self.counts: dict[str, list[int]] = {}
        self.witnesses: dict[str, list[dict[str, object]]] = {}

    def ok(self, invariant: str) -> None:
        """Count a case that is correct."""
        self._count(invariant)[CHECKED] += 1

    def unknown(self, invariant: str) -> None:
        """Count a case that cannot be decided."""
        self._count(invariant)[UNKNOWN] += 1

    def violated(self, invariant: str, what: str, **evidence: object) -> None:
        """Count a violation; keep its evidence if there are few witnesses so far."""
        counts = self._count(invariant)
        counts[CHECKED] += 1
        counts[VIOLATED] += 1
        kept = self.witnesses.setdefault(invariant, [])
        if len(kept) < self.witnesses_max:
            kept.append({"what": what, **evidence})

    def judge(self, invariant: str, wrong: bool, what: str, **evidence: object) -> None:
        """Count a violation if `wrong`, a correct case otherwise."""
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
