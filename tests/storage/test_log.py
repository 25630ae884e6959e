"""Does the log keep its order, its generations and its promises over restarts and crashes?"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.api import Batch, Store
from storage.errors import (
    CorruptRecord,
    DataLoss,
    GenerationDropped,
    Recoverable,
    StorageError,
    Unrecoverable,
)
from storage.generations import decode_generation, encode_generation, generation_key
from storage.layouts.rows import PAGE_MAX, message_key
from storage.log import (
    DISORDER_MS,
    END_OF_STREAM,
    SCAN_MAX,
    MessageLog,
    Stream,
    StreamIterator,
    report_generations,
)
from storage.memory import MemoryStore
from storage.state import META, seal
from tests.storage.log_cases import BACKENDS, LAYOUTS, fields, golden, message, open_store, opened

A = Stream(1, "a", 0)
B = Stream(2, "b", 0)
IDS = {"a": [1], "b": [2]}


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as opened_store:
        yield opened_store


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def start(store: Store, layout: str = "filters", now_ms: int = 0) -> MessageLog:
    log = MessageLog(store, layout=layout)
    log.open(now_ms)
    return log


def accept(store: Store, log: MessageLog, topics: str, *, at_ms: int = 1000) -> None:
    """Append one message per letter of `topics` and write them as one batch."""
    batch: Batch = []
    for topic in topics:
        log.append(batch, message(topic, accepted_at_ms=at_ms), IDS.get(topic, []))
    store.write(batch)


def rotate(store: Store, log: MessageLog, now_ms: int = 0, layout: str | None = None) -> int:
    batch: Batch = []
    number = log.add_generation(batch, now_ms, layout)
    store.write(batch)
    return number


def drop(store: Store, log: MessageLog, number: int) -> None:
    batch: Batch = []
    log.drop_generation(batch, number)
    store.write(batch)
    store.sync()


def read(log: MessageLog, streams: list[Stream], position: int = 0) -> list[int]:
    cursor = log.cursor(streams, position)
    offsets: list[int] = []
    while found := cursor.next(3):
        offsets += [m.offset for m in found]
    assert cursor.next(3) == []
    return offsets


def sound(log: MessageLog) -> None:
    assert list(log.invariants()) == []


# --- appending and finding ---


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
    store.write(batch)
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


# --- cursors ---


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
    store.write(pending)
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


# --- what is owed ---


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
    store.write(pending)
    assert log.first_owed([A], 0, generation=1) == 3
    assert log.first_owed([B], 2, generation=1) is None


# --- generations ---


def test_rotation_is_due_by_size(store: Store, layout: str) -> None:
    log = start(store, layout)
    log.generation_size_bytes = 200
    assert not log.rotation_due(0)
    accept(store, log, "a")
    assert not log.rotation_due(0)
    accept(store, log, "aaaa")
    assert log.rotation_due(0)
    assert log.newest_size_bytes >= 200
    rotate(store, log)
    assert not log.rotation_due(0)
    assert log.newest_size_bytes == 0


def test_rotation_is_due_by_age_but_never_for_an_empty_generation(
    store: Store, layout: str
) -> None:
    log = start(store, layout, now_ms=1000)
    log.generation_age_ms = 500
    assert not log.rotation_due(9999)
    accept(store, log, "a")
    assert not log.rotation_due(1499)
    assert log.rotation_due(1500)


def test_the_size_of_a_generation_is_estimated_after_a_restart(store: Store) -> None:
    log = start(store)
    accept(store, log, "c" * 500)
    log.generation_size_bytes = 20_000
    assert log.rotation_due(0)
    reopened = start(store)
    reopened.generation_size_bytes = 20_000
    assert reopened.rotation_due(0)
    reopened.generation_size_bytes = 40_000
    assert not reopened.rotation_due(0)


def test_generations_are_listed_with_what_they_hold(store: Store, layout: str) -> None:
    log = start(store, layout, 5)
    accept(store, log, "ab")
    rotate(store, log, 8)
    listed = [
        (g.number, g.first_offset, g.last_offset, g.created_ms, g.is_closed)
        for g in log.list_generations()
    ]
    assert listed == [(1, 1, 2, 5, True), (2, 3, 2, 8, False)]
    assert repr(log.list_generations()[0]) == f"Generation(1, {layout}, 1..2, created 5, closed)"


def test_only_a_closed_generation_can_be_dropped(store: Store) -> None:
    log = start(store)
    accept(store, log, "a")
    with pytest.raises(ValueError, match="generation 1 is open"):
        log.drop_generation([], 1)
    with pytest.raises(ValueError, match="generation 2: there is no such"):
        log.drop_generation([], 2)


def test_space_returns_only_when_reclaimed(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "a")
    rotate(store, log)
    drop(store, log, 1)
    assert "msg.1" in store.families()
    assert log.reclaim() == 1
    assert not {"msg.1", "idx.1"} & set(store.families())
    assert log.reclaim() == 0


def test_a_number_is_never_used_again(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "a")
    assert rotate(store, log) == 2
    drop(store, log, 1)
    log.reclaim()
    log = start(store, layout)
    assert rotate(store, log) == 3


def test_the_configured_layout_starts_with_a_generation_of_its_own(store: Store) -> None:
    accept(store, start(store, "filters"), "ab")
    log = start(store, "timeline")
    assert [g.layout for g in log.list_generations()] == ["filters", "timeline"]
    accept(store, log, "ab")
    assert read(log, [A]) == [1, 3]
    assert [g.layout for g in start(store, "timeline").list_generations()] == [
        "filters",
        "timeline",
    ]


def test_an_unknown_layout_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="layout 'tree', expected one of"):
        MessageLog(store, layout="tree")
    log = start(store)
    with pytest.raises(ValueError, match="layout 'tree'"):
        log.add_generation([], 0, "tree")
    store.write([(META, generation_key(2), encode_generation("tree", 1, 0))])
    with pytest.raises(Unrecoverable, match="generation 2 has layout 'tree'"):
        start(store)


# --- crashes and failures ---


def crash(store: MemoryStore, keep: int = 0) -> MemoryStore:
    return store.crash(keep)


def test_a_crash_before_the_first_sync_leaves_an_empty_log(layout: str) -> None:
    store = MemoryStore()
    accept(store, start(store, layout), "ab")
    log = start(crash(store), layout)
    assert log.end == 0
    assert read(log, [A]) == []
    sound(log)


def test_a_crash_during_a_rotation_leaves_only_orphans(layout: str) -> None:
    store = MemoryStore([META])
    log = start(store, layout)
    accept(store, log, "ab")
    store.sync()
    rotate(store, log)
    accept(store, log, "ab")
    crashed = crash(store)
    assert "msg.2" in crashed.families()
    log = start(crashed, layout)
    assert "msg.2" not in crashed.families()
    assert log.end == 2
    assert len(log.list_generations()) == 1
    sound(log)
    assert rotate(crashed, log) == 2
    accept(crashed, log, "b")
    assert read(log, [B]) == [2, 3]


def test_a_crash_before_a_drop_is_durable_brings_the_generation_back(layout: str) -> None:
    store = MemoryStore([META])
    log = start(store, layout)
    accept(store, log, "ab")
    rotate(store, log)
    store.sync()
    batch: Batch = []
    log.drop_generation(batch, 1)
    store.write(batch)
    log = start(crash(store), layout)
    assert [g.number for g in log.list_generations()] == [1, 2]
    assert read(log, [A]) == [1]


def test_a_crash_before_reclaiming_is_finished_at_open(layout: str) -> None:
    store = MemoryStore([META])
    log = start(store, layout)
    accept(store, log, "ab")
    rotate(store, log)
    drop(store, log, 1)
    crashed = crash(store)
    assert "msg.1" in crashed.families()
    sound(start(crashed, layout))
    assert "msg.1" not in crashed.families()


def test_families_gone_before_their_row_are_a_finished_drop(layout: str) -> None:
    """Without fsync a power cut can take the row's deletion, but not the dropping of families."""
    store = MemoryStore([META])
    log = start(store, layout)
    accept(store, log, "ab")
    rotate(store, log)
    accept(store, log, "a")
    store.sync()
    batch: Batch = []
    log.drop_generation(batch, 1)
    store.write(batch)
    log.reclaim()
    crashed = crash(store)
    log = start(crashed, layout)
    assert [g.number for g in log.list_generations()] == [2]
    assert read(log, [A]) == [3]
    assert crashed.get(META, generation_key(1)) is None
    sound(log)


def test_messages_without_a_generation_are_never_dropped(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "a")
    store.write([(META, generation_key(1), None)])
    with pytest.raises(DataLoss, match=r"family '...\.1' holds rows"):
        start(store, layout)
    assert "msg.1" in store.families()


def test_an_open_generation_without_families_is_a_loss(store: Store) -> None:
    start(store)
    store.drop_family("idx.1")
    with pytest.raises(DataLoss, match="generation 1 is open"):
        start(store)


def test_families_of_others_are_left_alone(store: Store) -> None:
    for family in ("msg.x", "sessions", "history.4"):
        store.create_family(family)
    start(store)
    assert {"msg.x", "sessions", "history.4"} <= set(store.families())


def test_overlapping_generations_are_refused(store: Store) -> None:
    log = start(store)
    accept(store, log, "abc")
    rotate(store, log)
    store.write([(META, generation_key(2), encode_generation("filters", 1, 0))])
    store.write([(META, generation_key(1), encode_generation("filters", 2, 0))])
    with pytest.raises(CorruptRecord, match="generation 2 begins at offset 1"):
        start(store)


def test_a_failed_rotation_changes_nothing_and_can_be_tried_again(layout: str) -> None:
    other = "timeline" if layout == "filters" else "filters"
    for failing_call in range(1, 3 if other == "filters" else 2):
        store = MemoryStore([META])
        log = start(store, layout)
        accept(store, log, "ab")
        store.fail_at_call(store.io_calls + failing_call, Recoverable("no space"))
        batch: Batch = []
        with pytest.raises(Recoverable):
            log.add_generation(batch, 0, other)
        assert batch == []
        assert len(log.list_generations()) == 1
        accept(store, log, "a")
        assert rotate(store, log, layout=other) == 2
        accept(store, log, "b")
        assert [g.layout for g in log.list_generations()] == [layout, other]
        assert read(log, [A, B]) == [1, 2, 3, 4]
        sound(log)


def test_opening_survives_a_failure_at_any_call(layout: str) -> None:
    """Whatever call of `open` fails: does a later `open` find everything?"""
    original = MemoryStore([META])
    log = start(original, layout)
    accept(original, log, "ab")
    rotate(original, log)
    accept(original, log, "ab")
    rotate(original, log)
    drop(original, log, 1)
    original.sync()
    rotate(original, log)
    other = "timeline" if layout == "filters" else "filters"
    failing_call = 0
    while True:
        failing_call += 1
        store = original.crash()
        store.fail_at_call(failing_call, Recoverable("busy"))
        try:
            start(store, other)
        except StorageError:
            reopened = start(store, other)
            assert read(reopened, [A, B]) == [3, 4]
            assert reopened.end == 4
            sound(reopened)
        else:
            break
    assert failing_call > 5


def test_a_failed_reclaim_is_tried_again(layout: str) -> None:
    store = MemoryStore([META])
    log = start(store, layout)
    accept(store, log, "a")
    rotate(store, log)
    drop(store, log, 1)
    store.fail_at_call(store.io_calls + 1, Recoverable("busy"))
    with pytest.raises(Recoverable):
        log.reclaim()
    assert log.reclaim() == 1
    assert "msg.1" not in store.families()


def test_invariants_name_what_is_wrong(store: Store) -> None:
    log = start(store)
    accept(store, log, "ab")
    store.write([("msg.1", message_key(9), b"stray")])
    assert list(log.invariants()) == ["generation 1 holds offset 9, which is not its own"]


# --- rows ---


def test_a_damaged_generation_row_is_refused(store: Store) -> None:
    start(store)
    row = encode_generation("filters", 1, 0)
    for bit in range(0, 8 * len(row), 5):
        damaged = bytearray(row)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            decode_generation(bytes(damaged), 1)
    for size in range(len(row)):
        with pytest.raises(CorruptRecord):
            decode_generation(row[:size], 1)
    with pytest.raises(CorruptRecord, match="row version 2, expected 1"):
        decode_generation(seal(b"\x02" + row[5:]), 1)
    with pytest.raises(CorruptRecord, match="expected 7"):
        decode_generation(seal(row[4:] + b"x"), 1)
    with pytest.raises(CorruptRecord, match="expected 18 or more"):
        decode_generation(seal(b"\x01"), 1)


def test_generation_rows_are_as_documented() -> None:
    rows = golden("generation-row-v1.hex")
    assert generation_key(1) == rows["key of 1"]
    assert generation_key(65_536) == rows["key of 65536"]
    assert encode_generation("filters", 1, 1_763_711_111_111) == rows["filters"]
    assert decode_generation(rows["filters"], 1) == ("filters", 1, 1_763_711_111_111)
    assert decode_generation(rows["timeline"], 1) == ("timeline", 2**40, 1_763_711_171_111)


# --- the public API: streams and iterators ---


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


def test_iterators_are_as_documented() -> None:
    kept = golden("stream-iterator-v1.hex")
    whole = StreamIterator(0, 1, 0, "#", 0, 0)
    one = StreamIterator(3, 7, 2**33, "täg/+/x", 2**40, 1_763_711_111_111)
    assert whole.to_bytes() == kept["whole shard"]
    assert StreamIterator.from_bytes(kept["one filter"]) == one
    assert one != whole
    assert repr(one) == "StreamIterator(shard 3, generation 7, filter 8589934592 'täg/+/x', " + (
        f"at {2**40})"
    )


def test_damaged_iterators_are_refused() -> None:
    kept = golden("stream-iterator-v1.hex")["one filter"]
    for size in range(len(kept)):
        with pytest.raises(ValueError, match="iterator"):
            StreamIterator.from_bytes(kept[:size])
    for bit in range(8 * len(kept)):
        damaged = bytearray(kept)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="iterator"):
            StreamIterator.from_bytes(bytes(damaged))


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


# --- reports ---


@pytest.mark.parametrize("exact", [False, True])
def test_a_report_needs_no_open_log(store: Store, layout: str, exact: bool) -> None:
    assert report_generations(MemoryStore()) == []
    log = start(store, layout, 3)
    accept(store, log, "abc" * 100)
    rotate(store, log, 4)
    accept(store, log, "ab")
    rotate(store, log, 5)
    reports = report_generations(store, exact=exact)
    record = len(store.get("msg.1", message_key(1)) or b"") + 8
    assert [
        (r.generation.number, r.rows, r.size_bytes, r.generation.created_ms, r.is_estimate)
        for r in reports
    ] == [
        (1, 300, 300 * record, 3, not exact),
        (2, 2, 2 * record, 4, not exact),
        (3, 0, 0, 5, not exact),
    ]
    assert reports[1].generation.first_offset == 301
    assert reports[1].generation.last_offset == 302
    assert "300 rows" in repr(reports[0])
    assert repr(A) == "Stream(1, 'a', since=0)"
