"""Syncs of the newest log without the interpreter, for the committer of the compiled build.

A sync of RocksDB needs a thread of Python, which waits for the GIL twice. But nearly every sync is
one fdatasync of the newest log, which any descriptor of that file may make: `_syncer.c` does it and
tells the event loop through an eventfd. The log is ours to sync while all of this holds:
- Every batch since `_since` is in it: RocksDB hands a batch to the kernel before `write` returns,
  so the file grows at every write unless RocksDB has begun another log.
- Everything up to `_since`, the older logs and the log's name are durable: a sync of RocksDB has
  returned which began when the log already had a batch.
If a write did not make it grow, or failed, the log is left, and RocksDB syncs until there is a new
one. Must never sync while RocksDB does, nor after a failed sync, and must never write to a log.
Read next: `storage.local.committer`, which chooses; `storage.local.rocks`, which calls the rest.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from storage.local.database_files import log_name, log_numbers

if TYPE_CHECKING:
    from storage.local._syncer import Syncer


class Database(Protocol):
    """A database whose logs are synced."""

    @property
    def path(self) -> Path:
        """Return the directory with its logs."""
        ...

    def durable_sequence(self) -> int:
        """Return the number of batches that are durable."""
        ...

    def note_synced(self, sequence: int, log: int, length: int) -> None:
        """Take what a completed sync covers: batches, and the place in the newest log."""
        ...


class DirectlySynced(NamedTuple):
    """What a direct sync covers."""

    serial: int
    sequence: int  # number of batches
    log: int
    length: int  # bytes of the log


class OpenLog:
    """A log of RocksDB that is open to be synced."""

    def __init__(self, database: Path, number: int) -> None:
        """Open it. Raises `OSError`."""
        self.number: Final = number
        self.path: Final = database / log_name(number)
        self.file: Final = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self.length = 0  # as far as known

    def close(self) -> None:
        """Close it, once."""
        os.close(self.file)


class DirectSync:
    """The direct sync of one database.

    The thread that owns the store calls everything except `settle`, `find` and `found`, which
    are for the thread that has RocksDB sync, while nothing is submitted.
    """

    def __init__(self, database: Database, syncer: "Syncer", length: Callable[[int], int]) -> None:
        """`length` returns the size of an open file."""
        self._database: Final = database
        self._syncer: Final = syncer
        self._length: Final = length
        # One of these is the log, or both are None. Only the thread that syncs sets `_found`, and
        # only while both are None; only the owner moves it to `_log`.
        self._log: OpenLog | None = None  # every batch since `_since` is in it
        self._found: OpenLog | None = None  # may be that from the next write on
        self._left: Final[list[OpenLog]] = []  # to be closed when nothing is synced
        self._since = 0
        self._sequence = 0  # of the last write
        self._is_closed = False

    # --- writes ---

    def begin_write(self, sequence: int) -> None:
        """Look at the log before a write; the database has `sequence` batches."""
        found = self._found
        if found is None:
            return
        found.length = self._length(found.file)
        self._since = sequence
        self._log = found
        self._found = None

    def end_write(self, sequence: int) -> None:
        """Look whether the batch `sequence`, which was just written, is in the log."""
        log = self._log
        if log is None:
            return
        length = self._length(log.file)
        if length <= log.length:
            self.leave()
        log.length = length
        self._sequence = sequence

    def leave(self) -> None:
        """Give the log up: what is written next may be in another one, or nothing may be."""
        if self._log is not None:
            self._left.append(self._log)
            self._log = None

    # --- syncs of the log ---

    def fileno(self) -> int:
        """Return the descriptor that is readable when `collect` has something to say."""
        return self._syncer.fileno()

    def has_log(self) -> bool:
        """Return whether the batch that was written last is in the log."""
        return self._log is not None

    def submit(self, serial: int) -> bool:
        """Sync all that is written, as `serial`; return False if only RocksDB can."""
        log = self._log
        if log is None or self._database.durable_sequence() < self._since:
            return False
        self._syncer.submit(log.file, serial, self._sequence, log.number, log.length)
        return True

    def collect(self) -> DirectlySynced | None:
        """Return what the newest sync covers, None if there is none since the last call.

        Raises `OSError` when a sync has failed, once: `settle` tells from then on.
        """
        done = self._syncer.collect()
        return None if done is None else DirectlySynced(*done)

    def note(self, synced: DirectlySynced) -> None:
        """Have the database note what is synced; not while it syncs itself."""
        self._database.note_synced(synced.sequence, synced.log, synced.length)

    # --- syncs of RocksDB ---

    def settle(self) -> None:
        """Wait until no sync runs. Raises `OSError` when one has failed."""
        failure = self._syncer.settle()
        if failure:
            raise OSError(failure, f"{os.strerror(failure)}: fdatasync of the newest log")
        while self._left:
            self._left.pop().close()

    def find(self) -> OpenLog | None:
        """Return the newest log if one is wanted, to be called before a sync of RocksDB."""
        if self._log is not None or self._found is not None or self._is_closed:
            return None
        try:
            numbers = log_numbers(self._database.path)
            log = OpenLog(self._database.path, numbers[-1]) if numbers else None
            # RocksDB makes the file before it knows it as a log; with a batch in it, it does.
            if log is not None and self._length(log.file) == 0:
                log.close()
                log = None
        except OSError:  # it is gone, or no descriptor is free: with a later sync
            return None
        return log

    def found(self, log: OpenLog | None) -> None:
        """Take what `find` has returned, after the sync of RocksDB."""
        if log is not None:
            self._found = log

    def forget(self) -> None:
        """Know no log any more: the database is closed, or a write to it has failed."""
        self.leave()
        found, self._found = self._found, None
        if found is not None:
            self._left.append(found)

    def close(self) -> None:
        """Sync what was submitted, end the thread, close all files. Idempotent."""
        self._is_closed = True
        self._syncer.close()
        self.forget()
        while self._left:
            self._left.pop().close()


def open_direct_sync(database: Database) -> DirectSync | None:
    """Return the direct sync of a database, None where there is none: the pure build."""
    try:
        from storage.local._syncer import Syncer, length
    except ImportError:
        return None
    return DirectSync(database, Syncer(), length)
