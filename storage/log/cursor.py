"""Read the log for one session: its streams, merged by offset, across all generations.

A cursor holds one page per stream and no more than `storage.log.layouts` allows in total, whatever
the backlog. It stays valid while messages are appended and generations are added and dropped. It
sees only what was written to the store, never a batch that is still being filled. Read next:
`storage.log.layouts.merge`.
"""

from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from storage.errors import DamagedRows
from storage.log.gaps import NO_GAPS, Gaps, passed, stop
from storage.log.generations import Generations
from storage.log.layouts.api import SEARCH_ROWS, Reader, Stream

# Payload bytes that a message is taken to have before one was read.
SIZE_UNKNOWN: Final = 1 << 14


class Cursor:
    """The messages which some streams are owed after a position, in order, each once."""

    __slots__ = (
        "_gaps",
        "_generations",
        "_number",
        "_reader",
        "_streams",
        "_until",
        "damage",
        "is_at_end",
        "lost",
        "message_size",
        "missing",
        "page",
        "position",
        "searches",
    )

    def __init__(
        self,
        generations: Generations,
        streams: Sequence[Stream],
        position: int,
        until: int,
        gaps: Gaps = NO_GAPS,
    ) -> None:
        self._generations: Final = generations
        self._gaps: Final = gaps  # what is in them is not owed
        self._until: Final = until  # the last offset to read, 0 = all there are
        self._streams: Final = list(streams)
        self._number = 0  # of the generation that `_reader` reads, 0 = none yet
        self._reader: Reader | None = None
        # Every message owed up to and including this offset was returned. A session may store it as
        # its position: it also passes offsets owed to other sessions only.
        self.position: int = position
        # How many messages its owner asks for next: for the owner alone, 0 = not decided yet.
        self.page: int = 0
        # Mean payload of what was noted last, in bytes, at least 1.
        self.message_size: int = SIZE_UNKNOWN
        # The last call found nothing more. There may be more when messages have been added.
        self.is_at_end: bool = False
        self.searches: int = 0  # in an index so far
        # Messages that an index names but whose generation was dropped by a policy.
        self.missing: int = 0
        # Offsets of owed messages that were passed over because they cannot be read, at least one
        # for each damaged place, and the newest error. The owner empties the list.
        self.lost: list[int] = []
        self.damage: DamagedRows | None = None

    def next(self, count: int, scan_max: int = 0) -> list[Message]:
        """Return at most `count` further messages; [] and `is_at_end` if there are no more for now.

        Large messages may make it return fewer than `count` before the end. With `scan_max` a call
        looks at no more than about that many rows without a match, a search in an index counted as
        SEARCH_ROWS; it may then return [] early. What cannot be read is passed over, added to
        `lost` and counts as returned. Raises the store's other errors; do not use the cursor after
        that.
        """
        left = scan_max
        while True:
            upto = self._upto()
            if self.is_at_end:
                return []
            reader = self._reader
            assert reader is not None
            missing, searches, before = reader.missing, reader.searches, reader.position
            messages = reader.next(count, upto, left)
            self.missing += reader.missing - missing
            self.searches += reader.searches - searches
            self.position = reader.position
            if reader.damage is not None:
                count -= self._note_damage(reader)
                if count <= 0:
                    return messages
            if messages:
                return messages
            if scan_max:
                left -= _scanned(reader, searches, before)
                if left <= 0 or reader.position < upto:
                    return messages

    def note_size(self, messages: list[Message]) -> None:
        """Note the mean size of messages that it has returned."""
        if messages:
            size = sum([len(message.payload) for message in messages])
            self.message_size = max(1, size // len(messages))

    def skip(self, count: int, scan_max: int = 0) -> int:
        """Skip at most `count` messages without reading them, if possible; see `next`.

        For counting a backlog.
        """
        left = scan_max
        while True:
            upto = self._upto()
            if self.is_at_end:
                return 0
            reader = self._reader
            assert reader is not None
            searches, before = reader.searches, reader.position
            skipped = reader.skip(count, upto, left)
            self.searches += reader.searches - searches
            self.position = reader.position
            if reader.damage is not None:
                self._note_damage(reader)
            if skipped:
                return skipped
            if scan_max:
                left -= _scanned(reader, searches, before)
                if left <= 0 or reader.position < upto:
                    return skipped

    def offsets(self, count: int, scan_max: int = 0) -> list[int]:
        """Skip as `skip` does; return the offsets of what was skipped."""
        left = scan_max
        while True:
            upto = self._upto()
            if self.is_at_end:
                return []
            reader = self._reader
            assert reader is not None
            searches, before = reader.searches, reader.position
            offsets = reader.offsets(count, upto, left)
            self.searches += reader.searches - searches
            self.position = reader.position
            if reader.damage is not None:
                self._note_damage(reader)
            if offsets:
                return offsets
            if scan_max:
                left -= _scanned(reader, searches, before)
                if left <= 0 or reader.position < upto:
                    return offsets

    def _note_damage(self, reader: Reader) -> int:
        """Take over what the reader has passed over; return the number of offsets."""
        lost = reader.lost
        self.damage, reader.damage = reader.damage, None
        self.lost.extend(lost)
        reader.lost = []
        return len(lost)

    def _upto(self) -> int:
        """Place the reader after `position`, or note the end; return the last offset to read."""
        if self._gaps:
            self._pass_over()
        generations = self._generations
        written = generations.written_end(self.position)
        if self._until:
            written = min(written, self._until)
        self.is_at_end = self.position >= written
        if self.is_at_end:
            return 0
        generation = generations.covering(self.position + 1)
        if generation.number != self._number:
            if self._reader is not None and not self._gaps:
                # 0, unless the generation was dropped while it was read. What was read ahead may
                # be in a gap: then less is counted than is missing.
                self.missing += self._reader.buffered()
            self._reader = generation.slab.reader(self._streams, self.position)
            self._number = generation.number
        upto = min(generation.last_offset, written)
        return min(upto, stop(self._gaps, self.position)) if self._gaps else upto

    def _pass_over(self) -> None:
        """Go on behind the gap that begins with the next offset, if one does."""
        position = passed(self._gaps, self.position)
        if self._until:
            position = min(position, max(self._until, self.position))
        if position > self.position:
            self.position = position
            self._reader = None
            self._number = 0


def _scanned(reader: Reader, searches: int, position: int) -> int:
    """Return how many rows a reader has looked at since it had these values, without a match."""
    if reader.searches > searches:
        return (reader.searches - searches) * SEARCH_ROWS
    return reader.position - position
