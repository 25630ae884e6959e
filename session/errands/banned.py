"""Ends the connections of clients that were banned while they were connected.

A ban of a user or of an address may hit any connection, so all of them are looked at, a slice in
each step. Whoever connects meanwhile is refused by its CONNECT. Must never end a session: the
client may come back when the ban is over. Read next: `session.scheduling.bans`.
"""

from collections.abc import Iterator
from typing import Final

from mqtt import reasons
from session.assembly import Assembly
from session.live.connection import ACTIVE, Connection
from session.live.connection_states import SENT_AWAY
from session.scheduling.bans import Ban

LOOKED_AT_MAX: Final = 256  # connections in one step; less than a millisecond


class BannedClients:
    """Looks for connections that a ban is against, and ends them."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly: Final = assembly
        self._walk: Iterator[Connection] | None = None
        self._is_asked: bool = False  # there are bans that the present walk may have missed

    def begin(self) -> None:
        """Look at all connections again, because of a new ban."""
        self._is_asked = True

    @property
    def is_busy(self) -> bool:
        """Has `run` something to do?"""
        return self._is_asked or self._walk is not None

    def run(self) -> None:
        """Look at the next connections."""
        walk = self._walk
        if walk is None:
            if not self._is_asked:
                return
            self._is_asked = False
            walk = self._walk = iter(list(self._assembly.connections))
        tick = self._assembly.core.tick
        work_max = tick.work + self._assembly.core.settings.tick_work_max
        for _ in range(LOOKED_AT_MAX):
            connection = next(walk, None)
            if connection is None:
                self._walk = None
                return
            self.look_at(connection)
            if tick.work > work_max:
                return  # their wills may match very much

    def look_at(self, connection: Connection) -> None:
        """End a connection that a ban is against: 0x98, for DISCONNECT has no 0x8A."""
        if connection.state != ACTIVE:
            return  # its CONNECT is refused, or it is ending
        ban = self._assembly.bans.find(connection.client_id, connection.username, connection.remote)
        if ban is not None:
            self._end(connection, ban)

    def _end(self, connection: Connection, ban: Ban) -> None:
        assembly = self._assembly
        assembly.core.counters.disconnects["administrative_action"] += 1
        events = assembly.history.sessions
        events.asked_by = ban.asker
        assembly.disconnects.end(connection, SENT_AWAY, reasons.ADMINISTRATIVE_ACTION)
        events.asked_by = ""

    def stop(self) -> None:
        """Stop: the broker ends, and all connections with it."""
        self._walk, self._is_asked = None, False
