"""What a store is asked for sessions, and its answers: JSON between the broker and the process.

The broker turns a request of the engine into a question, and a page of the answer into messages.
The process finds the messages; `is_ours` says which of them the broker sends a session itself.
Pure. Read next: `broker.backends.redis.inbox`, `session.delivery.fetching.inbox`.
"""

import binascii
from collections.abc import Iterable
from typing import Any, Final

from broker.backends.message_ids import ALPHABET, CHARACTERS, UNSTORED, decode_id, message_id
from mqtt.message import Message
from session.delivery.fetching.inbox import FetchedMessage
from session.delivery.fetching.requests import FetchRequest

# Bytes of the messages of one answer; the last one may exceed them.
ANSWER_BYTES_MAX: Final = 256 << 10
# Rows of one client; a store that has more of them is not asked again.
SUBSCRIPTIONS_MAX: Final = 10_000
# A longer payload is not delivered: the broker's own largest packet.
PAYLOAD_BYTES_MAX: Final = 16 << 20
_QOS_MAX: Final = 2
_SECONDS_MAX: Final = 1 << 40
_MS_MAX: Final = 1000 * _SECONDS_MAX
_PUBLISHER_BYTES_MAX: Final = 65_535  # of a text in MQTT


class Question:
    """What one session asks a store for, as the process knows it."""

    __slots__ = (
        "after",
        "began_ms",
        "client_id",
        "count",
        "kind",
        "not_before_ms",
        "number",
        "run",
        "since",
        "topic",
    )

    def __init__(self, told: dict[str, Any]) -> None:
        self.number: Final[int] = told["fetch"]
        self.run: Final[int] = told["run"]
        self.kind: Final[int] = told["kind"]
        self.client_id: Final[str] = told["client_id"]
        self.topic: Final[str] = told["topic"]
        self.after: Final[str] = told["after"]
        self.count: Final[int] = told["count"]
        self.since: Final[int] = told["since"]
        self.began_ms: Final[int] = told["began_ms"]
        self.not_before_ms: Final[int] = told["not_before_ms"]

    def is_ours(self, text: str, node: int) -> bool:
        """Does the session get the message with this id from this broker itself, or never?"""
        try:
            parts = decode_id(text)
        except ValueError:
            return False
        return self.comes_from_here(parts, node)

    def comes_from_here(self, parts: tuple[int, int, int], node: int) -> bool:
        """The same for the parts of an id: microseconds since 1970, node, and the rest."""
        at_us, of_node, rest = parts
        if of_node != node or at_us // 1000 < self.began_ms:
            return False
        # What is not in our log was sent at once, to those who were there: nobody else has it owed.
        return rest > self.since or bool(rest & UNSTORED)

    def is_written_here(self, text: str, node: int) -> bool:
        """Was a message with this id written to the store by this broker?"""
        try:
            return decode_id(text)[1] == node
        except ValueError:
            return False


class Page:
    """A page of an answer."""

    __slots__ = ("messages", "more", "subscriptions", "unusable", "upto", "why")

    def __init__(self, upto: str) -> None:
        self.messages: Final[list[dict[str, Any]]] = []
        # (topic filter, QoS) of each, if they were asked for
        self.subscriptions: Final[list[tuple[str, int]]] = []
        self.unusable: int = 0  # rows that are no subscriptions
        self.upto: str = upto  # all ids up to this one are dealt with
        self.more: bool = False  # is there more behind it?
        self.why: str = ""  # the store refuses the question for good

    def add(self, message_id: str, fields: dict[str, bytes]) -> int:
        """Add a message as a store has it; return its size, 0 if it is none.

        Its time is `at_ms`, or `ts` in seconds.
        """
        payload = fields.get("payload")
        if payload is None or len(payload) > PAYLOAD_BYTES_MAX:
            return 0
        publisher = fields.get("from", b"")[: _PUBLISHER_BYTES_MAX + 1].decode(errors="replace")
        self.messages.append(
            {
                "id": message_id,
                "from": publisher if len(publisher.encode()) <= _PUBLISHER_BYTES_MAX else "",
                "qos": _number(fields.get("qos"), 1, _QOS_MAX),
                "at_ms": _number(fields.get("at_ms"), 0, _MS_MAX)
                or _number(fields.get("ts"), 0, _SECONDS_MAX) * 1000,
                "expires_ms": 0,
                "payload": binascii.b2a_base64(payload, newline=False).decode(),
            }
        )
        return len(payload) + len(message_id)

    def add_subscriptions(self, rows: Iterable[tuple[bytes, bytes]], question: Question) -> None:
        """Add what a store lists for a client, of all rows those that are asked for."""
        found: list[tuple[str, int]] = []
        for name, value in rows:
            try:
                topic_filter = name.decode()
            except UnicodeDecodeError:
                self.unusable += 1
                continue
            if value not in (b"0", b"1", b"2"):
                self.unusable += 1
            elif topic_filter > question.after:
                found.append((topic_filter, int(value)))
        found.sort()
        self.more = self.more or len(found) > question.count
        self.subscriptions.extend(found[: question.count])

    def add_retained(
        self, message_id: str, fields: dict[str, bytes], id_ms: int, expires_ms: int
    ) -> None:
        """Add the retained message of a topic, which expires in `expires_ms`, 0 = never.

        Its time has to be as exact as can be: that of its id, if its own is the same second.
        """
        if not self.add(message_id, fields):
            return
        message = self.messages[-1]
        message["expires_ms"] = expires_ms
        if message["at_ms"] in (0, id_ms // 1000 * 1000):
            message["at_ms"] = id_ms

    def as_answer(self, question: Question) -> dict[str, Any]:
        """Return what the process says."""
        return {
            "fetched": question.number,
            "kind": question.kind,
            "topic": question.topic,
            "messages": self.messages,
            "subscriptions": self.subscriptions,
            "unusable": self.unusable,
            "upto": self.upto,
            "more": self.more,
            "why": self.why,
        }


def _number(value: bytes | None, default: int, most: int) -> int:
    if value is None or not value.isdigit() or len(value) > 13:
        return default
    return min(int(value), most)


def ask(request: FetchRequest, run: int) -> dict[str, Any]:
    """Return the question of a request."""
    return {
        "fetch": request.number,
        "run": run,
        "kind": request.kind,
        "client_id": request.client_id,
        "topic": request.topic,
        "after": request.after,
        "count": request.count,
        "since": request.since,
        "began_ms": request.began_ms,
        "not_before_ms": request.not_before_ms,
    }


def messages_of(answer: dict[str, Any], backend: str) -> list[FetchedMessage]:
    """Return the messages of an answer. One without a publisher comes from the backend."""
    topic = str(answer["topic"])
    return [
        FetchedMessage(
            str(each["id"]),
            Message(
                topic,
                binascii.a2b_base64(each["payload"]),
                int(each["qos"]),
                retain=False,
                properties=b"",
                publisher=str(each["from"]) or backend,
                accepted_at_ms=int(each["at_ms"]),
                expires_at_ms=0,
                offset=0,
            ),
            int(each["expires_ms"]),
        )
        for each in answer["messages"]
    ]


def first_id(at_ms: int) -> str:
    """Return the smallest id of a time."""
    return message_id(at_ms, 0, 0) if at_ms else ""


def time_of(text: str) -> int:
    """Return the time of an id in ms, 0 if it is none of ours or of brokers like ours."""
    if len(text) != CHARACTERS or any(letter not in ALPHABET for letter in text):
        return 0
    return decode_id(text)[0] // 1000


def subscriptions_of(answer: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the topic filters of an answer with their QoS."""
    return [(str(topic_filter), int(qos)) for topic_filter, qos in answer["subscriptions"]]
