"""The generations of a shard: add, drop, and load them at start.

A generation is a time slice of the log with its own column families, so dropping one writes no
tombstones. It exists if it has a row in `meta`. Adding one first creates the families (durable at
once), then puts the row into a batch. Dropping one puts the row's deletion into a batch; the
families are dropped only when that batch is durable. So a crash can only leave families without a
row, and `open` drops those. Offsets are consecutive in a shard; a closed generation ends where the
next one begins.
Must never drop families that hold messages while their row exists. Read next:
`storage.log.message_log`.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from storage.api import Batch, Store
from storage.errors import CorruptRecord, DamagedRows, DataLoss, Unrecoverable
from storage.log.layouts import blocks, filters, timeline
from storage.log.layouts.api import Slab, first_number
from storage.log.layouts.block_reader import BlockCache
from storage.log.layouts.message_rows import OFFSET_MAX, MessageRows, message_family
from storage.tables.tables import META, prefix_end, seal, unseal

ROW_PREFIX: Final = b"generation/"
ROW_VERSION: Final = 1
GENERATIONS_MAX: Final = 100_000  # two families each; a store with so many takes too long to open
FAMILY_PREFIXES: Final = ("msg.", "idx.")  # of every layout, past ones included

_NUMBER: Final = struct.Struct(">I")
_ROW: Final = struct.Struct(">BQQB")

# Layouts by the name stored in a generation's row. A name is never reused, and never removed while
# a store may hold a generation with it.
LAYOUTS: Final[dict[str, Callable[[Store, int], Slab]]] = {
    blocks.NAME: blocks.BlockSlab,
    filters.NAME: filters.FilterSlab,
    timeline.NAME: timeline.TimelineSlab,
}
# Layouts with an index: their readers look only at messages they are owed.
INDEXED: Final = (blocks.NAME, filters.NAME)


class Generation:
    """The description of one generation."""

    __slots__ = ("created_ms", "first_offset", "is_closed", "last_offset", "layout", "number")

    def __init__(
        self,
        number: int,
        layout: str,
        first_offset: int,
        last_offset: int,
        created_ms: int,
        is_closed: bool,
    ) -> None:
        self.number: int = number
        self.layout: str = layout
        self.first_offset: int = first_offset  # of its first message, once there is one
        self.last_offset: int = last_offset  # first_offset - 1 = it has no messages
        self.created_ms: int = created_ms  # broker time
        self.is_closed: bool = is_closed  # only the newest one takes messages

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return (
            f"Generation({self.number}, {self.layout}, {self.first_offset}..{self.last_offset}, "
            f"created {self.created_ms}, {state})"
        )


class OpenGeneration:
    """A generation that can be read; `last_offset` is OFFSET_MAX while it is the newest."""

    __slots__ = ("created_ms", "first_offset", "last_offset", "layout", "number", "slab")

    def __init__(
        self, number: int, layout: str, first_offset: int, created_ms: int, slab: Slab
    ) -> None:
        self.number: int = number
        self.layout: str = layout
        self.first_offset: int = first_offset
        self.last_offset: int = OFFSET_MAX
        self.created_ms: int = created_ms
        self.slab: Slab = slab


def generation_key(number: int) -> bytes:
    """Return the key of a generation's row in `meta`."""
    return ROW_PREFIX + _NUMBER.pack(number)


def encode_generation(layout: str, first_offset: int, created_ms: int) -> bytes:
    """Return the value of a generation's row."""
    name = layout.encode()
    return seal(_ROW.pack(ROW_VERSION, first_offset, created_ms, len(name)) + name)


def decode_generation(value: bytes, number: int) -> tuple[str, int, int]:
    """Return (layout, first_offset, created_ms) of a row; raises `CorruptRecord`."""
    body = unseal(value, f"generation {number}")
    if len(body) < _ROW.size:
        raise CorruptRecord(f"generation {number}: {len(body)} bytes, expected {_ROW.size} or more")
    version, first_offset, created_ms, size = _ROW.unpack_from(body)
    if version != ROW_VERSION:
        raise CorruptRecord(f"generation {number}: row version {version}, expected {ROW_VERSION}")
    name = body[_ROW.size :]
    if len(name) != size:
        raise CorruptRecord(f"generation {number}: layout of {len(name)} bytes, expected {size}")
    try:
        return name.decode(), first_offset, created_ms
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"generation {number}: name of its layout is not UTF-8") from error


def load_generations(store: Store) -> list[Generation]:
    """Return the generations that have a row, oldest first.

    Changes nothing. The last offset of the newest one is the last written.
    """
    if META not in store.families():
        return []
    rows = store.scan(META, ROW_PREFIX, prefix_end(ROW_PREFIX), count=GENERATIONS_MAX + 1)
    if len(rows) > GENERATIONS_MAX:
        raise Unrecoverable(f"more than {GENERATIONS_MAX} generations")
    found: list[Generation] = []
    for key, value in rows:
        number = int(_NUMBER.unpack(key[len(ROW_PREFIX) :])[0])
        layout, first_offset, created_ms = decode_generation(value, number)
        if layout not in LAYOUTS:
            raise Unrecoverable(
                f"generation {number} has layout {layout!r}, expected one of {sorted(LAYOUTS)}"
            )
        if found:
            if first_offset <= found[-1].last_offset:
                raise CorruptRecord(
                    f"generation {number} begins at offset {first_offset}, "
                    f"expected more than {found[-1].last_offset}"
                )
            found[-1].last_offset = first_offset - 1
            found[-1].is_closed = True
        found.append(
            Generation(number, layout, first_offset, first_offset - 1, created_ms, is_closed=False)
        )
    if found:
        newest = found[-1]
        if message_family(newest.number) in store.families():
            try:
                written = MessageRows(store, newest.number).last_offset()
            except DamagedRows as damage:
                written = _end_of(damage)
            newest.last_offset = max(newest.last_offset, written)
    return found


def _end_of(damage: DamagedRows) -> int:
    """Return an offset that is not before any message, where the last ones are damaged."""
    if damage.resume is None:
        raise damage
    return first_number(damage.resume) - 1


class Generations:
    """The generations of one shard, oldest first. The newest one is open, all others are closed."""

    __slots__ = (
        "_cache",
        "_first_offsets",
        "_open",
        "_reclaimable",
        "_seen_end",
        "_store",
        "blocks",
        "end",
        "layout",
        "newest",
        "size_bytes",
    )

    def __init__(self, store: Store, layout: str) -> None:
        if layout not in LAYOUTS:
            raise ValueError(f"layout {layout!r}, expected one of {sorted(LAYOUTS)}")
        self._store: Final = store
        self._cache: Final = BlockCache()
        self.layout: str = layout  # of the next generation
        self._open: list[OpenGeneration] = []
        self._first_offsets: list[int] = []
        self._reclaimable: list[OpenGeneration] = []
        self._seen_end = 0  # greatest offset found written so far
        # The attributes `MessageLog.append` works with.
        self.newest: OpenGeneration  # the one that takes messages; set by `open`
        self.blocks: blocks.BlockSlab | None = None  # its slab if it is one of blocks
        self.end: int = 0  # offset of the newest accepted message, 0 = none yet
        self.size_bytes: int = 0  # of the rows of the newest generation; estimated by `open`

    def open(self, now_ms: int) -> None:
        """Load the generations, or create the first one, and find the end of the log.

        Completes what a crash interrupted. On return the newest generation has the configured
        layout; rows are written but not synced. Raises `DataLoss` if there are messages without a
        generation row, or if the families of the open generation are missing.
        """
        assert not self._open, "opened twice"
        store = self._store
        if META not in store.families():
            store.create_family(META)
        batch: Batch = []
        loaded = load_generations(store)
        present = set(store.families())
        for generation in loaded:
            wanted = LAYOUTS[generation.layout](store, generation.number).families
            if present.issuperset(wanted):
                self._add(generation)
            elif generation is loaded[-1]:
                raise DataLoss(f"generation {generation.number} is open, but its families are gone")
            else:
                # Possible only without fsync: the drop of its families reached the disk, the
                # deletion of its row did not.
                batch.append((META, generation_key(generation.number), None))
        self._drop_orphans(loaded[-1].number if loaded else 0)
        if self._open:
            newest = self._open[-1]
            # Offsets are never reused, so an empty generation still fixes where the log goes on.
            is_end_damaged = False
            try:
                self.end = newest.slab.last_offset() or self._find_end()
            except DamagedRows as damage:
                self.end = _end_of(damage)
                is_end_damaged = True
            self.end = max(self.end, newest.first_offset - 1)
            self._seen_end = self.end
            self._take_messages(newest)
            self.size_bytes = newest.slab.sampled_size() * (self.end - newest.first_offset + 1)
            if is_end_damaged:
                self.add(batch, now_ms)  # the end of the log is always looked up in the newest one
        if not self._open or self.newest.layout != self.layout:
            self.add(batch, now_ms)
        if batch:
            store.write(batch)

    def add(self, batch: Batch, now_ms: int) -> int:
        """Begin a generation after the newest message; return its number.

        Its families exist on return. Its row is in `batch`, after the rows of pending messages; no
        later message may be written before `batch`. When this raises, nothing has changed and it
        may be tried again.
        """
        number = self.newest.number + 1 if self._open else 1
        slab = self._slab(self.layout, number)
        present = self._store.families()
        for family in slab.families:
            if family not in present:  # a failed attempt may have left empty ones
                self._store.create_family(family)
        first = self.end + 1
        if self._open:
            self.newest.slab.seal(batch)
            self.newest.last_offset = self.end
        batch.append((META, generation_key(number), encode_generation(self.layout, first, now_ms)))
        self._take_messages(OpenGeneration(number, self.layout, first, now_ms, slab))
        self.size_bytes = 0
        self._open.append(self.newest)
        self._first_offsets.append(first)
        return number

    def drop(self, batch: Batch, number: int) -> None:
        """Drop a closed generation: no reader sees it from now on.

        The deletion of its row is in `batch`. `reclaim` frees its space and must be called only
        after this batch is durable.
        """
        generation = self.by_number(number)
        if generation is None:
            raise ValueError(f"generation {number}: there is no such generation")
        if generation is self.newest:
            raise ValueError(f"generation {number} is open, expected a closed one")
        batch.append((META, generation_key(number), None))
        index = self._open.index(generation)
        del self._open[index]
        del self._first_offsets[index]
        self._reclaimable.append(generation)

    def reclaim(self, count: int = GENERATIONS_MAX) -> int:
        """Drop the families of at most `count` dropped generations; return their number.

        Call it only when the batches of all `drop` calls so far are durable. Raises the store's
        errors; the next call, or `open`, continues.
        """
        reclaimed = 0
        while self._reclaimable and reclaimed < count:
            present = self._store.families()
            for family in self._reclaimable[0].slab.families:
                if family in present:
                    self._store.drop_family(family)
            del self._reclaimable[0]
            reclaimed += 1
        return reclaimed

    def write(self, batch: Batch) -> None:
        """Write `batch` to the shard's store at once, un-synced."""
        self._store.write(batch)

    @property
    def begin(self) -> int:
        """Return the first offset of the oldest generation."""
        return self._first_offsets[0]

    def by_number(self, number: int) -> OpenGeneration | None:
        """Return the generation with this number, None if it does not exist or was dropped."""
        for generation in reversed(self._open):
            if generation.number == number:
                return generation
        return None

    def covering(self, offset: int) -> OpenGeneration:
        """Return the first generation that ends at or after `offset`, where reading goes on."""
        index = bisect_right(self._first_offsets, offset) - 1
        if index < 0:
            return self._open[0]
        if offset > self._open[index].last_offset:  # a generation in between was dropped
            index += 1
        return self._open[index]

    def written_end(self, position: int) -> int:
        """Return an offset > `position` up to which all messages are written, if there is one.

        The newest accepted messages may be in a pending batch, so this asks the store, but only
        when `position` has reached the store's last answer.
        """
        if position >= self._seen_end < self.end:
            self._seen_end = max(self._seen_end, self._find_end())
        return self._seen_end

    def all(self) -> list[OpenGeneration]:
        """Return the generations, oldest first."""
        return list(self._open)

    def list(self) -> "list[Generation]":
        """Return descriptions of the generations, oldest first."""
        return [
            Generation(
                generation.number,
                generation.layout,
                generation.first_offset,
                min(generation.last_offset, self.end),
                generation.created_ms,
                is_closed=generation is not self.newest,
            )
            for generation in self._open
        ]

    def invariants(self) -> Iterator[str]:
        """Yield what is wrong with this state, nothing if it is sound."""
        present = set(self._store.families())
        before = 0
        for generation in self._open:
            name = f"generation {generation.number}"
            if generation.first_offset <= before:
                yield f"{name} begins at {generation.first_offset}, expected more than {before}"
            if not present.issuperset(generation.slab.families):
                yield f"{name} lacks families"
                continue
            last = generation.slab.last_offset()
            if last and not generation.first_offset <= last <= min(
                generation.last_offset, self.end
            ):
                yield f"{name} holds offset {last}, which is not its own"
            if generation is not self.newest and generation.last_offset == OFFSET_MAX:
                yield f"{name} is not the newest, but has no end"
            before = generation.first_offset - 1
        if self.end < self.newest.first_offset - 1:
            yield f"end {self.end} is before the newest generation at {self.newest.first_offset}"

    def _slab(self, layout: str, number: int) -> Slab:
        if layout == blocks.NAME:
            return blocks.BlockSlab(self._store, number, self._cache)
        return LAYOUTS[layout](self._store, number)

    def _take_messages(self, generation: OpenGeneration) -> None:
        self.newest = generation
        slab = generation.slab
        self.blocks = slab if isinstance(slab, blocks.BlockSlab) else None

    def _add(self, loaded: Generation) -> None:
        opened = OpenGeneration(
            loaded.number,
            loaded.layout,
            loaded.first_offset,
            loaded.created_ms,
            self._slab(loaded.layout, loaded.number),
        )
        if loaded.is_closed:
            opened.last_offset = loaded.last_offset
        self._open.append(opened)
        self._first_offsets.append(loaded.first_offset)

    def _drop_orphans(self, newest: int) -> None:
        """Drop families without a row, left by an interrupted `add` or an unfinished `reclaim`."""
        known = {family for generation in self._open for family in generation.slab.families}
        for family in sorted(self._store.families()):
            prefix, _, number = family.partition(".")
            if f"{prefix}." not in FAMILY_PREFIXES or not number.isdecimal() or family in known:
                continue
            # A generation's row is in the batch of its first message or an earlier one.
            if int(number) > newest and self._store.scan(family, b"", count=1):
                raise DataLoss(f"family {family!r} holds rows, but its generation has no row")
            self._store.drop_family(family)

    def _find_end(self) -> int:
        """Return the greatest written offset, 0 if there is no message."""
        for generation in reversed(self._open):
            try:
                end = generation.slab.last_offset()
            except DamagedRows as damage:
                end = generation.last_offset
                if generation is self._open[-1]:  # it does not say where it ends
                    end = min(self.end, _end_of(damage))
            if end:
                return end
        return 0
