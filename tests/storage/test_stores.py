"""One suite for all stores: what the broker may rely on.

They are RocksDB, the fake disk, and a replicated store whose log commits late.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.api import Batch, Store
from storage.errors import StorageError
from storage.local.memory import MemoryStore
from storage.local.rocks import RocksStore
from storage.tables.tables import META
from tests.storage.replicated.late_store import LateStore, Log

FAMILIES = ("a", "b", META)


@pytest.fixture(params=["memory", "rocks", "replicated"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: Store
    if request.param == "memory":
        store = MemoryStore(FAMILIES)
    elif request.param == "replicated":
        store = LateStore(MemoryStore(FAMILIES), Log(), Random(request.node.name))
    else:
        store = RocksStore(tmp_path / "db", families=FAMILIES)
    yield store
    store.close()


def test_a_write_is_visible_on_return(store: Store) -> None:
    store.write([("a", b"key", b"value")])
    assert store.get("a", b"key") == b"value"
    assert store.get("b", b"key") is None


def test_what_is_not_to_be_cached_is_read_all_the_same(store: Store) -> None:
    store.write([("a", b"key", b"value")])
    assert store.get_uncached("a", b"key") == b"value"
    store.write([("a", b"key", None), ("a", b"other", b"more")])
    assert store.get_uncached("a", b"key") is None
    assert store.get_uncached("a", b"other") == b"more"


def test_a_later_change_of_the_same_key_wins(store: Store) -> None:
    store.write([("a", b"k", b"1"), ("a", b"k", None), ("a", b"k", b"2"), ("b", b"k", b"x")])
    store.write([("b", b"k", b"y"), ("b", b"k", None)])
    assert store.get("a", b"k") == b"2"
    assert store.get("b", b"k") is None
    assert store.scan("b", b"", count=9) == []


def test_deleting_what_is_not_there_is_no_error(store: Store) -> None:
    store.write([("a", b"never", None)])
    assert store.get("a", b"never") is None


def test_empty_keys_values_and_batches_are_kept(store: Store) -> None:
    store.write([])
    store.write([("a", b"", b""), ("a", b"\x00", b"zero")])
    assert store.get("a", b"") == b""
    assert store.scan("a", b"", count=9) == [(b"", b""), (b"\x00", b"zero")]


def test_the_caller_may_reuse_its_batch(store: Store) -> None:
    batch: Batch = [("a", b"1", b"x")]
    store.write(batch)
    batch.clear()
    batch.append(("a", b"2", b"y"))
    store.write(batch)
    assert store.get_many("a", [b"1", b"2"]) == [b"x", b"y"]


def test_get_many_keeps_order_gaps_and_repeats(store: Store) -> None:
    store.write([("a", b"1", b"x"), ("a", b"2", b"y")])
    assert store.get_many("a", [b"2", b"9", b"1", b"2"]) == [b"y", None, b"x", b"y"]
    assert store.get_many("a", []) == []


def test_scan_is_ordered_by_bytes_and_bounded_on_both_sides(store: Store) -> None:
    keys = [b"\xff", b"\x01", b"\x01\x00", b"\x7f", b"\x80"]
    store.write([("a", key, key) for key in keys] + [("b", b"\x50", b"other family")])
    rows = [(key, key) for key in sorted(keys)]
    assert store.scan("a", b"", count=9) == rows
    assert store.scan("a", b"\x01\x00", b"\x80", count=9) == rows[1:3]
    assert store.scan("a", b"", count=2) == rows[:2]
    assert store.scan("a", b"", count=0) == []
    assert store.scan("a", b"\x80", b"\x01", count=9) == []


def test_last_is_the_greatest_key_below_stop(store: Store) -> None:
    store.write([("a", key, b"") for key in (b"1", b"3", b"5")])
    assert store.last("a", b"", b"\xff") == (b"5", b"")
    assert store.last("a", b"", b"5") == (b"3", b"")
    assert store.last("a", b"3", b"4") == (b"3", b"")
    assert store.last("a", b"2", b"3") is None
    assert store.last("a", b"", b"1") is None
    assert store.last("b", b"", b"\xff") is None


def test_families_come_and_go(store: Store) -> None:
    assert sorted(store.families()) == ["a", "b", META]
    store.create_family("msg.1")
    store.write([("msg.1", b"k", b"v"), ("a", b"k", b"v")])
    assert sorted(store.families()) == ["a", "b", META, "msg.1"]
    store.drop_family("msg.1")
    assert sorted(store.families()) == ["a", "b", META]
    store.create_family("msg.1")
    assert store.get("msg.1", b"k") is None, "a family that is made again is empty"
    assert store.get("a", b"k") == b"v"


def test_a_family_there_is_not_is_our_bug(store: Store) -> None:
    with pytest.raises(KeyError):
        store.get("c", b"k")
    with pytest.raises(KeyError):
        store.scan("c", b"", count=1)
    with pytest.raises(KeyError):
        store.write([("c", b"k", b"v")])
    with pytest.raises(AssertionError):
        store.drop_family("c")
    with pytest.raises(AssertionError):
        store.create_family("a")


def test_closing_twice_is_closing(store: Store) -> None:
    store.close()
    store.close()


# --- the same operations on all ---

KEYS = st.binary(max_size=3) | st.sampled_from([b"a", b"b", b"\xff\xff"])
NAMES = st.sampled_from(["a", "b", "c", "d"])
CHANGES = st.lists(st.tuples(NAMES, KEYS, st.none() | st.binary(max_size=20)), max_size=12)
STEPS = st.one_of(
    st.tuples(st.just("write"), CHANGES),
    st.tuples(st.just("write"), CHANGES),
    st.tuples(st.just("get_many"), NAMES, st.lists(KEYS, max_size=5)),
    st.tuples(st.just("scan"), NAMES, KEYS, st.none() | KEYS, st.integers(0, 9)),
    st.tuples(st.just("last"), NAMES, KEYS, KEYS),
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("drop"), NAMES),
    st.tuples(st.just("commit"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["sync", "flush", "compact", "reopen", "restart"])),
)


def _everything(store: Store) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return all rows, without what a replicated store keeps of itself."""
    names = sorted(set(store.families()) - {META})
    return {name: store.scan(name, b"", count=10_000) for name in names}


class _Stores:
    """A store of each kind, given the same steps. The replicated one commits only by a step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.memory = MemoryStore(FAMILIES)
        self.rocks = RocksStore(directory, families=FAMILIES)
        self.late = LateStore(MemoryStore(FAMILIES), Log())

    def take(self, step: tuple[object, ...]) -> None:
        what, arguments = str(step[0]), step[1:]
        if what == "commit":
            self.late.commit(int(str(arguments[0])))
            return
        if what in ("flush", "compact", "reopen", "restart"):
            self._upkeep(what)
            return
        families = self.memory.families()
        stores: tuple[Store, ...] = (self.memory, self.rocks, self.late)
        answers = [self._answer(store, what, arguments, families) for store in stores]
        assert answers[0] == answers[1] == answers[2]

    def _upkeep(self, what: str) -> None:
        if what == "flush":
            self.rocks.flush()
        elif what == "compact":
            self.rocks.compact("a") if "a" in self.rocks.families() else None
        elif what == "reopen":
            self.rocks.reopen()
        else:
            self.rocks.close()
            self.rocks = RocksStore(self.directory)
            self.memory = self.memory.crash(self.memory.unsynced)
            self.late = self.late.restart()

    @staticmethod
    def _answer(
        store: Store, what: str, arguments: tuple[object, ...], families: list[str]
    ) -> object:
        calls: dict[str, Callable[..., object]] = {
            "get_many": store.get_many,
            "last": store.last,
            "sync": store.sync,
        }
        if what == "write":
            (batch,) = arguments
            assert isinstance(batch, list)
            return store.write([change for change in batch if change[0] in families])
        if arguments and what != "create" and arguments[0] not in families:
            return None
        if what == "create":
            name = str(arguments[0])
            return None if name in families else store.create_family(name)
        if what == "drop":
            return store.drop_family(str(arguments[0]))
        if what == "scan":
            name, start, stop, count = arguments
            return store.scan(name, start, stop, count=count)  # type: ignore[arg-type]
        return calls[what](*arguments)

    def check(self) -> None:
        assert _everything(self.memory) == _everything(self.rocks) == _everything(self.late)
        assert self.memory.sequence() == self.rocks.sequence()


def _compare(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stores = _Stores(Path(directory) / "db")
        for step in steps:
            stores.take(step)
        stores.check()
        stores.take(("restart",))
        stores.check()
        stores.rocks.close()


@pytest.mark.full
@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(STEPS, max_size=30))
def test_every_store_answers_as_rocksdb_does(steps: list[tuple[object, ...]]) -> None:
    _compare(steps)


def test_reopening_does_not_bring_back_a_dropped_family(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=FAMILIES)
    store.drop_family("a")
    store.reopen()
    assert store.families() == ["b", META]
    store.close()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_every_store_answers_as_rocksdb_does_for_long(steps: list[tuple[object, ...]]) -> None:
    _compare(steps)


def test_a_closed_rocks_store_says_so(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=FAMILIES)
    store.close()
    for call in (
        lambda: store.write([]),
        lambda: store.get("a", b""),
        lambda: store.get_many("a", [b""]),
        lambda: store.scan("a", b"", count=1),
        lambda: store.last("a", b"", b"1"),
        lambda: store.create_family("c"),
        store.sync,
    ):
        with pytest.raises(StorageError, match="is closed"):
            call()
