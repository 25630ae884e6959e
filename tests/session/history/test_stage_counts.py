"""Do the books tell one lost and one doubled message from none of both, in any order?"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.history.stage_counts import (
    FIELDS,
    STAGE_COUNT,
    Book,
    check1_of,
    check2_of,
    decode_book,
)
from storage.errors import CorruptRecord
from storage.history.events import CHECK_BITS, CHECK_ROOT_BITS

MODULUS = 1 << CHECK_BITS
OFFSETS = st.integers(1, 1 << 50)


@given(OFFSETS, st.integers(1, 200))
def test_a_run_is_counted_like_its_messages(first: int, count: int) -> None:
    offsets = range(first, first + count)
    assert check1_of(first, count) == sum(offsets) % MODULUS
    roots = [offset % (1 << CHECK_ROOT_BITS) for offset in offsets]
    assert check2_of(first, count) == sum(root * root for root in roots) % MODULUS


def test_a_run_across_the_end_of_the_roots_is_counted_like_its_messages() -> None:
    edge = 1 << CHECK_ROOT_BITS
    for first in range(edge - 5, edge + 2):
        roots = [offset % edge for offset in range(first, first + 4)]
        assert check2_of(first, 4) == sum(root * root for root in roots) % MODULUS


@given(st.lists(OFFSETS, min_size=2, max_size=50, unique=True), st.data())
def test_a_lost_and_a_doubled_message_do_not_cancel(
    offsets: list[int], data: st.DataObject
) -> None:
    lost, doubled = data.draw(st.permutations(offsets))[:2]
    there = [*(offset for offset in offsets if offset != lost), doubled]
    whole, damaged = Book("", 0), Book("", 0)
    for book, ids in ((whole, offsets), (damaged, there)):
        for offset in ids:
            book.add(0, 1, 0, check1_of(offset, 1), check2_of(offset, 1))
    assert whole.values[0] == damaged.values[0]  # the count does not see it
    assert whole.values[2:4] != damaged.values[2:4]


def test_a_book_comes_back_from_its_row() -> None:
    book = Book("tenant/ü", 60_000)
    book.add(3, 5, 600, 7, 8)
    book.add(3, 1, 1, MODULUS - 1, 2)
    again = decode_book(book.key(), book.encode())
    assert (again.tenant, again.bin_ms, again.values) == (book.tenant, 60_000, book.values)
    assert again.values[3 * FIELDS : 4 * FIELDS] == [6, 601, 6, 10]


def golden(version: int) -> str:
    """Return key and value of a book with every stage of a version, as they are on disk."""
    return (Path(__file__).with_name("golden") / f"book-v{version}.hex").read_text()


def full_book(stages: int) -> Book:
    """Return a book that has counted at so many stages."""
    book = Book("tenant", 1_700_000_040_000)
    for stage in range(stages):
        book.add(stage, stage + 1, 1000 * stage, MODULUS - 1 - stage, stage)
    return book


def test_a_book_is_on_disk_what_it_always_was() -> None:
    book = full_book(STAGE_COUNT)
    assert f"{book.key().hex()}\n{book.encode().hex()}\n" == golden(2)


def test_a_book_of_version_1_is_read_and_has_counted_nothing_at_newer_stages() -> None:
    key, value = map(bytes.fromhex, golden(1).split())
    book = decode_book(key, value)
    assert (book.tenant, book.bin_ms) == ("tenant", 1_700_000_040_000)
    assert book.values == full_book(11).values


def test_a_damaged_book_is_never_believed() -> None:
    book = Book("t", 60_000)
    book.add(0, 1, 2, 3, 4)
    value = book.encode()
    for bit in range(len(value) * 8):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            decode_book(book.key(), bytes(flipped))
    for size in range(len(value)):
        with pytest.raises(CorruptRecord):
            decode_book(book.key(), value[:size])
    with pytest.raises(CorruptRecord):
        decode_book(b"short", value)
