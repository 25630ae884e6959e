"""What the database once promised to hold, in a small file beside it: two slots, written in turn.

RocksDB finds damage only where it looks for it: a live write-ahead log that is short or zeroed is
recovered as if its end had never been written. So after a sync, at most once a second, the number
of batches it covered is written here and synced, and at start the database must hold that many. A
watermark may be behind the database by that second, and never ahead of it. Must know nothing of the
database but its number of batches. Read next: `storage.local.committer`, which advances it.
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

    The epoch counts how often an operator accepted a loss; within one, sequences only grow. The
    slot with the greatest (epoch, sequence) counts.
    """

    def __init__(self, path: str | Path) -> None:
        """Open or create the file. Raises `Unrecoverable` when that fails."""
        self._slots: Final = Slots(path, SLOT, MAGIC)
        self.epoch, self.sequence = self._slots.numbers or (0, 0)

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
    """Return (epoch, sequence) of a slot, or None if it was never or not completely written."""
    found = decode_slot(SLOT, MAGIC, slot)
    return None if found is None else (found[0], found[1])
