"""The books: messages, bytes and check sums of the ids at each stage, per minute and tenant.

Counts alone do not show one lost and one doubled message; two sums over the ids do. Sums do not
depend on the order, so stages can be compared at any time. Open books are rows of the family
`books`, written with every batch that adds to them, so a crash leaves them at a tick boundary like
everything else. Knows no messages and no clock. Read next: `session.history.recorder`.
"""

import struct
from typing import Final

from storage.errors import CorruptRecord
from storage.history.events import CHECK_BITS, CHECK_ROOT_BITS, STAGES
from storage.tables.tables import seal, unseal

MINUTE_MS: Final = 60_000
STAGE_COUNT: Final = len(STAGES)
FIELDS: Final = 4  # of a stage: count, bytes, check1, check2
_MASK: Final = (1 << CHECK_BITS) - 1
_ROOT_MASK: Final = (1 << CHECK_ROOT_BITS) - 1
_VERSION: Final = 2  # version 1 has 11 stages
_HEAD: Final = struct.Struct(">BB")  # version, stages
_VALUES: Final = struct.Struct(f">{STAGE_COUNT * FIELDS}Q")
_KEY: Final = struct.Struct(">Q")


class Book:
    """One minute of one tenant."""

    __slots__ = ("bin_ms", "is_dirty", "tenant", "values")

    def __init__(self, tenant: str, bin_ms: int) -> None:
        self.tenant: str = tenant
        self.bin_ms: int = bin_ms  # the start of the minute, broker time
        self.is_dirty: bool = False  # it must be written with the next batch
        self.values: list[int] = [0] * (STAGE_COUNT * FIELDS)

    def add(self, stage: int, count: int, size: int, check1: int, check2: int) -> None:
        """Count messages of `size` bytes together, with the check sums of their ids."""
        values = self.values
        at = stage * FIELDS
        values[at] += count
        values[at + 1] += size
        values[at + 2] = (values[at + 2] + check1) & _MASK
        values[at + 3] = (values[at + 3] + check2) & _MASK

    def begin_again(self) -> None:
        """Count from zero, after what was counted so far was recorded."""
        self.values = [0] * (STAGE_COUNT * FIELDS)
        self.is_dirty = False

    def key(self) -> bytes:
        """Return the key of its row."""
        return _KEY.pack(self.bin_ms) + self.tenant.encode()

    def encode(self) -> bytes:
        """Return the value of its row."""
        return seal(_HEAD.pack(_VERSION, STAGE_COUNT) + _VALUES.pack(*self.values))


def decode_book(key: bytes, value: bytes) -> Book:
    """Return the book of a row, which may have fewer stages; raises `CorruptRecord`."""
    body = unseal(value, "book")
    stages = body[1] if len(body) > 1 else 0
    if (
        len(key) < _KEY.size
        or not 0 < stages <= STAGE_COUNT
        or not 1 <= body[0] <= _VERSION
        or len(body) != _HEAD.size + 8 * FIELDS * stages
    ):
        raise CorruptRecord(f"book: version {body[:1].hex()} of {len(body)} bytes, expected 1 or 2")
    book = Book(key[_KEY.size :].decode(), _KEY.unpack_from(key)[0])
    values = struct.unpack_from(f">{stages * FIELDS}Q", body, _HEAD.size)
    book.values[: len(values)] = values
    return book


def check1_of(first: int, count: int) -> int:
    """Return the sum of `count` consecutive offsets, modulo 2 ** 61."""
    return (first * count + count * (count - 1) // 2) & _MASK


def check2_of(first: int, count: int) -> int:
    """Return the sum of their squares, each of the offset modulo 2 ** 30, modulo 2 ** 61."""
    root = first & _ROOT_MASK
    if count == 1:
        return root * root
    if root + count > _ROOT_MASK:
        total = 0
        for offset in range(first, first + count):
            total += (offset & _ROOT_MASK) ** 2
        return total & _MASK
    last = count - 1
    squares = last * count * (2 * count - 1) // 6
    return (count * root * root + root * count * last + squares) & _MASK
