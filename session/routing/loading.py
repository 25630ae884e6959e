"""Loads the durable filters into an index: at the start, or long before, while rows change.

A node that follows the log of its cluster loads them page by page, and takes every change of a row
that is applied. So the start of a broker there reads none, however many sessions there are. Read
next: `session.lifetime.repository`, which opens what this has loaded.
"""

from session.live.subscribers import FilterEntry
from session.routing.filter_index import TopicFilterIndex
from storage.api import Store
from storage.tables.tables import FILTERS, SCAN_PAGE, decode_filter


class FilterLoad:
    """The index of the filters of a store, and how far it is loaded."""

    __slots__ = ("_start", "index", "is_complete")

    def __init__(self) -> None:
        self.index: TopicFilterIndex = TopicFilterIndex()
        self.is_complete: bool = False
        self._start: bytes = b""  # rows before this key are in the index

    def load(self, store: Store, count: int = SCAN_PAGE) -> None:
        """Load the next rows, at most `count`, if any are missing.

        Raises `StorageError`, and `DamagedRows` when one of them cannot be read; the next call
        tries them again.
        """
        if self.is_complete:
            return
        rows = store.scan(FILTERS, self._start, None, count=count)
        loaded = [(key, decode_filter(value)) for key, value in rows]
        for key, (filter_id, holders) in loaded:
            self._lay(key.decode(), filter_id, holders)
        if len(rows) < count:
            self.is_complete = True
        else:
            self._start = rows[-1][0] + b"\0"

    def finish(self, store: Store) -> None:
        """Load all rows that are missing. Raises as `load`."""
        while not self.is_complete:
            self.load(store)

    def changed(self, key: bytes, value: bytes | None) -> None:
        """Take what was written to a row, None = it was deleted; it may be told again.

        Raises `DamagedRows` as `load`.
        """
        if not self.is_complete and key >= self._start:
            return  # it comes with its page
        topic_filter = key.decode()
        if self.index.filter_id(topic_filter):
            self.index.remove(topic_filter)
        if value is not None:
            self._lay(topic_filter, *decode_filter(value))

    def forget(self) -> None:
        """Begin again: the rows have changed in another way."""
        self.index = TopicFilterIndex()
        self.is_complete = False
        self._start = b""

    def _lay(self, topic_filter: str, filter_id: int, holders: int) -> None:
        if holders == 1:
            self.index.lay(topic_filter, filter_id)
        else:
            self.index.add(FilterEntry(topic_filter, filter_id, holders))
