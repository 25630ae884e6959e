"""RocksDB's log files as bytes: which batches a write-ahead log holds, and where it ends.

RocksDB takes zeros for the end of a block and goes on behind them, and it cannot tell a page that
was never written from damage. So the broker looks at its logs itself before RocksDB does. It reads
headers, and computes checksums only where a sector looks as if it had never been written: damage
of any other kind is RocksDB's to find.

A file is blocks of 32 KiB, each a sequence of fragments: crc32c (masked), length, kind, payload. A
record is one full fragment, or a first, middle and last one. A record of a write-ahead log is one
batch, and ends with the row that numbers it (`encode_number`). A MANIFEST has the same form. Pure:
knows no file. Read next: `storage.local.torn_log`, which decides what it means.
"""

import struct
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 32768
HEADER_BYTES: Final = 7
SECTOR_BYTES: Final = 512  # the least that a disk writes at once

FULL: Final = 1
FIRST: Final = 2
MIDDLE: Final = 3
LAST: Final = 4

# What is where a file stops being readable.
CLEAN: Final = "the end of the file"
SHORT: Final = "the file ends within a record"
UNWRITTEN: Final = "zeros in place of data"
CUT: Final = "the mark of an earlier cut"
DAMAGED: Final = "damaged bytes"
GAP: Final = "the next log does not continue it"
# What a power cut leaves: bytes that never reached the disk. It changes no others.
TORN: Final = frozenset((SHORT, UNWRITTEN, CUT, GAP))

# A fragment that no checksum fits, for RocksDB to stop at. Everything behind it is given up.
CUT_MARK: Final = b"HFCT\0\0\x01"

# RocksDB begins a log with an empty batch, only a header, if it gave up the end of the one before.
EMPTY_BATCH_BYTES: Final = 12

# The last row of every batch: the number of the batch, and how many were durable when it was made.
SEQUENCE_KEY: Final = b"sequence"
_ROW: Final = b"\x01\x08" + SEQUENCE_KEY  # a put into the default family
_NUMBERS: Final = struct.Struct(">QQ")
_ROW_BYTES: Final = len(_ROW) + 1 + _NUMBERS.size

# So many zeros at the end of a sector are reason enough to look at the checksum.
ZEROS: Final = bytes(32)


class Number(NamedTuple):
    """What the last row of a batch says."""

    sequence: int  # of the batch
    durable: int  # batches that were durable when it was written; 0 = not told, an earlier version


def encode_number(sequence: int, durable: int) -> bytes:
    """Return the value of the row that numbers a batch, version 2."""
    return _NUMBERS.pack(sequence, durable)


def decode_number(value: bytes) -> Number:
    """Return what the row says; version 1 is the sequence alone. Raises `ValueError`."""
    if len(value) == _NUMBERS.size:
        return Number(*_NUMBERS.unpack(value))
    if len(value) == 8:
        return Number(int.from_bytes(value, "big"), 0)
    raise ValueError(f"number of batches: {len(value)} bytes, expected 8 or {_NUMBERS.size}")


class Records:
    """The records of a log file, one after the other, up to the first that is not whole."""

    def __init__(self, data: bytes) -> None:
        self.problem: str = ""  # why there are no more, once `step` has returned False
        self.begin = 0  # of this record, or of what is in place of the next one
        self.end = 0  # of this record
        self.missing = 0  # with a problem: the first byte that is not there
        self.length = 0  # of this record's payload
        self.tail = b""  # the end of this record's payload
        self._data: Final = data

    def step(self, *, check: str) -> bool:
        """Go to the next record; return False at the end or at a problem.

        `check` says which checksums to compute: "none", "torn" (only where a sector looks as if it
        had never been written), or "all".
        """
        data, size = self._data, len(self._data)
        at = self.end
        inside = False
        total = 0
        tail = b""
        while True:
            left = BLOCK_BYTES - at % BLOCK_BYTES
            if left < HEADER_BYTES:
                at += left  # too few for a header: left empty
                left = BLOCK_BYTES
            if not inside:
                self.begin = at
            if at + HEADER_BYTES > size:
                return self._stop(SHORT if inside or at < size else CLEAN, size)
            length = data[at + 4] | data[at + 5] << 8
            kind = data[at + 6]
            stop = at + HEADER_BYTES + length
            is_start = kind == FULL or kind == FIRST
            is_next = FULL <= kind <= LAST and is_start != inside
            if is_next and stop > size and at + left >= size:
                return self._stop(SHORT, size)
            if not is_next or stop > at + left:
                missing = _unwritten(data, at, at + HEADER_BYTES)
                return self._stop(DAMAGED if missing < 0 else UNWRITTEN, max(missing, at))
            if data[at : at + HEADER_BYTES] == CUT_MARK:
                return self._stop(CUT, at)
            if check == "all" or (check == "torn" and _may_be_torn(data, at, stop)):
                if not is_whole(data, at, stop):
                    missing = _unwritten(data, at, stop)
                    return self._stop(DAMAGED if missing < 0 else UNWRITTEN, max(missing, at))
            tail = (tail + data[max(at + HEADER_BYTES, stop - _ROW_BYTES) : stop])[-_ROW_BYTES:]
            total += length
            at = stop
            if kind == FULL or kind == LAST:
                self.end = at
                self.length = total
                self.tail = tail
                return True
            inside = True

    def why(self) -> str:
        """Return what is wrong with this record, whose checksums may not have been looked at."""
        alone = Records(self._data)
        alone.end = self.begin
        return DAMAGED if alone.step(check="all") else alone.problem

    def _stop(self, problem: str, missing: int) -> bool:
        self.problem = problem
        self.missing = missing
        return False


class Walk(NamedTuple):
    """What a write-ahead log holds."""

    first: int  # number of its first batch, 0 = it has none
    last: int  # number of the last batch before the problem
    end: int  # where that batch ends, or where the first one should begin
    problem: str


def walk(data: bytes, *, expected: int = 0, trusted: int = 0, check: str = "torn") -> Walk:
    """Read the batches of a log up to the first problem.

    `expected` is the number of the first batch, 0 if unknown. Batches up to number `trusted` are
    durable, so no power cut can have torn them: their checksums are left to RocksDB.
    """
    records = Records(data)
    first = last = 0
    next_number = expected
    while records.step(check="none" if check == "torn" and 0 < next_number <= trusted else check):
        if records.length == EMPTY_BATCH_BYTES:
            continue
        number = _number_in(records.tail)
        if number is None or (last and number.sequence != last + 1):
            return Walk(first, last, records.begin, records.why())
        last = number.sequence
        first = first or last
        next_number = last + 1
    return Walk(first, last, records.begin, records.problem)


def newest_proof(data: bytes, start: int) -> int:
    """Return how many batches were durable, as told by the newest whole fragment behind `start`.

    0 = none tells. Looks for the fragments from the end, because what is between is damaged.
    """
    stop = len(data)
    while (found := data.rfind(_ROW, start, stop)) >= 0:
        stop = found
        end = found + _ROW_BYTES
        number = _number_in(data[found:end])
        if number is None or not number.durable:
            continue
        block = found - found % BLOCK_BYTES
        for at in range(end - _ROW_BYTES - HEADER_BYTES, max(block, start) - 1, -1):
            if (
                data[at + 6] in (FULL, LAST)
                and at + HEADER_BYTES + (data[at + 4] | data[at + 5] << 8) == end
                and is_whole(data, at, end)
            ):
                return number.durable
    return 0


def is_whole(data: bytes, at: int, stop: int) -> bool:
    """Return whether the checksum of the fragment from `at` to `stop` fits."""
    stored = int.from_bytes(data[at : at + 4], "little")
    crc = crc32c(data[at + 6 : stop])
    return stored == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of `data`. 70 ns a byte."""
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _make_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE: Final = _make_table()


def _number_in(tail: bytes) -> Number | None:
    """Return the numbers in the last row of a batch, None if it does not end with that row."""
    for size in (_NUMBERS.size, 8):
        row = tail[-len(_ROW) - 1 - size :]
        if row.startswith(_ROW) and len(row) == len(_ROW) + 1 + size and row[len(_ROW)] == size:
            return decode_number(row[-size:])
    return None


def _may_be_torn(data: bytes, start: int, stop: int) -> bool:
    """Return whether a sector of this fragment may never have been written. Quick."""
    first = _sector_end(data, start)
    last = _sector_end(data, stop - 1)
    return (
        _ends_empty(data, start, first)
        or _ends_empty(data, max(start, last - SECTOR_BYTES), last)
        or data.find(ZEROS, start, last) >= 0
    )


def _unwritten(data: bytes, start: int, stop: int) -> int:
    """Return where the first sector from `start` to `stop` ends that was not written to its end.

    -1 = all were. A sector is written whole, so its zeros go on behind `stop`.
    """
    low = start
    while low < stop:
        high = _sector_end(data, low)
        if _ends_empty(data, low, high):
            end = low + len(data[low:high].rstrip(b"\0"))
            if end < stop:
                return end
        low = high
    return -1


def _sector_end(data: bytes, at: int) -> int:
    return min(len(data), at - at % SECTOR_BYTES + SECTOR_BYTES)


def _ends_empty(data: bytes, low: int, high: int) -> bool:
    size = min(len(ZEROS), high - low)
    return data[high - size : high] == ZEROS[:size]
