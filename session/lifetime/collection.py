"""What time does: due wills and expiries, generations that come and go, the heartbeat.

All of it in bounded slices between other work. A generation is dropped when nobody is owed anything
in it: a sweep looks at one slice of sessions after another and stops at the first that pins it,
which is remembered and looked at first the next time. Its column families go when the batch with
its deletion is durable. Read next: `session.lifetime.lifecycle`, `storage.log.message_log`.
"""

from collections.abc import Callable
from typing import Final

from session.counters import Counters
from session.delivery.backlog import SCAN_MAX
from session.delivery.delivery import Delivery
from session.history.session_events import Chronicle
from session.lifetime.census import Census
from session.lifetime.lifecycle import Lifecycle
from session.lifetime.repository import Sessions
from session.live.subscribers import Group
from session.live.tick import Tick
from session.publish.storage_quota import Quota
from session.routing.retained import Retained
from session.settings import Settings
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, SOURCE_MASK
from session.state.session import Session
from storage.api import Store
from storage.errors import CorruptRecord, Recoverable
from storage.log.generations import INDEXED
from storage.log.message_log import Cursor, Generation, MessageLog, Stream, report_generations
from storage.tables.tables import SESSIONS
from storage.tables.timers import RETAINED, SESSION, WILL, Due

SWEEP_PERIOD_MS: Final = 2000
# Changes of one slice of expiry, after which the rest waits: a session may have 10,000 rows.
EXPIRY_CHANGES_MAX: Final = 1024
SWEEP_SLICE: Final = 64  # sessions a step of the sweep loads; about 2 ms


class _Sweep:
    """The search for a session that still needs a generation."""

    __slots__ = ("after", "generation", "groups", "search", "searched")

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.after = b""
        self.groups: list[Group] | None = None  # those to be looked at; None = it begins
        # What the session under this key (b"" = a group) is owed, where the layout has no index to
        # say so at once.
        self.search: Cursor | None = None
        self.searched = b""

    def begin_again(self) -> None:
        """Forget what was looked at."""
        self.after = b""
        self.groups = None
        self.search = None


class Housekeeping:
    """Work that is started by time and not by a packet."""

    def __init__(
        self,
        tick: Tick,
        store: Store,
        log: MessageLog,
        due: Due,
        sessions: Sessions,
        delivery: Delivery,
        retained: Retained,
        lifecycle: Lifecycle,
        quota: Quota,
        settings: Settings,
        counters: Counters,
        settle: Callable[[], bool],
        chronicle: Chronicle,
        census: Census,
    ) -> None:
        self._tick: Final = tick
        self._store: Final = store
        self._log: Final = log
        self._due: Final = due
        self._sessions: Final = sessions
        self._groups: Final = delivery.groups
        self._backlog: Final = delivery.backlog
        self._retained: Final = retained
        self._lifecycle: Final = lifecycle
        self._quota: Final = quota
        self._settings: Final = settings
        self._counters: Final = counters
        self._settle: Final = settle
        self._chronicle: Final = chronicle
        self._census: Final = census
        self._sweep: _Sweep | None = None
        self._next_sweep_ms = 1
        self._pin: bytes | None = None  # key of the session that was found pinning last
        # Serial of the batch with which dropped generations are really gone; 0 = none waits.
        self.reclaim_serial = 0

    def open(self) -> None:
        """Learn the sizes of the generations that are there, and begin to look at all sessions."""
        reports = report_generations(self._store)
        for report in reports[:-1]:
            self._quota.closed_bytes[report.generation.number] = report.size_bytes
        self._census.begin()

    def stop(self) -> None:
        """Begin nothing that takes long any more: the broker ends."""
        self._census.stop()

    def next_deadline(self) -> int:
        """Return when `run` has something to do, broker ms."""
        if self._sweep is not None:
            return 1  # at once, between other work
        deadline = self._next_sweep_ms
        if self._due.next_ms is not None:
            deadline = min(deadline, self._due.next_ms)
        if self._census.due_ms is not None:
            deadline = min(deadline, self._census.due_ms)
        return deadline

    def run(self, now: int) -> None:
        """Do one slice of what has come due. The store sees a whole event before and after it."""
        if self._due.next_ms is not None and self._due.next_ms <= now:
            if not self._settle():
                return
            self._work_off(now)
        if now >= self._next_sweep_ms:
            self._next_sweep_ms = now + SWEEP_PERIOD_MS
            if self._settle():
                self._keep_generations(now)
        if self._sweep is not None and self._settle():
            self._sweep_on(now)
        self._census.run(now)

    def _work_off(self, now: int) -> None:
        entries = self._due.come(now, self._settings.expiry_slice)
        self._chronicle.collected(len(entries))
        batch = self._tick.batch
        for entry in entries:
            if len(batch) > EXPIRY_CHANGES_MAX:
                self._due.next_ms = now  # the rest right after this batch
                return
            if self._due.is_removed(entry.key):
                continue
            self._due.remove(batch, entry.at_ms, entry.kind, entry.name)
            if entry.kind == WILL:
                self._lifecycle.will_is_due(entry.name, entry.value, entry.at_ms)
            elif entry.kind == SESSION:
                self._lifecycle.expire(entry.name.decode(), entry.at_ms)
            elif entry.kind == RETAINED and self._retained.expire(entry.name, now):
                self._counters.expired_messages += 1

    # Generations

    def _keep_generations(self, now: int) -> None:
        """Begin a generation when it is time, and see whether old ones can go."""
        if self._log.rotation_due(now):
            try:
                self.rotate(now)
            except Recoverable:
                return  # a full disk: nothing has changed, and the next sweep tries again
        if self._sweep is not None:
            return
        oldest = self._log.list_generations()[0]
        if not oldest.is_closed:
            return
        if self._is_dropped_by_policy(oldest, now):
            self._counters.drop("max_age", max(0, oldest.last_offset - oldest.first_offset + 1))
            self._drop(oldest)
        else:
            self._sweep = _Sweep(oldest)

    def rotate(self, now: int, layout: str | None = None) -> None:
        """Close the generation that takes messages and begin the next one."""
        newest = self._log.list_generations()[-1]
        size = self._log.newest_size_bytes
        self._log.add_generation(self._tick.batch, now, layout)
        self._quota.closed_bytes[newest.number] = size
        self._counters.generations_added += 1

    def _is_dropped_by_policy(self, oldest: Generation, now: int) -> bool:
        settings = self._settings
        if settings.on_limit == "drop_oldest" and self._quota.is_total_full():
            return True
        if not settings.max_age_s:
            return False
        following = self._log.list_generations()[1]  # its first message is younger than our last
        return following.created_ms + settings.max_age_s * 1000 <= now

    def reclaim(self, serial: int) -> None:
        """Give back the space of dropped generations once batch `serial` made that durable."""
        if not 0 < self.reclaim_serial <= serial:
            return
        try:
            self._log.reclaim()
        except Recoverable:
            return  # a full disk: tried again with the next commit
        self.reclaim_serial = 0

    def _drop(self, generation: Generation) -> None:
        self._log.drop_generation(self._tick.batch, generation.number)
        self._quota.closed_bytes.pop(generation.number, None)
        self._counters.generations_dropped += 1
        self.reclaim_serial = -1  # set when the batch with the deletion gets its serial

    def _sweep_on(self, now: int) -> None:
        """Look at the next slice of sessions; drop the generation when all were looked at."""
        sweep = self._sweep
        assert sweep is not None
        if sweep.search is not None:
            self._search_on(sweep)
        elif sweep.groups is None:
            self._begin_sweep(sweep)
        elif sweep.groups:
            self._sweep_groups(sweep, sweep.groups)
        elif self._sweep_sessions(sweep):
            self._sweep = None
            if self._is_pinned_in_memory(sweep.generation):
                return  # by a session that was offline at first, or by what one left behind
            self._drop(sweep.generation)
            self._next_sweep_ms = now  # the next one may be free, too

    def _begin_sweep(self, sweep: _Sweep) -> None:
        """Look first where something was found the last time, and in memory."""
        sweep.groups = [group for group in self._groups.all() if group.is_stored]
        if self._is_pinned_in_memory(sweep.generation):
            self._sweep = None
        elif self._pin is not None:
            value = self._store.get(SESSIONS, self._pin)
            if value is not None and self._pins(sweep, self._pin, value):
                self._sweep = None

    def _sweep_groups(self, sweep: _Sweep, groups: list[Group]) -> None:
        """Look at a slice of the stored groups."""
        for _ in range(min(SWEEP_SLICE, len(groups))):
            if self._is_pinned_by_group(sweep, groups.pop()):
                self._sweep = None
            if self._sweep is None or sweep.search is not None:
                return

    def _sweep_sessions(self, sweep: _Sweep) -> bool:
        """Look at a slice of the stored sessions; True if it was the last one."""
        rows = self._store.scan(SESSIONS, sweep.after, count=SWEEP_SLICE)
        for key, value in rows:
            sweep.after = key + b"\0"
            if self._pins(sweep, key, value):
                self._pin = key
                self._sweep = None
                return False
            if sweep.search is not None:
                return False
        return len(rows) < SWEEP_SLICE

    def _search_on(self, sweep: _Sweep) -> None:
        """Go on looking for the first message that somebody is owed."""
        search = sweep.search
        assert search is not None
        last = sweep.generation.last_offset
        before = search.position
        messages = search.next(1, SCAN_MAX)
        if messages and messages[0].offset <= last:
            self._pin = sweep.searched or self._pin
            self._sweep = None
        elif messages or search.position >= last or search.position == before:
            sweep.search = None

    def parted(self, session: Session) -> None:
        """A session goes offline: a sweep that has passed it must look at what it is owed."""
        if session.is_stored:
            self._quota.parted(session)
        sweep = self._sweep
        if sweep is None or not session.is_stored:
            return
        last = sweep.generation.last_offset
        if session.position < last or _oldest_in_flight(session) <= last:
            self._pin = session.client_id.encode()
            sweep.begin_again()

    def _is_pinned_in_memory(self, generation: Generation) -> bool:
        """Does a connected session need the generation, or a group what it was given back?"""
        last = generation.last_offset
        for connection in self._sessions.live.values():
            session = connection.session
            assert session is not None
            if not session.is_stored:
                continue
            if session.in_flight and _oldest_in_flight(session) <= last:
                return True
            if connection.pending and session.position < last:
                return True
            if connection.is_lagging and session.position < last:
                # It reads on as soon as it has room. Where there is no index it is not searched for
                # meanwhile.
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

    def _is_pinned_by_group(self, sweep: _Sweep, group: Group) -> bool:
        """Is a group owed something in its stream? Else a search may have begun."""
        if not group.is_lagging or group.position >= sweep.generation.last_offset:
            return False
        entry = group.entry
        if not entry.filter_id:
            return False  # it has ended since the sweep began
        stream = Stream(entry.filter_id, entry.topic_filter, group.since)
        return self._is_owed(sweep, b"", [stream], group.position)

    def _pins(self, sweep: _Sweep, key: bytes, value: bytes) -> bool:
        """Does a session in the store need the generation? Else a search may have begun."""
        client_id = key.decode()
        if client_id in self._sessions.live:
            return False  # looked at in memory
        last = sweep.generation.last_offset
        try:
            session = self._sessions.decode(client_id, value)
            if _oldest_in_flight(session) <= last:
                return True
            if session.position >= last:
                return False
            self._sessions.load_rest(session)
        except CorruptRecord:
            self._counters.internal_errors += 1
            return True  # nobody knows what it is owed
        return self._is_owed(sweep, key, self._backlog.streams(session), session.position)

    def _is_owed(self, sweep: _Sweep, key: bytes, streams: list[Stream], position: int) -> bool:
        if sweep.generation.layout in INDEXED:
            return self._owes(streams, position, sweep.generation)
        if streams:
            sweep.search = self._log.cursor(streams, position)
            sweep.searched = key
        return False

    def _owes(self, streams: list[Stream], position: int, generation: Generation) -> bool:
        owed = self._log.first_owed(streams, position, generation=generation.number)
        return owed is not None


def _oldest_in_flight(session: Session) -> int:
    """Return the lowest log offset that is in flight, or more than any."""
    return min(
        (
            entry >> REFERENCE_SHIFT
            for entry in session.in_flight.values()
            if entry & SOURCE_MASK != FROM_MAILBOX and entry >> REFERENCE_SHIFT
        ),
        default=1 << 63,
    )
