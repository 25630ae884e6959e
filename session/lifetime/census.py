"""What sessions are there after a start of the broker, told to the history one by one.

That is the other half of the proof that a crash cost no session: what the history knew before it
must be found after it. A slice of the store at a time, while the broker works already: 64 sessions
take 1 ms of CPU time, 2 at the most (RocksDB, 2026-11-21), a million of them three minutes. Who has
come since the start is passed over, his own rows say it. Nothing is done where the history is off.
Read next: `session.history.session_events`, `storage.history.replay` (which compares).
"""

from collections.abc import Callable
from typing import Final

from session.history.history import History
from session.lifetime.repository import INCARNATION_SHIFT, Sessions
from session.live.core import Core, Database
from storage.errors import CorruptRecord
from storage.tables.tables import SESSIONS

CENSUS_SLICE: Final = 64
CENSUS_PERIOD_MS: Final = 10  # so that it takes a tenth of the loop, a fifth at the most


class Census:
    """Walks over the stored sessions once."""

    def __init__(
        self,
        core: Core,
        database: Database,
        sessions: Sessions,
        settle: Callable[[], bool],
        history: History,
    ) -> None:
        self._tick: Final = core.tick
        self._store: Final = database.store
        self._totals: Final = database.totals
        self._boot: Final = database.boot
        self._sessions: Final = sessions
        self._settle: Final = settle
        self._session_events: Final = history.sessions
        self._after = b""
        self._found = 0  # sessions that the start found
        self._restored = 0
        self._damaged = 0
        self.due_ms: int | None = None  # when the next slice is to be looked at, None = never

    def begin(self) -> None:
        """Count the sessions that the start has found, and look at them from now on."""
        if self._session_events.is_on:
            self._found = self._totals.sessions
            self.due_ms = self._tick.now

    def stop(self) -> None:
        """Leave it at that: the broker ends."""
        self.due_ms = None

    def run(self, now: int) -> None:
        """Look at a slice, if it is time and the store has all of the open batch."""
        if self.due_ms is None or self.due_ms > now:
            return
        self.due_ms = now + CENSUS_PERIOD_MS
        if not self._settle():
            return
        rows = self._store.scan(SESSIONS, self._after, count=CENSUS_SLICE)
        for key, value in rows:
            self._after = key + b"\0"
            self._look_at(key.decode(), value)
        if len(rows) < CENSUS_SLICE:
            self.due_ms = None
            self._session_events.recovered(self._found, self._restored, self._damaged)

    def _look_at(self, client_id: str, value: bytes) -> None:
        if client_id in self._sessions.live:
            return
        try:
            session = self._sessions.decode(client_id, value)
            if session.incarnation >> INCARNATION_SHIFT == self._boot:
                return  # it began after the start
            self._sessions.load_rest(session)
        except CorruptRecord:
            self._damaged += 1  # its client will be refused, and the log say so
            return
        if not session.incarnation:
            # A record of version 1: from here on it has a name. Whoever loads it in this tick has
            # to see that.
            self._sessions.write(session)
            self._tick.parted.add(client_id)
        self._restored += 1
        self._session_events.restored(session)
