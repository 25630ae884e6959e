"""The frames between the broker and the process of a backend.

A frame is a type, a size and a body; numbers are big-endian. Rows carry messages and events as the
database has them. Pure. Read next: `broker.backends.process`, the reader.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from mqtt.message import Message
from storage.errors import CorruptRecord
from storage.tables.feed_rows import (
    PUBLISHED,
    FeedEvent,
    decode_event,
    encode_event,
    message_of,
)
from storage.tables.message_record import decode_message, encode_message

# (position, seq): every message up to the log offset `position` and every event up to the number
# `seq` was applied.
Cursor: TypeAlias = tuple[int, int]
Row: TypeAlias = Message | FeedEvent

HEAD: Final = struct.Struct(">cI")  # type, size of the body
CONFIG: Final = b"C"
START: Final = b"S"
BATCH: Final = b"B"
QUESTION: Final = b"Q"
FETCH: Final = b"F"  # JSON: what a session asks the store for
CHANGED: Final = b"D"  # JSON: numbers of changes of subscriptions that are dealt with

_START: Final = struct.Struct(">IQQB")  # run, cursor, has the store lost rows?
_BATCH: Final = struct.Struct(">IQQQQ")  # run, cursor before, cursor after
_ROW: Final = struct.Struct(">BI")  # kind (0 = a message), size of the body
_NUMBER: Final = struct.Struct(">Q")
_MESSAGE: Final = 0


class Start:
    """The batches of a run follow, the first one after `cursor`."""

    __slots__ = ("cursor", "is_rewind", "run")

    def __init__(self, run: int, cursor: Cursor, *, is_rewind: bool = False) -> None:
        self.run: Final = run
        self.cursor: Final = cursor
        self.is_rewind: Final = is_rewind  # the store has lost rows that it had confirmed


class RowBatch:
    """Rows in order: everything after one cursor, up to and including another."""

    __slots__ = ("after", "rows", "run", "upto")

    def __init__(self, run: int, after: Cursor, upto: Cursor, rows: Sequence[Row]) -> None:
        self.run: Final = run
        self.after: Final = after
        self.upto: Final = upto
        self.rows: Final = rows


def opened(row: Row) -> Row:
    """Return the message in place of an event that carries one with QoS 0, other rows as they are.

    Raises `CorruptRecord`.
    """
    if isinstance(row, FeedEvent) and row.kind == PUBLISHED:
        return message_of(row)
    return row


def frame(kind: bytes, body: bytes) -> bytes:
    """Return a frame."""
    return HEAD.pack(kind, len(body)) + body


def json_frame(kind: bytes, value: Any) -> bytes:
    """Return a frame whose body is JSON."""
    return frame(kind, json.dumps(value).encode())


def encode_start(start: Start) -> bytes:
    """Return a frame of the type START."""
    return frame(START, _START.pack(start.run, *start.cursor, start.is_rewind))


def decode_start(body: bytes) -> Start:
    """Return what a frame of the type START says. Raises `CorruptRecord`."""
    if len(body) != _START.size:
        raise CorruptRecord(f"start of {len(body)} bytes, expected {_START.size}")
    run, position, seq, is_rewind = _START.unpack(body)
    return Start(run, (position, seq), is_rewind=bool(is_rewind))


def encode_wire_row(row: Row) -> bytes:
    """Return one row of a batch."""
    if isinstance(row, FeedEvent):
        body = _NUMBER.pack(row.seq) + encode_event(row)
        return _ROW.pack(row.kind, len(body)) + body
    body = _NUMBER.pack(row.offset) + encode_message(row)
    return _ROW.pack(_MESSAGE, len(body)) + body


def decode_wire_rows(body: bytes, at: int = 0) -> Iterator[Row]:
    """Yield rows until the end. Raises `CorruptRecord`."""
    while at < len(body):
        if at + _ROW.size > len(body):
            raise CorruptRecord(f"row at byte {at} of {len(body)} has no head")
        kind, size = _ROW.unpack_from(body, at)
        at += _ROW.size
        row = body[at : at + size]
        if len(row) < max(size, _NUMBER.size):
            raise CorruptRecord(f"row at byte {at}: {len(row)} bytes, expected {size}")
        at += size
        number = _NUMBER.unpack_from(row)[0]
        if kind == _MESSAGE:
            yield decode_message(row[_NUMBER.size :], number)
            continue
        event, end = decode_event(row, number, _NUMBER.size)
        if end != len(row) or event.kind != kind:
            raise CorruptRecord(f"event {number}: {len(row)} bytes, expected {end}")
        yield event


def encode_batch(batch: RowBatch) -> bytes:
    """Return a frame of the type BATCH."""
    pieces = [_BATCH.pack(batch.run, *batch.after, *batch.upto)]
    pieces += [encode_wire_row(row) for row in batch.rows]
    return frame(BATCH, b"".join(pieces))


def decode_batch(body: bytes) -> RowBatch:
    """Return the batch of a frame of the type BATCH. Raises `CorruptRecord`."""
    if len(body) < _BATCH.size:
        raise CorruptRecord(f"batch of {len(body)} bytes, expected at least {_BATCH.size}")
    run, after_position, after_seq, position, seq = _BATCH.unpack_from(body)
    rows = list(decode_wire_rows(body, _BATCH.size))
    return RowBatch(run, (after_position, after_seq), (position, seq), rows)
