"""Does the watermark survive what the database must survive, and refuse what it must refuse?"""

from pathlib import Path

import pytest

from storage.errors import DataLoss, Unrecoverable
from storage.local.slot_file import SLOT_BYTES
from storage.local.watermark import SLOT, Synced, Watermark, decode, encode
from tests.storage.sectors import bad_sectors

GOLDEN = Path(__file__).parents[1] / "golden"
WHOLE = Synced(12345, 8, 10, 4711, 9, 551)
USED = SLOT.size + 4  # bytes of a slot that mean something


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "watermark"


def _marked(path: Path, *sequences: int) -> None:
    watermark = Watermark(path)
    for sequence in sequences:
        watermark.advance(Synced(sequence))
    watermark.close()


def _read(path: Path) -> tuple[int, int]:
    watermark = Watermark(path)
    watermark.close()
    return watermark.epoch, watermark.sequence


def test_a_new_watermark_promises_nothing(path: Path) -> None:
    watermark = Watermark(path)
    assert watermark.check(0) == 0
    assert not watermark.is_valid
    watermark.close()
    watermark.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_newest_promise_is_found_again(path: Path) -> None:
    for sequences in ((5,), (5, 9), (10, 11, 12)):
        _marked(path, *sequences)
        assert _read(path) == (0, sequences[-1])


def test_a_promise_never_goes_back(path: Path) -> None:
    _marked(path, 9, 4)
    assert _read(path) == (0, 9)


def test_a_database_below_the_watermark_is_refused_with_what_is_lost(path: Path) -> None:
    _marked(path, 100)
    watermark = Watermark(path)
    assert watermark.check(100) == 0
    assert watermark.check(101) == 0
    with pytest.raises(DataLoss, match=r"holds 97 batches, but 100 .* 3 are lost"):
        watermark.check(97)
    watermark.close()


def test_an_accepted_loss_is_accepted_once_and_not_for_ever(path: Path) -> None:
    _marked(path, 100)
    watermark = Watermark(path)
    assert watermark.check(97, accept_data_loss=True) == 3
    watermark.close()
    assert _read(path) == (1, 97)
    watermark = Watermark(path)
    assert watermark.check(97) == 0
    with pytest.raises(DataLoss):
        watermark.check(96)
    watermark.close()


def test_a_torn_slot_leaves_the_one_before_it(path: Path) -> None:
    before, newest = encode(0, Synced(7)), encode(0, Synced(8))
    for length in range(USED):
        path.write_bytes(before + newest[:length].ljust(SLOT_BYTES, b"\0"))
        assert _read(path) == (0, 7)
    path.write_bytes(before + newest)
    assert _read(path) == (0, 8)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_page_that_cannot_be_read_hides_no_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    _marked(path, 100, 101)
    with monkeypatch.context() as patch:
        bad_sectors(patch, bad)
        watermark = Watermark(path)
        assert (watermark.is_valid, watermark.sequence) == (True, 101)
        with pytest.raises(DataLoss):
            watermark.check(100)
        watermark.close()


def test_where_a_page_has_no_twin_the_start_is_refused_with_advice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = bytes.fromhex((GOLDEN / "watermark-v2.hex").read_text())
    path.write_bytes(slot.ljust(2 * SLOT_BYTES, b"\0"))
    with monkeypatch.context() as patch:
        bad_sectors(patch, 1)  # it may say more
        with pytest.raises(DataLoss, match=r"cannot be read: .*; restore the file or a backup"):
            Watermark(path)


def test_every_flipped_bit_of_a_slot_is_noticed() -> None:
    slot = encode(3, WHOLE)
    assert decode(slot) == (3, WHOLE)
    for position in range(USED):
        for bit in range(8):
            damaged = bytearray(slot)
            damaged[position] ^= 1 << bit
            assert decode(bytes(damaged)) is None


@pytest.mark.parametrize(("version", "found"), [(1, Synced(12345)), (2, WHOLE), (3, WHOLE)])
def test_the_format_stays_readable(version: int, found: Synced) -> None:
    """Golden bytes: a change needs another magic."""
    golden = bytes.fromhex((GOLDEN / f"watermark-v{version}.hex").read_text())
    assert decode(golden) == (3, found)
    if version == 3:
        assert encode(3, WHOLE)[:USED] == golden


def test_a_watermark_of_version_1_is_read_and_written_on_in_version_3(path: Path) -> None:
    slot = bytes.fromhex((GOLDEN / "watermark-v1.hex").read_text())
    path.write_bytes(slot.ljust(2 * SLOT_BYTES, b"\0"))
    watermark = Watermark(path)
    assert watermark.is_valid
    assert (watermark.epoch, watermark.synced) == (3, Synced(12345))
    with pytest.raises(DataLoss):
        watermark.check(12344)
    watermark.begin(Synced(12345, 9, 9, 0))
    watermark.close()
    assert path.read_bytes().count(b"HFMARK03") == 2
    watermark = Watermark(path)
    assert watermark.synced == Synced(12345, 9, 9, 0)
    watermark.close()


def test_a_place_without_a_new_batch_is_no_news_unless_the_store_was_reopened(path: Path) -> None:
    watermark = Watermark(path)
    watermark.begin(Synced(5, 9, 9, 0))
    watermark.advance(Synced(5, 9, 10, 77))
    assert watermark.synced == Synced(5, 9, 9, 0)
    watermark.advance(Synced(5, 12, 12, 0))
    assert watermark.synced == Synced(5, 12, 12, 0)
    watermark.close()


def test_a_database_that_was_replaced_by_a_copy_may_have_older_files(path: Path) -> None:
    for synced in (Synced(5, 90, 91, 1000, 7, 7), Synced(5, 3, 3, 0, 2, 2)):
        watermark = Watermark(path)
        watermark.begin(synced)
        watermark.close()
        watermark = Watermark(path)
        assert watermark.synced == synced
        watermark.close()


def test_a_short_file_is_made_whole(path: Path) -> None:
    path.write_bytes(b"HFMARK01")
    assert _read(path) == (0, 0)
    assert path.stat().st_size == 2 * SLOT_BYTES


def test_a_watermark_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(Unrecoverable, match="Is a directory"):
        Watermark(tmp_path)
