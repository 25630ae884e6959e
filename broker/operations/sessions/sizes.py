"""The sizes of the messages that are counted: read singly while these are few, then all at once.

Streams go back and forth in a generation, so where much of it is counted it pays to read it from
one end to the other. Must never hold more than TABLES_MAX generations. Read next:
`broker.operations.sessions.behind`.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Final

from mqtt.message import Message
from storage.errors import DamagedRows
from storage.log.message_log import MessageLog

READ_PAGE: Final = 256  # messages are at most 1 MiB
SIZES_PAGE: Final = 4096  # sizes that are read between two pauses
TABLES_MAX: Final = 4  # generations, 4 bytes for each of their messages
TABLE_MAX: Final = 1 << 24  # messages of a generation whose sizes are held: 64 MiB
# All of a generation is read once this share of it was read singly. To read a message singly costs
# about ten times as much.
SHARE: Final = 16
SIZE_MAX: Final = 0xFFFFFFFF


class Sizes:
    """The sizes of the messages of a log that does not change."""

    def __init__(self, log: MessageLog, breathe: Callable[[], None]) -> None:
        self._log: Final = log
        self._breathe: Final = breathe
        self._read: Final[dict[int, int]] = {}  # singly, by the first offset of the generation
        self._tables: Final[dict[int, array[int]]] = {}  # the oldest one first

    def of(self, offsets: Sequence[int], first: int, last: int) -> list[int]:
        """Return the bytes of topic and payload of messages of the generation `first` to `last`.

        0 = it cannot be read.
        """
        table = self._tables.get(first)
        if table is None:
            read = self._read[first] = self._read.get(first, 0) + len(offsets)
            count = last + 1 - first
            if read * SHARE < count or count > TABLE_MAX:
                return self._singly(offsets)
            table = self._load(first, last)
        return [table[offset - first] for offset in offsets]

    def _load(self, first: int, last: int) -> "array[int]":
        if len(self._tables) >= TABLES_MAX:
            del self._tables[next(iter(self._tables))]
        table = self._tables[first] = array("I")
        for start in range(first, last + 1, SIZES_PAGE):
            sizes = self._log.sizes(start, min(last, start + SIZES_PAGE - 1))
            table.extend([min(size, SIZE_MAX) for size in sizes])
            self._breathe()
        return table

    def _singly(self, offsets: Sequence[int]) -> list[int]:
        sizes: list[int] = []
        for start in range(0, len(offsets), READ_PAGE):
            page = offsets[start : start + READ_PAGE]
            try:
                sizes += [_size(message) for message in self._log.get_many(page)]
            except DamagedRows:
                sizes += [self._one(offset) for offset in page]
            self._breathe()
        return sizes

    def _one(self, offset: int) -> int:
        try:
            return _size(self._log.get(offset))
        except DamagedRows:
            return 0


def size_of(message: Message) -> int:
    """Return the bytes of a message that are counted: its topic and its payload."""
    topic = message.topic
    return len(message.payload) + (len(topic) if topic.isascii() else len(topic.encode()))


def _size(message: Message | None) -> int:
    return 0 if message is None else size_of(message)
