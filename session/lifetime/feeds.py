"""Opens the backends at the start of the broker, and repairs what a crash left of their feeds.

A backend holds its filters like a session: what matches them is stored. One that is configured for
the first time begins at the end of the log; one that is not configured any more is forgotten, with
what it still had to get. Runs once. Read next: `session.feed.outlet`.
"""

from collections.abc import Callable
from typing import Final

from session.feed.outlet import Backend, FeedOutlet
from session.feed.recorder import FeedRecorder
from session.live.core import Core, Database
from session.routing.holders import Holders
from session.routing.router import Router
from session.settings import Feed
from session.state.backend_record import BackendRecord, decode_backend
from storage.errors import CorruptRecord, DamagedRows
from storage.log.message_log import Stream
from storage.tables.feed_rows import decode_row, feed_key
from storage.tables.tables import (
    BACKENDS,
    DEAD_LETTERS,
    FEED,
    FETCHES,
    PRESENCE,
    backend_holder,
    client_prefix,
    scan_all,
    scan_prefix,
    unseal,
)

SLICE: Final = 1000  # changes in one batch of the start
_LAST: Final = feed_key((1 << 64) - 1)


class Feeds:
    """Opens the feeds of one broker."""

    def __init__(
        self,
        core: Core,
        database: Database,
        routes: Router,
        holders: Holders,
        recorder: FeedRecorder,
        outlet: FeedOutlet,
        new_instance: Callable[[], str],
        write: Callable[[], bool],
    ) -> None:
        """`new_instance` makes the mark of a new backend; `write` writes the open batch."""
        self._tick: Final = core.tick
        self._damage: Final = core.damage
        self._feeds: Final = core.settings.feeds
        self._store: Final = database.store
        self._log: Final = database.log
        self._routes: Final = routes
        self._holders: Final = holders
        self._recorder: Final = recorder
        self._outlet: Final = outlet
        self._new_instance: Final = new_instance
        self._write: Final = write

    def open(self) -> list[str]:
        """Open the configured backends; return the names of those that are forgotten.

        Call it after the filters were loaded. Raises `DamagedRows` if the row of a backend cannot
        be read: it says what a store still has to get.
        """
        stored = self._load()
        self._recorder.seq = self._last_event(stored)
        self._recorder.sizes.open(self._store, self._recorder.seq, self._log.end)
        forgotten = [name for name in stored if all(feed.name != name for feed in self._feeds)]
        for name in forgotten:
            self._forget(name, stored[name])
        for feed in self._feeds:
            self._open_one(feed, stored.get(feed.name))
        if not self._feeds:
            self._clear(FEED)
        if not any(feed.is_asked for feed in self._feeds):
            self._clear(FETCHES)
        return forgotten

    def crashed(self, alive_ms: int) -> None:
        """Tell the backends that all clients are gone that were connected when the broker died."""
        if not self._recorder.has_presence:
            self._clear(PRESENCE)
            return
        damages: list[DamagedRows] = []
        gone = 0
        at_ms = min(alive_ms or self._tick.now, self._tick.now)
        for key, value in scan_all(self._store, PRESENCE, b"", None, damages):
            self._recorder.crashed(key.decode(), value, at_ms)
            gone += 1
            if gone % SLICE == 0:
                self._recorder.hurry()
                self._write()
        self._damage.note_all("feed", damages)

    def _load(self) -> dict[str, BackendRecord]:
        found: dict[str, BackendRecord] = {}
        for key, value in scan_all(self._store, BACKENDS, b"", None):
            name = key.decode()
            try:
                found[name] = decode_backend(unseal(value, f"backend {name!r}"))
            except ValueError as error:
                raise CorruptRecord(str(error)) from error
        return found

    def _last_event(self, stored: dict[str, BackendRecord]) -> int:
        """Return the number of the last event in the store; numbers are never used again."""
        last = max((record.cursor[1] for record in stored.values()), default=0)
        try:
            row = self._store.last(FEED, b"", _LAST)
            if row is not None:
                last = max(last, decode_row(*row)[-1].seq)
        except DamagedRows as problem:
            self._damage.note("feed", problem)
            # Nobody knows how many events the damaged rows hold: none has so many.
            last = self._behind_damage(last)
        return last

    def _behind_damage(self, last: int) -> int:
        damages: list[DamagedRows] = []
        for key, _ in scan_all(self._store, FEED, feed_key(last), None, damages):
            last = max(last, int.from_bytes(key[:8], "big"))
        for damage in damages:
            if damage.resume is not None:
                last = max(last, int.from_bytes(damage.resume[:8], "big"))
        return last + (1 << 32)

    def _open_one(self, feed: Feed, record: BackendRecord | None) -> None:
        end = self._log.end
        if record is None:
            record = BackendRecord(self._new_instance(), (end, self._recorder.seq))
        backend = Backend(feed, record)
        holder = backend_holder(feed.name)
        for topic_filter in [each for each in record.filters if each not in feed.filters]:
            self._release(topic_filter, holder)
            del record.filters[topic_filter]
        for topic_filter in feed.filters:
            since = record.filters.get(topic_filter, end)
            if topic_filter not in record.filters:
                entry = self._routes.ensure(topic_filter)
                self._holders.add(entry, holder, end)
                self._routes.changed(entry)
                record.filters[topic_filter] = end
            filter_id = self._routes.filter_id(topic_filter)
            backend.streams.append(Stream(filter_id, topic_filter, since))
        for topic_filter in feed.qos0:
            assert topic_filter in feed.filters
            entry = self._routes.ensure(topic_filter)
            entry.wants_qos0 = True
            self._routes.changed(entry)
        self._outlet.add(backend)

    def _forget(self, name: str, record: BackendRecord) -> None:
        holder = backend_holder(name)
        for topic_filter in record.filters:
            self._release(topic_filter, holder)
        self._outlet.forget(name, record)
        self._tick.batch.append((BACKENDS, name.encode(), None))
        for key, _ in scan_prefix(self._store, DEAD_LETTERS, client_prefix(name)):
            self._tick.batch.append((DEAD_LETTERS, key, None))
            self._write_slice()

    def _release(self, topic_filter: str, holder: bytes) -> None:
        entry = self._routes.find(topic_filter)
        if entry is None:
            return
        self._holders.remove(entry, holder)
        self._routes.changed(entry)

    def _clear(self, family: str) -> None:
        """Delete what is left of feeds that nobody reads any more."""
        damages: list[DamagedRows] = []
        for key, _ in scan_all(self._store, family, b"", None, damages):
            self._tick.batch.append((family, key, None))
            self._write_slice()
        self._damage.note_all("feed", damages)

    def _write_slice(self) -> None:
        if len(self._tick.batch) >= SLICE:
            self._write()
