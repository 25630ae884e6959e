"""Planted bugs of the feeds to external stores.

Read next: `session.feed.outlet`, `tests.simulation.mirror`.
"""

from typing import Any

from session.delivery.fetching.inbox import Inbox
from session.delivery.fetching.requests import Requests
from session.feed import outlet
from session.feed.backfill import Backfill
from session.feed.outlet import Backend, FeedOutlet
from session.feed.recorder import FeedRecorder
from session.lifetime.collection import Collection
from session.lifetime.feeds import Feeds
from session.publish.accept import Publishing
from session.routing.router import Router
from session.settings import Feed
from storage.tables.feed_rows import CONNECTED, PUBLISHED, FeedEvent
from tests.simulation.planting import Patcher, mutant


@mutant("absent", seeds=120, start=198)
def what_was_read_is_not_kept(patcher: Patcher) -> None:
    """A generation counts as read once its rows are sent: a crash, or a store that forgets."""

    def around(original: Any, self: FeedOutlet, name: str) -> Any:
        streams, _ = original(self, name)
        return streams, self.backends[name].read[0]

    patcher.wrap(FeedOutlet, "owed", around)


@mutant("limits", seeds=300, start=28)
def a_cursor_is_moved_before_the_store_has_confirmed(patcher: Patcher) -> None:
    """What was read counts as confirmed: rows that are lost on their way are never sent again."""

    def around(original: Any, self: FeedOutlet, name: str, count: int, size: int) -> Any:
        page = original(self, name, count, size)
        if page is not None:
            self.confirm(name, page.upto)
        return page

    patcher.wrap(FeedOutlet, "read", around)


@mutant(None, seeds=200, start=56)
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


@mutant(None, seeds=200, start=133)
def a_crash_disconnects_nobody(patcher: Patcher) -> None:
    """Clients that were connected when the broker died stay online in the store."""

    def around(original: Any, self: Feeds, alive_ms: int) -> None:
        return

    patcher.wrap(Feeds, "crashed", around)


@mutant(None, seeds=200, start=27)
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


@mutant(None, seeds=100, start=69)
def a_run_of_messages_is_not_told(patcher: Patcher) -> None:
    """Deliveries of several messages at once are not told."""

    def around(original: Any, self: FeedRecorder, *rest: Any) -> None:
        return

    patcher.wrap(FeedRecorder, "sent_run", around)


@mutant(None, seeds=100, start=19)
def what_waited_is_not_told(patcher: Patcher) -> None:
    """Deliveries of messages that waited for their session are not told."""

    def around(original: Any, self: FeedRecorder, *rest: Any) -> None:
        if rest[2].accepted_at_ms == self._tick.now:
            original(self, *rest)

    patcher.wrap(FeedRecorder, "sent", around)


@mutant(None, seeds=200, start=24)
def subscriptions_end_unseen(patcher: Patcher) -> None:
    """The store keeps the subscriptions of a session that is gone."""

    def around(original: Any, self: FeedRecorder, client_id: str) -> None:
        return

    patcher.wrap(FeedRecorder, "session_ended", around)


@mutant(None, seeds=120, start=136)
def a_store_that_is_away_is_not_waited_for(patcher: Patcher) -> None:
    """Rows are kept for a time, also when the store is not heard of meanwhile."""

    def around(original: Any, self: FeedOutlet, now: int) -> None:
        for backend in self.backends.values():
            backend.heard_ms = now
        original(self, now)

    patcher.wrap(FeedOutlet, "tidy", around)


@mutant(None, seeds=200, start=53)
def an_answer_is_taken_twice(patcher: Patcher) -> None:
    """A page that comes twice is delivered twice."""

    def around(original: Any, self: Inbox, number: int, *page: Any, **named: Any) -> None:
        fetch = self._requests._asked.get(number)
        original(self, number, *page, **named)
        if fetch is not None and not fetch.number:
            position, fetch.position = fetch.position, ""
            self._requests._waiting[fetch.backend].pop(fetch, None)
            self._requests._asked[number] = fetch
            fetch.number = number
            fetch.owner.taken.clear()
            original(self, number, *page, **named)
            fetch.position = max(position, fetch.position)

    patcher.wrap(Inbox, "fetched", around)


@mutant(None, seeds=200, start=28)
def a_position_is_in_a_batch_of_its_own(patcher: Patcher) -> None:
    """The position behind a message is written with the next page, not with the message."""
    late: dict[Any, str] = {}

    def around(original: Any, self: Inbox, fetch: Any) -> None:
        position, fetch.position = fetch.position, late.get(fetch, "")
        late[fetch] = position
        original(self, fetch)
        fetch.position = position

    patcher.wrap(Inbox, "_write", around)


@mutant(None, seeds=200, start=24)
def a_position_is_written_before_its_messages(patcher: Patcher) -> None:
    """The row says that a session has a page which is not in its mailbox yet."""

    def around(original: Any, self: Inbox, number: int, *page: Any, **named: Any) -> None:
        fetch = self._requests._asked.get(number)
        if fetch is not None and page[0]:
            fetch.position = max(fetch.position, page[1])
            self._write(fetch)
            page[0].pop()
        original(self, number, *page, **named)

    patcher.wrap(Inbox, "fetched", around)


@mutant(None, seeds=200, start=28)
def a_store_is_asked_before_it_knows_everything(patcher: Patcher) -> None:
    """A question overtakes what the store is told of its messages."""

    def around(original: Any, self: Requests, name: str, reached: Any) -> Any:
        return original(self, name, (1 << 62, 1 << 62))

    patcher.wrap(Requests, "next", around)


@mutant(None, seeds=400, start=53)
def a_store_is_not_told_who_has_a_message(patcher: Patcher) -> None:
    """A message of a queue is only leased, and the store may forget that."""

    def around(original: Any, self: FeedRecorder, *event: Any) -> None:
        return

    patcher.wrap(FeedRecorder, "fetched_kept", around)


@mutant(None, seeds=200, start=24)
def what_a_session_leaves_stays_its_own(patcher: Patcher) -> None:
    """A message of a queue is for nobody after its session has ended."""

    def around(original: Any, self: FeedRecorder, *event: Any) -> None:
        return

    patcher.wrap(FeedRecorder, "fetched_returned", around)


@mutant(None, seeds=400, start=307)
def a_position_passes_what_is_in_flight(patcher: Patcher) -> None:
    """The store is told of an acknowledgement while an earlier message is in flight."""

    def around(original: Any, self: Inbox, state: Any, name: str, topic: str) -> None:
        taken = dict(state.taken)
        state.taken.clear()
        original(self, state, name, topic)
        state.taken.update(taken)

    patcher.wrap(Inbox, "_tell_in_order", around)


@mutant(None, seeds=200, start=24)
def fetches_of_an_ended_session_stay(patcher: Patcher) -> None:
    """The rows of what a session fetches outlive it."""

    def around(original: Any, self: Inbox, session: Any) -> None:
        self._left = None

    patcher.wrap(Inbox, "ended", around)


@mutant(None, seeds=200, start=24)
def what_is_owed_is_forgotten_with_its_connection(patcher: Patcher) -> None:
    """A resumed session asks for nothing."""

    def around(original: Any, self: Inbox, connection: Any) -> None:
        return

    patcher.wrap(Inbox, "connected", around)


@mutant(None, seeds=400, start=1242)
def a_backfill_ends_with_a_crash(patcher: Patcher) -> None:
    """What was left of a backfill is forgotten by the next start."""

    def around(original: Any, self: Feeds, feed: Any, record: Any) -> None:
        if record is not None:
            record.fill = None
        original(self, feed, record)

    patcher.wrap(Feeds, "_open_one", around)


@mutant(None, seeds=400, start=19)
def a_backfill_goes_on_behind_rows_that_a_crash_took_back(patcher: Patcher) -> None:
    """How far a backfill is, is written one batch before its rows."""
    late: list[Any] = []

    def around(original: Any, self: FeedRecorder, event: Any) -> int:
        late.append(event)
        if len(late) < 2:
            return self.seq + 1
        number: int = original(self, late.pop(0))
        return number

    patcher.wrap(FeedRecorder, "fill", around)


@mutant(None, seeds=400, start=60)
def sessions_in_memory_are_left_out_of_a_backfill(patcher: Patcher) -> None:
    """Only subscriptions in the database are told."""

    def around(original: Any, self: Backfill, name: str) -> Any:
        for event in original(self, name):
            if event.kind == CONNECTED:
                yield event

    patcher.wrap(Backfill, "_online_events", around)


@mutant(None, seeds=300)
def what_is_given_up_is_not_told(patcher: Patcher) -> None:
    """The oldest rows of a full backlog are passed over without a gap."""

    def around(original: Any, self: FeedOutlet, backend: Backend, page: Any) -> None:
        original(self, backend, page)
        page.rows.clear()

    patcher.wrap(FeedOutlet, "_pass_given_up", around)


@mutant(None, seeds=300)
def what_is_given_up_counts_as_wanted_by_nobody(patcher: Patcher) -> None:
    """The gap names no message."""

    def around(original: Any, self: FeedOutlet, backend: Backend, after: int, upto: int) -> int:
        return 0

    patcher.wrap(FeedOutlet, "_first_wanted", around)


@mutant(None, seeds=300)
def who_was_refused_stays_refused(patcher: Patcher) -> None:
    """Messages for a store are refused for ever, once too much has waited for it."""

    def around(original: Any, self: FeedOutlet) -> Any:
        before = [backend for backend in self.backends.values() if backend.is_refusing]
        full = original(self)
        for backend in before:
            backend.is_refusing = True
        return full

    patcher.wrap(FeedOutlet, "_look_for_full", around)


@mutant(None, seeds=200)
def messages_with_qos_0_go_to_every_store(patcher: Patcher) -> None:
    """A store that has not asked for them gets messages with QoS 0 of other topics."""
    original = outlet._wants

    def wants(feed: Feed, event: FeedEvent) -> bool:
        return event.kind == PUBLISHED or original(feed, event)

    def route(original: Any, self: Router, topic: str) -> Any:
        found = original(self, topic)
        found.wants_qos0 = True
        return found

    patcher.set(outlet, "_wants", wants)
    patcher.wrap(Router, "match", route)


@mutant(None, seeds=200, start=61)
def a_message_with_qos_0_in_the_log_is_told_twice(patcher: Patcher) -> None:
    """It comes from the log, and as an event."""

    def around(
        original: Any, self: Publishing, message: Any, route: Any, *others: Any, **named: Any
    ) -> Any:
        accepted = original(self, message, route, *others, **named)
        if message.offset and not message.qos and route.wants_qos0:
            self._feed.published(message)
        return accepted

    patcher.wrap(Publishing, "accept", around)


@mutant(None, seeds=200, start=43)
def nobody_asks_for_qos_0_after_a_restart(patcher: Patcher) -> None:
    """A filter that was there before is not marked again."""

    def around(original: Any, self: Feeds, feed: Feed, record: Any) -> None:
        original(self, feed, record)
        for topic_filter in feed.qos0 if record is not None else ():
            self._routes.ensure(topic_filter).wants_qos0 = False

    patcher.wrap(Feeds, "_open_one", around)


@mutant(None, seeds=200, start=107)
def a_filter_of_a_backend_for_qos_0_may_rest(patcher: Patcher) -> None:
    """A subscriber that comes and goes takes the mark with it."""

    def around(original: Any, self: Router, entry: Any) -> None:
        original(self, entry)
        entry.wants_qos0 = entry.wants_qos0 and bool(entry.is_live() or entry.holders < 2)

    patcher.wrap(Router, "changed", around)


@mutant("bursts", seeds=400, start=200)
def runs_with_qos_0_are_not_told(patcher: Patcher) -> None:
    """Messages that arrive together are told to sessions only."""

    def around(original: Any, self: FeedRecorder, message: Any, payloads: Any) -> None:
        return

    patcher.wrap(FeedRecorder, "published_run", around)


@mutant(None, seeds=200, start=45)
def a_message_with_qos_0_comes_before_those_that_it_followed(patcher: Patcher) -> None:
    """Its event is placed at the beginning of the log."""

    def around(original: Any, self: FeedRecorder, message: Any) -> Any:
        event = original(self, message)
        event.end = 0
        return event

    patcher.wrap(FeedRecorder, "published", around)


@mutant(None, seeds=200, start=45)
def a_retained_message_with_qos_0_is_two_messages(patcher: Patcher) -> None:
    """What is retained has another id than what is stored."""

    def around(original: Any, self: FeedRecorder, message: Any, *_: Any, source: str = "") -> None:
        original(self, message, source=source)

    patcher.wrap(FeedRecorder, "retained", around)
