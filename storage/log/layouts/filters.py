"""Layout `filters`: one row per message, and an index of offsets per durable topic filter.

Family `msg.G`: offset -> record; family `idx.G`: filter_id, offset -> nothing. An append is one row
plus one index row per filter that has a holder, however many sessions hold it; a reader seeks to
its position in each of its streams and merges them by offset. Read next: `storage.log.cursor`.
"""

import struct
from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from storage.api import Batch, Store
from storage.errors import DamagedRows
from storage.log.layouts.api import SEARCH_ROWS, Stream
from storage.log.layouts.merge import INDEX_PAGE_MAX, Merge
from storage.log.layouts.message_rows import (
    KEY_SIZE,
    PAGE_BYTES_MAX,
    PAGE_FIRST,
    PAGE_MAX,
    MessageRows,
    RowSlab,
    TopicScan,
    message_family,
    message_key,
)
from storage.tables.message_record import decode_message, encode_message

NAME: Final = "filters"
_INDEX_KEY: Final = struct.Struct(">QQ")
_INDEX_KEY_SIZE: Final = 16
_index_key: Final = _INDEX_KEY.pack
_OFFSET: Final = struct.Struct(">Q")
_offset_of: Final = _OFFSET.unpack_from


def index_key(filter_id: int, offset: int) -> bytes:
    """Return the key of an index row: filter_id and offset, 8 bytes big-endian each."""
    return _index_key(filter_id, offset)


def index_family(generation: int) -> str:
    """Return the name of the family that holds the index of a generation."""
    return f"idx.{generation}"


def families(generation: int) -> tuple[str, ...]:
    """Return the names of the families of a generation with this layout."""
    return (message_family(generation), index_family(generation))


class FilterSlab(RowSlab):
    """A generation with an index per filter."""

    __slots__ = ("_index", "_store", "families")

    def __init__(self, store: Store, generation: int) -> None:
        super().__init__(store, generation)
        self.families: tuple[str, ...] = families(generation)
        self._store: Final = store
        self._index: Final = index_family(generation)

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Add the rows of one message to `batch`; return their size in bytes."""
        offset = message.offset
        record = encode_message(message)
        batch.append((self._family, message_key(offset), record))
        index = self._index
        for filter_id in filter_ids:
            batch.append((index, _index_key(filter_id, offset), b""))
        return KEY_SIZE + len(record) + _INDEX_KEY_SIZE * len(filter_ids)

    def reader(self, streams: Sequence[Stream], after: int) -> "IndexReader":
        """Return a reader of the messages of `streams` after `after`."""
        return IndexReader(self._store, self._index, self._rows, streams, after)

    def first_owed(self, streams: Sequence[Stream], after: int, upto: int) -> int | None:
        """Return the first offset of `streams` in (after, upto], None if there is none."""
        first: int | None = None
        for stream in streams:
            start = _index_key(stream.filter_id, max(after, stream.since) + 1)
            # An offset already found bounds the search in the other streams.
            stop = _index_key(stream.filter_id, upto + 1 if first is None else first)
            if start < stop:
                rows = self._store.scan(self._index, start, stop, count=1)
                if rows:
                    first = int(_offset_of(rows[0][0], KEY_SIZE)[0])
        return first


class FilterIndex:
    """The index rows of one generation, as offsets to merge.

    Where rows are damaged it looks at the messages themselves instead.
    """

    __slots__ = ("_family", "_rows", "_store", "_topic_filters", "damage", "lost")

    def __init__(
        self, store: Store, family: str, rows: MessageRows, topic_filters: dict[int, str]
    ) -> None:
        self._store: Final = store
        self._family: Final = family
        self._rows: Final = rows
        self._topic_filters: Final = topic_filters
        self.lost: Final[list[int]] = []  # as those of a reader
        self.damage: DamagedRows | None = None

    def page(self, filter_id: int, after: int, upto: int, count: int) -> list[int]:
        """Return the next offsets of a filter in (after, upto], at most `count`; see `Index`."""
        try:
            rows = self._store.scan(
                self._family,
                _index_key(filter_id, after + 1),
                _index_key(filter_id, upto + 1),
                count=count,
            )
        except DamagedRows as problem:
            self.damage = problem
            return self._search(filter_id, after, upto, count)
        return [_offset_of(key, KEY_SIZE)[0] for key, _ in rows]

    def _search(self, filter_id: int, after: int, upto: int, count: int) -> list[int]:
        """Return the next offsets by looking at the messages."""
        stream = Stream(filter_id, self._topic_filters[filter_id], 0)
        scan = TopicScan(self._rows, [stream], after)
        offsets: list[int] = []
        while len(offsets) < count and scan.position < upto:
            offsets += [each.offset for each in scan.next(count - len(offsets), upto, 0)]
        self.lost.extend(scan.lost)
        return offsets


class IndexReader:
    """A reader that merges the index rows of its streams by offset."""

    __slots__ = (
        "_index",
        "_merge",
        "_messages_size",
        "_rows",
        "damage",
        "lost",
        "missing",
        "position",
        "searches",
    )

    def __init__(
        self, store: Store, index: str, rows: MessageRows, streams: Sequence[Stream], after: int
    ) -> None:
        starts: dict[int, int] = {}
        for stream in streams:
            since = max(after, stream.since)
            starts[stream.filter_id] = min(since, starts.get(stream.filter_id, since))
        topic_filters = {stream.filter_id: stream.topic_filter for stream in streams}
        self._index: Final = FilterIndex(store, index, rows, topic_filters)
        self._merge: Final = Merge(self._index, list(starts.items()), after)
        self._rows: Final = rows
        self.lost: list[int] = []
        self.damage: DamagedRows | None = None
        self._messages_size = PAGE_FIRST  # messages read at once: few until their size is known
        self.position = after
        self.missing = 0
        self.searches = 0

    def next(self, count: int, upto: int, scan_max: int) -> list[Message]:
        """Return at most `count` further messages with an offset <= `upto`; see `Reader`."""
        messages: list[Message] = []
        size = 0
        lost = len(self.lost)
        self._merge.allow(scan_max // SEARCH_ROWS)
        while len(messages) + len(self.lost) - lost < count and size < PAGE_BYTES_MAX:
            offsets = self._take(min(count - len(messages), self._messages_size), upto)
            if not offsets:
                break
            self._note_damage()
            page_bytes = 0
            try:
                records = self._rows.records(offsets)
            except DamagedRows:
                records = self._readable(offsets)
            for offset, record in zip(offsets, records, strict=True):
                if record is None:
                    self.missing += 1
                elif record:
                    page_bytes += len(record)
                    try:
                        messages.append(decode_message(record, offset))
                    except DamagedRows as problem:
                        self.damage = problem
                        self.lost.append(offset)
            self.position = offsets[-1]
            size += page_bytes
            fitting = PAGE_BYTES_MAX * len(offsets) // (page_bytes + 1)
            self._messages_size = max(1, min(PAGE_MAX, fitting, 4 * self._messages_size))
        return messages

    def skip(self, count: int, upto: int, scan_max: int) -> int:
        """Skip at most `count` messages, reading only index rows; return how many."""
        return len(self.offsets(count, upto, scan_max))

    def offsets(self, count: int, upto: int, scan_max: int) -> list[int]:
        """Skip as `skip` does; return the offsets of what was skipped."""
        found: list[int] = []
        self._merge.allow(scan_max // SEARCH_ROWS)
        while len(found) < count:
            offsets = self._take(min(count - len(found), INDEX_PAGE_MAX), upto)
            if not offsets:
                break
            found += offsets
            self.position = offsets[-1]
        self._note_damage()
        return found

    def _take(self, count: int, upto: int) -> list[int]:
        """Merge the next offsets; if there are none, move the position."""
        merge = self._merge
        offsets = merge.take(count, upto)
        self.searches = merge.searches
        if not offsets:
            self.position = max(self.position, merge.floor if merge.is_paused else upto)
        return offsets

    def _note_damage(self) -> None:
        index = self._index
        if index.damage is not None:
            self.damage, index.damage = index.damage, None
            self.lost.extend(index.lost)
            index.lost.clear()

    def _readable(self, offsets: list[int]) -> list[bytes | None]:
        """Return the records at `offsets` one by one, b"" for one that cannot be read."""
        records: list[bytes | None] = []
        for offset in offsets:
            try:
                records.append(self._rows.records([offset])[0])
            except DamagedRows as problem:
                self.damage = problem
                self.lost.append(offset)
                records.append(b"")
        return records

    def buffered(self) -> int:
        """Return how many distinct offsets are read ahead."""
        return self._merge.buffered()
