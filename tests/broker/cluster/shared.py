"""A log in memory for several members on one event loop, and tails in memory.

The log keeps what is appended at once; its news wakes the loops by a descriptor, as the real one's
do. Read next: `tests.replication.log`, which can also lose things.
"""

import os
from collections.abc import Callable, Iterator
from typing import Final

from storage.errors import StorageError
from storage.replicated.log_port import Acked, CaughtUp, Event, Read


class Log:
    """What all members share."""

    def __init__(self) -> None:
        self.records: Final[list[bytes]] = []
        self.lines: Final[list[Line]] = []

    def open(self, place: int) -> "Line":
        """Return a member's end of the log."""
        return Line(self, place)

    def wake(self) -> None:
        """Tell all that there is news."""
        for line in self.lines:
            line.wake()


class Line:
    """One member's end."""

    def __init__(self, log: Log, place: int) -> None:
        self.is_cut: bool = False  # nothing goes out or comes in
        self.said: str = ""
        self.refusal: str = ""
        self._log: Final = log
        self._place: int = place
        self._acks: list[Event] = []
        self._file: int = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        log.lines.append(self)

    def fileno(self) -> int:
        """Return what is readable while there is news."""
        return self._file

    def wake(self) -> None:
        """There is news."""
        if self._file >= 0 and not self.is_cut:
            os.eventfd_write(self._file, 1)

    def append(self, data: bytes, token: int | None = None) -> None:
        """Append at once."""
        if self.is_cut:
            return
        self._log.records.append(data)
        if token is not None:
            self._acks.append(Acked(token, len(self._log.records) - 1))
        self._log.wake()

    def take(self) -> list[Event]:
        """Return what happened."""
        try:
            os.eventfd_read(self._file)
        except BlockingIOError:
            return []
        if self.is_cut:
            return []
        records = self._log.records
        events: list[Event] = [
            Read(place, records[place]) for place in range(self._place, len(records))
        ]
        self._place = len(records)
        acks, self._acks = self._acks, []
        return [*events, *acks, CaughtUp(self._place)]

    def read_from(self, place: int) -> None:
        """Read on from another place."""
        self._place = place
        self.wake()

    def delete_before(self, place: int) -> None:
        """Keep everything: a test is short."""

    def close(self) -> None:
        """Take part no more. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Kept:
    """A tail in memory that is synced at once."""

    def __init__(self, synced: Callable[[], None], failed: Callable[[StorageError], None]) -> None:
        self.records: Final[dict[int, bytes]] = {}
        self.synced: int = 0
        self.is_new: bool = True
        self.syncs: int = 0
        self.sync_seconds: float = 0.0
        self._synced: Final = synced

    def append(self, index: int, data: bytes) -> None:
        """Keep a record."""
        self.records[index] = data
        self.synced = index
        self._synced()

    def drop_from(self, index: int) -> None:
        """Forget records."""
        for each in [each for each in self.records if each >= index]:
            del self.records[each]
        self.synced = min(self.synced, index - 1)

    def read_from(self, index: int) -> Iterator[tuple[int, bytes]]:
        """Return records."""
        yield from [(each, self.records[each]) for each in sorted(self.records) if each >= index]

    def remember(self) -> None:
        """Be that of a node that knows everything."""
        self.is_new = False

    def truncate_before(self, index: int) -> None:
        """Forget records that the database has."""
        for each in [each for each in self.records if each < index]:
            del self.records[each]

    def close(self) -> None:
        """Nothing is open."""
