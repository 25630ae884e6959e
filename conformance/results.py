"""The results of a run: one per statement, and the summary."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from conformance.record import Line
from conformance.statements import VERSION_NAMES, Statement

Outcome: TypeAlias = Literal["pass", "fail", "error", "not run", "not testable"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("pass", "fail", "error", "not run", "not testable")
BAD: Final = frozenset({"fail", "error"})


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one statement.

    `reason` says why it failed or was not run. `packet` is the broker's wrong packet, or
    (`was_sent`) our packet that got a wrong answer or none. `decoded` is the packet in words,
    `expected` what should have come.
    """

    statement: Statement
    outcome: Outcome
    sentence: str
    reason: str = ""
    packet: bytes | None = None
    was_sent: bool = False
    decoded: str = ""
    expected: str = ""
    notes: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    seconds: float = 0.0
    check: str = ""

    @property
    def is_bad(self) -> bool:
        """Return whether it makes the run fail."""
        return self.outcome in BAD


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a whole run."""

    broker: str  # name and version, or the address
    adapter: str
    versions: tuple[int, ...]
    strict: bool
    selection: str
    date: str
    seconds: float
    results: tuple[Result, ...]
    problems: tuple[str, ...] = ()  # of the suite: modules that could not be imported

    def counts(self, version: int | None = None) -> Counter[str]:
        """Return how many statements had each outcome."""
        return count(r for r in self.results if version in (None, r.statement.version))

    @property
    def exit_code(self) -> int:
        """Return 0 if nothing failed, else 1."""
        return int(bool(self.problems) or any(result.is_bad for result in self.results))

    def summary(self) -> str:
        """Return the summary line."""
        parts = []
        for version in self.versions:
            counts = self.counts(version)
            shown = ", ".join(
                f"{counts[outcome]} {_PLURALS[outcome]}"
                for outcome in OUTCOMES
                if counts[outcome] or outcome in ("pass", "fail")
            )
            parts.append(f"MQTT {VERSION_NAMES[version]}: {shown}")
        profile = ", strict" * self.strict
        return f"{self.broker}{profile}: {'; '.join(parts)} ({self.seconds:.0f} s)"


_PLURALS: Final = {
    "pass": "passed",
    "fail": "failed",
    "error": "errors",
    "not run": "not run",
    "not testable": "not testable",
}


def count(results: Iterable[Result]) -> Counter[str]:
    """Return how many results had each outcome."""
    return Counter(result.outcome for result in results)
