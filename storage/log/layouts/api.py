"""The interface of a layout: the one module that knows the keys inside a generation.

A layout is never changed incompatibly. Another way to lay out rows is another module, registered in
`storage.log.generations.LAYOUTS`; it is used from the next generation on, and older generations
stay readable with the module that wrote them. Read next: `storage.log.layouts.blocks`, the default,
then `storage.log.layouts.filters` and `storage.log.layouts.timeline`.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from mqtt.message import Message
from storage.api import Batch
from storage.errors import DamagedRows

# What a search in an index counts as, in rows that a scan looks at: 20 us if it finds its blocks in
# memory, up to 300 us if not (8 million index rows; 2 busy cores, 23 November 2026).
SEARCH_ROWS: Final = 16


class Stream:
    """The messages of one durable topic filter that a reader is owed: all after `since`."""

    __slots__ = ("filter_id", "since", "topic_filter")

    def __init__(self, filter_id: int, topic_filter: str, since: int) -> None:
        self.filter_id: int = filter_id  # > 0
        self.topic_filter: str = topic_filter  # not a `$share/` one
        self.since: int = since  # offset; only greater ones are owed

    def __repr__(self) -> str:
        return f"Stream({self.filter_id}, {self.topic_filter!r}, since={self.since})"


class Reader(Protocol):
    """Messages of some streams of one generation in ascending order, each once."""

    # Every message of the streams up to and including this offset was returned.
    position: int
    # Number of offsets in the index without a message.
    missing: int
    # Number of searches in an index so far.
    searches: int
    # Offsets of owed messages that cannot be read, at least one for each damaged place, and the
    # newest error. The caller empties the list.
    lost: list[int]
    damage: DamagedRows | None

    def next(self, count: int, upto: int, scan_max: int) -> list[Message]:
        """Return at most `count` further messages with an offset <= `upto`.

        Fewer do not mean the end: large messages end a call early, and so do `scan_max` rows
        without a match (0 = no limit), where a search in an index counts as SEARCH_ROWS. The end
        is `position` >= `upto`. `upto` must never shrink, and everything up to it must be written:
        what is absent then is never looked for again.
        """
        ...

    def skip(self, count: int, upto: int, scan_max: int) -> int:
        """Skip at most `count` of the messages that `next` would return; return how many."""
        ...

    def offsets(self, count: int, upto: int, scan_max: int) -> list[int]:
        """Skip as `skip` does; return the offsets of what was skipped."""
        ...

    def buffered(self) -> int:
        """Return how many messages are read ahead (a lower bound of what is left)."""
        ...


def first_number(key: bytes) -> int:
    """Return the least number whose 8 bytes are at or after `key`."""
    number = int.from_bytes(key[:8].ljust(8, b"\0"), "big")
    return number + 1 if len(key) > 8 else number  # a longer key is behind its first 8 bytes


class Slab(Protocol):
    """The messages of one generation of one shard, in one layout."""

    families: tuple[str, ...]

    @property
    def is_pending(self) -> bool:
        """Return whether there are messages that have no rows yet."""
        ...

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Append one message, which has its offset; return about how many bytes it adds. Hot.

        Its rows are in `batch` now or after `seal`.
        """
        ...

    def seal(self, batch: Batch) -> int:
        """Put the rows of all pending messages into `batch`.

        Return their size in bytes minus what `append` returned for them.
        """
        ...

    def discard(self) -> None:
        """Discard the pending messages."""
        ...

    def get_many(self, offsets: Sequence[int]) -> list[Message | None]:
        """Return the messages at `offsets` in their order, None where there is none."""
        ...

    def sizes(self, first: int, last: int) -> list[int]:
        """Return the bytes of topic and payload of the messages from `first` to `last`.

        0 = there is none, or it cannot be read.
        """
        ...

    def first_from(self, offset: int) -> Message | None:
        """Return the first message at or after `offset`, None if there is none."""
        ...

    def last_offset(self) -> int:
        """Return the greatest offset written, 0 if there is none."""
        ...

    def sampled_size(self) -> int:
        """Return the average size in bytes of a message's row, from a bounded sample."""
        ...

    def measured(self) -> tuple[int, int]:
        """Return (number of message rows, their size in bytes); reads all of them."""
        ...

    def reader(self, streams: Sequence[Stream], after: int) -> Reader:
        """Return a reader of the messages of `streams` after `after`."""
        ...

    def scanner(self, topic_filter: str, after: int) -> Reader:
        """Return a reader of all messages after `after` whose topic matches; uses no index."""
        ...

    def first_owed(self, streams: Sequence[Stream], after: int, upto: int) -> int | None:
        """Return the first offset of `streams` in (after, upto], None if there is none."""
        ...
