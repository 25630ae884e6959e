"""Writes the changes of a tick as one un-synced batch, and keeps it while the store refuses it.

Changed records, log rows and history rows go into the same batch, so the store always has the state
of a tick boundary. Must never drop a refused batch. Read next:
`session.engine`, which ends a tick, and `session.publish.store_health`.
"""

from typing import Final

from session.feed.outlet import FeedOutlet
from session.feed.recorder import FeedRecorder
from session.history.recorder import Recorder
from session.lifetime.repository import Sessions
from session.live.core import Core, Database
from session.live.tick import STALLED_CHANGES_MAX
from session.publish.store_health import StoreHealth
from session.routing.retained import Retained
from session.scheduling.read_pauses import ReadPauses
from storage.errors import Recoverable

STALLED_BYTES_MAX: Final = (
    8 << 20
)  # the same for bytes received since the store first refused a batch


class TickWriter:
    """Writes batches to the store; nothing else does."""

    def __init__(
        self,
        core: Core,
        database: Database,
        retained: Retained,
        sessions: Sessions,
        recorder: Recorder,
        feed: FeedRecorder,
        outlet: FeedOutlet,
        health: StoreHealth,
        pauses: ReadPauses,
    ) -> None:
        self._tick: Final = core.tick
        self._counters: Final = core.counters
        self._store: Final = database.store
        self._log: Final = database.log
        self._due: Final = database.due
        self._retained: Final = retained
        self._sessions: Final = sessions
        self._recorder: Final = recorder
        self._feed: Final = feed
        self._outlet: Final = outlet
        self._health: Final = health
        self._pauses: Final = pauses
        self.written: int = 0  # serial of the last written batch
        self.end_written: int = 0  # end of the log when a batch was written last
        self._refused_at: int = 0  # bytes received when the store refused a batch

    def next_serial(self) -> int:
        """Return the serial of the next batch."""
        return self.written + 1

    def settle(self) -> bool:
        """Write the open batch now, so that reads see it; False if the store refused it."""
        retry_ms = self._health.retry_ms
        if retry_ms is not None and self._tick.now < retry_ms:
            return False  # a CONNECT must not try the whole batch again
        tick = self._tick
        if tick.batch or tick.dirty or tick.dirty_groups or self._log.is_pending:
            return self.write()
        return retry_ms is None

    def settle_for(self, client_id: str) -> bool:
        """Settle if the stored rows of this client may be outdated; False as for `settle`.

        So a thousand clients that connect in one tick do not cause a thousand batches.
        """
        if self._health.retry_ms is None and client_id not in self._tick.parted:
            if client_id not in self._sessions.live:
                return True
        return self.settle()

    def write(self) -> bool:
        """Write all changes; False if the store refused them. They are durable with a commit."""
        tick = self._tick
        self._sessions.write_dirty(tick.now)
        batch = tick.batch
        self._log.seal(batch)
        self._outlet.seal()
        now = tick.now
        if not batch and not self._recorder.is_due(now) and not self._feed.is_due(now):
            return True
        self._feed.seal(batch)
        if self._feed.again:
            self._outlet.seal_retries()
        if self._recorder.is_on:
            self._recorder.seal(batch, now)
        if not batch:
            return True
        try:
            self._store.write(batch)
        except Recoverable as refusal:
            # Nothing was applied; the batch is kept and grows. On a full disk new state is refused,
            # on a stall clients are not read from any more.
            if self._health.refused_by is None:
                self._refused_at = self._counters.bytes_received
            self._health.refused(refusal, tick.now)
            return False
        self.end_written = self._log.end
        self.written += 1
        self._counters.batch_records.add(len(batch))
        tick.batch_written(self.written)
        self._outlet.written(self.written, self.end_written)
        if self._health.retry_ms is not None:
            self._health.recovered()
            self._pauses.end_stall()
        self._due.written()
        self._retained.written()
        return True

    def is_overfull(self) -> bool:
        """Return whether the batch that the store refuses is too large to add more."""
        accepted = self._log.end - self.end_written
        if len(self._tick.batch) + accepted > STALLED_CHANGES_MAX:
            return True
        return self._counters.bytes_received - self._refused_at > STALLED_BYTES_MAX
