"""Reads what a Redis store has, for a comparison with the broker.

One pass over the keys below `mqtt:` with SCAN, in pages: it takes as long as the store is large,
and no command takes long. Values are read in groups of a few MiB. Read next:
`broker.backends.comparing.listing`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from broker.backends.comparing import digests
from broker.backends.comparing.listing import (
    CLIENT,
    INDEX,
    MESSAGE,
    NOT_OURS,
    RETAINED,
    SUBSCRIPTION,
    Entry,
    Window,
    shown,
)
from broker.backends.message_ids import CHARACTERS, decode_id, number_of_id

PAGE: Final = 1000  # keys, or members of a key, for one command
GROUP_BYTES: Final = 4 << 20  # of payloads that are read at once, exceeded by one of them
MESSAGE_KEY: Final = b"mqtt:msg:"
RETAINED_KEY: Final = b"mqtt:retain:"
SUBSCRIPTION_KEY: Final = b"mqtt:sub:"
CLIENT_KEY: Final = b"mqtt:client:"
NODE_KEY: Final = b"mqtt:node:"
FIELDS: Final = (b"id", b"from", b"qos", b"topic", b"payload", b"ts", b"retain")


class RedisListing:
    """One pass over a store."""

    def __init__(self, client: Any, window: Window, servers: Sequence[Any]) -> None:
        """`client` reaches every key, `servers` are clients of each server that has some."""
        self._client: Final = client
        self._servers: Final = servers
        self._window: Final = window

    def entries(self) -> Iterator[Entry]:
        """Yield what there is. Raises the errors of the client."""
        kinds = self._window.kinds
        for keys in self._keys():
            if kinds & {MESSAGE, INDEX}:
                yield from self._messages([key for key in keys if key.startswith(MESSAGE_KEY)])
            if RETAINED in kinds:
                yield from self._retained([key for key in keys if key.startswith(RETAINED_KEY)])
            if SUBSCRIPTION in kinds:
                for key in keys:
                    if key.startswith(SUBSCRIPTION_KEY):
                        yield from self._subscriptions(key)
        if CLIENT in kinds:
            yield from self._clients()

    def _keys(self) -> Iterator[list[bytes]]:
        for server in self._servers:
            at = 0
            while True:
                at, keys = server.scan(at, match="mqtt:*", count=PAGE)
                yield keys
                if not at:
                    break

    # Messages

    def _messages(self, keys: list[bytes]) -> Iterator[Entry]:
        types = self._all("type", keys)
        bodies: list[bytes] = []
        for key, kind in zip(keys, types, strict=True):
            name = key[len(MESSAGE_KEY) :]
            if kind == b"zset":
                yield from self._index(name, key)
            elif kind == b"hash" and self._is_meant(name):
                bodies.append(key)
            elif kind == b"hash" and _is_recent(name, self._window):
                yield Entry(NOT_OURS, shown(key))
        for key, fields in self._hashes(bodies):
            name = key[len(MESSAGE_KEY) :]
            if fields[3] == name != fields[0]:
                continue  # the newest message of a topic that is named like an id
            number = number_of_id(name.decode())
            yield Entry(MESSAGE, shown(key), number=number, digest=_message(number, name, fields))

    def _index(self, topic: bytes, key: bytes) -> Iterator[Entry]:
        at = 0
        while True:
            at, members = self._client.zscan(key, at, count=PAGE)
            for name, _ in members:
                if self._is_meant(name):
                    number = number_of_id(name.decode())
                    found = digests.index_digest(number, topic)
                    yield Entry(INDEX, shown(key), number=number, digest=found)
            if not at:
                return

    def _is_meant(self, name: bytes) -> bool:
        """Is a text an id of our node, of the time in question?"""
        found = _decoded(name)
        window = self._window
        return (
            found is not None
            and found[1] == window.node_number
            and found[0] >= window.start_ms * 1000
        )

    # Sets

    def _retained(self, keys: list[bytes]) -> Iterator[Entry]:
        for key, fields in self._hashes(keys):
            topic = key[len(RETAINED_KEY) :]
            id_ = _decoded(fields[0] or b"")
            if id_ is None or id_[1] != self._window.node_number:
                yield Entry(NOT_OURS, shown(key))
                continue
            number = number_of_id((fields[0] or b"").decode())
            payload, qos = fields[4] or b"", _number(fields[2])
            found = digests.retained_digest(number, topic, fields[1] or b"", qos, payload)
            name = digests.name_of(RETAINED, topic)
            yield Entry(RETAINED, shown(key), name=name, text=shown(topic), digest=found)

    def _subscriptions(self, key: bytes) -> Iterator[Entry]:
        if self._client.type(key) != b"hash":
            return
        client_id = key[len(SUBSCRIPTION_KEY) :]
        at = 0
        while True:
            at, fields = self._client.hscan(key, at, count=PAGE)
            for topic_filter, qos in fields.items():
                found = digests.subscription_digest(client_id, topic_filter, _number(qos))
                name = digests.name_of(SUBSCRIPTION, client_id, topic_filter)
                text = shown(client_id, topic_filter)
                yield Entry(SUBSCRIPTION, shown(key), name=name, text=text, digest=found)
            if not at:
                return

    def _clients(self) -> Iterator[Entry]:
        key = NODE_KEY + self._window.node.encode()
        if self._client.type(key) != b"hash":
            return
        at = 0
        while True:
            at, fields = self._client.hscan(key, at, count=PAGE)
            ids = list(fields)
            with self._client.pipeline(transaction=False) as pipeline:
                for client_id in ids:
                    pipeline.hmget(CLIENT_KEY + client_id, b"state", b"online_at")
                told = pipeline.execute(raise_on_error=False)
            for client_id, values in zip(ids, told, strict=True):
                is_online = isinstance(values, list) and values[0] == b"1"
                online_at = values[1] if is_online and values[1] == fields[client_id] else b""
                found = digests.presence_digest(client_id, _number(online_at))
                name = digests.name_of(CLIENT, client_id)
                place = shown(CLIENT_KEY + client_id)
                yield Entry(CLIENT, place, name=name, text=shown(client_id), digest=found)
            if not at:
                return

    # Reading

    def _all(self, command: str, keys: list[bytes], *arguments: bytes) -> list[Any]:
        """Return the answers to one command for every key, an error in place of an answer."""
        if not keys:
            return []
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                getattr(pipeline, command)(key, *arguments)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        return answers

    def _hashes(self, keys: list[bytes]) -> Iterator[tuple[bytes, list[bytes | None]]]:
        """Yield each key that is a hash with its fields."""
        sizes = self._all("hstrlen", keys, b"payload")
        group: list[bytes] = []
        total = 0
        for key, size in zip(keys, sizes, strict=True):
            if isinstance(size, int):
                group.append(key)
                total += size
            if total >= GROUP_BYTES:
                yield from self._read(group)
                group, total = [], 0
        yield from self._read(group)

    def _read(self, keys: list[bytes]) -> Iterator[tuple[bytes, list[bytes | None]]]:
        for key, fields in zip(keys, self._all("hmget", keys, *FIELDS), strict=True):
            if isinstance(fields, list) and any(field is not None for field in fields):
                yield key, fields


def _message(number: int, name: bytes, fields: list[bytes | None]) -> int:
    """Return the digest of a message, 0 if a field is missing or is about another one."""
    id_, publisher, qos, topic, payload, accepted_s, retain = fields
    if id_ != name or None in (publisher, topic, payload):
        return 0
    return digests.message_digest(
        number,
        topic or b"",
        publisher or b"",
        _number(qos),
        payload or b"",
        retain=retain == b"true",
        accepted_s=_number(accepted_s),
    )


def _number(value: bytes | None) -> int:
    """Return a number, -1 for what is none."""
    text = value or b""
    return int(text) if text.isdigit() and len(text) < 20 else -1


def _decoded(name: bytes) -> tuple[int, int, int] | None:
    if len(name) != CHARACTERS:
        return None
    try:
        return decode_id(name.decode("ascii"))
    except ValueError:
        return None


def _is_recent(name: bytes, window: Window) -> bool:
    """Is a text an id of the time in question, of whatever node?"""
    found = _decoded(name)
    return found is not None and found[0] >= window.start_ms * 1000
