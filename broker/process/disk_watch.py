"""Watches the disk: refuses new durable state on a nearly full one, goes on after a full one.

On a nearly full disk the engine drops all that nobody needs; this deletes the write-ahead logs that
still hold it. Read next: `storage.local.disk_space`, which measures the disk and holds the ballast.
"""

from typing import Final

from broker.process.open import OpenBroker
from storage.errors import Recoverable, StorageError
from storage.limits import MIB
from storage.local.disk_space import is_full

# Write-ahead logs of this size are worth their deletion on a nearly full disk. RocksDB deletes them
# by itself from WAL_BYTES_MAX on, 64 MiB: that may be all the space there is.
LOGS_MIN: Final = 4 * MIB


class DiskWatch:
    """Looks at the disk of an open broker."""

    def __init__(self, opened: OpenBroker) -> None:
        self._opened: Final = opened
        self._log: Final = opened.log
        self._space: Final = opened.space
        self._store: Final = opened.store
        self._status: Final = opened.status
        # Was the disk low, and have the write-ahead logs not been deleted since that ended?
        self._keeps_logs = False
        self._is_full = False  # did RocksDB run out of space, and is it not open again?

    def look(self) -> None:
        """Refuse new state below the low-water mark; open the store again after a full disk."""
        driver = self._opened.driver
        if driver is None:
            return
        try:
            was_low = self._space.is_low
            is_low = self._space.check()
            self._status.disk = self._space.measured
            if is_low != was_low:
                self._log.warning(
                    "disk_low" if is_low else "disk_recovered",
                    "refusing new durable state" if is_low else "taking new durable state again",
                    free_bytes=self._space.free_bytes(),
                    low_water_bytes=self._space.low_water_bytes(),
                )
            driver.note_disk_space(is_low=is_low, room_bytes=self._space.room_bytes())
            if is_low or self._keeps_logs:
                self._keeps_logs = not self._delete_logs() or is_low
            refusal = self._opened.engine.refused_by
            if self._store.needs_reopen:
                self._reopen()
            elif refusal is not None and is_full(refusal):
                self._space.release_ballast()  # RocksDB goes on by itself where there is room
        except StorageError as error:
            driver.fail(error)
        except OSError as problem:
            self._status.disk = None
            self._log.error("disk_unknown", f"cannot look at the disk: {problem}")

    def _delete_logs(self) -> bool:
        """Let RocksDB write its memtables out, if that needs less space than it frees.

        Return whether it does so.
        """
        sizes = self._store.sizes()
        if sizes["wal"] < sizes["memtables"] + LOGS_MIN:
            return False
        if self._space.free_bytes() < sizes["memtables"] + MIB:
            return False
        self._store.flush(waits=False)
        return True

    def _reopen(self) -> None:
        """Delete the ballast and open the store again, if that makes enough room."""
        if not self._is_full:
            self._is_full = True
            self._log.error("disk_full", "the database found no space; waiting for some")
        self._space.release_ballast()
        try:
            self._store.reopen()
        except Recoverable:
            return  # what is there can still be read; the next look tries again
        self._is_full = False
        self._log.info("disk_full_ended", "the database is open for writing again")
