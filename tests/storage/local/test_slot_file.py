"""Do the numbers in two slots survive torn writes, damage, and a disk that is full?"""

import errno
import os
import struct
from pathlib import Path

import pytest

from storage.errors import Unrecoverable
from storage.local import slot_file
from storage.local.slot_file import SLOT_BYTES, Slots, decode, encode
from tests.stand_in import replace_in

LAYOUT = struct.Struct(">8sQ")
MAGIC = b"TESTING1"
USED = LAYOUT.size + 4  # bytes of a slot that mean something


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slots"


def _write(path: Path, *values: int) -> None:
    slots = Slots(path, LAYOUT, MAGIC)
    for value in values:
        slots.write(value)
        assert slots.numbers == (value,)
    slots.close()


def _read(path: Path) -> tuple[int, ...] | None:
    slots = Slots(path, LAYOUT, MAGIC)
    slots.close()
    return slots.numbers


def test_a_new_file_has_no_numbers(path: Path) -> None:
    assert _read(path) is None
    assert path.stat().st_size == 2 * SLOT_BYTES
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("values", [(5,), (5, 9), (10, 11, 12)])
def test_the_newest_numbers_are_found_again(path: Path, values: tuple[int, ...]) -> None:
    _write(path, *values)
    assert _read(path) == (values[-1],)


def test_a_torn_write_leaves_what_counted_before(path: Path) -> None:
    _write(path, 7, 8)
    whole = path.read_bytes()
    for length in range(USED):
        path.write_bytes(whole[:SLOT_BYTES] + whole[SLOT_BYTES:][:length].ljust(SLOT_BYTES, b"\0"))
        assert _read(path) == (7,)


def test_what_counts_is_never_overwritten(path: Path) -> None:
    _write(path, 7, 8)
    _write(path, 9)
    pages = path.read_bytes()
    found = [decode(LAYOUT, MAGIC, pages[at:][:SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    assert found == [(9,), (8,)]


def test_every_flipped_bit_is_noticed() -> None:
    slot = encode(LAYOUT, MAGIC, 12345)
    assert decode(LAYOUT, MAGIC, slot) == (12345,)
    assert decode(LAYOUT, b"TESTING2", slot) is None
    for position in range(USED):
        for bit in range(8):
            damaged = bytearray(slot)
            damaged[position] ^= 1 << bit
            assert decode(LAYOUT, MAGIC, bytes(damaged)) is None


def test_a_write_takes_no_room(path: Path) -> None:
    _write(path, 1)
    before = path.stat()
    _write(path, *range(2, 50))
    assert (path.stat().st_size, path.stat().st_blocks) == (before.st_size, before.st_blocks)


def test_a_failed_write_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(path, LAYOUT, MAGIC)
    slots.write(1)

    def fail(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        replace_in(patch, slot_file, "os", fdatasync=fail)
        with pytest.raises(OSError, match="Input/output error"):
            slots.write(2)
    assert slots.numbers == (1,)
    slots.write(3)
    slots.close()
    assert _read(path) == (3,)


def test_a_short_file_is_made_whole(path: Path) -> None:
    path.write_bytes(MAGIC)
    assert _read(path) is None
    assert path.stat().st_size == 2 * SLOT_BYTES


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unrecoverable, match=f"{tmp_path}: Is a directory"):
        Slots(tmp_path, LAYOUT, MAGIC)
