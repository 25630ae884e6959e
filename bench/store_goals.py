"""What external stores may cost, how runs are compared, and the tables of `bench.stores`.

Pure functions. Runs alternate, so the cases of one round met the same machine: ratios are taken
within a round, and the median over the rounds counts. The base is measured twice in a round: where
it differs from itself by as much as a goal allows, the machine is too restless, and nothing is
judged. A ratio that no goal names is shown only.
Read next: `bench.stores`, which measures.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.goals import MET, MISSED, UNKNOWN

Line = dict[str, Any]  # one run
Rounds = Mapping[str, Sequence[Line]]  # the runs of each case; number N of each is of round N

OUTAGE_MAX: Final = 1.2  # p99 in an outage, over that of its base
NO_RULE_MAX: Final = 1.01  # instructions with external stores unused, over those without the code
# Instructions with a rule that matches nothing, over those without it: each batch has to be noted
# for the store, which counts where a message has a batch of its own.
NO_MATCH_MAX: Final = 1.05

BASELINE: Final = "the other tree"
NO_BACKEND: Final = "no backend"
NO_MATCH: Final = "a rule that matches nothing"

ABSENT: Final = "is not there: the messages are stored for a session"
AGAIN: Final = "the same again"
RUNS: Final = "runs"
HANGS: Final = "hangs (SIGSTOP)"
GONE: Final = "is gone (SIGKILL)"
PROCESS_DIES: Final = "runs, and the process that feeds it is killed again and again"
STATES: Final = (ABSENT, RUNS, AGAIN, HANGS, GONE, PROCESS_DIES)
# What the goal is about: an outage, its base, and the name of that. Kills are compared with a store
# that runs: it and the process take their share of the processors, killed or not.
BASES: Final = {
    HANGS: (ABSENT, "without it"),
    GONE: (ABSENT, "without it"),
    PROCESS_DIES: (RUNS, "without kills"),
}
LATENCIES: Final = {"ack_ms": "PUBACK", "delivery_ms": "delivery"}


class Judged:
    """A ratio, its goal, and whether that was met."""

    __slots__ = ("bound", "noise", "ratio", "what")

    def __init__(self, what: str, ratio: float, bound: float, noise: float = 1.0) -> None:
        """`noise` is how often as large a figure was when the same was measured again."""
        self.what: Final = what
        self.ratio: Final = ratio
        self.bound: Final = bound
        self.noise: Final = noise

    @property
    def verdict(self) -> str:
        """Return one of the verdicts of `bench.goals`."""
        if self.noise >= self.bound:
            return UNKNOWN
        return MET if self.ratio <= self.bound else MISSED

    def text(self) -> str:
        """Return it in a line."""
        noise = f"; the same again: {self.noise:.3f}" if self.noise > 1 else ""
        return f"{self.verdict}: {self.what}: {self.ratio:.3f}, at most {self.bound:g}{noise}"


def ratios(rounds: Rounds, case: str, base: str, *path: str) -> list[float]:
    """Return a figure of a case over that of another one, for each round."""
    return [
        _figure(line, path) / _figure(other, path)
        for line, other in zip(rounds[case], rounds[base], strict=True)
    ]


def noise(rounds: Rounds, *path: str) -> float:
    """Return by what factor the base differed from itself in a round, the median."""
    again = ratios(rounds, AGAIN, ABSENT, *path)
    return statistics.median(max(ratio, 1 / ratio) for ratio in again)


def middle(rounds: Rounds, case: str, *path: str) -> float:
    """Return the median of a figure over the rounds."""
    return statistics.median(_figure(line, path) for line in rounds[case])


def spread(values: Sequence[float]) -> str:
    """Return the median of ratios, and the least and the largest of them."""
    found = f"{statistics.median(values):.2f}"
    return found if len(values) == 1 else f"{found} ({min(values):.2f} to {max(values):.2f})"


def judge_outage(store: str, rounds: Rounds) -> list[Judged]:
    """Judge the p99 of clients while a store or its process is stopped."""
    return [
        Judged(
            f"{store} {state}: {name} p99 over that {words}",
            statistics.median(ratios(rounds, state, base, part, "p99")),
            OUTAGE_MAX,
            noise(rounds, part, "p99"),
        )
        for state, (base, words) in BASES.items()
        if state in rounds
        for part, name in LATENCIES.items()
    ]


def judge_instructions(counted: Mapping[str, Mapping[str, float]]) -> list[Judged]:
    """Judge the instructions of a message, by work and case."""
    found = []
    for work, cases in counted.items():
        plain = cases[NO_BACKEND]
        if BASELINE in cases:
            what = f"{work}: instructions without a backend over those of {BASELINE}"
            found.append(Judged(what, plain / cases[BASELINE], NO_RULE_MAX))
        what = f"{work}: instructions with {NO_MATCH} over those without"
        found.append(Judged(what, cases[NO_MATCH] / plain, NO_MATCH_MAX))
    return found


def throughput_rows(results: Rounds) -> Iterator[str]:
    """Yield the table of the stores as Markdown lines, medians."""
    yield "| store | accepted/s | mirrored/s | µs of a row: broker | backend process | store |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in results:
        accepted, mirrored, broker, process, store = (
            middle(results, name, key)
            for key in ("accepted_per_s", "mirrored_per_s", "broker_us", "process_us", "store_us")
        )
        yield (
            f"| {name} | {accepted:,.0f} | {mirrored:,.0f} "
            f"| {broker:.0f} | {process:.0f} | {store:.0f} |"
        )


def instruction_rows(counted: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the table of instructions of the engine for a message."""
    names = list(dict.fromkeys(name for cases in counted.values() for name in cases))
    yield f"| instructions of a message | {' | '.join(names)} |"
    yield "| --- |" + " --- |" * len(names)
    for work, cases in counted.items():
        base = next(iter(cases.values()))
        cells = [f"{cases[name]:,.0f} ({cases[name] / base:.3f})" for name in names]
        yield f"| {work} | {' | '.join(cells)} |"


def price_rows(work: str, results: Rounds) -> Iterator[str]:
    """Yield the table of prices: medians, and ratios to the first case, for one work."""
    yield f"| {work} | messages/s | ratio | broker, CPU µs a message | ratio |"
    yield "| --- | --- | --- | --- | --- |"
    base = next(iter(results))
    for name in results:
        yield (
            f"| {name} | {middle(results, name, 'per_s'):,.0f} "
            f"| {spread(ratios(results, name, base, 'per_s'))} "
            f"| {middle(results, name, 'us'):.2f} "
            f"| {spread(ratios(results, name, base, 'us'))} |"
        )


def outage_rows(store: str, rounds: Rounds) -> Iterator[str]:
    """Yield the table of latencies: medians of the rounds, and ratios of p99."""
    titles = [f"{name} p50, p99, max ms | p99 ratio" for name in LATENCIES.values()]
    yield f"| {store} | {' | '.join(titles)} |"
    yield "| --- | --- | --- | --- | --- |"
    for state in rounds:
        cells = []
        for part in LATENCIES:
            figures = [middle(rounds, state, part, each) for each in ("p50", "p99", "max")]
            cells.append(", ".join(f"{figure:.1f}" for figure in figures))
            cells.append(spread(ratios(rounds, state, ABSENT, part, "p99")))
        yield f"| {state} | {' | '.join(cells)} |"


def _figure(line: Line, path: Sequence[str]) -> float:
    found: Any = line
    for name in path:
        found = found[name]
    return float(found)
