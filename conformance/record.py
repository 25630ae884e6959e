"""What happened during one check, and the violations of the whole run.

`Ledger` is shared by all threads of a run: violations by the statement they break. `Record` belongs
to one check: the last packets of all its connections, notes, and what must be cleaned up.
"""

import dataclasses
import threading
import time
from collections import deque
from typing import Final

from conformance.failure import Violation

LINES_MAX: Final = 30  # of the exchange kept per check: enough to understand a failure
HEX_MAX: Final = 96  # bytes of a packet shown


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of the exchange: seconds since the check began, client, direction, what."""

    seconds: float
    client: str
    arrow: str  # "->" to the broker, "<-" from the broker, "--" neither
    text: str
    data: bytes = b""

    def hex(self) -> str:
        """Return the packet in hex, shortened if it is long."""
        cut = self.data[:HEX_MAX].hex(" ")
        return cut + f" … ({len(self.data)} bytes)" * (len(self.data) > HEX_MAX)

    def __str__(self) -> str:
        packet = f" [{self.hex()}]" if self.data else ""
        return f"{self.seconds:.3f} {self.client} {self.arrow} {self.text}{packet}"


@dataclasses.dataclass(frozen=True)
class Booking:
    """A violation seen during the run, by `check`, whose exchange is in `lines`."""

    version: int
    statement: str
    check: str
    message: str
    packet: bytes
    expected: str
    lines: tuple[Line, ...] = ()


class Ledger:
    """The violations of a run by statement. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bookings: list[Booking] = []

    def book(self, booking: Booking) -> None:
        """Add a violation."""
        with self._lock:
            self._bookings.append(booking)

    def bookings(self) -> list[Booking]:
        """Return every violation so far, sorted so that the order of threads does not matter."""
        with self._lock:
            return sorted(
                self._bookings, key=lambda b: (b.version, b.statement, b.check, b.message)
            )


class Record:
    """Belongs to one check and is used by its thread only."""

    def __init__(self, ledger: Ledger, *, version: int, check: str) -> None:
        self.notes: list[str] = []
        self.lines: deque[Line] = deque(maxlen=LINES_MAX)
        self.retained_topics: set[str] = set()
        self._ledger = ledger
        self._version = version
        self._check = check
        self._began = time.monotonic()
        self._is_frozen = False

    def freeze(self) -> None:
        """Stop recording: the check is over, what follows is cleaning up."""
        self._is_frozen = True

    def _add(self, client: str, arrow: str, text: str, data: bytes = b"") -> None:
        if self._is_frozen:
            return
        self.lines.append(Line(time.monotonic() - self._began, client, arrow, text, data))

    def sent(self, client: str, data: bytes, text: str) -> None:
        """Record a packet that a client has sent."""
        self._add(client, "->", text, data)

    def received(self, client: str, data: bytes, text: str) -> None:
        """Record a packet that a client has received."""
        self._add(client, "<-", text, data)

    def note(self, client: str, text: str) -> None:
        """Record another event."""
        self._add(client, "--", text)

    def retained(self, topic: str) -> None:
        """Remember a topic that may have a retained message, to remove it after the check."""
        self.retained_topics.add(topic)

    def violation(self, client: str, violation: Violation) -> None:
        """Book a violation on every statement it breaks."""
        self._add(client, "<-", violation.message, violation.packet or b"")
        for statement in violation.statements:
            self._ledger.book(
                Booking(
                    self._version,
                    statement,
                    self._check,
                    violation.message,
                    violation.packet or b"",
                    violation.expected,
                    tuple(self.lines),
                )
            )
