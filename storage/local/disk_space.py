"""Disk space: the low-water mark, and a ballast file for when the disk is full.

Below the low-water mark the broker refuses new durable state and keeps serving the rest. If the
disk fills up all the same (another program filled it), deleting the ballast gives RocksDB room to
open again and to record what sessions acknowledge. Must never write or delete any other file.
Read next: `storage.local.rocks.RocksStore.reopen`.
"""

import os
from pathlib import Path
from typing import Final

from storage.errors import Recoverable, Unrecoverable
from storage.limits import RESERVE_BYTES

# The default mark is this share of the disk, and at least what RocksDB may still need.
FREE_PERCENT: Final = 5
# Hysteresis: accepting resumes at the mark plus mark / RESUME_FRACTION, so that one message cannot
# toggle it.
RESUME_FRACTION: Final = 8


class Measured:
    """What a look at the file system found."""

    __slots__ = ("free_bytes", "low_water_bytes", "total_bytes")

    def __init__(self, free_bytes: int, total_bytes: int, low_water_bytes: int) -> None:
        self.free_bytes: int = free_bytes  # that an unprivileged process may still write
        self.total_bytes: int = total_bytes
        self.low_water_bytes: int = low_water_bytes


class Space:
    """Watch the file system that holds the data directory."""

    def __init__(
        self, ballast: str | Path, *, ballast_bytes: int, low_water_bytes: int | None = None
    ) -> None:
        """`ballast` is the path of the file, on the disk to watch; with 0 bytes there is none.

        `low_water_bytes` is the mark, 0 for no mark, None for max(RESERVE_BYTES, 5 % of the disk).
        """
        self.ballast: Final = Path(ballast)
        self.ballast_bytes: Final = ballast_bytes
        self.is_low = False
        self.measured: Measured | None = None  # by the last `check`; None = it failed
        self._low_water_bytes: Final = low_water_bytes

    def free_bytes(self) -> int:
        """Return the bytes an unprivileged process may still write."""
        disk = os.statvfs(self.ballast.parent)
        return disk.f_bavail * disk.f_frsize

    def total_bytes(self) -> int:
        """Return the size of the file system in bytes."""
        disk = os.statvfs(self.ballast.parent)
        return disk.f_blocks * disk.f_frsize

    def low_water_bytes(self) -> int:
        """Return the low-water mark in bytes."""
        if self._low_water_bytes is not None:
            return self._low_water_bytes
        return self._mark_of(self.total_bytes())

    def _mark_of(self, total_bytes: int) -> int:
        if self._low_water_bytes is not None:
            return self._low_water_bytes
        return max(RESERVE_BYTES, total_bytes * FREE_PERCENT // 100)

    def _measure(self) -> Measured:
        """Ask the file system once for everything."""
        self.measured = None
        disk = os.statvfs(self.ballast.parent)
        total = disk.f_blocks * disk.f_frsize
        self.measured = Measured(disk.f_bavail * disk.f_frsize, total, self._mark_of(total))
        return self.measured

    def room_bytes(self) -> int:
        """Return the bytes that are free above the low-water mark."""
        return max(0, self.free_bytes() - self.low_water_bytes())

    def has_ballast(self) -> bool:
        """Return whether the ballast exists in full size."""
        try:
            return self.ballast.stat().st_size >= self.ballast_bytes
        except FileNotFoundError:
            return self.ballast_bytes == 0

    def check(self) -> bool:
        """Check the disk; return whether new durable state must be refused.

        Call it once a second. Restores the ballast once there is room for it and the mark.
        """
        measured = self._measure()
        mark, free = measured.low_water_bytes, measured.free_bytes
        resume = mark + mark // RESUME_FRACTION
        self.is_low = free < (resume if self.is_low else mark)
        if not self.is_low and not self.has_ballast() and free >= resume + self.ballast_bytes:
            self.create_ballast()
        return self.is_low

    def create_ballast(self) -> bool:
        """Allocate the ballast; return False, with nothing allocated, if there is no room."""
        if self.has_ballast():
            return True
        if self.free_bytes() < self.ballast_bytes:
            # ext4 would take the whole disk before it fails: other programs would find it full.
            return False
        try:
            file = os.open(
                self.ballast, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
            try:
                os.posix_fallocate(file, 0, self.ballast_bytes)
            finally:
                os.close(file)
        except OSError:
            self.release_ballast()
            return False
        return True

    def release_ballast(self) -> bool:
        """Delete the ballast; return whether it existed. Idempotent.

        Call it when the store raised `Recoverable` for lack of space.
        """
        try:
            self.ballast.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Unrecoverable(f"ballast {self.ballast}: {error.strerror}") from error
        return True


def is_full(error: Recoverable) -> bool:
    """Return whether `error` means a full disk (and not a write stall)."""
    return "No space left" in str(error)
