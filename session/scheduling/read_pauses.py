"""Which connections are not read from, and when they are read from again.

Reading can be paused for several reasons at once: packets are postponed to the next tick, the
client sent too fast, too many of its replies wait for commits, or the store takes no writes. It
resumes only when none of them holds. Read next: `session.scheduling.work_budget`,
`session.scheduling.admission`, `session.live.commit_gate`, which pause reading.
"""

from typing import Final

from session.live.connection import AUTHENTICATING, CLOSING, Connection
from session.scheduling.work_budget import WorkBudget


class ReadPauses:
    """Knows every reason for not reading from a connection."""

    def __init__(self, turns: WorkBudget) -> None:
        self._turns: Final = turns
        self._stalled: dict[Connection, None] = {}  # until the batch is written

    def is_paused(self, connection: Connection) -> bool:
        """Return whether the broker does not read from this connection for now."""
        return (
            connection.reading_paused
            or connection.throttled_until_ms > 0
            or connection in self._stalled
            or connection in self._turns.waiting
        )

    def stall(self, connection: Connection) -> None:
        """Read nothing from a connection until the store takes the batch."""
        self._stalled[connection] = None
        connection.transport.pause_reading()

    def end_stall(self) -> None:
        """Read from all stalled connections again: the store took the batch."""
        stalled, self._stalled = self._stalled, {}
        for connection in stalled:
            self.resume(connection)

    def may_read(self, connection: Connection) -> bool:
        """Return whether there is no reason to keep from reading.

        That goes for a client that is not accepted yet, too: its CONNECT may be half here. While a
        password is checked nothing is read.
        """
        if connection.state == AUTHENTICATING and connection.handshake is None:
            return False
        return connection.state < CLOSING and not self.is_paused(connection)

    def resume(self, connection: Connection) -> None:
        """Read from a connection again, unless there is another reason not to."""
        if self.may_read(connection):
            connection.transport.resume_reading()

    def forget(self, connection: Connection) -> None:
        """Forget a lost connection."""
        self._stalled.pop(connection, None)
