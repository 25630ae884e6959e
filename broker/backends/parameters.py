"""What a row says: the values of the names in own commands, its message id, its expiry.

The same names have the same values in every store. Pure. Read next: `broker.backends.actions`
(which names a hook has), `broker.backends.templates`.
"""

import json
from typing import Final

from broker.backends.message_ids import UNSTORED, message_id, unstored_id
from broker.backends.rows import Row
from broker.backends.sink import Rule
from broker.backends.templates import payload_field
from mqtt import packets, properties
from mqtt.message import Message
from mqtt.wire import Reader
from storage.tables.feed_rows import FOREIGN, SENT, FeedEvent, username_of

USER_PROPERTIES_MAX: Final = 1 << 20  # as many as a PUBLISH can have


class Parameters:
    """The values of the names in own commands, for one row; b"" where the row has none."""

    __slots__ = ("_known", "_node", "_node_number", "_row")

    def __init__(self, row: Row, node: bytes, node_number: int) -> None:
        self._row: Final = row
        self._node: Final = node
        self._node_number: Final = node_number
        self._known: properties.Properties | None = None

    def get(self, name: str) -> bytes:
        """Return the value of a name."""
        row = self._row
        if name == "node":
            return self._node
        if isinstance(row, FeedEvent):
            return self._of_event(row, name)
        first, _, rest = name.partition(".")
        if rest and first == "payload":
            return payload_field(row.payload, rest)
        if rest:
            return b",".join(
                value.encode() for key, value in self._properties().user if key == rest
            )
        return self._of_message(row, name)

    def _of_event(self, event: FeedEvent, name: str) -> bytes:
        if name == "clientid":
            return event.client_id.encode()
        if name == "username":
            return username_of(event).encode()
        if name == "topic":
            return event.text.encode()
        if name == "qos":
            return b"%d" % event.qos
        if name == "msgid":
            return id_of(event, self._node_number)
        return b"%d" % event.at_ms  # timestamp

    def _of_message(self, message: Message, name: str) -> bytes:
        if name == "clientid":
            return message.publisher.encode()
        if name == "username":
            return message.username.encode()
        if name == "topic":
            return message.topic.encode()
        if name == "qos":
            return b"%d" % message.qos
        if name == "payload":
            return message.payload
        if name == "msgid":
            return self._message_id(message)
        if name == "message":
            return self._as_json(message)
        if name == "retain":
            return flag(message.retain)
        if name == "dup":
            return flag(False)  # it is accepted once
        if name == "timestamp":
            return b"%d" % message.accepted_at_ms
        if name == "expiry":
            own = message.expires_at_ms - message.accepted_at_ms
            return b"%d" % (own // 1000) if message.expires_at_ms else b""
        found = self._properties()
        if name == "correlation_data":
            return found.binaries.get(properties.CORRELATION_DATA, b"")
        which = properties.CONTENT_TYPE if name == "content_type" else properties.RESPONSE_TOPIC
        return found.strings.get(which, "").encode()

    def _message_id(self, message: Message) -> bytes:
        return message_id(message.accepted_at_ms, self._node_number, message.offset).encode()

    def _properties(self) -> properties.Properties:
        if self._known is None:
            assert isinstance(self._row, Message)
            raw = self._row.properties
            self._known = properties.read(
                Reader(raw, 0, len(raw)), packets.PUBLISH, USER_PROPERTIES_MAX
            )
        return self._known

    def _as_json(self, message: Message) -> bytes:
        """Return the whole message as JSON; a payload that is no text has each byte as a letter."""
        try:
            payload = message.payload.decode()
        except UnicodeDecodeError:
            payload = message.payload.decode("latin-1")
        return json.dumps(
            {
                "id": self._message_id(message).decode(),
                "from": message.publisher,
                "qos": message.qos,
                "topic": message.topic,
                "payload": payload,
                "ts": message.accepted_at_ms // 1000,
                "retain": message.retain,
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()


def id_of(event: FeedEvent, node: int) -> bytes:
    """Return the identifier of the message that an event is about."""
    if told := told_id(event):
        return told
    if event.offset:
        return message_id(event.accepted_ms, node, event.offset).encode()
    return unstored_id(event.accepted_ms, node, event.seq).encode()


def told_id(event: FeedEvent) -> bytes:
    """Return what a store calls the message that an event is about, b"" if that is one of ours."""
    return event.body if event.kind in FOREIGN or event.kind == SENT else b""


def offset_of(event: FeedEvent) -> int:
    """Return the last 48 bits of the identifier of the message that an event is about."""
    return event.offset or UNSTORED | event.seq


def seconds(ms: int) -> bytes:
    """Return a time in seconds since 1970, as text."""
    return b"%d" % (ms // 1000)


def expires_s(message: Message, rule: Rule) -> int:
    """Return after how many seconds a message goes, 0 = never: its own expiry, or the rule's."""
    if message.expires_at_ms:
        return max(1, -(-(message.expires_at_ms - message.accepted_at_ms) // 1000))
    return rule.expires_s


def flag(value: bool) -> bytes:
    """Return how a truth is written."""
    return b"true" if value else b"false"
