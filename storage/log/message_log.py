"""The `messages` database of one shard: every accepted message once, in one order, in generations.

A session is a position in this log (`cursor`); nothing is written per subscriber. All writes go
into the batch of the tick, by `seal` at the latest, which must be called before it is written; all
reads see only what was written to the store, never a pending batch. The log writes nothing itself
except families, and where `open` and `store_batch` say so. A shard is one store with one writer:
`shard` is only its name in streams and iterators. Read next: `storage.log.generations` (how the log
is cut), `storage.log.layouts.blocks` (the rows), `storage.log.cursor`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from mqtt.message import Message
from mqtt.topics import matches
from storage.api import Batch, Store
from storage.errors import GenerationDropped
from storage.log.cursor import Cursor
from storage.log.generations import (
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
# A generation is closed at this size or age. Dropping whole generations is how space returns, so a
# larger one pins more; a smaller one costs families.
GENERATION_SIZE_BYTES: Final = 256 << 20
GENERATION_AGE_MS: Final = 3600 * 1000
# Rows `next` looks at in vain before it returns: about 10 ms.
SCAN_MAX: Final = 10_000
# Broker time runs with the log except at a restart, where it may repeat the second since the last
# heartbeat. A search by time begins this much earlier and then compares every message.
DISORDER_MS: Final = 60_000


class MessageLog:
    """All messages of one shard."""

    __slots__ = (
        "_generations",
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
        # it to a live mapping; without one, `get_streams` falls back to looking at all messages.
        self.held_filters: Mapping[str, Stream] = {}

    def open(self, now_ms: int) -> None:
        """Find the generations and the end of the log, or begin the first generation.

        Drops the families of interrupted rotations and writes rows of its own, un-synced: they are
        durable with whatever is synced next. Raises `DataLoss` when messages must be there and are
        not, `Unrecoverable` for a layout of a later version. Call it once, before all else.
        """
        self._generations.open(now_ms)

    @property
    def end(self) -> int:
        """The offset of the newest accepted message, 0 if there was none yet."""
        return self._generations.end

    def is_written(self, offset: int) -> bool:
        """Can the message with this offset be read, or is it in a batch that is still pending?"""
        return self._generations.written_end(offset - 1) >= offset

    @property
    def newest_size_bytes(self) -> int:
        """Bytes of the rows of the generation that takes messages, before compression."""
        return self._generations.size_bytes

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Give `message` the next offset, add its rows to `batch` and return the offset.

        `filter_ids` are those of the matching filters that have a durable holder, each once. Its
        rows are in `batch` after `seal` at the latest, and the message is durable when that batch
        is. Until then neither the message nor `filter_ids` may change. Hot.
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
        """Give messages that differ in their payload only the next offsets; returns the first one.

        `message` says everything else about them; its own payload is not looked at, and it gets the
        first offset. Otherwise as `append` for each of them; there is at least one.
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
            )
            self.append(batch, one, filter_ids)
        message.offset = first
        return first

    @property
    def is_pending(self) -> bool:
        """Are there messages whose rows are in no batch yet? Then the tick is to be sealed."""
        return self._generations.newest.slab.is_pending

    def seal(self, batch: Batch) -> None:
        """Put the rows of all that is pending into `batch`: to be called before it is written."""
        generations = self._generations
        generations.size_bytes += generations.newest.slab.seal(batch)

    def get(self, offset: int) -> Message | None:
        """Return the message at `offset`, None if there is none (any more)."""
        return self.get_many((offset,))[0]

    def get_many(self, offsets: Sequence[int]) -> list[Message | None]:
        """Return the messages at `offsets` in their order, None where there is none (any more)."""
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

    def cursor(self, streams: Sequence[Stream], position: int) -> Cursor:
        """Return a cursor over what `streams` are owed after `position`; free until it is read."""
        return Cursor(self._generations, streams, position)

    def first_owed(
        self, streams: Sequence[Stream], position: int, *, generation: int
    ) -> int | None:
        """Return the first offset of a generation owed to a reader, None if nothing is.

        A generation may be dropped when this is None for every reader, each with its streams and
        its position. Offsets in flight are not above the position of their session: check them,
        too. What is accepted but not written yet counts as owed to everybody.
        """
        opened = self._generations.by_number(generation)
        if opened is None:
            return None
        after = max(position, opened.first_offset - 1)
        last = min(opened.last_offset, self._generations.end)
        if after >= last:
            return None
        # No batch is pending at most times, but the one that closed this generation may be.
        written = min(last, self._generations.written_end(last))
        first = opened.slab.first_owed(streams, after, written) if after < written else None
        if first is None and written < last:
            return max(after, written) + 1
        return first

    # --- generations ---

    def rotation_due(self, now_ms: int) -> bool:
        """Tell whether the newest generation holds messages and is large or old enough."""
        generations = self._generations
        newest = generations.newest
        if generations.end < newest.first_offset:
            return False
        return (
            generations.size_bytes >= self.generation_size_bytes
            or now_ms - newest.created_ms >= self.generation_age_ms
        )

    def add_generation(self, batch: Batch, now_ms: int, layout: str | None = None) -> int:
        """Begin a new generation with the next message; returns its number.

        Creates its families at once, which blocks for a few ms; its row travels in `batch`. With
        `layout`, this and all later generations use that layout. Raises what the store raises, and
        then nothing has changed.
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
        """Drop a closed generation: it is gone for readers now, and for ever with `batch`.

        Raises `ValueError` for the newest or an unknown one. Its space returns with `reclaim`.
        """
        self._generations.drop(batch, number)

    def reclaim(self) -> int:
        """Drop the families of dropped generations; returns how many generations that were.

        Call it only when the batches of all `drop_generation` calls so far are durable: otherwise a
        crash could bring the row back without its messages. Never calling it costs space until the
        next `open` and nothing else.
        """
        return self._generations.reclaim()

    def list_generations(self) -> list[Generation]:
        """Return the generations, oldest first; the last one takes the messages."""
        return self._generations.list()

    # --- the public API of the design: for tools and other stores, on any generation ---

    def store_batch(self, messages: Sequence[Message]) -> list[int]:
        """Append `messages` and write them, as one batch; returns their offsets.

        They are durable after the next sync of the store. Must not be mixed with a batch that
        `append` has filled and that is not written yet. When it raises, nothing was stored.
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
        """Return the streams that together hold all stored messages which match, ranked.

        `start_time` is broker time in ms: only messages accepted then or later are meant. A
        filter's own index is used where it covers all of that, otherwise all messages are looked
        at. A message that was never stored, because nobody durable wanted it, is in no stream.
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
        """Return an iterator over `stream` from offset `start` on, 0 = from its beginning."""
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
        """Return the iterator behind the next messages, and these, at most `n` of them.

        No messages and the same iterator: there are none for now, ask again later. No messages and
        another iterator: the search goes on, ask again. `END_OF_STREAM`: the generation is closed
        and everything in it was read. Raises `GenerationDropped` if it is gone.
        """
        opened = self._generations.by_number(iterator.generation)
        if opened is None or iterator.shard != self.shard:
            raise GenerationDropped(
                f"generation {iterator.generation} of shard {iterator.shard} is not there"
            )
        position = iterator.position
        # Asked for anew each time: an iterator holds nothing, so it may come back any time later.
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
        """Yield what is wrong with the log in memory compared with the store, nothing if sound.

        To be called when no batch is pending.
        """
        yield from self._generations.invariants()

    def _filter_ids(self, message: Message) -> list[int]:
        return [
            stream.filter_id
            for stream in self.held_filters.values()
            if matches(stream.topic_filter, message.topic)
        ]

    def _first_since(self, generation: OpenGeneration, time_ms: int) -> int:
        """Return an offset of `generation` before which nothing was accepted DISORDER_MS after
        `time_ms` or later, found by bisection."""
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
    """One generation as metrics and operators see it."""

    __slots__ = ("generation", "is_estimate", "rows", "size_bytes")

    def __init__(
        self, generation: Generation, rows: int, size_bytes: int, is_estimate: bool
    ) -> None:
        self.generation: Generation = generation  # number, layout, offsets, created
        self.rows: int = rows  # messages
        self.size_bytes: int = size_bytes  # of the message rows, before compression, without index
        self.is_estimate: bool = is_estimate

    def __repr__(self) -> str:
        return f"GenerationReport({self.generation}, {self.rows} rows, {self.size_bytes} bytes)"


def report_generations(store: Store, *, exact: bool = False) -> list[GenerationReport]:
    """Report on every generation in `store`, oldest first; changes nothing and needs no open log.

    By default rows follow from the offsets, which are consecutive, and the size from a sample of
    128 rows: bounded, and right to within how much the messages vary. `exact` reads every row.
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
