"""The thread that reads the rows of the history from the store and has them written into segments.

Everything slow happens here; results are reported to the exporter, which acts on them on the loop's
thread. The exporter also deletes the oldest rows at the limit: both take rows at one shared
frontier, so that each row is taken by one of them. Read next: `broker.history.exporter`.
"""

import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Final, Protocol, TypeAlias

from broker.history.segment_process_link import Sealed, SegmenterFailed
from storage.api import Row
from storage.errors import DamagedRows, StorageError
from storage.history.packed_rows import history_key, split_history_key
from storage.local import failpoint
from storage.local.rocks import RocksStore
from storage.tables.export_row import ExportProgress, Key
from storage.tables.tables import HISTORY

# Rows read at a time with the store's lock held; one is up to a megabyte.
READ_ROWS: Final = 32
# A segment is sealed at this many bytes, however few events it has.
JOB_BYTES_MAX: Final = 64 << 20
# How long an idle process is kept: a broker that exports all the time keeps it.
IDLE_S: Final = 10.0
JOIN_S: Final = 1.0

FIRST: Final[Key] = (0, 0)
LAST_KEY: Final = b"\xff" * 13  # after every key


class Link(Protocol):
    """Writes the segments; implemented by `SegmenterLink`."""

    def send(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Hand over rows: boot, first seq, packed row. Raises `SegmenterFailed`."""
        ...

    def seal(self) -> Sealed:
        """Return once every row that was sent is in a durable segment. Raises the same."""
        ...

    def end(self) -> None:
        """End it in order; return when it has ended."""
        ...

    def kill(self) -> None:
        """End it at once, from another thread."""
        ...


class Job:
    """Rows that are handed over together."""

    __slots__ = ("keys", "sizes", "total")

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.sizes: list[int] = []
        self.total: int = 0

    def add(self, key: Key, size: int) -> None:
        """Add one row."""
        self.keys.append(key)
        self.sizes.append(size)
        self.total += size


class Counted:
    """Rows that were there at the start, in bytes."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size: int = size


class Exported:
    """Every row of `job` is in a durable segment."""

    __slots__ = ("job", "sealed")

    def __init__(self, job: Job, sealed: Sealed) -> None:
        self.job: Job = job
        self.sealed: Sealed = sealed


class Damaged:
    """Rows that cannot be read were passed over."""

    __slots__ = ("problem",)

    def __init__(self, problem: str) -> None:
        self.problem: str = problem


class Ended:
    """An order is done, or was given up (`problem`)."""

    __slots__ = ("problem",)

    def __init__(self, problem: str = "") -> None:
        self.problem: str = problem


Report: TypeAlias = Counted | Damaged | Exported | Ended


# Opens a process that writes segments, which follow the one that is named here.
OpenLink: TypeAlias = Callable[[ExportProgress], Link]


class Scan(Protocol):
    """`RocksStore.scan` or `scan_aside`."""

    def __call__(self, family: str, start: bytes, stop: bytes, *, count: int) -> list[Row]:
        """Return rows. Raises `StorageError`."""
        ...


class Frontier:
    """The boundary between rows that were taken and rows that were not."""

    def __init__(self, store: RocksStore, told: Callable[[Report], None]) -> None:
        self._store: Final = store
        self._told: Final = told  # about each damaged place, once; from either thread
        self._damaged: Final[set[bytes | None]] = set()  # where each ends
        self._lock: Final = threading.Lock()
        self._next: Key = FIRST
        # Discarded ranges: their deletion may not be written yet when rows are taken again.
        self._discarded: list[tuple[Key, Key]] = []

    def take(self, limit: Key) -> list[tuple[Key, bytes]]:
        """Take some rows up to `limit`, [] = there are no more. For the thread."""
        with self._lock:
            while True:
                stop = history_key(*limit) + b"\0"
                start = history_key(*self._next)
                rows = self._read(self._store.scan_aside, start, stop, READ_ROWS)
                if not rows:
                    return []
                found = self._advance(rows)
                kept = [row for row in found if not self._is_discarded(row[0])]
                if kept:
                    return kept

    def count(self, boot: int) -> int:
        """Return the bytes of all rows of the boots before `boot`. For the thread."""
        total, start, stop = 0, history_key(*FIRST), history_key(boot, 0)
        while rows := self._read(self._store.scan_aside, start, stop, READ_ROWS):
            total += sum(len(value) for _, value in rows)
            start = rows[-1][0] + b"\0"
        return total

    def _read(self, scan: Scan, start: bytes, stop: bytes, count: int) -> list[Row]:
        """Return some rows that can be read, [] = there are no more; the others stay."""
        while True:
            try:
                return scan(HISTORY, start, stop, count=count)
            except DamagedRows as damage:
                if damage.resume not in self._damaged:
                    self._damaged.add(damage.resume)
                    self._told(Damaged(str(damage)))
                if damage.rows:
                    return damage.rows
                if damage.resume is None or damage.resume >= stop:
                    return []
                start = damage.resume

    def take_away(self, count: int) -> list[tuple[Key, bytes]] | None:
        """Take the `count` oldest rows for good. For the store's owner; None = not now."""
        if not self._lock.acquire(blocking=False):
            return None  # the thread holds the lock and may be waiting for the disk
        try:
            start = self._next
            found = self._read(self._store.scan, history_key(*start), LAST_KEY, count)
            rows = self._advance(found)
            rows = [row for row in rows if not self._is_discarded(row[0])]
            if rows:
                self._note_discarded(rows[0][0], rows[-1][0], start)
            return rows
        finally:
            self._lock.release()

    def put_back(self, key: Key) -> None:
        """Let rows from `key` on be taken again, after a failure."""
        with self._lock:
            self._next = key

    def sealed(self, key: Key) -> None:
        """Forget the discarded ranges up to `key`: rows before it are never taken again."""
        with self._lock:
            self._discarded = [each for each in self._discarded if each[1] > key]

    def _note_discarded(self, first: Key, last: Key, taken_from: Key) -> None:
        """Remember a range of keys, as one with the last if nothing was taken in between."""
        if self._discarded:
            before_first, (boot, seq) = self._discarded[-1]
            if taken_from == (boot, seq + 1):
                self._discarded[-1] = (before_first, last)
                return
        self._discarded.append((first, last))

    def _advance(self, rows: list[Row]) -> list[tuple[Key, bytes]]:
        found = [(split_history_key(key), value) for key, value in rows]
        if found:
            boot, first_seq = found[-1][0]
            self._next = (boot, first_seq + 1)
        return found

    def _is_discarded(self, key: Key) -> bool:
        return any(first <= key <= last for first, last in self._discarded)


class ExportThread:
    """Runs from construction to `close`."""

    def __init__(
        self,
        store: RocksStore,
        open_link: OpenLink,
        report: Callable[[Report], None],
        *,
        inherited_before: int,
        seal_events: int,
        progress: ExportProgress,
    ) -> None:
        """`report` is called on the thread. The first report counts the rows of earlier boots.

        Rows that `progress` knows as exported are in a segment, here or on another machine.
        """
        self.frontier: Final = Frontier(store, report)
        self._store: Final = store
        self._open_link: Final = open_link
        self._report: Final = report
        self._seal_events: Final = seal_events
        self._before: Final = progress
        self._is_past_known = progress.exported == FIRST
        self._link: Link | None = None
        self._is_closing = False
        self._orders: Final[SimpleQueue[Key | None]] = SimpleQueue()
        self._thread: Final = threading.Thread(
            target=self._run, args=(inherited_before,), name="exporter", daemon=True
        )
        self._thread.start()

    def order(self, limit: Key) -> None:
        """Export every row up to `limit`, which is durable; `Ended` is reported at the end."""
        self._orders.put(limit)

    def close(self) -> None:
        """End the thread and its process; what is not sealed stays where it is. Idempotent."""
        self._is_closing = True
        self._orders.put(None)
        self._thread.join(JOIN_S)
        if self._thread.is_alive() and self._link is not None:
            self._link.kill()
            self._thread.join(JOIN_S)

    # --- the thread ---

    def _run(self, boot: int) -> None:
        try:
            self._report(Counted(self.frontier.count(boot)))
        except (StorageError, ValueError) as problem:
            self._report(Ended(str(problem)))
        while not self._is_closing:
            try:
                limit = self._orders.get(timeout=IDLE_S)
            except Empty:
                self._drop_link()
                continue
            if limit is not None:
                self._report(Ended(self._serve(limit)))
        self._drop_link()

    def _serve(self, limit: Key) -> str:
        """Do one order; return why it was given up, "" if it was not."""
        job = Job()
        try:
            while not self._is_closing:
                job = Job()
                if self._pass_over(job, limit):
                    self._report(Exported(job, Sealed(0, 0)))
                    continue
                if not self._hand_over(job, limit):
                    return ""
                assert self._link is not None
                sealed = self._link.seal()
                if failpoint.hook is not None:
                    failpoint.hook(failpoint.HISTORY_BEFORE_TRIM)
                self.frontier.sealed(job.keys[-1])
                self._report(Exported(job, sealed))
        # Shell boundary: an error on this thread must not stop the export for ever.
        except Exception as problem:
            if job.keys:
                self.frontier.put_back(job.keys[0])
            self._drop_link()
            expected = isinstance(problem, SegmenterFailed | StorageError)
            return str(problem) if expected else f"{type(problem).__name__}: {problem}"
        return ""

    def _pass_over(self, job: Job, limit: Key) -> bool:
        """Take the next rows that were exported before this start; False = there are none."""
        if self._is_past_known:
            return False
        for key, value in self.frontier.take(min(self._before.exported, limit)):
            job.add(key, len(value))
        self._is_past_known = not job.keys
        return bool(job.keys)

    def _hand_over(self, job: Job, limit: Key) -> bool:
        """Send the next rows, as many as make a segment; False = there are none.

        How many depends on the rows alone: another machine would cut the same segments.
        """
        while rows := self.frontier.take(limit):
            if self._is_closing:
                return False
            for key, value in rows:
                job.add(key, len(value))
            if self._link is None:
                self._link = self._open_link(self._before)
            self._link.send((*key, value) for key, value in rows)
            first, last = job.keys[0], job.keys[-1]
            if job.total >= JOB_BYTES_MAX or first[0] != last[0]:
                break
            if last[1] - first[1] >= self._seal_events:
                break
        return bool(job.keys)

    def _drop_link(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            link.end()
