"""Is the sign of life beside the store found again, and what does a failing disk do to it?"""

import errno
import os
from pathlib import Path

import pytest

from storage.errors import Recoverable, StorageError, Unrecoverable
from storage.local import slot_file
from storage.local.heartbeat_file import Pulse, decode, encode
from storage.local.slot_file import SLOT_BYTES
from tests.stand_in import replace_in
from tests.storage.sectors import bad_sectors

VERSION_1 = "484650554c5345310000000000000003000001920000abcde44f2bd5"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pulse"


def _read(path: Path) -> int:
    pulse = Pulse(path)
    pulse.close()
    return pulse.broker_ms


def test_a_broker_that_never_needed_it_has_none(path: Path) -> None:
    assert _read(path) == 0


def test_the_last_sign_counts_even_if_time_went_back(path: Path) -> None:
    pulse = Pulse(path)
    for broker_ms in (1000, 1500, 700):
        pulse.write(broker_ms)
        assert pulse.broker_ms == broker_ms
    pulse.close()
    pulse.close()
    assert _read(path) == 700
    again = Pulse(path)
    again.write(600)
    again.close()
    assert _read(path) == 600


def test_a_page_that_cannot_be_read_needs_its_twin(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = Pulse(path)
    pulse.write(1000)
    pulse.write(2000)
    pulse.close()
    with monkeypatch.context() as patch:
        bad_sectors(patch, 0)
        assert _read(path) == 2000
    path.write_bytes(bytes.fromhex(VERSION_1).ljust(2 * SLOT_BYTES, b"\0"))
    assert _read(path) == 0x1920000ABCD
    with monkeypatch.context() as patch:
        bad_sectors(patch, 1)  # it may say more
        with pytest.raises(Unrecoverable, match=r"cannot be read: .*; move the file away"):
            Pulse(path)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, Recoverable), (errno.EDQUOT, Recoverable), (errno.EIO, Unrecoverable)],
)
def test_a_sign_that_finds_no_room_may_be_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError]
) -> None:
    pulse = Pulse(path)
    pulse.write(1000)

    def fail(file: int, data: bytes, position: int) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        replace_in(patch, slot_file, "os", pwrite=fail)
        with pytest.raises(kind, match=os.strerror(number)):
            pulse.write(2000)
    assert pulse.broker_ms == 1000
    pulse.write(3000)
    pulse.close()
    assert _read(path) == 3000


def test_the_format_stays_readable() -> None:
    """Golden bytes: a change needs another magic."""
    golden = "484650554c5345320000000000000003000001920000abcdb7d57051"
    assert encode(3, 0x1920000ABCD)[:28].hex() == golden
    for each in (golden, VERSION_1):
        assert decode(bytes.fromhex(each)) == (3, 0x1920000ABCD)
    assert decode(bytes(28)) is None
