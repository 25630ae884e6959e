"""Reads what a Cassandra store has, for a comparison with the broker.

Tables are read in pages. Of `msg` first the topics, then of each topic what is as new as the
window, which is at the beginning of its partition: older messages cost nothing. Read next:
`broker.backends.comparing.listing`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from broker.backends.cassandra_actions import CLIENT as CLIENT_TABLE
from broker.backends.cassandra_actions import MSG, RETAIN, SUB
from broker.backends.comparing import digests
from broker.backends.comparing.listing import (
    CLIENT,
    MESSAGE,
    NOT_OURS,
    RETAINED,
    SUBSCRIPTION,
    Entry,
    Window,
    shown,
)
from broker.backends.message_ids import message_id, number_of_id, split_number

PAGE_ROWS: Final = 1000  # without payloads
# Payloads that are held at once: pages of so many, of so many topics, or of retained messages.
PAGE_MESSAGES: Final = 32
TOPICS_AT_ONCE: Final = 8
RETAINED_AT_ONCE: Final = 32
_BODY: Final = "msgid, sender, qos, retain, payload, toUnixTimestamp(arrived) AS at"

_Asked = TypeVar("_Asked")
# Sends a statement with its values at once, and returns its rows, in pages of so many.
Read: TypeAlias = Callable[[str, Sequence[object], int], Iterator[Any]]


class CassandraListing:
    """One pass over the tables of a backend."""

    def __init__(self, read: Read, name_of: Callable[[str], str], window: Window) -> None:
        """`name_of` returns how a statement names a table."""
        self._read: Final = read
        self._name_of: Final = name_of
        self._window: Final = window

    def entries(self) -> Iterator[Entry]:
        """Yield what there is. Raises what `read` raises."""
        kinds = self._window.kinds
        if MESSAGE in kinds:
            yield from self._messages()
        if RETAINED in kinds:
            yield from self._retained()
        if SUBSCRIPTION in kinds:
            yield from self._subscriptions()
        if CLIENT in kinds:
            yield from self._clients()

    def _messages(self) -> Iterator[Entry]:
        table = self._name_of(MSG)
        newer = f"SELECT {_BODY} FROM {table} WHERE topic = ? AND msgid >= ?"
        oldest = message_id(self._window.start_ms, 0, 0)
        topics = (row.topic for row in self._all(f"SELECT DISTINCT topic FROM {table}"))

        def ask(topic: str) -> Iterator[Any]:
            return self._read(newer, [topic, oldest], PAGE_MESSAGES)

        for topic, rows in _ahead(topics, ask, TOPICS_AT_ONCE):
            for row in rows:
                place = f"{MSG} {shown(topic.encode(), row.msgid.encode())}"
                number = self._our_number(row.msgid)
                if number is None:
                    yield Entry(NOT_OURS, place)
                    continue
                yield Entry(MESSAGE, place, number=number, digest=_message(number, topic, row))

    def _retained(self) -> Iterator[Entry]:
        body = f"SELECT {_BODY} FROM {self._name_of(MSG)} WHERE topic = ? AND msgid = ?"
        kept = self._all(f"SELECT topic, msgid FROM {self._name_of(RETAIN)}")

        def ask(row: Any) -> Iterator[Any]:
            if self._our_number(row.msgid or "") is None:
                return iter(())
            return self._read(body, [row.topic, row.msgid], 1)

        for row, bodies in _ahead(kept, ask, RETAINED_AT_ONCE):
            topic = row.topic.encode()
            place = f"{RETAIN} {shown(topic)}"
            number = self._our_number(row.msgid or "")
            if number is None:
                yield Entry(NOT_OURS, place)
                continue
            found = 0  # an id without its message
            for told in bodies:
                found = _retained(number, topic, told)
            name = digests.name_of(RETAINED, topic)
            yield Entry(RETAINED, place, name=name, text=shown(topic), digest=found)

    def _subscriptions(self) -> Iterator[Entry]:
        for row in self._all(f"SELECT clientid, topic, qos FROM {self._name_of(SUB)}"):
            names = row.clientid.encode(), row.topic.encode()
            yield Entry(
                SUBSCRIPTION,
                f"{SUB} {shown(*names)}",
                name=digests.name_of(SUBSCRIPTION, *names),
                text=shown(*names),
                digest=digests.subscription_digest(*names, _number(row.qos)),
            )

    def _clients(self) -> Iterator[Entry]:
        columns = "clientid, node, state, toUnixTimestamp(connected) AS at"
        for row in self._all(f"SELECT {columns} FROM {self._name_of(CLIENT_TABLE)}"):
            if row.node != self._window.node or row.state != 1:
                continue
            client_id = row.clientid.encode()
            yield Entry(
                CLIENT,
                f"{CLIENT_TABLE} {shown(client_id)}",
                name=digests.name_of(CLIENT, client_id),
                text=shown(client_id),
                digest=digests.presence_digest(client_id, _seconds(row.at)),
            )

    def _all(self, text: str) -> Iterator[Any]:
        return self._read(text, [], PAGE_ROWS)

    def _our_number(self, name: str) -> int | None:
        """Return the number of an id of our node, None for any other text."""
        try:
            number = number_of_id(name)
        except ValueError:
            return None
        return number if split_number(number)[1] == self._window.node_number else None


def _ahead(
    questions: Iterable[_Asked], ask: Callable[[_Asked], Iterator[Any]], at_once: int
) -> Iterator[tuple[_Asked, Iterator[Any]]]:
    """Yield each question with its rows; so many questions are asked ahead of the answers."""
    asked: deque[tuple[_Asked, Iterator[Any]]] = deque()
    for each in questions:
        asked.append((each, ask(each)))
        if len(asked) >= at_once:
            yield asked.popleft()
    yield from asked


def _message(number: int, topic: str, row: Any) -> int:
    """Return the digest of a message, 0 if something is missing."""
    if row.sender is None or row.payload is None:
        return 0
    return digests.message_digest(
        number,
        topic.encode(),
        row.sender.encode(),
        _number(row.qos),
        row.payload,
        retain=row.retain == 1,
        accepted_s=_seconds(row.at),
    )


def _retained(number: int, topic: bytes, row: Any) -> int:
    if row.sender is None or row.payload is None:
        return 0
    sender, qos = row.sender.encode(), _number(row.qos)
    return digests.retained_digest(number, topic, sender, qos, row.payload)


def _number(value: int | None) -> int:
    """Return a number, -1 for none and for what no digest takes."""
    return -1 if value is None or value < 0 else value


def _seconds(at_ms: int | None) -> int:
    return -1 if at_ms is None else at_ms // 1000
