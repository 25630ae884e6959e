"""Batches are read as they were written, families and rows in their order."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.replicated.batch_codec import (
    CREATE,
    DROP,
    BadBatch,
    Operation,
    decode,
    encode,
    parts,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "replicated-batch-v1.hex"
WRITTEN: list[Operation] = [
    (CREATE, "log0001"),
    ("log0001", b"key", b"value"),
    ("meta", b"gone", None),
    ("meta", b"", b""),
    (DROP, "log0000"),
]
NAMES = st.text(min_size=1, max_size=20)
ROWS = st.tuples(NAMES, st.binary(max_size=30), st.none() | st.binary(max_size=90))
FAMILIES = st.tuples(st.sampled_from((CREATE, DROP)), NAMES)


@given(st.lists(st.one_of(ROWS, FAMILIES), max_size=20))
def test_a_batch_is_read_as_it_was_written(operations: list[Operation]) -> None:
    assert list(decode(encode(operations))) == operations


@given(st.binary(max_size=300), st.integers(1, 50))
def test_parts_make_the_whole_again_and_are_no_longer_than_asked(data: bytes, size: int) -> None:
    pieces = parts(data, size)
    assert b"".join(pieces) == data
    assert pieces
    assert all(len(piece) <= size for piece in pieces)


def test_batches_of_version_1_are_still_read() -> None:
    assert encode(WRITTEN).hex() == GOLDEN.read_text().strip()
    assert list(decode(bytes.fromhex(GOLDEN.read_text()))) == WRITTEN


def test_a_truncated_batch_is_refused_or_ends_with_an_operation() -> None:
    data = encode(WRITTEN)
    whole = {len(encode(WRITTEN[:count])) for count in range(len(WRITTEN))}
    for end in range(len(data)):
        if end in whole:
            assert list(decode(data[:end])) == WRITTEN[: len(list(decode(data[:end])))]
        else:
            with pytest.raises(BadBatch):
                list(decode(data[:end]))


@pytest.mark.parametrize(
    ("data", "why"), [(b"\x09\x00", "operation 9"), (b"\x02\x01\xff", "at byte 3")]
)
def test_what_is_no_batch_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadBatch, match=why):
        list(decode(data))
