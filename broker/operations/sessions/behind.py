"""Counts what waits behind positions in the log, for streams that are read together.

Thousands of sessions read the same streams from different positions. So what was counted is
remembered: of each generation as a whole, and from single positions within one. Only the way to the
nearest of these is counted. A closed generation never changes, so what was counted of one stream in
it may be handed in, and taken out for the next time. Must never change the store. Read next:
`storage.log.cursor`, `broker.operations.sessions.backlogs`.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from broker.operations.sessions.sizes import Sizes
from storage.log.message_log import MessageLog, Stream

KNOWN_MAX: Final = 200_000  # 350 bytes each
READING_SIZE: Final = 8  # of a reading without counts, in counts
SKIP_PAGE: Final = 4096  # messages counted at a time: entries of an index cost 40 bytes each

# Messages, bytes (0 where these are not counted), offset of the first one, 0 = none, or not known.
Count: TypeAlias = tuple[int, int, int]


class Known:
    """What is known of single streams in closed generations, which do not change.

    The keys are filter id, number of the generation, and position from which the rest of it was
    counted. `used` is what was needed of it, or found: what to know next time.
    """

    def __init__(self, counts: dict[tuple[int, int, int], Count] | None = None) -> None:
        self._counts: Final = counts or {}
        self.used: Final[dict[tuple[int, int, int], Count]] = {}

    def get(self, key: tuple[int, int, int]) -> Count | None:
        """Return what is known."""
        found = self._counts.get(key) or self.used.get(key)
        if found is not None:
            self.note(key, found)
        return found

    def note(self, key: tuple[int, int, int], count: Count) -> None:
        """Note what was counted."""
        if len(self.used) < KNOWN_MAX:
            self.used[key] = count


class Behind:
    """What waits behind one position."""

    __slots__ = ("first", "generations", "messages", "size_bytes")

    def __init__(self, messages: int, size_bytes: int, generations: int, first: int) -> None:
        self.messages: Final = messages
        self.size_bytes: Final = size_bytes  # 0 where bytes are not counted
        # A bit for each generation that holds one of them, the oldest generation is the lowest bit.
        self.generations: Final = generations
        self.first: Final = first  # offset of the first that can be read, 0 = not known


NOTHING: Final = Behind(0, 0, 0, 0)


class Extents:
    """Where the generations of a log begin and end. The log must not change while it is used."""

    def __init__(self, log: MessageLog) -> None:
        generations = log.list_generations()
        self.numbers: Final = [each.number for each in generations]
        self.firsts: Final = [each.first_offset for each in generations]
        self.lasts: Final = [each.last_offset for each in generations]
        self.closed: Final = [each.is_closed for each in generations]

    def index_after(self, position: int) -> int:
        """Return the place of the first generation that holds offsets behind a position."""
        return bisect_left(self.lasts, position + 1)

    def bit_of(self, offset: int) -> int:
        """Return the bit of the generation that holds an offset, 0 if none does."""
        index = self.index_after(offset - 1)
        is_there = index < len(self.firsts) and self.firsts[index] <= offset
        return 1 << index if is_there else 0


class Reading:
    """Streams that are read together, and what was counted of them so far."""

    def __init__(
        self,
        log: MessageLog,
        extents: Extents,
        streams: Sequence[Stream],
        known: Known,
        sizes: Sizes | None,
        breathe: Callable[[], None],
    ) -> None:
        """Without `sizes` no bytes are counted. `breathe` is called after each page."""
        self._log: Final = log
        self._extents: Final = extents
        self._streams: Final = streams
        self._known: Final = known
        self._sizes: Final = sizes
        self._breathe: Final = breathe
        self._is_single: Final = len(streams) == 1 and not streams[0].since
        # What the newest 0, 1, 2, ... generations hold.
        self._newest: Final[list[Behind]] = [NOTHING]
        self._within: Final[dict[int, _Points]] = {}  # by the place of the generation
        # By the offset after which it was looked for.
        self._firsts: Final[dict[int, tuple[int, int]]] = {}
        self.size: int = len(streams) + READING_SIZE  # how much is remembered

    def behind(self, position: int) -> Behind:
        """Return what waits behind a position."""
        index = self._extents.index_after(position)
        if index == len(self._extents.lasts):
            return NOTHING
        if position < self._extents.firsts[index]:
            return self._from(index)
        return _and(self._part(index, position), index, self._from(index + 1))

    def between(self, position: int, until: int) -> Behind:
        """Return what waits behind a position up to the offset `until`."""
        extents, found = self._extents, self.behind(position)
        index = extents.index_after(until)
        if index == len(extents.lasts) or not found.messages:
            return found
        rest = self.behind(until)
        messages = found.messages - rest.messages
        generations = found.generations & (1 << index) - 1
        before = max(position, extents.firsts[index] - 1)
        if before < until and self._part(index, before)[0] > self._part(index, until)[0]:
            generations |= 1 << index
        first = found.first if messages and found.first <= until else 0
        return Behind(messages, found.size_bytes - rest.size_bytes, generations, first)

    def first(self, position: int) -> tuple[int, int]:
        """Return (offset, when it was accepted) of the first message behind a position.

        (0, 0) = there is none that can be read.
        """
        extents = self._extents
        index = extents.index_after(position)
        if index == len(extents.lasts):
            return 0, 0
        if position < extents.firsts[index] or not self._part(index, position)[0]:
            is_part = position >= extents.firsts[index]
            generations = self._from(index + 1 if is_part else index).generations
            if not generations:
                return 0, 0
            index = (generations & -generations).bit_length() - 1
            position = extents.firsts[index] - 1
        found = self._firsts.get(position)
        if found is None:
            found = self._firsts[position] = _first(self._log, self._streams, position)
            self.size += 1
        return found

    def _from(self, index: int) -> Behind:
        """Return what the generations from this place on hold."""
        extents = self._extents
        count = len(extents.lasts) - index
        newest = self._newest
        while len(newest) <= count:
            place = len(extents.lasts) - len(newest)
            whole = self._counted(place, extents.firsts[place] - 1, extents.lasts[place])
            newest.append(_and(whole, place, newest[-1]))
            self.size += 1
        return newest[count]

    def _part(self, index: int, position: int) -> Count:
        """Return what is behind a position up to the end of its generation."""
        points = self._within.get(index)
        if points is None:
            points = self._within[index] = _Points(self._extents.lasts[index])
        positions, counts = points.positions, points.counts
        at = bisect_left(positions, position)
        if positions[at] == position:
            return counts[at]
        above, found = positions[at], counts[at]
        below = positions[at - 1] if at else None
        known = self._known_of(index, position)
        if known is not None:
            found = known
        elif below is not None and position - below < above - position:
            messages, size, _ = self._counted(index, below, position)
            found = max(0, counts[at - 1][0] - messages), max(0, counts[at - 1][1] - size), 0
        else:
            messages, size, first = self._counted(index, position, above)
            found = found[0] + messages, found[1] + size, first if messages else found[2]
        self._note(index, position, found)
        positions.insert(at, position)
        counts.insert(at, found)
        self.size += 1
        return found

    def _known_of(self, index: int, position: int) -> Count | None:
        if self._sizes is None or not self._is_single or not self._extents.closed[index]:
            return None
        key = self._streams[0].filter_id, self._extents.numbers[index], position
        return self._known.get(key)

    def _note(self, index: int, position: int, count: Count) -> None:
        if self._sizes is None or not self._is_single or not self._extents.closed[index]:
            return
        key = self._streams[0].filter_id, self._extents.numbers[index], position
        self._known.note(key, count)

    def _counted(self, index: int, position: int, until: int) -> Count:
        """Return what is after `position` up to the offset `until`, both in one generation."""
        if position >= until:
            return 0, 0, 0
        is_whole = until == self._extents.lasts[index] and position < self._extents.firsts[index]
        known = self._known_of(index, position) if is_whole else None
        if known is not None:
            return known
        cursor = self._log.cursor(self._streams, position, until)
        count = size = first = 0
        while not cursor.is_at_end:
            if self._sizes is not None:
                extents = self._extents
                offsets = cursor.offsets(SKIP_PAGE)
                sizes = self._sizes.of(offsets, extents.firsts[index], extents.lasts[index])
                count += len(offsets)
                size += sum(sizes)
                if not first:
                    first = next(
                        (at for at, bytes_ in zip(offsets, sizes, strict=True) if bytes_), 0
                    )
            else:
                count += cursor.skip(SKIP_PAGE)
            count += len(cursor.lost)
            cursor.lost.clear()
            self._breathe()
        if is_whole:
            self._note(index, position, (count, size, first))
        return count, size, first


class _Points:
    """The positions within a generation from which its rest was counted, in their order."""

    __slots__ = ("counts", "positions")

    def __init__(self, last: int) -> None:
        self.positions: Final = [last]
        self.counts: Final[list[Count]] = [(0, 0, 0)]


def _and(count: Count, index: int, rest: Behind) -> Behind:
    """Return what is in the generation at a place, and what is in later ones."""
    messages, size, first = count
    if not messages:
        return rest
    return Behind(
        rest.messages + messages, rest.size_bytes + size, rest.generations | 1 << index, first
    )


def _first(log: MessageLog, streams: Sequence[Stream], position: int) -> tuple[int, int]:
    """Return (offset, when it was accepted) of the first message that can be read, or (0, 0)."""
    cursor = log.cursor(streams, position)
    while not cursor.is_at_end:
        messages = cursor.next(1)
        if messages:
            return messages[0].offset, messages[0].accepted_at_ms
        cursor.lost.clear()
    return 0, 0
