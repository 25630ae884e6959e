"""Does every layout give its readers all they are owed, in order, once, with bounded memory?"""

import pytest

from storage.api import Batch, Store
from storage.errors import (
    CorruptRecord,
)
from storage.log.layouts import message_rows
from storage.log.layouts.api import Slab, Stream
from storage.log.layouts.blocks import BlockSlab
from storage.log.layouts.message_rows import PAGE_BYTES_MAX, message_key
from tests.storage.log_cases import (
    ANY,
    A,
    B,
    drain,
    fill,
    message,
    stored,
)


def test_one_stream_is_read_in_order(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b"] * 50, [A, B])
    assert drain(slab.reader([A], 0), 100) == list(range(1, 100, 2))


def test_overlapping_streams_give_each_message_once(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b", "c"] * 30, [A, B, ANY])
    assert drain(slab.reader([A, ANY, B], 0), 90) == list(range(1, 91))


def test_reading_starts_behind_the_position(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a"] * 20, [A])
    assert drain(slab.reader([A], 17), 20) == [18, 19, 20]
    assert drain(slab.reader([A], 20), 20) == []


def test_each_stream_starts_behind_its_own_since(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b"] * 5, [A, B])
    streams = [Stream(1, "a", 6), Stream(2, "b", 2)]
    assert drain(slab.reader(streams, 0), 10) == [4, 6, 7, 8, 9, 10]
    assert drain(slab.reader(streams, 6), 10) == [7, 8, 9, 10]


def test_the_earliest_since_counts_for_a_stream_named_twice(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a"] * 5, [A])
    assert drain(slab.reader([Stream(1, "a", 3), Stream(1, "a", 1)], 0), 5) == [2, 3, 4, 5]


def test_nothing_is_owed_without_streams(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a"] * 5, [A])
    assert drain(slab.reader([], 0), 5) == []
    assert slab.first_owed([], 0, 5) is None


def test_reading_stops_at_the_given_end_and_goes_on_when_it_moves(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b", "c"] * 10, [A, B])
    reader = slab.reader([A, B], 0)
    assert drain(reader, 7) == [1, 2, 4, 5, 7]
    assert drain(reader, 9) == [8]
    assert drain(reader, 9) == []
    assert drain(reader, 30) == [n for n in range(10, 31) if n % 3]


def test_a_stream_that_was_silent_is_merged_again(store: Store, slab: Slab) -> None:
    """Is a lane that once had no rows asked again before later rows of others are given out?"""
    fill(store, slab, ["a"] * 10 + ["b", "a"] * 5, [A, B])
    reader = slab.reader([A, B], 0)
    assert drain(reader, 10) == list(range(1, 11))
    assert drain(reader, 20) == list(range(11, 21))


def test_skipping_passes_what_reading_would_give(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b", "c"] * 100, [A, B])
    reader = slab.reader([A, B], 0)
    assert reader.skip(50, 300, 0) == 50
    rest = [n for n in range(1, 301) if n % 3][50:]
    assert drain(reader, 300) == rest
    assert reader.skip(1, 300, 0) == 0
    assert slab.reader([A, B], 0).skip(1000, 300, 0) == 200


def test_pages_of_every_size_give_the_same(store: Store, slab: Slab) -> None:
    topics = [("a", "b", "a", "c", "c")[n % 5] for n in range(700)]
    fill(store, slab, topics, [A, B])
    expected = [n for n, topic in enumerate(topics, 1) if topic != "c"]
    for count in (1, 2, 7, 64, 1000):
        assert drain(slab.reader([A, B], 0), 700, count) == expected


def test_large_messages_end_a_call_early(store: Store, slab: Slab) -> None:
    size = PAGE_BYTES_MAX // 4
    fill(store, slab, ["a"] * 40, [A], payload=bytes(size))
    reader = slab.reader([A], 0)
    calls: list[int] = []
    while found := reader.next(1000, 40, 0):
        calls.append(len(found))
    assert sum(calls) == 40
    # The first call does not know the size yet; the first page is the price.
    assert calls[0] <= message_rows.PAGE_FIRST
    assert max(calls[1:]) * size <= 2 * PAGE_BYTES_MAX


def test_scanning_finds_what_no_index_names(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b/c", "$x"] * 5, [])
    assert drain(slab.scanner("b/+", 0), 15) == [2, 5, 8, 11, 14]
    assert drain(slab.scanner("#", 0), 15) == [n for n in range(1, 16) if n % 3]


def test_the_first_owed_offset_is_the_smallest_of_all_streams(store: Store, slab: Slab) -> None:
    fill(store, slab, ["c", "b", "a", "b", "a"], [A, B])
    assert slab.first_owed([A, B], 0, 5) == 2
    assert slab.first_owed([B, A], 2, 5) == 3
    assert slab.first_owed([Stream(1, "a", 3), B], 2, 5) == 4
    assert slab.first_owed([A], 3, 4) is None
    assert slab.first_owed([A, B], 5, 5) is None


def test_an_empty_generation_has_nothing(store: Store, slab: Slab) -> None:
    assert slab.last_offset() == 0
    assert slab.sampled_size() == 0
    assert slab.measured() == (0, 0)
    assert slab.first_from(1) is None
    assert drain(slab.reader([A], 0), 5) == []


def test_append_tells_the_size_of_its_rows(store: Store, slab: Slab) -> None:
    batch: Batch = []
    size = slab.append(batch, stored(message("a"), 1), [1, 2])
    size += slab.seal(batch)
    assert not slab.is_pending
    assert size == sum(len(key) + len(value or b"") for _, key, value in batch)


def test_a_damaged_row_costs_what_it_holds(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a"] * 3, [A])
    key, value = store.scan("msg.1", message_key(2), count=1)[0]
    damaged = bytearray(value)
    damaged[35] ^= 1
    store.write([("msg.1", key, bytes(damaged))])
    lost = [1, 2, 3] if isinstance(slab, BlockSlab) else [2]
    reader = slab.reader([A], 0)
    assert drain(reader, 3) == [offset for offset in (1, 2, 3) if offset not in lost]
    assert (reader.lost, reader.position) == (lost, 3)
    assert f"{int.from_bytes(key, 'big')}: " in str(reader.damage)
    with pytest.raises(CorruptRecord):
        slab.get_many([2])
    with pytest.raises(CorruptRecord):
        slab.first_from(2)
    scanner = slab.scanner("a", 0)
    assert drain(scanner, 3) == [offset for offset in (1, 2, 3) if offset not in lost]
    assert scanner.lost == lost[:1] and scanner.damage is not None
