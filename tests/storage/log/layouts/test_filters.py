"""Does the index per filter cost what it should, and are its keys the documented ones?"""

from storage.api import Batch, Row, Store
from storage.local.memory import MemoryStore
from storage.log.layouts import filters
from storage.log.layouts.api import Stream
from storage.log.layouts.filters import IndexReader, index_key
from storage.log.layouts.merge import BUFFERED_MAX, INDEX_PAGE_FIRST, INDEX_PAGE_MAX
from storage.log.layouts.message_rows import message_key
from storage.tables.message_record import encode_message
from tests.storage.log_cases import A, drain, fill, golden, message, new_slab, stored


def test_a_missing_record_is_counted_and_passed(store: Store) -> None:
    slab = new_slab(store, "filters")
    fill(store, slab, ["a"] * 10, [A])
    store.write([("msg.1", message_key(offset), None) for offset in (1, 2, 3, 7, 10)])
    reader = slab.reader([A], 0)
    assert drain(reader, 10) == [4, 5, 6, 8, 9]
    assert reader.missing == 5


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
    assert len(store.scans) <= 10_000 // INDEX_PAGE_MAX + 5


def test_what_is_read_ahead_is_bounded_whatever_the_number_of_streams() -> None:
    store = CountingStore()
    slab = new_slab(store, "filters")
    streams = [Stream(n + 1, "#", 0) for n in range(1000)]
    batch: Batch = []
    for offset in range(1, 51):
        slab.append(batch, stored(message("a"), offset), [s.filter_id for s in streams])
    store.write(batch)
    reader = slab.reader(streams, 0)
    assert isinstance(reader, IndexReader)
    assert [m.offset for m in reader.next(2, 50, 0)] == [1, 2]
    ahead = sum(len(lane.entries) - lane.at for lane in reader._merge.lanes)
    assert BUFFERED_MAX < ahead <= INDEX_PAGE_FIRST * len(streams)
    assert reader.buffered() == INDEX_PAGE_FIRST - 1
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
    sent = stored(message("a"), 2)
    slab.append(batch, sent, [1])
    assert batch == [
        ("msg.1", golden("message-keys.hex")["message 1"][:-1] + b"\x02", encode_message(sent)),
        ("idx.1", golden("message-keys.hex")["index of filter 1, message 2"], b""),
    ]
    assert filters.families(7) == ("msg.7", "idx.7")
