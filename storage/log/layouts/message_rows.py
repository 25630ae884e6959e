"""Message rows with one record each: family `msg.G`, key offset, value record.

Shared by the layouts `filters` and `timeline`, and frozen like them: a layout with other message
rows brings its own. Also reads rows in order while matching topics, without an index. Must never
hold more than a page of rows.
"""

import struct
from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from mqtt.topics import matches
from storage.api import Batch, Row, Store
from storage.errors import DamagedRows
from storage.log.layouts.api import Stream, first_number
from storage.tables.message_record import decode_message, topic_bytes

OFFSET_MAX: Final = 2**63 - 1
KEY_SIZE: Final = 8
# A call returns and holds at most about this much, so that a backlog of large messages costs the
# reader no more (instead of count * maximum_packet_size).
PAGE_BYTES_MAX: Final = 1 << 20
PAGE_FIRST: Final = 8  # messages in the first page, before their size is known
# Messages in a later page. A page is sized by the one before it, so this also limits the cost of a
# sudden run of the largest messages; pages of 512 are only 5 % faster.
PAGE_MAX: Final = 64
_SAMPLE: Final = 64
# Topics cached with their match; a hit saves matching every filter. 4,096 entries of ~150 bytes are
# at most 600 kB, for one reader only.
_TOPICS_MAX: Final = 4096

_KEY: Final = struct.Struct(">Q")
_pack: Final = _KEY.pack
_unpack: Final = _KEY.unpack_from


def message_key(offset: int) -> bytes:
    """Return the key of a message row: the offset, 8 bytes big-endian."""
    return _pack(offset)


def message_family(generation: int) -> str:
    """Return the name of the family that holds the messages of a generation."""
    return f"msg.{generation}"


class MessageRows:
    """The message rows of one generation."""

    __slots__ = ("_store", "family")

    def __init__(self, store: Store, generation: int) -> None:
        self._store: Final = store
        self.family: Final = message_family(generation)

    def get_many(self, offsets: Sequence[int]) -> list[Message | None]:
        """Return the messages at `offsets` in their order, None where there is none."""
        records = self.records(offsets)
        return [
            None if record is None else decode_message(record, offset)
            for record, offset in zip(records, offsets, strict=True)
        ]

    def records(self, offsets: Sequence[int]) -> list[bytes | None]:
        """Return the records at `offsets` in their order, None where there is none."""
        return self._store.get_many(self.family, [_pack(offset) for offset in offsets])

    def first_from(self, offset: int) -> Message | None:
        """Return the first message at or after `offset`, None if there is none."""
        rows = self._store.scan(self.family, _pack(offset), count=1)
        if not rows:
            return None
        key, record = rows[0]
        return decode_message(record, int(_unpack(key)[0]))

    def page(self, first: int, last: int, count: int) -> list[Row]:
        """Return at most `count` rows with offsets from `first` to `last`."""
        return self._store.scan(self.family, _pack(first), _pack(last + 1), count=count)

    def last_offset(self) -> int:
        """Return the greatest offset written, 0 if there is none."""
        row = self._store.last(self.family, _pack(0), _pack(OFFSET_MAX))
        return 0 if row is None else int(_unpack(row[0])[0])

    def sampled_size(self) -> int:
        """Return the average size in bytes of the newest 64 and the oldest 64 rows, 0 if none."""
        rows = self._sample(0)
        try:
            rows += self._sample(max(0, self.last_offset() - _SAMPLE + 1))
        except DamagedRows:
            pass  # the oldest ones are a sample, too
        if not rows:
            return 0
        return KEY_SIZE + sum(len(record) for _, record in rows) // len(rows)

    def _sample(self, first: int) -> list[Row]:
        """Return a few rows from `first` on, as far as they can be read."""
        try:
            return self._store.scan(self.family, _pack(first), count=_SAMPLE)
        except DamagedRows as damage:
            return damage.rows

    def measured(self) -> tuple[int, int]:
        """Return (number of rows, their size in bytes); reads all of them, page by page."""
        count = size = 0
        start = _pack(0)
        while rows := self._store.scan(self.family, start, count=PAGE_MAX):
            count += len(rows)
            size += sum(KEY_SIZE + len(record) for _, record in rows)
            start = rows[-1][0] + b"\0"
        return count, size


class TopicScan:
    """A reader that looks at every message in order and keeps those its streams are owed."""

    __slots__ = (
        "_at",
        "_page",
        "_page_size",
        "_rows",
        "_streams",
        "_wanted_after",
        "damage",
        "lost",
        "missing",
        "position",
        "searches",
    )

    def __init__(self, rows: MessageRows, streams: Sequence[Stream], after: int) -> None:
        self._rows: Final = rows
        self._streams: Final = streams
        self._wanted_after: Final[dict[bytes, int]] = {}  # topic -> smallest since that matches
        self._page: list[Row] = []
        self._at = 0  # next row of the page
        self._page_size = PAGE_FIRST
        self.position = after
        self.missing = 0
        self.searches = 0
        self.lost: list[int] = []
        self.damage: DamagedRows | None = None

    def next(self, count: int, upto: int, scan_max: int) -> list[Message]:
        """Return at most `count` further messages with an offset <= `upto`; see `Reader`."""
        messages: list[Message] = []
        for offset, record in self._take(count, upto, scan_max):
            try:
                messages.append(decode_message(record, offset))
            except DamagedRows as problem:
                self.damage = problem
                self.lost.append(offset)
        return messages

    def skip(self, count: int, upto: int, scan_max: int) -> int:
        """Skip at most `count` messages; return how many."""
        return len(self._take(count, upto, scan_max))

    def offsets(self, count: int, upto: int, scan_max: int) -> list[int]:
        """Skip as `skip` does; return the offsets of what was skipped."""
        return [offset for offset, _ in self._take(count, upto, scan_max)]

    def buffered(self) -> int:
        """Return 0: rows that were read ahead are not known to match."""
        return 0

    def _take(self, count: int, upto: int, scan_max: int) -> list[tuple[int, bytes]]:
        taken: list[tuple[int, bytes]] = []
        size = 0
        scanned = 0
        wanted_after = self._wanted_after
        while len(taken) < count and size < PAGE_BYTES_MAX:
            if self._at == len(self._page):
                if self.position >= upto or (scan_max and scanned >= scan_max):
                    break
                if not self._fill(upto):
                    self.position = upto
                    break
                scanned += len(self._page)
            key, record = self._page[self._at]
            self._at += 1
            offset = int(_unpack(key)[0])
            try:
                topic = topic_bytes(record, offset)
            except DamagedRows as problem:
                self.damage = problem
                self.lost.append(offset)
                self.position = offset
                continue
            since = wanted_after.get(topic)
            if since is None:
                since = self._match(topic)
            if offset > since:
                taken.append((offset, record))
                size += len(record)
            self.position = offset
        return taken

    def _fill(self, upto: int) -> bool:
        page: list[Row] = []
        if self._streams:
            page = self._read_page(upto)
        self._page = page
        self._at = 0
        if not page:
            return False
        mean = sum(len(record) for _, record in page) // len(page) + 1
        self._page_size = max(1, min(PAGE_MAX, PAGE_BYTES_MAX // mean, 2 * self._page_size))
        return True

    def _read_page(self, upto: int) -> list[Row]:
        """Return the next rows behind `position` that can be read."""
        first = self.position + 1
        while True:
            try:
                return self._rows.page(first, upto, self._page_size)
            except DamagedRows as problem:
                if problem.rows:
                    return problem.rows
                self.damage = problem
                self.lost.append(first)  # whether the messages in it match is not known
                if problem.resume is None:
                    return []
                first = max(first + 1, first_number(problem.resume))
                if first > upto:
                    return []

    def _match(self, topic: bytes) -> int:
        name = topic.decode()
        since = OFFSET_MAX
        for stream in self._streams:
            if stream.since < since and matches(stream.topic_filter, name):
                since = stream.since
        if len(self._wanted_after) >= _TOPICS_MAX:
            self._wanted_after.clear()
        self._wanted_after[topic] = since
        return since


class RowSlab:
    """The common part of slabs that put one row per message into the batch at once."""

    __slots__ = ("_family", "_rows")

    def __init__(self, store: Store, generation: int) -> None:
        self._rows: Final = MessageRows(store, generation)
        self._family: Final = self._rows.family

    @property
    def is_pending(self) -> bool:
        """Return False: rows go into the batch at once."""
        return False

    def seal(self, batch: Batch) -> int:
        """Do nothing: rows go into the batch at once."""
        return 0

    def discard(self) -> None:
        """Do nothing: nothing is pending."""

    def get_many(self, offsets: Sequence[int]) -> list[Message | None]:
        """Return the messages at `offsets` in their order, None where there is none."""
        return self._rows.get_many(offsets)

    def sizes(self, first: int, last: int) -> list[int]:
        """Return the bytes of topic and payload of the messages from `first` to `last`."""
        found: list[int] = []
        for offset in range(first, last + 1):
            try:
                message = self._rows.get_many((offset,))[0]
            except DamagedRows:
                message = None
            size = 0 if message is None else len(message.topic.encode()) + len(message.payload)
            found.append(size)
        return found

    def first_from(self, offset: int) -> Message | None:
        """Return the first message at or after `offset`, None if there is none."""
        return self._rows.first_from(offset)

    def last_offset(self) -> int:
        """Return the greatest offset written, 0 if there is none."""
        return self._rows.last_offset()

    def sampled_size(self) -> int:
        """Return the average size in bytes of a message's row, from a bounded sample."""
        return self._rows.sampled_size()

    def measured(self) -> tuple[int, int]:
        """Return (number of message rows, their size in bytes); reads all of them."""
        return self._rows.measured()

    def scanner(self, topic_filter: str, after: int) -> TopicScan:
        """Return a reader of all messages after `after` whose topic matches; uses no index."""
        return TopicScan(self._rows, [Stream(0, topic_filter, 0)], after)
