"""What the rules of a Cassandra backend do: statements with values to bind, for each row.

Tables and columns are those that others have used for years, so that applications find what they
know. Every row has a time of its own, which grows in the order of rows and is the same whenever a
row comes again: Cassandra keeps what is newest by it, so a repeated insert does not undo the delete
behind it. Pure. Read next: `broker.backends.cassandra_sink`, which runs them.
"""

import decimal
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from broker.backends import actions
from broker.backends.message_ids import message_id, node_number
from broker.backends.parameters import Parameters, expires_s, id_of
from broker.backends.rows import Row, opened
from broker.backends.sink import Options, Rule
from broker.backends.templates import CqlStatement, as_text, payload_value
from mqtt.message import Message
from storage.tables.feed_rows import SESSION_ENDED, FeedEvent
from storage.tables.message_record import decode_message

CURSOR_TABLE: Final = "holdfast_cursor"
CLIENT: Final = "client"
SUB: Final = "sub"
MSG: Final = "msg"
RETAIN: Final = "retain"
ACKED: Final = "acked"
# How the tables are made; the cursors' has the same name for all.
COLUMNS: Final[dict[str, str]] = {
    CURSOR_TABLE: "(feed text PRIMARY KEY, fence text, written bigint, refused list<text>)",
    CLIENT: (
        "(clientid text PRIMARY KEY, node text, state int, connected timestamp, "
        "disconnected timestamp)"
    ),
    SUB: "(clientid text, topic text, qos int, PRIMARY KEY (clientid, topic))",
    MSG: (
        "(topic text, msgid text, sender text, qos int, retain int, payload blob, "
        "arrived timestamp, PRIMARY KEY (topic, msgid)) WITH CLUSTERING ORDER BY (msgid DESC)"
    ),
    RETAIN: "(topic text PRIMARY KEY, msgid text)",
    ACKED: "(clientid text, topic text, msgid text, PRIMARY KEY (clientid, topic))",
}
_TABLES: Final[dict[str, tuple[str, ...]]] = {
    "on_client_connected": (CLIENT,),
    "on_client_disconnected": (CLIENT,),
    "on_subscribed": (SUB,),
    "on_unsubscribed": (SUB,),
    "on_message_publish": (MSG,),
    "on_message_store": (MSG,),
    "on_message_retain": (MSG, RETAIN),
    "on_retain_delete": (RETAIN,),
    "on_message_acked": (ACKED,),
    "on_acked_delete": (ACKED,),
    "on_message_fetch": (MSG, ACKED),
    "on_retain_lookup": (MSG, RETAIN),
    "on_subscribe_lookup": (SUB,),
}
TTL: Final = " USING TTL ?"
TTL_MAX_S: Final = 20 * 365 * 24 * 3600  # Cassandra refuses more
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "varint", "counter"})
_TEXTS: Final = frozenset({"text", "varchar", "ascii"})
_DECIMALS: Final = frozenset({"float", "double"})


class Write:
    """One statement of an action; it may be repeated without harm."""

    __slots__ = ("text", "ttl_s", "values")

    def __init__(self, text: str, values: list[Any], ttl_s: int = 0) -> None:
        self.text: Final = text
        self.values: Final = values
        self.ttl_s: Final = ttl_s  # 0 = what the table says

    def __repr__(self) -> str:
        return f"Write({self.text!r}, {self.values}, {self.ttl_s})"


class Advance:
    """A position is to be moved, unless it is at a later message."""

    __slots__ = ("client_id", "message_id", "topic")

    def __init__(self, client_id: str, topic: str, message_id: str) -> None:
        self.client_id: Final = client_id
        self.topic: Final = topic
        self.message_id: Final = message_id

    @property
    def key(self) -> tuple[str, str]:
        """Whose position it is."""
        return self.client_id, self.topic


class Forget:
    """A position is to be deleted."""

    __slots__ = ("key",)

    def __init__(self, client_id: str, topic: str) -> None:
        self.key: Final = client_id, topic


class Bound:
    """One own statement with its values, which have no types yet."""

    __slots__ = ("text", "values")

    def __init__(self, text: str, values: list[object]) -> None:
        self.text: Final = text
        self.values: Final = values


Work: TypeAlias = Write | Advance | Forget | Bound
Act: TypeAlias = Callable[[Row], list[Work]]


class CassandraActions:
    """The rules of one backend."""

    def __init__(self, options: Options) -> None:
        """Raises ValueError for a statement that cannot be parsed."""
        self._node: Final = options.node
        self._node_number: Final = node_number(options.node)
        self._prefix: Final[str] = options.values.get("table_prefix") or ""
        self._type: Final = options.type
        self.own: Final[list[str]] = []  # the texts of own statements
        self._rules: Final = [(rule, self._act_of(rule)) for rule in options.rules]
        named = [rule.action for rule in options.rules if rule.action is not None]
        self.tables: Final = sorted({table for each in named for table in _TABLES.get(each, ())})

        # The name of the index of messages by sender, None = none is wanted.
        self.sender_index: Final[str | None] = (
            f"{self._prefix}{MSG}_sender".lower()
            if options.values.get("sender_index") and MSG in self.tables
            else None
        )

    def name_of(self, table: str) -> str:
        """Return the name of a table as a statement has it."""
        # As Cassandra takes names without quotes, which cannot begin with a digit.
        return f'"{(self._prefix + table).lower()}"' if table != CURSOR_TABLE else table

    def texts(self) -> list[str]:
        """Return every statement that the actions need, to be prepared."""
        found: list[str] = []
        for rule, _ in self._rules:
            for each in _STATEMENTS.get(rule.action or "", ()):
                found.append(self._text(each))
                if each in (_MESSAGE, _RETAINED):
                    found.append(self._text(each) + TTL)
        return list(dict.fromkeys(found))

    def work(self, row: Row) -> list[tuple[int, Work]]:
        """Return what is to be done for a row, each with the number of its rule."""
        found: list[tuple[int, Work]] = []
        for rule, act in self._rules:
            if rule.takes(row, self._type):
                found += [(rule.number, each) for each in act(opened(row))]
        return found

    def advance(self, position: Advance) -> Write:
        """Return the statement that moves a position."""
        values = [position.client_id, position.topic, position.message_id]
        return self._write(_SET_ACKED, values)

    def forget(self, position: Forget) -> Write:
        """Return the statement that deletes a position."""
        return self._write(_DELETE_ACKED, list(position.key))

    def read_acked(self) -> str:
        """Return the question for a position."""
        return self._text(READ_ACKED)

    def read_ids(self) -> str:
        """Return the question for the ids of a topic behind one, in their order."""
        return self._text(_READ_IDS)

    def read_message(self) -> str:
        """Return the question for a message."""
        return self._text(_READ_MESSAGE)

    def read_retained(self) -> str:
        """Return the question for the id of the retained message of a topic."""
        return self._text(_READ_RETAINED)

    def read_listed(self) -> str:
        """Return the question for the QoS of so many subscriptions of a client: how many it has."""
        return self._text(_READ_LISTED)

    def read_subscriptions(self) -> str:
        """Return the question for the subscriptions of a client behind one, in their order."""
        return self._text(_READ_SUBSCRIPTIONS)

    def _text(self, text: str) -> str:
        word, table = _table_in(text)
        return text.replace(word, self.name_of(table), 1)

    def _write(self, text: str, values: list[Any], ttl_s: int = 0) -> Write:
        return Write(self._text(text), values, ttl_s)

    def _act_of(self, rule: Rule) -> Act:
        if rule.action is not None:
            if actions.ACTIONS[self._type][rule.action].fetch:
                return lambda row: []  # sessions ask, rows do nothing
            act: Callable[[Any, Rule], list[Work]] = getattr(self, f"_{rule.action}")
            return lambda row: act(row, rule)
        statements = [CqlStatement(text, rule.on) for text in rule.commands]
        self.own.extend(each.text for each in statements)

        def bind(row: Row) -> list[Work]:
            parameters = Parameters(row, self._node.encode(), self._node_number)
            return [
                Bound(each.text, [_value(row, parameters, name) for name in each.names])
                for each in statements
            ]

        return bind

    # Clients

    def _on_client_connected(self, event: FeedEvent, rule: Rule) -> list[Work]:
        return [self._write(_CONNECTED, [event.client_id, self._node, 1, event.at_ms])]

    def _on_client_disconnected(self, event: FeedEvent, rule: Rule) -> list[Work]:
        return [self._write(_DISCONNECTED, [event.client_id, 0, event.at_ms])]

    # Subscriptions

    def _on_subscribed(self, event: FeedEvent, rule: Rule) -> list[Work]:
        return [self._write(_SUBSCRIBED, [event.client_id, event.text, event.qos])]

    def _on_unsubscribed(self, event: FeedEvent, rule: Rule) -> list[Work]:
        if event.kind == SESSION_ENDED:
            return [self._write(_ALL_UNSUBSCRIBED, [event.client_id])]
        return [self._write(_UNSUBSCRIBED, [event.client_id, event.text])]

    # Messages

    def _on_message_publish(self, message: Message, rule: Rule) -> list[Work]:
        name = message_id(message.accepted_at_ms, self._node_number, message.offset)
        return [self._message(name, message.topic, message, rule)]

    def _on_message_store(self, message: Message, rule: Rule) -> list[Work]:
        return self._on_message_publish(message, rule)

    def _message(self, name: str, topic: str, message: Message, rule: Rule) -> Write:
        values: list[Any] = [
            *(topic, name, message.publisher, message.qos, int(message.retain)),
            *(message.payload, message.accepted_at_ms),
        ]
        return self._write(_MESSAGE, values, _ttl_s(message, rule))

    def _on_message_retain(self, event: FeedEvent, rule: Rule) -> list[Work]:
        message = decode_message(event.body, event.offset)
        name = id_of(event, self._node_number).decode()
        kept = self._write(_RETAINED, [event.text, name], _ttl_s(message, rule))
        return [self._message(name, event.text, message, rule), kept]

    def _on_retain_delete(self, event: FeedEvent, rule: Rule) -> list[Work]:
        return [self._write(_RETAIN_DELETED, [event.text])]

    # Acknowledgements

    def _on_message_acked(self, event: FeedEvent, rule: Rule) -> list[Work]:
        name = id_of(event, self._node_number).decode(errors="replace")
        return [Advance(event.client_id, event.text, name)]

    def _on_acked_delete(self, event: FeedEvent, rule: Rule) -> list[Work]:
        return [Forget(event.client_id, event.text)]


_CONNECTED: Final = "INSERT INTO {client} (clientid, node, state, connected) VALUES (?, ?, ?, ?)"
_DISCONNECTED: Final = "INSERT INTO {client} (clientid, state, disconnected) VALUES (?, ?, ?)"
_SUBSCRIBED: Final = "INSERT INTO {sub} (clientid, topic, qos) VALUES (?, ?, ?)"
_UNSUBSCRIBED: Final = "DELETE FROM {sub} WHERE clientid = ? AND topic = ?"
_ALL_UNSUBSCRIBED: Final = "DELETE FROM {sub} WHERE clientid = ?"
_MESSAGE: Final = (
    "INSERT INTO {msg} (topic, msgid, sender, qos, retain, payload, arrived) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_RETAINED: Final = "INSERT INTO {retain} (topic, msgid) VALUES (?, ?)"
_RETAIN_DELETED: Final = "DELETE FROM {retain} WHERE topic = ?"
_SET_ACKED: Final = "INSERT INTO {acked} (clientid, topic, msgid) VALUES (?, ?, ?)"
_DELETE_ACKED: Final = "DELETE FROM {acked} WHERE clientid = ? AND topic = ?"
READ_ACKED: Final = "SELECT msgid FROM {acked} WHERE clientid = ? AND topic = ?"
_READ_IDS: Final = (
    "SELECT msgid FROM {msg} WHERE topic = ? AND msgid > ? ORDER BY msgid ASC LIMIT ?"
)
_READ_MESSAGE: Final = (
    "SELECT sender, qos, payload, toUnixTimestamp(arrived) AS at, TTL(payload) AS ttl FROM {msg} "
    "WHERE topic = ? AND msgid = ?"
)
_READ_RETAINED: Final = "SELECT msgid FROM {retain} WHERE topic = ?"
_READ_LISTED: Final = "SELECT qos FROM {sub} WHERE clientid = ? LIMIT ?"
_READ_SUBSCRIPTIONS: Final = (
    "SELECT topic, qos FROM {sub} WHERE clientid = ? AND topic > ? ORDER BY topic ASC LIMIT ?"
)
_STATEMENTS: Final[dict[str, tuple[str, ...]]] = {
    "on_client_connected": (_CONNECTED,),
    "on_client_disconnected": (_DISCONNECTED,),
    "on_subscribed": (_SUBSCRIBED,),
    "on_unsubscribed": (_UNSUBSCRIBED, _ALL_UNSUBSCRIBED),
    "on_message_publish": (_MESSAGE,),
    "on_message_store": (_MESSAGE,),
    "on_message_retain": (_MESSAGE, _RETAINED),
    "on_retain_delete": (_RETAIN_DELETED,),
    "on_message_acked": (_SET_ACKED, READ_ACKED),
    "on_acked_delete": (_DELETE_ACKED,),
    "on_message_fetch": (READ_ACKED, _READ_IDS, _READ_MESSAGE),
    "on_retain_lookup": (_READ_RETAINED, _READ_MESSAGE),
    "on_subscribe_lookup": (_READ_LISTED, _READ_SUBSCRIPTIONS),
}


def _table_in(text: str) -> tuple[str, str]:
    """Return the table that a statement of ours names, in braces and without them."""
    start, end = text.index("{"), text.index("}") + 1
    return text[start:end], text[start + 1 : end - 1]


def stamp(previous: int, row: Row) -> int:
    """Return the time of a row in microseconds: its own, but behind the row before it."""
    at_ms = row.at_ms if isinstance(row, FeedEvent) else row.accepted_at_ms
    return max(previous + 1, at_ms * 1000)


def _ttl_s(message: Message, rule: Rule) -> int:
    after_s = expires_s(message, rule)
    return after_s if after_s <= TTL_MAX_S else 0


def _value(row: Row, parameters: Parameters, name: str) -> object:
    """Return the value of a name: a field of the payload as JSON has it, all others as bytes."""
    if name.startswith("payload."):
        assert isinstance(row, Message)
        return payload_value(row.payload, name.partition(".")[2])
    return parameters.get(name)


def typed(value: object, type: str) -> object:
    """Return a value as a column of this type takes it, None if the row has none.

    Raises ValueError.
    """
    if type == "blob":
        return value if isinstance(value, bytes) else _as_text(value).encode()
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"expected UTF-8 for a column of the type {type}") from None
    if type in _TEXTS:
        return _as_text(value)
    if value is None or value == "":
        return None
    try:
        return _of_type(value, type)
    except (ValueError, TypeError, ArithmeticError):
        shown = _as_text(value)[:40]
        raise ValueError(f"expected a value of the type {type}, not {shown!r}") from None


def _of_type(value: object, type: str) -> object:
    if type == "boolean":
        known = {"true": True, "1": True, "false": False, "0": False}
        text = _as_text(value).lower()
        if text not in known:
            raise ValueError
        return known[text]
    if type == "timestamp":
        return int(_as_text(value))
    if type in _INTEGERS:
        number = decimal.Decimal(_as_text(value))
        if not number.is_finite() or abs(number) >= 1 << 63 or number != int(number):
            raise ValueError
        return int(number)
    if type in _DECIMALS:
        return float(_as_text(value))
    if type == "decimal":
        return decimal.Decimal(_as_text(value))
    return value


def _as_text(value: object) -> str:
    return "" if value is None else as_text(value)


assert set(actions.ACTIONS["cassandra"]) == set(_TABLES) == set(_STATEMENTS)
