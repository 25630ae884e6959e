"""Tells a store what was there before its backend began, or what it has lost since.

Subscriptions, retained messages and connected clients become events of the feed that only this
backend gets, in slices. Each slice is read after the open batch was written, and is in one batch
with the place where the next one begins: so a crash repeats nothing and leaves nothing out, and
whatever changes later comes later in the feed, too: the newest wins. It goes no faster than the
store. Read next: `session.feed.outlet`, `session.state.backend_record`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from mqtt.topics import split_shared
from session.feed.outlet import FeedOutlet
from session.feed.recorder import FeedRecorder
from session.live.connection import Connection
from session.live.core import Core, Database
from session.state.backend_record import (
    PARTS,
    PRESENCE,
    RETAINED,
    SUBSCRIPTIONS,
    BackendRecord,
    Fill,
)
from session.state.subscription import decode_subscription
from storage.api import Row
from storage.errors import CorruptRecord, DamagedRows
from storage.tables import feed_rows, tables
from storage.tables.feed_rows import CONNECTED, SUBSCRIBED, FeedEvent
from storage.tables.message_record import decode_message, encode_message

SLICE_ROWS: Final = 128  # of small rows: about 1 ms
SLICE_BYTES: Final = 1 << 20  # of retained messages, exceeded by one page at most
PAGE_ROWS: Final = 4  # of retained messages, read at once: one may have 16 MiB
PERIOD_MS: Final = 10  # between slices: a tenth of the loop
WAIT_MS: Final = 200  # until the store, or the disk, is looked at again
# Put into the feed and not confirmed by the store.
BEHIND_MAX: Final = 2048
BEHIND_BYTES_MAX: Final = 16 << 20
LIMIT_SHIFT: Final = (
    2  # a quarter of `backlog_bytes_max`, if there is one; a slice is a quarter, too
)

# The kind of event that each part makes; who is told of none of them has no use for it.
KINDS: Final = {
    SUBSCRIPTIONS: SUBSCRIBED,
    RETAINED: feed_rows.RETAINED,
    PRESENCE: CONNECTED,
}


class Backfill:
    """Fills the stores of one broker."""

    def __init__(
        self,
        core: Core,
        database: Database,
        outlet: FeedOutlet,
        recorder: FeedRecorder,
        live: dict[str, Connection],
        settle: Callable[[], bool],
        is_refusing: Callable[[], bool],
    ) -> None:
        """`live` has the connections by client identifier. `settle` writes the open batch.

        `is_refusing` says that the disk has no room for more.
        """
        self._tick: Final = core.tick
        self._damage: Final = core.damage
        self._settle: Final = settle
        self._is_refusing: Final = is_refusing
        self._store: Final = database.store
        self._log: Final = database.log
        self._live: Final = live
        self._outlet: Final = outlet
        self._recorder: Final = recorder
        # Less in tests.
        self.slice_rows: int = SLICE_ROWS
        self.slice_bytes: int = SLICE_BYTES
        self.behind_max: int = BEHIND_MAX
        self.behind_bytes_max: int = BEHIND_BYTES_MAX
        # Of each backend: numbers of the last events of slices, with their bytes.
        self._under_way: Final[dict[str, deque[tuple[int, int]]]] = {}
        self._online: Final[dict[str, Iterator[FeedEvent]]] = {}
        self.due_ms: int | None = 0  # when to make the next slice, None = there is nothing to do

    def begin(self, name: str, parts: int) -> str:
        """Tell a backend what there is; return why that cannot be.

        `parts` are bits of `PARTS`. "" = it is durable with the commit of this tick's batch, and
        goes on after a crash.
        """
        backend = self._outlet.backends[name]
        fill = backend.record.fill
        if fill is not None and fill.parts:
            return "a backfill is under way; `holdfast backend status` shows how far it is"
        wanted = parts & self.wanted(name)
        if not wanted:
            return "no rule of the backend wants any of that"
        backend.record.fill = Fill(wanted, self._tick.now)
        self._outlet.note_changed(name)
        self._online.pop(name, None)
        self.due_ms = self._tick.now
        return ""

    def stop(self, name: str) -> str:
        """End a backfill where it is; return why that cannot be."""
        fill = self._outlet.backends[name].record.fill
        if fill is None or not fill.parts:
            return "no backfill is under way"
        fill.parts = 0
        fill.ended_ms = self._tick.now
        self._outlet.note_changed(name)
        return ""

    def wanted(self, name: str) -> int:
        """Return the parts that rules of a backend want."""
        feed = self._outlet.backends[name].feed
        found = sum(part for part in PARTS if feed.kinds & 1 << KINDS[part])
        if feed.kinds & 1 << SUBSCRIBED:
            found |= PRESENCE  # sessions in memory
        return found

    def fill(self, name: str) -> Fill | None:
        """Return the last backfill of a backend, None if there was none."""
        return self._outlet.backends[name].record.fill

    # Slices

    def run(self, now: int) -> None:
        """Make a slice for each backend that has something to do and room for it."""
        if self.due_ms is None or self.due_ms > now:
            return
        self.due_ms = None
        for name, backend in self._outlet.backends.items():
            fill = backend.record.fill
            if fill is None or not fill.parts:
                continue
            if self._is_refusing() or self._is_behind(name) or not self._settle():
                self._come_at(now + WAIT_MS)
                continue
            self._slice(name, backend.record, fill)
            self._come_at(now + PERIOD_MS)

    def _come_at(self, at_ms: int) -> None:
        self.due_ms = at_ms if self.due_ms is None else min(self.due_ms, at_ms)

    def _is_behind(self, name: str) -> bool:
        """Has the store still to confirm much of what it was told?"""
        cursor = self._outlet.cursor(name)
        under_way = self._under_way.setdefault(name, deque())
        while under_way and under_way[0][0] <= cursor[1]:
            under_way.popleft()
        if sum(size for _, size in under_way) > self.behind_bytes_max:
            return True
        stats = self._outlet.stats(name)
        limit = self._outlet.backends[name].feed.backlog_bytes_max
        if limit and stats.backlog_bytes > limit >> LIMIT_SHIFT:
            return True  # nothing else is given up, or refused, for this
        return stats.events_behind > self.behind_max

    def _slice(self, name: str, record: BackendRecord, fill: Fill) -> None:
        part = fill.parts & -fill.parts
        found: list[FeedEvent] = []
        following: bytes | None = None
        if not self.wanted(name) & part:
            pass  # the rule was removed meanwhile
        elif part == SUBSCRIPTIONS:
            found, following = self._subscriptions(name, fill.after)
        elif part == RETAINED:
            limit = self._outlet.backends[name].feed.backlog_bytes_max >> LIMIT_SHIFT
            size = min(self.slice_bytes, limit) if limit else self.slice_bytes
            found, following = self._retained(name, fill.after, size)
        else:
            found, following = self._connected(name)
        last = size = 0
        for event in found:
            last = self._recorder.fill(event)
            size += len(event.client_id) + len(event.text) + len(event.body)
        if found:
            self._under_way[name].append((last, size))
        fill.rows += len(found)
        fill.after = following or b""
        if following is None:
            fill.parts &= ~part
            if not fill.parts:
                fill.ended_ms = self._tick.now
        self._outlet.note_changed(name)

    def _subscriptions(self, name: str, after: bytes) -> tuple[list[FeedEvent], bytes | None]:
        """Return the next stored subscriptions, and where to go on, None = there are no more."""
        found: list[FeedEvent] = []
        rows = self._scan(tables.SUBSCRIPTIONS, "session", after, self.slice_rows)
        for key, value in rows:
            client_id, _, topic_filter = key.decode().partition("\0")
            try:
                shared = split_shared(topic_filter)
                share_name, stream_filter = shared or (None, topic_filter)
                body = tables.unseal(value, f"subscription of {client_id!r}")
                qos = decode_subscription(topic_filter, share_name, stream_filter, body).qos
            except (CorruptRecord, ValueError) as problem:
                self._damage.note("session", CorruptRecord(str(problem)), client_id)
                continue
            found.append(self._subscribed(name, client_id, topic_filter, qos))
        return found, _following(rows, self.slice_rows)

    def _subscribed(self, name: str, client_id: str, topic_filter: str, qos: int) -> FeedEvent:
        connection = self._live.get(client_id)  # of one that is away no user name is known
        return FeedEvent(
            SUBSCRIBED,
            self._tick.now,
            self._log.end,
            client_id,
            topic_filter,
            qos=qos,
            username=name,
            client_username="" if connection is None else connection.username,
        )

    def _retained(
        self, name: str, after: bytes, bytes_max: int
    ) -> tuple[list[FeedEvent], bytes | None]:
        """Return the next retained messages, and where to go on, None = there are no more."""
        found: list[FeedEvent] = []
        size = 0
        following: bytes | None = after
        while following is not None and len(found) < self.slice_rows and size < bytes_max:
            rows = self._scan(tables.RETAINED, "retained", following, PAGE_ROWS)
            following = _following(rows, PAGE_ROWS)
            for _, value in rows:
                size += len(value)
                try:
                    message = decode_message(value, 0)
                except DamagedRows as problem:
                    self._damage.note("retained", problem)
                    continue
                if message.expires_at_ms and message.expires_at_ms <= self._tick.now:
                    continue
                found.append(
                    FeedEvent(
                        feed_rows.RETAINED,
                        self._tick.now,
                        self._log.end,
                        message.publisher,
                        message.topic,
                        qos=message.qos,
                        accepted_ms=message.accepted_at_ms,
                        username=name,
                        body=encode_message(message),
                    )
                )
        return found, following

    def _scan(self, family: str, kind: str, after: bytes, count: int) -> list[Row]:
        damages: list[DamagedRows] = []
        rows = tables.scan_readable(self._store, family, after, None, damages, count=count)
        self._damage.note_all(kind, damages)
        return rows

    def _connected(self, name: str) -> tuple[list[FeedEvent], bytes | None]:
        """Return the next clients that are connected, with what those in memory subscribe to.

        After a crash nobody is connected: it begins anew with those who are then.
        """
        events = self._online.get(name)
        if events is None:
            events = self._online[name] = self._online_events(name)
        found = list(islice(events, self.slice_rows))
        if len(found) == self.slice_rows:
            return found, b""
        del self._online[name]
        return found, None

    def _online_events(self, name: str) -> Iterator[FeedEvent]:
        """Yield events as of the moment when each is asked for."""
        kinds = self._outlet.backends[name].feed.kinds
        for client_id in list(self._live):
            connection = self._live.get(client_id)
            if connection is None or connection.session is None:
                continue
            session = connection.session
            if kinds & 1 << CONNECTED:
                yield self._online_event(name, connection)
            if session.is_stored or not kinds & 1 << SUBSCRIBED:
                continue
            for topic_filter in list(session.subscriptions):
                if self._live.get(client_id) is not connection:
                    break
                subscription = session.subscriptions.get(topic_filter)
                if subscription is not None:
                    yield self._subscribed(name, client_id, topic_filter, subscription.qos)

    def _online_event(self, name: str, connection: Connection) -> FeedEvent:
        session = connection.session
        assert session is not None
        return FeedEvent(
            CONNECTED,
            session.connected_at_ms,
            self._log.end,
            session.client_id,
            username=connection.username,
            body=name.encode(),
        )


def _following(rows: list[Row], count: int) -> bytes | None:
    """Return where to go on after a page of at most `count` rows, None = it was the last one."""
    return rows[-1][0] + b"\0" if len(rows) == count else None
