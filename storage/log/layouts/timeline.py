"""Layout `timeline`: the messages in order and nothing else; every reader looks at all of them.

Family `msg.G`: offset -> record. An append is one row, whatever the number of filters, and a read
costs every message of the shard, so this fits few readers that want most of the messages. Read
next: `storage.log.layouts.filters`, the layout with an index.
"""

from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from storage.api import Batch, Store
from storage.log.layouts.api import Stream
from storage.log.layouts.message_rows import (
    KEY_SIZE,
    MessageRows,
    TopicScan,
    message_family,
    message_key,
)
from storage.tables.message_record import encode_message

NAME: Final = "timeline"


def families(generation: int) -> tuple[str, ...]:
    """Return the names of the families of a generation with this layout."""
    return (message_family(generation),)


class TimelineSlab:
    """A generation without an index."""

    __slots__ = ("_family", "_rows", "families")

    def __init__(self, store: Store, generation: int) -> None:
        self.families: tuple[str, ...] = families(generation)
        self._rows: Final = MessageRows(store, generation)
        self._family: Final = self._rows.family

    @property
    def is_pending(self) -> bool:
        """Return False: rows are in their batch at once."""
        return False

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Add the row of one message to `batch`; returns its size in bytes."""
        record = encode_message(message)
        batch.append((self._family, message_key(message.offset), record))
        return KEY_SIZE + len(record)

    def seal(self, batch: Batch) -> int:
        """Do nothing: rows are in their batch at once."""
        return 0

    def discard(self) -> None:
        """Do nothing: nothing is pending."""

    def get_many(self, offsets: Sequence[int]) -> list[Message | None]:
        """Return the messages at `offsets` in their order, None where there is none."""
        return self._rows.get_many(offsets)

    def first_from(self, offset: int) -> Message | None:
        """Return the first message at or after `offset`, None if there is none."""
        return self._rows.first_from(offset)

    def last_offset(self) -> int:
        """Return the greatest offset written, 0 if there is none."""
        return self._rows.last_offset()

    def sampled_size(self) -> int:
        """Return the size in bytes of one message's row on average, from a bounded sample."""
        return self._rows.sampled_size()

    def measured(self) -> tuple[int, int]:
        """Return how many message rows there are and their size in bytes; reads all of them."""
        return self._rows.measured()

    def reader(self, streams: Sequence[Stream], after: int) -> TopicScan:
        """Return a reader of the messages after `after` which one of `streams` is owed."""
        return TopicScan(self._rows, streams, after)

    def scanner(self, topic_filter: str, after: int) -> TopicScan:
        """Return a reader of all messages after `after` whose topic matches."""
        return TopicScan(self._rows, [Stream(0, topic_filter, 0)], after)

    def first_owed(self, streams: Sequence[Stream], after: int, upto: int) -> int | None:
        """Return the first offset in (after, upto] that one of `streams` is owed, None if none."""
        first = TopicScan(self._rows, streams, after).next(1, upto, 0)
        return first[0].offset if first else None
