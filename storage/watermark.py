"""What the database once promised to hold, in a small file beside it: two slots, written in turn.

RocksDB finds damage only where it looks for it: a live write-ahead log that is short or zeroed is
recovered as if its end had never been written. So after a sync, at most once a second, the number
of batches it covered is written here and synced, and at start the database must hold that many. A
watermark may be behind the database by that second, and never ahead of it. Must know nothing of the
database but its number of batches. Read next: `storage.writer`, which advances it.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final

from storage.errors import DataLoss, Unrecoverable

# One slot a page, so that a torn write of one leaves the other alone. All of a slot but its first
# bytes is zero: magic, epoch, sequence, crc32 of what is before it.
SLOT_BYTES: Final = 4096
SLOT: Final = struct.Struct(">8sQQ")
CRC: Final = struct.Struct(">I")
MAGIC: Final = b"HFMARK01"


class Watermark:
    """The durable watermark of one database.

    The epoch counts how often an operator accepted a loss; within one, sequences only grow. The
    slot with the greatest (epoch, sequence) counts; a slot that does not check is no slot.
    """

    def __init__(self, path: str | Path) -> None:
        """Open or create the file. Raises `Unrecoverable` when that fails."""
        self.path: Final = Path(path)
        self.epoch = 0
        self.sequence = 0
        self._slot = 0  # the one to be written next
        self._file = -1
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(self._file).st_size < 2 * SLOT_BYTES:
                # Written in full once: later writes need no space and no metadata.
                os.pwrite(self._file, bytes(2 * SLOT_BYTES), 0)
                os.fsync(self._file)
                _sync_directory(self.path.parent)
            slots = [os.pread(self._file, SLOT_BYTES, SLOT_BYTES * number) for number in (0, 1)]
        except OSError as error:
            self.close()
            raise Unrecoverable(f"watermark {self.path}: {error.strerror}") from error
        for number, slot in enumerate(slots):
            mark = decode(slot)
            if mark is not None and mark >= (self.epoch, self.sequence):
                self.epoch, self.sequence = mark
                self._slot = 1 - number

    def check(self, sequence: int, *, accept_data_loss: bool = False) -> int:
        """Return how many batches a database that holds `sequence` of them has lost, 0 as a rule.

        Raises `DataLoss` when it has lost some; with `accept_data_loss` starts a new epoch at
        `sequence` instead, durably, so that the loss is accepted once and not for ever.
        """
        lost = max(0, self.sequence - sequence)
        if lost and not accept_data_loss:
            raise DataLoss(
                f"the database holds {sequence} batches, but {self.sequence} were durable: at "
                f"least {lost} are lost; restore a backup, or start with --accept-data-loss"
            )
        if lost:
            self._write(self.epoch + 1, sequence)
        return lost

    def advance(self, sequence: int) -> None:
        """Promise, durably on return, that the database holds `sequence` batches.

        To be called only after the sync that made it true. Raises `Unrecoverable` when the write or
        the sync failed: the disk that also holds the database is failing.
        """
        if sequence > self.sequence:
            self._write(self.epoch, sequence)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, epoch: int, sequence: int) -> None:
        try:
            os.pwrite(self._file, encode(epoch, sequence), SLOT_BYTES * self._slot)
            os.fdatasync(self._file)
        except OSError as error:
            raise Unrecoverable(f"watermark {self.path}: {error.strerror}") from error
        self.epoch = epoch
        self.sequence = sequence
        self._slot = 1 - self._slot


def encode(epoch: int, sequence: int) -> bytes:
    """Return the bytes of a slot."""
    body = SLOT.pack(MAGIC, epoch, sequence)
    return (body + CRC.pack(zlib.crc32(body))).ljust(SLOT_BYTES, b"\0")


def decode(slot: bytes) -> tuple[int, int] | None:
    """Return (epoch, sequence) of a slot, or None if it was never or not completely written."""
    body = slot[: SLOT.size]
    if len(slot) < SLOT.size + CRC.size or not body.startswith(MAGIC):
        return None
    if CRC.unpack_from(slot, SLOT.size)[0] != zlib.crc32(body):
        return None
    _, epoch, sequence = SLOT.unpack(body)
    return epoch, sequence


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
