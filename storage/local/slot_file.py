"""A small file with a few numbers that can be written while the disk is full.

Two slots of one page each, written in place, one after the other, with the same numbers: a torn
write of one leaves the other intact, and where one cannot be read any more the other one says the
same. Once the file exists a write needs no space and no metadata. Earlier versions wrote each time
only one slot, in turn: there the other one says less, and cannot stand for it. Does not know what
the numbers mean. Read next: `storage.local.watermark`, `storage.local.heartbeat_file`.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from storage.errors import Unrecoverable

SLOT_BYTES: Final = 4096
NUMBER_BYTES: Final = 8
CRC: Final = struct.Struct(">I")


class Slots:
    """The file. The valid slot with the greatest numbers counts; a bad checksum is not valid.

    A slot that the disk does not give back is passed over if the other one was written as its twin.
    """

    def __init__(
        self,
        path: str | Path,
        layout: struct.Struct,
        magic: bytes,
        *,
        older: Sequence[tuple[struct.Struct, bytes]] = (),
    ) -> None:
        """Open or create the file; `layout` packs the magic (`8s`) and the numbers.

        Slots of `older` layouts are read too; numbers that they lack are 0. They have no twin.
        Raises `Unrecoverable` when the file cannot be opened.
        """
        self.path: Final = Path(path)
        self.numbers: tuple[int, ...] | None = None  # None = no slot is valid
        # Why nobody knows the newest numbers: a slot that may have them cannot be read. "" = known.
        self.unread: str = ""
        self._layout: Final = layout
        self._magic: Final = magic
        self._next = 0  # the slot to write next
        self._file = -1
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(self._file).st_size < 2 * SLOT_BYTES:
                # Allocated in full: later writes need no space and no metadata.
                os.pwrite(self._file, bytes(2 * SLOT_BYTES), 0)
                os.fsync(self._file)
                sync_directory(self.path.parent)
        except OSError as error:
            self.close()
            raise Unrecoverable(f"{self.path}: {error.strerror}") from error
        self._read(((layout, magic), *older))

    def _read(self, forms: Sequence[tuple[struct.Struct, bytes]]) -> None:
        unread, has_twin = "", False
        for number in (0, 1):
            try:
                slot = os.pread(self._file, SLOT_BYTES, SLOT_BYTES * number)
            except OSError as error:
                unread = unread or error.strerror or str(error)
                continue
            for form, name in forms:
                found = decode(form, name, slot)
                if found is None:
                    continue
                has_twin = name == self._magic
                found += (0,) * ((self._layout.size - form.size) // NUMBER_BYTES)
                if self.numbers is None or found >= self.numbers:
                    self.numbers = found
                    self._next = 1 - number
        if unread and not has_twin:
            self.unread, self.numbers = unread, None

    def write(self, *numbers: int) -> None:
        """Write these numbers into both slots, the older one first. Durable on return.

        Raises `OSError`; then one slot still holds the numbers from before, or both the new ones.
        """
        slot = encode(self._layout, self._magic, *numbers)
        for _ in (0, 1):
            os.pwrite(self._file, slot, SLOT_BYTES * self._next)
            os.fdatasync(self._file)  # before the other one is touched
            self.numbers = numbers
            self._next = 1 - self._next

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def encode(layout: struct.Struct, magic: bytes, *numbers: int) -> bytes:
    """Return the bytes of a slot: magic, numbers, crc32 of both, zeros to the end of the page."""
    body = layout.pack(magic, *numbers)
    return (body + CRC.pack(zlib.crc32(body))).ljust(SLOT_BYTES, b"\0")


def decode(layout: struct.Struct, magic: bytes, slot: bytes) -> tuple[int, ...] | None:
    """Return the numbers of a slot, or None if it was never or only partly written."""
    body = slot[: layout.size]
    if len(slot) < layout.size + CRC.size or not body.startswith(magic):
        return None
    if CRC.unpack_from(slot, layout.size)[0] != zlib.crc32(body):
        return None
    return layout.unpack(body)[1:]


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises `OSError`."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
