"""Build the rows of one tick in layout `blocks`: messages as blocks, offsets as index rows.

Pending messages come as runs: a message, the filters it matches, and the payloads of all messages
of the run, which differ in nothing else (None: a single message). Must never split a message, or
put messages of two ticks into one block. Read next: `storage.log.layouts.block_format`, the bytes.
"""

import struct
from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from storage.api import Batch
from storage.log.layouts.block_format import (
    BACK_BITS,
    BACK_MASK,
    BLOCK_BYTES,
    INDEX_KEY_SIZE,
    KEY_SIZE,
    RANGES_MAX,
    RUN_SIZE,
    SIZE_SIZE,
    SPAN_MAX,
    encode_block,
    encode_index,
    encode_one,
    encode_run,
    index_key,
)
from storage.tables.message_record import encode_username

_KEY: Final = struct.Struct(">Q")
_pack: Final = _KEY.pack


class Sealing:
    """The rows of one tick while they are built."""

    __slots__ = (
        "_batch",
        "_content",
        "_count",
        "_family",
        "_filled",
        "_index_family",
        "_is_named",
        "_many",
        "_ones",
        "_parts",
        "_pieces",
        "_places",
        "size",
    )

    def __init__(self, batch: Batch, family: str, index_family: str) -> None:
        self._batch: Final = batch
        self._family: Final = family
        self._index_family: Final = index_family
        # Offsets per filter: a single one as an index entry (see `BACK_BITS`), or ranges of first
        # offset, last offset and the block's last offset.
        self._ones: Final[dict[int, int]] = {}
        self._many: Final[dict[int, list[int]]] = {}
        # The block being filled: its bytes and their number, where its runs begin, how much of
        # BLOCK_BYTES is used, how many messages, and what the index needs once its end is known.
        self._pieces: list[bytes] = []
        self._filled = 0
        self._places: list[int] = []
        self._content = 0
        self._count = 0
        self._is_named = False
        self._parts: list[tuple[int, int, Sequence[int]]] = []
        self.size: int = 0  # bytes of all rows built so far

    def add(
        self,
        messages: list[Message],
        ids: list[Sequence[int]],
        lists: list[list[bytes] | None],
    ) -> None:
        """Build the rows of these runs, which must be all of the tick."""
        at = 0
        last = 0
        while at < len(messages):
            payloads = lists[at]
            if payloads is None:
                at = self._add_ones(messages, ids, lists, at)
                last = messages[at - 1].offset
            else:
                self._add_run(messages[at], ids[at], payloads)
                last = messages[at].offset + len(payloads) - 1
                at += 1
        if self._count:
            self._close(last)
        self._finish()

    def _add_ones(
        self,
        messages: list[Message],
        ids: list[Sequence[int]],
        lists: list[list[bytes] | None],
        at: int,
    ) -> int:
        """Put the single messages from `at` on into blocks; return the index of the next run."""
        content = self._content
        start = at  # first message that is neither in the index nor in `_parts`
        count = self._count
        filled = self._filled
        pieces = self._pieces
        places = self._places
        while at < len(messages) and lists[at] is None:
            message = messages[at]
            publisher = message.publisher.encode()
            topic = message.topic.encode()
            named = encode_username(message.username) if message.username else b""
            size = SIZE_SIZE + RUN_SIZE + len(publisher) + len(topic)
            size += len(message.properties) + len(named) + len(message.payload)
            if count and content + size > BLOCK_BYTES:
                last = message.offset - 1
                self._filled = filled
                self._count = count
                self._close(last)
                self._note_ones(messages, ids, start, at, last)
                content = 0
                count = 0
                filled = 0
                pieces = self._pieces
                places = self._places
                start = at
            places.append(count)
            places.append(filled)
            encode_one(message, publisher, topic, named, pieces)
            if named:
                self._is_named = True
            content += size
            filled += size - SIZE_SIZE
            count += 1
            at += 1
        for index in range(start, at):
            offset = messages[index].offset
            self._parts.append((offset, offset, ids[index]))
        self._content = content
        self._filled = filled
        self._count = count
        return at

    def _add_run(self, message: Message, filter_ids: Sequence[int], payloads: list[bytes]) -> None:
        publisher = message.publisher.encode()
        topic = message.topic.encode()
        named = encode_username(message.username) if message.username else b""
        head = RUN_SIZE + len(publisher) + len(topic) + len(message.properties) + len(named)
        total = len(payloads)
        first = message.offset
        start = 0
        while start < total:
            room = BLOCK_BYTES - self._content - head
            stop = start
            for payload in payloads[start:] if start else payloads:
                room -= len(payload) + SIZE_SIZE
                if room < 0:
                    break
                stop += 1
            if stop == start:
                if self._count:
                    self._close(first + start - 1)
                    continue
                stop += 1  # a block of its own
            part = payloads if stop - start == total else payloads[start:stop]
            self._places.append(self._count)
            self._places.append(self._filled)
            size = encode_run(message, publisher, topic, named, part, self._pieces)
            self._is_named = self._is_named or bool(named)
            self._filled += size
            self._content += size + SIZE_SIZE * (stop - start)
            self._count += stop - start
            self._parts.append((first + start, first + stop - 1, filter_ids))
            if stop < total:
                self._close(first + stop - 1)
            start = stop

    def _close(self, last: int) -> None:
        """Close the block, whose last message has the offset `last`."""
        value = encode_block(
            self._count, self._places, self._pieces, self._filled, is_named=self._is_named
        )
        self._batch.append((self._family, _pack(last), value))
        self.size += KEY_SIZE + len(value)
        for start, end, filter_ids in self._parts:
            for filter_id in filter_ids:
                self._note(filter_id, start, end, last)
        self._pieces = []
        self._places = []
        self._parts = []
        self._filled = 0
        self._content = 0
        self._count = 0
        self._is_named = False

    def _note_ones(
        self, messages: list[Message], ids: list[Sequence[int]], start: int, stop: int, last: int
    ) -> None:
        """Add the messages from `start` to `stop`, whose block ends with `last`, to the index."""
        ones = self._ones
        many = self._many
        for index in range(start, stop):
            offset = messages[index].offset
            for filter_id in ids[index]:
                if filter_id in ones or filter_id in many:
                    self._note(filter_id, offset, offset, last)
                else:
                    ones[filter_id] = offset << BACK_BITS | (last - offset)

    def _note(self, filter_id: int, start: int, end: int, last: int) -> None:
        """Add a range of offsets, all in the block that ends with `last`, to the index."""
        ranges = self._many.get(filter_id)
        if ranges is None:
            ones = self._ones
            entry = ones.get(filter_id)
            if entry is None:
                if start == end:
                    ones[filter_id] = start << BACK_BITS | (last - start)
                else:
                    self._many[filter_id] = [start, end, last]
                return
            del ones[filter_id]
            offset = entry >> BACK_BITS
            ranges = self._many[filter_id] = [offset, offset, offset + (entry & BACK_MASK)]
        if ranges[-2] == start - 1 and ranges[-1] == last:
            ranges[-2] = end
        else:
            ranges.append(start)
            ranges.append(end)
            ranges.append(last)

    def _finish(self) -> None:
        """Build the index rows."""
        batch = self._batch
        family = self._index_family
        for filter_id, entry in self._ones.items():
            key = index_key(filter_id, entry >> BACK_BITS, entry & BACK_MASK)
            batch.append((family, key, b""))
        self.size += INDEX_KEY_SIZE * len(self._ones)
        for filter_id, ranges in self._many.items():
            start = 0
            total = len(ranges)
            while start < total:
                stop = start + 3
                while (
                    stop < total
                    and stop - start < 3 * RANGES_MAX
                    and ranges[stop + 1] - ranges[start] <= SPAN_MAX
                ):
                    stop += 3
                end = ranges[stop - 2]
                value = encode_index(ranges, start, stop)
                batch.append((family, index_key(filter_id, end, ranges[stop - 1] - end), value))
                self.size += INDEX_KEY_SIZE + len(value)
                start = stop
