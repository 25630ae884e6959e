"""The committer of a leader: a serial is durable once the replicated log has committed it.

Takes the place of `storage.local.committer`, on the loop's thread alone. Read next:
`broker.cluster.member`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.cluster.member import Member
from storage.local.committer import FSYNC


class ReplicatedCommitter:
    """Tells which serials of the engine are committed."""

    mode: Final = FSYNC

    def __init__(
        self, member: Member, on_durable: Callable[[int], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._member: Final = member
        self._on_durable: Final = on_durable
        self._loop: Final = loop
        # (index of the last record that it needs, serial), oldest first.
        self._asked: Final[deque[tuple[int, int]]] = deque()
        self._committed: int = member.settled  # a recovery may have written more
        self._is_closed: bool = False
        member.committed = self._reached

    def request(self, serial: int) -> None:
        """Report `serial` when everything written to the store before this call is committed."""
        self._asked.append((self._member.written, serial))
        if self._asked[0][0] <= self._committed:
            self._loop.call_soon(self._reached, self._committed)

    def _reached(self, index: int) -> None:
        """Report what needs no record behind `index`."""
        self._committed = max(self._committed, index)
        serial = 0
        while self._asked and self._asked[0][0] <= self._committed:
            serial = self._asked.popleft()[1]
        if serial and not self._is_closed:
            self._on_durable(serial)

    def fileno(self) -> int:
        """Return -1: nothing is to be watched here."""
        return -1

    def collect(self) -> int:
        """Return 0: everything is reported."""
        return 0

    def resume(self) -> None:
        """Nothing is held back."""

    def alive(self, broker_ms: int) -> None:
        """The log tells the others that this node lives; nothing is written here."""

    def close(self) -> None:
        """Report nothing more. Idempotent."""
        self._is_closed = True
