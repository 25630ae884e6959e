"""Room on the disk: stop taking things in before RocksDB runs out, and a ballast for when it did.

Below the low-water mark the broker refuses new durable state and keeps serving the rest. If RocksDB
meets a full disk all the same (somebody else filled it), deleting the ballast file gives it room to
open again and to write down what sessions acknowledge. Must never delete or write anything but the
ballast. Read next: `storage.local.rocks.RocksStore.reopen`.
"""

import os
from pathlib import Path
from typing import Final

from storage.errors import Recoverable, Unrecoverable
from storage.limits import RESERVE_BYTES

# The default mark: what RocksDB may still need, and at least a twentieth of the disk.
FREE_PERCENT: Final = 5
# Taking in again needs this much more than the mark, so that one message cannot toggle it.
RESUME_FRACTION: Final = 8


class Space:
    """Watches the file system that holds the data directory."""

    def __init__(
        self, ballast: str | Path, *, ballast_bytes: int, low_water_bytes: int | None = None
    ) -> None:
        """`ballast` is the file's path, on the disk to be watched; 0 bytes: no ballast.

        `low_water_bytes` is the mark itself, 0 for never; None for max(RESERVE_BYTES, 5 %).
        """
        self.ballast: Final = Path(ballast)
        self.ballast_bytes: Final = ballast_bytes
        self.is_low = False
        self._low_water_bytes: Final = low_water_bytes

    def free_bytes(self) -> int:
        """Return what an unprivileged process may still write."""
        disk = os.statvfs(self.ballast.parent)
        return disk.f_bavail * disk.f_frsize

    def low_water_bytes(self) -> int:
        """Return the mark."""
        if self._low_water_bytes is not None:
            return self._low_water_bytes
        disk = os.statvfs(self.ballast.parent)
        return max(RESERVE_BYTES, disk.f_blocks * disk.f_frsize * FREE_PERCENT // 100)

    def has_ballast(self) -> bool:
        """Return whether the ballast is there in full."""
        try:
            return self.ballast.stat().st_size >= self.ballast_bytes
        except FileNotFoundError:
            return self.ballast_bytes == 0

    def check(self) -> bool:
        """Look at the disk; return whether new durable state is to be refused.

        To be called once a second. Puts the ballast back once there is room for it and the mark.
        """
        mark = self.low_water_bytes()
        resume = mark + mark // RESUME_FRACTION
        free = self.free_bytes()
        self.is_low = free < (resume if self.is_low else mark)
        if not self.is_low and not self.has_ballast() and free >= resume + self.ballast_bytes:
            self.create_ballast()
        return self.is_low

    def create_ballast(self) -> bool:
        """Reserve the ballast's blocks; return False, and reserve nothing, if there is no room."""
        if self.has_ballast():
            return True
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
        """Give the ballast's room back to the disk; return whether there was any. Idempotent.

        To be called when the store raised `Recoverable` for want of space.
        """
        try:
            self.ballast.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Unrecoverable(f"ballast {self.ballast}: {error.strerror}") from error
        return True


def is_full(error: Recoverable) -> bool:
    """Return whether `error` is a want of space (and not a write stall)."""
    return "No space left" in str(error)
