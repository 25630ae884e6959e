"""The watermark: how many batches the database must hold, in a small file beside it.

RocksDB recovers a live write-ahead log that is short or zeroed as if its end had never been
written. So after a sync, at most once a second, the number of batches it covered is written here
and synced, and at start the database must hold that many. The watermark may be behind the database
by that second, but never ahead of it. Knows nothing of the database but its number of batches.
Read next: `storage.local.committer`, which advances it.
"""

import struct
from pathlib import Path
from typing import Final

from storage.errors import DataLoss, Unrecoverable
from storage.local.slot_file import Slots
from storage.local.slot_file import decode as decode_slot
from storage.local.slot_file import encode as encode_slot

SLOT: Final = struct.Struct(">8sQQ")  # magic, epoch, sequence; crc32 after it
MAGIC: Final = b"HFMARK01"


class Watermark:
    """The durable watermark of one database.

    The epoch counts how often an operator accepted a loss; within one epoch the sequence only
    grows. The slot with the greatest (epoch, sequence) counts.
    """

    def __init__(self, path: str | Path) -> None:
        """Open or create the file. Raises `Unrecoverable` when that fails."""
        self._slots: Final = Slots(path, SLOT, MAGIC)
        self.epoch, self.sequence = self._slots.numbers or (0, 0)

    def check(self, sequence: int, *, accept_data_loss: bool = False) -> int:
        """Return how many batches a database that holds `sequence` of them has lost, normally 0.

        Raises `DataLoss` when it has lost some. With `accept_data_loss` it instead starts a new
        epoch at `sequence`, durable on return, so that only this loss is accepted.
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
        """Record that the database holds `sequence` batches. Durable on return.

        Call it only after the sync that covered them. Raises `Unrecoverable` when the write or the
        sync failed: the disk is failing, and it also holds the database.
        """
        if sequence > self.sequence:
            self._write(self.epoch, sequence)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._slots.close()

    def _write(self, epoch: int, sequence: int) -> None:
        try:
            self._slots.write(epoch, sequence)
        except OSError as error:
            raise Unrecoverable(f"watermark {self._slots.path}: {error.strerror}") from error
        self.epoch = epoch
        self.sequence = sequence


def encode(epoch: int, sequence: int) -> bytes:
    """Return the bytes of a slot."""
    return encode_slot(SLOT, MAGIC, epoch, sequence)


def decode(slot: bytes) -> tuple[int, int] | None:
    """Return (epoch, sequence) of a slot, or None if it was never or only partly written."""
    found = decode_slot(SLOT, MAGIC, slot)
    return None if found is None else (found[0], found[1])
