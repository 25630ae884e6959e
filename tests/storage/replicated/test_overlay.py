"""Does a store over a log read as one store, and does its database survive a crash anywhere?"""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.api import Row, Store
from storage.errors import CorruptRecord, DamagedRows, Recoverable, Unrecoverable
from storage.local.memory import MemoryStore
from storage.replicated.applied import POSITION_KEY
from storage.replicated.batch_codec import CREATE, Operation
from storage.replicated.overlay import ReplicatedStore
from storage.replicated.record import Position
from storage.tables.tables import META, scan_readable
from tests.storage.replicated.late_store import LateStore, Log, place, position

FAMILIES = (META, "a", "b")


@pytest.fixture
def base() -> MemoryStore:
    store = MemoryStore(FAMILIES)
    store.write([("a", key, b"base") for key in (b"1", b"3", b"5", b"7")])
    return store


@pytest.fixture
def store(base: MemoryStore) -> LateStore:
    return LateStore(base, Log())


def _rows(store: Store, family: str = "a") -> list[Row]:
    return store.scan(family, b"", count=10_000)


def _all(store: Store) -> dict[str, list[Row]]:
    return {name: _rows(store, name) for name in sorted(store.families()) if name != META}


# --- what is pending ---


def test_a_batch_is_seen_at_once_and_reaches_the_database_when_it_is_committed(
    store: LateStore, base: MemoryStore
) -> None:
    store.write([("a", b"2", b"new"), ("a", b"3", None)])
    assert store.get_many("a", [b"1", b"2", b"3"]) == [b"base", b"new", None]
    assert base.get_many("a", [b"1", b"2", b"3"]) == [b"base", None, b"base"]
    assert store.pending == 1
    store.commit()
    assert base.get_many("a", [b"1", b"2", b"3"]) == [b"base", b"new", None]
    assert store.get_many("a", [b"1", b"2", b"3"]) == [b"base", b"new", None]
    assert store.pending == 0


def test_a_refused_batch_changes_nothing(store: LateStore, base: MemoryStore) -> None:
    store.write([("a", b"2", b"first")])
    store.log.refuses = Recoverable("the log is away")
    before = _all(store)
    for call in (
        lambda: store.write([("a", b"2", b"second"), ("a", b"1", None)]),
        lambda: store.create_family("c"),
        lambda: store.drop_family("a"),
    ):
        with pytest.raises(Recoverable, match="the log is away"):
            call()
    assert (_all(store), store.pending, store.pending_bytes) == (before, 1, 6)
    store.log.refuses = None
    store.write([("a", b"2", b"second")])
    assert store.get("a", b"2") == b"second"


def test_an_unknown_family_never_reaches_the_log(store: LateStore) -> None:
    with pytest.raises(KeyError):
        store.write([("a", b"k", b"v"), ("c", b"k", b"v")])
    store.drop_family("b")
    with pytest.raises(KeyError):
        store.write([("b", b"k", b"v")])
    for read in (
        lambda: store.get("b", b"k"),
        lambda: store.get_uncached("b", b"k"),
        lambda: store.get_many("b", [b"k"]),
        lambda: store.scan("b", b"", count=1),
        lambda: store.last("b", b"", b"\xff"),
    ):
        with pytest.raises(KeyError):
            read()
    assert len(store.log.batches) == 1


def test_a_committed_batch_leaves_what_a_later_one_has_changed(
    store: LateStore, base: MemoryStore
) -> None:
    store.write([("a", b"1", b"first"), ("a", b"2", b"first")])
    store.write([("a", b"1", b"second"), ("a", b"3", None)])
    store.write([("a", b"1", None)])
    assert store.get("a", b"1") is None
    store.commit()
    assert base.get_many("a", [b"1", b"2", b"3"]) == [b"first", b"first", b"base"]
    assert store.get_many("a", [b"1", b"2", b"3"]) == [None, b"first", None]
    store.commit()
    assert base.get_many("a", [b"1", b"2", b"3"]) == [b"second", b"first", None]
    assert store.get_many("a", [b"1", b"2", b"3"]) == [None, b"first", None]
    store.commit()
    assert _all(base) == _all(store)


def test_a_key_that_was_committed_may_be_pending_again(store: LateStore) -> None:
    store.write([("a", b"1", b"first"), ("a", b"2", b"first")])
    store.write([("a", key, b"second") for key in (b"3", b"4", b"5")])
    store.commit()
    store.write([("a", b"1", b"third"), ("a", b"2", None)])
    rows = [(b"1", b"third"), (b"3", b"second"), (b"4", b"second"), (b"5", b"second")]
    for _ in range(3):
        assert _rows(store) == [*rows, (b"7", b"base")]
        store.commit()


def test_pending_bytes_are_the_keys_and_values_of_what_is_pending(store: LateStore) -> None:
    assert store.pending_bytes == 0
    store.write([("a", b"12", b"345"), ("a", b"1", None)])
    store.write([("a", b"12", b"")])
    store.create_family("c")
    assert store.pending_bytes == 6 + 2
    store.commit()
    assert store.pending_bytes == 2
    store.commit(2)
    assert store.pending_bytes == 0


def test_memory_is_bounded_by_what_is_pending(store: LateStore) -> None:
    for number in range(2000):
        key = (number * 7919 % 2000).to_bytes(2)
        store.write([("a", key, b"v"), ("b", key, None)])
        if number >= 50:
            store.commit()
            held = {name: len(layer._keys) for name, layer in store._layers.items()}
            assert max(held.values()) <= 2 * 51, "keys of committed rows are forgotten"
    store.commit(50)
    assert store._layers == {}


# --- reading ---


def test_a_scan_takes_the_rows_in_order_from_both(store: LateStore) -> None:
    store.write([("a", key, b"new") for key in (b"0", b"3", b"4", b"8")] + [("a", b"5", None)])
    rows = [(b"0", b"new"), (b"1", b"base"), (b"3", b"new"), (b"4", b"new"), (b"7", b"base")]
    rows.append((b"8", b"new"))
    for count in range(9):
        assert store.scan("a", b"", count=count) == rows[:count]
    assert store.scan("a", b"1\0", b"8", count=9) == rows[2:5]
    assert store.scan("a", b"5", b"6", count=9) == []
    assert store.scan("a", b"8", b"1", count=9) == []


def test_a_scan_goes_on_behind_many_rows_that_pending_batches_delete(
    store: LateStore, base: MemoryStore
) -> None:
    keys = [number.to_bytes(2) for number in range(3000)]
    base.write([("b", key, b"v") for key in keys])
    store.write([("b", key, None) for key in keys[:-2]])
    calls = base.io_calls
    assert store.scan("b", b"", count=1) == [(keys[-2], b"v")]
    assert base.io_calls - calls < 12, "not one look-up for each of them"
    assert store.scan("b", b"", count=9) == [(keys[-2], b"v"), (keys[-1], b"v")]
    assert store.last("b", b"", keys[-2]) is None


def test_the_last_row_may_be_in_either(store: LateStore) -> None:
    store.write([("a", b"7", None), ("a", b"6", b"new"), ("a", b"2", b"new")])
    assert store.last("a", b"", b"\xff") == (b"6", b"new")
    assert store.last("a", b"", b"6") == (b"5", b"base")
    assert store.last("a", b"2", b"3") == (b"2", b"new")
    assert store.last("a", b"6\0", b"9") is None


def test_a_family_that_is_made_again_is_empty_at_once(store: LateStore, base: MemoryStore) -> None:
    store.write([("a", b"2", b"lost")])
    store.drop_family("a")
    assert sorted(store.families()) == ["b", META]
    store.create_family("a")
    assert sorted(store.families()) == ["a", "b", META]
    assert _rows(store) == []
    assert store.get("a", b"1") is None
    assert store.get_uncached("a", b"2") is None
    assert store.get_many("a", [b"1", b"2"]) == [None, None]
    assert store.last("a", b"", b"\xff") is None
    store.write([("a", b"4", b"kept")])
    for _ in range(4):
        assert _rows(store) == [(b"4", b"kept")]
        store.commit()
    assert _rows(base) == [(b"4", b"kept")]
    assert store._layers == {}


def test_a_family_lives_and_dies_before_its_batches_are_committed(
    store: LateStore, base: MemoryStore
) -> None:
    store.create_family("c")
    store.write([("c", b"k", b"v")])
    assert store.get("c", b"k") == b"v"
    store.drop_family("c")
    with pytest.raises(KeyError):
        store.get("c", b"k")
    store.commit(2)
    assert base.get("c", b"k") == b"v"
    assert sorted(store.families()) == ["a", "b", META]
    store.commit()
    assert sorted(base.families()) == ["a", "b", META]
    assert store._layers == {}


# --- committing ---


def test_a_group_is_one_write_for_each_batch_and_one_position(
    store: LateStore, base: MemoryStore
) -> None:
    for number in range(4):
        store.write([("a", b"%d" % number, b"v")])
    written = base.sequence()
    store.committed(position(3), place(3))
    assert base.sequence() == written + 3
    assert (store.position(), store.pending) == ((position(3), place(3)), 1)
    assert LateStore(base.crash(base.unsynced), Log()).position() == (position(3), place(3))
    found = base.crash(base.unsynced - 1)
    assert found.get("a", b"1") == b"v"
    assert found.get(META, POSITION_KEY) is None, "the position is in the last write"
    store.committed(position(3), place(3))
    store.committed(position(2), place(2))
    assert base.sequence() == written + 3, "nothing is written twice"


def test_a_position_without_a_batch_is_stored(store: LateStore, base: MemoryStore) -> None:
    store.committed(position(5), place(5))
    assert LateStore(base, Log()).position() == (position(5), place(5))


def test_a_new_database_is_at_the_beginning(store: LateStore) -> None:
    assert store.position() == (Position(), 0)


def test_a_damaged_position_is_refused(base: MemoryStore) -> None:
    base.write([(META, POSITION_KEY, b"damaged row")])
    with pytest.raises(CorruptRecord, match="replica: checksum"):
        ReplicatedStore(base, Log().append)


def test_a_database_that_refuses_gets_the_rest_later(store: LateStore, base: MemoryStore) -> None:
    for number in range(3):
        store.write([("a", b"1", b"%d" % number)])
    base.fail_at_call(base.io_calls + 2, Recoverable("full"))
    with pytest.raises(Recoverable, match="full"):
        store.commit(3)
    assert base.get("a", b"1") == b"0"
    assert (store.get("a", b"1"), store.pending, store.position()[0].index) == (b"2", 2, 0)
    store.write([("a", b"1", b"last")])
    written = base.sequence()
    store.commit(3)
    assert base.sequence() == written + 3
    assert (base.get("a", b"1"), store.pending, store.position()[0].index) == (b"last", 0, 4)


def test_syncing_and_closing_are_the_databases(store: LateStore, base: MemoryStore) -> None:
    store.write([("a", b"k", b"v")])
    store.commit()
    assert base.unsynced == 2
    store.sync()
    assert base.unsynced == 0
    store.close()
    store.close()


def test_nothing_is_applied_below_what_is_pending(store: LateStore) -> None:
    store.write([("a", b"k", b"v")])
    with pytest.raises(AssertionError):
        store.apply([], position(1), place(1))


# --- crashes ---

KEYS = (b"", b"k", b"l", b"m")
OPERATIONS = ("write", "write", "write", "create", "drop")


def _act(random: Random, stores: list[Store]) -> None:
    """Write, create or drop the same in all of these."""
    names = [name for name in stores[0].families() if name != META]
    what = random.choice(OPERATIONS)
    name = random.choice("abcd")
    if what == "create" and name not in names:
        for store in stores:
            store.create_family(name)
    elif what == "drop" and name in names:
        for store in stores:
            store.drop_family(name)
    else:
        values = (None, b"%d" % random.randrange(1000))
        batch = [
            (random.choice(names), random.choice(KEYS), random.choice(values))
            for _ in range(random.randint(0, 5) if names else 0)
        ]
        for store in stores:
            store.write(list(batch))


def _cut(base: MemoryStore) -> Iterator[MemoryStore]:
    """Yield every database that a crash may leave."""
    for keep in range(base.unsynced + 1):
        yield base.crash(keep)


def _history(random: Random) -> tuple[Log, dict[str, list[Row]]]:
    """Return some batches, and the state that they lead to."""
    log, model = Log(), MemoryStore(FAMILIES)
    store = LateStore(MemoryStore(FAMILIES), log)
    for _ in range(random.randint(2, 12)):
        _act(random, [model, store])
    return log, _all(model)


def _lead(store: LateStore, batches: list[list[Operation]], random: Random) -> None:
    """Write these batches and commit them in groups."""
    for batch in batches:
        if batch and len(batch[0]) == 2:
            what, family = batch[0]
            (store.create_family if what == CREATE else store.drop_family)(family)
        else:
            store.write([each for each in batch if len(each) == 3])
        if random.random() < 0.4:
            store.commit(random.randint(1, 4))
        if random.random() < 0.2:
            store.sync()
    store.commit(store.pending)


@pytest.mark.parametrize("leads", [True, False], ids=["committed", "applied"])
@pytest.mark.parametrize("seed", range(40))
def test_after_a_crash_anywhere_applying_again_leads_to_the_same_state(
    seed: int, leads: bool
) -> None:
    log, expected = _history(Random(seed))
    call = crashes = 0
    is_over = False
    while not is_over:
        call += 1
        base = MemoryStore(FAMILIES)
        store = LateStore(base, Log())
        base.fail_at_call(base.io_calls + call, Unrecoverable("the process dies here"))
        try:
            if leads:
                _lead(store, log.batches, Random(seed))
            else:
                log.repeat(store)
            is_over = True
        except Unrecoverable:
            crashes += 1
        for found in _cut(base):
            again = LateStore(found, log)
            log.repeat(again)
            assert _all(again) == _all(found) == expected
            assert again.position() == (position(len(log.batches)), place(len(log.batches)))
    assert crashes >= sum(batch != [] for batch in log.batches)


# --- the same steps on a store of one piece, in memory and so many times ---

NAMES = st.sampled_from(["a", "b", "c"])
SHORT = st.binary(max_size=2) | st.sampled_from([b"k", b"k\0", b"\xff"])
CHANGES = st.lists(st.tuples(NAMES, SHORT, st.none() | st.binary(max_size=2)), max_size=8)
READS = st.one_of(
    st.tuples(st.just("scan"), NAMES, SHORT, st.none() | SHORT, st.integers(0, 9)),
    st.tuples(st.just("last"), NAMES, SHORT, SHORT),
    st.tuples(st.just("many"), NAMES, st.lists(SHORT, max_size=4)),
)
STEPS = st.one_of(
    st.tuples(st.just("write"), CHANGES),
    st.tuples(st.sampled_from(["create", "drop"]), NAMES),
    st.tuples(st.sampled_from(["commit", "restart"]), st.integers(0, 3)),
    READS,
    READS,
)


def _read(store: Store, what: str, arguments: tuple[Any, ...]) -> object:
    family = arguments[0]
    if what == "scan":
        return store.scan(family, arguments[1], arguments[2], count=arguments[3])
    if what == "last":
        return store.last(family, arguments[1], arguments[2])
    found = store.get_many(family, arguments[1])
    assert found == [store.get(family, key) for key in arguments[1]]
    assert found == [store.get_uncached(family, key) for key in arguments[1]]
    return found


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(STEPS, max_size=40))
def test_it_reads_as_one_store(steps: list[tuple[Any, ...]]) -> None:
    model = MemoryStore(FAMILIES)
    store = LateStore(MemoryStore(FAMILIES), Log())
    for what, *rest in steps:
        names = model.families()
        if what == "write":
            batch = [change for change in rest[0] if change[0] in names]
            model.write(batch)
            store.write(batch)
        elif what == "commit":
            store.commit(rest[0])
        elif what == "restart":
            store = store.restart(min(rest[0], store.unsynced))
        elif what == "create":
            if rest[0] not in names:
                model.create_family(rest[0])
                store.create_family(rest[0])
        elif rest[0] not in names:
            continue
        elif what == "drop":
            model.drop_family(rest[0])
            store.drop_family(rest[0])
        else:
            assert _read(store, what, tuple(rest)) == _read(model, what, tuple(rest))
    assert _all(store) == _all(model)
    assert store.pending_bytes == sum(batch.size for batch in store._batches)
    store.commit(store.pending)
    assert _all(store) == _all(store.base) == _all(model)
    assert (store._layers, store.pending_bytes) == ({}, 0)


# --- rows that cannot be read ---


def test_pending_rows_of_a_damaged_stretch_can_be_read(store: LateStore, base: MemoryStore) -> None:
    base.damage("a", [b"3", b"5"])
    store.write([("a", key, b"new") for key in (b"2", b"4", b"8")])
    with pytest.raises(DamagedRows) as caught:
        store.scan("a", b"", count=9)
    assert caught.value.rows == [(b"1", b"base"), (b"2", b"new"), (b"4", b"new")]
    assert caught.value.resume == b"5\0"
    assert store.scan("a", b"5\0", count=9) == [(b"7", b"base"), (b"8", b"new")]
    assert store.scan("a", b"", count=2) == [(b"1", b"base"), (b"2", b"new")]
    with pytest.raises(DamagedRows) as caught:
        store.scan("a", b"", count=3)
    assert (len(caught.value.rows), caught.value.resume) == (3, b"4\0")
    assert store.get("a", b"4") == b"new"
    for read in (store.get, store.get_uncached):
        with pytest.raises(DamagedRows):
            read("a", b"5")
    with pytest.raises(DamagedRows):
        store.get_many("a", [b"4", b"5"])


def test_a_pending_change_mends_the_row(store: LateStore, base: MemoryStore) -> None:
    base.damage("a", [b"3", b"7"])
    store.write([("a", b"3", b"new"), ("a", b"7", b"new")])
    rows = [(b"1", b"base"), (b"3", b"new"), (b"5", b"base"), (b"7", b"new")]
    assert _rows(store) == rows
    assert store.last("a", b"", b"\xff") == (b"7", b"new")
    assert store.get_many("a", [b"3", b"7"]) == [b"new", b"new"]
    store.commit()
    assert _rows(store) == rows


def test_a_damaged_last_row_is_told_unless_a_pending_one_is_behind_it(
    store: LateStore, base: MemoryStore
) -> None:
    base.damage("a", [b"7"])
    store.write([("a", b"4", b"new")])
    with pytest.raises(DamagedRows) as caught:
        store.last("a", b"", b"\xff")
    assert caught.value.resume == b"8"
    assert store.last("a", b"", b"7") == (b"5", b"base")
    store.write([("a", b"9", b"new")])
    assert store.last("a", b"", b"\xff") == (b"9", b"new")


FEW = st.sampled_from([bytes((number,)) for number in range(12)])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sets(FEW), st.sets(FEW), st.dictionaries(FEW, st.none() | st.just(b"n")), st.data())
def test_whoever_passes_over_damage_gets_every_row_that_can_be_read(
    stored: set[bytes], damaged: set[bytes], changes: dict[bytes, bytes | None], data: st.DataObject
) -> None:
    base = MemoryStore(FAMILIES)
    base.write([("a", key, b"base") for key in stored])
    base.damage("a", damaged & stored)
    store = LateStore(base, Log())
    store.write([("a", key, value) for key, value in changes.items()])
    readable = {key: b"base" for key in stored - damaged}
    readable.update((key, value) for key, value in changes.items() if value is not None)
    rows = sorted((key, v) for key, v in readable.items() if changes.get(key, v) is not None)
    start, stop = data.draw(FEW), data.draw(st.none() | FEW)
    rows = [row for row in rows if start <= row[0] and (stop is None or row[0] < stop)]
    count = data.draw(st.integers(1, 13))
    damages: list[DamagedRows] = []
    assert scan_readable(store, "a", start, stop, damages, count=count) == rows[:count]
    lost = {key for key in (damaged & stored) - set(changes) if key >= start}
    if count == 13 and {key for key in lost if stop is None or key < stop}:
        assert damages, "what is lost is told"
