"""What clients know of what a store must have in the end, and what a store has, to be compared.

Pure, and independent of the broker's code: the books hold what was sent and what was acknowledged,
nothing else. What was acknowledged is in the store exactly once; what was not is there at most as
often as it was sent. Read next: `mirror_load` (who writes the books) and `mirrors` (who reads
stores).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

Message: TypeAlias = tuple[str, bytes]  # topic and payload
Filter: TypeAlias = tuple[str, str]  # client and topic filter
NAMED_MAX: Final = 5  # of one fault


class Found:
    """What a store has, read by a client of its own."""

    def __init__(self) -> None:
        self.messages: list[
            tuple[str, str, bytes]
        ] = []  # id, topic, payload; ids sort by time as text
        self.listed: dict[str, list[str]] | None = {}  # ids by topic, None = it has no such list
        self.retained: dict[str, bytes] = {}
        self.subscriptions: dict[Filter, int] = {}
        self.states: dict[str, int] = {}  # of clients
        self.here: set[str] | None = set()  # clients of this broker, None = there is no such list
        self.positions: dict[tuple[str, str], str] = {}  # id by client and topic


class Books:
    """What one client knows; those of several are joined by `joined`.

    Every value has the states that are possible: one if the last change was acknowledged.
    """

    def __init__(self) -> None:
        self.sent: Counter[Message] = Counter()
        self.taken: Counter[Message] = Counter()
        self.subscriptions: dict[Filter, set[int | None]] = {}
        self.retained: dict[str, set[bytes]] = {}
        self.clients: set[str] = set()  # that have an acknowledgement of something durable
        self.last_acked: dict[tuple[str, str], bytes] = {}  # payload by client and topic

    def begin(self, client_id: str, topic_filter: str, qos: int | None) -> None:
        """Note that a subscription may change; None = that it may end."""
        self.subscriptions.setdefault((client_id, topic_filter), {None}).add(qos)

    def settle(self, client_id: str, topic_filter: str, qos: int | None) -> None:
        """Note that a change was acknowledged."""
        self.subscriptions[client_id, topic_filter] = {qos}

    def session_gone(self, client_id: str, *, is_sure: bool) -> None:
        """Note that the session of a client is gone, or may be."""
        for (name, _), possible in self.subscriptions.items():
            if name == client_id:
                if is_sure:
                    possible.clear()
                possible.add(None)


def joined(parts: Iterable[Books]) -> Books:
    """Return the books of clients that share no name and publish to no topic together."""
    whole = Books()
    for part in parts:
        whole.sent += part.sent
        whole.taken += part.taken
        for mine, theirs in (
            (whole.subscriptions, part.subscriptions),
            (whole.retained, part.retained),
            (whole.last_acked, part.last_acked),
        ):
            assert not mine.keys() & theirs.keys(), "two clients keep books of one thing"
            mine.update(theirs)  # type: ignore[arg-type]
        whole.clients |= part.clients
    return whole


class Expectation:
    """What must be in the store, by the books and by what it is told to keep."""

    def __init__(
        self,
        books: Books,
        *,
        readers: Iterable[str],
        online: Iterable[str] = (),
        consumed: str = "",
        positioned: str = "",
    ) -> None:
        """`readers` have acknowledged everything, `online` are connected.

        Topics that begin with `consumed` lose a message with its acknowledgement; for those that
        begin with `positioned` the store keeps how far each client is.
        """
        self.books: Final = books
        self.readers: Final = sorted(readers)
        self.online: Final = frozenset(online)
        self.consumed: Final = consumed
        self.positioned: Final = positioned

    def differences(self, found: Found) -> list[str]:
        """Return what the store has too little, too much or otherwise, a line for each kind."""
        kinds = (
            ("messages", self._messages(found)),
            ("lists of topics", self._lists(found)),
            ("retained", self._retained(found)),
            ("subscriptions", self._subscriptions(found)),
            ("clients", self._clients(found)),
            ("positions", self._positions(found)),
        )
        lines = []
        for name, faults in kinds:
            all_of_it = list(faults)
            if all_of_it:
                lines.append(f"{name}: {len(all_of_it)}: {'; '.join(all_of_it[:NAMED_MAX])}")
        return lines

    def _is_consumed(self, topic: str) -> bool:
        return bool(self.consumed) and topic.startswith(self.consumed)

    def _messages(self, found: Found) -> Iterator[str]:
        copies = Counter((topic, payload) for _, topic, payload in found.messages)
        ids = Counter(name for name, _, _ in found.messages)
        yield from (f"the id {name} {count} times" for name, count in ids.items() if count > 1)
        books = self.books
        for message in books.sent.keys() | copies.keys():
            count, least, most = copies[message], books.taken[message], books.sent[message]
            if self._is_consumed(message[0]):
                least = most = 0
            if not least <= count <= most:
                yield f"{message} {count} times, sent {most}, acknowledged {least}"

    def _lists(self, found: Found) -> Iterator[str]:
        if found.listed is None:
            return
        wanted: dict[str, set[str]] = defaultdict(set)
        for name, topic, _ in found.messages:
            wanted[topic].add(name)
        for topic in wanted.keys() | found.listed.keys():
            names = found.listed.get(topic, [])
            if len(names) != len(set(names)):
                yield f"{topic}: an id twice"
            if set(names) != wanted[topic]:
                yield f"{topic}: {sorted(set(names) ^ wanted[topic])[:2]} on one side only"

    def _retained(self, found: Found) -> Iterator[str]:
        for topic in self.books.retained.keys() | found.retained.keys():
            payload = found.retained.get(topic, b"")
            possible = self.books.retained.get(topic, {b""})
            if payload not in possible:
                yield f"{topic} is {payload!r}, possible are {sorted(possible)}"

    def _subscriptions(self, found: Found) -> Iterator[str]:
        for each in self.books.subscriptions.keys() | found.subscriptions.keys():
            qos = found.subscriptions.get(each)
            possible = self.books.subscriptions.get(each, {None})
            if qos not in possible:
                yield f"{each} has QoS {qos}, possible are {possible}"

    def _clients(self, found: Found) -> Iterator[str]:
        for name in self.books.clients - found.states.keys():
            yield f"{name} is unknown"
        for name, state in found.states.items():
            if state != int(name in self.online):
                yield f"{name} has state {state}"
        if found.here is not None and found.here != self.online:
            yield f"at this broker: {sorted(found.here ^ self.online)[:NAMED_MAX]} more or less"

    def _positions(self, found: Found) -> Iterator[str]:
        newest: dict[str, str] = {}
        payloads = {}
        for name, topic, payload in found.messages:
            payloads[name] = payload
            if topic.startswith(self.positioned):
                newest[topic] = max(name, newest.get(topic, ""))
        wanted = {
            (reader, topic): name for reader in self.readers for topic, name in newest.items()
        }
        for each in wanted.keys() | (found.positions.keys() - self.books.last_acked.keys()):
            if found.positions.get(each) != wanted.get(each):
                yield f"{each} is at {found.positions.get(each)}, not {wanted.get(each)}"
        for each, payload in self.books.last_acked.items():
            there = payloads.get(found.positions.get(each, ""))
            if there != payload:
                yield f"{each} is at {there!r}, not {payload!r}"
