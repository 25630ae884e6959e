"""The watermark: what the database must hold, in a small file beside it.

RocksDB recovers a write-ahead log that is short or zeroed as if its end had never been written. So
after a sync, at most once a second, the number of batches it covered is written here and synced,
with the place in the log up to which all bytes were synced. At start the database must hold that
many. The watermark may be behind the database by that second, but never ahead of it. A valid slot
is written before the database is created, so a database without one has lost its watermark.
Knows nothing of the database but these numbers. Read next: `storage.local.committer`, which
advances it, `storage.local.torn_log`, which uses it.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from storage.errors import DataLoss, Unrecoverable
from storage.local.slot_file import Slots
from storage.local.slot_file import decode as decode_slot
from storage.local.slot_file import encode as encode_slot

# magic, epoch, sequence, opening log, log, length, manifest, manifest length; crc32 after it
SLOT: Final = struct.Struct(">8sQQQQQQQ")
MAGIC: Final = b"HFMARK03"
MAGIC_2: Final = b"HFMARK02"  # the same numbers, in one of the slots in turn
SLOT_1: Final = struct.Struct(">8sQQ")  # magic, epoch, sequence
MAGIC_1: Final = b"HFMARK01"
OLDER: Final = ((SLOT, MAGIC_2), (SLOT_1, MAGIC_1))


class Synced(NamedTuple):
    """What a completed sync covers. Taken before the sync, true once it has returned.

    A log of 0 means that the place is not known.
    """

    sequence: int  # number of batches
    opening_log: int = 0  # made when the database was opened; older logs are not needed any more
    log: int = 0  # the newest log
    length: int = 0  # bytes of it
    manifest: int = 0  # the newest MANIFEST, 0 = not known
    manifest_length: int = 0


class Source(Protocol):
    """A store that knows what its syncs cover."""

    @property
    def opening_log(self) -> int:
        """Return the log that was made when the store was opened, or reopened."""
        ...

    def durable_sequence(self) -> int:
        """Return the number of batches that the last completed sync covers."""
        ...

    def synced(self) -> Synced:
        """Return all that the last completed sync covers."""
        ...


class Watermark:
    """The durable watermark of one database.

    The epoch counts how often an operator accepted a loss, or replaced the database; within one
    epoch the numbers only grow. The slot with the greatest (epoch, sequence, place) counts.
    """

    def __init__(self, path: str | Path) -> None:
        """Open or create the file.

        Raises `Unrecoverable` when that fails, and `DataLoss` when the disk does not give back what
        it said last: a page that says less would hide a loss.
        """
        self._slots: Final = Slots(path, SLOT, MAGIC, older=OLDER)
        self.path: Final = self._slots.path
        if self._slots.unread:
            self._slots.close()
            raise DataLoss(
                f"{self.path}: cannot be read: {self._slots.unread}; so how much the database must "
                "hold is not known; restore the file or a backup, or move the file away and start "
                "with --accept-data-loss, which takes what the database holds for all"
            )
        self.is_valid = self._slots.numbers is not None  # False: new, or lost
        self.epoch, *rest = self._slots.numbers or (0, 0)
        self.synced = Synced(*rest)

    @property
    def sequence(self) -> int:
        """Return the number of batches that the database must hold."""
        return self.synced.sequence

    def check(self, sequence: int, *, accept_data_loss: bool = False, found: str = "") -> int:
        """Return how many batches a database that holds `sequence` of them has lost, normally 0.

        Raises `DataLoss` when it has lost some; `found` says what is wrong with which file, if that
        is known. With `accept_data_loss` it instead starts a new epoch at `sequence`, durable on
        return, so that only this loss is accepted.
        """
        lost = max(0, self.sequence - sequence)
        if lost and not accept_data_loss:
            raise DataLoss(
                f"the database holds {sequence} batches, but {self.sequence} were durable: at "
                f"least {lost} are lost{found and f' ({found})'}; restore a backup, or start with "
                "--accept-data-loss"
            )
        if lost:
            self._write(self.epoch + 1, Synced(sequence))
        return lost

    def begin(self, synced: Synced) -> None:
        """Record what a database holds that was just opened and checked. Durable on return.

        Raises `Unrecoverable`.
        """
        assert synced.sequence >= self.sequence, "checked before"
        # The place goes back if the database was replaced by a copy of it.
        self._write(self.epoch + (synced < self.synced), synced)

    def advance(self, synced: Synced) -> None:
        """Record what a sync covered. Durable on return.

        Call it only after that sync. Raises `Unrecoverable` when the write or the sync failed: the
        disk is failing, and it also holds the database.
        """
        if synced.sequence > self.sequence or synced.opening_log > self.synced.opening_log:
            assert synced.sequence >= self.sequence, "never goes back"
            self._write(self.epoch, synced)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._slots.close()

    def _write(self, epoch: int, synced: Synced) -> None:
        try:
            self._slots.write(epoch, *synced)
        except OSError as error:
            raise Unrecoverable(f"watermark {self.path}: {error.strerror}") from error
        self.epoch = epoch
        self.synced = synced
        self.is_valid = True


def encode(epoch: int, synced: Synced) -> bytes:
    """Return the bytes of a slot."""
    return encode_slot(SLOT, MAGIC, epoch, *synced)


def decode(slot: bytes) -> tuple[int, Synced] | None:
    """Return (epoch, synced) of a slot, or None if it was never or only partly written."""
    for form, magic in ((SLOT, MAGIC), *OLDER):
        found = decode_slot(form, magic, slot)
        if found is not None:
            return found[0], Synced(*found[1:])
    return None
