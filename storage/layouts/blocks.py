"""Layout `blocks`: messages in blocks, and an index of offset ranges per durable topic filter.

Family `msg.G`: last offset of a block -> block (`storage.layouts.block`); family `idx.G`:
filter_id, last offset, how far behind it its block ends -> nothing, or the ranges of that filter
that were accepted in the same tick. An accepted message is put on a list, nothing more; its rows
are made when the tick is sealed: one per 4 KiB of messages, and one per filter that got some,
whatever their number. Read next: `storage.layouts.block_reading`, `storage.layouts.merge`.
"""

import struct
from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from storage.api import Batch, Change, Store
from storage.layouts.api import Stream
from storage.layouts.block import (
    BLOCK_BYTES,
    RANGES_MAX,
    RUN_SIZE,
    SIZE_SIZE,
    SPAN_MAX,
    Block,
    decode_index,
    encode_block,
    encode_index,
    encode_prefix,
    encode_run,
    index_key,
    index_start,
)
from storage.layouts.block_reading import BlockCache, BlockReader, BlockRows, BlockScan

NAME: Final = "blocks"
KEY_SIZE: Final = 8
INDEX_KEY_SIZE: Final = 18
# What a pending message is taken to cost beside its payload until its rows are made.
PENDING_SIZE: Final = 16
OFFSET_MAX: Final = 2**63 - 1
_SAMPLE: Final = 16  # blocks looked at on either end
_PAGE: Final = 16  # blocks read at once when all are read

_KEY: Final = struct.Struct(">Q")
_pack: Final = _KEY.pack


def families(generation: int) -> tuple[str, ...]:
    """Return the names of the families of a generation with this layout."""
    return (f"msg.{generation}", f"idx.{generation}")


class Run:
    """Pending messages that follow each other and differ in their payload only."""

    __slots__ = ("filter_ids", "first", "message", "payloads")

    def __init__(
        self, message: Message, first: int, payloads: list[bytes], filter_ids: Sequence[int]
    ) -> None:
        self.message: Final = message  # the first one, for what all have in common
        self.first: Final = first  # its offset
        self.payloads: Final = payloads
        self.filter_ids: Final = filter_ids


class Sealing:
    """The rows of one tick being made."""

    __slots__ = ("_batch", "_content", "_count", "_family", "_index", "_parts", "_pieces", "size")

    def __init__(self, batch: Batch, family: str) -> None:
        self._batch: Final = batch
        self._family: Final = family
        self._index: dict[int, list[int]] = {}  # filter_id -> first, last, block of each range
        # The block being filled: its bytes, how much of BLOCK_BYTES is taken, how many messages,
        # and what the index needs of it once its end is known.
        self._pieces: list[bytes] = []
        self._content = 0
        self._count = 0
        self._parts: list[tuple[int, int, Sequence[int]]] = []
        self.size = 0  # of all rows made so far

    def add(self, run: Run) -> None:
        """Put the messages of `run` into blocks."""
        message = run.message
        payloads = run.payloads
        prefix = encode_prefix(message)
        head = RUN_SIZE + len(prefix)
        total = len(payloads)
        first = run.first
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
                    self.close(first + start - 1)
                    continue
                stop += 1  # a block of its own
            part = payloads if stop - start == total else payloads[start:stop]
            self._content += head + SIZE_SIZE * (stop - start)
            self._content += encode_run(message, prefix, part, self._pieces) - head
            self._count += stop - start
            self._parts.append((first + start, first + stop - 1, run.filter_ids))
            if stop < total:
                self.close(first + stop - 1)
            start = stop

    def close(self, last: int) -> None:
        """End the block, whose last message has the offset `last`."""
        value = encode_block(self._count, self._pieces, self._content)
        self._batch.append((self._family, _pack(last), value))
        self.size += KEY_SIZE + len(value)
        index = self._index
        for start, end, filter_ids in self._parts:
            for filter_id in filter_ids:
                ranges = index.get(filter_id)
                if ranges is None:
                    index[filter_id] = [start, end, last]
                elif ranges[-2] == start - 1 and ranges[-1] == last:
                    ranges[-2] = end
                else:
                    ranges.append(start)
                    ranges.append(end)
                    ranges.append(last)
        self._pieces = []
        self._parts = []
        self._content = 0
        self._count = 0

    def finish(self, last: int, family: str) -> None:
        """End the last block, at the offset `last`, and make the rows of the index in `family`."""
        if self._count:
            self.close(last)
        batch = self._batch
        for filter_id, ranges in self._index.items():
            start = 0
            total = len(ranges)
            while start < total:
                stop = total
                if total - start > 3 * RANGES_MAX or ranges[-2] - ranges[start] > SPAN_MAX:
                    stop = start + 3
                    while (
                        stop < total
                        and stop - start < 3 * RANGES_MAX
                        and ranges[stop + 1] - ranges[start] <= SPAN_MAX
                    ):
                        stop += 3
                end = ranges[stop - 2]
                row: Change = (
                    family,
                    index_key(filter_id, end, ranges[stop - 1] - end),
                    encode_index(ranges, start, stop),
                )
                batch.append(row)
                self.size += INDEX_KEY_SIZE + len(row[2] or b"")
                start = stop


class BlockSlab:
    """A generation of blocks. It holds what was appended until it is sealed."""

    __slots__ = (
        "_end",
        "_family",
        "_index",
        "_rows",
        "_run",
        "_runs",
        "_store",
        "_told",
        "families",
    )

    def __init__(self, store: Store, generation: int, cache: BlockCache | None = None) -> None:
        self.families: tuple[str, ...] = families(generation)
        self._store: Final = store
        self._family: Final = self.families[0]
        self._index: Final = self.families[1]
        self._rows: Final = BlockRows(store, generation, cache or BlockCache())
        self._runs: list[Run] = []
        self._run: Run | None = None  # the last one
        self._end = 0  # last offset of it
        self._told = 0  # size that `append` told of what is pending

    # --- writing ---

    @property
    def is_pending(self) -> bool:
        """Are there messages that have no rows yet?"""
        return self._run is not None

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Take over one message; returns about what it adds in bytes. Its rows come by `seal`."""
        run = self._run
        payload = message.payload
        size = len(payload) + PENDING_SIZE
        self._told += size
        if run is not None and (filter_ids is run.filter_ids or filter_ids == run.filter_ids):
            same = run.message
            if (
                message.topic == same.topic
                and message.publisher == same.publisher
                and message.accepted_at_ms == same.accepted_at_ms
                and message.qos == same.qos
                and message.expires_at_ms == same.expires_at_ms
                and message.retain == same.retain
                and message.properties == same.properties
            ):
                run.payloads.append(payload)
                return size
        run = Run(message, message.offset, [payload], filter_ids)
        self._run = run
        self._runs.append(run)
        return size

    def append_run(
        self, message: Message, payloads: Sequence[bytes], filter_ids: Sequence[int]
    ) -> int:
        """Take over messages like `message` with these payloads, from its offset on.

        Returns about what they add in bytes.
        """
        run = Run(message, message.offset, list(payloads), filter_ids)
        self._run = run
        self._runs.append(run)
        size = sum([len(payload) for payload in payloads]) + PENDING_SIZE * len(payloads)
        self._told += size
        return size

    def seal(self, batch: Batch) -> int:
        """Put the rows of all that is pending into `batch`.

        Returns their size in bytes, less what `append` told of it.
        """
        last = self._run
        if last is None:
            return 0
        sealing = Sealing(batch, self._family)
        for run in self._runs:
            sealing.add(run)
        sealing.finish(last.first + len(last.payloads) - 1, self._index)
        size = sealing.size - self._told
        self.discard()
        return size

    def discard(self) -> None:
        """Forget what is pending."""
        self._runs = []
        self._run = None
        self._told = 0

    # --- reading ---

    def get_many(self, offsets: Sequence[int]) -> list[Message | None]:
        """Return the messages at `offsets` in their order, None where there is none."""
        found: list[Message | None] = []
        block: Block | None = None
        for offset in offsets:
            if block is None or offset < block.first or offset > block.last:
                block = self._rows.covering(offset)
            found.append(None if block is None else block.get(offset))
        return found

    def first_from(self, offset: int) -> Message | None:
        """Return the first message at or after `offset`, None if there is none."""
        block = self._rows.covering(offset)
        return None if block is None else block.get(max(offset, block.first))

    def last_offset(self) -> int:
        """Return the greatest offset written, 0 if there is none."""
        row = self._store.last(self._family, _pack(0), _pack(OFFSET_MAX))
        return 0 if row is None else int.from_bytes(row[0], "big")

    def sampled_size(self) -> int:
        """Return the size in bytes of one message on average, of the newest and oldest blocks."""
        rows = self._rows.page(0, _SAMPLE)
        if not rows:
            return 0
        last = self.last_offset()
        rows += self._rows.page(max(0, last - _SAMPLE + 1), _SAMPLE)
        count = sum([Block(value, int.from_bytes(key, "big")).count for key, value in rows])
        return sum([KEY_SIZE + len(value) for _, value in rows]) // count

    def measured(self) -> tuple[int, int]:
        """Return how many messages there are and the size of their rows; reads all of them."""
        count = size = start = 0
        while rows := self._rows.page(start, _PAGE):
            for key, value in rows:
                block = Block(value, int.from_bytes(key, "big"))
                count += block.count
                size += KEY_SIZE + len(value)
                start = block.last + 1
        return count, size

    def reader(self, streams: Sequence[Stream], after: int) -> BlockReader:
        """Return a reader of the messages after `after` which one of `streams` is owed."""
        return BlockReader(self._store, self._index, self._rows, streams, after)

    def scanner(self, topic_filter: str, after: int) -> BlockScan:
        """Return a reader of all messages after `after` whose topic matches, index or not."""
        return BlockScan(self._rows, topic_filter, after)

    def first_owed(self, streams: Sequence[Stream], after: int, upto: int) -> int | None:
        """Return the first offset in (after, upto] that one of `streams` is owed, None if none."""
        first: int | None = None
        for stream in streams:
            since = max(after, stream.since)
            # What is already found bounds the search in the other streams.
            end = upto if first is None else first - 1
            if since >= end:
                continue
            rows = self._store.scan(
                self._index,
                index_start(stream.filter_id, since + 1),
                index_start(stream.filter_id + 1, 0),
                count=1,
            )
            if rows:
                entries: list[int] = []
                decode_index(rows[0][0], rows[0][1], since, 1, entries)
                if entries and entries[0] >> 16 <= end:
                    first = entries[0] >> 16
        return first
