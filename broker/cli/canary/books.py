"""What a canary was promised and what it got: the problems, each once. No clock and no socket.

Messages are counted from 1 for each QoS. Times are seconds of any clock that does not jump.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

TOPICS_QOS: Final = (1, 2)


@dataclass
class Sums:
    """Totals for the summary and for Prometheus."""

    published: int = 0
    acknowledged: int = 0
    received: int = 0
    lost: int = 0
    doubled: int = 0
    problems: int = 0
    connections: int = 0
    round_trip_s: float = 0.0  # of the newest message
    round_trip_max_s: float = 0.0


@dataclass
class Reader:
    """A client that subscribes, and what it still waits for."""

    name: str
    connected_at: float | None = None
    # (qos, number) -> when it was acknowledged to its publisher
    waits: dict[tuple[int, int], float] = field(default_factory=dict)
    got: dict[tuple[int, int], float] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)


class Books:
    """Compares what was acknowledged with what arrives."""

    def __init__(self, readers: tuple[str, ...], timeout_s: float) -> None:
        self.sums = Sums()
        self._timeout_s: Final = timeout_s
        self._readers: Final = {name: Reader(name) for name in readers}
        self._sent: Final[dict[tuple[int, int], float]] = {}  # not acknowledged yet
        self._sent_at: Final[dict[tuple[int, int], float]] = {}  # not seen by all readers yet
        self._prompt: Final = readers[0]  # the one that is always there: its times are told
        self._late: Final[set[tuple[int, int]]] = set()

    def published(self, qos: int, number: int, now: float) -> None:
        """Note that a message is sent."""
        self.sums.published += 1
        self._sent[qos, number] = self._sent_at[qos, number] = now

    def acknowledged(self, qos: int, number: int, now: float) -> None:
        """Note that a message was acknowledged: every reader must get it."""
        key = qos, number
        if self._sent.pop(key, None) is None:
            return
        self._late.discard(key)
        self.sums.acknowledged += 1
        for reader in self._readers.values():
            if key not in reader.got:
                reader.waits[key] = now

    def forget_unanswered(self) -> None:
        """Note that the publisher has lost its session: what has no answer may be gone."""
        self._sent.clear()
        self._late.clear()

    def refused(self, qos: int, number: int) -> None:
        """Note that a message was refused: nobody gets it."""
        self._sent.pop((qos, number), None)

    def forget(self, name: str) -> None:
        """Note that a reader has lost its session: what it waits for is lost."""
        reader = self._readers[name]
        self.sums.lost += len(reader.waits)
        reader.waits.clear()

    def connected(self, name: str, now: float) -> None:
        """Note that a reader is connected: from now on it can get what it waits for."""
        self._readers[name].connected_at = now

    def disconnected(self, name: str) -> None:
        """Note that a reader is away."""
        self._readers[name].connected_at = None

    def received(self, name: str, qos: int, number: int, now: float) -> Iterator[str]:
        """Note that a reader got a message; yield what is wrong with that."""
        reader, key = self._readers[name], (qos, number)
        self.sums.received += 1
        reader.waits.pop(key, None)
        if key in reader.got:
            # At QoS 1 it may: its publisher has sent it again, or the broker has.
            if qos == 2:
                self.sums.doubled += 1
                yield f"{name}: message {number} at QoS {qos} came twice"
            return
        if number < reader.newest.get(qos, 0):
            yield (
                f"{name}: message {number} at QoS {qos} came behind message {reader.newest[qos]}"
            )
        reader.newest[qos] = max(number, reader.newest.get(qos, 0))
        reader.got[key] = now
        sent = self._sent_at.get(key)
        if sent is not None and name == self._prompt:
            self.sums.round_trip_s = now - sent
            self.sums.round_trip_max_s = max(self.sums.round_trip_max_s, now - sent)

    def overdue(self, now: float, *, publisher_since: float | None) -> Iterator[str]:
        """Yield what should have come by now. `publisher_since`: connected since then."""
        for reader in self._readers.values():
            since = reader.connected_at
            if since is None:
                continue
            for key, acknowledged in list(reader.waits.items()):
                if now - max(since, acknowledged) > self._timeout_s:
                    del reader.waits[key]
                    self.sums.lost += 1
                    yield (
                        f"{reader.name}: message {key[1]} at QoS {key[0]} was acknowledged and "
                        f"did not come within {self._timeout_s:g} s"
                    )
        if publisher_since is not None:
            for key, sent in self._sent.items():
                if key not in self._late and now - max(publisher_since, sent) > self._timeout_s:
                    self._late.add(key)
                    yield (
                        f"message {key[1]} at QoS {key[0]} was not acknowledged within "
                        f"{self._timeout_s:g} s"
                    )
        self._tidy(now)

    def waiting(self) -> int:
        """Return how many messages are owed to readers."""
        return sum(len(reader.waits) for reader in self._readers.values())

    def unanswered(self) -> int:
        """Return how many messages have no answer yet."""
        return len(self._sent)

    def _tidy(self, now: float) -> None:
        """Forget what nobody will be asked about again."""
        kept_s = 10 * self._timeout_s
        for key, sent in list(self._sent_at.items()):
            owed = key in self._sent or any(key in each.waits for each in self._readers.values())
            if not owed and now - sent > kept_s:
                del self._sent_at[key]
        for reader in self._readers.values():
            for key, at in list(reader.got.items()):
                if now - at <= kept_s:
                    break
                del reader.got[key]
