"""Lists in the history every session that the store holds after a start of the broker.

The audit compares this list with what the history knew before a crash: no session may be missing.
The census reads a slice of the store at a time while the broker serves clients: 64 sessions take
1 ms of CPU time, 2 at the most (RocksDB, 2026-11-21), a million of them three minutes. It skips
clients that are connected and sessions that began after the start: the history has rows of these
already. It does nothing where the history is off. Read next: `session.history.session_events`,
`storage.history.replay` (which compares).
"""

from typing import Final

from session.lifetime.context import ClientContext
from session.lifetime.repository import INCARNATION_SHIFT, Sessions
from session.live.core import Database
from storage.errors import DamagedRows
from storage.tables.tables import SESSIONS, scan_readable

CENSUS_SLICE: Final = 64
CENSUS_PERIOD_MS: Final = 10  # the census takes a tenth of the loop, a fifth at the most


class Census:
    """Reads all stored sessions once."""

    def __init__(self, context: ClientContext, database: Database, sessions: Sessions) -> None:
        self._tick: Final = context.tick
        self._store: Final = database.store
        self._totals: Final = database.totals
        self._boot: Final = database.boot
        self._sessions: Final = sessions
        self._settle: Final = context.settle
        self._session_events: Final = context.history.sessions
        self._damage: Final = context.damage
        self._after = b""
        self._found = 0  # sessions in the store at the start
        self._restored = 0
        self._damaged = 0
        self.due_ms: int | None = None  # when to read the next slice, None = never

    def begin(self) -> None:
        """Note how many sessions the store holds, and read them from now on."""
        if self._session_events.is_on:
            self._found = self._totals.sessions
            self.due_ms = self._tick.now

    def run(self, now: int) -> None:
        """Read a slice if it is time and the store takes the open batch."""
        if self.due_ms is None or self.due_ms > now:
            return
        self.due_ms = now + CENSUS_PERIOD_MS
        if not self._settle():
            return
        damages: list[DamagedRows] = []
        rows = scan_readable(self._store, SESSIONS, self._after, None, damages, count=CENSUS_SLICE)
        self._damaged += len(damages)
        self._damage.note_all("session", damages)
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
                return  # began after the start
            self._sessions.load_rest(session)
        except DamagedRows as problem:
            self._damage.note("session", problem, client_id)  # CONNECT refuses its client
            self._damaged += 1
            return
        if not session.incarnation:
            # A record of version 1 has no incarnation; `write` gives it one. A CONNECT in this tick
            # must load the new record, so it has to settle first.
            self._sessions.write(session)
            self._tick.parted.add(client_id)
        self._restored += 1
        self._session_events.restored(session)
