"""Who keeps which generation of the log: a generation goes only when nobody needs a message of it.

Made of the sets of generations that a census has found; each set is a number with a bit for each
generation. Read next: `broker.operations.owing.census`, `broker.operations.owing.report`.
"""

import heapq
from typing import Final

from storage.log.message_log import GenerationReport

NAMES_MAX: Final = 3  # of those that need a generation
SETS_MAX: Final = 4096  # that are kept before they are shared out to the generations


class Needing:
    """Those that need a generation, or the same ones."""

    __slots__ = ("_largest", "count")

    def __init__(self) -> None:
        self.count: int = 0
        self._largest: list[tuple[int, str]] = []

    def add(self, messages: int, name: str) -> None:
        """Add one that is owed so many messages in all."""
        self.count += 1
        if len(self._largest) < NAMES_MAX:
            heapq.heappush(self._largest, (messages, name))
        else:
            heapq.heappushpop(self._largest, (messages, name))

    def merge(self, other: "Needing") -> None:
        """Add all of the others, none of whom is among these."""
        self.count += other.count
        self._largest = heapq.nlargest(NAMES_MAX, self._largest + other._largest)
        heapq.heapify(self._largest)

    @property
    def largest(self) -> list[tuple[int, str]]:
        """Return (messages that it is owed in all, name) of those that are owed most."""
        return sorted(self._largest, key=lambda each: (-each[0], each[1]))


class Needs:
    """Who needs which generations, of one kind: sessions, groups, or external stores."""

    def __init__(self) -> None:
        self._sets: Final[dict[int, Needing]] = {}
        self._shared: Final[dict[int, Needing]] = {}  # by the place of a generation

    def add(self, generations: int, messages: int, name: str) -> None:
        """Add one that needs the generations whose bits are set."""
        if not generations:
            return
        needing = self._sets.get(generations)
        if needing is None:
            if len(self._sets) >= SETS_MAX:
                self._share()
            needing = self._sets[generations] = Needing()
        needing.add(messages, name)

    def of(self, index: int) -> Needing:
        """Return those that need the generation at a place, the oldest is at 0."""
        self._share()
        return self._shared.get(index) or Needing()

    def _share(self) -> None:
        for generations, needing in self._sets.items():
            while generations:
                lowest = generations & -generations
                generations ^= lowest
                index = lowest.bit_length() - 1
                self._shared.setdefault(index, Needing()).merge(needing)
        self._sets.clear()


class Pinned:
    """One generation, and who needs it."""

    __slots__ = ("backends", "groups", "report", "sessions", "unreadable")

    def __init__(
        self,
        report: GenerationReport,
        sessions: Needing,
        groups: Needing,
        backends: Needing,
        unreadable: int,
    ) -> None:
        self.report: Final = report
        self.sessions: Final = sessions
        self.groups: Final = groups
        self.backends: Final = backends
        # Sessions and others that cannot be read: what they need is not known, so it stays.
        self.unreadable: Final = unreadable

    @property
    def is_needed(self) -> bool:
        """Return whether somebody needs it."""
        held = self.sessions.count + self.groups.count + self.backends.count
        return held + self.unreadable > 0
