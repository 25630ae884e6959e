"""Do the generations keep every message they must over rotations, drops, crashes and failures?"""

import pytest

from storage.api import Batch, Store
from storage.errors import (
    CorruptRecord,
    DataLoss,
    Recoverable,
    StorageError,
    Unrecoverable,
)
from storage.local.memory import MemoryStore
from storage.log.generations import decode_generation, encode_generation, generation_key
from storage.log.layouts.message_rows import message_key
from storage.log.message_log import MessageLog
from storage.tables.tables import META, seal
from tests.storage.log_cases import (
    A,
    B,
    accept,
    drop,
    golden,
    read,
    rotate,
    sound,
    start,
)


def test_rotation_is_due_by_size(store: Store, layout: str) -> None:
    log = start(store, layout)
    log.generation_size_bytes = 120
    assert not log.rotation_due(0)
    accept(store, log, "a")
    assert not log.rotation_due(0)
    accept(store, log, "aaaa")
    assert log.rotation_due(0)
    assert log.newest_size_bytes >= 120
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


def test_the_size_of_a_generation_is_estimated_after_a_restart(store: Store, layout: str) -> None:
    log = start(store, layout)
    accept(store, log, "cd" * 250)
    size = log.newest_size_bytes
    assert size == sum(len(key) + len(value) for key, value in store.scan("msg.1", b"", count=999))
    reopened = start(store, layout)
    reopened.generation_size_bytes = size * 9 // 10
    assert reopened.rotation_due(0)
    reopened.generation_size_bytes = size * 11 // 10
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


def test_a_crash_before_the_first_sync_leaves_an_empty_log(layout: str) -> None:
    store = MemoryStore()
    accept(store, start(store, layout), "ab")
    log = start(store.crash(), layout)
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
    crashed = store.crash()
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
    log = start(store.crash(), layout)
    assert [g.number for g in log.list_generations()] == [1, 2]
    assert read(log, [A]) == [1]


def test_a_crash_before_reclaiming_is_finished_at_open(layout: str) -> None:
    store = MemoryStore([META])
    log = start(store, layout)
    accept(store, log, "ab")
    rotate(store, log)
    drop(store, log, 1)
    crashed = store.crash()
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
    crashed = store.crash()
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
