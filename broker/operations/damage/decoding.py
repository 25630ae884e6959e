"""Decodes every kind of row, only to see whether it can be decoded.

Must know every family that a broker writes. Read next: `storage.tables.tables`.
"""

import ipaddress
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from mqtt.topics import split_shared
from session.feed.dead_letters import decode_dead_letter
from session.feed.recorder import IN_MEMORY, STORED
from session.history.stage_counts import decode_book
from session.state.backend_record import BackendRecord, decode_backend
from session.state.records import decode_session
from session.state.session import Session
from session.state.shared_group_record import decode_group
from session.state.subscription import Subscription, decode_subscription
from session.state.will_record import decode_connection
from storage.errors import CorruptRecord
from storage.history.packed_rows import split_history_key, unpack
from storage.log.generations import ROW_PREFIX, decode_generation
from storage.replicated.applied import POSITION_KEY, decode_reached
from storage.tables.ban_rows import ADDRESS, decode_ban, split_ban_key
from storage.tables.feed_rows import decode_row
from storage.tables.fetch_rows import decode_copy, decode_fetch, split_fetch_key
from storage.tables.message_record import decode_message
from storage.tables.tables import (
    BACKENDS,
    BANS,
    BOOKS,
    BOOT_KEY,
    CONNECTIONS,
    DEAD_LETTERS,
    DUE,
    FEED,
    FETCHES,
    FILTERS,
    FORMAT_KEY,
    GROUPS,
    HISTORY,
    HOLDERS,
    INCOMING,
    MAILBOX,
    META,
    PRESENCE,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    TOTALS_KEY,
    decode_filter,
    retained_topic,
    split_group_key,
    unseal,
)
from storage.tables.timers import RETAINED as DUE_RETAINED
from storage.tables.timers import SESSION, WILL
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

T = TypeVar("T")

# What a damaged value may raise in a decoder.
UNDECODABLE: Final = (CorruptRecord, ValueError, struct.error, IndexError)
META_SIZES: Final = {FORMAT_KEY: 2, TOTALS_KEY: 33, BOOT_KEY: 17}
DUE_HEAD: Final = struct.Struct(">QB")


def try_decode(decode: Callable[[bytes, bytes], T], key: bytes, value: bytes) -> T | str:
    """Return the decoded row, or what is wrong with it as one line."""
    try:
        return decode(key, value)
    except UNDECODABLE as error:
        return " ".join(str(error).split())


def session(key: bytes, value: bytes) -> Session:
    """Return the session of a row, without its subscriptions."""
    return decode_session(key.decode(), unseal(value, "session"))


def split_client(key: bytes) -> tuple[str, bytes]:
    """Return (client id, rest) of a key; raises ValueError."""
    client_id, zero, rest = key.partition(b"\0")
    if not zero:
        raise ValueError(f"key {key!r} without a client id")
    return client_id.decode(), rest


def subscription(key: bytes, value: bytes) -> tuple[str, Subscription]:
    """Return (client id, subscription) of a row."""
    client_id, rest = split_client(key)
    topic_filter = rest.decode()
    shared = split_shared(topic_filter)
    share_name, stream_filter = shared if shared else (None, topic_filter)
    body = unseal(value, "subscription")
    return client_id, decode_subscription(topic_filter, share_name, stream_filter, body)


def due(key: bytes, value: bytes) -> tuple[int, int, bytes]:
    """Return (time, kind, name) of a timer."""
    body = unseal(value, "timer")
    at_ms, kind = DUE_HEAD.unpack_from(key)
    if kind not in (WILL, SESSION, DUE_RETAINED):
        raise ValueError(f"timer of kind {kind}")
    if kind == WILL and decode_connection(body).will is None:
        raise ValueError("timer of a will without the will")
    return at_ms, kind, key[DUE_HEAD.size :]


def holder(key: bytes, value: bytes) -> tuple[int, bytes, int]:
    """Return (filter id, holder, since) of a row."""
    if len(key) < 9 or key[8:9] not in (b"c", b"g", b"b") or len(value) != 8:
        raise ValueError(f"holder of {len(key)} and {len(value)} bytes")
    return int.from_bytes(key[:8]), key[8:], int.from_bytes(value)


def _meta(key: bytes, value: bytes) -> None:
    if key == HEARTBEAT_KEY:
        Heartbeat.decode(value)
    elif key.startswith(ROW_PREFIX):
        decode_generation(value, int.from_bytes(key[len(ROW_PREFIX) :]))
    elif key == POSITION_KEY:
        decode_reached(value)
    elif key in META_SIZES and len(unseal(value, key.decode())) != META_SIZES[key]:
        raise ValueError(f"{key.decode()}: {len(value)} bytes, expected {META_SIZES[key] + 4}")


def _incoming(key: bytes, value: bytes) -> None:
    if len(split_client(key)[1]) != 2 or value != b"\x01":
        raise ValueError(f"inbound packet id of {len(key)} and {len(value)} bytes")


def _mailbox(key: bytes, value: bytes) -> None:
    if len(split_client(key)[1]) != 8:
        raise ValueError(f"copy of a message under a key of {len(key)} bytes")
    decode_copy(value)


def _group(key: bytes, value: bytes) -> None:
    split_group_key(key)
    decode_group(unseal(value, "shared subscription"))


def _filter(key: bytes, value: bytes) -> None:
    key.decode()
    decode_filter(value)


def _retained(key: bytes, value: bytes) -> None:
    if decode_message(value, 0).topic != retained_topic(key):
        raise ValueError(f"retained message under the key {key!r} of another topic")


def _connection(key: bytes, value: bytes) -> None:
    key.decode()
    decode_connection(unseal(value, "connection"))


def _history(key: bytes, value: bytes) -> None:
    _, first_seq = split_history_key(key)
    row = unpack(unseal(value, "history row"))
    if row.first_seq != first_seq:
        raise ValueError(f"history row begins at {row.first_seq}, expected {first_seq}")


def _book(key: bytes, value: bytes) -> None:
    decode_book(key, value)


def backend(key: bytes, value: bytes) -> BackendRecord:
    """Return the record of a backend."""
    return decode_backend(unseal(value, f"backend {key.decode()!r}"))


def _presence(key: bytes, value: bytes) -> None:
    if not key.decode() or value not in (STORED, IN_MEMORY):
        raise ValueError(f"presence of {len(key)} and {len(value)} bytes")


def _dead_letter(key: bytes, value: bytes) -> None:
    split_client(key)
    decode_dead_letter(value)


def _fetch(key: bytes, value: bytes) -> None:
    split_fetch_key(key)
    decode_fetch(value)


def _ban(key: bytes, value: bytes) -> None:
    kind, name = split_ban_key(key)
    if kind == ADDRESS:
        ipaddress.ip_network(name)
    decode_ban(value)


# Families whose rows are also decoded where their content is needed.
DECODERS: Final[dict[str, Callable[[bytes, bytes], object]]] = {
    META: _meta,
    SESSIONS: session,
    SUBSCRIPTIONS: subscription,
    HOLDERS: holder,
    FILTERS: _filter,
    INCOMING: _incoming,
    MAILBOX: _mailbox,
    GROUPS: _group,
    RETAINED: _retained,
    DUE: due,
    CONNECTIONS: _connection,
    HISTORY: _history,
    BOOKS: _book,
    FEED: decode_row,
    BACKENDS: backend,
    PRESENCE: _presence,
    DEAD_LETTERS: _dead_letter,
    FETCHES: _fetch,
    BANS: _ban,
}
