"""Do pending messages become rows when they must, and only then?"""

import struct

import pytest

from mqtt.message import Message
from storage.api import Batch, Store
from storage.errors import Recoverable
from storage.local.memory import MemoryStore
from storage.log.layouts import blocks
from storage.log.layouts.api import Stream
from storage.log.message_log import MessageLog
from storage.tables.tables import META
from tests.storage.log_cases import A, B, accept, fields, message, new_slab, read, start, write


def test_messages_wait_for_the_seal_and_then_are_few_rows(store: Store) -> None:
    log = start(store)
    assert not log.is_pending
    batch: Batch = []
    ids = [1]
    for _ in range(20):
        log.append(batch, message("a", b"x" * 50), ids)
    assert batch == []
    assert log.is_pending
    assert log.newest_size_bytes > 20 * 50
    log.seal(batch)
    assert not log.is_pending
    assert [family for family, _, _ in batch] == ["msg.1", "idx.1"]
    assert log.newest_size_bytes == sum(len(key) + len(value or b"") for _, key, value in batch)
    log.seal(batch)
    assert len(batch) == 2
    assert log.get(1) is None
    store.write(batch)
    assert read(log, [A]) == list(range(1, 21))


def test_only_messages_that_differ_in_their_payload_alone_share_a_run() -> None:
    base = ("a", b"x", 1, False, b"", "publisher", 1000, 0)
    others = [
        base,
        base,
        ("b", *base[1:]),
        ("b", b"longer", *base[2:]),
        (*base[:2], 2, *base[3:]),
        (*base[:3], True, *base[4:]),
        (*base[:4], b"\x01\x01", *base[5:]),
        (*base[:5], "another", *base[6:]),
        (*base[:6], 1001, 0),
        (*base[:7], 1),
        (*base, 0, "ann"),
        (*base, 0, "ann"),
        (*base, 0, "bob"),
        base,
    ]
    store = MemoryStore([META])
    log = start(store)
    messages = [Message(*values) for values in others]  # type: ignore[arg-type]
    batch: Batch = []
    for one in messages:
        log.append(batch, one, [1])
    write(store, log, batch)
    found = log.get_many(range(1, len(messages) + 1))
    assert [fields(one) for one in found if one] == [fields(one) for one in messages]


def test_a_message_for_other_filters_is_not_indexed_like_the_one_before(store: Store) -> None:
    log = start(store)
    batch: Batch = []
    for ids in ([1], [1], [2], [], [1, 2], [1]):
        log.append(batch, message("a"), ids)
    write(store, log, batch)
    assert read(log, [A]) == [1, 2, 5, 6]
    assert read(log, [B]) == [3, 5]


def test_a_run_given_at_once_is_like_its_messages_one_by_one(store: Store, layout: str) -> None:
    log = start(store, layout)
    payloads = [b"1", b"22", b"333"] * 30
    batch: Batch = []
    log.append(batch, message("a", b"before"), [1])
    template = message("a")
    assert log.append_run(batch, template, payloads, [1]) == 2
    assert (template.offset, log.end) == (2, 91)
    log.append(batch, message("a", b"after"), [1])
    write(store, log, batch)
    found = log.get_many(range(1, 93))
    assert [one.payload for one in found if one] == [b"before", *payloads, b"after"]
    assert read(log, [A]) == list(range(1, 93))
    with pytest.raises(AssertionError, match="a run of no messages"):
        log.append_run(batch, template, [], [1])


def test_a_refused_batch_grows_by_further_blocks() -> None:
    store = MemoryStore([META])
    log = start(store)
    batch: Batch = []
    for _ in range(3):
        log.append(batch, message("a"), [1])
        log.append(batch, message("a"), [1])
        log.seal(batch)
        store.full = True
        with pytest.raises(Recoverable):
            store.write(batch)
    assert len(batch) == 6
    log.append(batch, message("a"), [1])
    store.full = False
    write(store, log, batch)
    assert read(log, [A]) == list(range(1, 8))


def test_a_rotation_seals_what_came_before_it(store: Store) -> None:
    log = start(store)
    batch: Batch = []
    log.append(batch, message("a"), [1])
    log.add_generation(batch, 0)
    assert not log.is_pending
    log.append(batch, message("a"), [1])
    write(store, log, batch)
    assert [family for family, _, _ in batch] == ["msg.1", "idx.1", META, "msg.2", "idx.2"]
    assert read(log, [A]) == [1, 2]


def test_a_database_of_filters_goes_on_with_blocks(store: Store) -> None:
    """Does an upgrade read what was there, and can the old layout be chosen again?"""
    accept(store, start(store, "filters"), "abc")
    log = start(store)
    accept(store, log, "abc")
    assert [g.layout for g in log.list_generations()] == ["filters", "blocks"]
    assert read(log, [A, B]) == [1, 2, 4, 5]
    log = start(store, "filters")
    accept(store, log, "ab")
    assert [g.layout for g in log.list_generations()] == ["filters", "blocks", "filters"]
    assert read(start(store), [A, B]) == [1, 2, 4, 5, 7, 8]


def test_a_crash_before_the_seal_takes_whole_ticks(store: Store) -> None:
    log = start(store)
    accept(store, log, "aa")
    batch: Batch = []
    log.append(batch, message("a"), [1])
    again = start(store)
    assert again.end == 2
    assert not again.is_pending
    accept(store, again, "a")
    assert read(again, [A]) == [1, 2, 3]


def test_a_batch_that_was_not_stored_leaves_nothing_pending() -> None:
    store = MemoryStore([META])
    log = start(store)
    log.held_filters = {"a": A}
    broken = message("a")
    broken.accepted_at_ms = -1  # no record can hold it
    with pytest.raises(struct.error):
        log.store_batch([message("a"), broken])
    assert (log.end, log.is_pending) == (0, False)
    assert log.store_batch([message("a")]) == [1]
    assert read(log, [A]) == [1]


def test_the_first_owed_offset_is_found_inside_a_row() -> None:
    store = MemoryStore([META])
    log = start(store)
    accept(store, log, "abbab" * 20)
    assert log.first_owed([A], 1, generation=1) == 4
    assert log.first_owed([A], 97, generation=1) == 99
    assert log.first_owed([A], 99, generation=1) is None
    assert log.first_owed([Stream(2, "b", 54), A], 51, generation=1) == 54
    assert log.first_owed([Stream(2, "b", 54)], 51, generation=1) == 55


def test_the_families_are_as_documented() -> None:
    assert blocks.families(12) == ("msg.12", "idx.12")
    assert new_slab(MemoryStore(), "blocks").families == ("msg.1", "idx.1")
    assert MessageLog(MemoryStore([META]))._generations.layout == "blocks"
