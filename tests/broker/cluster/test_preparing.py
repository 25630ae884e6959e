"""What a node loads while it follows."""

from broker.cluster.preparing import Preparation
from storage.errors import StorageError
from storage.local.memory import MemoryStore
from storage.replicated.batch_codec import CREATE, DROP
from storage.tables.tables import FILTERS, SESSIONS, encode_filter

ROW = encode_filter(7, 1)


def never(problem: StorageError) -> None:
    raise problem


def test_a_new_node_waits_for_the_family_and_then_loads_it_to_its_end() -> None:
    store = MemoryStore(())
    preparation = Preparation(store, never)
    assert not preparation.step(10) and not preparation.is_over
    store.create_family(FILTERS)
    preparation.applied([(CREATE, FILTERS)])
    store.write([(FILTERS, name, ROW) for name in (b"a", b"b", b"c")])
    assert preparation.step(2)
    assert not preparation.step(2) and preparation.is_over
    assert len(preparation.filters.index) == 3


def test_only_rows_of_filters_count() -> None:
    store = MemoryStore((FILTERS,))
    preparation = Preparation(store, never)
    while preparation.step(10):
        pass
    preparation.applied([(SESSIONS, b"a", ROW), (FILTERS, b"b", ROW), (CREATE, "log-1")])
    assert [preparation.filters.index.filter_id(name) for name in "ab"] == [0, 7]
    preparation.applied([(FILTERS, b"b", None)])
    assert len(preparation.filters.index) == 0


def test_a_family_that_is_dropped_is_loaded_again() -> None:
    store = MemoryStore((FILTERS,))
    store.write([(FILTERS, b"a", ROW)])
    preparation = Preparation(store, never)
    assert not preparation.step(10) and preparation.is_over
    store.drop_family(FILTERS)
    store.create_family(FILTERS)
    preparation.applied([(DROP, FILTERS), (CREATE, FILTERS)])
    assert not preparation.is_over
    while preparation.step(10):
        pass
    assert len(preparation.filters.index) == 0


def test_rows_that_cannot_be_read_are_told_once_and_left_to_the_start() -> None:
    told: list[StorageError] = []
    store = MemoryStore((FILTERS,))
    store.write([(FILTERS, b"a", ROW), (FILTERS, b"b", b"rubbish")])
    preparation = Preparation(store, told.append)
    assert preparation.step(1)
    assert not preparation.step(1) and preparation.is_over
    preparation.applied([(FILTERS, b"c", b"rubbish too")])
    assert len(told) == 1
    assert not preparation.filters.is_complete
    assert len(preparation.filters.index) == 0
