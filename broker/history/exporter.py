"""Exports the history from the database into segments without blocking the event loop.

The loop's thread checks once a second what is durable and when to seal, and deletes rows in small
slices once their segment is durable. A thread hands the rows to a process that writes them
(`broker.history.segment_process`): pyarrow would double the memory of this one. A crash may come at
every step: rows are deleted after their segment is durable, and rows that a segment already has are
recognised by its name and only deleted. Where other machines go on with the store, it is told how
far the export is: `storage.tables.export_row`.

Must never block MQTT. When the export is far behind, less is recorded; at the limit the oldest rows
are deleted, and the history records that. Read next: `broker.history.export_thread`,
docs/history.md.
"""

import asyncio
import contextlib
import importlib.util
import itertools
import time
from collections import deque
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from broker.history.export_thread import (
    LAST_KEY,
    Counted,
    Damaged,
    Ended,
    Exported,
    ExportThread,
    OpenLink,
    Report,
)
from broker.history.segment_process_link import HOW_TO_INSTALL, Sealed
from broker.history.witness_thread import WitnessThread
from broker.loop.driver import Driver
from broker.observe.structured_log import Log
from session.history.outbox import Outbox
from storage.errors import CorruptRecord, DamagedRows
from storage.history import events
from storage.history.packed_rows import count_missing, split_history_key
from storage.local import failpoint
from storage.local.rocks import RocksStore
from storage.tables.export_row import EXPORT_KEY, ExportProgress, Key, load_progress
from storage.tables.tables import HISTORY, META, unseal

# Rows deleted in one tick, and the pause after it: 60,000 rows take 5 seconds.
TRIM_ROWS: Final = 256
TRIM_PAUSE_S: Final = 0.02
DISCARD_ROWS: Final = 16  # read on the loop's thread, to be thrown away in one tick
SEAL_BYTES: Final = 32 << 20  # sealed at this size, whatever its age
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
MOMENTS_MAX: Final = 1000
# Shares of the outbox: above the first two less is recorded, below the third all of it again.
LOWER_AT: Final = 0.5
LOWEST_AT: Final = 0.9
RESTORE_AT: Final = 0.25
DISCARD_TO: Final = 0.95  # at the limit rows are discarded down to this share
LOWERED_SAMPLE: Final = 100  # one message in so many is still recorded


class Commits(Protocol):
    """What the exporter needs of the engine."""

    @property
    def written(self) -> int:
        """The serial of the last written batch."""
        ...

    @property
    def durable(self) -> int:
        """The serial up to which batches are durable."""
        ...


class Exporter:
    """Exports the history of one running broker."""

    def __init__(
        self,
        store: RocksStore,
        outbox: Outbox,
        commits: Commits,
        driver: Driver,
        open_link: OpenLink,
        *,
        outbox_bytes_max: int,
        seal_events: int,
        seal_s: float,
        log: Log,
        unavailable: str = "",
        witness: WitnessThread | None = None,
        is_replicated: bool = False,
    ) -> None:
        """`unavailable` says why nothing can be exported here, if it cannot.

        `witness` is told what is durable and exported; it is started and closed with this. With
        `is_replicated` what `store` has is durable, and other machines go on with it.
        """
        self.segments: int = 0  # written since the start
        self.failures: int = 0  # exports given up since the start, to be tried again
        self._store: Final = store
        self._outbox: Final = outbox
        self._commits: Final = commits
        self._driver: Final = driver
        self._open_link: Final = open_link
        self._outbox_bytes_max: Final = outbox_bytes_max
        self._seal_events: Final = seal_events
        self._seal_s: Final = seal_s
        self._log: Final = log
        self._unavailable: Final = unavailable
        self._witness: Final = witness
        self._boot: Final = outbox.boot
        self._thread: ExportThread | None = None
        self._reports: Final[SimpleQueue[Report]] = SimpleQueue()
        self._limit: Key | None = None  # of what is durable
        self._pending: tuple[int, Key] | None = None  # durable with this batch
        self._is_busy = False  # does the thread have an order?
        # What whoever goes on with this store has to know; None = nobody else does.
        self._progress: ExportProgress | None = ExportProgress() if is_replicated else None
        self._ended_at: Key = (0, 0)  # the last order, for a replicated store
        self._exported: Key = (0, 0)
        self._moments: deque[tuple[float, Key]] = deque()  # when rows up to a key were first seen
        self._inherited_bytes = 0  # of rows of earlier boots
        self._retry_s = 0.0
        self._retry_at = 0.0
        self._lowered: int = events.FULL  # the level that recording was lowered to
        self._is_discarding = False
        self._trims: deque[tuple[Key, int]] = deque()  # exported rows that are still in the store
        self._trim_bytes = 0
        self._is_trimming = False
        self._finished: asyncio.Event | None = None

    def start(self) -> None:
        """Start; rows of earlier boots are exported first."""
        if self._witness is not None:
            self._witness.start()
        self._load_progress()
        self._look(time.monotonic())
        if self._unavailable:
            self._log.warning("history_not_exported", self._unavailable)
        self._thread = ExportThread(
            self._store,
            self._open_link,
            self._report,
            inherited_before=self._boot,
            seal_events=self._seal_events,
            progress=self._progress or ExportProgress(),
        )

    def _load_progress(self) -> None:
        """Go on where the machine that had this store before has left off."""
        if self._progress is None:
            return
        try:
            self._progress = load_progress(self._store)
        except CorruptRecord as problem:  # then some rows are exported twice
            self._log.error("history_damaged", f"{problem}; the export begins with the first row")
        self._exported = self._progress.exported

    def beat(self) -> None:
        """Check what there is to do; called once a second on the loop's thread."""
        if self._finished is not None:
            return  # the last event is recorded: nothing may follow it
        now = time.monotonic()
        self._look(now)
        self._bound()
        if self._is_due(now):
            self._order()

    def gauges(self) -> dict[str, int]:
        """Return the numbers of this moment; no lag where nothing can be exported."""
        gauges = {
            "history_exporting": int(not self._unavailable),
            "history_outbox_bytes": self.outbox_bytes(),
            "history_events": self._outbox.events,
            "history_gap_events": self._outbox.suppressed,
            "history_segments": self.segments,
            "history_export_failures": self.failures,
            "history_level": self._outbox.level,
        }
        if self._witness is not None:
            gauges["history_witness_lost_events"] = self._witness.lost_events
            gauges["history_witness_failures"] = self._witness.failures
        if not self._unavailable:
            gauges["history_lag_ms"] = int(self._lag_s(time.monotonic()) * 1000)
        return gauges

    def outbox_bytes(self) -> int:
        """Return the bytes of the rows in the store."""
        return self._inherited_bytes + self._outbox.size_bytes

    async def finish(self, timeout_s: float) -> bool:
        """Export what is left; return whether all of it is out in time.

        What is not stays in the store, for the next start.
        """
        if self._thread is None or self._unavailable:
            return True
        self._finished = asyncio.Event()
        self._look(time.monotonic())
        if not self._is_busy:
            self._order()
        try:
            await asyncio.wait_for(self._finished.wait(), timeout_s)
        except TimeoutError:
            return False
        while self._trims:
            self._driver.run(self._trim_slice)
        return not self._moments and await self._driver.quiet(timeout_s)

    def close(self) -> None:
        """End the thread and its process, and the witness with what is durable now. Idempotent."""
        if self._thread is not None:
            self._thread.close()
        if self._witness is not None and not self._witness.is_ending:
            self._look(time.monotonic())
            self._witness.close()

    # What is durable, and when it is time.

    def _look(self, now: float) -> None:
        """Take note of the newest row, and of the newest that is durable."""
        commits = self._commits
        if self._pending is not None and commits.durable >= self._pending[0]:
            self._set_limit(self._pending[1])
            self._pending = None
        try:
            last = self._store.last(HISTORY, b"", LAST_KEY)
        except DamagedRows:  # the rows of this start, which come behind it, can be read
            return
        if last is None:
            return
        key = split_history_key(last[0])
        if self._pending is None and key != self._limit:
            if commits.durable >= commits.written:
                self._set_limit(key)
            else:
                self._pending = (commits.written, key)
        if key > self._exported and (not self._moments or self._moments[-1][1] < key):
            if len(self._moments) == MOMENTS_MAX:  # exports have failed for long: coarser
                now = self._moments.pop()[0]
            self._moments.append((now, key))

    def _set_limit(self, key: Key) -> None:
        """Note that all rows up to this one are durable."""
        self._limit = key
        if self._witness is not None:
            self._witness.note(*key, self._driver.now)

    def _lag_s(self, now: float) -> float:
        return now - self._moments[0][0] if self._moments else 0.0

    def _is_due(self, now: float) -> bool:
        if self._is_busy or self._unavailable or now < self._retry_at:
            return False
        if not self._moments or self._limit is None or self._limit <= self._exported:
            return False
        boot, first_seq = self._limit
        return (
            self._lag_s(now) >= self._seal_s
            or self._inherited_bytes > 0
            or (boot == self._exported[0] and first_seq - self._exported[1] >= self._seal_events)
            or self.outbox_bytes() - self._trim_bytes >= SEAL_BYTES
        )

    def _order(self) -> None:
        """Order the export of everything that is durable."""
        assert self._thread is not None
        if self._limit is None or self._limit <= self._exported:
            if self._finished is not None:
                self._finish_soon()
            return
        self._is_busy = True
        progress = self._progress
        if progress is None:
            self._thread.order(self._limit)
        elif progress.begun > max(self._exported, self._ended_at):
            self._thread.order(progress.begun)  # that another machine, or a failure, has left
        else:
            self._note(replace(progress, begun=self._limit))
            self._order_begun()

    def _order_begun(self) -> None:
        """Order the export that was begun, once the store has that."""
        assert self._thread is not None and self._progress is not None
        if self._store.get(META, EXPORT_KEY) == self._progress.encode():
            self._thread.order(self._progress.begun)
        else:
            self._driver.loop.call_later(TRIM_PAUSE_S, self._driver.run, self._order_begun)

    def _note(self, progress: ExportProgress) -> None:
        self._progress = progress
        self._driver.run(self._outbox.note_progress, progress)

    # What the thread reports.

    def _report(self, report: Report) -> None:
        """Bring a report from the thread to the loop."""
        self._reports.put(report)
        self._driver.run_from_thread(self._take_reports)

    def _take_reports(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                report = self._reports.get_nowait()
                if isinstance(report, Exported):
                    self._take_exported(report)
                elif isinstance(report, Counted):
                    self._inherited_bytes = report.size
                elif isinstance(report, Damaged):
                    self._log.error("history_damaged", f"{report.problem}; it is not exported")
                else:
                    self._take_ended(report)

    def _take_exported(self, report: Exported) -> None:
        job, sealed = report.job, report.sealed
        if self._witness is not None and sealed.chain is not None:
            self._witness.note_exported(*sealed.chain, self._driver.now)
        self.segments += sealed.segments
        self._exported = max(self._exported, job.keys[-1])
        self._note_exported(sealed)
        while self._moments and self._moments[0][1] <= self._exported:
            self._moments.popleft()
        for line in sealed.damaged:
            self._log.error("history_damaged", f"{line}; it is missing from the export")
        if sealed.problem:
            self._log.warning("history_not_tidied", sealed.problem)
        self._log.debug(
            "history_exported", events=sealed.events, segments=sealed.segments, bytes=job.total
        )
        if self._retry_s:
            self._retry_s = self._retry_at = 0.0
            self._log.info("history_export_resumed", "the history is exported again")
        self._trims.extend(zip(job.keys, job.sizes, strict=True))
        self._trim_bytes += job.total
        if not self._is_trimming:
            self._is_trimming = True
            self._trim()

    def _note_exported(self, sealed: Sealed) -> None:
        """Say it before the first of these rows is deleted."""
        progress = self._progress
        if progress is None or sealed.chain is None:
            return
        boot, last_seq, head = sealed.chain
        self._progress = replace(progress, exported=self._exported, end=(boot, last_seq), head=head)
        self._outbox.note_progress(self._progress)

    def _take_ended(self, ended: Ended) -> None:
        self._is_busy = False
        if ended.problem:
            self.failures += 1
            self._retry_s = min(max(RETRY_FIRST_S, 2 * self._retry_s), RETRY_MAX_S)
            self._retry_at = time.monotonic() + self._retry_s
            self._log.warning("history_export_failed", ended.problem, retry_s=round(self._retry_s))
        elif self._progress is not None:
            self._ended_at = self._progress.begun  # rows that were discarded are in no segment
        if self._finished is not None:
            if ended.problem:
                self._finished.set()
            else:
                self._go_on()

    def _finish_soon(self) -> None:
        """Everything durable is exported; look again at what is not durable yet."""
        assert self._finished is not None
        if self._pending is None:
            self._finished.set()
        else:
            self._driver.loop.call_later(TRIM_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._look(time.monotonic())
        self._order()

    # Deletions.

    def _trim(self) -> None:
        """Delete rows whose segment is durable, slice by slice."""
        if self._trims:
            self._trim_slice()
            self._driver.loop.call_later(TRIM_PAUSE_S, self._driver.run, self._trim)
        else:
            self._is_trimming = False

    def _trim_slice(self) -> None:
        trims = self._trims
        boot = trims[0][0][0]
        first_seqs: list[int] = []
        size = 0
        while trims and len(first_seqs) < TRIM_ROWS and trims[0][0][0] == boot:
            (_, first_seq), row_size = trims.popleft()
            first_seqs.append(first_seq)
            size += row_size
        self._trim_bytes -= size
        if boot != self._boot:
            self._inherited_bytes = max(0, self._inherited_bytes - size)
        self._outbox.trim(boot, first_seqs, size)
        if failpoint.hook is not None:
            failpoint.hook(failpoint.HISTORY_AMID_TRIM)

    # Bounds.

    def _bound(self) -> None:
        """Record less when the export is far behind; discard rows at the limit."""
        size = self.outbox_bytes() - self._trim_bytes
        share = size / self._outbox_bytes_max
        if share > LOWEST_AT:
            self._lower(events.BOOKS_LEVEL)
        elif share > LOWER_AT:
            self._lower(events.SAMPLED)
        elif share < RESTORE_AT and self._lowered < events.FULL:
            self._lowered = events.FULL
            self._driver.run(self._outbox.restore)
            self._log.info("history_restored", "everything configured is recorded again")
        if share >= 1.0 and not self._is_discarding:
            self._is_discarding = True
            self._log.warning(
                "history_discarded",
                "the outbox is full of rows nobody exported; the oldest ones go",
                bytes=size,
            )
            self._driver.run(self._discard)

    def _lower(self, level: int) -> None:
        if level >= min(self._lowered, self._outbox.level):
            return
        self._lowered = level
        self._driver.run(self._outbox.lower, level, LOWERED_SAMPLE)
        self._log.warning(
            "history_lowered",
            f"the export is behind by too much; recording {events.LEVELS[level]} only",
            bytes=self.outbox_bytes(),
        )

    def _discard(self) -> None:
        """Discard the oldest rows that were not taken, and schedule the next round."""
        assert self._thread is not None
        size = self.outbox_bytes() - self._trim_bytes
        rows: list[tuple[Key, bytes]] | None = []
        if size > self._outbox_bytes_max * DISCARD_TO and self._finished is None:
            rows = self._thread.frontier.take_away(DISCARD_ROWS)
        if rows == []:
            self._is_discarding = False
            return
        for boot, group in itertools.groupby(rows or (), key=lambda row: row[0][0]):
            self._throw_away(boot, list(group))
        self._driver.loop.call_later(TRIM_PAUSE_S, self._driver.run, self._discard)

    def _throw_away(self, boot: int, rows: list[tuple[Key, bytes]]) -> None:
        size = count = told = 0
        for _, value in rows:
            size += len(value)
            try:
                events_of_row, told_by_row = count_missing(unseal(value, "history row"))
            except (CorruptRecord, ValueError):
                events_of_row, told_by_row = 1, 0  # unknown after a restart
            count += events_of_row
            told += told_by_row
        if boot != self._boot:
            self._inherited_bytes = max(0, self._inherited_bytes - size)
        first_seqs = [first_seq for (_, first_seq), _ in rows]
        self._outbox.discard(boot, first_seqs, size, count=count, told=told)
        key = rows[-1][0]
        while self._moments and self._moments[0][1] <= key:
            self._moments.popleft()


def why_not() -> str:
    """Return why no history can be exported here, "" if it can; imports nothing."""
    for name in ("pyarrow", "numpy"):
        try:
            found = importlib.util.find_spec(name)
        except ImportError:
            found = None
        if found is None:
            return (
                f"{name} is not installed, so the history stays in the database, the newest part "
                f"of it; {HOW_TO_INSTALL}"
            )
    return ""
