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
from tests.storage.sectors import bad_sectors

LAYOUT = struct.Struct(">8sQ")
MAGIC = b"TESTING1"
OLDER = b"TESTING0"
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
    whole, torn = encode(LAYOUT, MAGIC, 7), encode(LAYOUT, MAGIC, 8)
    for length in range(USED):
        path.write_bytes(whole + torn[:length].ljust(SLOT_BYTES, b"\0"))
        assert _read(path) == (7,)


def _slots(path: Path) -> list[tuple[int, ...] | None]:
    pages = path.read_bytes()
    return [decode(LAYOUT, MAGIC, pages[at:][:SLOT_BYTES]) for at in (0, SLOT_BYTES)]


def test_both_slots_say_the_same(path: Path) -> None:
    _write(path, 7, 8)
    assert _slots(path) == [(8,), (8,)]
    _write(path, 9)
    assert _slots(path) == [(9,), (9,)]


def test_a_slot_is_durable_before_the_other_one_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(path, LAYOUT, MAGIC)
    steps: list[object] = []

    def pwrite(file: int, data: bytes, position: int) -> int:
        steps.append(position // SLOT_BYTES)
        return os.pwrite(file, data, position)

    def fdatasync(file: int) -> None:
        steps.append("sync")
        os.fdatasync(file)

    with monkeypatch.context() as patch:
        replace_in(patch, slot_file, "os", pwrite=pwrite, fdatasync=fdatasync)
        slots.write(7)
    slots.close()
    assert steps == [0, "sync", 1, "sync"]


def test_after_a_crash_between_the_slots_the_older_one_is_written_first(path: Path) -> None:
    for newer in (0, 1):
        content = [encode(LAYOUT, MAGIC, 7 + (newer == number)) for number in (0, 1)]
        path.write_bytes(b"".join(content))
        slots = Slots(path, LAYOUT, MAGIC)
        assert slots.numbers == (8,)
        with pytest.MonkeyPatch.context() as patch:
            _fail_on(patch, "fdatasync")
            with pytest.raises(OSError, match="Input/output error"):
                slots.write(9)
        slots.close()
        assert _slots(path)[newer] == (8,)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_slot_that_cannot_be_read_is_passed_over_for_its_twin(
    path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    _write(path, 7, 8)
    with monkeypatch.context() as patch:
        bad_sectors(patch, bad)
        slots = Slots(path, LAYOUT, MAGIC)
        assert (slots.numbers, slots.unread) == ((8,), "")
        _fail_on(patch, "fdatasync")
        with pytest.raises(OSError, match="Input/output error"):
            slots.write(9)  # into the bad one: the other one is still whole
    slots.close()
    assert _slots(path)[1 - bad] == (8,)


@pytest.mark.parametrize("bad", [(0,), (1,), (0, 1)])
def test_an_unread_slot_of_those_that_were_written_in_turn_may_be_the_newest(
    path: Path, monkeypatch: pytest.MonkeyPatch, bad: tuple[int, ...]
) -> None:
    path.write_bytes(encode(LAYOUT, OLDER, 7) + encode(LAYOUT, OLDER, 8))
    with monkeypatch.context() as patch:
        bad_sectors(patch, *bad)
        slots = Slots(path, LAYOUT, MAGIC, older=((LAYOUT, OLDER),))
        assert (slots.numbers, slots.unread) == (None, os.strerror(errno.EIO))
        slots.close()
    slots = Slots(path, LAYOUT, MAGIC, older=((LAYOUT, OLDER),))
    slots.write(9)
    slots.close()
    assert _slots(path) == [(9,), (9,)]


def test_an_unread_slot_beside_a_torn_one_is_not_passed_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(bytes(SLOT_BYTES) + encode(LAYOUT, MAGIC, 8))
    with monkeypatch.context() as patch:
        bad_sectors(patch, 1)
        slots = Slots(path, LAYOUT, MAGIC)
        assert slots.numbers is None and slots.unread
        slots.close()


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


def _fail_on(patch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    replace_in(patch, slot_file, "os", **{call: fail})


def test_a_failed_write_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(path, LAYOUT, MAGIC)
    slots.write(1)
    with monkeypatch.context() as patch:
        _fail_on(patch, "fdatasync")
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
