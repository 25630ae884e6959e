"""Is what a power cut left told apart from what was lost, whatever is known about the logs?"""

import random

import pytest

from storage.local.log_format import (
    BLOCK_BYTES,
    FIRST,
    FULL,
    GAP,
    HEADER_BYTES,
    LAST,
    MIDDLE,
    SEQUENCE_KEY,
    SHORT,
    UNWRITTEN,
    crc32c,
    encode_number,
)
from storage.local.torn_log import Finding, examine, examine_manifest
from storage.local.watermark import Synced


def record(log: bytearray, payload: bytes) -> None:
    """Append a record as RocksDB does."""
    is_first = True
    while True:
        left = BLOCK_BYTES - len(log) % BLOCK_BYTES
        if left < HEADER_BYTES:
            log += bytes(left)
            left = BLOCK_BYTES
        part, payload = payload[: left - HEADER_BYTES], payload[left - HEADER_BYTES :]
        kind = (FIRST if payload else FULL) if is_first else (MIDDLE if payload else LAST)
        body = bytes([kind]) + part
        crc = crc32c(body)
        masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        log += masked.to_bytes(4, "little") + len(part).to_bytes(2, "little") + body
        is_first = False
        if not payload:
            return


class Logs:
    """Write-ahead logs as a broker leaves them."""

    def __init__(self) -> None:
        self.files: dict[int, bytearray] = {4: bytearray()}
        self.sequence = 0
        self.synced = Synced(0, 4, 4, 0)
        self.told = 0  # durable, as the next batches tell

    def write(self, count: int, size: int = 200) -> None:
        """Write batches into the newest log."""
        for _ in range(count):
            self.sequence += 1
            payload = random.Random(self.sequence).randbytes(size) + b"\x01\x08" + SEQUENCE_KEY
            payload += b"\x10" + encode_number(self.sequence, self.told)
            record(self.files[max(self.files)], payload)

    def sync(self, *, marked: bool = True) -> None:
        """Sync; with `marked` the watermark says so."""
        self.told = self.sequence
        if marked:
            log = max(self.files)
            self.synced = Synced(self.sequence, 4, log, len(self.files[log]))

    def examine(self) -> Finding | None:
        """Examine the logs."""
        return examine(list(self.files), lambda number: bytes(self.files[number]), self.synced)

    def zero(self, log: int, start: int, stop: int) -> None:
        """Replace a stretch by zeros."""
        self.files[log][start:stop] = bytes(stop - start)


@pytest.fixture
def logs() -> Logs:
    """Thirty batches, of which the first ten are durable."""
    logs = Logs()
    logs.write(10)
    logs.sync()
    logs.write(20)
    return logs


def test_whole_logs_are_whole(logs: Logs) -> None:
    assert logs.examine() is None
    assert Logs().examine() is None


def test_zeros_behind_what_was_synced_are_a_torn_tail(logs: Logs) -> None:
    end = logs.synced.length
    logs.zero(4, end, len(logs.files[4]))
    found = logs.examine()
    assert found == Finding(4, end, UNWRITTEN, 10, 10, is_loss=False)
    assert found.is_torn


def test_zeros_before_it_are_a_loss(logs: Logs) -> None:
    logs.zero(4, 512, 1024)
    found = logs.examine()
    assert found is not None
    assert (found.log, found.durable, found.is_loss) == (4, 10, True)
    assert 0 < found.batches < 10
    assert not found.is_torn


def test_batches_behind_the_hole_prove_that_it_was_synced(logs: Logs) -> None:
    """The watermark is a second old; what was written since tells more."""
    start = len(logs.files[4])
    logs.write(10)
    logs.sync(marked=False)
    logs.write(3)
    logs.zero(4, start - start % 512, start - start % 512 + 512)
    found = logs.examine()
    assert found is not None
    assert (found.durable, found.is_loss) == (40, True)


def test_a_proof_may_be_in_a_later_log(logs: Logs) -> None:
    logs.sync(marked=False)
    logs.files[9] = bytearray()
    logs.write(3)
    logs.zero(4, logs.synced.length, len(logs.files[4]))
    found = logs.examine()
    assert found is not None
    assert (found.log, found.durable, found.is_loss) == (4, 30, True)


def test_a_gap_between_two_logs_ends_the_first(logs: Logs) -> None:
    end = len(logs.files[4])
    logs.write(5)
    logs.files[9] = bytearray()
    logs.write(5)
    del logs.files[4][end:]
    assert logs.examine() == Finding(4, end, GAP, 30, 10, is_loss=False)


def test_a_log_that_is_empty_before_one_that_is_not_has_lost_everything(logs: Logs) -> None:
    logs.files[9] = bytearray()
    logs.write(5)
    logs.files[12] = bytearray()
    logs.write(5)
    logs.files[9].clear()
    del logs.files[4]  # its batches are in tables
    assert logs.examine() == Finding(9, 0, GAP, 0, 10, is_loss=False)
    logs.synced = logs.synced._replace(log=9, length=500)
    found = logs.examine()
    assert found is not None
    assert found.is_loss


def test_nothing_was_synced_since_the_opening() -> None:
    """Then the first batch has the number that follows."""
    logs = Logs()
    logs.write(20)
    logs.zero(4, 0, 512)
    assert logs.examine() == Finding(4, 0, UNWRITTEN, 0, 0, is_loss=False)
    whole = Logs()
    whole.write(1)
    whole.synced = Synced(7, 4, 4, 0)
    assert whole.examine() == Finding(4, 0, GAP, 7, 7, is_loss=False)


def test_logs_from_before_the_opening_do_not_matter(logs: Logs) -> None:
    logs.files[3] = bytearray(b"?" * 1000)
    assert logs.examine() is None


def test_what_an_earlier_start_gave_up_is_no_hole(logs: Logs) -> None:
    """The deletion of its log did not reach the disk, and the next log continues it."""
    del logs.files[4][-10:]
    logs.sequence = 29
    logs.files[9] = bytearray()
    logs.write(5)
    assert logs.examine() is None


def test_short_by_any_number_of_bytes_is_torn_down_to_what_was_synced(logs: Logs) -> None:
    whole = bytes(logs.files[4])
    for size in range(len(whole) - 1, 0, -37):
        logs.files[4] = bytearray(whole[:size])
        found = logs.examine()
        if found is not None:
            assert found.problem == SHORT
            assert found.is_loss == (size < logs.synced.length)


# --- MANIFEST ---


def _manifest(count: int) -> bytearray:
    manifest = bytearray()
    for number in range(count):
        record(manifest, random.Random(number).randbytes(100))
    return manifest


def test_a_manifest_is_cut_only_behind_what_was_synced() -> None:
    manifest = _manifest(10)
    assert examine_manifest(bytes(manifest), len(manifest)) is None
    last = 9 * 107
    for torn in (bytes(manifest[:last]) + bytes(107), bytes(manifest[: last + 50])):
        found = examine_manifest(torn, last)
        assert found is not None
        assert (found.offset, found.is_torn) == (last, True)
        found = examine_manifest(torn, last + 100)
        assert found is not None
        assert not found.is_torn
    short = examine_manifest(bytes(manifest[:last]), last + 100)
    assert short is not None
    assert not short.is_torn


def test_a_record_whose_length_is_damaged_is_no_torn_tail_of_a_manifest() -> None:
    """It seems to go on behind the end of the file, but began before what was synced."""
    manifest = _manifest(10)
    manifest[9 * 107 + 5] ^= 0x40
    found = examine_manifest(bytes(manifest), len(manifest))
    assert found is not None
    assert (found.offset, found.is_torn) == (9 * 107, False)


def test_damage_in_a_manifest_is_left_to_rocksdb() -> None:
    manifest = _manifest(10)
    manifest[300] ^= 1
    assert examine_manifest(bytes(manifest), 0) is None
    hole = _manifest(20)
    hole[512:1024] = bytes(512)
    assert examine_manifest(bytes(hole), 0) is None, "what is behind it is no torn tail"
    assert examine_manifest(bytes(2000), 0) is None
