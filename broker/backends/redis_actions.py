"""What the rules of a Redis backend do: the commands for each row.

Keys and fields are those that others have used for years, so that applications find what they know.
`SETMAX key value` is not a command of Redis: our script sets the key unless it has a greater value.
`DELIF key value value` neither: it deletes the key if it has one of the values.
Pure. Read next: `broker.backends.redis_sink`, which applies them.
"""

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from broker.backends import actions
from broker.backends.inbox.redis_inbox import CLAIM_KEY, KEPT, LEASED
from broker.backends.message_ids import message_id, node_number, unstored_id
from broker.backends.rows import Row
from broker.backends.sink import Options, Rule
from broker.backends.templates import Command, payload_field
from mqtt import packets, properties
from mqtt.message import Message
from mqtt.wire import Reader
from storage.tables.feed_rows import FOREIGN, RETURNED, SESSION_ENDED, FeedEvent
from storage.tables.message_record import decode_message

Arguments: TypeAlias = list[bytes]
Act: TypeAlias = Callable[[Row], list[Arguments]]

SETMAX: Final = b"SETMAX"
DELIF: Final = b"DELIF"
UNDEFINED: Final = b"undefined"
USER_PROPERTIES_MAX: Final = 1 << 20  # as many as a PUBLISH can have


class RedisActions:
    """The rules of one backend."""

    def __init__(self, options: Options) -> None:
        """Raises ValueError for a command that cannot be parsed."""
        self._node: Final = options.node.encode()
        self._node_number: Final = node_number(options.node)
        self._is_scored_by_time: Final = options.values.get("score", "time") == "time"
        self._type: Final = options.type
        self._rules: Final = [(rule, self._act_of(rule)) for rule in options.rules]

    def commands(self, row: Row) -> list[tuple[int, Arguments]]:
        """Return the commands of a row, each with the number of its rule."""
        found: list[tuple[int, Arguments]] = []
        for rule, act in self._rules:
            if rule.takes(row, self._type):
                found += [(rule.number, arguments) for arguments in act(row)]
        return found

    def _act_of(self, rule: Rule) -> Act:
        if rule.action is not None:
            act: Callable[[Any, Rule], list[Arguments]] = getattr(self, f"_{rule.action}")
            return lambda row: act(row, rule)
        commands = [Command(text, rule.on) for text in rule.commands]

        def fill(row: Row) -> list[Arguments]:
            lookup = Parameters(row, self._node, self._node_number).get
            return [command.fill(lookup) for command in commands]

        return fill

    # Clients

    def _on_client_connected(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        client = event.client_id.encode()
        at = seconds(event.at_ms)
        return [
            [
                *(b"HSET", b"mqtt:client:" + client),
                *(b"state", b"1", b"online_at", at, b"offline_at", UNDEFINED),
            ],
            [b"HSET", b"mqtt:node:" + self._node, client, at],
        ]

    def _on_client_disconnected(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        client = event.client_id.encode()
        return [
            [
                *(b"HSET", b"mqtt:client:" + client),
                *(b"state", b"0", b"offline_at", seconds(event.at_ms)),
            ],
            [b"HDEL", b"mqtt:node:" + self._node, client],
        ]

    # Subscriptions

    def _on_subscribed(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        key = b"mqtt:sub:" + event.client_id.encode()
        return [[b"HSET", key, event.text.encode(), b"%d" % event.qos]]

    def _on_unsubscribed(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        key = b"mqtt:sub:" + event.client_id.encode()
        if event.kind == SESSION_ENDED:
            return [[b"DEL", key]]
        return [[b"HDEL", key, event.text.encode()]]

    # Messages

    def _on_message_publish(self, message: Message, rule: Rule) -> list[Arguments]:
        name = message_id(message.accepted_at_ms, self._node_number, message.offset).encode()
        key = b"mqtt:msg:" + name
        score = b"%d" % message.accepted_at_ms if self._is_scored_by_time else b"1"
        found = [
            [b"HSET", key, *_fields(name, message)],
            [b"ZADD", b"mqtt:msg:" + message.topic.encode(), score, name],
        ]
        expires_s = _expires_s(message, rule)
        if expires_s:
            found.append([b"EXPIRE", key, b"%d" % expires_s])
        return found

    def _on_message_retain(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        message = decode_message(event.body, event.offset)
        key = b"mqtt:retain:" + event.text.encode()
        found = [
            [b"DEL", key],  # it may be of another type, or expire
            [b"HSET", key, *_fields(self._id_of(event), message)],
        ]
        expires_s = _expires_s(message, rule)
        if expires_s:
            found.append([b"EXPIRE", key, b"%d" % expires_s])
        return found

    def _on_retain_delete(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        return [[b"DEL", b"mqtt:retain:" + event.text.encode()]]

    # Acknowledgements

    def _on_message_acked_for_queue(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        name = self._id_of(event)
        return [
            [b"ZREM", b"mqtt:msg:" + event.text.encode(), name],
            [b"DEL", b"mqtt:msg:" + name],
            *([[b"DEL", CLAIM_KEY + name]] if event.body else ()),
        ]

    def _on_message_acked_for_pubsub(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        key = b":".join((b"mqtt:acked", event.client_id.encode(), event.text.encode()))
        return [[SETMAX, key, self._id_of(event)]]

    # What sessions fetch

    def _on_message_fetch_for_queue(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        """Claim a message for as long as a session has it in flight, or for nobody."""
        key, client = CLAIM_KEY + event.body, event.client_id.encode()
        if event.kind == RETURNED:
            return [[DELIF, key, LEASED + client, KEPT + client]]
        return [[b"SET", key, KEPT + client]]

    def _on_message_fetch_for_pubsub(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        """Do nothing: the position moves when the client acknowledges."""
        return []

    def _id_of(self, event: FeedEvent) -> bytes:
        return id_of(event, self._node_number)


def id_of(event: FeedEvent, node: int) -> bytes:
    """Return the identifier of the message that an event is about."""
    if event.kind in FOREIGN and event.body:
        return event.body
    if event.offset:
        return message_id(event.accepted_ms, node, event.offset).encode()
    return unstored_id(event.accepted_ms, node, event.seq).encode()


def seconds(ms: int) -> bytes:
    """Return a time in seconds since 1970, as text."""
    return b"%d" % (ms // 1000)


def _fields(name: bytes, message: Message) -> Arguments:
    return [
        *(b"id", name, b"from", message.publisher.encode()),
        *(b"qos", b"%d" % message.qos, b"topic", message.topic.encode()),
        *(b"payload", message.payload, b"ts", seconds(message.accepted_at_ms)),
        *(b"retain", _flag(message.retain)),
    ]


def _expires_s(message: Message, rule: Rule) -> int:
    """Return after how many seconds a message goes, 0 = never: its own expiry, or the rule's."""
    if message.expires_at_ms:
        return max(1, -(-(message.expires_at_ms - message.accepted_at_ms) // 1000))
    return rule.expires_s


def _flag(value: bool) -> bytes:
    return b"true" if value else b"false"


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
            return event.username.encode()
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
            return _flag(message.retain)
        if name == "dup":
            return _flag(False)  # it is accepted once
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


assert set(actions.ACTIONS["redis"]) == {
    name[1:] for name in vars(RedisActions) if name.startswith("_on_")
}
