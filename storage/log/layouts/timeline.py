"""Layout `timeline`: the messages in order, without an index; every reader looks at all of them.

Family `msg.G`: offset -> record. An append is one row, whatever the number of filters, and a read
looks at every message of the shard. Suited to few readers that want most of the messages. Read
next: `storage.log.layouts.filters`, the layout with an index.
"""

from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from storage.api import Batch, Store
from storage.log.layouts.api import Stream
from storage.log.layouts.message_rows import (
    KEY_SIZE,
    RowSlab,
    TopicScan,
    message_family,
    message_key,
)
from storage.tables.message_record import encode_message

NAME: Final = "timeline"


def families(generation: int) -> tuple[str, ...]:
    """Return the names of the families of a generation with this layout."""
    return (message_family(generation),)


class TimelineSlab(RowSlab):
    """A generation without an index."""

    __slots__ = ("families",)

    def __init__(self, store: Store, generation: int) -> None:
        super().__init__(store, generation)
        self.families: tuple[str, ...] = families(generation)

    def append(self, batch: Batch, message: Message, filter_ids: Sequence[int]) -> int:
        """Add the row of one message to `batch`; return its size in bytes."""
        record = encode_message(message)
        batch.append((self._family, message_key(message.offset), record))
        return KEY_SIZE + len(record)

    def reader(self, streams: Sequence[Stream], after: int) -> TopicScan:
        """Return a reader of the messages of `streams` after `after`."""
        return TopicScan(self._rows, streams, after)

    def first_owed(self, streams: Sequence[Stream], after: int, upto: int) -> int | None:
        """Return the first offset of `streams` in (after, upto], None if there is none."""
        first = TopicScan(self._rows, streams, after).next(1, upto, 0)
        return first[0].offset if first else None
