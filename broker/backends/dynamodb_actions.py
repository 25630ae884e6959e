"""What the rules of a DynamoDB backend do: changes of items, and statements, for each row.

Tables and attributes are those that others have used for years, so that applications find what they
know. Changes of items may be repeated without harm, statements may not. Pure. Read next:
`broker.backends.dynamodb_sink`, which applies them.
"""

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from broker.backends import actions
from broker.backends.dynamodb_tables import (
    ACKED,
    CLAIM,
    CLIENT,
    EXPIRES_AT,
    KEYS,
    MSG,
    MSG_ID_SET,
    RETAIN,
    SUB,
    TOPIC_MSG,
    TOPIC_MSG_MAP,
    Item,
    Value,
    id_of_told,
    number,
    text,
)
from broker.backends.message_ids import decimal_id, message_number, node_number
from broker.backends.parameters import Parameters, expires_s, offset_of, told_id
from broker.backends.rows import Row, opened
from broker.backends.sink import Options, Rule
from broker.backends.templates import Statement, as_text, payload_value
from mqtt.message import Message
from storage.tables.feed_rows import RETURNED, SESSION_ENDED, FeedEvent
from storage.tables.message_record import decode_message

# What is done to an item.
PUT: Final = "put"
DELETE: Final = "delete"
SET: Final = "set"  # some attributes of it
ADD: Final = "add"  # to a set of texts
REMOVE: Final = "remove"  # from a set of texts
ADVANCE: Final = "advance"  # put, unless it names a later message
KEEP: Final = "keep"  # a message for a client until it acknowledges
RELEASE: Final = "release"  # a message that is kept for a client
DELETE_ALL: Final = "delete all"  # items with a partition key

INDEX: Final = "index"
_TABLES: Final[dict[str, tuple[str, ...]]] = {
    "on_client_connected": (CLIENT,),
    "on_client_disconnected": (CLIENT,),
    "on_subscribed": (SUB,),
    "on_unsubscribed": (SUB,),
    "on_message_publish": (MSG, INDEX),
    "on_message_store": (MSG, INDEX),
    "on_message_retain": (RETAIN,),
    "on_retain_delete": (RETAIN,),
    "on_message_fetch": (MSG, INDEX, ACKED),
    "on_message_fetch_for_queue": (MSG, INDEX),
    "on_retain_lookup": (RETAIN,),
    "on_subscribe_lookup": (SUB,),
    "on_message_acked_for_queue": (MSG, INDEX),
    "on_message_acked": (ACKED,),
    "on_acked_delete": (ACKED,),
}
_NUMBERS: Final = frozenset({"qos", "timestamp", "expiry"})
_FLAGS: Final = frozenset({"retain", "dup"})


class Change:
    """One thing to do to one item, or to the items of a partition."""

    __slots__ = ("item", "key", "kind", "table")

    def __init__(self, kind: str, table: str, item: Item) -> None:
        self.kind: Final = kind
        self.table: Final = table  # without the prefix
        self.item: Final = item  # its key, and what else is said of it
        self.key: Final = (table, *(item[name]["S"] for name in KEYS[table] if name in item))

    def __repr__(self) -> str:
        return f"Change({self.kind}, {self.table}, {self.item})"


class Bound:
    """One own statement with its values."""

    __slots__ = ("text", "values")

    def __init__(self, text: str, values: list[Value]) -> None:
        self.text: Final = text
        self.values: Final = values


Work: TypeAlias = Change | Bound
Act: TypeAlias = Callable[[Row], list[Work]]


class DynamodbActions:
    """The rules of one backend."""

    def __init__(self, options: Options) -> None:
        """Raises ValueError for a statement that cannot be parsed."""
        self._node: Final = options.node
        self._node_number: Final = node_number(options.node)
        self._index: Final = TOPIC_MSG_MAP if options.values.get("layout") != "v2" else TOPIC_MSG
        self._type: Final = options.type
        self._rules: Final = [(rule, self._act_of(rule)) for rule in options.rules]
        named = [_TABLES[rule.action] for rule in options.rules if rule.action is not None]
        self.tables: Final = sorted(
            {self._index if table == INDEX else table for tables in named for table in tables}
        )

    def work(self, row: Row) -> list[tuple[int, Work]]:
        """Return what is to be done for a row, each with the number of its rule."""
        found: list[tuple[int, Work]] = []
        for rule, act in self._rules:
            if rule.takes(row, self._type):
                found += [(rule.number, each) for each in act(opened(row))]
        return found

    def _act_of(self, rule: Rule) -> Act:
        if rule.action is not None:
            act: Callable[[Any, Rule], list[Work]] = getattr(self, f"_{rule.action}")
            return lambda row: act(row, rule)
        statements = [Statement(text, rule.on) for text in rule.commands]

        def bind(row: Row) -> list[Work]:
            parameters = Parameters(row, self._node.encode(), self._node_number)
            return [
                Bound(each.text, [self._value(row, parameters, name) for name in each.names])
                for each in statements
            ]

        return bind

    def _value(self, row: Row, parameters: Parameters, name: str) -> Value:
        """Return the value of a name in a statement, with its type."""
        if name == "msgid":
            return text(self._id_of(row))
        if name == "message":
            assert isinstance(row, Message)
            told = {**json.loads(parameters.get(name)), "id": self._id_of(row)}
            return text(json.dumps(told, ensure_ascii=False, separators=(",", ":")))
        if name.startswith("payload."):
            assert isinstance(row, Message)
            return _typed(payload_value(row.payload, name.partition(".")[2]))
        value = parameters.get(name)
        if name in _NUMBERS and value:
            return {"N": value.decode()}
        if name in _FLAGS:
            return {"BOOL": value == b"true"}
        return _text_or_bytes(value)

    def _id_of(self, row: Row) -> str:
        if isinstance(row, Message):
            return decimal_id(message_number(row.accepted_at_ms, self._node_number, row.offset))
        if told := told_id(row):
            return id_of_told(told.decode())
        return decimal_id(message_number(row.accepted_ms, self._node_number, offset_of(row)))

    # Clients

    def _on_client_connected(self, event: FeedEvent, rule: Rule) -> list[Work]:
        item = {
            "clientid": text(event.client_id),
            "node": text(self._node),
            "connect_state": number(1),
            "online_at": number(event.at_ms // 1000),
            "offline_at": number(0),
        }
        return [Change(PUT, CLIENT, item)]

    def _on_client_disconnected(self, event: FeedEvent, rule: Rule) -> list[Work]:
        item = {
            "clientid": text(event.client_id),
            "connect_state": number(0),
            "offline_at": number(event.at_ms // 1000),
        }
        return [Change(SET, CLIENT, item)]

    # Subscriptions

    def _on_subscribed(self, event: FeedEvent, rule: Rule) -> list[Work]:
        key = {"clientid": text(event.client_id), "topic": text(event.text)}
        return [Change(PUT, SUB, {**key, "qos": number(event.qos)})]

    def _on_unsubscribed(self, event: FeedEvent, rule: Rule) -> list[Work]:
        client = {"clientid": text(event.client_id)}
        if event.kind == SESSION_ENDED:
            return [Change(DELETE_ALL, SUB, client)]
        return [Change(DELETE, SUB, {**client, "topic": text(event.text)})]

    # Messages

    def _on_message_publish(self, message: Message, rule: Rule) -> list[Work]:
        name = self._id_of(message)
        expiry = _expiry(message, rule)
        item = {**_fields(name, message.topic, message), **expiry}
        return [Change(PUT, MSG, item), self._indexed(ADD, message.topic, name, expiry)]

    def _on_message_store(self, message: Message, rule: Rule) -> list[Work]:
        return self._on_message_publish(message, rule)

    def _indexed(self, kind: str, topic: str, name: str, more: Item) -> Change:
        """Return the change of a topic's list of ids: ADD or REMOVE."""
        if self._index == TOPIC_MSG_MAP:
            item = {"topic": text(topic), MSG_ID_SET: {"SS": [name]}}
            return Change(kind, TOPIC_MSG_MAP, item)
        key = {"topic": text(topic), "msgid": text(name)}
        return Change(PUT if kind == ADD else DELETE, TOPIC_MSG, {**key, **more})

    def _on_message_retain(self, event: FeedEvent, rule: Rule) -> list[Work]:
        message = decode_message(event.body, event.offset)
        item = _fields(self._id_of(event), event.text, message)
        return [Change(PUT, RETAIN, {**item, **_expiry(message, rule)})]

    def _on_retain_delete(self, event: FeedEvent, rule: Rule) -> list[Work]:
        return [Change(DELETE, RETAIN, {"topic": text(event.text)})]

    # Acknowledgements

    def _on_message_acked_for_queue(self, event: FeedEvent, rule: Rule) -> list[Work]:
        name = self._id_of(event)
        return [
            Change(DELETE, MSG, {"msgid": text(name)}),
            self._indexed(REMOVE, event.text, name, {}),
        ]

    def _on_message_acked(self, event: FeedEvent, rule: Rule) -> list[Work]:
        key = {"topic": text(event.text), "clientid": text(event.client_id)}
        return [Change(ADVANCE, ACKED, {**key, "msgid": text(self._id_of(event))})]

    def _on_acked_delete(self, event: FeedEvent, rule: Rule) -> list[Work]:
        key = {"topic": text(event.text), "clientid": text(event.client_id)}
        return [Change(DELETE, ACKED, key)]

    # What sessions fetch

    def _on_message_fetch(self, event: FeedEvent, rule: Rule) -> list[Work]:
        """Do nothing: the position moves when the client acknowledges."""
        return []

    def _on_message_fetch_for_queue(self, event: FeedEvent, rule: Rule) -> list[Work]:
        """Keep a message for as long as a session has it in flight, or let it go."""
        item = {"msgid": text(self._id_of(event)), CLAIM: text(event.client_id)}
        return [Change(RELEASE if event.kind == RETURNED else KEEP, MSG, item)]

    def _on_retain_lookup(self, event: FeedEvent, rule: Rule) -> list[Work]:
        """Do nothing: the store is only asked."""
        return []

    def _on_subscribe_lookup(self, event: FeedEvent, rule: Rule) -> list[Work]:
        """Do nothing: the store is only asked."""
        return []


def _fields(name: str, topic: str, message: Message) -> Item:
    return {
        "msgid": text(name),
        "topic": text(topic),
        "sender": text(message.publisher),
        "qos": number(message.qos),
        "retain": number(int(message.retain)),
        "payload": _text_or_bytes(message.payload),
        "arrived": number(message.accepted_at_ms // 1000),
    }


def _expiry(message: Message, rule: Rule) -> Item:
    after_s = expires_s(message, rule)
    if not after_s:
        return {}
    return {EXPIRES_AT: number(message.accepted_at_ms // 1000 + after_s)}


def _text_or_bytes(value: bytes) -> Value:
    try:
        return {"S": value.decode()}
    except UnicodeDecodeError:
        return {"B": value}


def _typed(value: object) -> Value:
    """Return a value of JSON with its type; objects and lists come as text."""
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float):
        return {"N": str(value)}
    return text(as_text(value))


assert set(actions.ACTIONS["dynamodb"]) == set(_TABLES)
