"""Who holds a filter: sessions, shared subscriptions and backends whose messages are stored.

A filter with a holder is a stream: messages that match it get a row in its index. The caller tells
the router that the entry has changed. Read next: `session.routing.router`.
"""

from typing import Final

from session.live.core import Core, Database
from session.live.subscribers import FilterEntry
from storage.tables.tables import FILTERS, HOLDERS, encode_filter, encode_since, holder_key


class Holders:
    """The holders of all filters, in the store."""

    def __init__(self, core: Core, database: Database) -> None:
        self._tick: Final = core.tick
        self._totals: Final = database.totals

    def add(self, entry: FilterEntry, holder: bytes, since: int) -> None:
        """Store the messages of this filter for `holder` from now on."""
        if not entry.filter_id:
            entry.filter_id = self._totals.next_filter_id
            self._totals.next_filter_id += 1
            self._tick.totals_changed = True
        entry.holders += 1
        self._write(entry)
        key = holder_key(entry.filter_id, holder)
        self._tick.batch.append((HOLDERS, key, encode_since(since)))

    def remove(self, entry: FilterEntry, holder: bytes) -> None:
        """Store nothing more of this filter for `holder`; a stream without holders ends."""
        entry.holders -= 1
        assert entry.holders >= 0
        self._tick.batch.append((HOLDERS, holder_key(entry.filter_id, holder), None))
        self._write(entry)
        if not entry.holders:
            entry.filter_id = 0

    def _write(self, entry: FilterEntry) -> None:
        value = encode_filter(entry.filter_id, entry.holders) if entry.holders else None
        self._tick.batch.append((FILTERS, entry.topic_filter.encode(), value))
