"""Streams that have sent their last byte and wait for their peers to close, with one timer for all.

A timer of its own for each would be a tenth of what a short connection costs: thousands of clients
may leave in one second. Read next: `broker.loop.client_stream`.
"""

import asyncio
from typing import Final, Protocol


class Lingerer(Protocol):
    """A stream that is closing."""

    def abort(self) -> None:
        """Drop the connection."""
        ...


class Lingering:
    """Aborts streams that were not lost in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._due: Final[dict[Lingerer, float]] = {}  # time of the loop, in order
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def add(self, stream: Lingerer, delay_s: float) -> None:
        """Abort `stream` after `delay_s`, which is the same for all, unless it is lost before."""
        self._due[stream] = self._loop.time() + delay_s
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._expire)

    def discard(self, stream: Lingerer) -> None:
        """Forget a stream that is lost. Idempotent."""
        self._due.pop(stream, None)

    def _expire(self) -> None:
        """Abort the streams whose time is over, and wait for the next one."""
        self._timer = None
        now = self._loop.time()
        over: list[Lingerer] = []
        for stream, due in self._due.items():
            if due > now:
                self._timer = self._loop.call_later(due - now, self._expire)
                break
            over.append(stream)
        for stream in over:
            self._due.pop(stream, None)
            stream.abort()
