"""A limit of so many per second, as one number per client.

The generic cell rate algorithm (ITU-T I.371): the meter keeps the time at which everything taken so
far would have come at exactly the rate. Ahead of the clock by more than the burst is too fast. No
timer, no window that two bursts can straddle. Read next: `session.engine` (who asks it).
"""

from typing import Final

# What may come at once after a silence, as time at the full rate.
BURST_US: Final = 1_000_000
# The longest pause: one read of a socket may bring far more than a second's worth, and a client
# that hears nothing for longer than its Keep Alive comes back with a meter that knows nothing.
PAUSE_US_MAX: Final = 5_000_000


class Meter:
    """Counts what comes against a rate."""

    __slots__ = ("_full_us", "_per_second")

    def __init__(self, per_second: int) -> None:
        """A burst of `per_second` may come at once; more only as time passes."""
        assert per_second > 0
        self._per_second: int = per_second
        self._full_us: int = 0  # when all that was taken has come at the rate

    def take(self, count: int, now: int) -> int:
        """Count what has come at `now` (ms); return for how many ms nothing more may come."""
        now_us = now * 1000
        self._full_us = (
            max(self._full_us, now_us - BURST_US) + count * 1_000_000 // self._per_second
        )
        self._full_us = min(self._full_us, now_us + PAUSE_US_MAX)
        ahead_us = self._full_us - now_us
        return (ahead_us + 999) // 1000 if ahead_us > 0 else 0

    def try_take(self, now: int) -> bool:
        """Count one and return True, or return False and count nothing if it comes too fast."""
        before = self._full_us
        if self.take(1, now):
            self._full_us = before
            return False
        return True
