"""Rows as JSON, for stores that take them whole: a webhook and Kafka get the same fields.

A row is sent once, however many rules it matches. Its `id` is the same whenever it is sent again,
so that a receiver can tell repeats. Pure. Read next: `broker.backends.webhook_sink`,
`broker.backends.kafka_sink`.
"""

import base64
import json
from typing import Any, Final

from broker.backends.actions import (
    CLIENT_CONNECTED,
    CLIENT_DISCONNECTED,
    MESSAGE_ACKED,
    MESSAGE_DELIVERED,
)
from broker.backends.message_ids import message_id, node_number
from broker.backends.parameters import USER_PROPERTIES_MAX, id_of
from broker.backends.rows import Cursor, Row, RowBatch, opened
from broker.backends.sink import Options, Poison, Rule
from mqtt import packets, properties
from mqtt.message import Message
from mqtt.wire import Reader
from storage.tables.feed_rows import FeedEvent, username_of

UTF8: Final = "utf-8"
BASE64: Final = "base64"


class JsonRow:
    """One row that some rule wants, ready to be sent."""

    __slots__ = ("body", "fields", "index", "row", "rule", "upto")

    def __init__(
        self, index: int, row: Row, rule: Rule, fields: dict[str, Any], upto: Cursor
    ) -> None:
        self.index: Final = index  # in the batch
        self.row: Final = row  # a message also if an event has carried it
        self.rule: Final = rule  # the first one that takes it
        self.fields: Final = fields
        self.body: Final = encode(fields)
        self.upto: Final = upto  # the cursor behind the row


class JsonRows:
    """What the rules of one backend want, as JSON."""

    def __init__(self, options: Options) -> None:
        self._node: Final = node_number(options.node)
        self._type: Final = options.type
        self._rules: Final = options.rules

    def of(self, batch: RowBatch, instance: str) -> tuple[list[JsonRow], list[Poison]]:
        """Return the rows of a batch that rules want, and those nothing can be made of."""
        found: list[JsonRow] = []
        poisons: list[Poison] = []
        upto = batch.after
        for index, row in enumerate(batch.rows):
            if isinstance(row, FeedEvent):
                upto = (max(upto[0], row.end), row.seq)
            else:
                upto = (row.offset, upto[1])
            rule = next((each for each in self._rules if each.takes(row, self._type)), None)
            if rule is None:
                continue
            try:
                whole = opened(row)
                fields = self._fields(row, whole, rule.on, instance)
            except Exception as bug:  # shell boundary: one row must not stop all behind it
                poisons.append(Poison(index, rule.number, f"{type(bug).__name__}: {bug}"))
                continue
            found.append(JsonRow(index, whole, rule, fields, upto))
        return found, poisons

    def _fields(self, row: Row, whole: Row, hook: str, instance: str) -> dict[str, Any]:
        position, seq = (row.end, row.seq) if isinstance(row, FeedEvent) else (row.offset, 0)
        if isinstance(whole, FeedEvent):
            fields = self._of_event(whole, hook)
        else:
            fields = self._of_message(whole)
        # The time: after an earlier copy of the database was restored, numbers are given again.
        name = f"{instance}:{position}:{seq}:{fields['timestamp']}"
        return {"id": name, "hook": hook, **fields}

    def _of_event(self, event: FeedEvent, hook: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "clientid": event.client_id,
            "username": username_of(event),
            "timestamp": event.at_ms,
        }
        if hook in (CLIENT_CONNECTED, CLIENT_DISCONNECTED):
            return found
        found |= {"topic": event.text, "qos": event.qos}
        if hook in (MESSAGE_ACKED, MESSAGE_DELIVERED):
            found["msgid"] = id_of(event, self._node).decode()
        return found

    def _of_message(self, message: Message) -> dict[str, Any]:
        payload, encoding = _text(message.payload)
        return {
            "msgid": message_id(message.accepted_at_ms, self._node, message.offset),
            "clientid": message.publisher,
            "username": message.username,
            "topic": message.topic,
            "qos": message.qos,
            "retain": message.retain,
            "timestamp": message.accepted_at_ms,
            "payload": payload,
            "payload_encoding": encoding,
            "properties": _properties(message),
        }


def encode(value: dict[str, Any]) -> bytes:
    """Return an object as JSON, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _text(data: bytes) -> tuple[str, str]:
    """Return bytes as text, and how: as they are if they are UTF-8, otherwise as base64."""
    try:
        return data.decode(), UTF8
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), BASE64


def _properties(message: Message) -> dict[str, Any]:
    """Return the MQTT 5 properties that a message has."""
    found: dict[str, Any] = {}
    if message.expires_at_ms:
        expires_ms = message.expires_at_ms - message.accepted_at_ms
        found["message_expiry_interval"] = expires_ms // 1000
    if not message.properties:
        return found
    raw = Reader(message.properties, 0, len(message.properties))
    known = properties.read(raw, packets.PUBLISH, USER_PROPERTIES_MAX)
    indicator = known.numbers.get(properties.PAYLOAD_FORMAT_INDICATOR)
    if indicator is not None:
        found["payload_format_indicator"] = indicator
    for name, which in (
        ("content_type", properties.CONTENT_TYPE),
        ("response_topic", properties.RESPONSE_TOPIC),
    ):
        if which in known.strings:
            found[name] = known.strings[which]
    correlation = known.binaries.get(properties.CORRELATION_DATA)
    if correlation is not None:
        found["correlation_data"] = base64.b64encode(correlation).decode()
    if known.user:
        found["user_properties"] = [list(pair) for pair in known.user]
    return found
