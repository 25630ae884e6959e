"""What time makes due: wills, expiries, old generations, the census; one bounded slice at a time.

Must never do so much at once that clients wait. Read next: `session.lifetime.collection`
(generations), `session.lifetime.wills`, `session.lifetime.disconnect` (a due will, a due expiry).
"""

from collections.abc import Callable
from typing import Final

from session.history.history import History
from session.lifetime.census import Census
from session.lifetime.collection import Collection
from session.lifetime.disconnect import DisconnectHandler
from session.lifetime.wills import Wills
from session.live.core import Core, Database
from session.routing.retained import Retained
from storage.tables.timers import RETAINED, SESSION, WILL

# Changes of one slice of expiry, after which the rest waits: a session may have 10,000 rows.
EXPIRY_CHANGES_MAX: Final = 1024


class Housekeeping:
    """Work that is started by time and not by a packet."""

    def __init__(
        self,
        core: Core,
        database: Database,
        retained: Retained,
        disconnects: DisconnectHandler,
        wills: Wills,
        collection: Collection,
        census: Census,
        settle: Callable[[], bool],
        history: History,
    ) -> None:
        self._tick: Final = core.tick
        self._settings: Final = core.settings
        self._counters: Final = core.counters
        self._due: Final = database.due
        self._retained: Final = retained
        self._disconnects: Final = disconnects
        self._wills: Final = wills
        self._collection: Final = collection
        self._census: Final = census
        self._settle: Final = settle
        self._session_events: Final = history.sessions

    def open(self) -> None:
        """Learn what generations there are, and begin to look at all sessions."""
        self._collection.open()
        self._census.begin()

    def stop(self) -> None:
        """Begin nothing that takes long any more: the broker ends."""
        self._census.stop()

    def next_deadline(self) -> int:
        """Return when `run` has something to do, broker ms."""
        deadline = self._collection.next_deadline()
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
        self._collection.run(now)
        self._census.run(now)

    def _work_off(self, now: int) -> None:
        """Do a slice of the wills and expiries that are due."""
        entries = self._due.come(now, self._settings.expiry_slice)
        self._session_events.collected(len(entries))
        batch = self._tick.batch
        for entry in entries:
            if len(batch) > EXPIRY_CHANGES_MAX:
                self._due.come_again(now)  # the rest right after this batch
                return
            if self._due.is_removed(entry.key):
                continue
            self._due.remove(batch, entry.at_ms, entry.kind, entry.name)
            if entry.kind == WILL:
                self._wills.come_due(entry.name, entry.value, entry.at_ms)
            elif entry.kind == SESSION:
                self._disconnects.expire(entry.name.decode(), entry.at_ms)
            elif entry.kind == RETAINED and self._retained.expire(entry.name, now):
                self._counters.expired_messages += 1
