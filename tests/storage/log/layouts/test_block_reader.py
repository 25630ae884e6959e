"""Are blocks read once for all, by whatever way, with bounded memory?"""

from random import Random

import pytest

from storage.api import Batch, Row, Store
from storage.local.memory import MemoryStore
from storage.log.layouts.block_format import BLOCK_BYTES, Block
from storage.log.layouts.block_reader import (
    CACHE_BYTES,
    CACHED_BLOCK_MAX,
    KEPT_SIZE,
    PAGE_BYTES_MAX,
    SINGLE_BYTES_MAX,
    SINGLES_BYTES,
    SINGLES_MAX,
    BlockCache,
    BlockReader,
    BlockRows,
    SingleCache,
)
from storage.log.layouts.merge import BUFFERED_MAX
from storage.log.layouts.message_rows import message_key
from storage.log.message_log import MessageLog, Stream
from storage.tables.tables import META
from tests.storage.log_cases import (
    A,
    B,
    accept,
    drain,
    drop,
    fill,
    message,
    new_slab,
    rotate,
    start,
    stored,
    write,
)


class CountingStore(MemoryStore):
    """A store in memory that counts reads and the bytes they return."""

    __slots__ = ("gets", "read_bytes", "rows", "scans")

    def __init__(self) -> None:
        super().__init__([META])
        self.gets = 0
        self.scans = 0
        self.rows = 0
        self.read_bytes = 0

    def get(self, family: str, key: bytes) -> bytes | None:
        value = super().get(family, key)
        self.gets += 1
        self.read_bytes += len(value or b"")
        return value

    def get_uncached(self, family: str, key: bytes) -> bytes | None:
        return self.get(family, key)

    def scan(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        found = super().scan(family, start, stop, count=count)
        self.scans += 1
        self.rows += len(found)
        return found


def test_sessions_at_the_same_place_share_blocks_and_messages() -> None:
    store = CountingStore()
    log = start(store)
    batch: Batch = []
    ids = [1]
    for n in range(100):
        log.append(batch, message("a", b"%04d" % n * 50), ids)
    write(store, log, batch)
    store.gets = 0
    cursors = [log.cursor([A], 0) for _ in range(50)]
    for at in range(0, 100, 10):
        pages = [cursor.next(10) for cursor in cursors]
        assert [m.payload for m in pages[0]] == [b"%04d" % n * 50 for n in range(at, at + 10)]
        for page in pages[1:]:
            assert all(mine is theirs for mine, theirs in zip(page, pages[0], strict=True))
    assert store.gets == len(store.scan("msg.1", b"", count=999))


def sparse(store: Store, count: int) -> MessageLog:
    """Return a log of blocks which have one message each that matches A, among others."""
    log = start(store)
    for _ in range(count):
        batch: Batch = []
        for topic in ("x", "y", "a", "z"):
            log.append(batch, message(topic), [A.filter_id] if topic == "a" else [])
        write(store, log, batch)
    return log


def test_a_sparse_stream_is_read_without_what_lies_between() -> None:
    """Its messages are made, and kept for who is at the same place; the blocks are not."""
    store = CountingStore()
    log = sparse(store, 20)
    store.gets = 0
    first = log.cursor([A], 0).next(100)
    assert [m.offset for m in first] == list(range(3, 80, 4))
    assert {m.topic for m in first} == {"a"}
    assert store.gets == 20
    again = log.cursor([A], 0).next(100)
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert store.gets == 20


def test_sessions_with_topics_of_their_own_share_the_blocks_they_read() -> None:
    store = CountingStore()
    log = start(store)
    streams = [Stream(number, f"t/{number}", 0) for number in range(1, 9)]
    for _ in range(20):
        batch: Batch = []
        for stream in streams:
            log.append(batch, message(stream.topic_filter), [stream.filter_id])
        write(store, log, batch)
    store.gets = 0
    for stream in streams:
        found = log.cursor([stream], 0).next(100)
        assert [m.topic for m in found] == [stream.topic_filter] * 20
        assert [m.offset % 8 for m in found] == [stream.filter_id % 8] * 20
    assert store.gets == 20


def test_single_messages_that_are_kept_are_bounded() -> None:
    store = MemoryStore([META])
    log = sparse(store, SINGLES_MAX + 10)
    cache = BlockCache()
    rows = BlockRows(store, 1, cache)
    for offset in range(3, log.end, 4):
        found = rows.message(offset, offset + 1)
        assert found is not None and found.offset == offset
        assert len(cache.singles.messages) <= SINGLES_MAX
    singles = SingleCache()
    older: dict[int, bytes] = {}
    newer: dict[int, bytes] = {}
    for size in (SINGLE_BYTES_MAX, 0):  # the memory of many small ones is bounded, too
        fitting = SINGLES_BYTES // (size + KEPT_SIZE)
        data = bytes(size)
        for last in range(3 * fitting):
            last += size << 32  # never the same one twice
            singles.keep_block(newer if last % 3 else older, last, data)
            assert singles.size <= SINGLES_BYTES
        assert len(older) + len(newer) == fitting
        assert singles.size == (size + KEPT_SIZE) * fitting


def test_of_the_blocks_that_are_kept_the_oldest_goes_first() -> None:
    singles = SingleCache()
    data = bytes(SINGLE_BYTES_MAX)
    fitting = SINGLES_BYTES // (SINGLE_BYTES_MAX + KEPT_SIZE)
    blocks: dict[int, bytes] = {}
    for last in range(fitting + 3):
        singles.keep_block(blocks, last, data)
    assert list(blocks) == list(range(3, fitting + 3))
    singles.keep_block(blocks, 0, data)
    assert list(blocks) == [*range(4, fitting + 3), 0]


def test_sessions_that_are_in_different_generations_keep_the_blocks_of_each() -> None:
    """One session that reads on into the next generation must not cost the others theirs."""
    store = CountingStore()
    log = start(store)
    streams = [Stream(number, f"t/{number}", 0) for number in range(1, 5)]
    for _ in range(2):
        for _ in range(10):
            batch: Batch = []
            for stream in streams:
                log.append(batch, message(stream.topic_filter), [stream.filter_id])
            write(store, log, batch)
        rotate(store, log)
    store.gets = 0
    cursors = [log.cursor([stream], 0) for stream in streams]
    for count in (8, 4, 8):  # with 4, each goes on into the second generation before the next one
        for cursor in cursors:
            left = count
            while left:
                left -= len(cursor.next(left))
    assert store.gets == 20


def test_single_messages_are_not_those_of_another_generation() -> None:
    store = MemoryStore([META])
    log = sparse(store, 2)
    rotate(store, log)
    cache = BlockCache()
    first, second = BlockRows(store, 1, cache), BlockRows(store, 2, cache)
    assert first.message(3, 4) is not None
    assert second.message(3, 4) is None
    assert second.get(4) is None
    assert not cache.singles.messages
    assert first.get(4) is not None


def test_a_deep_stream_is_read_in_few_calls() -> None:
    store = CountingStore()
    log = start(store)
    for _ in range(20):
        accept(store, log, "a" * 500)
    store.scans = store.gets = store.rows = 0
    cursor = log.cursor([A], 0)
    found = 0
    while page := cursor.next(100):
        found += len(page)
    assert found == 10_000
    blocks = len(store.scan("msg.1", b"", count=9999))
    assert store.gets <= blocks
    assert store.scans <= 10_000 // 512 + 10
    assert store.rows <= blocks + 100


def test_an_idle_stream_costs_a_single_look() -> None:
    store = CountingStore()
    slab = new_slab(store, "blocks")
    idle = [Stream(n, f"idle/{n}", 0) for n in range(10, 110)]
    fill(store, slab, ["a"] * 2000, [A])
    store.scans = 0
    assert drain(slab.reader([*idle, A], 0), 2000, 32) == list(range(1, 2001))
    assert store.scans <= len(idle) + 2000 // (BUFFERED_MAX // 101) + 5


def test_a_call_ends_with_the_message_that_fills_it() -> None:
    """Is a run of large messages behind small ones held one by one?"""
    store = CountingStore()
    slab = new_slab(store, "blocks")
    batch: Batch = []
    for offset in range(1, 201):
        payload = b"s" if offset <= 100 else bytes(PAGE_BYTES_MAX // 2)
        slab.append(batch, stored(message("a", payload), offset), [1])
    slab.seal(batch)
    store.write(batch)
    for reader in (slab.reader([A], 0), slab.scanner("a", 0)):
        store.read_bytes = 0
        found = reader.next(1000, 200, 0)
        assert [m.offset for m in found] == list(range(1, 103))
        assert store.read_bytes < PAGE_BYTES_MAX + 10_000
        assert [m.offset for m in reader.next(1000, 200, 0)] == [103, 104]
        assert reader.position == 104


def test_what_was_read_ahead_is_skipped_and_counted() -> None:
    slab = new_slab(store := MemoryStore([META]), "blocks")
    fill(store, slab, ["a", "b"] * 100, [A, B])
    reader = slab.reader([A, B], 0)
    assert isinstance(reader, BlockReader)
    assert len(reader.next(5, 200, 0)) == 5
    ahead = reader.buffered()
    assert 0 < ahead <= 195
    assert reader.skip(7, 200, 0) == 7
    assert (reader.position, reader.buffered()) == (12, ahead - 7)
    assert drain(reader, 200) == list(range(13, 201))


@pytest.mark.parametrize("seed", range(30))
def test_damage_to_the_index_costs_no_message_and_repeats_none(seed: int) -> None:
    random = Random(seed)
    store = MemoryStore([META])
    log = start(store)
    topics = ""
    for _ in range(random.randrange(1, 12)):
        more = "".join(random.choices("abx", k=random.choice((1, 3, 40))))
        accept(store, log, more)
        topics += more
    for key, _ in store.scan("idx.1", b"", count=999):
        if random.random() < 0.3:
            if random.random() < 0.5:
                store.damage("idx.1", [key])
            else:
                store.write([("idx.1", key, b"spoiled")])
    slab = log._generations.newest.slab
    for streams in ([A], [B], [A, B]):
        wanted = "".join(stream.topic_filter for stream in streams)
        for after in (0, *random.sample(range(log.end), k=min(9, log.end))):
            reader = slab.reader(streams, after)
            owed = [n for n, topic in enumerate(topics, 1) if n > after and topic in wanted]
            assert drain(reader, log.end, random.choice((1, 2, 5, 99))) == owed
            assert reader.lost == []


def test_a_missing_block_is_counted_and_passed(store: Store) -> None:
    slab = new_slab(store, "blocks")
    for first in (1, 4, 7):
        batch: Batch = []
        for offset in range(first, first + 3):
            slab.append(batch, stored(message("a"), offset), [1])
        slab.seal(batch)
        store.write(batch)
    store.write([("msg.1", message_key(6), None)])
    reader = slab.reader([A], 0)
    assert drain(reader, 9) == [1, 2, 3, 7, 8, 9]
    assert reader.missing == 3
    assert slab.get_many([3, 4, 6, 7])[1:3] == [None, None]
    first_behind = slab.first_from(4)
    assert first_behind is not None
    assert first_behind.offset == 7


def test_a_scan_with_a_limit_returns_without_messages_but_moves(store: Store) -> None:
    slab = new_slab(store, "blocks")
    fill(store, slab, ["b", "c"] * 500 + ["a"], [])
    scan = slab.scanner("a", 0)
    assert scan.next(5, 1001, 50) == []
    assert 50 <= scan.position < 200
    assert scan.skip(5, 1000, 0) == 0
    assert scan.position == 1000
    assert [m.offset for m in scan.next(5, 1001, 0)] == [1001]
    assert scan.buffered() == 0


def block(last: int, size: int = 100) -> Block:
    """Return a block of one message."""
    store = MemoryStore()
    slab = new_slab(store, "blocks")
    batch: Batch = []
    slab.append(batch, stored(message("a", bytes(size)), last), [])
    slab.seal(batch)
    value = batch[0][2]
    assert value is not None
    return Block(value, last, "msg.1")


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    cache = BlockCache()
    for last in range(1, 1000):
        cache.add(block(last, BLOCK_BYTES))
        assert cache.size <= CACHE_BYTES
    assert cache.get("msg.1", 1) is None
    assert cache.get("msg.1", 999) is not None
    assert cache.get("msg.1", 1000) is None
    size = cache.size
    cache.add(block(5000, CACHED_BLOCK_MAX))
    assert cache.get("msg.1", 5000) is None
    cache.add(block(999, BLOCK_BYTES))
    assert cache.size == size


def test_a_cached_block_is_not_that_of_another_generation() -> None:
    store = MemoryStore([META])
    log = start(store)
    accept(store, log, "aaa")
    assert log.get(2) is not None
    rotate(store, log)
    accept(store, log, "a")
    drop(store, log, 1)
    assert log.get_many([1, 2, 3]) == [None, None, None]
    assert log.get(4) is not None
    cache = BlockCache()
    cache.add(block(7))
    assert cache.get("msg.1", 7) is not None
    assert cache.get("msg.2", 7) is None


def test_a_reader_holds_offsets_and_no_blocks() -> None:
    """Do ten thousand sessions that wait in their backlogs hold its messages in memory?"""
    store = MemoryStore([META])
    log: MessageLog = start(store)
    accept(store, log, "a" * 2000)
    reader = log._generations.newest.slab.reader([A], 0)
    assert isinstance(reader, BlockReader)
    reader.next(3, 2000, 0)
    assert len(reader._ready) <= BUFFERED_MAX
    assert not any(
        isinstance(getattr(reader, name, None), Block | list) and name not in ("_ready", "lost")
        for name in BlockReader.__slots__
    )


def test_damage_behind_the_end_of_a_read_gives_out_nothing_twice() -> None:
    store = MemoryStore([META])
    log = start(store)
    accept(store, log, "aaa")
    accept(store, log, "aa")
    index = [key for key, _ in store.scan("idx.1", b"", count=9)]
    store.damage("idx.1", index[1:])
    reader = BlockReader(store, "idx.1", BlockRows(store, 1, BlockCache()), [A], 0)
    assert [m.offset for m in reader.next(10, 2, 0)] == [1, 2]
    assert [m.offset for m in reader.next(10, 3, 0)] == [3]
    assert [m.offset for m in reader.next(10, 5, 0)] == [4, 5]
    assert reader.lost == []
