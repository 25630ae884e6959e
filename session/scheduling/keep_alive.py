"""Who has been silent for too long: connect timeouts and keep alive, by deadline.

One heap for all connections. An entry is not moved when its client says something: it is looked at
when its time comes, and put back. Must never end a connection itself: the engine does, which knows
whose fault the silence is. Read next: `session.engine`.
"""

import heapq
from typing import Final

from session.live.connection import AUTHENTICATING, AWAITING_CONNECT, CLOSING, Connection
from session.settings import Settings

WATCHED_SPARE: Final = 1024  # entries of closed connections that are not worth a clean-up
# Connections looked after in one turn. A hundred thousand that connected in one second come due in
# one second, too: a look is 2 microseconds, but the end of one 50.
SLICE_MAX: Final = 256


class KeepAlive:
    """The deadlines of all connections."""

    def __init__(self, settings: Settings, connections: dict[Connection, None]) -> None:
        self._connect_timeout_ms: Final = settings.connect_timeout_ms
        self._connections: Final = connections
        self._watched: list[tuple[int, int, Connection]] = []  # (deadline, count, connection)
        self._count = 0  # breaks ties between equal deadlines
        self._is_cut = False  # did the last slice leave some that are due?

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, connection: Connection) -> None:
        """Look after a connection when its connect timeout or keep alive may be over."""
        self.watch_until(connection, self.ends(connection))

    def watch_until(self, connection: Connection, deadline: int) -> None:
        """Look after a connection at `deadline`, broker ms; 0 = never."""
        if not deadline:
            return
        self._count += 1
        watched = self._watched
        if len(watched) > 2 * len(self._connections) + WATCHED_SPARE:
            # Most of them are closed: a Keep Alive of 18 hours must not keep them in memory.
            watched[:] = [item for item in watched if item[2].state < CLOSING]
            heapq.heapify(watched)
        heapq.heappush(watched, (deadline, self._count, connection))

    def ends(self, connection: Connection) -> int:
        """Return when this connection has been silent for too long, broker ms; 0 = never."""
        if connection.state == AWAITING_CONNECT or (
            connection.state == AUTHENTICATING and connection.handshake is not None
        ):
            return connection.opened_at_ms + self._connect_timeout_ms
        if connection.state >= CLOSING or not connection.keep_alive_ms:
            return 0
        return connection.last_received_ms + connection.keep_alive_ms

    def next_deadline(self) -> int | None:
        """Return when `come` has something, broker ms; 1 = at once."""
        if not self._watched:
            return None
        return 1 if self._is_cut else self._watched[0][0]

    def come(self, now: int) -> list[Connection]:
        """Return connections to look after, a slice of those whose time has come."""
        watched = self._watched
        found: list[Connection] = []
        while watched and watched[0][0] <= now and len(found) < SLICE_MAX:
            found.append(heapq.heappop(watched)[2])
        self._is_cut = len(found) == SLICE_MAX and bool(watched) and watched[0][0] <= now
        return found
