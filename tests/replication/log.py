"""The log of the simulation: one sequence of records, and the lines of each node to it.

It promises what Kafka promises: an acknowledged record, and all before it, stay; one that was only
read may be lost with the machines that had it, unless it was acknowledged, which may come long
after it can be read; whether an append that
failed is in the log is not known, and it may get there much later. Places have gaps. It can also
break its promise (`lose` with `promised=True`), as after a power cut of all its machines.

It follows the chain itself, so that a test knows which records count without asking a replica.
Read next: `tests.replication.world`.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from storage.replicated.log_port import Acked, CaughtUp, Event, Missing, Read, Shrunk, Unknown
from storage.replicated.record import CHAINED, Position, after, decode
from storage.replicated.record import counts as continues  # planted bugs replace the other name

GHOSTS_MAX: Final = 20


class SharedLog:
    """What the machines of the log keep."""

    def __init__(self, random: Random, gaps: float = 0.0, hesitation: float = 0.0) -> None:
        self.first: int = 0  # place of the first record that is kept
        self.records: list[bytes | None] = []  # None = a place without a record
        self.chain: list[tuple[int, Position]] = []  # what counts, by its place
        self.late: Final[list[bytes]] = []  # what may get here late
        self.on_delete: Callable[[int], None] = lambda _: None
        self._random: Final = random
        self._gaps: Final = gaps
        self.hesitation: float = hesitation  # how often a record can be read before it is kept
        self.unkept: Final[deque[tuple[Line, int, int]]] = deque()
        self.promised: int = 0  # everything before this place was acknowledged
        self.lost_positions: Final[set[Position]] = set()  # of what counted
        self.lines: Final[list[Line]] = []
        self.lost: int = 0  # how often records were lost

    @property
    def end(self) -> int:
        """Return the place of the next record."""
        return self.first + len(self.records)

    def add(self, data: bytes) -> None:
        """Append a record."""
        if self._gaps and self._random.random() < self._gaps:
            self.records.append(None)
        record = decode(data)
        end = self.chain[-1][1] if self.chain else Position()
        if record.kind in CHAINED and continues(record, end):
            self.chain.append((self.end, after(record, data)))
        self.records.append(data)

    def keeps(self, position: Position) -> bool:
        """Return whether the record that ends this position counts, and was promised."""
        return any(each == position and at < self.promised for at, each in reversed(self.chain))

    @property
    def has_unkept(self) -> bool:
        """Return whether the last record that counts may still be lost."""
        return bool(self.chain) and self.may_lose(self.chain[-1][0])

    def may_lose(self, place: int) -> bool:
        """Return whether a record was not promised."""
        return place >= self.promised and place > self.first

    def delay(self, data: bytes) -> None:
        """Let a record that did not arrive do so much later, perhaps."""
        if len(self.late) < GHOSTS_MAX:
            self.late.append(data)

    def arrive(self) -> None:
        """Let one of those arrive."""
        if self.late:
            self.add(self.late.pop(self._random.randrange(len(self.late))))

    def keep(self, line: "Line", token: int, place: int) -> None:
        """Promise everything up to a place, and say so."""
        self.promised = max(self.promised, place + 1)
        line.answers.append(Acked(token, place))

    def keep_later(self, line: "Line", token: int, place: int) -> None:
        """Promise that some time, if the log has not lost it before."""
        self.unkept.append((line, token, place))

    def keep_some(self) -> None:
        """Promise the oldest of those."""
        for _ in range(self._random.randint(1, len(self.unkept))):
            self.keep(*self.unkept.popleft())

    def lose(self, count: int, *, promised: bool = False) -> int:
        """Lose up to `count` records at the end; return how many."""
        # The first place of a log that was deleted before it is the oldest that nodes remember.
        floor = max(self.first + (self.first > 0), 0 if promised else self.promised)
        gone = max(0, min(count, self.end - floor))
        if gone:
            del self.records[len(self.records) - gone :]
            self.promised = min(self.promised, self.end)
            self.lost += 1
            for line, token, place in list(self.unkept):
                if place >= self.end:
                    self.unkept.remove((line, token, place))
                    line.answers.append(Unknown(token, "lost"))
            while self.chain and self.chain[-1][0] >= self.end:
                self.lost_positions.add(self.chain.pop()[1])
            for line in self.lines:
                line.shrunk(self.end)
        return gone

    def delete_before(self, place: int) -> None:
        """Delete what is before a place."""
        if self.first < place <= self.promised:
            self.on_delete(place)
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
        self.answers: Final[deque[Event]] = deque()
        self._events: list[Event] = []
        shared.lines.append(self)
        self._cut_at: int | None = None  # the log ended there since this line last read
        if place > shared.end:
            self._cut_at = shared.end

    # What a replica calls.

    def append(self, data: bytes, token: int | None = None) -> None:
        """Send a record."""
        self.waiting.append((data, token))

    def news(self) -> list[Event]:
        """Return what `take` would return."""
        return list(self._events)

    def read_from(self, place: int) -> None:
        """Read on from another place."""
        self._place = min(place, self._shared.end)
        self._cut_at = self._shared.end if place > self._shared.end else None
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
        """The log has lost what is behind `end`; it is told when this line reads next."""
        if self._place > end:
            self._place = self._cut_at = end

    def deliver(self, trouble: float) -> None:
        """Let the oldest record reach the log, or get lost; its answer comes later, or never."""
        if not self.waiting:
            return
        data, token = self.waiting.popleft()
        luck = self._random.random()
        shared = self._shared
        if luck < trouble / 2:  # it did not get there
            if token is not None:
                self.answers.append(Unknown(token, "timed out"))
            if self._random.random() < 0.5:
                shared.delay(data)
            return
        shared.add(data)
        if luck < trouble * 0.7:
            shared.delay(data)  # it comes twice
        if luck < trouble:  # it did, and nobody says so
            if token is not None:
                self.answers.append(Unknown(token, "timed out"))
            return
        if token is None or luck < trouble * 1.2:  # nobody ever says so
            return
        if shared.hesitation and self._random.random() < shared.hesitation:
            shared.keep_later(self, token, shared.end - 1)
        else:
            shared.keep(self, token, shared.end - 1)

    def answer(self, count: int) -> None:
        """Let the oldest answers arrive."""
        for _ in range(min(count, len(self.answers))):
            self._events.append(self.answers.popleft())

    def read(self, count: int) -> None:
        """Read up to `count` records."""
        shared = self._shared
        if self._cut_at is not None:
            self._events.append(Shrunk(self._cut_at, shared.first))
            self._cut_at = None
            return
        if self._place < shared.first:
            self._events.append(Missing(shared.first))
            return
        for _ in range(count):
            if self._place == shared.end:
                self._events.append(CaughtUp(shared.end))
                return
            data = shared.records[self._place - shared.first]
            if data is not None:
                self._events.append(Read(self._place, data))
            self._place += 1
