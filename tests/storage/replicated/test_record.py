"""Records are read as they were written, and all readers agree which of them count."""

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.replicated.record import (
    BATCH,
    CLAIM,
    CRC,
    HEAD,
    HEARTBEAT,
    KINDS,
    ORIGIN,
    PART,
    NotARecord,
    Position,
    Record,
    after,
    counts,
    decode,
    digest,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "replicated-record-v1.hex"
WRITTEN = Record(BATCH, 3, 7, bytes(range(16)), "node-ä", b"body")


def _followed_by(end: Position, kind: int, epoch: int) -> Record:
    return Record(kind, epoch, end.index + 1, end.digest, "ann")


@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=16, max_size=16),
    st.text(max_size=60),
    st.binary(max_size=200),
)
def test_a_record_is_read_as_it_was_written(
    kind: int, epoch: int, index: int, before: bytes, node: str, body: bytes
) -> None:
    record = Record(kind, epoch, index, before, node, body)
    assert decode(record.encode()) == record


def test_records_of_version_1_are_still_read() -> None:
    assert WRITTEN.encode().hex() == GOLDEN.read_text().strip()
    assert decode(bytes.fromhex(GOLDEN.read_text())) == WRITTEN


def test_every_truncation_and_every_changed_byte_is_noticed() -> None:
    data = WRITTEN.encode()
    for end in range(len(data)):
        with pytest.raises(NotARecord):
            decode(data[:end])
    for at in range(len(data)):
        with pytest.raises(NotARecord):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def _sealed(text: bytes) -> bytes:
    return text + CRC.pack(zlib.crc32(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD.pack(b"XX", 1, BATCH, 1, 1, ORIGIN, 0), "begins with"),
        (HEAD.pack(b"HR", 2, BATCH, 1, 1, ORIGIN, 0), "version 2"),
        (HEAD.pack(b"HR", 1, 77, 1, 1, ORIGIN, 0), "kind 77"),
        (HEAD.pack(b"HR", 1, BATCH, 1, 1, ORIGIN, 9), "a name of 9 bytes"),
        (HEAD.pack(b"HR", 1, BATCH, 1, 1, ORIGIN, 1) + b"\xff", "not UTF-8"),
    ],
)
def test_what_is_no_record_is_told_with_the_reason(text: bytes, why: str) -> None:
    with pytest.raises(NotARecord, match=why):
        decode(_sealed(text))


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 255"):
        Record(CLAIM, 1, 1, ORIGIN, "n" * 256).encode()


def test_a_batch_counts_in_its_epoch_and_a_claim_in_a_later_one() -> None:
    end = Position(4, 9, digest(b"last"))
    for kind in (BATCH, PART):
        assert counts(_followed_by(end, kind, 4), end)
        assert not counts(_followed_by(end, kind, 3), end)
        assert not counts(_followed_by(end, kind, 5), end)
    assert counts(_followed_by(end, CLAIM, 5), end)
    assert counts(_followed_by(end, CLAIM, 9), end)
    assert not counts(_followed_by(end, CLAIM, 4), end)


def test_nothing_counts_that_does_not_continue_the_chain() -> None:
    end = Position(4, 9, digest(b"last"))
    for index in (8, 9, 11):
        assert not counts(Record(BATCH, 4, index, end.digest, "ann"), end)
        assert not counts(Record(CLAIM, 5, index, end.digest, "ann"), end)
    assert not counts(Record(BATCH, 4, 10, digest(b"other"), "ann"), end)
    assert not counts(Record(CLAIM, 5, 10, digest(b"other"), "ann"), end)


def test_a_record_counts_once() -> None:
    record = _followed_by(Position(), CLAIM, 1)
    end = after(record, record.encode())
    assert end == Position(1, 1, digest(record.encode()))
    assert not counts(record, end)


def test_a_heartbeat_is_not_part_of_the_chain() -> None:
    assert decode(Record(HEARTBEAT, 1, 5, ORIGIN, "ann", b"12345678").encode()).kind == HEARTBEAT
