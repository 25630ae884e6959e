"""The rows of the feed: what external stores are told besides messages.

A row holds the events of one tick, in their order; its key is the number of the first one. An event
says where the log ended when it happened, so events and messages together are in one order. Read
next: `session.feed.recorder`, which writes the rows, and docs/formats.md.
"""

import struct
from typing import Final

from mqtt.message import Message
from storage.errors import CorruptRecord
from storage.tables.message_record import decode_message
from storage.tables.tables import seal, unseal

CONNECTED: Final = 1
DISCONNECTED: Final = 2
SUBSCRIBED: Final = 3
UNSUBSCRIBED: Final = 4
ACKED: Final = 5
DELIVERED: Final = 6
RETAINED: Final = 7
RETAIN_DELETED: Final = 8
SESSION_ENDED: Final = 9
GAP: Final = 10
RETURNED: Final = 11
AGAIN: Final = 12  # a dead letter: rule in `text`, number in `offset`, backend in `username`
SENT: Final = 13  # a message to a client; `body` is the id of one that came from a store
PUBLISHED: Final = 14  # a message with QoS 0 that is not in the log; `body` is its record
KINDS: Final = (
    CONNECTED,
    DISCONNECTED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    ACKED,
    DELIVERED,
    RETAINED,
    RETAIN_DELETED,
    SESSION_ENDED,
    GAP,
    RETURNED,
    AGAIN,
    SENT,
    PUBLISHED,
)
# Of messages that came from a store: `body` is what it calls them, `username` its own name.
FOREIGN: Final = (ACKED, DELIVERED, RETURNED)

# A backfill tells one store what was there before; the name of the backend is in `username`, and of
# CONNECTED, which has a user name of its own, in `body`.
FILLED: Final = (SUBSCRIBED, RETAINED)
# Before the name of the backend in `username` of RETAINED: the message comes from that store.
NOT_FOR: Final = "-"
# In place of an offset: the message is not in the log, the rest is the number of its event.
UNSTORED: Final = 1 << 47

# Version 1 has the kinds up to SENT, and no user names but those of connections.
_VERSION: Final = 2
_FIRST_VERSION: Final = 1
_COUNT: Final = struct.Struct(">BI")  # version, events
_NAMED: Final = 0x80  # in the kind of an event: the user name of its client follows the body
_NAME: Final = struct.Struct(">H")  # its size
# kind, qos, at, end, offset, accepted, sizes of client identifier, text, user name and body
_EVENT: Final = struct.Struct(">BBQQQQHHHI")
_KEY: Final = struct.Struct(">Q")


class FeedEvent:
    """One event that a store may want to know."""

    __slots__ = (
        "accepted_ms",
        "at_ms",
        "body",
        "client_id",
        "client_username",
        "end",
        "kind",
        "offset",
        "qos",
        "seq",
        "text",
        "username",
    )

    def __init__(
        self,
        kind: int,
        at_ms: int,
        end: int,
        client_id: str,
        text: str = "",
        *,
        qos: int = 0,
        offset: int = 0,
        accepted_ms: int = 0,
        username: str = "",
        body: bytes = b"",
        client_username: str = "",
        seq: int = 0,
    ) -> None:
        self.kind: int = kind
        self.at_ms: int = at_ms  # broker time
        self.end: int = end  # of the log: all messages up to this offset come before the event
        self.client_id: str = client_id
        self.text: str = text  # a topic or a topic filter
        self.qos: int = qos
        self.offset: int = offset  # of the message it is about, 0 = that is not in the log
        self.accepted_ms: int = accepted_ms  # when that was accepted, broker time
        self.username: str = username  # of a connection; of other kinds: of which backend it is
        self.body: bytes = body  # the record of a message
        # The user name of the client where `username` is something else, "" = none or not known.
        self.client_username: str = client_username
        self.seq: int = seq  # its number in the feed, from 1 on

    def __repr__(self) -> str:
        return f"FeedEvent({self.seq}, kind {self.kind}, {self.client_id!r}, {self.text!r})"


def username_of(event: FeedEvent) -> str:
    """Return the user name of the client that an event is about, "" = none, or it is not known."""
    is_connection = event.kind in (CONNECTED, DISCONNECTED)
    return event.username if is_connection else event.client_username


def message_of(event: FeedEvent) -> Message:
    """Return the message of PUBLISHED; its offset says that it has none, and names the event.

    Raises `CorruptRecord`.
    """
    return decode_message(event.body, UNSTORED | event.seq)


def filled_for(event: FeedEvent) -> str:
    """Return the backend whose backfill has made an event, "" = it is for all of them."""
    if event.kind in FILLED:
        return "" if event.username.startswith(NOT_FOR) else event.username
    return event.body.decode() if event.kind == CONNECTED else ""


def is_for(name: str, event: FeedEvent) -> bool:
    """May the backend `name` be told of an event, if it wants such ones?"""
    if event.kind == AGAIN:
        return event.username == name
    if event.kind == GAP and event.body and event.body != name.encode():
        return False
    if event.kind in FOREIGN and event.username and event.username != name:
        return False  # it is about a message of another store
    if event.kind == RETAINED and event.username == NOT_FOR + name:
        return False  # it comes from there
    return filled_for(event) in ("", name)


def feed_key(seq: int) -> bytes:
    """Return the key of the row whose first event has the number `seq`."""
    return _KEY.pack(seq)


def split_feed_key(key: bytes) -> int:
    """Return the number of the first event of a row. Raises `CorruptRecord`."""
    if len(key) != _KEY.size:
        raise CorruptRecord(f"feed: key of {len(key)} bytes, expected {_KEY.size}")
    return int.from_bytes(key, "big")


def encode_event(event: FeedEvent) -> bytes:
    """Return an event without its number."""
    client_id = event.client_id.encode()
    text = event.text.encode()
    username = event.username.encode()
    name = event.client_username.encode()
    head = _EVENT.pack(
        event.kind | _NAMED if name else event.kind,
        event.qos,
        event.at_ms,
        event.end,
        event.offset,
        event.accepted_ms,
        len(client_id),
        len(text),
        len(username),
        len(event.body),
    )
    parts = [head, client_id, text, username, event.body]
    if name:
        parts += (_NAME.pack(len(name)), name)
    return b"".join(parts)


def decode_event(data: bytes, seq: int, at: int = 0) -> tuple[FeedEvent, int]:
    """Return the event that begins at `at`, with its number, and where it ends.

    Raises `CorruptRecord`.
    """
    try:
        kind, qos, at_ms, end, offset, accepted_ms, *sizes = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        parts: list[bytes] = []
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        if kind & _NAMED:
            kind ^= _NAMED
            (size,) = _NAME.unpack_from(data, at)
            at += _NAME.size
            parts.append(data[at : at + size])
            at += size
        if at > len(data):
            raise CorruptRecord(f"feed event {seq}: {len(data)} bytes, expected {at}")
        event = FeedEvent(
            kind,
            at_ms,
            end,
            parts[0].decode(),
            parts[1].decode(),
            qos=qos,
            offset=offset,
            accepted_ms=accepted_ms,
            username=parts[2].decode(),
            body=parts[3],
            client_username=parts[4].decode() if len(parts) > 4 else "",
            seq=seq,
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptRecord(f"feed event {seq}: {error}") from None
    if kind not in KINDS:
        raise CorruptRecord(f"feed event {seq}: kind {kind} is not known to version {_VERSION}")
    return event, at


def encode_row(events: list[FeedEvent]) -> bytes:
    """Return the value of the row of a tick's events."""
    is_new = any(event.kind > SENT or event.client_username for event in events)
    pieces = [_COUNT.pack(_VERSION if is_new else _FIRST_VERSION, len(events))]
    pieces += [encode_event(event) for event in events]
    return seal(b"".join(pieces))


def decode_row(key: bytes, value: bytes) -> list[FeedEvent]:
    """Return the events of a row, with their numbers. Raises `CorruptRecord`."""
    seq = split_feed_key(key)
    body = unseal(value, f"feed row {seq}")
    if len(body) < _COUNT.size or body[0] not in (_FIRST_VERSION, _VERSION):
        raise CorruptRecord(f"feed row {seq}: version {body[:1].hex()}, expected 1 or {_VERSION}")
    count = _COUNT.unpack_from(body)[1]
    events: list[FeedEvent] = []
    at = _COUNT.size
    while len(events) < count:
        event, at = decode_event(body, seq + len(events), at)
        events.append(event)
    if at != len(body):
        raise CorruptRecord(f"feed row {seq}: {len(body)} bytes, expected {at}")
    return events
