"""The thread that syncs a node's tail, and tells when it has.

While one sync runs further records are appended, and the next sync covers them all. Must never
report anything after a failed sync: a second one may return success for data that is gone. Read
next: `storage.replicated.tail`; `storage.local.committer` does the same for a database.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from storage.errors import StorageError, Unrecoverable
from storage.replicated.tail import Tail

MARK_INTERVAL_S: Final = 1.0


class TailSyncer:
    """Sync a tail on a thread, which runs from construction to `close`.

    `on_synced()` is called on the thread when more is synced: have the owner of the tail look at
    `Tail.synced` then. No index is handed over, because the owner may drop records before it hears
    of it. `on_failure(error)` is called at most once, on the thread; nothing is reported after it,
    and the process must end.
    """

    def __init__(
        self,
        tail: Tail,
        on_synced: Callable[[], None],
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self.failure: StorageError | None = None
        self.syncs = 0  # completed
        self.sync_seconds = 0.0  # sum of their durations
        self.sync_seconds_last = 0.0
        self._tail: Final = tail
        self._on_synced: Final = on_synced
        self._on_failure: Final = on_failure
        self._marked_at = time.monotonic()
        self._requests: Final[SimpleQueue[bool]] = SimpleQueue()  # False = end
        self._thread: Final = Thread(target=self._run, name="tail", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Have all synced that was appended before this call."""
        self._requests.put(True)

    def close(self) -> None:
        """Sync all that was appended, and end the thread. Idempotent. Never raises."""
        self._requests.put(False)
        self._thread.join()

    # --- the thread ---

    def _run(self) -> None:
        # Shell boundary: every error on this thread is reported to the loop, which would otherwise
        # wait for ever.
        try:
            while self._wait():
                self._sync()
                self._mark(is_over=False)
            self._sync()
            self._mark(is_over=True)
        except StorageError as error:
            self._fail(error)
        except Exception as error:
            self._fail(Unrecoverable(f"tail: {error!r}"))

    def _fail(self, error: StorageError) -> None:
        self.failure = error
        self._on_failure(error)

    def _wait(self) -> bool:
        """Wait for a request, or until the mark is due; return whether to go on."""
        timeout = None
        if not self._tail.is_marked:
            timeout = max(0.0, self._marked_at + MARK_INTERVAL_S - time.monotonic())
        try:
            if not self._requests.get(timeout=timeout):
                return False
            while True:
                if not self._requests.get_nowait():
                    return False
        except Empty:
            return True

    def _sync(self) -> None:
        began = time.perf_counter()
        sync = self._tail.sync_begin()
        if sync is None:
            return
        self._tail.sync_run(sync)
        self._tail.sync_end(sync)
        self.sync_seconds_last = time.perf_counter() - began
        self.sync_seconds += self.sync_seconds_last
        self.syncs += 1
        self._on_synced()

    def _mark(self, *, is_over: bool) -> None:
        now = time.monotonic()
        if is_over or now - self._marked_at >= MARK_INTERVAL_S:
            self._tail.mark()
            self._marked_at = now
