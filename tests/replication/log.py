"""The log of the simulation: one sequence of records, and the lines of each node to it.

It promises what Kafka promises: an acknowledged record, and all before it, stay; one that was only
read may be lost with the machines that had it, unless it was acknowledged; whether an append that
failed is in the log is not known. It can also break its promise (`lose` with `promised=True`), as
after a power cut of all its machines. Read next: `tests.replication.world`.
"""

from collections import deque
from random import Random
from typing import Final

from storage.replicated.log_port import Acked, CaughtUp, Event, Missing, Read, Shrunk, Unknown


class SharedLog:
    """What the machines of the log keep."""

    def __init__(self) -> None:
        self.first: int = 0  # place of the first record that is kept
        self.records: list[bytes] = []
        self.promised: int = 0  # everything before this place was acknowledged
        self.lines: Final[list[Line]] = []
        self.lost: int = 0  # how often records were lost

    @property
    def end(self) -> int:
        """Return the place of the next record."""
        return self.first + len(self.records)

    def add(self, data: bytes) -> None:
        """Append a record."""
        self.records.append(data)

    def lose(self, count: int, *, promised: bool = False) -> int:
        """Lose up to `count` records at the end; return how many."""
        floor = self.first if promised else max(self.first, self.promised)
        gone = max(0, min(count, self.end - floor))
        if gone:
            del self.records[len(self.records) - gone :]
            self.promised = min(self.promised, self.end)
            self.lost += 1
            for line in self.lines:
                line.shrunk(self.end)
        return gone

    def delete_before(self, place: int) -> None:
        """Delete what is before a place."""
        place = min(place, self.promised)
        if place > self.first:
            del self.records[: place - self.first]
            self.first = place


class Line:
    """How one process of a node reaches the log."""

    def __init__(self, shared: SharedLog, random: Random, place: int) -> None:
        self.is_cut: bool = False
        self.waiting: Final[deque[tuple[bytes, int | None]]] = deque()
        self._shared: Final = shared
        self._random: Final = random
        self._place: int = place
        self._answers: deque[Event] = deque()
        self._events: list[Event] = []
        shared.lines.append(self)
        if place > shared.end:
            self._events.append(Shrunk(shared.end))

    # What a replica calls.

    def append(self, data: bytes, token: int | None = None) -> None:
        """Send a record."""
        self.waiting.append((data, token))

    def read_from(self, place: int) -> None:
        """Read on from another place."""
        self._place = place
        self._events = [each for each in self._events if not isinstance(each, Read | CaughtUp)]

    def take(self) -> list[Event]:
        """Return what happened."""
        events, self._events = self._events, []
        return events

    def delete_before(self, place: int) -> None:
        """Delete what nobody needs."""
        self._shared.delete_before(place)

    # What the world does.

    def shrunk(self, end: int) -> None:
        """The log has lost what is behind `end`."""
        if self._place > end:
            self._place = end
            self._events.append(Shrunk(end))

    def deliver(self, trouble: float) -> None:
        """Let the oldest record reach the log, or get lost; its answer comes later, or never."""
        if not self.waiting:
            return
        data, token = self.waiting.popleft()
        luck = self._random.random()
        shared = self._shared
        if luck < trouble / 2:  # it did not get there
            if token is not None:
                self._answers.append(Unknown(token, "timed out"))
            return
        shared.add(data)
        if luck < trouble:  # it did, and nobody says so
            if token is not None:
                self._answers.append(Unknown(token, "timed out"))
            return
        if token is not None:
            shared.promised = max(shared.promised, shared.end)
            self._answers.append(Acked(token))

    def answer(self, count: int) -> None:
        """Let the oldest answers arrive."""
        for _ in range(min(count, len(self._answers))):
            self._events.append(self._answers.popleft())

    def read(self, count: int) -> None:
        """Read up to `count` records."""
        shared = self._shared
        if self._place < shared.first:
            self._events.append(Missing(shared.first))
            return
        self.shrunk(shared.end)
        for _ in range(count):
            if self._place == shared.end:
                self._events.append(CaughtUp(shared.end))
                return
            self._events.append(Read(self._place, shared.records[self._place - shared.first]))
            self._place += 1
