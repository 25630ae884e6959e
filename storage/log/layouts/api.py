"""What a layout is: the one module that knows the keys inside a generation.

A layout is never edited incompatibly. Another way to lay out rows is another module, registered in
`storage.log.generations.LAYOUTS`; it starts with the next generation, and the old ones stay
readable with the module that wrote them. Read next: `storage.log.layouts.blocks`, the default, then
`storage.log.layouts.filters` and `storage.log.layouts.timeline`.
"""

from collections.abc import Sequence
from typing import Protocol

from mqtt.message import Message
from storage.api import Batch


class Stream:
    """What a reader is owed of one durable topic filter: all its messages after `since`."""

    __slots__ = ("filter_id", "since", "topic_filter")

    def __init__(self, filter_id: int, topic_filter: str, since: int) -> None:
        self.filter_id: int = filter_id  # > 0
        self.topic_filter: str = topic_filter  # not a `$share/` one
        self.since: int = since  # offset; only greater ones are owed

    def __repr__(self) -> str:
        return f"Stream({self.filter_id}, {self.topic_filter!r}, since={self.since})"


class Reader(Protocol):
    """Messages of some streams of one generation in ascending order, each once."""

    # Every message up to and including this offset was returned, or is not one of the streams.
    position: int
    # Offsets the index named whose message was not there.
    missing: int

    def next(self, count: int, upto: int, scan_max: int) -> list[Message]:
        """Return at most `count` further messages with an offset <= `upto`.

        Fewer do not mean the end: large messages end a call early, and so do `scan_max` rows
        looked at in vain (0 = no limit). The end is `position` >= `upto`. `upto` must never
        shrink and must only name offsets that are written: what is not there up to it is taken
        to be absent for ever.
        """
        ...

    def skip(self, count: int, upto: int, scan_max: int) -> int:
        """Pass over at most `count` messages as `next` would return them; returns how many."""
        ...

    def buffered(self) -> int:
        """Return how many messages are known to come next (a lower bound of what is left)."""
        ...


class Slab(Protocol):
    """One generation of one shard, seen through its layout."""

    families: tuple[str, ...]

    @property
    def is_pending(self) -> bool:
        """Are there messages that have no rows yet?"""
        ...

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Take over one message, which has its offset; returns about what it adds in bytes. Hot.

        Its rows are in `batch` now or when the slab is sealed.
        """
        ...

    def seal(self, batch: Batch) -> int:
        """Put the rows of all that is pending into `batch`.

        Returns their size in bytes, less what `append` told of it.
        """
        ...

    def discard(self) -> None:
        """Forget what is pending."""
        ...

    def get_many(self, offsets: Sequence[int]) -> list[Message | None]:
        """Return the messages at `offsets` in their order, None where there is none."""
        ...

    def first_from(self, offset: int) -> Message | None:
        """Return the first message at or after `offset`, None if there is none."""
        ...

    def last_offset(self) -> int:
        """Return the greatest offset written, 0 if there is none."""
        ...

    def sampled_size(self) -> int:
        """Return the size in bytes of one message's row on average, from a bounded sample."""
        ...

    def measured(self) -> tuple[int, int]:
        """Return how many message rows there are and their size in bytes; reads all of them."""
        ...

    def reader(self, streams: Sequence[Stream], after: int) -> Reader:
        """Return a reader of the messages after `after` which one of `streams` is owed."""
        ...

    def scanner(self, topic_filter: str, after: int) -> Reader:
        """Return a reader of all messages after `after` whose topic matches, index or not."""
        ...

    def first_owed(self, streams: Sequence[Stream], after: int, upto: int) -> int | None:
        """Return the first offset in (after, upto] that one of `streams` is owed, None if none."""
        ...
