"""Begins generations of the message log, and drops those in which no session needs a message.

A sweep reads one slice of sessions after another. It stops at the first session that needs the
oldest generation; the next sweep looks at that session first. The column families of a dropped
generation are deleted when the batch with its deletion is durable. Must never drop a message that a
session still has to get. Read next: `session.lifetime.sweep`, `storage.log.message_log`.
"""

from collections.abc import Callable
from typing import Final

from session.delivery.backlog import SCAN_MAX
from session.delivery.delivery import Delivery
from session.lifetime.context import ClientContext
from session.lifetime.repository import Sessions
from session.lifetime.sweep import Sweep, oldest_in_flight
from session.live.core import Database
from session.live.subscribers import Group
from session.publish.storage_quota import Quota
from storage.errors import CorruptRecord, Recoverable
from storage.log.generations import INDEXED
from storage.log.message_log import Cursor, Generation, Stream, report_generations
from storage.tables.tables import SESSIONS

SWEEP_PERIOD_MS: Final = 2000
SWEEP_SLICE: Final = 64  # sessions that one step of the sweep loads; about 2 ms


class Collection:
    """Begins and drops the generations of the log."""

    def __init__(
        self,
        context: ClientContext,
        database: Database,
        delivery: Delivery,
        sessions: Sessions,
        quota: Quota,
        sweep: Sweep,
        next_serial: Callable[[], int],
    ) -> None:
        self._tick: Final = context.tick
        self._settings: Final = context.settings
        self._counters: Final = context.counters
        self._store: Final = database.store
        self._log: Final = database.log
        self._backlog: Final = delivery.backlog
        self._groups: Final = delivery.groups
        self._sessions: Final = sessions
        self._quota: Final = quota
        self._sweep: Final = sweep
        self._settle: Final = context.settle
        self._next_serial: Final = next_serial  # of the open batch
        self._next_sweep_ms = 1
        # Serial of the batch that deletes the dropped generations; 0 = none waits for its commit.
        self._reclaim_serial = 0

    def open(self) -> None:
        """Read the sizes of the stored generations."""
        reports = report_generations(self._store)
        for report in reports[:-1]:
            self._quota.generation_closed(report.generation.number, report.size_bytes)

    def next_deadline(self) -> int:
        """Return when `run` has something to do, broker ms; 1 = at once."""
        return self._next_sweep_ms if self._sweep.generation is None else 1

    def run(self, now: int) -> None:
        """Do one slice of what is due. Call it between events, never within one."""
        if now >= self._next_sweep_ms:
            self._next_sweep_ms = now + SWEEP_PERIOD_MS
            if self._settle():
                self._check_generations(now)
        generation = self._sweep.generation
        if generation is not None and self._settle():
            self._sweep_on(generation, now)

    def _check_generations(self, now: int) -> None:
        """Begin a generation if it is time, and drop the oldest one or start a sweep for it."""
        if self._log.rotation_due(now):
            try:
                self.rotate(now)
            except Recoverable:
                return  # a full disk: nothing has changed, the next run tries again
        if self._sweep.generation is not None:
            return
        oldest = self._log.list_generations()[0]
        if not oldest.is_closed:
            return
        if self._is_dropped_by_policy(oldest, now):
            self._counters.drop("max_age", max(0, oldest.last_offset - oldest.first_offset + 1))
            self._drop(oldest)
        else:
            self._sweep.begin(oldest)

    def rotate(self, now: int, layout: str | None = None) -> None:
        """Close the generation that takes messages and begin the next one."""
        newest = self._log.list_generations()[-1]
        size = self._log.newest_size_bytes
        self._log.add_generation(self._tick.batch, now, layout)
        self._quota.generation_closed(newest.number, size)
        self._counters.generations_added += 1

    def _is_dropped_by_policy(self, oldest: Generation, now: int) -> bool:
        settings = self._settings
        if settings.on_limit == "drop_oldest" and self._quota.is_total_full():
            return True
        if not settings.max_age_s:
            return False
        following = self._log.list_generations()[1]  # began after the oldest one's last message
        return following.created_ms + settings.max_age_s * 1000 <= now

    def reclaim(self, serial: int) -> None:
        """Free the space of dropped generations if their deletion is durable with `serial`."""
        if not 0 < self._reclaim_serial <= serial:
            return
        try:
            self._log.reclaim()
        except Recoverable:
            return  # a full disk: the next commit tries again
        self._reclaim_serial = 0

    def _drop(self, generation: Generation) -> None:
        self._log.drop_generation(self._tick.batch, generation.number)
        self._quota.generation_dropped(generation.number)
        self._counters.generations_dropped += 1
        self._reclaim_serial = self._next_serial()

    def _sweep_on(self, generation: Generation, now: int) -> None:
        """Look at the next slice of sessions; drop the generation after the last slice."""
        sweep = self._sweep
        if sweep.search is not None:
            self._search_on(sweep.search, generation.last_offset)
        elif sweep.groups is None:
            self._begin_sweep(generation)
        elif sweep.groups:
            self._sweep_groups(generation, sweep.groups)
        elif self._sweep_sessions(generation):
            sweep.end()
            if self._is_pinned_in_memory(generation):
                return  # a session came online during the sweep, or gave messages to its group
            self._drop(generation)
            self._next_sweep_ms = now  # the next generation may be free too

    def _begin_sweep(self, generation: Generation) -> None:
        """Look in memory first, then at the session that stopped the last sweep."""
        sweep = self._sweep
        sweep.groups = [group for group in self._groups.all() if group.is_stored]
        if self._is_pinned_in_memory(generation):
            sweep.end()
        elif sweep.pin is not None:
            value = self._store.get(SESSIONS, sweep.pin)
            if value is not None and self._pins(generation, sweep.pin, value):
                sweep.end()

    def _sweep_groups(self, generation: Generation, groups: list[Group]) -> None:
        """Look at a slice of the stored groups."""
        sweep = self._sweep
        for _ in range(min(SWEEP_SLICE, len(groups))):
            if self._is_pinned_by_group(generation, groups.pop()):
                sweep.end()
                return
            if sweep.search is not None:
                return

    def _sweep_sessions(self, generation: Generation) -> bool:
        """Look at a slice of the stored sessions; True if it was the last one."""
        sweep = self._sweep
        rows = self._store.scan(SESSIONS, sweep.after, count=SWEEP_SLICE)
        for key, value in rows:
            sweep.after = key + b"\0"
            if self._pins(generation, key, value):
                sweep.pin = key
                sweep.end()
                return False
            if sweep.search is not None:
                return False
        return len(rows) < SWEEP_SLICE

    def _search_on(self, search: Cursor, last: int) -> None:
        """Go on searching for the first message that the session still has to get."""
        sweep = self._sweep
        before = search.position
        messages = search.next(1, SCAN_MAX)
        if messages and messages[0].offset <= last:
            sweep.pin = sweep.searched or sweep.pin
            sweep.end()
        elif messages or search.position >= last or search.position == before:
            sweep.search = None

    def _is_pinned_in_memory(self, generation: Generation) -> bool:
        """Does a connected session need the generation, or a message given back to a group?"""
        last = generation.last_offset
        for connection in self._sessions.live.values():
            session = connection.session
            assert session is not None
            if not session.is_stored:
                continue
            if session.in_flight and oldest_in_flight(session) <= last:
                return True
            if connection.pending and session.position < last:
                return True
            if connection.is_lagging and session.position < last:
                # It reads on as soon as it has room. A layout without an index cannot answer
                # cheaply, so there the session counts as needing the generation.
                if generation.layout not in INDEXED or self._owes(
                    self._backlog.streams(session), session.position, generation
                ):
                    return True
        return any(
            offset <= last
            for group in self._groups.all()
            if group.is_stored
            for offset in (*group.owed, *group.leased)
        )

    def _is_pinned_by_group(self, generation: Generation, group: Group) -> bool:
        """Does a group need the generation? False may also mean that a search has begun."""
        if not group.is_lagging or group.position >= generation.last_offset:
            return False
        entry = group.entry
        if not entry.filter_id:
            return False  # it has ended since the sweep began
        stream = Stream(entry.filter_id, entry.topic_filter, group.since)
        return self._is_owed(generation, b"", [stream], group.position)

    def _pins(self, generation: Generation, key: bytes, value: bytes) -> bool:
        """Does a stored session need it? False may also mean that a search has begun."""
        client_id = key.decode()
        if client_id in self._sessions.live:
            return False  # looked at in memory
        last = generation.last_offset
        try:
            session = self._sessions.decode(client_id, value)
            if oldest_in_flight(session) <= last:
                return True
            if session.position >= last:
                return False
            self._sessions.load_rest(session)
        except CorruptRecord:
            self._counters.internal_errors += 1
            return True  # unreadable: what it still has to get is unknown
        return self._is_owed(generation, key, self._backlog.streams(session), session.position)

    def _is_owed(
        self, generation: Generation, key: bytes, streams: list[Stream], position: int
    ) -> bool:
        if generation.layout in INDEXED:
            return self._owes(streams, position, generation)
        if streams:
            self._sweep.search = self._log.cursor(streams, position)
            self._sweep.searched = key
        return False

    def _owes(self, streams: list[Stream], position: int, generation: Generation) -> bool:
        owed = self._log.first_owed(streams, position, generation=generation.number)
        return owed is not None
