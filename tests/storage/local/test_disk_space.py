"""The low-water mark and the ballast."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage.errors import Recoverable, Unrecoverable
from storage.limits import MIB, RESERVE_BYTES
from storage.local import disk_space
from storage.local.disk_space import Space, is_full
from tests.stand_in import replace_in

Disk = Callable[[int], None]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk of 100 GiB with as many MiB free as told."""
    free = [0]

    def statvfs(path: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=free[0], f_blocks=100 * 1024, f_frsize=MIB)

    replace_in(monkeypatch, disk_space, "os", statvfs=statvfs)

    def leave(mebibytes: int) -> None:
        free[0] = mebibytes

    return leave


def test_the_mark_is_what_rocksdb_may_need_and_a_twentieth_of_the_disk(
    disk: Disk, tmp_path: Path
) -> None:
    space = Space(tmp_path / "ballast", ballast_bytes=0)
    assert space.low_water_bytes() == 5 * 1024 * MIB > RESERVE_BYTES
    small = Space(tmp_path / "ballast", ballast_bytes=0, low_water_bytes=10 * MIB)
    assert small.low_water_bytes() == 10 * MIB, "a configured mark is the mark"


def test_a_small_disk_keeps_what_rocksdb_may_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = SimpleNamespace(f_bavail=1, f_blocks=1000, f_frsize=MIB)
    replace_in(monkeypatch, disk_space, "os", statvfs=lambda path: disk)
    assert Space(tmp_path / "ballast", ballast_bytes=0).low_water_bytes() == RESERVE_BYTES


def test_one_message_cannot_toggle_the_mark(disk: Disk, tmp_path: Path) -> None:
    space = Space(tmp_path / "ballast", ballast_bytes=0, low_water_bytes=80 * MIB)
    answers = []
    for free in (200, 80, 79, 80, 89, 90, 80, 79):
        disk(free)
        answers.append(space.check())
    assert answers == [False, False, True, True, True, False, False, True]


def test_a_mark_of_zero_refuses_nothing(disk: Disk, tmp_path: Path) -> None:
    space = Space(tmp_path / "ballast", ballast_bytes=0, low_water_bytes=0)
    disk(0)
    assert not space.check()


def test_the_ballast_takes_real_room_and_gives_it_back(tmp_path: Path) -> None:
    space = Space(tmp_path / "ballast", ballast_bytes=4 * MIB, low_water_bytes=0)
    assert not space.has_ballast()
    assert space.create_ballast()
    assert space.create_ballast()
    assert space.has_ballast()
    status = (tmp_path / "ballast").stat()
    assert status.st_blocks * 512 >= 4 * MIB
    assert status.st_mode & 0o777 == 0o600
    assert space.release_ballast()
    assert not space.release_ballast()
    assert not space.has_ballast()


def test_the_ballast_comes_back_when_there_is_room_for_it_and_the_mark(
    disk: Disk, tmp_path: Path
) -> None:
    space = Space(tmp_path / "ballast", ballast_bytes=1 * MIB, low_water_bytes=80 * MIB)
    for free, has_ballast in ((70, False), (90, False), (91, True), (70, True)):
        disk(free)
        space.check()
        assert space.has_ballast() is has_ballast


def test_a_ballast_that_does_not_fit_is_not_begun(tmp_path: Path, disk: Disk) -> None:
    """ext4 gives it all that is left before it fails: other programs would find the disk full."""
    space = Space(tmp_path / "ballast", ballast_bytes=2 * MIB, low_water_bytes=0)
    disk(1)
    assert not space.create_ballast()
    assert not (tmp_path / "ballast").exists()
    disk(2)
    assert space.create_ballast()
    assert (tmp_path / "ballast").stat().st_size == 2 * MIB


def test_a_ballast_that_did_not_get_its_space_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    replace_in(monkeypatch, disk_space, "os", posix_fallocate=refuse)
    space = Space(tmp_path / "ballast", ballast_bytes=2 * MIB, low_water_bytes=0)
    assert not space.create_ballast()
    assert not (tmp_path / "ballast").exists()


def test_no_ballast_is_a_ballast_of_zero_bytes(tmp_path: Path) -> None:
    space = Space(tmp_path / "ballast", ballast_bytes=0, low_water_bytes=0)
    assert space.has_ballast()
    assert not space.check()
    assert not (tmp_path / "ballast").exists()
    assert not space.release_ballast()


def test_a_ballast_that_cannot_be_deleted_is_said(tmp_path: Path) -> None:
    (tmp_path / "ballast").mkdir()
    with pytest.raises(Unrecoverable, match="ballast"):
        Space(tmp_path / "ballast", ballast_bytes=1).release_ballast()


def test_a_stall_is_not_a_full_disk() -> None:
    assert is_full(Recoverable("write failed: IO error: No space left on device: While appending"))
    assert not is_full(Recoverable("write failed: Result incomplete: Write stall"))


def test_the_size_of_a_disk_does_not_depend_on_what_is_free(disk: Disk, tmp_path: Path) -> None:
    space = Space(tmp_path / "ballast", ballast_bytes=0)
    for free in (7, 700):
        disk(free)
        assert space.total_bytes() == 100 * 1024 * MIB


def test_a_check_asks_the_file_system_once_and_keeps_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []

    def statvfs(path: object) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(f_bavail=7 * 1024, f_blocks=100 * 1024, f_frsize=MIB)

    replace_in(monkeypatch, disk_space, "os", statvfs=statvfs)
    space = Space(tmp_path / "ballast", ballast_bytes=0)
    assert space.measured is None
    assert not space.check()
    assert asked == [tmp_path]
    measured = space.measured
    assert measured is not None
    assert measured.free_bytes == 7 * 1024 * MIB
    assert measured.total_bytes == 100 * 1024 * MIB
    assert measured.low_water_bytes == space.low_water_bytes() == 5 * 1024 * MIB


def test_nothing_is_known_of_a_disk_that_cannot_be_asked(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    space = Space(folder / "ballast", ballast_bytes=0)
    space.check()
    folder.rmdir()
    with pytest.raises(OSError, match="No such file"):
        space.check()
    assert space.measured is None
