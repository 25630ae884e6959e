"""Read blocks: by offset, by the index of some streams, or all of them.

All readers of a log share a cache of decoded blocks, so sessions that read the same stream at the
same place get the same `Message` objects: do not change them. A reader itself holds index entries
but no block, so ten thousand readers hold no messages. Must never hold more than PAGE_BYTES_MAX of
messages and one more. Read next: `storage.log.layouts.merge`.
"""

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from mqtt.topics import matches
from storage.api import Row, Store
from storage.errors import DamagedRows
from storage.log.layouts.api import SEARCH_ROWS, Stream, first_number
from storage.log.layouts.block_format import (
    BACK_BITS,
    BACK_MASK,
    BLOCK_BYTES,
    KEY_SIZE,
    MESSAGE_SIZE,
    Block,
    decode_index,
    decode_single,
    index_start,
)
from storage.log.layouts.merge import INDEX_PAGE_MAX, Merge

# A call returns and holds at most about this much, so that a backlog of large messages costs the
# reader no more (instead of count * maximum_packet_size).
PAGE_BYTES_MAX: Final = 1 << 20
# Memory for the decoded blocks of a log, and the largest block that is cached.
CACHE_BYTES: Final = 1 << 20
CACHED_BLOCK_MAX: Final = 64 << 10
# Cache for reads of single messages: messages (the pages of two readers); bytes of their blocks;
# the largest block decoded for one message only. 500 sessions that resume at a time, each with a
# topic and 50 messages of its own, go back to blocks of the last 10 MB that were read: with 8 MiB
# each message costs the read of a block (25 November 2026).
SINGLES_MAX: Final = 512
SINGLES_BYTES: Final = 32 << 20
SINGLE_BYTES_MAX: Final = 2 * BLOCK_BYTES
KEPT_SIZE: Final = 256  # memory of a kept block beside its bytes: blocks of quiet ticks are small
SCAN_PAGE: Final = 4  # blocks a scan reads at once

# Difference of the entries of two consecutive messages in the same block.
_NEXT_IN_BLOCK: Final = (1 << BACK_BITS) - 1

_KEY: Final = struct.Struct(">Q")
_pack: Final = _KEY.pack


class BlockCache:
    """The blocks read last, by the offset of their last message; evicts the oldest first."""

    __slots__ = ("_blocks", "recent", "singles", "size")

    def __init__(self) -> None:
        self._blocks: Final[dict[int, Block]] = {}
        self.recent: Block | None = None  # the last one looked up by an offset
        self.size: int = 0
        self.singles: Final = SingleCache()

    def get(self, family: str, last: int) -> Block | None:
        """Return the block of `family` that ends with `last`, None if it is not cached."""
        block = self._blocks.get(last)
        # Blocks of a dropped generation may still be cached; never return them.
        return block if block is not None and block.family == family else None

    def add(self, block: Block) -> None:
        """Cache a block, unless it is too large."""
        if block.size > CACHED_BLOCK_MAX:
            return
        blocks = self._blocks
        replaced = blocks.pop(block.last, None)
        if replaced is not None:
            self.size -= replaced.cost
        blocks[block.last] = block
        self.size += block.cost
        while self.size > CACHE_BYTES:
            self.size -= blocks.pop(next(iter(blocks))).cost


class SingleCache:
    """The messages that were read singly, and the bytes of their blocks.

    The messages are those of one generation at a time, and all are forgotten when they are too
    many. The blocks are those of all generations, and the oldest are forgotten first: sessions that
    come back together go through the same blocks, and through several generations at a time.
    """

    __slots__ = ("_family", "_order", "messages", "size")

    def __init__(self) -> None:
        self._family = ""
        self.messages: Final[dict[int, Message]] = {}  # by their offset
        # The blocks in the order in which they were read: what holds each, and its last offset.
        self._order: Final[deque[tuple[dict[int, bytes], int]]] = deque()
        self.size: int = 0  # bytes of memory for the blocks

    def turn_to(self, family: str) -> None:
        """Forget the messages if they are of another family."""
        if family != self._family:
            self._family = family
            self.messages.clear()

    def keep_message(self, message: Message) -> None:
        """Cache a message for sessions at the same place."""
        if len(self.messages) >= SINGLES_MAX:
            self.messages.clear()
        self.messages[message.offset] = message

    def keep_block(self, blocks: dict[int, bytes], last: int, data: bytes) -> None:
        """Add a block to those of its generation, for sessions that need another message of it.

        It must not be among them.
        """
        blocks[last] = data
        self._order.append((blocks, last))
        self.size += len(data) + KEPT_SIZE
        while self.size > SINGLES_BYTES:
            of_oldest, oldest = self._order.popleft()
            self.size -= len(of_oldest.pop(oldest)) + KEPT_SIZE


class BlockRows:
    """The blocks of one generation."""

    __slots__ = ("_cache", "_family", "_singles", "_store")

    def __init__(self, store: Store, generation: int, cache: BlockCache) -> None:
        self._store: Final = store
        self._family: Final = f"msg.{generation}"
        self._cache: Final = cache
        # By the offset of their last message; sound. `SingleCache` forgets them.
        self._singles: Final[dict[int, bytes]] = {}

    def message(self, offset: int, last: int) -> Message | None:
        """Return the message at `offset`, in the block that ends with `last`, decoding only it.

        For streams whose next message is in another block or not adjacent, so that decoding the
        whole block does not pay.
        """
        singles = self._cache.singles
        singles.turn_to(self._family)
        message = singles.messages.get(offset)
        if message is not None:
            return message
        block = self._cache.get(self._family, last)
        if block is None:
            value = self._singles.get(last)
            is_sound = value is not None
            if value is None:
                value = self._store.get_uncached(self._family, _pack(last))
                if value is None:
                    return None
            if len(value) <= SINGLE_BYTES_MAX:
                message = decode_single(value, last, offset, is_sound)
                if message is not None:
                    singles.keep_message(message)
                    if not is_sound:
                        singles.keep_block(self._singles, last, value)
                    return message
            block = Block(value, last, self._family)
            self._cache.add(block)
        return block.get(offset)

    def get(self, last: int) -> Block | None:
        """Return the block that ends with `last`, None if there is none."""
        block = self._cache.get(self._family, last)
        if block is None:
            value = self._singles.get(last)
            if value is None:
                value = self._store.get(self._family, _pack(last))
            if value is None:
                return None
            block = Block(value, last, self._family)
            self._cache.add(block)
        return block

    def covering(self, offset: int) -> Block | None:
        """Return the first block that ends at or after `offset`, None if there is none."""
        cache = self._cache
        recent = cache.recent
        if (
            recent is not None
            and recent.first <= offset <= recent.last
            and recent.family == self._family
        ):
            return recent
        rows = self._store.scan(self._family, _pack(offset), count=1)
        if not rows:
            return None
        last = int.from_bytes(rows[0][0], "big")
        block = cache.get(self._family, last)
        if block is None:
            block = Block(rows[0][1], last, self._family)
            cache.add(block)
        if block.size <= CACHED_BLOCK_MAX:
            cache.recent = block
        return block

    def page(self, first: int, count: int) -> list[Row]:
        """Return the rows of at most `count` blocks that end at or after `first`."""
        return self._store.scan(self._family, _pack(first), count=count)


class BlockIndex:
    """The index rows of one generation, as entries to merge.

    Where rows are damaged it looks at the messages themselves instead.
    """

    __slots__ = ("_density", "_family", "_rows", "_store", "_topic_filters", "damage", "lost")

    def __init__(
        self, store: Store, family: str, rows: BlockRows, topic_filters: dict[int, str]
    ) -> None:
        self._store: Final = store
        self._family: Final = family
        self._rows: Final = rows
        self._topic_filters: Final = topic_filters
        self._density = 1  # offsets per row in the last page
        self.lost: Final[list[int]] = []  # as those of a reader
        self.damage: DamagedRows | None = None

    def page(self, filter_id: int, after: int, upto: int, count: int) -> list[int]:
        """Return the next entries of a filter with after < entry <= upto; see `Index`."""
        entries: list[int] = []
        start = (after >> BACK_BITS) + 1
        stop = index_start(filter_id + 1, 0)
        while len(entries) < count:
            before = len(entries)
            wanted = (count - before) // self._density + 1
            damage: DamagedRows | None = None
            try:
                rows = self._store.scan(
                    self._family, index_start(filter_id, start), stop, count=wanted
                )
            except DamagedRows as problem:
                damage = problem
                rows = problem.rows
            used = 0
            for key, value in rows:
                known = len(entries)
                try:
                    decode_index(key, value, start - 1, count, entries)
                except DamagedRows as problem:
                    del entries[known:]
                    self.damage = problem
                    after = (entries[-1] >> BACK_BITS) if entries else start - 1
                    last = int.from_bytes(key[KEY_SIZE : 2 * KEY_SIZE], "big")
                    self._search(filter_id, after, min(last, upto >> BACK_BITS), count, entries)
                used += 1
                if len(entries) >= count:
                    break
            if damage is not None and len(entries) < count:
                after = (entries[-1] >> BACK_BITS) if entries else start - 1
                start = self._pass_over(damage, filter_id, after, upto, count, entries)
                if start > upto >> BACK_BITS:
                    break
                continue
            if used:
                self._density = max(1, (len(entries) - before) // used)
            if len(rows) < wanted or (entries and entries[-1] > upto):
                break
            start = (entries[-1] >> BACK_BITS) + 1
        while entries and entries[-1] > upto:
            entries.pop()
        return entries

    def _pass_over(
        self,
        damage: DamagedRows,
        filter_id: int,
        after: int,
        upto: int,
        count: int,
        entries: list[int],
    ) -> int:
        """Add the entries of damaged rows, which follow `after`; return where to read on."""
        self.damage = damage
        last = upto >> BACK_BITS
        stop = index_start(filter_id + 1, 0)
        resume = damage.resume
        while resume is not None and resume < stop:
            try:
                rows = self._store.scan(self._family, resume, stop, count=1)
                following: list[int] = []
                if rows:
                    decode_index(rows[0][0], rows[0][1], after, 1, following)
                    if following:
                        last = min(last, (following[0] >> BACK_BITS) - 1)
                break
            except DamagedRows as problem:
                resume = problem.resume
        self._search(filter_id, after, last, count, entries)
        return (entries[-1] >> BACK_BITS) + 1 if len(entries) >= count else last + 1

    def _search(
        self, filter_id: int, after: int, last: int, count: int, entries: list[int]
    ) -> None:
        """Add entries for the messages after `after` up to `last`, until those are `count`."""
        scan = BlockScan(self._rows, self._topic_filters[filter_id], after)
        while len(entries) < count and scan.position < last:
            for message in scan.next(count - len(entries), last, 0):
                block = self._rows.covering(message.offset)
                assert block is not None
                entries.append(message.offset << BACK_BITS | (block.last - message.offset))
        if scan.lost:
            self.lost.extend(scan.lost)
            self.damage = scan.damage


class BlockReader:
    """A reader that merges the index rows of its streams by offset."""

    __slots__ = (
        "_at",
        "_index",
        "_merge",
        "_ready",
        "_rows",
        "damage",
        "lost",
        "missing",
        "position",
        "searches",
    )

    def __init__(
        self, store: Store, index: str, rows: BlockRows, streams: Sequence[Stream], after: int
    ) -> None:
        starts: dict[int, int] = {}
        for stream in streams:
            since = max(after, stream.since) << BACK_BITS | BACK_MASK
            starts[stream.filter_id] = min(since, starts.get(stream.filter_id, since))
        topic_filters = {stream.filter_id: stream.topic_filter for stream in streams}
        self._index: Final = BlockIndex(store, index, rows, topic_filters)
        self._merge: Final = Merge(self._index, list(starts.items()), after)
        self._rows: Final = rows
        self.lost: list[int] = []
        self.damage: DamagedRows | None = None
        self._ready: list[int] = []  # merged entries
        self._at = 0  # index of the next one to return
        self.position = after
        self.missing = 0
        self.searches = 0

    def next(self, count: int, upto: int, scan_max: int) -> list[Message]:
        """Return at most `count` further messages with an offset <= `upto`; see `Reader`."""
        messages: list[Message] = []
        size = 0
        rows = self._rows
        self._merge.allow(scan_max // SEARCH_ROWS)
        block: Block | None = None
        last = 0  # offset at which `block` ends
        damaged = 0  # offset at which a block ends that cannot be read
        ready = self._ready
        at = self._at
        while len(messages) < count and size < PAGE_BYTES_MAX:
            if at == len(ready):
                ready = self._take(count - len(messages), upto)
                at = 0
                if not ready:
                    break
            entry = ready[at]
            at += 1
            offset = entry >> BACK_BITS
            wanted = offset + (entry & BACK_MASK)
            if wanted == damaged:
                count -= 1
                self.lost.append(offset)
                self.position = offset
                continue
            try:
                if wanted == last:
                    message = None if block is None else block.get(offset)
                elif at < len(ready) and ready[at] == entry + _NEXT_IN_BLOCK:
                    block = rows.get(wanted)
                    last = wanted
                    message = None if block is None else block.get(offset)
                else:
                    message = rows.message(offset, wanted)
            except DamagedRows as problem:
                if wanted != last:
                    damaged = wanted  # else some of its messages were readable
                count -= 1
                self.lost.append(offset)
                self.damage = problem
                self.position = offset
                continue
            if message is None:
                self.missing += 1
            else:
                messages.append(message)
                size += len(message.payload) + MESSAGE_SIZE
            self.position = offset
        self._at = at
        return messages

    def skip(self, count: int, upto: int, scan_max: int) -> int:
        """Skip at most `count` messages, reading only index rows; return how many."""
        skipped = 0
        self._merge.allow(scan_max // SEARCH_ROWS)
        while skipped < count:
            if self._at == len(self._ready) and not self._take(count - skipped, upto):
                break
            step = min(count - skipped, len(self._ready) - self._at)
            self._at += step
            skipped += step
            self.position = self._ready[self._at - 1] >> BACK_BITS
        return skipped

    def offsets(self, count: int, upto: int, scan_max: int) -> list[int]:
        """Skip as `skip` does; return the offsets of what was skipped."""
        found: list[int] = []
        self._merge.allow(scan_max // SEARCH_ROWS)
        while len(found) < count:
            if self._at == len(self._ready) and not self._take(count - len(found), upto):
                break
            stop = min(self._at + count - len(found), len(self._ready))
            found += [entry >> BACK_BITS for entry in self._ready[self._at : stop]]
            self._at = stop
            self.position = found[-1]
        return found

    def buffered(self) -> int:
        """Return how many distinct offsets are read ahead."""
        return len(self._ready) - self._at + self._merge.buffered()

    def _take(self, count: int, upto: int) -> list[int]:
        """Merge the next entries. Call it only when all earlier ones were returned."""
        merge = self._merge
        ready = merge.take(min(count, INDEX_PAGE_MAX), upto << BACK_BITS | BACK_MASK)
        self.searches = merge.searches
        self._ready = ready
        self._at = 0
        index = self._index
        if index.damage is not None:
            self.damage, index.damage = index.damage, None
            self.lost.extend(index.lost)
            index.lost.clear()
        if not ready:
            end = (merge.floor >> BACK_BITS) - 1 if merge.is_paused else upto
            self.position = max(self.position, end)
        return ready


class BlockScan:
    """A reader that looks at every message in order and keeps those whose topic matches."""

    __slots__ = (
        "_block",
        "_page",
        "_rows",
        "_topic_filter",
        "damage",
        "lost",
        "missing",
        "position",
        "searches",
    )

    def __init__(self, rows: BlockRows, topic_filter: str, after: int) -> None:
        self._rows: Final = rows
        self._topic_filter: Final = topic_filter
        self._block: Block | None = None  # holds the next message
        self._page: list[Row] = []  # further blocks, the next one last
        self.position = after
        self.missing = 0
        self.searches = 0
        self.lost: list[int] = []
        self.damage: DamagedRows | None = None

    def next(self, count: int, upto: int, scan_max: int) -> list[Message]:
        """Return at most `count` further messages with an offset <= `upto`; see `Reader`."""
        messages: list[Message] = []
        size = 0
        first = self.position
        while len(messages) < count and size < PAGE_BYTES_MAX and self.position < upto:
            if scan_max and self.position - first >= scan_max:
                break
            block = self._next_block()
            if block is None or block.first > upto:
                self.position = upto
                break
            offset = max(self.position + 1, block.first)
            end = min(block.run_end(offset), upto)
            try:
                message = block.get(offset)
            except DamagedRows as problem:
                self._lose(problem, offset)
                self.position = end
                continue
            assert message is not None
            if not matches(self._topic_filter, message.topic):
                self.position = end
                continue
            end = min(end, offset + count - len(messages) - 1)
            while offset <= end and size < PAGE_BYTES_MAX:
                message = block.get(offset)
                assert message is not None
                messages.append(message)
                size += len(message.payload) + MESSAGE_SIZE
                self.position = offset
                offset += 1
        return messages

    def skip(self, count: int, upto: int, scan_max: int) -> int:
        """Skip at most `count` of the messages that `next` would return; return how many."""
        return len(self.next(count, upto, scan_max))

    def offsets(self, count: int, upto: int, scan_max: int) -> list[int]:
        """Skip as `skip` does; return the offsets of what was skipped."""
        return [message.offset for message in self.next(count, upto, scan_max)]

    def buffered(self) -> int:
        """Return 0: rows that were read ahead are not known to match."""
        return 0

    def _next_block(self) -> Block | None:
        """Return the block with the first message after `position`, None if there is none."""
        block = self._block
        while block is None or block.last <= self.position:
            if not self._page:
                size = 1 if block is None or block.size > 2 * BLOCK_BYTES else SCAN_PAGE
                self._page = self._read_page(size)
                if not self._page:
                    return None
                self._page.reverse()
            key, value = self._page.pop()
            last = int.from_bytes(key, "big")
            try:
                block = Block(value, last)
            except DamagedRows as problem:
                self._lose(problem, self.position + 1)
                self.position = max(self.position, last)
                continue
            self._block = block
        return block

    def _read_page(self, size: int) -> list[Row]:
        """Return the next rows behind `position` that can be read."""
        first = self.position + 1
        while True:
            try:
                return self._rows.page(first, size)
            except DamagedRows as problem:
                if problem.rows:
                    return problem.rows
                self._lose(problem, self.position + 1)
                if problem.resume is None:
                    return []
                first = first_number(problem.resume)

    def _lose(self, problem: DamagedRows, offset: int) -> None:
        """Note damage that begins at `offset`; whether the messages in it match is not known."""
        self.damage = problem
        if not self.lost or self.lost[-1] != offset:
            self.lost.append(offset)
