"""Work that comes due with time: wills, expiries, ends of bans, old generations, the census.

It is done in bounded slices, so that clients do not wait. Read next: `session.lifetime.collection`
(generations), `session.lifetime.trimming` (backlogs over their limits), `session.lifetime.wills`,
`session.lifetime.disconnect` (a due will, a due expiry).
"""

from typing import Final

from session.feed.backfill import Backfill
from session.feed.outlet import FeedOutlet
from session.lifetime.census import Census
from session.lifetime.collection import Collection
from session.lifetime.context import ClientContext
from session.lifetime.disconnect import DisconnectHandler
from session.lifetime.trimming import Trimming
from session.lifetime.wills import Wills
from session.routing.retained import Retained
from session.scheduling.bans import Bans
from storage.tables.timers import RETAINED, SESSION, WILL

# Changes in the batch after which the rest of a slice waits: a session may have 10,000 rows. It
# also waits when the work of a tick is done: a will may match very much.
EXPIRY_CHANGES_MAX: Final = 1024
NEVER_MS: Final = 1 << 62


class Housekeeping:
    """Does the work that time starts and no packet."""

    def __init__(
        self,
        context: ClientContext,
        retained: Retained,
        disconnects: DisconnectHandler,
        wills: Wills,
        collection: Collection,
        trimming: Trimming,
        census: Census,
        outlet: FeedOutlet,
        backfill: Backfill,
        bans: Bans,
    ) -> None:
        self._tick: Final = context.tick
        self._settings: Final = context.settings
        self._counters: Final = context.counters
        self._damage: Final = context.damage
        self._due: Final = context.due
        self._retained: Final = retained
        self._disconnects: Final = disconnects
        self._wills: Final = wills
        self._collection: Final = collection
        self.trimming: Final = trimming
        self._census: Final = census
        self._outlet: Final = outlet
        self._backfill: Final = backfill
        self._bans: Final = bans
        self._settle: Final = context.settle
        self._session_events: Final = context.history.sessions
        self._is_stopped = False

    def open(self) -> None:
        """Read which generations exist, and begin the census of the sessions."""
        self._collection.open()
        self._census.begin()

    def stop(self) -> None:
        """Stop: the broker ends, and the next start does what is due."""
        self._is_stopped = True

    def next_deadline(self) -> int:
        """Return when `run` has something to do, broker ms."""
        if self._is_stopped:
            return NEVER_MS
        deadline = min(self._collection.next_deadline(), self.trimming.next_deadline())
        deadline = min(deadline, self._bans.next_deadline())
        if self._outlet.backends:
            deadline = min(deadline, self._outlet.tidy_ms)
            if self._backfill.due_ms is not None:
                deadline = min(deadline, self._backfill.due_ms)
        if self._due.next_ms is not None:
            deadline = min(deadline, self._due.next_ms)
        if self._census.due_ms is not None:
            deadline = min(deadline, self._census.due_ms)
        return deadline

    def run(self, now: int) -> None:
        """Do one slice of what is due. Call it between events, never within one."""
        if self._is_stopped:
            return
        if self._due.next_ms is not None and self._due.next_ms <= now:
            if not self._settle():
                return
            self._handle_due(now)
        self.trimming.run(now)
        self._collection.run(now)
        self._census.run(now)
        self._bans.run(now)
        if self._outlet.backends:
            self._outlet.tidy(now)
            self._backfill.run(now)

    def _handle_due(self, now: int) -> None:
        """Handle a slice of the wills and expiries that are due."""
        entries = self._due.come(now, self._settings.expiry_slice)
        if self._due.damages:
            self._damage.note_all("timer", self._due.damages)
        self._session_events.collected(len(entries))
        tick = self._tick
        batch = tick.batch
        work_max = tick.work + self._settings.tick_work_max
        for entry in entries:
            if len(batch) > EXPIRY_CHANGES_MAX or tick.work > work_max:
                self._due.come_again(now)  # the rest follows right after this batch
                return
            if self._due.is_removed(entry.key):
                continue
            self._due.remove(batch, entry.at_ms, entry.kind, entry.name)
            if entry.kind == WILL:
                self._wills.fire_due(entry.name, entry.value, entry.at_ms)
            elif entry.kind == SESSION:
                self._disconnects.expire(entry.name.decode(), entry.at_ms)
            elif entry.kind == RETAINED and self._retained.expire(entry.name, now):
                self._counters.expired_messages += 1
