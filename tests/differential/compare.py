"""Compares what two brokers did in one sequence, and knows the differences that are explained.

Only the first difference of a sequence counts if it leaves the two in different states. Read next:
`tests/differential/differences.toml`.
"""

import asyncio
import re
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.differential.player import Player
from tests.differential.sequences import Sequence, sequence

EXPLANATIONS: Final = Path(__file__).with_name("differences.toml")
SLOW: Final = 4.0  # how much more patience a second look has
ATTEMPTS: Final = 3
AT_ONCE: Final = 24
SLOW_AT_ONCE: Final = 4
# Items of a difference that change nothing about what may come later.
PASSING: Final = re.compile(r"..?: (DISCONNECT|PUBCOMP|PUBACK|PUBREC|UNSUBACK) .*")


class Difference(NamedTuple):
    """One step in which the brokers did not do the same: what only one of them did, what both."""

    number: int
    version: int
    step: str
    holdfast: tuple[str, ...]
    other: tuple[str, ...]
    both: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"sequence {self.number}, v{self.version}, {self.step}\n"
            f"  only holdfast:  {', '.join(self.holdfast) or 'nothing'}\n"
            f"  only mosquitto: {', '.join(self.other) or 'nothing'}"
        )


class Explanation(NamedTuple):
    """Why a class of differences is there, and who is right."""

    name: str
    steps: tuple[re.Pattern[str], ...]
    after: str  # what the sequence must have had, "" = anything
    versions: tuple[int, ...]
    holdfast: tuple[re.Pattern[str], ...]
    other: tuple[re.Pattern[str], ...]
    both: tuple[re.Pattern[str], ...]
    perhaps: tuple[re.Pattern[str], ...]
    right: str
    statement: str
    why: str

    def explain(self, difference: Difference) -> Difference:
        """Return what is left of a difference: all of it, if this is not about it.

        It is if each pattern of both sides, and each for what both did, finds something; then
        everything that those of the sides, or of `perhaps`, find is explained.
        """
        if difference.version not in self.versions or not self._is_about(difference.step):
            return difference
        for patterns, items in (
            (self.holdfast, difference.holdfast),
            (self.other, difference.other),
            (self.both, difference.both),
        ):
            if not all(any(_matches(pattern, item) for item in items) for pattern in patterns):
                return difference
        return difference._replace(
            holdfast=_without(difference.holdfast, (*self.holdfast, *self.perhaps)),
            other=_without(difference.other, (*self.other, *self.perhaps)),
        )

    def _is_about(self, step: str) -> bool:
        """Is this the step, and has the sequence had what it must have had?"""
        name, _, notes = step.partition(" {")
        if self.after and self.after not in notes.rstrip("}").split(", "):
            return False
        return not self.steps or any(each.fullmatch(name) for each in self.steps)


def _matches(pattern: re.Pattern[str], item: str) -> bool:
    """Match what comes after the name of the connection."""
    return pattern.fullmatch(item.partition(": ")[2]) is not None


def _without(items: tuple[str, ...], patterns: tuple[re.Pattern[str], ...]) -> tuple[str, ...]:
    return tuple(item for item in items if not any(_matches(each, item) for each in patterns))


def load_explanations(path: Path = EXPLANATIONS) -> list[Explanation]:
    """Read the file of differences."""
    with open(path, "rb") as file:
        entries = tomllib.load(file)["difference"]

    def patterns(entry: dict[str, Any], key: str) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(text) for text in entry.get(key, ()))

    return [
        Explanation(
            entry["name"],
            patterns(entry, "steps"),
            entry.get("after", ""),
            tuple(entry.get("versions", (4, 5))),
            patterns(entry, "holdfast"),
            patterns(entry, "mosquitto"),
            patterns(entry, "both"),
            patterns(entry, "perhaps"),
            entry["right"],
            entry["statement"],
            entry["why"],
        )
        for entry in entries
    ]


def compare(steps: Sequence, one: list[list[str]], other: list[list[str]]) -> list[Difference]:
    """Return the differences of a sequence; what comes behind a lasting one says nothing."""
    found: list[Difference] = []
    for step, mine, theirs in zip(steps.steps, one, other, strict=True):
        left, right = Counter(mine), Counter(theirs)
        if left == right:
            continue
        only = [
            tuple(item.replace(f"{steps.prefix}/", "") for item in sorted(side.elements()))
            for side in (left - right, right - left, left & right)
        ]
        found.append(Difference(steps.number, step.version, step.name, *only))
        if not all(PASSING.fullmatch(item) for item in only[0] + only[1]):
            break
    return found


class Comparison:
    """Plays sequences against two brokers and sorts what differs; counts steps."""

    def __init__(
        self, holdfast_port: int, other_port: int, explanations: list[Explanation]
    ) -> None:
        self.steps = 0
        self.explained: list[tuple[list[Explanation], Difference]] = []
        self.unexplained: list[Difference] = []
        self._ports = holdfast_port, other_port
        self._explanations = explanations
        self._second_look = asyncio.Semaphore(SLOW_AT_ONCE)

    def unused(self) -> list[str]:
        """Return the names of the explanations that nothing needed."""
        used = {each.name for explanations, _ in self.explained for each in explanations}
        return [each.name for each in self._explanations if each.name not in used]

    async def run(self, numbers: Iterable[int]) -> None:
        """Play these, many at a time."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def play(number: int) -> list[Difference]:
            async with gate:
                return await self._look(number, 0)

        await asyncio.gather(*(self._judge(number, play) for number in numbers))

    async def _judge(self, number: int, play: Callable[[int], Awaitable[list[Difference]]]) -> None:
        """Play one; what is not explained has to be there in the next attempts, too.

        A busy machine makes differences of its own.
        """
        self.steps += len(sequence(number).steps)
        found = await play(number)
        for attempt in range(1, ATTEMPTS):
            if all(self._explain(each) for each in found):
                break
            async with self._second_look:
                found = await self._look(number, attempt)
        for each in found:
            explanations = self._explain(each)
            if explanations:
                self.explained.append((explanations, each))
            else:
                self.unexplained.append(each)

    def _explain(self, difference: Difference) -> list[Explanation]:
        """Return what explains all of a difference, nothing if something of it is left."""
        used: list[Explanation] = []
        for explanation in self._explanations:
            rest = explanation.explain(difference)
            if rest != difference:
                used.append(explanation)
                difference = rest
        return used if not difference.holdfast and not difference.other else []

    async def _look(self, number: int, attempt: int) -> list[Difference]:
        one = sequence(number, attempt)
        slow = SLOW if attempt else 1.0
        mine, theirs = await asyncio.gather(*(Player(p, slow).play(one) for p in self._ports))
        return compare(one, mine, theirs)
