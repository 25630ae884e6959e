"""Does a cursor give out what its streams are owed through everything that happens to the log?"""

import pytest

from storage.api import Batch, Store
from storage.local.memory import MemoryStore
from storage.log.layouts.api import SEARCH_ROWS, Stream
from storage.log.layouts.message_rows import PAGE_MAX, message_key
from storage.tables.tables import META
from tests.storage.log_cases import A, B, accept, drop, message, read, rotate, sound, start, write


def test_a_cursor_reads_through_all_generations(store: Store, layout: str) -> None:
    log = start(store, layout)
    for _ in range(4):
        accept(store, log, "abcab")
        rotate(store, log)
    assert read(log, [A]) == [1, 4, 6, 9, 11, 14, 16, 19]
    assert read(log, [B, A], 7) == [9, 10, 11, 12, 14, 15, 16, 17, 19, 20]


def test_a_cursor_reads_through_generations_of_different_layouts(store: Store) -> None:
    log = start(store, "filters")
    accept(store, log, "abc")
    rotate(store, log, layout="timeline")
    accept(store, log, "abc")
    rotate(store, log, layout="filters")
    accept(store, log, "abc")
    assert [g.layout for g in log.list_generations()] == ["filters", "timeline", "filters"]
    assert read(log, [A, B]) == [1, 2, 4, 5, 7, 8]
    assert read(log, [Stream(1, "a", 5), Stream(2, "b", 2)]) == [5, 7, 8]
    reopened = start(store, "filters")
    assert read(reopened, [A, B], 4) == [5, 7, 8]


def test_a_cursor_goes_on_when_more_is_written(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "ab")
    cursor = log.cursor([A, B], 0)
    assert [m.offset for m in cursor.next(10)] == [1, 2]
    assert cursor.next(10) == []
    accept(store, log, "a")
    assert [m.offset for m in cursor.next(10)] == [3]
    rotate(store, log)
    assert cursor.next(10) == []
    accept(store, log, "cb")
    assert [m.offset for m in cursor.next(10)] == [5]
    assert cursor.next(10) == []


def test_a_cursor_never_passes_a_batch_that_is_not_written(store: Store, layout: str) -> None:
    """Could a reader take a pending message for one that is not there, and skip it for ever?"""
    log = start(store, layout)
    accept(store, log, "a")
    cursor = log.cursor([A, B], 0)
    pending: Batch = []
    log.append(pending, message("b"), [2])
    assert [m.offset for m in cursor.next(10)] == [1]
    assert cursor.next(10) == []
    log.add_generation(pending, 0)
    log.append(pending, message("a"), [1])
    assert cursor.next(10) == []
    assert cursor.position == 1
    write(store, log, pending)
    assert [m.offset for m in cursor.next(10)] == [2]
    assert [m.offset for m in cursor.next(10)] == [3]


def test_the_position_passes_what_others_got(store: Store, layout: str) -> None:
    """A session that is owed nothing must not hold on to old generations."""
    log = start(store, layout)
    accept(store, log, "bbb")
    rotate(store, log)
    accept(store, log, "bb")
    cursor = log.cursor([A], 0)
    assert cursor.next(10) == []
    assert cursor.position == 5


def test_a_cursor_without_streams_is_at_the_end(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "ab")
    cursor = log.cursor([], 0)
    assert cursor.next(10) == []
    assert cursor.position == 2


def test_a_position_past_the_end_reads_nothing(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "a")
    cursor = log.cursor([A], 50)
    assert cursor.next(10) == []
    assert cursor.position == 50


def test_skipping_counts_over_generations(store: Store, layout: str) -> None:
    log = start(store, layout)
    for _ in range(3):
        accept(store, log, "aba")
        rotate(store, log)
    cursor = log.cursor([A], 0)
    assert cursor.skip(1) == 1
    skipped = 1
    while step := cursor.skip(2):
        skipped += step
    assert skipped == 6
    assert cursor.next(10) == []


def test_a_scan_limit_bounds_a_call_and_the_position_shows_progress(store: Store) -> None:
    log = start(store, "timeline")
    accept(store, log, "b" * 500 + "a")
    cursor = log.cursor([A], 0)
    calls = 1
    while not (found := cursor.next(10, scan_max=100)):
        calls += 1
        assert cursor.position < 501
    assert [m.offset for m in found] == [501]
    assert calls >= 501 // (100 + PAGE_MAX)
    assert cursor.next(10, scan_max=100) == []
    assert cursor.position == 501


def test_dropped_messages_are_skipped_and_what_was_read_ahead_is_counted(store: Store) -> None:
    log = start(store, "filters")
    accept(store, log, "ab" * 5)
    rotate(store, log)
    accept(store, log, "ab")
    cursor = log.cursor([A, B], 0)
    assert [m.offset for m in cursor.next(3)] == [1, 2, 3]
    drop(store, log, 1)
    log.reclaim()
    assert [m.offset for m in cursor.next(10)] == [11, 12]
    assert cursor.missing == 7
    assert read(log, [A]) == [11]


def test_everything_dropped_leaves_an_empty_log_at_its_end(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "aa")
    rotate(store, log)
    drop(store, log, 1)
    log.reclaim()
    assert read(log, [A]) == []
    assert log.end == 2
    reopened = start(store, layout)
    assert reopened.end == 2
    assert read(reopened, [A]) == []
    accept(store, reopened, "a")
    assert read(reopened, [A]) == [3]
    sound(reopened)


def test_a_missing_record_is_counted_by_the_cursor(store: Store) -> None:
    log = start(store, "filters")
    accept(store, log, "aaa")
    store.write([("msg.1", message_key(2), None)])
    cursor = log.cursor([A], 0)
    assert [m.offset for m in cursor.next(10)] == [1, 3]
    assert cursor.missing == 1


@pytest.mark.parametrize("how", ["next", "skip"])
def test_a_cursor_of_many_streams_searches_the_index_in_slices(layout: str, how: str) -> None:
    store = MemoryStore([META])
    log = start(store, layout)
    streams = [Stream(number, "a", 0) for number in range(1, 101)]
    for _ in range(3):
        batch: Batch = []
        for number in range(30):
            holders = [stream.filter_id for stream in streams[number::30]]
            log.append(batch, message("a" if number % 3 else "c"), holders if number % 3 else [])
        write(store, log, batch)
        rotate(store, log)
    found = 0
    calls = []
    cursor = log.cursor(streams, 0)
    while not cursor.is_at_end:
        before, searches, position = store.io_calls, cursor.searches, cursor.position
        if how == "skip":
            found += cursor.skip(7, 10 * SEARCH_ROWS)
        else:
            found += len(cursor.next(7, 10 * SEARCH_ROWS))
        assert cursor.position >= position
        assert cursor.searches - searches <= 10 + 1  # a new generation has a reader of its own
        calls.append(store.io_calls - before)
    assert found == 60 and cursor.position == 90
    assert max(calls) <= 10 + 7 + 3
    assert bool(cursor.searches) == (layout != "timeline")


def test_a_cursor_ends_where_it_is_told(layout: str) -> None:
    store = MemoryStore([META])
    log = start(store, layout)
    for _ in range(2):
        accept(store, log, "abcab")
        rotate(store, log)
    for until, offsets in ((1, [1]), (4, [1, 4]), (5, [1, 4]), (6, [1, 4, 6]), (8, [1, 4, 6])):
        cursor = log.cursor([A], 0, until)
        assert [m.offset for _ in range(3) for m in cursor.next(10)] == offsets
        assert cursor.is_at_end
        cursor = log.cursor([A], 0, until)
        assert sum(cursor.skip(10) for _ in range(3)) == len(offsets)


# Gaps


def test_a_cursor_passes_over_gaps(store: Store, layout: str) -> None:
    log = start(store, layout)
    for _ in range(3):
        accept(store, log, "abab")
        rotate(store, log)
    gaps = ((2, 3), (6, 9), (12, 12))
    for count in (1, 2, 100):
        cursor = log.cursor([A, B], 0, 0, gaps)
        found: list[int] = []
        while messages := cursor.next(count):
            found += [each.offset for each in messages]
        assert found == [1, 4, 5, 10, 11]
        assert cursor.is_at_end and cursor.position == 12 and cursor.missing == 0
    skipping = log.cursor([A], 0, 0, gaps)
    assert [skipping.skip(1) for _ in range(4)] == [1, 1, 1, 0]
    assert log.cursor([A, B], 2, 0, gaps).offsets(100) == [4]
    assert log.cursor([A, B], 4, 0, gaps).next(100)[0].offset == 5
    accept(store, log, "a")
    assert [each.offset for each in skipping.next(9)] == [13]


def test_a_gap_may_be_gone_with_its_generation(store: Store, layout: str) -> None:
    log = start(store, layout)
    for _ in range(4):
        accept(store, log, "ab")
        rotate(store, log)
    cursor = log.cursor([A, B], 0, 0, ((3, 6),))
    assert [each.offset for each in cursor.next(1)] == [1]
    drop(store, log, 2)
    drop(store, log, 3)
    assert [each.offset for _ in range(3) for each in cursor.next(9)] == [2, 7, 8]
    assert cursor.missing == 0
    reopened = start(store, layout)
    assert reopened.cursor([A, B], 0, 0, ((3, 6),)).offsets(9) == [1, 2]
    assert reopened.begin == 1 and reopened.closed_end == 8


@pytest.mark.parametrize("until", [1, 2, 3, 5, 6])
def test_a_cursor_that_is_to_end_in_a_gap_ends_there(store: Store, layout: str, until: int) -> None:
    log = start(store, layout)
    accept(store, log, "ababab")
    cursor = log.cursor([A, B], 0, until, ((2, 5),))
    found: list[int] = []
    while not cursor.is_at_end:
        found += cursor.offsets(9)
    assert found == [each for each in (1, 6) if each <= until]
    assert cursor.position == until


def test_nothing_in_a_gap_is_owed(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "abab")
    rotate(store, log)
    accept(store, log, "abab")
    gaps = ((2, 3), (5, 8))
    assert log.first_owed([A, B], 0, generation=1, gaps=gaps) == 1
    assert log.first_owed([A, B], 1, generation=1, gaps=gaps) == 4
    assert log.first_owed([A], 1, generation=1, gaps=gaps) is None
    assert log.first_owed([A, B], 0, generation=2, gaps=gaps) is None
    assert log.first_owed([A, B], 0, generation=2, gaps=((5, 7),)) == 8
    pending: Batch = []
    log.append(pending, message("b"), [2])
    assert log.first_owed([A, B], 0, generation=2, gaps=gaps) == 9
