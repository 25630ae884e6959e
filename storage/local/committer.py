"""The committer: the one thread that syncs, and reports what is durable.

The event loop writes one batch per tick and never waits for a disk. It hands the committer the
serial of each batch it has written. While one sync runs further batches are written, and the next
sync covers them all: group commit without a timer.

In the compiled build nearly every sync is a direct one (`storage.local.direct_sync`): the loop
submits it and collects it, and the thread has RocksDB sync only when there is a new log. A request
that comes while RocksDB syncs waits for the thread if only RocksDB can sync it, else it is held and
submitted behind that: so one sync runs at a time, in either build.

Must never report a serial before a sync that began after its request has returned. Must never
report anything after a failed sync: a second fdatasync may return success for data that is gone.
Must never touch the engine: `on_durable` runs on this thread, the caller hands it to the event
loop. Read next: `storage.local.rocks` (why the sync has its own thread),
`storage.local.watermark`, `storage.local.heartbeat_file`.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from storage.api import Store
from storage.errors import Recoverable, StorageError, Unrecoverable
from storage.local import failpoint
from storage.local.direct_sync import DirectSync
from storage.local.heartbeat_file import Pulse
from storage.local.watermark import Source, Watermark

FSYNC: Final = "fsync"
OS: Final = "os"
INTERVAL: Final = "interval"

WATERMARK_INTERVAL_S: Final = 1.0
# How often a sync is tried again while the disk is full; meanwhile the loop waits for space and
# reopens the store.
RETRY_INTERVAL_S: Final = 0.1
INTERVAL_MS_MAX: Final = 60_000
STOP: Final = -1
WAKE: Final = 0  # no serial, only a heartbeat to write


def parse_durability(text: str) -> tuple[str, int]:
    """Return (mode, interval in ms) of a setting; the interval is 0 unless the mode is `interval`.

    Raises `ValueError`.
    """
    if text in (FSYNC, OS):
        return text, 0
    mode, _, interval = text.partition(":")
    if mode == INTERVAL and interval.isascii() and interval.isdigit():
        if 1 <= int(interval) <= INTERVAL_MS_MAX:
            return mode, int(interval)
    raise ValueError(
        f"durability {text!r}: expected 'fsync', 'os' or 'interval:MS' "
        f"with MS from 1 to {INTERVAL_MS_MAX}"
    )


class Committer:
    """Make serials durable, in groups. Its thread runs from construction to `close`.

    `durability` says when a serial (from 1 on) counts as durable: `fsync`, after a sync that covers
    it; `os`, at once, because the operating system has it (a power cut may lose it); `interval:MS`,
    at once, with a sync every MS milliseconds (a power cut may lose the last MS).

    `on_durable(serial)` covers every serial up to this one. It is called on the committer's thread
    with `fsync` and inside `request` otherwise. `on_failure(error)` is called at most once, on the
    committer's thread; nothing is reported durable after it, and the process must end.

    With `direct`, which needs `fsync`, part of the serials is not reported through `on_durable`:
    the thread that requests also watches `fileno`, takes them from `collect` when it is readable,
    and calls `resume` after each report.
    """

    def __init__(
        self,
        store: Store,
        on_durable: Callable[[int], None],
        on_failure: Callable[[StorageError], None],
        *,
        durability: str = FSYNC,
        watermark: Watermark | None = None,
        source: Source | None = None,
        pulse: Pulse | None = None,
        direct: DirectSync | None = None,
    ) -> None:
        """Start the thread. `source` is the store, as the watermark sees it.

        Only the thread may use `watermark` and `pulse` until `close` has returned. `direct` is the
        store's and is closed by `close`.
        """
        assert (watermark is None) == (source is None)
        assert direct is None or durability == FSYNC
        self.mode, self.interval_ms = parse_durability(durability)
        self.failure: StorageError | None = None
        self.syncs = 0  # completed
        self.sync_seconds = 0.0  # sum of their durations
        self.sync_seconds_last = 0.0
        self._store: Final = store
        self._on_durable: Final = on_durable
        self._on_failure: Final = on_failure
        self._watermark: Final = watermark
        self._source: Final = source
        self._pulse: Final = pulse
        self._alive_ms = 0  # broker time of the newest heartbeat requested
        self._marked_at = time.monotonic()
        self._is_closing = False
        self._requests: Final[SimpleQueue[int]] = SimpleQueue()
        # Serials given to the thread, taken by it, and those of them that it has reported.
        self._given = self._taken = self._settled = 0
        self._direct: Final = direct
        self._direct_asked = self._direct_done = 0  # the newest serials submitted, collected
        self._held = 0  # the newest serial to be submitted once the thread has synced, 0 = none
        self._sleeps = False  # has the thread nothing to tell the watermark?
        self._thread: Final = Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    def request(self, serial: int) -> None:
        """Report `serial` when everything written to the store before this call is durable."""
        if self.failure is not None:
            return
        if self._direct is not None:
            self._request_directly(serial)
        elif self.mode != OS:
            self._give(serial)
        if self.mode != FSYNC:
            self._on_durable(serial)

    def fileno(self) -> int:
        """Return the descriptor to watch for `collect`, -1 if there are no direct syncs."""
        return -1 if self._direct is None else self._direct.fileno()

    def collect(self) -> int:
        """Return the newest serial that a direct sync has made durable, 0 if there is no news."""
        assert self._direct is not None
        try:
            synced = self._direct.collect()
        except OSError:
            self._give(self._direct_asked)  # the thread meets the same failure, and reports it
            return 0
        if synced is None or self.failure is not None or self._is_closing:
            return 0
        self._direct_done = synced.serial
        self.syncs += 1
        if self._given != self._settled:
            return 0  # the sync of the thread was asked for later: it tells of both
        self._direct.note(synced)
        if self._sleeps:
            self._sleeps = False
            self._requests.put(WAKE)
        if failpoint.hook is not None:
            failpoint.hook(failpoint.AFTER_SYNC_BEFORE_REPLY)
        return synced.serial

    def resume(self) -> None:
        """Submit what was held while the thread synced."""
        if self._held and self._given == self._settled and self.failure is None:
            self._request_directly(self._held)

    def _request_directly(self, serial: int) -> None:
        """Submit `serial`, hold it until the thread has synced, or give it to the thread."""
        assert self._direct is not None
        if self._is_closing or not self._direct.has_log():
            self._held = 0
            self._give(serial)
        elif self._given != self._settled:
            self._held = self._direct_asked = serial
        else:
            self._held = 0
            if failpoint.hook is not None:
                failpoint.hook(failpoint.AFTER_WRITE_BEFORE_SYNC)
            if self._direct.submit(serial):
                self._direct_asked = serial
            else:
                self._give(serial)

    def _give(self, serial: int) -> None:
        """Have the thread sync for `serial`."""
        self._given += 1
        self._requests.put(serial)

    def alive(self, broker_ms: int) -> None:
        """Write a heartbeat to the file beside the store: the store itself accepts none now.

        Durable soon after the call, unless the file system refuses.
        """
        self._alive_ms = broker_ms
        self._requests.put(WAKE)

    def fail(self, error: StorageError) -> None:
        """Report nothing more, because a write has failed for good. Does not call `on_failure`."""
        self.failure = error
        self._requests.put(STOP)

    def close(self) -> None:
        """Make everything written so far durable, in every mode, and end the thread. Idempotent.

        Returns when the thread has ended; then the store may be closed. Gives up at once if the
        disk is full. Never raises: errors go to `on_failure`.
        """
        self._is_closing = True
        if self._direct_asked > self._direct_done:
            self._give(self._direct_asked)
        self._requests.put(STOP)
        self._thread.join()
        if self._direct is not None:
            self._direct.close()

    # --- the thread ---

    def _run(self) -> None:
        # Shell boundary: every error on this thread is reported to the loop, which would otherwise
        # wait for ever.
        try:
            if self.mode == INTERVAL:
                self._run_interval()
            else:
                self._run_groups()
            if self.failure is None:
                self._final()
        except StorageError as error:
            self._fail(error)
        except Exception as error:
            self._fail(Unrecoverable(f"committer: {error!r}"))

    def _fail(self, error: StorageError) -> None:
        self.failure = error
        self._on_failure(error)

    def _run_groups(self) -> None:
        stop = False
        while not stop and self.failure is None:
            serial, stop = self._next_group(self._watermark_wait())
            if serial > 0:
                serial = self._sync(serial)
                if serial == 0:
                    return
                if self._was_reopened():
                    self._mark(force=True)
                if failpoint.hook is not None:
                    failpoint.hook(failpoint.AFTER_SYNC_BEFORE_REPLY)
                self._settled = self._taken  # before the report, which lets the loop submit again
                if self.failure is None:
                    self._on_durable(serial)
            self._mark(force=False)

    def _run_interval(self) -> None:
        stop = False
        while not stop and self.failure is None:
            deadline = time.monotonic() + self.interval_ms / 1000
            serial, stop = self._next_group(self._watermark_wait())
            while not stop and (left := deadline - time.monotonic()) > 0:
                later, stop = self._next_group(left)
                serial = max(serial, later)
            if serial > 0 and self._sync(serial) == 0:
                return
            self._mark(force=self._was_reopened())

    def _next_group(self, timeout: float | None) -> tuple[int, bool]:
        """Wait for a request, take all of them, return (greatest serial, whether to stop)."""
        serial, stop = 0, False
        requests = self._requests
        try:
            taken = requests.get(timeout=timeout)
            while True:
                if taken == STOP:
                    stop = True
                elif taken != WAKE:
                    self._taken += 1
                    serial = max(serial, taken)
                taken = requests.get_nowait()
        except Empty:
            self._write_pulse()
            return serial, stop

    def _write_pulse(self) -> None:
        """Write the newest heartbeat requested, if there is one."""
        pulse, alive_ms = self._pulse, self._alive_ms
        if pulse is None or alive_ms in (0, pulse.broker_ms):
            return
        try:
            pulse.write(alive_ms)
        except Recoverable:
            return  # this file system needs space even for this: try with the next heartbeat

    def _sync(self, serial: int) -> int:
        """Sync, retrying while the disk is full; return the serial it covers, at least `serial`.

        Returns 0 when the thread must end: closed while the disk was full, or after `fail`.
        """
        if failpoint.hook is not None:
            failpoint.hook(failpoint.AFTER_WRITE_BEFORE_SYNC)
        while self.failure is None:
            began = time.perf_counter()
            try:
                self._store.sync()
            except Recoverable:
                # Requests that arrive now were written before the next try, so it covers them.
                if self._is_closing:
                    return 0
                later, _ = self._next_group(RETRY_INTERVAL_S)
                serial = max(serial, later)
            else:
                self.sync_seconds_last = time.perf_counter() - began
                self.sync_seconds += self.sync_seconds_last
                self.syncs += 1
                return serial
        return 0

    def _watermark_wait(self) -> float | None:
        """Return the seconds to wait for a request until the watermark is due, None = no limit."""
        if self._watermark is None or self._source is None:
            return None
        self._sleeps = True  # before it looks: `collect` sees this, or this sees what it notes
        if self._watermark.sequence >= self._source.durable_sequence():
            return None
        self._sleeps = False
        return max(0.0, self._marked_at + WATERMARK_INTERVAL_S - time.monotonic())

    def _mark(self, *, force: bool) -> None:
        """Advance the watermark to the last completed sync if that is due."""
        if self._watermark is None or self._source is None:
            return
        now = time.monotonic()
        if force or now - self._marked_at >= WATERMARK_INTERVAL_S:
            self._watermark.advance(self._source.synced())
            self._marked_at = now

    def _was_reopened(self) -> bool:
        """Return whether the watermark names logs from before a reopening.

        What is left of those could be taken for a hole before the new log, so nothing in that may
        be reported durable before the watermark names it.
        """
        if self._watermark is None or self._source is None:
            return False
        return self._watermark.synced.opening_log != self._source.opening_log

    def _final(self) -> None:
        """Sync what is written, in every mode."""
        try:
            self._store.sync()
        except Recoverable:
            return
        self.syncs += 1
        self._mark(force=True)
