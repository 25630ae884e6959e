"""A stand-in for the thread of `storage/local/_syncer.c`, which syncs when the test says so."""

import os
from typing import Any, cast

from storage.local.direct_sync import DirectSync
from storage.local.rocks import RocksStore

Submitted = tuple[int, int, int, int, int]


class PatientSyncer:
    """Takes what is submitted; `sync` and `fail` are what the thread would do."""

    def __init__(self) -> None:
        self.submitted: list[int] = []  # serials
        self.wanted: Submitted | None = None
        self.done: tuple[int, int, int, int] | None = None
        self.failure = 0
        self.is_told = False
        self.is_closed = False
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self.event

    def submit(self, fd: int, serial: int, sequence: int, log: int, length: int) -> None:
        assert not self.is_closed
        self.submitted.append(serial)
        if not self.failure:
            self.wanted = (fd, serial, sequence, log, length)

    def sync(self) -> None:
        """Do what was submitted."""
        if self.wanted is not None:
            file, *covered = self.wanted
            self.wanted = None
            os.fdatasync(file)
            self.done = cast(Any, tuple(covered))
            self._tell()

    def fail(self, failure: int) -> None:
        """Let the sync that was submitted fail."""
        assert self.wanted is not None
        self.wanted = None
        self.failure = failure
        self._tell()

    def _tell(self) -> None:
        if not self.is_told:
            os.eventfd_write(self.event, 1)
        self.is_told = True

    def collect(self) -> tuple[int, int, int, int] | None:
        if not self.is_told:
            return None
        self.is_told = False
        os.eventfd_read(self.event)
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))
        return self.done

    def settle(self) -> int:
        self.sync()
        return self.failure

    def close(self) -> None:
        if not self.is_closed:
            self.sync()
            os.close(self.event)
        self.is_closed = True


def with_patience(store: RocksStore) -> tuple[PatientSyncer, DirectSync]:
    """Give `store` a direct sync that waits for the test."""
    syncer = PatientSyncer()
    direct = DirectSync(store, cast(Any, syncer), lambda file: os.fstat(file).st_size)
    store._direct = direct
    return syncer, direct
