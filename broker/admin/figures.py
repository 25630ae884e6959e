"""Figures of the running broker, over time: looked at each second while somebody watches.

Those of the last hour are kept, one for ten seconds. Nobody's stream makes the broker be asked more
often. Read next: `broker.admin.api.events`, `broker.admin.asking`.
"""

import asyncio
import contextlib
from collections import deque
from typing import Final

from msgspec import Struct

from broker.admin.asking import Asking
from broker.admin.records import Moment
from broker.admin.sources.lanes import Busy
from broker.admin.sources.reading import now_text
from broker.operations.control_socket import ControlError

WATCHED_S: Final = 1.0  # between two looks while somebody watches
KEPT_S: Final = 10.0  # and otherwise; and between figures that are kept
KEPT_MAX: Final = 360
WATCHERS_MAX: Final = 32


class Figure(Struct):
    """Figures of one moment; all but the first two are null while the broker is silent.

    What came, went and was dropped is counted from the start of the broker.
    """

    at: Moment
    broker_answers: bool
    phase: str | None = None
    up_s: int | None = None
    connections: int | None = None
    connected: int | None = None
    sessions_stored: int | None = None
    retained_messages: int | None = None
    log_bytes: int | None = None
    generations: int | None = None
    writes_refused: bool | None = None
    messages_in: int | None = None
    messages_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    accepted: int | None = None
    refused: int | None = None
    dropped: int | None = None
    expired: int | None = None
    commits: int | None = None
    commit_seconds: float | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None


class Figures:
    """Looks at the broker, and tells everybody who watches."""

    def __init__(self, asking: Asking) -> None:
        self._asking: Final = asking
        self.kept: Final[deque[Figure]] = deque(maxlen=KEPT_MAX)  # the last hour, oldest first
        self.last: Figure | None = None
        self._watchers: Final[set[asyncio.Queue[Figure]]] = set()
        self._woken: Final = asyncio.Event()

    async def run(self) -> None:
        """Look for ever."""
        loop = asyncio.get_running_loop()
        kept_s = -KEPT_S
        while True:
            self.last = await self._look()
            if loop.time() - kept_s >= KEPT_S:
                kept_s = loop.time()
                self.kept.append(self.last)
            for watcher in self._watchers:
                if watcher.full():  # too slow: it gets the newest
                    watcher.get_nowait()
                watcher.put_nowait(self.last)
            self._woken.clear()
            is_idle = not self._watchers and self.last.broker_answers
            pause = KEPT_S if is_idle else WATCHED_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def _look(self) -> Figure:
        try:
            told = await self._asking.live_figures()
        except (ControlError, Busy):
            return Figure(now_text(), False)
        disk = told.pop("disk") or {}
        told["connected"] = told["sessions_online"]
        told["writes_refused"] = bool(told["writes_refused"])
        known = {name: told[name] for name in Figure.__struct_fields__ if name in told}
        return Figure(
            at=now_text(),
            broker_answers=True,
            disk_free_bytes=disk.get("free_bytes"),
            disk_total_bytes=disk.get("total_bytes"),
            **known,
        )

    @property
    def watchers(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def watch(self) -> asyncio.Queue[Figure]:
        """Return a queue that has the figures of now, and each second new ones, until `leave`.

        It holds the newest alone: who is slow misses some. Raises `Busy`.
        """
        if len(self._watchers) >= WATCHERS_MAX:
            raise Busy("too many watch already")
        queue: asyncio.Queue[Figure] = asyncio.Queue(1)
        if self.last is not None:
            queue.put_nowait(self.last)
        self._watchers.add(queue)
        self._woken.set()
        return queue

    def leave(self, queue: asyncio.Queue[Figure]) -> None:
        """Let nothing more come into a queue. Idempotent."""
        self._watchers.discard(queue)
