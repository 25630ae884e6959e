"""Threads that read the data directory, each with a read-only database of its own.

A list of all sessions may take seconds, so it has a lane apart from questions for one session.
Opened, a database is seen as it is at that moment; it is used again for a while, the longer the
more it took to open, and closed when nobody asks, because it keeps deleted files on the disk. Each
lane does one thing at a time and lets few wait. Must never write. Read next: `broker.admin.asking`.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

from broker.operations.looking.store_time import StoreTime
from broker.operations.sessions.inventory import Inventory
from storage.errors import StorageError
from storage.local.rocks import RocksStore
from storage.time import machine_clocks

# For how long a database is used again: so many times what it took to open, within these limits.
AGE_SHARE: Final = 4
AGE_MIN_S: Final = 0.05
AGE_MAX_S: Final = 5.0
IDLE_S: Final = 1.0  # after which it is closed
LANE_WAITING_MAX: Final = 8  # that wait for a lane; beyond that they are told to come again
TRIES: Final = 5  # to open a database
LONGEST_S: Final = 60.0  # of one question: beyond that the command line is the tool

Result = TypeVar("Result")


class Busy(Exception):
    """Too many ask at once."""


class TooLong(Exception):
    """An answer that would take too long."""


class Unreadable(Exception):
    """The data directory cannot be read; one line."""


class NotThere(Exception):
    """What is asked for does not exist; one line."""


class Turn:
    """A lock for which few may wait; beyond them it raises `Busy`. Of one loop."""

    def __init__(self, *, waiting_max: int = LANE_WAITING_MAX) -> None:
        self._lock: Final = asyncio.Lock()
        self._waiting_max: Final = waiting_max
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def mine(self) -> AsyncIterator[None]:
        """Wait for the turn and keep it."""
        if self._waiting >= self._waiting_max:
            raise Busy("too many wait for this list already")
        self._waiting += 1
        try:
            async with self._lock:
                yield
        finally:
            self._waiting -= 1


class Opened:
    """A database as it was when it was opened, for one question."""

    __slots__ = ("inventory", "is_ending", "time", "until_s")

    def __init__(
        self, store: RocksStore, until_s: float, is_ending: Callable[[], bool] = lambda: False
    ) -> None:
        self.time: Final = StoreTime(
            store,
            machine_clocks.wall_ms(),
            machine_clocks.boot_id(),
            machine_clocks.boottime_ms(),
        )
        self.inventory: Final = Inventory(store)
        self.until_s: Final = until_s
        self.is_ending: Final = is_ending  # nobody waits for an answer any more

    def check(self) -> None:
        """Raise `TooLong` when the time for one question is over, or the process ends."""
        if self.is_ending():
            raise TooLong("this process ends")
        if monotonic() > self.until_s:
            raise TooLong(f"this takes longer than {LONGEST_S:g} s: ask on the command line")


class Lane:
    """One thread that reads, and its database."""

    def __init__(
        self,
        data_dir: str | Path,
        name: str,
        *,
        waiting_max: int = LANE_WAITING_MAX,
        longest_s: float = LONGEST_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._database: Final = os.path.join(data_dir, "db")
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix=f"read-{name}")
        self._waiting_max: Final = waiting_max
        self._longest_s: Final = longest_s
        self._idle_s: Final = idle_s
        self._lock: Final = threading.Lock()  # of the number
        self._waiting = 0
        self._ending: Final = threading.Event()
        # Of the lane's thread alone:
        self._store: RocksStore | None = None
        self._until_s = 0.0

    async def run(self, work: Callable[[Opened], Result]) -> Result:
        """Do `work` on the lane's thread; of a database opened after the call if it is not there.

        Raises `Busy`, `TooLong`, what `work` raises, and `Unreadable` for what the store raises.
        """
        with self._lock:
            if self._waiting >= self._waiting_max:
                raise Busy("too many questions wait already")
            self._waiting += 1
        loop = asyncio.get_running_loop()
        # Work that has begun goes on when nobody waits for it any more, and still counts.
        done = self._thread.submit(self._work, work)
        done.add_done_callback(self._count_down)
        try:
            return await asyncio.wrap_future(done)
        finally:
            loop.call_later(self._idle_s, self._look_idle)

    def _count_down(self, done: Future[Result]) -> None:
        with self._lock:
            self._waiting -= 1

    def _work(self, work: Callable[[Opened], Result]) -> Result:
        if not os.path.isdir(self._database):
            raise Unreadable("there is no database yet")
        try:
            if self._store is not None and monotonic() <= self._until_s:
                with contextlib.suppress(NotThere):  # it may have come since
                    return self._answer(work, self._store)
            self._close()
            began = monotonic()
            self._store = self._open()
            now = monotonic()
            self._until_s = now + min(AGE_MAX_S, max(AGE_MIN_S, AGE_SHARE * (now - began)))
            return self._answer(work, self._store)
        except StorageError as problem:
            self._close()  # perhaps a file that the broker has deleted meanwhile
            raise Unreadable(str(problem)) from None

    def _answer(self, work: Callable[[Opened], Result], store: RocksStore) -> Result:
        return work(Opened(store, monotonic() + self._longest_s, self._ending.is_set))

    def _open(self) -> RocksStore:
        """Open the database; try again when a running broker deletes files at that moment."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(StorageError):
                return RocksStore(self._database, read_only=True)
        return RocksStore(self._database, read_only=True)

    def _look_idle(self) -> None:
        with self._lock:
            if self._waiting:
                return  # who works now looks again
        with contextlib.suppress(RuntimeError):  # closed
            self._thread.submit(self._close)

    def refresh(self) -> None:
        """Have the next question see what is in the database then: something was changed."""
        self._thread.submit(self._close)

    def _close(self) -> None:
        if self._store is not None:
            with contextlib.suppress(StorageError):
                self._store.close()
            self._store = None

    def close(self) -> None:
        """Close the database once the thread has left what it has begun."""
        self._ending.set()
        self._thread.submit(self._close)
        self._thread.shutdown()
