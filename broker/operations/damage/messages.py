"""The messages of one generation: which can be read, and what its index says of the others.

Offsets are consecutive, so a message that is missing between two others leaves a hole. Read next:
`storage.log.layouts.block_format`.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from storage.log.generations import Generation
from storage.log.layouts import blocks, filters, timeline
from storage.log.layouts.block_format import (
    BACK_BITS,
    BACK_MASK,
    INDEX_KEY_SIZE,
    Block,
    decode_index,
    encode_index,
    index_key,
    index_start,
)
from storage.log.layouts.message_rows import OFFSET_MAX
from storage.tables.message_record import decode_message

Range = tuple[int, int, int]  # first offset, last offset, last offset of its block


class Messages:
    """One generation: the holes in its messages, filled in by `read_row`."""

    def __init__(self, generation: Generation, *, is_newest: bool) -> None:
        self.number: Final = generation.number
        self.layout: Final = generation.layout
        self.first: Final = generation.first_offset
        self.last: Final = OFFSET_MAX if is_newest else generation.last_offset
        self.family: Final = f"msg.{generation.number}"
        # None: this layout has no index.
        self.index: Final = (
            None if generation.layout == timeline.NAME else f"idx.{generation.number}"
        )
        self.count = 0
        self._next = self.first  # the offset that the next row should begin with
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def read_row(self, key: bytes, value: bytes) -> None:
        """Take the next row; raises one of `decoding.UNDECODABLE` if it is damaged."""
        if len(key) != 8:
            raise ValueError(f"key of {len(key)} bytes")
        last = first = int.from_bytes(key)
        if self.layout == blocks.NAME:
            block = Block(value, last)
            first = block.first
            offset = first
            while offset <= last:
                block.get(offset)  # decodes its run
                offset = block.run_end(offset) + 1
        else:
            decode_message(value, last)
        if first < self._next or last > self.last:
            raise ValueError(f"messages {first} to {last}, expected {self._next} to {self.last}")
        self._hole(self._next, first - 1)
        self._next = last + 1
        self.count += last - first + 1

    def end(self) -> None:
        """Finish: every row was taken."""
        self._hole(self._next, self.last)

    def _hole(self, first: int, last: int) -> None:
        if first <= last:
            self._firsts.append(first)
            self._lasts.append(last)

    @property
    def written_end(self) -> int:
        """Return the last offset that can be read."""
        return self._next - 1

    def holes(self, after: int = 0, upto: int = OFFSET_MAX) -> Iterator[tuple[int, int]]:
        """Yield the stretches of offsets in after < offset <= upto that cannot be read."""
        at = bisect_left(self._lasts, after + 1)
        while at < len(self._lasts) and self._firsts[at] <= upto:
            yield max(after + 1, self._firsts[at]), min(upto, self._lasts[at])
            at += 1

    def is_lost(self, offset: int) -> bool:
        """Return whether an offset of this generation cannot be read."""
        return any(True for _ in self.holes(offset - 1, offset))

    # --- the index ---

    def ranges(self, key: bytes, value: bytes) -> tuple[int, list[Range]]:
        """Return (filter id, offsets) of an index row; raises one of `decoding.UNDECODABLE`."""
        filter_id = int.from_bytes(key[:8])
        if self.layout == filters.NAME:
            if len(key) != 16 or value:
                raise ValueError(f"index row of {len(key)} and {len(value)} bytes")
            offset = int.from_bytes(key[8:])
            return filter_id, [(offset, offset, offset)]
        if len(key) != INDEX_KEY_SIZE:
            raise ValueError(f"index row with a key of {len(key)} bytes")
        entries: list[int] = []
        decode_index(key, value, -1, OFFSET_MAX, entries)
        found: list[Range] = []
        for entry in entries:
            offset = entry >> BACK_BITS
            block = offset + (entry & BACK_MASK)
            if found and found[-1][1] == offset - 1 and found[-1][2] == block:
                found[-1] = (found[-1][0], offset, block)
            else:
                found.append((offset, offset, block))
        return filter_id, found

    def without_holes(self, ranges: list[Range]) -> list[Range]:
        """Return what is left of the offsets of an index row."""
        left: list[Range] = []
        for first, last, block in ranges:
            for hole_first, hole_last in self.holes(first - 1, last):
                if first < hole_first:
                    left.append((first, hole_first - 1, block))
                first = hole_last + 1
            if first <= last:
                left.append((first, last, block))
        return left

    def encode(self, filter_id: int, ranges: list[Range]) -> tuple[bytes, bytes]:
        """Return the index row of these offsets, at least one."""
        if self.layout == filters.NAME:
            return filters.index_key(filter_id, ranges[0][0]), b""
        _, last, block = ranges[-1]
        flat = [number for each in ranges for number in each]
        return index_key(filter_id, last, block - last), encode_index(flat, 0, len(flat))

    def start_of(self, filter_id: int, offset: int) -> bytes:
        """Return a key before every index row of a filter that has `offset` or a later one."""
        if self.layout == filters.NAME:
            return filters.index_key(filter_id, offset)
        return index_start(filter_id, offset)
