"""What the fake disk forgets at a crash, and how it can be made to fail."""

import random

import pytest

import storage.local.memory
from storage.errors import Recoverable, StorageError, Unrecoverable
from storage.local.memory import MemoryStore


def _numbered(*, synced: int, unsynced: int) -> MemoryStore:
    """Return a store with one row per batch."""
    store = MemoryStore(["a"])
    for number in range(synced + unsynced):
        if number == synced:
            store.sync()
        store.write([("a", bytes([number]), b"")])
    if unsynced == 0:
        store.sync()
    return store


def _numbers(store: MemoryStore) -> list[int]:
    return [key[0] for key, _ in store.scan("a", b"", count=1000)]


def test_a_crash_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
    store = _numbered(synced=3, unsynced=4)
    assert store.unsynced == 4
    assert _numbers(store.crash()) == [0, 1, 2]
    for keep in range(5):
        crashed = store.crash(keep)
        assert _numbers(crashed) == list(range(3 + keep))
        assert crashed.sequence() == 3 + keep
        assert crashed.unsynced == 0
    assert _numbers(store) == list(range(7)), "the crashed store itself is not changed"


def test_a_crash_undoes_overwritten_and_deleted_rows() -> None:
    store = MemoryStore(["a"])
    store.write([("a", b"kept", b"1"), ("a", b"changed", b"1")])
    store.sync()
    store.write([("a", b"kept", None), ("a", b"changed", b"2"), ("a", b"new", b"1")])
    rows = store.crash().scan("a", b"", count=9)
    assert rows == [(b"changed", b"1"), (b"kept", b"1")]


def test_a_crash_takes_a_batch_whole_or_not_at_all() -> None:
    store = MemoryStore(["a", "b"])
    for number in range(9):
        store.write([("a", bytes([number]), b""), ("b", bytes([number]), b"")])
    for keep in range(10):
        crashed = store.crash(keep)
        assert len(crashed.scan("a", b"", count=99)) == len(crashed.scan("b", b"", count=99))


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    store = MemoryStore(["a"])
    store.write([("a", b"before", b"")])
    token = store.sync_begin()
    store.write([("a", b"during", b"")])
    assert store.crash().scan("a", b"", count=9) == [], "a sync that has not ended covers nothing"
    store.sync_end(token)
    assert store.crash().scan("a", b"", count=9) == [(b"before", b"")]


def test_syncs_may_end_out_of_order() -> None:
    store = MemoryStore(["a"])
    first = store.sync_begin()
    store.write([("a", b"k", b"")])
    second = store.sync_begin()
    store.sync_end(second)
    store.sync_end(first)
    assert store.crash().get("a", b"k") == b""


def test_a_crash_twice_in_a_row_keeps_the_survivors() -> None:
    store = _numbered(synced=2, unsynced=2).crash(1)
    store.write([("a", b"\x09", b"")])
    assert _numbers(store.crash()) == [0, 1, 2]
    assert _numbers(store.crash(1)) == [0, 1, 2, 9]


def test_families_survive_a_crash_that_takes_the_batches_around_them() -> None:
    """Does a family outlive the un-synced row that announced it, as in RocksDB's manifest?"""
    store = MemoryStore(["meta", "old"])
    store.write([("meta", b"generation", b"2")])
    store.create_family("new")
    store.write([("new", b"k", b"v"), ("meta", b"generation", b"3")])
    store.drop_family("old")
    crashed = store.crash()
    assert sorted(crashed.families()) == ["meta", "new"]
    assert crashed.get("meta", b"generation") is None
    assert crashed.get("new", b"k") is None
    assert store.crash(1).get("meta", b"generation") == b"2"


def test_a_family_made_again_does_not_get_its_old_rows_back_in_a_crash() -> None:
    store = MemoryStore(["a"])
    store.write([("a", b"old", b"")])
    store.drop_family("a")
    store.create_family("a")
    store.write([("a", b"new", b"")])
    assert store.crash(2).scan("a", b"", count=9) == [(b"new", b"")]


def test_a_long_run_does_not_keep_its_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.local.memory, "LOG_MAX", 20)
    store, plain = MemoryStore(["a"]), MemoryStore(["a"])
    rng = random.Random(5)
    for number in range(500):
        key, value = bytes([rng.randrange(20)]), rng.choice([None, bytes([number % 256])])
        for each in (store, plain):
            each.write([("a", key, value)])
        if rng.random() < 0.2:
            token = store.sync_begin()
            if rng.random() < 0.5:
                store.write([("a", b"x", b"")])
                plain.write([("a", b"x", b"")])
            store.sync_end(token)
    kept = len(store._log)
    assert kept < 60, "synced batches are folded away"
    both = [each.scan("a", b"", count=99) for each in (store.crash(store.unsynced), plain)]
    assert both[0] == both[1]


def test_a_failed_write_changes_nothing_and_may_be_repeated() -> None:
    store = MemoryStore(["a"])
    store.fail_next_write = Recoverable("stall")
    with pytest.raises(Recoverable, match="stall"):
        store.write([("a", b"k", b"v")])
    assert store.get("a", b"k") is None
    assert store.crash(9).get("a", b"k") is None
    store.write([("a", b"k", b"v")])
    assert store.get("a", b"k") == b"v"


def test_a_full_disk_refuses_writes_and_keeps_serving_reads() -> None:
    store = _numbered(synced=1, unsynced=1)
    store.full = True
    for _ in range(2):
        with pytest.raises(Recoverable, match="no space"):
            store.write([("a", b"k", b"v")])
    with pytest.raises(Recoverable):
        store.create_family("b")
    assert store.get("a", b"\x00") == b""
    store.sync()
    store.full = False
    store.write([("a", b"k", b"v")])


def test_writes_fail_for_as_long_as_told() -> None:
    store = MemoryStore(["a"])
    store.fail_writes = Recoverable("stall")
    for _ in range(3):
        with pytest.raises(Recoverable):
            store.write([])
    store.fail_writes = None
    store.write([])


@pytest.mark.parametrize("where", ["write", "sync"])
def test_after_an_unrecoverable_failure_nothing_is_written_or_synced(where: str) -> None:
    store = _numbered(synced=1, unsynced=1)
    if where == "write":
        store.fail_next_write = Unrecoverable("EIO")
    else:
        store.fail_next_sync = Unrecoverable("EIO")
    with pytest.raises(Unrecoverable):
        store.write([]) if where == "write" else store.sync()
    for call in (lambda: store.write([]), store.sync, lambda: store.create_family("b")):
        with pytest.raises(Unrecoverable):
            call()
    assert _numbers(store) == [0, 1], "reads go on"
    assert _numbers(store.crash()) == [0]


def test_any_call_can_be_made_to_fail_by_its_number() -> None:
    calls = [
        lambda store: store.get("a", b"k"),
        lambda store: store.get_many("a", [b"k"]),
        lambda store: store.scan("a", b"", count=1),
        lambda store: store.last("a", b"", b"k"),
        lambda store: store.write([("a", b"k", b"v")]),
        lambda store: store.sync(),
        lambda store: store.create_family("b"),
        lambda store: store.drop_family("a"),
    ]
    for number in range(1, len(calls) + 1):
        store = MemoryStore(["a"])
        store.fail_at_call(number, StorageError(f"call {number}"))
        failed = []
        for index, call in enumerate(calls, 1):
            try:
                call(store)
            except StorageError:
                failed.append(index)
        assert failed == [number]
        assert store.io_calls == len(calls)
