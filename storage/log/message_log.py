"""The message log of one shard: every accepted message once, in one order, in generations.

A session is a position in this log (`cursor`); nothing is written per subscriber. All rows go into
the batch of the tick, at the latest when `seal` is called, which must be before the batch is
written. Reads see only what was written to the store, never a pending batch. The log itself writes
only families, and rows where `open` and `store_batch` say so. A shard is one store with one writer;
`shard` is its name in streams and iterators. Read next: `storage.log.generations` (how the log is
divided), `storage.log.layouts.blocks` (the rows), `storage.log.cursor`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from mqtt.message import Message
from mqtt.topics import matches
from storage.api import Batch, Store
from storage.errors import GenerationDropped
from storage.log.cursor import Cursor
from storage.log.gaps import NO_GAPS, Gaps, outside
from storage.log.generations import (
    GENERATIONS_MAX,
    INDEXED,
    LAYOUTS,
    Generation,
    Generations,
    OpenGeneration,
    load_generations,
)
from storage.log.iterators import END_OF_STREAM, EndOfStream, StoredStream, StreamIterator
from storage.log.layouts.api import Stream

__all__ = [
    "END_OF_STREAM",
    "Cursor",
    "Generation",
    "GenerationReport",
    "MessageLog",
    "StoredStream",
    "Stream",
    "StreamIterator",
    "report_generations",
]

DEFAULT_LAYOUT: Final = "blocks"
# A generation is closed at this size or age. Space is freed by dropping whole generations: larger
# ones keep more data alive, smaller ones mean more column families.
GENERATION_SIZE_BYTES: Final = 256 << 20
GENERATION_AGE_MS: Final = 3600 * 1000
# Rows without a match that `next` looks at before it returns: about 10 ms.
SCAN_MAX: Final = 10_000
# Broker time only grows along the log, except at a restart, where it may repeat the second since
# the last heartbeat. So a search by time begins this much earlier and compares every message.
DISORDER_MS: Final = 60_000


class MessageLog:
    """All messages of one shard."""

    __slots__ = (
        "_generations",
        "cuts",
        "generation_age_ms",
        "generation_size_bytes",
        "held_filters",
        "shard",
    )

    def __init__(
        self,
        store: Store,
        *,
        layout: str = DEFAULT_LAYOUT,
        shard: int = 0,
        generation_size_bytes: int = GENERATION_SIZE_BYTES,
        generation_age_ms: int = GENERATION_AGE_MS,
    ) -> None:
        self._generations: Final = Generations(store, layout)
        self.shard: Final = shard
        self.generation_size_bytes: int = generation_size_bytes
        self.generation_age_ms: int = generation_age_ms
        # The durable filters by their text, for `store_batch` and `get_streams`, which know no
        # sessions: `since` is the offset after which every matching message has an index row. Set
        # it to a live mapping; without one `get_streams` looks at all messages.
        self.held_filters: Mapping[str, Stream] = {}
        # How often a generation was dropped although somebody may have been owed messages of it.
        # Whoever has counted messages before must count them again.
        self.cuts: int = 0

    def open(self, now_ms: int) -> None:
        """Load the generations and find the end of the log, or begin the first generation.

        Drops the families of interrupted rotations and writes rows, which are durable after the
        next sync. Raises `DataLoss` when messages are missing, `Unrecoverable` for a layout of a
        later version. Call it once, before everything else.
        """
        self._generations.open(now_ms)

    @property
    def end(self) -> int:
        """Return the offset of the newest accepted message, 0 if there is none yet."""
        return self._generations.end

    @property
    def begin(self) -> int:
        """Return the first offset of the oldest generation that is left."""
        return self._generations.begin

    @property
    def closed_end(self) -> int:
        """Return the last offset before the generation that takes messages."""
        return self._generations.newest.first_offset - 1

    def is_written(self, offset: int) -> bool:
        """Return whether the message with this offset is written, and not in a pending batch."""
        return self._generations.written_end(offset - 1) >= offset

    @property
    def newest_size_bytes(self) -> int:
        """Return the bytes of the newest generation's rows, before compression."""
        return self._generations.size_bytes

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Give `message` the next offset, add its rows to `batch` and return the offset.

        `filter_ids` are the matching filters that have a durable holder, each once. The rows are in
        `batch` after `seal` at the latest; the message is durable when that batch is. Until then
        neither the message nor `filter_ids` may change. Hot.
        """
        generations = self._generations
        offset = generations.end + 1
        generations.end = offset
        message.offset = offset
        blocks = generations.blocks
        if blocks is not None:
            generations.size_bytes += blocks.append(batch, message, filter_ids)
        else:
            generations.size_bytes += generations.newest.slab.append(batch, message, filter_ids)
        return offset

    def append_run(
        self, batch: Batch, message: Message, payloads: Sequence[bytes], filter_ids: Sequence[int]
    ) -> int:
        """Append messages that differ only in their payload; return the first offset.

        `message` has everything else about them; its own payload is ignored, and it gets the first
        offset. Otherwise as `append` for each of them. `payloads` must not be empty.
        """
        assert payloads, "a run of no messages"
        generations = self._generations
        first = generations.end + 1
        blocks = generations.blocks
        if blocks is not None:
            generations.end += len(payloads)
            message.offset = first
            generations.size_bytes += blocks.append_run(message, payloads, filter_ids)
            return first
        for payload in payloads:
            one = Message(
                message.topic,
                payload,
                message.qos,
                message.retain,
                message.properties,
                message.publisher,
                message.accepted_at_ms,
                message.expires_at_ms,
                username=message.username,
            )
            self.append(batch, one, filter_ids)
        message.offset = first
        return first

    @property
    def is_pending(self) -> bool:
        """Return whether there are messages whose rows are in no batch yet, so `seal` is needed."""
        return self._generations.newest.slab.is_pending

    def seal(self, batch: Batch) -> None:
        """Put the rows of all pending messages into `batch`. Call it before `batch` is written."""
        generations = self._generations
        generations.size_bytes += generations.newest.slab.seal(batch)

    def get(self, offset: int) -> Message | None:
        """Return the message at `offset`, None if it does not exist or was dropped.

        Raises `DamagedRows` if it cannot be read.
        """
        return self.get_many((offset,))[0]

    def get_many(self, offsets: Sequence[int]) -> list[Message | None]:
        """Return the messages at `offsets` in their order, None for those that do not exist."""
        found: list[Message | None] = []
        start = 0
        while start < len(offsets):
            generation = self._generations.covering(offsets[start])
            stop = start + 1
            while stop < len(offsets) and (
                generation.first_offset <= offsets[stop] <= generation.last_offset
            ):
                stop += 1
            found += generation.slab.get_many(offsets[start:stop])
            start = stop
        return found

    def sizes(self, first: int, last: int) -> list[int]:
        """Return the bytes of topic and payload of the messages from `first` to `last`, in order.

        0 = there is none, or it cannot be read. They must be of one generation; it is read from one
        end to the other, without decoding messages.
        """
        return self._generations.covering(first).slab.sizes(first, last)

    def cursor(
        self, streams: Sequence[Stream], position: int, until: int = 0, gaps: Gaps = NO_GAPS
    ) -> Cursor:
        """Return a cursor over the messages of `streams` after `position`; reads nothing yet.

        It passes over the gaps, and ends behind the offset `until`, if that is not 0.
        """
        return Cursor(self._generations, streams, position, until, gaps)

    def first_owed(
        self,
        streams: Sequence[Stream],
        position: int,
        *,
        generation: int,
        gaps: Gaps = NO_GAPS,
    ) -> int | None:
        """Return the first offset of a generation that a reader is owed, None if there is none.

        A generation may be dropped when this is None for every reader, each with its streams, its
        position and its gaps. Offsets in flight are at or below the position of their session:
        check them, too. Messages that are accepted but not written yet count as owed to every
        reader.
        """
        opened = self._generations.by_number(generation)
        if opened is None:
            return None
        after = max(position, opened.first_offset - 1)
        last = min(opened.last_offset, self._generations.end)
        if after >= last:
            return None
        # Usually no batch is pending, but the one that closed this generation may be.
        written = min(last, self._generations.written_end(last))
        for first, end in outside(gaps, after + 1, written):
            found = opened.slab.first_owed(streams, first - 1, end)
            if found is not None:
                return found
        return max(after, written) + 1 if written < last else None

    # --- generations ---

    def rotation_due(self, now_ms: int) -> bool:
        """Return whether the newest generation holds messages and is large or old enough."""
        generations = self._generations
        newest = generations.newest
        if generations.end < newest.first_offset:
            return False
        return (
            generations.size_bytes >= self.generation_size_bytes
            or now_ms - newest.created_ms >= self.generation_age_ms
        )

    def add_generation(self, batch: Batch, now_ms: int, layout: str | None = None) -> int:
        """Begin a new generation with the next message; return its number.

        Creates its families at once, which blocks for a few ms; its row is in `batch`. With
        `layout`, this and all later generations use that layout. Raises the store's errors; then
        nothing has changed.
        """
        generations = self._generations
        if layout is None or layout == generations.layout:
            return generations.add(batch, now_ms)
        if layout not in LAYOUTS:
            raise ValueError(f"layout {layout!r}, expected one of {sorted(LAYOUTS)}")
        before, generations.layout = generations.layout, layout
        added = False
        try:
            number = generations.add(batch, now_ms)
            added = True
        finally:
            if not added:
                generations.layout = before
        return number

    def drop_generation(self, batch: Batch, number: int) -> None:
        """Drop a closed generation: for readers now, durably when `batch` is durable.

        Raises `ValueError` for the newest or an unknown one. `reclaim` frees its space.
        """
        self._generations.drop(batch, number)

    def reclaim(self, count: int = GENERATIONS_MAX) -> int:
        """Drop the families of at most `count` dropped generations; return their number.

        Call it only when the batches of all `drop_generation` calls so far are durable: otherwise a
        crash could bring back a row without its messages. Not calling it only costs space until the
        next `open`.
        """
        return self._generations.reclaim(count)

    def list_generations(self) -> list[Generation]:
        """Return the generations, oldest first; new messages go to the last one."""
        return self._generations.list()

    # --- the public storage API: for tools and other stores, on any generation ---

    def store_batch(self, messages: Sequence[Message]) -> list[int]:
        """Append `messages` and write them as one batch; return their offsets.

        They are durable after the next sync of the store. Do not call it while a batch filled by
        `append` is not written yet. When it raises, nothing was stored.
        """
        generations = self._generations
        before = generations.end, generations.size_bytes
        batch: Batch = []
        written = False
        try:
            offsets = [
                self.append(batch, message, self._filter_ids(message)) for message in messages
            ]
            self.seal(batch)
            generations.write(batch)
            written = True
        finally:
            if not written:
                generations.newest.slab.discard()
                generations.end, generations.size_bytes = before
        return offsets

    def get_streams(self, topic_filter: str, start_time: int) -> list[StoredStream]:
        """Return the streams that together hold all stored messages that match, in rank order.

        Only messages accepted at `start_time` (broker time, ms) or later count. Uses the filter's
        index where it covers that range, otherwise looks at all messages. A message that matched no
        durable subscription was never stored and is in no stream.
        """
        found: list[StoredStream] = []
        opened = self._generations.all()
        for index, generation in enumerate(opened):
            if index + 1 < len(opened) and (
                opened[index + 1].created_ms + DISORDER_MS < start_time
                or generation.last_offset < generation.first_offset
            ):
                continue
            start = self._first_since(generation, start_time - DISORDER_MS)
            held = self.held_filters.get(topic_filter)
            filter_id = 0
            if generation.layout in INDEXED and held is not None and held.since < start:
                filter_id = held.filter_id
            found.append(
                StoredStream(
                    self.shard, generation.number, filter_id, topic_filter, start, start_time
                )
            )
        return found

    def make_iterator(self, stream: StoredStream, start: int = 0) -> StreamIterator:
        """Return an iterator over `stream` from offset `start`, 0 = from its beginning."""
        return StreamIterator(
            stream.shard,
            stream.generation,
            stream.filter_id,
            stream.topic_filter,
            max(start, stream.start_offset) - 1,
            stream.start_time,
        )

    def next(
        self, iterator: StreamIterator, n: int
    ) -> tuple[StreamIterator, list[Message] | Literal[EndOfStream.END_OF_STREAM]]:
        """Return at most `n` next messages, and the iterator after them.

        No messages and the same iterator: none for now, ask again later. No messages and another
        iterator: the search is not finished, ask again. `END_OF_STREAM`: the generation is closed
        and all of it was read. Raises `GenerationDropped` if it was dropped.
        """
        opened = self._generations.by_number(iterator.generation)
        if opened is None or iterator.shard != self.shard:
            raise GenerationDropped(
                f"generation {iterator.generation} of shard {iterator.shard} is not there"
            )
        position = iterator.position
        # A new reader each time: an iterator holds no handle and may be used at any later time.
        upto = min(opened.last_offset, self._generations.written_end(opened.last_offset))
        if position < upto:
            stream = Stream(iterator.filter_id, iterator.topic_filter, 0)
            if iterator.filter_id:
                reader = opened.slab.reader([stream], position)
            else:
                reader = opened.slab.scanner(iterator.topic_filter, position)
            messages = reader.next(n, upto, SCAN_MAX)
            if iterator.start_time:
                messages = [m for m in messages if m.accepted_at_ms >= iterator.start_time]
            position = reader.position
            if messages or position < opened.last_offset:
                return iterator.moved(position), messages
        if position >= opened.last_offset:
            return iterator.moved(position), END_OF_STREAM
        return iterator, []

    def invariants(self) -> Iterator[str]:
        """Yield every difference between the log in memory and the store, nothing if sound.

        Call it when no batch is pending.
        """
        yield from self._generations.invariants()

    def _filter_ids(self, message: Message) -> list[int]:
        return [
            stream.filter_id
            for stream in self.held_filters.values()
            if matches(stream.topic_filter, message.topic)
        ]

    def _first_since(self, generation: OpenGeneration, time_ms: int) -> int:
        """Return, by bisection, an offset of `generation` to search from for `time_ms`.

        No message before it was accepted at `time_ms` + DISORDER_MS or later.
        """
        low = generation.first_offset
        high = min(generation.last_offset, self._generations.end) + 1
        if time_ms <= generation.created_ms:
            return low
        while low < high:
            middle = (low + high) // 2
            message = generation.slab.first_from(middle)
            if message is None or message.accepted_at_ms >= time_ms:
                high = middle
            else:
                low = message.offset + 1
        return low


class GenerationReport:
    """The size of one generation, for metrics and operators."""

    __slots__ = ("generation", "is_estimate", "rows", "size_bytes")

    def __init__(
        self, generation: Generation, rows: int, size_bytes: int, is_estimate: bool
    ) -> None:
        self.generation: Generation = generation  # number, layout, offsets, created
        self.rows: int = rows  # messages
        self.size_bytes: int = size_bytes  # of message rows, uncompressed, without the index
        self.is_estimate: bool = is_estimate

    def __repr__(self) -> str:
        return f"GenerationReport({self.generation}, {self.rows} rows, {self.size_bytes} bytes)"


def report_generations(store: Store, *, exact: bool = False) -> list[GenerationReport]:
    """Report on every generation in `store`, oldest first; changes nothing and needs no open log.

    By default the number of rows comes from the offsets, which are consecutive, and the size is
    estimated from a sample of 128 rows. `exact` reads every row.
    """
    reports: list[GenerationReport] = []
    for generation in load_generations(store):
        slab = LAYOUTS[generation.layout](store, generation.number)
        present = store.families()
        rows = size = 0
        if all(family in present for family in slab.families):
            if exact:
                rows, size = slab.measured()
            else:
                rows = generation.last_offset - generation.first_offset + 1
                size = rows * slab.sampled_size()
        reports.append(GenerationReport(generation, rows, size, not exact))
    return reports
