"""What threads have heard from a log and the event loop has not taken yet.

Thread-safe. A descriptor is readable while there is something to take. Read next:
`storage.replicated.log_port` (the events).
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from storage.replicated.log_port import CaughtUp, Event, Read

# Whoever has slept (a stopped process, a suspended machine) must not believe an old answer: that
# nothing more was in the log says nothing of the time since.
FRESH_MS: Final = 1000
BYTES_MAX: Final = 64 << 20  # of records that wait to be taken; then no more are read


class Inbox:
    """Events in the order in which they were heard."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock: Final = clock  # ms, which goes on while the machine sleeps
        self._lock: Final = threading.Lock()
        self._events: list[Event] = []
        self._asked: deque[int] = deque()  # for each `CaughtUp`: when the log was asked, ms
        self._bytes = 0
        self._told = False
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor that is readable while there is something to take."""
        return self._descriptor

    def put(self, events: Sequence[Event]) -> None:
        """Add events."""
        with self._lock:
            self._events += events
            self._bytes += sum(len(each.data) for each in events if isinstance(each, Read))
            self._tell()

    def put_caught_up(self, end: int, asked_ms: int) -> None:
        """Add that at `asked_ms` nothing was in the log from `end` on."""
        with self._lock:
            if self._events and isinstance(self._events[-1], CaughtUp):
                self._events.pop()
                self._asked.pop()
            self._events.append(CaughtUp(end))
            self._asked.append(asked_ms)
            self._tell()

    def _tell(self) -> None:
        if self._events and not self._told and self._descriptor >= 0:
            self._told = True
            os.eventfd_write(self._descriptor, 1)

    def is_full(self) -> bool:
        """Return whether so much waits that no more should be read."""
        return self._bytes >= BYTES_MAX

    def take(self) -> list[Event]:
        """Return and forget all events, but for what has become too old to be believed."""
        with self._lock:
            events, self._events = self._events, []
            asked, self._asked = self._asked, deque()
            self._bytes = 0
            if self._told:
                self._told = False
                os.eventfd_read(self._descriptor)
        if not asked:
            return events
        oldest = self._clock() - FRESH_MS
        return [
            each for each in events if not isinstance(each, CaughtUp) or asked.popleft() >= oldest
        ]

    def forget_reads(self) -> None:
        """Forget what was read and not yet taken."""
        with self._lock:
            self._events = [x for x in self._events if not isinstance(x, Read | CaughtUp)]
            self._asked.clear()
            self._bytes = 0

    def close(self) -> None:
        """Close the descriptor; what is put from now on tells nobody."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1
            self._told = False
