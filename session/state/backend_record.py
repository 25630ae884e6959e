"""The durable state of one external store: how far it has come, and which filters it follows.

`cursor` is what the store has confirmed, `floor` the oldest cursor from which it may read again: it
may lose its newest rows. A cursor is (offset in the log, number of an event); everything up to both
was applied. Rows between the cursor and `given_up` will not come: there were too many. The floor
is not before the cursor of that time, and `given_up` counts until the floor has passed it. Read
next: `session.feed.outlet`, `session.state.told_record` (what the history has to be told), and
`session.feed.backfill`, which moves `fill`.
"""

import struct
from typing import Final, TypeAlias

from session.state.records import RecordReader
from session.state.told_record import Told, encode_told, take_told

Cursor: TypeAlias = tuple[int, int]

_VERSION: Final = 3  # version 1 has no retries, version 2 nothing behind them
# version, cursor, floor, dead letters now, number of the last one, size of the instance, filters
_HEAD: Final = struct.Struct(">BQQQQIQBI")
_FILTER: Final = struct.Struct(">QH")  # since, size of the filter
_RETRIES: Final = struct.Struct(">I")
_RETRY: Final = struct.Struct(">QQ")  # number of the event, number of the dead letter
# Up to which cursor, the first message among it that was wanted, the first event.
_GIVEN_UP: Final = struct.Struct(">QQQQ")
# parts to do, rows told, begun, ended, size of the key
_FILL: Final = struct.Struct(">BQQQI")

# The parts of a backfill, in their order.
SUBSCRIPTIONS: Final = 1
RETAINED: Final = 2
PRESENCE: Final = 4  # with what clients subscribe to whose sessions are in memory
PARTS: Final = (SUBSCRIPTIONS, RETAINED, PRESENCE)


class Fill:
    """A backfill: which parts are left, and how far the first of them is."""

    __slots__ = ("after", "begun_ms", "ended_ms", "parts", "rows")

    def __init__(self, parts: int, begun_ms: int) -> None:
        self.parts: int = parts  # bits that are left; the lowest one is worked on
        self.begun_ms: int = begun_ms  # broker time
        self.ended_ms: int = 0  # when the last row was put into the feed, 0 = it goes on
        self.rows: int = 0  # put into the feed so far
        self.after: bytes = b""  # rows of the database before this key are done


class BackendRecord:
    """The stored state of a backend."""

    __slots__ = (
        "cursor",
        "dead_letters",
        "fill",
        "filters",
        "floor",
        "given_up",
        "given_up_event",
        "given_up_message",
        "instance",
        "last_dead_letter",
        "retries",
        "told",
    )

    def __init__(self, instance: str, cursor: Cursor) -> None:
        self.instance: str = instance  # marks the rows that this database has written to the store
        self.cursor: Cursor = cursor
        self.floor: Cursor = cursor
        self.dead_letters: int = 0
        self.last_dead_letter: int = 0
        self.filters: dict[str, int] = {}  # with the offset after which its messages are owed
        # Dead letters that are sent again: number of the event -> number of the letter.
        self.retries: dict[int, int] = {}
        # What was given up lies between the cursor of that time and this one, (0, 0) = nothing.
        self.given_up: Cursor = (0, 0)
        self.given_up_message: int = 0  # offset of the first one that was wanted, 0 = none was
        self.given_up_event: int = 0  # number of the first one, 0 = there was none
        self.told: Told = Told(cursor[0])
        self.fill: Fill | None = None  # the last backfill


def encode_backend(record: BackendRecord) -> bytes:
    """Return the row's value."""
    instance = record.instance.encode()
    head = _HEAD.pack(
        _VERSION,
        *record.cursor,
        *record.floor,
        record.dead_letters,
        record.last_dead_letter,
        len(instance),
        len(record.filters),
    )
    pieces = [head, instance]
    for topic_filter, since in record.filters.items():
        text = topic_filter.encode()
        pieces += (_FILTER.pack(since, len(text)), text)
    pieces.append(_RETRIES.pack(len(record.retries)))
    pieces += [_RETRY.pack(seq, number) for seq, number in record.retries.items()]
    pieces.append(_GIVEN_UP.pack(*record.given_up, record.given_up_message, record.given_up_event))
    pieces.append(encode_told(record.told))
    fill = record.fill
    pieces.append(b"\0" if fill is None else b"\1")
    if fill is not None:
        head = _FILL.pack(fill.parts, fill.rows, fill.begun_ms, fill.ended_ms, len(fill.after))
        pieces += (head, fill.after)
    return b"".join(pieces)


def decode_backend(value: bytes) -> BackendRecord:
    """Return the record of a row; raises ValueError if it is not valid."""
    if len(value) < _HEAD.size or not 1 <= value[0] <= _VERSION:
        raise ValueError(
            f"backend: version {value[:1].hex()} of {len(value)} bytes, expected {_VERSION}"
        )
    _, position, seq, floor_position, floor_seq, dead, last_dead, size, count = _HEAD.unpack_from(
        value
    )
    reader = RecordReader(value, "backend", _HEAD.size)
    record = BackendRecord(reader.take(size).decode(), (position, seq))
    record.floor = (floor_position, floor_seq)
    record.dead_letters = dead
    record.last_dead_letter = last_dead
    for _ in range(count):
        since, length = _FILTER.unpack(reader.take(_FILTER.size))
        record.filters[reader.take(length).decode()] = since
    if value[0] >= 2:
        for _ in range(_RETRIES.unpack(reader.take(_RETRIES.size))[0]):
            seq, number = _RETRY.unpack(reader.take(_RETRY.size))
            record.retries[seq] = number
    if value[0] >= 3:
        given_up = _GIVEN_UP.unpack(reader.take(_GIVEN_UP.size))
        record.given_up = given_up[:2]
        record.given_up_message, record.given_up_event = given_up[2:]
        record.told = take_told(reader)
        if reader.number(1):
            parts, rows, begun_ms, ended_ms, size = _FILL.unpack(reader.take(_FILL.size))
            record.fill = Fill(parts, begun_ms)
            record.fill.rows = rows
            record.fill.ended_ms = ended_ms
            record.fill.after = reader.take(size)
    reader.end()
    return record
