"""A rate limit per second that needs one number per client.

The generic cell rate algorithm (ITU-T I.371): the meter keeps the time at which everything counted
so far would have arrived at exactly the rate. If that is ahead of the clock, the client is too
fast. It needs no timer, and no two bursts can meet at the border of a window. Read next:
`session.scheduling.admission`, which uses it.
"""

from typing import Final

# The burst that is allowed after a pause, as time at the full rate.
BURST_US: Final = 1_000_000
# The longest pause: one read of a socket may have far more than the bytes of a second, and a client
# that gets no answer within its Keep Alive connects again, with a new meter.
PAUSE_US_MAX: Final = 5_000_000


class Meter:
    """Counts against a rate."""

    __slots__ = ("_full_us", "_per_second")

    def __init__(self, per_second: int) -> None:
        """Allow `per_second`, with a burst of one second."""
        assert per_second > 0
        self._per_second: int = per_second
        self._full_us: int = 0  # when all that was counted would have arrived at the rate

    def take(self, count: int, now: int) -> int:
        """Count what arrived at `now` (ms); return for how many ms nothing more may arrive."""
        now_us = now * 1000
        self._full_us = (
            max(self._full_us, now_us - BURST_US) + count * 1_000_000 // self._per_second
        )
        self._full_us = min(self._full_us, now_us + PAUSE_US_MAX)
        ahead_us = self._full_us - now_us
        return (ahead_us + 999) // 1000 if ahead_us > 0 else 0

    def try_take(self, now: int) -> bool:
        """Count one and return True; if it is too fast, count nothing and return False."""
        before = self._full_us
        if self.take(1, now):
            self._full_us = before
            return False
        return True
