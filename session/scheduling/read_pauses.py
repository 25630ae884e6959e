"""Who is not read from for now, and who may be read from again.

A connection can be held back for several reasons at once: it waits for its turn, it sent too fast,
too much of it waits for commits, or the store takes no writes. It is read from again only when the
last of them is gone. Read next: `session.scheduling.work_budget`, `session.scheduling.admission`,
`session.live.commit_gate`, which hold connections back.
"""

from typing import Final

from session.live.connection import ACTIVE, AUTHENTICATING, Connection
from session.scheduling.work_budget import WorkBudget


class ReadPauses:
    """Knows every reason for which a connection is not read from."""

    def __init__(self, turns: WorkBudget) -> None:
        self._turns: Final = turns
        self._stalled: dict[Connection, None] = {}  # not read from until the batch is written

    def is_paused(self, connection: Connection) -> bool:
        """Is it us who do not listen?"""
        return (
            connection.reading_paused
            or connection.throttled_until_ms > 0
            or connection in self._stalled
            or connection in self._turns.waiting
        )

    def stall(self, connection: Connection) -> None:
        """Read nothing more until the store takes the batch."""
        self._stalled[connection] = None
        connection.transport.pause_reading()

    def end_stall(self) -> None:
        """The store has taken the batch: read on."""
        stalled, self._stalled = self._stalled, {}
        for connection in stalled:
            self.resume(connection)

    def resume(self, connection: Connection) -> None:
        """Read on, unless something else holds the connection back."""
        if connection.state == ACTIVE and not self.is_paused(connection):
            connection.transport.resume_reading()

    def resume_after_turn(self, connection: Connection) -> None:
        """Read on from a client that had to wait for its turn."""
        if connection.state == AUTHENTICATING and connection.handshake is not None:
            connection.transport.resume_reading()
        self.resume(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self._stalled.pop(connection, None)
