"""Begins generations of the message log, and drops those in which no session needs a message.

A sweep reads one slice of sessions after another, for several generations at once. It ends when for
each of them somebody was found who needs it; the next sweep looks at those sessions first. What
nobody needs is dropped. The generation that takes messages is closed early if its older half is
owed to nobody: then it can be dropped soon. The column families of a dropped generation are deleted
when the batch with its deletion is durable. Must never drop a message that a session still has to
get. Read next: `session.lifetime.sweep`, `storage.log.message_log`.
"""

from collections.abc import Callable
from typing import Final

from session.delivery.backlog import SCAN_MAX
from session.delivery.delivery import Delivery
from session.feed.outlet import FeedOutlet
from session.lifetime.context import ClientContext
from session.lifetime.repository import Sessions
from session.lifetime.sweep import Candidate, Sweep, oldest_in_flight
from session.live.connection import Connection
from session.live.core import Database
from session.live.subscribers import Group
from session.publish.storage_quota import Quota
from session.publish.store_health import StoreHealth
from session.state.in_flight import REFERENCE_SHIFT
from storage.errors import DamagedRows, Recoverable
from storage.log.gaps import NO_GAPS, Gaps
from storage.log.message_log import Cursor, Generation, Stream, report_generations
from storage.tables.tables import SESSIONS, scan_readable

SWEEP_PERIOD_MS: Final = 2000
SWEEP_SLICE: Final = 64  # sessions that one step of the sweep loads; about 2 ms
LOOKUPS: Final = 2  # the same step, in sessions and look-ups in the index of one generation
FILTERS_SHIFT: Final = 4  # loading 16 subscriptions counts as one look-up
STREAMS_SHIFT: Final = 2  # and so do 4 streams that are looked up together
IN_FLIGHT_SHIFT: Final = 6  # and 64 messages in flight
# Look-ups for one session in one step, about 10 ms; if it takes more, it is searched for in slices.
WORK_AT_ONCE: Final = 128
# Generations that one sweep searches for. With more of them it takes several.
CANDIDATES_MAX: Final = 64
# The open generation may be closed early from this share of its size and of its age on, so that
# ordinary traffic does not make many small ones: 16 MiB and a minute. While the disk is low, from
# 1 MiB on at any age: that costs two column families, and may be all the space there is.
EARLY_SIZE_SHIFT: Final = 4
EARLY_AGE_DIVISOR: Final = 60
LOW_SIZE_SHIFT: Final = 8
# The open generation takes at most this share of the room above the low-water mark, if that is
# little, and at least 1 MiB.
ROOM_SHIFT: Final = 2


class Collection:
    """Begins and drops the generations of the log."""

    def __init__(
        self,
        context: ClientContext,
        database: Database,
        delivery: Delivery,
        sessions: Sessions,
        outlet: FeedOutlet,
        quota: Quota,
        health: StoreHealth,
        sweep: Sweep,
        next_serial: Callable[[], int],
    ) -> None:
        self._tick: Final = context.tick
        self._settings: Final = context.settings
        self._counters: Final = context.counters
        self._damage: Final = context.damage
        self._store: Final = database.store
        self._log: Final = database.log
        self._backlog: Final = delivery.backlog
        self._groups: Final = delivery.groups
        self._sessions: Final = sessions
        self._outlet: Final = outlet
        self._quota: Final = quota
        self._health: Final = health
        self._sweep: Final = sweep
        self._settle: Final = context.settle
        self._next_serial: Final = next_serial  # of the open batch
        self._next_sweep_ms = 1
        self._swept = 0  # number of the last generation that a sweep searched for
        # Serial of the batch that deletes the dropped generations; 0 = none waits for its commit.
        self._reclaim_serial = 0
        self._is_reclaiming = False  # are there families that may be deleted now?
        self._is_reclaim_refused = False  # the same, but a full disk did not let us
        self.closed_early = 0  # generations so far

    def open(self) -> None:
        """Read the sizes of the stored generations."""
        reports = report_generations(self._store)
        for report in reports[:-1]:
            self._quota.generation_closed(report.generation.number, report.size_bytes)

    def next_deadline(self) -> int:
        """Return when `run` has something to do, broker ms; 1 = at once."""
        if self._sweep.candidates or self._is_reclaiming:
            return 1
        return self._next_sweep_ms

    def run(self, now: int) -> None:
        """Do one slice of what is due. Call it between events, never within one."""
        if self._is_reclaiming:
            self._reclaim_next()
        if now >= self._next_sweep_ms:
            self._next_sweep_ms = now + SWEEP_PERIOD_MS
            self._is_reclaiming = self._is_reclaiming or self._is_reclaim_refused
            if self._settle():
                self._check_generations(now)
        if self._sweep.candidates and self._settle():
            self._sweep_on(now)

    def _slice(self) -> int:
        """Return how many sessions one step looks at."""
        return min(SWEEP_SLICE, self._settings.expiry_slice)

    def _work_max(self) -> int:
        return LOOKUPS * self._slice()

    def _check_generations(self, now: int) -> None:
        """Begin a generation if it is time, and drop the oldest one or start a sweep."""
        if self._log.rotation_due(now) or self._fills_the_room():
            try:
                self.rotate(now)
            except Recoverable:
                return  # a full disk: nothing has changed, the next run tries again
        generations = self._log.list_generations()
        oldest = generations[0]
        if oldest.is_closed and self._is_dropped_by_policy(oldest, now):
            self._counters.drop("max_age", max(0, oldest.last_offset - oldest.first_offset + 1))
            self._outlet.generation_lost(oldest, "dropped by a limit")
            self._log.cuts += 1
            self._drop(oldest.number)
            return
        if self._sweep.candidates:
            return
        candidates = self._closed_candidates(generations[:-1])
        newest = generations[-1]
        if self._may_close_early(newest, now):
            half = (newest.first_offset + newest.last_offset) // 2
            candidates.append(Candidate(newest, half))
        if candidates:
            self._sweep.begin(candidates)

    def _closed_candidates(self, closed: list[Generation]) -> list[Candidate]:
        """Return the next closed generations to search for, all of them if there are few."""
        if len(closed) > CANDIDATES_MAX:
            following = [each for each in closed if each.number > self._swept]
            closed = (following or closed)[:CANDIDATES_MAX]
            self._swept = closed[-1].number
        return [Candidate(each, each.last_offset) for each in closed]

    def _may_close_early(self, newest: Generation, now: int) -> bool:
        """Is the open generation large and old enough to be closed if half of it is not needed?"""
        if newest.last_offset < newest.first_offset:
            return False
        shift = LOW_SIZE_SHIFT if self._health.refuses_new else EARLY_SIZE_SHIFT
        if self._log.newest_size_bytes < self._log.generation_size_bytes >> shift:
            return False
        age_ms = now - newest.created_ms
        return (
            self._health.refuses_new or age_ms >= self._log.generation_age_ms // EARLY_AGE_DIVISOR
        )

    def note_room(self) -> None:
        """Look at the generations soon if the open one takes much of the room on the disk."""
        if self._fills_the_room():
            self._next_sweep_ms = 1

    def _fills_the_room(self) -> bool:
        """Does the open generation take so much of the disk that it must not grow further?

        A few messages at its end keep all of it: on a disk that is nearly full they would keep what
        everybody else needs.
        """
        if self._health.refuses_new:
            return False  # nothing is added to it
        least = self._log.generation_size_bytes >> LOW_SIZE_SHIFT
        size = self._log.newest_size_bytes
        return size > max(least, self._health.room_bytes >> ROOM_SHIFT)

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
        if 0 < self._reclaim_serial <= serial:
            self._reclaim_serial = 0
            self._is_reclaiming = True
        if self._is_reclaiming or self._is_reclaim_refused:
            self._reclaim_next()

    def _reclaim_next(self) -> None:
        """Delete the families of one generation: it takes some ms, so the others wait."""
        self._is_reclaim_refused = False
        if self._reclaim_serial:
            self._is_reclaiming = False  # more were dropped, and the commit of that is to come
            return
        try:
            self._is_reclaiming = self._log.reclaim(1) > 0
        except Recoverable:
            self._is_reclaiming = False
            self._is_reclaim_refused = True  # the next commit or sweep tries again

    def _drop(self, number: int) -> None:
        self._log.drop_generation(self._tick.batch, number)
        self._quota.generation_dropped(number)
        self._sweep.generation_dropped(number)
        self._counters.generations_dropped += 1
        self._reclaim_serial = self._next_serial()

    def _sweep_on(self, now: int) -> None:
        """Look at the next slice of sessions; drop what nobody needs after the last slice."""
        sweep = self._sweep
        if sweep.search is not None:
            self._search_on(sweep.search)
        elif sweep.groups is None:
            sweep.groups = [group for group in self._groups.all() if group.is_stored]
            sweep.backends = self._outlet.names()
            self._list_connections()
        elif sweep.connections:
            self._sweep_connections()
        elif sweep.waiting:
            self._sweep_waiting()
        elif sweep.groups:
            self._sweep_groups(sweep.groups)
        elif sweep.backends:
            self._sweep_backend(sweep.backends.pop())
        elif not sweep.is_through:
            self._sweep_sessions()
        else:
            self._list_connections()  # those that came since
            self._sweep_connections()
            if not sweep.connections and sweep.search is None:
                self._pin_given_back()
                self._collect(now)

    def _collect(self, now: int) -> None:
        """Drop the candidates that nobody needs, and close the open generation if it is one."""
        candidates = self._sweep.candidates
        self._sweep.end()
        for candidate in candidates:
            if not candidate.is_open:
                self._drop(candidate.number)
            elif candidate.number == self._log.list_generations()[-1].number:
                try:
                    self.rotate(now)
                except Recoverable:
                    return  # a full disk: nothing has changed, the next sweep tries again
                self.closed_early += 1
        if candidates:
            self._next_sweep_ms = now  # what follows may be free too

    def _sweep_waiting(self) -> None:
        """Look at a slice of the sessions that needed something last, or went offline since."""
        sweep = self._sweep
        work = 0
        while sweep.waiting and sweep.search is None and work < self._work_max():
            key = next(iter(sweep.waiting))
            del sweep.waiting[key]
            try:
                value = self._store.get(SESSIONS, key)
            except DamagedRows as problem:
                self._pin_all(problem, key)
                return
            if value is not None:
                work += self._look_at(key, value)

    def _sweep_groups(self, groups: list[Group]) -> None:
        """Look at a slice of the stored groups."""
        sweep = self._sweep
        work = 0
        while groups and sweep.candidates and sweep.search is None and work < self._work_max():
            group = groups.pop()
            work += 1
            entry = group.entry
            # A group without a filter id has ended since the sweep began.
            if group.is_lagging and entry.filter_id and group.position < sweep.last():
                stream = Stream(entry.filter_id, entry.topic_filter, group.since)
                work += self._pin_by_streams(b"", [stream], group.position)

    def _sweep_backend(self, name: str) -> None:
        """Look at what the store of a backend may read, also what it may have to read again."""
        streams, position = self._outlet.owed(name)
        if position < self._sweep.last():
            self._pin_by_streams(b"", streams, position)

    def _sweep_sessions(self) -> None:
        """Look at a slice of the stored sessions."""
        sweep = self._sweep
        count = self._slice()
        damages: list[DamagedRows] = []
        rows = scan_readable(self._store, SESSIONS, sweep.after, None, damages, count=count)
        if damages:
            self._damage.note_all("session", damages)
            self._pin_all(None, b"")
            return
        work = 0
        for key, value in rows:
            sweep.after = key + b"\0"
            work += self._look_at(key, value)
            if not sweep.candidates or sweep.search is not None or work >= self._work_max():
                return
        sweep.is_through = len(rows) < count

    def _search_on(self, search: Cursor) -> None:
        """Go on searching for messages that the session still has to get."""
        sweep = self._sweep
        messages = search.next(1, SCAN_MAX)
        after = search.position
        if search.lost:
            for offset in self._damage.passed_over(search):
                for candidate in list(sweep.candidates):
                    if candidate.first <= offset <= candidate.last:
                        sweep.pin(candidate, sweep.searched)  # it may still be rescued
        if messages:
            # Only the first one in each candidate matters: go on behind it.
            for candidate in sweep.candidates:
                if candidate.last >= after:
                    if candidate.first <= after:
                        after = candidate.last
                        sweep.pin(candidate, sweep.searched)
                    else:
                        after = candidate.first - 1
                    break
        if search.is_at_end:
            # The messages behind the end, if any, have no rows yet: they count as owed.
            for candidate in list(sweep.candidates):
                if candidate.last > after:
                    sweep.pin(candidate, sweep.searched)
            sweep.search = None
        elif after >= sweep.last():
            sweep.search = None
        elif after != search.position:
            sweep.search = self._log.cursor(sweep.streams, after, 0, sweep.gaps)

    def _list_connections(self) -> None:
        """List the connected sessions that were not looked at."""
        sweep = self._sweep
        sweep.connections = [
            connection
            for connection in self._sessions.live.values()
            if connection not in sweep.checked
        ]

    def _sweep_connections(self) -> None:
        """Look at a slice of the connected sessions."""
        sweep = self._sweep
        work = 0
        while (
            sweep.connections
            and sweep.candidates
            and sweep.search is None
            and work < self._work_max()
        ):
            connection = sweep.connections.pop()
            sweep.checked.add(connection)
            work += self._check_connection(connection)

    def _check_connection(self, connection: Connection) -> int:
        """Find what a connected session needs, or begin a search for it; return the work done."""
        sweep = self._sweep
        session = connection.session
        if session is None or self._sessions.live.get(session.client_id) is not connection:
            return 1  # it has gone: it is looked at among the stored ones
        if not session.is_stored:
            return 1
        last = sweep.last()
        work = 1 + (len(session.in_flight) >> IN_FLIGHT_SHIFT)
        if session.in_flight and oldest_in_flight(session) <= last:
            sweep.pin_in_flight(session, b"")
        if session.position >= last:
            return work
        if connection.pending:
            for candidate in list(sweep.candidates):
                if candidate.last > session.position:
                    sweep.pin(candidate, b"")
        elif connection.is_lagging or connection.ahead:
            streams = self._backlog.streams(session)  # it reads on as soon as it has room
            work += len(streams) >> FILTERS_SHIFT
            work += self._pin_by_streams(b"", streams, session.position, session.gaps)
        return work

    def _pin_given_back(self) -> None:
        """Find messages that were given back to groups, also those given to others since."""
        sweep = self._sweep
        for group in self._groups.all():
            if group.is_stored:
                for offset in (*group.owed, *group.leased):
                    sweep.pin_offset(offset)
        for connection in self._sessions.live.values():
            session = connection.session
            if session is not None and session.leases and session.is_stored:
                for packet_id in session.leases:
                    sweep.pin_offset(session.in_flight[packet_id] >> REFERENCE_SHIFT)

    def _look_at(self, key: bytes, value: bytes) -> int:
        """Find what a stored session needs, or begin a search for it; return the work done."""
        sweep = self._sweep
        client_id = key.decode()
        last = sweep.last()
        if client_id in self._sessions.live:
            return 1  # looked at in memory
        try:
            session = self._sessions.decode(client_id, value)
            if oldest_in_flight(session) <= last:
                sweep.pin_in_flight(session, key)
            if session.position >= sweep.last():
                return 1
            self._sessions.load_rest(session)
        except DamagedRows as problem:
            self._pin_all(problem, key)
            return 1
        work = 1 + (len(session.subscriptions) >> FILTERS_SHIFT)
        streams = self._backlog.streams(session)
        return work + self._pin_by_streams(key, streams, session.position, session.gaps)

    def _pin_all(self, problem: DamagedRows | None, key: bytes) -> None:
        """Keep all candidates: what an unreadable session still has to get is not known."""
        if problem is not None:
            self._damage.note("session", problem, key.decode())
        for candidate in list(self._sweep.candidates):
            self._sweep.pin(candidate, key)

    def _pin_by_streams(
        self, key: bytes, streams: list[Stream], position: int, gaps: Gaps = NO_GAPS
    ) -> int:
        """Find what the reader of some streams needs, or begin a search; return the work done."""
        sweep = self._sweep
        if not streams:
            return 0
        is_indexed = all(candidate.is_indexed for candidate in sweep.candidates)
        each = 1 + (len(streams) >> STREAMS_SHIFT)
        if not is_indexed or each * len(sweep.candidates) > WORK_AT_ONCE:
            sweep.search = self._log.cursor(streams, position, 0, gaps)
            sweep.streams = streams
            sweep.gaps = gaps
            sweep.searched = key
            return 0
        work = 0
        for candidate in list(sweep.candidates):
            if candidate.last > position:
                work += each
                if self._owes(streams, position, gaps, candidate):
                    sweep.pin(candidate, key)
        return work

    def _owes(self, streams: list[Stream], position: int, gaps: Gaps, candidate: Candidate) -> bool:
        try:
            owed = self._log.first_owed(streams, position, generation=candidate.number, gaps=gaps)
        except DamagedRows as problem:
            self._damage.note("message", problem)
            return True  # for all that is known
        return owed is not None and owed <= candidate.last
