"""Broker time while the process runs: the boot-time clock and an offset that the start finds.

Read next: `storage.time.broker_clock`, which says what broker time is.
"""

import time
from typing import Final

from storage.time import broker_clock, machine_clocks
from storage.time.broker_clock import Heartbeat


class RunningClock:
    """The clock of one process; it goes on from the last heartbeat in the database."""

    def __init__(
        self, last: Heartbeat | None, *, not_before_ms: int, exact_ms: int | None = None
    ) -> None:
        """`not_before_ms` is the time of the heartbeat file, which may be newer than `last`.

        `exact_ms` is broker time now if the caller knows it.
        """
        self._boot_id: Final = machine_clocks.boot_id()
        boottime_ms = machine_clocks.boottime_ms()
        resumed_ms = exact_ms
        if resumed_ms is None:
            wall_ms = machine_clocks.wall_ms()
            resumed_ms = broker_clock.resume(last, wall_ms, self._boot_id, boottime_ms)
        self.started_ms: Final = max(resumed_ms, not_before_ms)
        self._offset_ms: Final = self.started_ms - boottime_ms

    @classmethod
    def of_leader(
        cls, last: Heartbeat | None, *, alive_ms: int, resumed_ms: int, is_timed: bool
    ) -> "RunningClock":
        """Return the clock of a node that takes over from a leader heard at `alive_ms`, 0 = never.

        `resumed_ms` is broker time now as far as its word tells. It `is_timed` if it was heard when
        it was said: then the wall clock of another machine, in `last`, says nothing. Otherwise only
        the clocks in `last` know for how long nobody led; they may add time, and take none back.
        """
        if alive_ms and is_timed:
            last_ms = 0 if last is None else last.broker_ms
            return cls(None, not_before_ms=last_ms, exact_ms=resumed_ms)
        return cls(last, not_before_ms=resumed_ms if alive_ms else 0)

    def now(self) -> int:
        """Return broker time now."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + self._offset_ms

    def heartbeat(self, now: int) -> bytes:
        """Return the heartbeat row for broker time `now`."""
        boottime_ms = now - self._offset_ms
        return Heartbeat(now, machine_clocks.wall_ms(), self._boot_id, boottime_ms).encode()
