"""Planted bugs of the feeds to external stores.

Read next: `session.feed.outlet`, `tests.simulation.mirror`.
"""

from typing import Any

from session.feed.outlet import Backend, FeedOutlet
from session.feed.recorder import FeedRecorder
from session.lifetime.collection import Collection
from session.lifetime.feeds import Feeds
from storage.tables.feed_rows import FeedEvent
from tests.simulation.planting import Patcher, mutant


@mutant("absent", seeds=220)
def what_was_read_is_not_kept(patcher: Patcher) -> None:
    """A generation counts as read once its rows are sent: a crash, or a store that forgets."""

    def around(original: Any, self: FeedOutlet, name: str) -> Any:
        streams, _ = original(self, name)
        return streams, self.backends[name].read[0]

    patcher.wrap(FeedOutlet, "owed", around)


@mutant(None, seeds=200)
def what_is_not_durable_is_read(patcher: Patcher) -> None:
    """The store gets what a crash takes back."""

    def around(original: Any, self: FeedOutlet, serial: int, end: int) -> None:
        original(self, serial, end)
        self.committed(serial)

    patcher.wrap(FeedOutlet, "written", around)


@mutant("absent", seeds=200)
def sweep_does_not_look_at_backends(patcher: Patcher) -> None:
    """What a store has not got goes with its generation."""

    def around(original: Any, self: Collection, name: str) -> None:
        return

    patcher.wrap(Collection, "_sweep_backend", around)


@mutant(None, seeds=200)
def events_are_in_a_batch_of_their_own(patcher: Patcher) -> None:
    """Events go into the batch after the one that has what they tell of."""

    def around(original: Any, self: FeedRecorder, batch: Any) -> None:
        kept, self._events = self._events, getattr(around, "late", [])
        around.late = kept  # type: ignore[attr-defined]
        original(self, batch)

    patcher.wrap(FeedRecorder, "seal", around)


@mutant(None, seeds=200)
def a_crash_disconnects_nobody(patcher: Patcher) -> None:
    """Clients that were connected when the broker died stay online in the store."""

    def around(original: Any, self: Feeds, alive_ms: int) -> None:
        return

    patcher.wrap(Feeds, "crashed", around)


@mutant(None, seeds=200)
def a_store_that_forgot_is_told_nothing_again(patcher: Patcher) -> None:
    """A read that begins again goes on at the confirmed cursor."""

    def around(original: Any, self: FeedOutlet, name: str, cursor: Any) -> None:
        original(self, name, max(cursor, self.cursor(name)))

    patcher.wrap(FeedOutlet, "begin", around)


@mutant(None, seeds=200)
def rows_are_kept_for_no_time(patcher: Patcher) -> None:
    """What was confirmed is forgotten at once, though the store may lose it."""

    def around(original: Any, self: FeedOutlet, now: int) -> None:
        for backend in self.backends.values():
            backend.record.floor = backend.record.cursor
        original(self, now)

    patcher.wrap(FeedOutlet, "tidy", around)


@mutant(None, seeds=200)
def messages_overtake_events(patcher: Patcher) -> None:
    """All durable messages come before the next event."""
    ends: dict[int, int] = {}

    def later(original: Any, self: FeedOutlet, backend: Backend, page: Any) -> Any:
        event = original(self, backend, page)
        if event is not None:
            ends.setdefault(event.seq, event.end)
            event.end = max(event.end, self._durable[0])
        return event

    def as_told(original: Any, self: FeedOutlet, name: str, count: int, size: int) -> Any:
        page = original(self, name, count, size)
        for row in [] if page is None else page.rows:
            if isinstance(row, FeedEvent):
                row.end = ends.pop(row.seq, row.end)
        return page

    patcher.wrap(FeedOutlet, "_next_event", later)
    patcher.wrap(FeedOutlet, "read", as_told)


@mutant(None, seeds=200)
def a_filter_of_a_backend_is_not_held(patcher: Patcher) -> None:
    """Messages that only a backend wants are not stored after a restart."""

    def around(original: Any, self: Feeds, feed: Any, record: Any) -> None:
        original(self, feed, record)
        if record is not None:
            self._outlet.backends[feed.name].streams.clear()

    patcher.wrap(Feeds, "_open_one", around)


@mutant(None, seeds=200)
def subscriptions_end_unseen(patcher: Patcher) -> None:
    """The store keeps the subscriptions of a session that is gone."""

    def around(original: Any, self: FeedRecorder, client_id: str) -> None:
        return

    patcher.wrap(FeedRecorder, "session_ended", around)


@mutant(None, seeds=100, start=900)
def a_store_that_is_away_is_not_waited_for(patcher: Patcher) -> None:
    """Rows are kept for a time, also when the store is not heard of meanwhile."""

    def around(original: Any, self: FeedOutlet, now: int) -> None:
        for backend in self.backends.values():
            backend.heard_ms = now
        original(self, now)

    patcher.wrap(FeedOutlet, "tidy", around)
