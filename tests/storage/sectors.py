"""A disk with pages that cannot be read, for what reads slots inside a test."""

import errno
import os

import pytest

from storage.local import slot_file
from storage.local.slot_file import SLOT_BYTES
from tests.stand_in import replace_in


def bad_sectors(patch: pytest.MonkeyPatch, *slots: int) -> None:
    """Make these slots of every file unreadable, as long as `patch` holds."""

    def pread(file: int, size: int, position: int) -> bytes:
        if position // SLOT_BYTES in slots:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(file, size, position)

    replace_in(patch, slot_file, "os", pread=pread)
