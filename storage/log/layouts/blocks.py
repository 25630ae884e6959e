"""Layout `blocks`: messages in blocks, and an index of offset ranges per durable topic filter.

Family `msg.G`: last offset of a block -> block (`storage.log.layouts.block_format`). Family
`idx.G`: filter_id, last offset, distance to its block's end -> nothing, or the filter's ranges of
offsets accepted in the same tick. Accepting a message only puts it on a list. The rows are built
when the tick is sealed: one per 4 KiB of messages, and one per filter that matched any, whatever
their number. Read next: `storage.log.layouts.block_reader`, `storage.log.layouts.merge`.
"""

import struct
from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from storage.api import Batch, Row, Store
from storage.errors import DamagedRows
from storage.log.layouts.api import Stream, first_number
from storage.log.layouts.block_format import BACK_BITS, KEY_SIZE, Block, decode_index, index_start
from storage.log.layouts.block_reader import BlockCache, BlockReader, BlockRows, BlockScan
from storage.log.layouts.block_writer import Sealing

NAME: Final = "blocks"
# Estimated bytes of a pending message beside its payload, until its rows are built.
PENDING_SIZE: Final = 16
OFFSET_MAX: Final = 2**63 - 1
_SAMPLE: Final = 16  # blocks sampled at each end
_PAGE: Final = 16  # blocks read at once by `measured`

_KEY: Final = struct.Struct(">Q")
_pack: Final = _KEY.pack


def families(generation: int) -> tuple[str, ...]:
    """Return the names of the families of a generation with this layout."""
    return (f"msg.{generation}", f"idx.{generation}")


class BlockSlab:
    """A generation of blocks. It holds appended messages until `seal`."""

    __slots__ = (
        "_family",
        "_filter_ids",
        "_ids",
        "_index",
        "_lists",
        "_message",
        "_messages",
        "_payloads",
        "_rows",
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
        # Pending runs: first message, filters, and payloads if there is more than one message.
        # Three lists instead of an object per run: this halves the cost of a run of one.
        self._messages: list[Message] = []
        self._ids: list[Sequence[int]] = []
        self._lists: list[list[bytes] | None] = []
        # The same for the last run.
        self._message: Message | None = None
        self._filter_ids: Sequence[int] = ()
        self._payloads: list[bytes] | None = None
        self._told = 0  # sum of the sizes that `append` returned for pending messages

    # --- writing ---

    @property
    def is_pending(self) -> bool:
        """Return whether there are messages that have no rows yet."""
        return self._message is not None

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Append one message; return about how many bytes it adds. `seal` builds its rows."""
        same = self._message
        payload = message.payload
        size = len(payload) + PENDING_SIZE
        self._told += size
        if (
            same is not None
            and message.topic == same.topic
            and (filter_ids is self._filter_ids or filter_ids == self._filter_ids)
            and message.publisher == same.publisher
            and message.accepted_at_ms == same.accepted_at_ms
            and message.qos == same.qos
            and message.expires_at_ms == same.expires_at_ms
            and message.retain == same.retain
            and message.properties == same.properties
            and message.username == same.username
        ):
            payloads = self._payloads
            if payloads is None:
                self._payloads = self._lists[-1] = [same.payload, payload]
            else:
                payloads.append(payload)
            return size
        self._begin(message, filter_ids, None)
        return size

    def append_run(
        self, message: Message, payloads: Sequence[bytes], filter_ids: Sequence[int]
    ) -> int:
        """Append messages like `message` with these payloads, from its offset on.

        Return about how many bytes they add.
        """
        taken = list(payloads)
        self._begin(message, filter_ids, taken)
        size = sum([len(payload) for payload in taken]) + PENDING_SIZE * len(taken)
        self._told += size
        return size

    def seal(self, batch: Batch) -> int:
        """Put the rows of all pending messages into `batch`.

        Return their size in bytes minus what `append` returned for them.
        """
        if self._message is None:
            return 0
        sealing = Sealing(batch, self._family, self._index)
        sealing.add(self._messages, self._ids, self._lists)
        size = sealing.size - self._told
        self.discard()
        return size

    def discard(self) -> None:
        """Discard the pending messages."""
        self._messages = []
        self._ids = []
        self._lists = []
        self._message = None
        self._filter_ids = ()
        self._payloads = None
        self._told = 0

    def _begin(
        self, message: Message, filter_ids: Sequence[int], payloads: list[bytes] | None
    ) -> None:
        self._messages.append(message)
        self._ids.append(filter_ids)
        self._lists.append(payloads)
        self._message = message
        self._filter_ids = filter_ids
        self._payloads = payloads

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

    def sizes(self, first: int, last: int) -> list[int]:
        """Return the bytes of topic and payload of the messages from `first` to `last`."""
        found = [0] * (last + 1 - first)
        start = first
        while start <= last:
            try:
                rows = self._rows.page(start, _PAGE)
            except DamagedRows as damage:
                rows = damage.rows
                if not rows and damage.resume is not None:
                    start = max(start + 1, first_number(damage.resume))
                    continue
            if not rows:
                break
            for key, value in rows:
                end = int.from_bytes(key, "big")
                start = end + 1
                try:
                    sizes = Block(value, end).sizes()
                except DamagedRows:
                    continue
                begin = end + 1 - len(sizes)
                low, high = max(first, begin), min(last, end)
                if low <= high:
                    wanted = sizes[low - begin : high + 1 - begin]
                    found[low - first : high + 1 - first] = wanted
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
        """Return the average size in bytes of a message in the newest and oldest blocks."""
        rows = self._sample(0)
        try:
            rows += self._sample(max(0, self.last_offset() - _SAMPLE + 1))
        except DamagedRows:
            pass  # the oldest ones are a sample, too
        count = size = 0
        for key, value in rows:
            try:
                count += Block(value, int.from_bytes(key, "big")).count
            except DamagedRows:
                continue
            size += KEY_SIZE + len(value)
        return size // count if count else 0

    def _sample(self, first: int) -> list[Row]:
        """Return a few rows from `first` on, as far as they can be read."""
        try:
            return self._rows.page(first, _SAMPLE)
        except DamagedRows as damage:
            return damage.rows

    def measured(self) -> tuple[int, int]:
        """Return (number of messages, size of their rows in bytes); reads all of them."""
        count = size = start = 0
        while rows := self._rows.page(start, _PAGE):
            for key, value in rows:
                block = Block(value, int.from_bytes(key, "big"))
                count += block.count
                size += KEY_SIZE + len(value)
                start = block.last + 1
        return count, size

    def reader(self, streams: Sequence[Stream], after: int) -> BlockReader:
        """Return a reader of the messages of `streams` after `after`."""
        return BlockReader(self._store, self._index, self._rows, streams, after)

    def scanner(self, topic_filter: str, after: int) -> BlockScan:
        """Return a reader of all messages after `after` whose topic matches; uses no index."""
        return BlockScan(self._rows, topic_filter, after)

    def first_owed(self, streams: Sequence[Stream], after: int, upto: int) -> int | None:
        """Return the first offset of `streams` in (after, upto], None if there is none."""
        first: int | None = None
        for stream in streams:
            since = max(after, stream.since)
            # An offset already found bounds the search in the other streams.
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
                if entries and entries[0] >> BACK_BITS <= end:
                    first = entries[0] >> BACK_BITS
        return first
