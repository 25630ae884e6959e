"""Does the log keep its order, say what is owed, and serve tools through its public API?"""

from pathlib import Path

import pytest

from storage.api import Batch, Store
from storage.errors import (
    GenerationDropped,
    Recoverable,
)
from storage.local.memory import MemoryStore
from storage.log.iterators import END_OF_STREAM, StreamIterator
from storage.log.layouts.api import Stream
from storage.log.message_log import DISORDER_MS, SCAN_MAX, MessageLog, report_generations
from storage.tables.tables import META
from tests.storage.log_cases import (
    A,
    B,
    accept,
    drop,
    fields,
    message,
    open_store,
    read,
    rotate,
    sound,
    start,
    write,
)


def read_streams(log: MessageLog, topic_filter: str, start_time: int, n: int = 2) -> list[int]:
    """Read all streams of a filter to their ends, through serialised iterators."""
    offsets: list[int] = []
    streams = log.get_streams(topic_filter, start_time)
    assert [s.rank for s in streams] == sorted(s.rank for s in streams)
    for stream in streams:
        iterator = log.make_iterator(stream)
        while True:
            before = iterator
            iterator = StreamIterator.from_bytes(iterator.to_bytes())
            iterator, messages = log.next(iterator, n)
            if messages is END_OF_STREAM or (not messages and iterator == before):
                break
            assert len(messages) <= n
            offsets += [m.offset for m in messages]
    return offsets


def test_offsets_start_at_one_and_count_up(store: Store, layout: str) -> None:
    log = start(store, layout)
    assert log.end == 0
    batch: Batch = []
    first, second = message("a"), message("b")
    assert log.append(batch, first, [1]) == 1
    assert log.append(batch, second, [2]) == 2
    assert (first.offset, second.offset, log.end) == (1, 2, 2)


def test_a_message_is_found_by_its_offset(store: Store, layout: str) -> None:
    log = start(store, layout)
    sent = message("a/b", b"payload")
    batch: Batch = []
    log.append(batch, sent, [])
    write(store, log, batch)
    found = log.get(1)
    assert found is not None
    assert fields(found) == fields(sent)
    assert log.get(2) is None
    assert log.get(0) is None


def test_messages_are_found_across_generations(store: Store, layout: str) -> None:
    log = start(store, layout)
    for _ in range(3):
        accept(store, log, "ab")
        rotate(store, log)
    drop(store, log, 2)
    found = log.get_many([6, 1, 2, 3, 4, 5, 99, 0])
    offsets = [None if m is None else m.offset for m in found]
    assert offsets == [6, 1, 2, None, None, 5, None, None]


def test_the_log_is_the_same_after_reopening(tmp_path: Path, layout: str) -> None:
    store = open_store("rocks", tmp_path)
    log = start(store, layout)
    accept(store, log, "ab")
    rotate(store, log, 7)
    accept(store, log, "abc")
    before = [repr(g) for g in log.list_generations()]
    store.close()

    store = open_store("rocks", tmp_path)
    log = start(store, layout, 99)
    assert log.end == 5
    assert [repr(g) for g in log.list_generations()] == before
    assert read(log, [A]) == [1, 3]
    sound(log)
    store.close()


def test_a_generation_is_owed_until_every_stream_is_past_it(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "abc")
    rotate(store, log)
    accept(store, log, "ac")
    assert log.first_owed([A, B], 0, generation=1) == 1
    assert log.first_owed([A, B], 1, generation=1) == 2
    assert log.first_owed([A, B], 2, generation=1) is None
    assert log.first_owed([A], 1, generation=1) is None
    assert log.first_owed([Stream(2, "b", 2)], 0, generation=1) is None
    assert log.first_owed([A], 0, generation=2) == 4
    assert log.first_owed([B], 0, generation=2) is None
    assert log.first_owed([A], 0, generation=9) is None


def test_what_is_not_written_yet_is_owed(store: Store, layout: str) -> None:
    """Could a generation be dropped in the tick that closes it, with its last messages pending?"""
    log = start(store, layout)
    accept(store, log, "cb")
    pending: Batch = []
    log.append(pending, message("a"), [1])
    log.add_generation(pending, 0)
    assert log.first_owed([A], 0, generation=1) == 3
    assert log.first_owed([B], 0, generation=1) == 2
    assert log.first_owed([B], 2, generation=1) == 3
    assert log.first_owed([A], 3, generation=1) is None
    write(store, log, pending)
    assert log.first_owed([A], 0, generation=1) == 3
    assert log.first_owed([B], 2, generation=1) is None


def test_streams_hold_every_match_of_any_filter(store: Store, layout: str) -> None:
    log = start(store, layout)
    for _ in range(3):
        accept(store, log, "abcab")
        rotate(store, log)
    accept(store, log, "a")
    assert read_streams(log, "a", 0) == [1, 4, 6, 9, 11, 14, 16]
    assert read_streams(log, "c", 0) == [3, 8, 13]
    assert read_streams(log, "+", 0) == list(range(1, 17))
    assert read_streams(log, "d", 0) == []


def test_a_held_filter_is_read_by_its_index(store: Store) -> None:
    log = start(store)
    accept(store, log, "ab")
    log.held_filters = {"a": Stream(1, "a", 2)}
    rotate(store, log)
    accept(store, log, "ab")
    # Only the second generation is covered by the index as a whole.
    assert [s.filter_id for s in log.get_streams("a", 0)] == [0, 1]
    assert [s.filter_id for s in log.get_streams("b", 0)] == [0, 0]
    assert read_streams(log, "a", 0) == [1, 3]


def test_streams_begin_at_their_start_time(store: Store, layout: str) -> None:
    log = start(store, layout, 0)
    step = DISORDER_MS
    for n in range(1, 41):
        accept(store, log, "a", at_ms=n * step)
        if n % 10 == 0:
            rotate(store, log, n * step)
    for n in (1, 5, 10, 11, 25, 40):
        assert read_streams(log, "a", n * step) == list(range(n, 41))
        assert read_streams(log, "a", n * step + 1) == list(range(n + 1, 41))
    # Whole generations before the start are not even named, and in the others reading starts late.
    streams = log.get_streams("a", 35 * step)
    assert [s.generation for s in streams] == [4, 5]
    assert streams[0].start_offset > 31
    assert read_streams(log, "a", 99 * step) == []


def test_a_clock_that_went_back_hides_no_message(store: Store, layout: str) -> None:
    log = start(store, layout)
    times = [1_000_000 + 1000 * n for n in range(60)]
    times += [times[-1] - DISORDER_MS // 2 + 1000 * n for n in range(60)]
    for time in times:
        accept(store, log, "a", at_ms=time)
    for since in times[::7]:
        expected = [offset for offset, time in enumerate(times, 1) if time >= since]
        assert read_streams(log, "a", since) == expected


def test_an_iterator_can_begin_at_an_offset(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "aaaa")
    (stream,) = log.get_streams("a", 0)
    _, messages = log.next(log.make_iterator(stream, 3), 10)
    assert isinstance(messages, list)
    assert [m.offset for m in messages] == [3, 4]
    assert repr(stream).startswith("StoredStream(shard 0, generation 1, filter 0 'a'")


def test_an_open_generation_is_never_at_its_end(store: Store, layout: str) -> None:
    log = start(store, layout)
    (stream,) = log.get_streams("a", 0)
    iterator, messages = log.next(log.make_iterator(stream), 10)
    assert messages == []
    accept(store, log, "ab")
    iterator, messages = log.next(iterator, 10)
    assert isinstance(messages, list)
    assert [m.offset for m in messages] == [1]
    iterator, messages = log.next(iterator, 10)
    assert messages == []
    again, messages = log.next(iterator, 10)
    assert messages == []
    assert again == iterator
    rotate(store, log)
    iterator, messages = log.next(iterator, 10)
    assert messages is END_OF_STREAM
    assert log.next(iterator, 10) == (iterator, END_OF_STREAM)


def test_an_iterator_survives_a_restart(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "aaa")
    (stream,) = log.get_streams("a", 0)
    iterator, _ = log.next(log.make_iterator(stream), 2)
    kept = iterator.to_bytes()
    log = start(store, layout)
    _, messages = log.next(StreamIterator.from_bytes(kept), 2)
    assert isinstance(messages, list)
    assert [m.offset for m in messages] == [3]


def test_an_iterator_of_a_dropped_generation_says_so(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "aaa")
    rotate(store, log)
    iterator = log.make_iterator(log.get_streams("a", 0)[0])
    drop(store, log, 1)
    with pytest.raises(GenerationDropped, match="generation 1 of shard 0"):
        log.next(iterator, 1)
    with pytest.raises(GenerationDropped, match="of shard 1"):
        log.next(StreamIterator(1, 2, 0, "a", 0, 0), 1)


def test_a_search_in_vain_is_cut_short(store: Store) -> None:
    log = start(store, "timeline")
    accept(store, log, "b" * (SCAN_MAX + 500) + "a")
    (stream,) = log.get_streams("a", 0)
    first = log.make_iterator(stream)
    second, messages = log.next(first, 1)
    assert messages == []
    assert second != first
    assert hash(second) != hash(first)
    assert SCAN_MAX <= second.position < SCAN_MAX + 500
    _, messages = log.next(second, 1)
    assert isinstance(messages, list)
    assert [m.offset for m in messages] == [SCAN_MAX + 501]


def test_a_stored_batch_reaches_cursors_and_streams(store: Store, layout: str) -> None:
    log = start(store, layout)
    log.held_filters = {"a": A, "+": Stream(5, "+", 0)}
    assert log.store_batch([message("a"), message("b"), message("c/d")]) == [1, 2, 3]
    assert read(log, [A]) == [1]
    assert read(log, [Stream(5, "+", 0)]) == [1, 2]
    assert read_streams(log, "c/#", 0) == [3]


def test_a_refused_batch_stores_nothing(layout: str) -> None:
    store = MemoryStore([META])
    log = start(store, layout)
    log.store_batch([message("a")])
    store.full = True
    with pytest.raises(Recoverable):
        log.store_batch([message("a"), message("a")])
    assert log.end == 1
    store.full = False
    assert log.store_batch([message("a")]) == [2]
    sound(log)


@pytest.mark.parametrize("exact", [False, True])
def test_a_report_needs_no_open_log(store: Store, layout: str, exact: bool) -> None:
    assert report_generations(MemoryStore()) == []
    log = start(store, layout, 3)
    accept(store, log, "abc" * 100)
    rotate(store, log, 4)
    accept(store, log, "ab")
    rotate(store, log, 5)
    reports = report_generations(store, exact=exact)
    assert [
        (r.generation.number, r.rows, r.generation.created_ms, r.is_estimate) for r in reports
    ] == [(1, 300, 3, not exact), (2, 2, 4, not exact), (3, 0, 5, not exact)]
    for number, report in enumerate(reports, 1):
        rows = store.scan(f"msg.{number}", b"", count=999)
        size = sum(len(key) + len(value) for key, value in rows)
        assert report.size_bytes == size or (not exact and 0.9 * size < report.size_bytes < size)
    assert reports[1].generation.first_offset == 301
    assert reports[1].generation.last_offset == 302
    assert "300 rows" in repr(reports[0])
    assert repr(A) == "Stream(1, 'a', since=0)"
