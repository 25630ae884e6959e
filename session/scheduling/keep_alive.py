"""Deadlines of the connect timeout and of Keep Alive, for all connections in one heap.

An entry is not moved when its client sends something: when its deadline comes, the connection is
checked and put back. Must never end a connection itself: the engine does, which knows whether the
client was read from at all. Read next: `session.engine`.
"""

import heapq
from typing import Final

from session.live.connection import AUTHENTICATING, AWAITING_CONNECT, CLOSING, Connection
from session.settings import Settings

WATCHED_SPARE: Final = 1024  # entries of closed connections that need no clean-up yet
# Connections checked at once. A hundred thousand that connected in one second are due in one
# second, too: a check takes 2 microseconds, ending a connection 50.
SLICE_MAX: Final = 256


class KeepAlive:
    """Finds connections that have been silent for too long."""

    def __init__(self, settings: Settings, connections: dict[Connection, None]) -> None:
        self._connect_timeout_ms: Final = settings.connect_timeout_ms
        self._connections: Final = connections
        self._watched: list[tuple[int, int, Connection]] = []  # (deadline, count, connection)
        self._count = 0  # breaks ties between equal deadlines
        self._is_cut = False  # the last slice left some that are due

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, connection: Connection) -> None:
        """Check a connection when its connect timeout or keep alive may be over."""
        self.watch_until(connection, self.ends(connection))

    def watch_until(self, connection: Connection, deadline: int) -> None:
        """Check a connection at `deadline`, broker ms; 0 = never."""
        if not deadline:
            return
        self._count += 1
        watched = self._watched
        if len(watched) > 2 * len(self._connections) + WATCHED_SPARE:
            # Most are closed: an entry would stay for a Keep Alive of up to 18 hours.
            watched[:] = [item for item in watched if item[2].state < CLOSING]
            heapq.heapify(watched)
        heapq.heappush(watched, (deadline, self._count, connection))

    def ends(self, connection: Connection) -> int:
        """Return when this connection exceeds its timeout, broker ms; 0 = never."""
        if connection.state == AWAITING_CONNECT or (
            connection.state == AUTHENTICATING and connection.handshake is not None
        ):
            return connection.opened_at_ms + self._connect_timeout_ms
        if connection.state >= CLOSING or not connection.keep_alive_ms:
            return 0
        return connection.last_received_ms + connection.keep_alive_ms

    def next_deadline(self) -> int | None:
        """Return when `come` returns something, broker ms; 1 = at once, None = never."""
        if not self._watched:
            return None
        return 1 if self._is_cut else self._watched[0][0]

    def come(self, now: int) -> list[Connection]:
        """Return a slice of the connections whose deadline has come."""
        watched = self._watched
        found: list[Connection] = []
        while watched and watched[0][0] <= now and len(found) < SLICE_MAX:
            found.append(heapq.heappop(watched)[2])
        self._is_cut = len(found) == SLICE_MAX and bool(watched) and watched[0][0] <= now
        return found
