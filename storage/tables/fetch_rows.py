"""The rows of what sessions fetch from external stores, and of the messages that they got there.

A row of `fetches` says that a subscription is looked up in a store, and how far that has come. It
is written with the subscription and goes with it. Others say that a store is asked for the
subscriptions of a client, or has begun one. A message that came from a store is a row of
`mailbox`, as a retained message is, and says what the store calls it. Read next:
`session.delivery.fetching.inbox` and docs/formats.md.
"""

import struct
from typing import Final

from mqtt.message import Message
from storage.errors import CorruptRecord
from storage.tables.message_record import decode_message, encode_message
from storage.tables.tables import client_prefix, seal, unseal

# What a subscription asks a store for.
QUEUE: Final = 1  # messages that nobody has acknowledged; each is for one session
PUBSUB: Final = 2  # messages after the session's own position
RETAIN: Final = 3  # the retained message of its topic
SUBSCRIPTIONS: Final = 4  # of a client: what others have subscribed it to
PROXIED: Final = 5  # not asked: a subscription that the store has begun, and not the client itself
FETCHES_KNOWN: Final = (QUEUE, PUBSUB)  # whose messages are told of when they are acknowledged
PROXY_ROWS: Final = (SUBSCRIPTIONS, PROXIED)
_ROWS_KNOWN: Final = (QUEUE, PUBSUB, RETAIN, SUBSCRIPTIONS, PROXIED)

MESSAGE_ID_BYTES_MAX: Final = 255

_VERSION: Final = 1
_FETCH: Final = struct.Struct(">BQ")  # version, when the subscription began; then the position
# In the first four bytes of a mailbox row, where subscription identifiers have 28 bits.
_FOREIGN: Final = 1 << 31
_IDENTIFIER: Final = (1 << 31) - 1
# version, what it was asked for as, sizes of the name of the store and of the message's id
_ORIGIN: Final = struct.Struct(">BBBB")


def fetch_key(client_id: str, backend: str, kind: int, topic: str) -> bytes:
    """Return the key of what a subscription asks a store for; a client does so without a topic."""
    return client_prefix(client_id) + client_prefix(backend) + bytes((kind,)) + topic.encode()


def split_fetch_key(key: bytes) -> tuple[str, str, int, str]:
    """Return (client identifier, name of the store, kind, topic). Raises `CorruptRecord`."""
    client_id, _, rest = key.partition(b"\0")
    backend, _, rest = rest.partition(b"\0")
    is_whole = bool(client_id and backend and rest) and rest[0] in _ROWS_KNOWN
    if not is_whole or (len(rest) == 1) != (rest[0] == SUBSCRIPTIONS):
        raise CorruptRecord(f"fetch: key of {len(key)} bytes, expected client, store, kind, topic")
    try:
        return client_id.decode(), backend.decode(), rest[0], rest[1:].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"fetch: {error}") from None


def encode_fetch(began_ms: int, position: str) -> bytes:
    """Return the value of a row of `fetches`.

    Of a retained message `began_ms` is the time before which it is not sent, and no position. Those
    of `PROXY_ROWS` have neither.
    """
    return seal(_FETCH.pack(_VERSION, began_ms) + position.encode())


def decode_fetch(value: bytes) -> tuple[int, str]:
    """Return (when the subscription began, position) of a row. Raises `CorruptRecord`."""
    body = unseal(value, "fetch")
    if len(body) < _FETCH.size or body[0] != _VERSION:
        raise CorruptRecord(f"fetch: version {body[:1].hex()} of {len(body)} bytes, expected 1")
    try:
        return _FETCH.unpack_from(body)[1], body[_FETCH.size :].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"fetch: {error}") from None


class Origin:
    """Where a message comes from that was fetched."""

    __slots__ = ("backend", "kind", "message_id")

    def __init__(self, backend: str, kind: int, message_id: str) -> None:
        self.backend: Final = backend
        self.kind: Final = kind
        self.message_id: Final = message_id  # what the store calls it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and (
            (self.backend, self.kind, self.message_id)
            == (other.backend, other.kind, other.message_id)
        )

    def __hash__(self) -> int:
        return hash((self.backend, self.kind, self.message_id))

    def __repr__(self) -> str:
        return f"Origin({self.backend!r}, {self.kind}, {self.message_id!r})"


class Copy:
    """A message that a session has in flight, and that is not in the log."""

    __slots__ = ("identifier", "message", "origin")

    def __init__(self, message: Message, identifier: int, origin: Origin | None) -> None:
        self.message: Final = message
        self.identifier: Final = identifier  # of its subscription, 0 = none
        self.origin: Final = origin  # None = it is a retained message of ours


def encode_copy(copy: Copy) -> bytes:
    """Return the value of a row of `mailbox`."""
    record = encode_message(copy.message)
    origin = copy.origin
    if origin is None:
        return copy.identifier.to_bytes(4, "big") + record
    backend, message_id = origin.backend.encode(), origin.message_id.encode()
    head = (_FOREIGN | copy.identifier).to_bytes(4, "big")
    sizes = _ORIGIN.pack(_VERSION, origin.kind, len(backend), len(message_id))
    return b"".join((head, sizes, backend, message_id, record))


def decode_copy(value: bytes) -> Copy:
    """Return the copy of a row of `mailbox`. Raises `CorruptRecord`."""
    identifier = int.from_bytes(value[:4], "big")
    if not identifier & _FOREIGN:
        return Copy(decode_message(value[4:], 0), identifier, None)
    try:
        version, kind, backend_size, id_size = _ORIGIN.unpack_from(value, 4)
        backend_end = 4 + _ORIGIN.size + backend_size
        id_end = backend_end + id_size
        if version != _VERSION or kind not in FETCHES_KNOWN:
            raise CorruptRecord(f"copy: version {version} and kind {kind}, expected 1 and 1 or 2")
        backend = value[4 + _ORIGIN.size : backend_end].decode()
        origin = Origin(backend, kind, value[backend_end:id_end].decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptRecord(f"copy: {error}") from None
    return Copy(decode_message(value[id_end:], 0), identifier & _IDENTIFIER, origin)
