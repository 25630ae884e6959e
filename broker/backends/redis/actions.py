"""What the rules of a Redis backend do: the commands for each row.

Keys and fields are those that others have used for years, so that applications find what they know.
Some are no commands of Redis but our own (`broker.backends.redis.scripts`). Pure. Read next:
`broker.backends.redis.sink`, which applies them.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from broker.backends import actions
from broker.backends.message_ids import message_id, node_number
from broker.backends.parameters import Parameters, expires_s, flag, id_of, seconds
from broker.backends.redis.inbox import CLAIM_KEY, KEPT, LEASED
from broker.backends.redis.scripts import DELIF, NEWEST, SETMAX
from broker.backends.rows import Row, RowBatch, opened
from broker.backends.sink import Options, Poison, Rule, place_of
from broker.backends.templates import Command
from mqtt.message import Message
from storage.tables.feed_rows import RETURNED, SESSION_ENDED, FeedEvent
from storage.tables.message_record import decode_message

Arguments: TypeAlias = list[bytes]
Act: TypeAlias = Callable[[Row], list[Arguments]]

UNDEFINED: Final = b"undefined"


class Commands:
    """The commands of a batch, in order, and what nothing could be made of."""

    __slots__ = ("commands", "places", "poisons", "told")

    def __init__(self) -> None:
        self.commands: Final[list[Arguments]] = []
        self.told: Final[list[tuple[int, int]]] = []  # row and rule of each command
        self.places: Final[list[str]] = []  # position, seq and rule of each, as texts
        self.poisons: Final[list[Poison]] = []

    def refuse(self, number: int, why: str) -> None:
        """Note that the server has refused a command."""
        self.poisons.append(Poison(*self.told[number], why))


class RedisActions:
    """The rules of one backend."""

    def __init__(self, options: Options) -> None:
        """Raises ValueError for a command that cannot be parsed."""
        self._node: Final = options.node.encode()
        self._node_number: Final = node_number(options.node)
        self._is_scored_by_time: Final = options.values.get("score", "time") == "time"
        self._type: Final = options.type
        self._rules: Final = [(rule, self._act_of(rule)) for rule in options.rules]

    def fill(self, batch: RowBatch) -> Commands:
        """Return the commands of a batch."""
        made = Commands()
        for index, row in enumerate(batch.rows):
            try:
                found = self.commands(row)
            except Exception as bug:  # boundary: one row must not stop all behind it
                made.poisons.append(Poison(index, 0, f"{type(bug).__name__}: {bug}"))
                continue
            position, seq = place_of(row, batch)
            for rule, command in found:
                made.commands.append(command)
                made.told.append((index, rule))
                made.places.append(f"{position},{seq},{rule}")
        return made

    def commands(self, row: Row) -> list[tuple[int, Arguments]]:
        """Return the commands of a row, each with the number of its rule."""
        found: list[tuple[int, Arguments]] = []
        for rule, act in self._rules:
            if rule.takes(row, self._type):
                found += [(rule.number, arguments) for arguments in act(opened(row))]
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
        expiry_s = expires_s(message, rule)
        if expiry_s:
            found.append([b"EXPIRE", key, b"%d" % expiry_s])
        return found

    def _on_message_store(self, message: Message, rule: Rule) -> list[Arguments]:
        return self._on_message_publish(message, rule)

    def _on_message_store_keep_latest(self, message: Message, rule: Rule) -> list[Arguments]:
        """Replace the newest message of the topic, unless that is newer."""
        name = message_id(message.accepted_at_ms, self._node_number, message.offset).encode()
        key = b"mqtt:msg:" + message.topic.encode()
        expiry = b"%d" % expires_s(message, rule)
        return [[NEWEST, key, name, expiry, *_fields(name, message)]]

    def _on_message_retain(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        message = decode_message(event.body, event.offset)
        key = b"mqtt:retain:" + event.text.encode()
        found = [
            [b"DEL", key],  # it may be of another type, or expire
            [b"HSET", key, *_fields(self._id_of(event), message)],
        ]
        expiry_s = expires_s(message, rule)
        if expiry_s:
            found.append([b"EXPIRE", key, b"%d" % expiry_s])
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

    def _on_message_acked_for_keep_latest(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        return self._on_message_acked_for_pubsub(event, rule)

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

    def _on_message_fetch_for_keep_latest(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        """Do nothing: as above."""
        return []

    def _on_retain_lookup(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        """Do nothing: the store is only asked."""
        return []

    def _on_subscribe_lookup(self, event: FeedEvent, rule: Rule) -> list[Arguments]:
        """Do nothing: the store is only asked."""
        return []

    def _id_of(self, event: FeedEvent) -> bytes:
        return id_of(event, self._node_number)


def _fields(name: bytes, message: Message) -> Arguments:
    return [
        *(b"id", name, b"from", message.publisher.encode()),
        *(b"qos", b"%d" % message.qos, b"topic", message.topic.encode()),
        *(b"payload", message.payload, b"ts", seconds(message.accepted_at_ms)),
        *(b"retain", flag(message.retain)),
    ]


assert set(actions.ACTIONS["redis"]) == {
    name[1:] for name in vars(RedisActions) if name.startswith("_on_")
}
