"""Tunes Python's garbage collector for a process with hundreds of thousands of lasting objects.

A collection looks at all objects younger than the last one of its kind. 30,000 connected sessions
are 540,000 objects, and a full collection of them takes 580 ms. So objects that have lived for a
second are frozen while the broker grows, and only the youngest are collected, 20,000 at a time
(5 ms). A reference cycle that is frozen is never freed: on uvloop a closed connection leaves none
(`tests/broker/loop/test_client_stream.py`; TLS, broken TLS and WebSocket were measured too).
asyncio's transports are cycles, so on asyncio nothing is frozen after the start.
"""

import asyncio
import gc
from typing import Final

THRESHOLDS: Final = (20_000, 1000, 1000)
THRESHOLDS_ASYNCIO: Final = (50_000, 20, 50)
FROZEN_AT: Final = 3  # collections of the youngest since the last freeze


class GarbageCollector:
    """Python's garbage collector, as the broker uses it."""

    def __init__(self) -> None:
        self._freezes = False  # not before the start is done: it leaves cycles behind

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Freeze what the start has made, and set how often is collected from now on."""
        gc.collect()
        gc.freeze()
        self._freezes = type(loop).__module__.startswith("uvloop")
        gc.set_threshold(*(THRESHOLDS if self._freezes else THRESHOLDS_ASYNCIO))

    def look(self) -> None:
        """Freeze what has grown; to be called once a second."""
        if self._freezes:
            freeze_if_grown()


def release() -> None:
    """Free what a broker of this process has left behind: it is cycles, and was frozen."""
    gc.unfreeze()
    gc.collect()


def freeze_if_grown() -> None:
    """Freeze everything that has survived a collection of the youngest, if it is much."""
    if gc.get_count()[1] >= FROZEN_AT:
        gc.freeze()
