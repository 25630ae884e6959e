"""Does a layout give its readers all they are owed, in order, once, with bounded memory?"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtt.message import Message
from mqtt.topics import matches
from storage.api import Batch, Row, Store
from storage.errors import CorruptRecord
from storage.generations import LAYOUTS
from storage.layouts import filters, rows
from storage.layouts.api import Reader, Slab, Stream
from storage.layouts.filters import BUFFERED_MAX, IndexReader, index_key
from storage.layouts.rows import PAGE_BYTES_MAX, message_key
from storage.memory import MemoryStore
from storage.records import encode_message
from tests.storage.log_cases import BACKENDS, golden, message, opened
from tests.storage.log_cases import LAYOUTS as LAYOUT_NAMES


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as opened_store:
        yield opened_store


@pytest.fixture(params=LAYOUT_NAMES)
def slab(request: pytest.FixtureRequest, store: Store) -> Slab:
    return new_slab(store, request.param)


def new_slab(store: Store, layout: str) -> Slab:
    made = LAYOUTS[layout](store, 1)
    for family in made.families:
        store.create_family(family)
    return made


def fill(
    store: Store, slab: Slab, topics: list[str], streams: list[Stream], payload: bytes = b"x"
) -> None:
    """Store one message per topic, offsets from 1, indexed for the streams that match."""
    batch: Batch = []
    for offset, topic in enumerate(topics, 1):
        ids = [s.filter_id for s in streams if matches(s.topic_filter, topic)]
        slab.append(batch, offset, encode_message(message(topic, payload)), ids)
    store.write(batch)


def drain(reader: Reader, upto: int, count: int = 3) -> list[int]:
    """Read to the end; every call but the last must make progress."""
    offsets: list[int] = []
    while True:
        found = [m.offset for m in reader.next(count, upto, 0)]
        assert len(found) <= count
        if not found:
            assert reader.position >= upto
            return offsets
        assert reader.position >= found[-1]
        offsets += found


A = Stream(1, "a", 0)
B = Stream(2, "b", 0)
ANY = Stream(3, "#", 0)


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
    assert calls[0] <= rows.PAGE_FIRST
    assert max(calls[1:]) * size <= 2 * PAGE_BYTES_MAX


def test_a_scan_with_a_limit_returns_without_messages_but_moves(store: Store) -> None:
    slab = new_slab(store, "timeline")
    fill(store, slab, ["b"] * 200 + ["a"], [A])
    reader = slab.reader([A], 0)
    assert reader.next(5, 201, 50) == []
    assert 50 <= reader.position < 201
    found: list[Message] = []
    for _ in range(10):
        found += reader.next(5, 201, 50)
    assert [m.offset for m in found] == [201]


def test_scanning_finds_what_no_index_names(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b/c", "$x"] * 5, [])
    assert drain(slab.scanner("b/+", 0), 15) == [2, 5, 8, 11, 14]
    assert drain(slab.scanner("#", 0), 15) == [n for n in range(1, 16) if n % 3]


def test_more_topics_than_are_remembered_are_all_matched(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_TOPICS_MAX", 4)
    slab = new_slab(store, "timeline")
    fill(store, slab, [f"t/{n % 9}" for n in range(90)], [])
    assert drain(slab.scanner("t/3", 0), 90) == list(range(4, 91, 9))


def test_the_first_owed_offset_is_the_smallest_of_all_streams(store: Store, slab: Slab) -> None:
    fill(store, slab, ["c", "b", "a", "b", "a"], [A, B])
    assert slab.first_owed([A, B], 0, 5) == 2
    assert slab.first_owed([B, A], 2, 5) == 3
    assert slab.first_owed([Stream(1, "a", 3), B], 2, 5) == 4
    assert slab.first_owed([A], 3, 4) is None
    assert slab.first_owed([A, B], 5, 5) is None


def test_messages_are_found_by_offset(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b", "c"], [A])
    found = slab.get_many([3, 9, 1])
    assert [None if m is None else m.topic for m in found] == ["c", None, "a"]
    assert slab.last_offset() == 3
    first = slab.first_from(2)
    assert first is not None
    assert first.offset == 2
    assert slab.first_from(4) is None


def test_an_empty_generation_has_nothing(store: Store, slab: Slab) -> None:
    assert slab.last_offset() == 0
    assert slab.sampled_size() == 0
    assert slab.measured() == (0, 0)
    assert slab.first_from(1) is None
    assert drain(slab.reader([A], 0), 5) == []


def test_a_sample_tells_the_size(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a"] * 300, [])
    count, size = slab.measured()
    assert count == 300
    assert slab.sampled_size() == size // 300


def test_append_tells_the_size_of_its_rows(store: Store, slab: Slab) -> None:
    batch: Batch = []
    size = slab.append(batch, 1, b"record", [1, 2])
    assert size == sum(len(key) + len(value or b"") for _, key, value in batch)


def test_a_missing_record_is_counted_and_passed(store: Store) -> None:
    slab = new_slab(store, "filters")
    fill(store, slab, ["a"] * 10, [A])
    store.write([("msg.1", message_key(offset), None) for offset in (1, 2, 3, 7, 10)])
    reader = slab.reader([A], 0)
    assert drain(reader, 10) == [4, 5, 6, 8, 9]
    assert reader.missing == 5


def test_a_damaged_record_is_never_passed_over(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a"] * 3, [A])
    record = bytearray(encode_message(message("a")))
    record[35] ^= 1
    store.write([("msg.1", message_key(2), bytes(record))])
    with pytest.raises(CorruptRecord, match="message 2"):
        drain(slab.reader([A], 0), 3)


class CountingStore(MemoryStore):
    """A store in memory that records how many rows each scan returned."""

    __slots__ = ("scans",)

    def __init__(self) -> None:
        super().__init__()
        self.scans: list[int] = []

    def scan(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        found = super().scan(family, start, stop, count=count)
        self.scans.append(len(found))
        return found


def test_a_deep_stream_costs_idle_ones_a_single_look() -> None:
    store = CountingStore()
    slab = new_slab(store, "filters")
    idle = [Stream(n, f"idle/{n}", 0) for n in range(10, 110)]
    fill(store, slab, ["a"] * 2000, [A])
    assert drain(slab.reader([*idle, A], 0), 2000, 32) == list(range(1, 2001))
    assert len(store.scans) <= len(idle) + 2000 // (BUFFERED_MAX // 101) + 5


def test_a_deep_stream_alone_is_read_in_few_pages() -> None:
    store = CountingStore()
    slab = new_slab(store, "filters")
    fill(store, slab, ["a"] * 10_000, [A])
    drain(slab.reader([A], 0), 10_000, 100)
    assert len(store.scans) <= 10_000 // filters.INDEX_PAGE_MAX + 5


def test_what_is_read_ahead_is_bounded_whatever_the_number_of_streams() -> None:
    store = CountingStore()
    slab = new_slab(store, "filters")
    streams = [Stream(n + 1, "#", 0) for n in range(1000)]
    batch: Batch = []
    for offset in range(1, 51):
        slab.append(batch, offset, encode_message(message("a")), [s.filter_id for s in streams])
    store.write(batch)
    reader = slab.reader(streams, 0)
    assert isinstance(reader, IndexReader)
    assert [m.offset for m in reader.next(2, 50, 0)] == [1, 2]
    ahead = sum(len(lane.offsets) - lane.at for lane in reader._lanes)
    assert 0 < ahead <= BUFFERED_MAX
    assert reader.buffered() == BUFFERED_MAX // len(streams) - 1
    assert drain(reader, 50) == list(range(3, 51))


def test_keys_are_as_documented() -> None:
    """Does this version still read and write the keys of the first one?"""
    assert golden("message-keys.hex") == {
        "message 1": message_key(1),
        "message 281474976710656": message_key(2**48),
        "index of filter 1, message 2": index_key(1, 2),
        "index of filter 4294967296, message 281474976710656": index_key(2**32, 2**48),
    }
    store = MemoryStore()
    slab = new_slab(store, "filters")
    assert slab.families == ("msg.1", "idx.1")
    batch: Batch = []
    slab.append(batch, 2, b"record", [1])
    assert batch == [
        ("msg.1", golden("message-keys.hex")["message 1"][:-1] + b"\x02", b"record"),
        ("idx.1", golden("message-keys.hex")["index of filter 1, message 2"], b""),
    ]
    assert filters.families(7) == ("msg.7", "idx.7")
    batch.clear()
    timeline = LAYOUTS["timeline"](store, 12)
    timeline.append(batch, 1, b"record", [1])
    assert batch == [("msg.12", golden("message-keys.hex")["message 1"], b"record")]
    assert timeline.families == ("msg.12",)
