"""How much of the log one external store has been told, for the history; part of its record.

What the history says is behind `upto`; from there on messages are counted until the minute of their
acceptance is over. The counts are stored with the cursor, so a crash neither loses nor doubles
them. Read next: `session.feed.told_counts`, which counts, and docs/history.md.
"""

import struct
from typing import Final

from session.state.records import RecordReader

# upto, counted, minute; confirmed, dead lettered, refused, told again; first and last told again
_TOLD: Final = struct.Struct(">QQQ3Q3Q3Q3QQQ")
_GAPS: Final = struct.Struct(">I")
_GAP: Final = struct.Struct(">QQ")
MINUTE_MS: Final = 60_000
FIELDS: Final = 3  # of a tally: count, sum of the offsets, sum of their squares
CHECK_MASK: Final = (1 << 61) - 1
ROOT_MASK: Final = (1 << 30) - 1


class Told:
    """What a store has been told, and the history has not."""

    __slots__ = (
        "again",
        "again_first",
        "again_last",
        "confirmed",
        "counted",
        "dead",
        "gaps",
        "minute_ms",
        "refused",
        "upto",
    )

    def __init__(self, upto: int) -> None:
        self.upto: int = upto  # the last offset that the history tells of
        self.counted: int = upto  # messages up to this offset were counted, here or there
        self.minute_ms: int = 0  # in which those were accepted that are counted here, 0 = none
        self.confirmed: Final[list[int]] = [0] * FIELDS
        self.dead: Final[list[int]] = [0] * FIELDS  # refused, and kept as dead letters
        self.refused: Final[list[int]] = [0] * FIELDS  # refused, and not kept
        self.again: Final[list[int]] = [0] * FIELDS  # lost by the store, and told again
        self.again_first: int = 0
        self.again_last: int = 0
        # What will not come, as far as it is not behind `counted`: first and last offset.
        self.gaps: Final[list[tuple[int, int]]] = []

    def is_in_gap(self, offset: int) -> bool:
        """Will a message not come, as the history says?"""
        return any(first <= offset <= last for first, last in self.gaps)


def add(tally: list[int], offset: int) -> None:
    """Count a message."""
    root = offset & ROOT_MASK
    tally[0] += 1
    tally[1] = (tally[1] + offset) & CHECK_MASK
    tally[2] = (tally[2] + root * root) & CHECK_MASK


def encode_told(told: Told) -> bytes:
    """Return its part of the record of a backend."""
    pieces = [
        _TOLD.pack(
            told.upto,
            told.counted,
            told.minute_ms,
            *told.confirmed,
            *told.dead,
            *told.refused,
            *told.again,
            told.again_first,
            told.again_last,
        ),
        _GAPS.pack(len(told.gaps)),
    ]
    pieces += [_GAP.pack(first, last) for first, last in told.gaps]
    return b"".join(pieces)


def take_told(reader: RecordReader) -> Told:
    """Return what the next bytes of a record say; raises ValueError if they are not valid."""
    upto, counted, minute_ms, *numbers = _TOLD.unpack(reader.take(_TOLD.size))
    told = Told(upto)
    told.counted = counted
    told.minute_ms = minute_ms
    tallies = (told.confirmed, told.dead, told.refused, told.again)
    for at, tally in enumerate(tallies):
        tally[:] = numbers[at * FIELDS : (at + 1) * FIELDS]
    told.again_first, told.again_last = numbers[-2:]
    for _ in range(_GAPS.unpack(reader.take(_GAPS.size))[0]):
        first, last = _GAP.unpack(reader.take(_GAP.size))
        told.gaps.append((first, last))
    return told
