"""The heartbeat file: broker time in a file beside the database, for when the disk is full.

A crash is dated by the last heartbeat, and sessions that were connected expire counting from there.
The heartbeat row is in the database, where a full disk may refuse it for hours. This file is
allocated in full once and then rewritten in place. A copy-on-write file system needs space even for
that; then the heartbeat is missing and the crash is dated too early by that time. Must not be
written by the event loop: it syncs. Read next: `storage.local.committer`, which writes it,
`storage.time.broker_clock`.
"""

import errno
import struct
from pathlib import Path
from typing import Final

from storage.errors import Recoverable, Unrecoverable
from storage.local.slot_file import Slots
from storage.local.slot_file import decode as decode_slot
from storage.local.slot_file import encode as encode_slot

SLOT: Final = struct.Struct(">8sQQ")  # magic, write count, broker time; crc32 after it
MAGIC: Final = b"HFPULSE2"
MAGIC_1: Final = b"HFPULSE1"  # the same numbers, in one of the slots in turn
NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))


class Pulse:
    """The last heartbeat outside the database."""

    def __init__(self, path: str | Path) -> None:
        """Open or create the file.

        Raises `Unrecoverable` when that fails, or what it says cannot be read.
        """
        self._slots: Final = Slots(path, SLOT, MAGIC, older=((SLOT, MAGIC_1),))
        if self._slots.unread:
            self._slots.close()
            raise Unrecoverable(
                f"{path}: cannot be read: {self._slots.unread}; move the file away and start "
                "again: after a crash on a full disk sessions may expire early by as long as it "
                "was full"
            )
        self._count, self.broker_ms = self._slots.numbers or (0, 0)  # broker_ms 0 = never written

    def write(self, broker_ms: int) -> None:
        """Write broker time. Syncs; durable on return.

        Raises `Recoverable` when the file system has no space even for this, `Unrecoverable` when
        the disk is failing.
        """
        try:
            self._slots.write(self._count + 1, broker_ms)
        except OSError as error:
            kind = Recoverable if error.errno in NO_ROOM else Unrecoverable
            raise kind(f"{self._slots.path}: {error.strerror}") from error
        self._count += 1
        self.broker_ms = broker_ms

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._slots.close()


def encode(count: int, broker_ms: int) -> bytes:
    """Return the bytes of a slot."""
    return encode_slot(SLOT, MAGIC, count, broker_ms)


def decode(slot: bytes) -> tuple[int, int] | None:
    """Return (count, broker_ms) of a slot, or None if it was never or only partly written."""
    found = decode_slot(SLOT, MAGIC, slot) or decode_slot(SLOT, MAGIC_1, slot)
    return None if found is None else (found[0], found[1])
