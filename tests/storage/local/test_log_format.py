"""Is a log read as RocksDB wrote it, and told apart what was damaged and what was never written?"""

import random
import zlib
from pathlib import Path

import pytest

from storage.local.database_files import log_name, log_numbers
from storage.local.log_format import (
    BLOCK_BYTES,
    CLEAN,
    CUT,
    CUT_MARK,
    DAMAGED,
    EMPTY_BATCH_BYTES,
    FULL,
    HEADER_BYTES,
    SECTOR_BYTES,
    SHORT,
    UNWRITTEN,
    Number,
    Records,
    Walk,
    crc32c,
    decode_number,
    encode_number,
    newest_proof,
    walk,
)
from storage.local.rocks import RocksStore

GOLDEN = Path(__file__).parents[1] / "golden"
BATCHES = 60


def _written(path: Path, *, every_zeros: int) -> bytes:
    """Return a log as RocksDB writes it: batches of all sizes, some over several blocks."""
    source = random.Random(5)
    store = RocksStore(path, families=["a"])
    for number in range(1, BATCHES + 1):
        size = source.choice((3, 40, 600, 2000, 5000)) if number % 20 else 70_000
        value = bytes(size) if number % every_zeros == 0 else source.randbytes(size)
        store.write([("a", number.to_bytes(4, "big"), value)])
        if number % 10 == 0:
            store.sync()
    (number,) = log_numbers(path)
    content = (path / log_name(number)).read_bytes()
    store.close()
    return content


def _ends(content: bytes) -> list[int]:
    """Return where each batch ends."""
    records, found = Records(content), []
    while records.step(check="all"):
        found.append(records.end)
    assert records.problem == CLEAN
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A log with some payloads of zeros."""
    return _written(tmp_path_factory.mktemp("log") / "db", every_zeros=3)


@pytest.fixture(scope="module")
def ends(log: bytes) -> list[int]:
    """Where each of its batches ends."""
    return _ends(log)


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A log without payloads of zeros."""
    return _written(tmp_path_factory.mktemp("noise") / "db", every_zeros=BATCHES + 1)


def test_the_checksum_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"123456789") != zlib.crc32(b"123456789")


def test_the_number_of_a_batch_stays_readable() -> None:
    golden = bytes.fromhex((GOLDEN / "batch-number-v2.hex").read_text())
    assert encode_number(4711, 4700) == golden
    assert decode_number(golden) == Number(4711, 4700)
    older = bytes.fromhex((GOLDEN / "batch-number-v1.hex").read_text())
    assert decode_number(older) == Number(4711, 0)
    with pytest.raises(ValueError, match="9 bytes, expected 8 or 16"):
        decode_number(bytes(9))


@pytest.mark.parametrize("check", ["none", "torn", "all"])
def test_every_batch_is_found(log: bytes, ends: list[int], check: str) -> None:
    assert len(ends) == BATCHES
    assert len(log) > 5 * BLOCK_BYTES
    assert walk(log, check=check) == Walk(1, BATCHES, len(log), CLEAN)


def test_a_batch_that_does_not_follow_the_one_before_is_damage(log: bytes, ends: list[int]) -> None:
    """Even where all checksums fit."""
    block = next(end for end in ends if BLOCK_BYTES - end % BLOCK_BYTES > 100)
    spliced = log[:block] + log[: ends[0]]
    number = ends.index(block) + 1
    assert walk(spliced) == Walk(1, number, block, DAMAGED)


def test_a_log_cut_anywhere_is_read_up_to_the_last_whole_batch(log: bytes, ends: list[int]) -> None:
    source = random.Random(1)
    for size in [*source.sample(range(len(log)), 50), *ends[:20], ends[-1] - 1]:
        found = walk(log[:size])
        whole = sum(end <= size for end in ends)
        assert found.last == whole
        assert found.problem in (CLEAN, SHORT)
        if found.problem == CLEAN:
            assert size - (ends[whole - 1] if whole else 0) < HEADER_BYTES


@pytest.mark.parametrize("size", [SECTOR_BYTES, 4096])
def test_sectors_that_were_never_written_end_the_log_there(
    log: bytes, ends: list[int], size: int
) -> None:
    """A hole anywhere ends the log at the batch it is in; one among zeros changes nothing."""
    source = random.Random(2)
    holes = 0
    for at in source.sample(range(0, len(log), size), 60):
        torn = log[:at] + bytes(len(log[at : at + size])) + log[at + size :]
        found = walk(torn)
        if torn == log:
            assert found == Walk(1, BATCHES, len(log), CLEAN)
            continue
        holes += 1
        first = at + next(i for i in range(size) if log[at + i] != torn[at + i])
        assert found.last == sum(end <= first for end in ends), at
        assert found.problem == UNWRITTEN
    assert holes > 20


def test_a_tail_of_zeros_ends_the_log_where_it_begins(log: bytes, ends: list[int]) -> None:
    """As when the length of a file reached the disk and its last pages did not."""
    source = random.Random(3)
    for start in [*source.sample(range(len(log)), 40), *ends[-9:-1]]:
        torn = log[:start] + bytes(len(log) - start)
        found = walk(torn)
        missing = next((at for at in range(start, len(log)) if log[at]), len(log))
        assert found.last == sum(end <= missing for end in ends)
        assert found.problem == (UNWRITTEN if missing < len(log) else CLEAN)


def test_flipped_bits_are_never_taken_for_what_was_not_written(noise: bytes) -> None:
    source = random.Random(4)
    ends = _ends(noise)
    for position in source.sample(range(len(noise)), 40):
        flipped = bytearray(noise)
        flipped[position] ^= 1 << source.randrange(8)
        found = walk(bytes(flipped), check="all")
        assert found.last == sum(end <= position for end in ends)
        # A length that points behind the end looks like a file that is too short.
        assert found.problem == DAMAGED or (found.problem == SHORT and ends[-1] - position < 65536)


def test_checksums_of_durable_batches_are_left_to_rocksdb(noise: bytes) -> None:
    ends = _ends(noise)
    number = next(n for n in range(2, BATCHES) if ends[n] - ends[n - 1] > 2000)
    at = ends[number - 1] + 700
    at -= at % SECTOR_BYTES
    torn = noise[:at] + bytes(SECTOR_BYTES) + noise[at + SECTOR_BYTES :]
    assert walk(torn).last == number
    assert walk(torn, expected=1, trusted=number).last == number
    assert walk(torn, expected=1, trusted=number + 1).last == BATCHES


def test_a_cut_is_read_as_an_end(log: bytes, ends: list[int]) -> None:
    for number in (0, 1, 7, 45):
        end = ends[number - 1] if number else 0
        if BLOCK_BYTES - end % BLOCK_BYTES < HEADER_BYTES:
            end += BLOCK_BYTES - end % BLOCK_BYTES
        cut = log[:end] + CUT_MARK + log[end + len(CUT_MARK) :]
        assert walk(cut) == Walk(min(number, 1), number, end, CUT)


def test_a_batch_behind_the_hole_tells_what_was_durable(log: bytes, ends: list[int]) -> None:
    assert newest_proof(log, 0) == BATCHES - 10
    for number in (1, 15, 30, 52):
        # Everything up to this batch is gone, and so is the end of the one behind it.
        assert newest_proof(log, ends[number]) == BATCHES - 10
        assert newest_proof(log[: ends[number]], 0) == number // 10 * 10
    assert newest_proof(log[: ends[8]], 0) == 0
    assert newest_proof(bytes(len(log)), 0) == 0


def _record(payload: bytes) -> bytes:
    """Return a record in one fragment."""
    body = bytes([FULL]) + payload
    crc = crc32c(body)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return masked.to_bytes(4, "little") + len(payload).to_bytes(2, "little") + body


def test_a_batch_of_nothing_needs_no_number(log: bytes, ends: list[int]) -> None:
    """RocksDB writes one now and then; one with anything in it must say which it is."""
    assert walk(_record(bytes(EMPTY_BATCH_BYTES)) + log[: ends[0]]) == Walk(
        1, 1, ends[0] + len(_record(bytes(EMPTY_BATCH_BYTES))), CLEAN
    )
    for size in (EMPTY_BATCH_BYTES - 1, EMPTY_BATCH_BYTES + 1):
        assert walk(_record(bytes(size))) == Walk(0, 0, 0, DAMAGED)
