"""Tells systemd the state of the broker: the sd_notify protocol without a dependency.

Must never fail the broker: without NOTIFY_SOCKET, or if nobody reads it, every call does nothing.
"""

import os
import socket
import time
from typing import Final

# How often a watchdog is fed within its own period; systemd recommends half.
WATCHDOG_SHARE: Final = 2
FED_S: Final = 1.0  # and it need not be fed sooner


def notify(**variables: str | int) -> bool:
    """Send `READY=1`, `STATUS=...` and the like; return whether it was sent."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # Linux's abstract namespace
    message = "\n".join(f"{name}={value}" for name, value in variables.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            channel.connect(address)
            channel.send(message.encode())
    except OSError:
        return False
    return True


def watchdog_period_s() -> float | None:
    """Return how often systemd's watchdog wants to be fed, or None when there is none."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    process = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not microseconds.isdecimal() or int(microseconds) == 0 or process != str(os.getpid()):
        return None
    return int(microseconds) / 1_000_000 / WATCHDOG_SHARE


class Watchdog:
    """Feeds systemd's watchdog, if there is one; whoever owns this calls it while it lives."""

    def __init__(self) -> None:
        self._fed_at: float | None = None

    def feed(self) -> None:
        """Say that this process lives, if that was not said within the last second."""
        now = time.monotonic()
        is_due = self._fed_at is None or now - self._fed_at >= FED_S
        if is_due and watchdog_period_s() is not None:
            self._fed_at = now
            notify(WATCHDOG=1)
