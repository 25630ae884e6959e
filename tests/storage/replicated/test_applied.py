"""Does a database say exactly how far it has come, and can it take every batch again?"""

import pytest

from storage.errors import CorruptRecord
from storage.local.memory import MemoryStore
from storage.replicated.applied import (
    POSITION_KEY,
    Reached,
    apply,
    decode_reached,
    encode_reached,
    load_reached,
)
from storage.replicated.batch_codec import CREATE, DROP, Operation
from storage.replicated.record import Position
from storage.tables.tables import BOOT_KEY, FORMAT_KEY, META, TOTALS_KEY, seal
from storage.time.broker_clock import HEARTBEAT_KEY
from tests.storage.log_cases import golden

REACHED = Reached(Position(3, 2**40 + 7, bytes(range(16))), 2**41)


def test_the_row_is_what_is_on_disk() -> None:
    assert golden("replica-position-v1.hex") == {"position": encode_reached(*REACHED)}
    assert decode_reached(encode_reached(*REACHED)) == REACHED


def test_the_key_is_no_other_rows() -> None:
    assert POSITION_KEY not in (FORMAT_KEY, TOTALS_KEY, BOOT_KEY, HEARTBEAT_KEY)


def test_a_new_database_is_at_the_beginning() -> None:
    assert load_reached(MemoryStore([META])) == (Position(), 0)


@pytest.mark.parametrize("byte", range(45))
def test_a_changed_byte_is_noticed(byte: int) -> None:
    value = bytearray(encode_reached(*REACHED))
    assert len(value) == 45
    value[byte] ^= 1
    with pytest.raises(CorruptRecord, match="replica"):
        decode_reached(bytes(value))


def test_another_version_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="version 02 of 41 bytes, expected 1 of 41"):
        decode_reached(seal(b"\2" + bytes(40)))


def test_a_batch_and_the_position_are_one_write() -> None:
    store = MemoryStore([META, "a"])
    apply(store, {META, "a"}, [("a", b"k", b"v")], REACHED)
    assert store.unsynced == 1
    assert store.get("a", b"k") == b"v"
    assert load_reached(store) == REACHED


def test_without_a_position_the_row_stays() -> None:
    store = MemoryStore([META, "a"])
    apply(store, {META, "a"}, [], REACHED)
    apply(store, {META, "a"}, [("a", b"k", b"v")], None)
    assert load_reached(store) == REACHED
    written = store.sequence()
    apply(store, {META, "a"}, [], None)
    assert store.sequence() == written, "nothing to write"


def test_families_come_and_go_in_the_order_of_the_batch() -> None:
    store = MemoryStore([META, "a"])
    store.write([("a", b"old", b"1")])
    families = set(store.families())
    batch: list[Operation] = [
        ("a", b"k", b"before"),
        (DROP, "a"),
        (CREATE, "a"),
        ("a", b"k2", b"after"),
        (CREATE, "b"),
        ("b", b"k", b"v"),
        (CREATE, "c"),
        ("c", b"k", b"v"),
        (DROP, "c"),
    ]
    for _ in range(2):  # the second time changes nothing
        apply(store, families, batch, None)
        assert sorted(store.families()) == sorted(families) == ["a", "b", META]
        assert store.scan("a", b"", count=9) == [(b"k2", b"after")]
        assert store.scan("b", b"", count=9) == [(b"k", b"v")]


def test_rows_of_a_family_that_a_later_batch_has_dropped_already_are_no_error() -> None:
    store = MemoryStore([META, "a"])
    store.drop_family("a")  # durable at once, unlike the rows before it
    families = set(store.families())
    apply(store, families, [("a", b"k", b"v")], None)
    apply(store, families, [(DROP, "a")], None)
    assert store.families() == [META]
