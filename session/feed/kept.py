"""What the database still knows of what one store was told, and what the store should have now.

For a comparison of the two: messages and events that are kept behind the floor of a backend, the
subscriptions and retained messages in the database, and who is connected. Reads only, in pages of a
bounded size; changes nothing, and no cursor. Read next: `session.feed.outlet`,
`broker.process.desks.comparing`, which asks.
"""

from collections.abc import Collection
from typing import Final

from mqtt.message import Message
from session.feed.outlet import FeedOutlet
from session.live.connection import Connection
from session.live.core import Core, Database
from session.state.backend_record import Cursor
from storage.api import Row
from storage.errors import CorruptRecord, DamagedRows
from storage.tables.feed_rows import FeedEvent, decode_row, split_feed_key
from storage.tables.tables import FEED, RETAINED, SUBSCRIPTIONS, scan_readable

PAGE_MESSAGES: Final = 128
SCAN_MAX: Final = 2048  # messages without a match that one page looks at
PAGE_FEED_ROWS: Final = 4  # each has the events of a tick


class KeptRows:
    """Pages of what one broker knows."""

    def __init__(
        self, core: Core, database: Database, outlet: FeedOutlet, live: dict[str, Connection]
    ) -> None:
        self._damage: Final = core.damage
        self._store: Final = database.store
        self._log: Final = database.log
        self._outlet: Final = outlet
        self.live: Final = live  # connections by client identifier; not to be changed

    def first(self, name: str, since_ms: int) -> Cursor:
        """Return the cursor behind which everything is kept that was accepted since a time.

        Also older messages come behind it.
        """
        position, seq = self._outlet.floor(name)
        oldest = self._log.list_generations()[0].first_offset - 1
        streams = self._log.get_streams("#", since_ms)
        start = min((stream.start_offset for stream in streams), default=1) - 1
        return max(position, oldest, start), seq

    def message(self, offset: int) -> Message | None:
        """Return the message at an offset of the log, None if it is not there or unreadable."""
        try:
            return self._log.get(offset) if offset and offset <= self._log.end else None
        except DamagedRows as problem:
            self._damage.note("message", problem)
            return None

    def messages(
        self, name: str, filters: Collection[str], after: int, upto: int, bytes_max: int
    ) -> tuple[list[Message], int, int]:
        """Return the next messages up to `upto` that match filters of a backend.

        And up to which offset all were read, and how many could not be.
        """
        streams = [
            stream
            for stream in self._outlet.backends[name].streams
            if stream.topic_filter in filters
        ]
        if not streams:
            return [], upto, 0
        cursor = self._log.cursor(streams, after, upto)
        found: list[Message] = []
        size = 0
        for message in cursor.next(PAGE_MESSAGES, SCAN_MAX):
            found.append(message)
            size += len(message.payload)
            if size >= bytes_max:
                return found, message.offset, cursor.missing
        if cursor.lost:
            self._damage.passed_over(cursor)
        reached = upto if cursor.is_at_end else cursor.position
        return found, reached, cursor.missing

    def events(self, after: int, upto: int) -> tuple[list[FeedEvent], int]:
        """Return the next events behind the number `after`, and up to which all were read."""
        damages: list[DamagedRows] = []
        rows = scan_readable(
            self._store, FEED, self._outlet.key_of(after + 1), None, damages, count=PAGE_FEED_ROWS
        )
        self._damage.note_all("feed", damages)
        found: list[FeedEvent] = []
        reached = upto if len(rows) < PAGE_FEED_ROWS else after
        for key, value in rows:
            try:
                events = decode_row(key, value)
            except CorruptRecord as problem:
                self._damage.note("feed", problem)
                reached = max(reached, split_feed_key(key))
                continue
            found += [event for event in events if after < event.seq <= upto]
            reached = max(reached, events[-1].seq)
        return found, min(reached, upto)

    def subscriptions(self, start: bytes, count: int) -> list[Row]:
        """Return rows of stored subscriptions from the key `start` on; fewer are the end."""
        return self._scan(SUBSCRIPTIONS, "session", start, count)

    def retained(self, start: bytes, count: int) -> list[Row]:
        """Return rows of retained messages from the key `start` on; fewer are the end."""
        return self._scan(RETAINED, "retained", start, count)

    def _scan(self, family: str, kind: str, start: bytes, count: int) -> list[Row]:
        damages: list[DamagedRows] = []
        rows = scan_readable(self._store, family, start, None, damages, count=count)
        self._damage.note_all(kind, damages)
        return rows
