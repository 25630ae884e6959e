"""The keys and values of all rows that are not in the message log, one function per kind.

Column families, keys and values are described in docs/formats.md and pinned by golden files. Values
encoded elsewhere (session records) arrive as bytes. Every value is sealed with a CRC-32, so that a
damaged row is detected and never used. This module does no I/O of its own: it adds changes to a
batch or asks the given store. Read next: `storage.tables.timers`, `storage.log.message_log`.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from storage.api import Batch, Row, Store
from storage.errors import CorruptRecord, DamagedRows

META: Final = "meta"
SESSIONS: Final = "sessions"
SUBSCRIPTIONS: Final = "subscriptions"
HOLDERS: Final = "holders"
FILTERS: Final = "filters"
INCOMING: Final = "incoming"
MAILBOX: Final = "mailbox"
GROUPS: Final = "groups"
RETAINED: Final = "retained"
DUE: Final = "due"
CONNECTIONS: Final = "connections"
HISTORY: Final = "history"
BOOKS: Final = "books"
FEED: Final = "feed"  # what external stores are told besides messages
BACKENDS: Final = "backends"  # how far each of them has come
PRESENCE: Final = "presence"  # who they were told is connected
DEAD_LETTERS: Final = "dead_letters"  # what they refused
FETCHES: Final = "fetches"  # what sessions ask them for
BANS: Final = "bans"  # who may not connect

FAMILIES: Final = (
    META,
    SESSIONS,
    SUBSCRIPTIONS,
    HOLDERS,
    FILTERS,
    INCOMING,
    MAILBOX,
    GROUPS,
    RETAINED,
    DUE,
    CONNECTIONS,
    HISTORY,
    BOOKS,
    FEED,
    BACKENDS,
    PRESENCE,
    DEAD_LETTERS,
    FETCHES,
    BANS,
)

FORMAT_KEY: Final = b"format"
FORMAT_VERSION: Final = 1
TOTALS_KEY: Final = b"totals"
BOOT_KEY: Final = b"boot"

SCAN_PAGE: Final = 512  # rows per page: a page of small rows stays below 64 KiB

_CRC: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_FILTER: Final = struct.Struct(">BQI")
_TOTALS: Final = struct.Struct(">BQQQQ")
_BOOT: Final = struct.Struct(">BQQ")


def seal(body: bytes) -> bytes:
    """Return `body` with its CRC-32 in front."""
    return _CRC.pack(zlib.crc32(body)) + body


def unseal(value: bytes, what: str) -> bytes:
    """Return the body of a sealed value; raises `CorruptRecord` naming `what` if it is damaged."""
    if len(value) < 4:
        raise CorruptRecord(f"{what}: value of {len(value)} bytes, expected a checksum first")
    body = value[4:]
    if _CRC.unpack_from(value)[0] != zlib.crc32(body):
        raise CorruptRecord(f"{what}: checksum does not match its {len(body)} bytes")
    return body


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys that start with `prefix` (which ends below 0xFF)."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def scan_all(
    store: Store,
    family: str,
    start: bytes,
    stop: bytes | None,
    damages: list[DamagedRows] | None = None,
) -> Iterator[Row]:
    """Yield every row with start <= key < stop, page by page.

    With `damages` it passes over what cannot be read, as `scan_readable` does.
    """
    while True:
        if damages is None:
            rows = store.scan(family, start, stop, count=SCAN_PAGE)
        else:
            rows = scan_readable(store, family, start, stop, damages, count=SCAN_PAGE)
        yield from rows
        if len(rows) < SCAN_PAGE:
            return
        start = rows[-1][0] + b"\0"


def scan_readable(
    store: Store,
    family: str,
    start: bytes,
    stop: bytes | None,
    damages: list[DamagedRows],
    *,
    count: int,
) -> list[Row]:
    """Return at most `count` rows with start <= key < stop that can be read; fewer are the end.

    Adds an error to `damages` for each place that it passes over.
    """
    rows: list[Row] = []
    while True:
        try:
            found = store.scan(family, start, stop, count=count - len(rows))
            return rows + found if rows else found
        except DamagedRows as damage:
            damages.append(damage)
            rows += damage.rows
            if damage.resume is None or (stop is not None and damage.resume >= stop):
                return rows
            start = damage.resume


def scan_prefix(store: Store, family: str, prefix: bytes) -> Iterator[Row]:
    """Yield every row whose key starts with `prefix`."""
    return scan_all(store, family, prefix, prefix_end(prefix))


# Keys. A client_id holds no U+0000 [MQTT-1.5.4-2], so a zero byte ends it.


def client_prefix(client_id: str) -> bytes:
    """Return the prefix of a client's rows, in families whose keys begin with client_id."""
    return client_id.encode() + b"\0"


def subscription_key(client_id: str, topic_filter: str) -> bytes:
    """Return the key of one subscription ($share filters unabridged)."""
    return client_id.encode() + b"\0" + topic_filter.encode()


def incoming_key(client_id: str, packet_id: int) -> bytes:
    """Return the key of an inbound QoS 2 packet id that waits for its PUBREL."""
    return client_id.encode() + b"\0" + packet_id.to_bytes(2, "big")


def mailbox_key(client_id: str, number: int) -> bytes:
    """Return the key of a message owed to a session that is not from one of its streams."""
    return client_id.encode() + b"\0" + number.to_bytes(8, "big")


def session_holder(client_id: str) -> bytes:
    """Return the holder name of a session."""
    return b"c" + client_id.encode()


def group_holder(share_name: str) -> bytes:
    """Return the holder name of a shared subscription's group."""
    return b"g" + share_name.encode()


def backend_holder(name: str) -> bytes:
    """Return the holder name of a backend."""
    return b"b" + name.encode()


def holder_key(filter_id: int, holder: bytes) -> bytes:
    """Return the key of the row that makes `holder` a reader of the stream `filter_id`."""
    return _U64.pack(filter_id) + holder


def group_key(share_name: str, topic_filter: str) -> bytes:
    """Return the key of a shared subscription; a share name contains no zero byte either."""
    return share_name.encode() + b"\0" + topic_filter.encode()


def split_group_key(key: bytes) -> tuple[str, str]:
    """Return (share name, topic filter) of a group's key."""
    share_name, _, topic_filter = key.partition(b"\0")
    return share_name.decode(), topic_filter.decode()


def retained_key(topic: str) -> bytes:
    """Return the key of a retained message.

    Levels are separated by a zero byte, which no topic contains and which sorts first. So all
    topics below a level are adjacent, and a wildcard look-up can seek instead of scan.
    """
    return topic.encode().replace(b"/", b"\0")


def retained_topic(key: bytes) -> str:
    """Return the topic of a retained message's key."""
    return key.replace(b"\0", b"/").decode()


# Values


def encode_filter(filter_id: int, holders: int) -> bytes:
    """Return the value of a durable topic filter."""
    return seal(_FILTER.pack(1, filter_id, holders))


def decode_filter(value: bytes) -> tuple[int, int]:
    """Return (filter_id, holders)."""
    body = unseal(value, "filter")
    if len(body) != _FILTER.size or body[0] != 1:
        raise CorruptRecord(f"filter: version {body[:1].hex()} of {len(body)} bytes, expected 1")
    _, filter_id, holders = _FILTER.unpack(body)
    return filter_id, holders


def encode_since(since: int) -> bytes:
    """Return the value of a holder row: the offset after which the holder is owed messages."""
    return _U64.pack(since)


class Totals:
    """Counts that would otherwise need a scan, in one row written with the rows they count."""

    __slots__ = ("next_filter_id", "retained", "sessions", "subscriptions")

    def __init__(
        self, sessions: int = 0, retained: int = 0, subscriptions: int = 0, next_filter_id: int = 1
    ) -> None:
        self.sessions = sessions
        self.retained = retained
        self.subscriptions = subscriptions
        self.next_filter_id = next_filter_id

    def encode(self) -> bytes:
        """Return the row's value."""
        return seal(
            _TOTALS.pack(1, self.sessions, self.retained, self.subscriptions, self.next_filter_id)
        )


def load_totals(store: Store) -> Totals:
    """Return the totals, all 0 for a new store. Raises `CorruptRecord`."""
    value = store.get(META, TOTALS_KEY)
    if value is None:
        return Totals()
    body = unseal(value, "totals")
    if len(body) != _TOTALS.size or body[0] != 1:
        raise CorruptRecord(f"totals: version {body[:1].hex()} of {len(body)} bytes, expected 1")
    _, sessions, retained, subscriptions, next_filter_id = _TOTALS.unpack(body)
    return Totals(sessions, retained, subscriptions, next_filter_id)


def encode_boot(boot: int, told: int) -> bytes:
    """Return the value of the row that counts the starts of the broker.

    `told` is a lower bound of the events in the history of this boot, exported or not.
    """
    return seal(_BOOT.pack(1, boot, told))


def load_boot(store: Store) -> tuple[int, int]:
    """Return (boot, told) as `encode_boot` wrote them, (0, 0) for a new store.

    Raises `CorruptRecord`.
    """
    value = store.get(META, BOOT_KEY)
    if value is None:
        return 0, 0
    body = unseal(value, "boot")
    if len(body) != _BOOT.size or body[0] != 1:
        raise CorruptRecord(f"boot: version {body[:1].hex()} of {len(body)} bytes, expected 1")
    _, boot, told = _BOOT.unpack(body)
    return boot, told


def check_format(store: Store, batch: Batch) -> None:
    """Check the format version of the store; add it to `batch` if the store is new.

    Raises `CorruptRecord` if it cannot be read or is not the version of this program.
    """
    value = store.get(META, FORMAT_KEY)
    if value is None:
        batch.append((META, FORMAT_KEY, seal(FORMAT_VERSION.to_bytes(2, "big"))))
        return
    body = unseal(value, "format")
    if len(body) != 2:
        raise CorruptRecord(f"format: {len(body)} bytes, expected 2")
    version = int.from_bytes(body, "big")
    if version != FORMAT_VERSION:
        raise CorruptRecord(
            f"data format {version}, but this version of Holdfast reads format {FORMAT_VERSION}"
        )
