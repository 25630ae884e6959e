"""Is the index that is loaded while rows change the same as one loaded afterwards?"""

import random

import pytest

from session.routing.filter_index import TopicFilterIndex
from session.routing.loading import FilterLoad
from storage.errors import DamagedRows
from storage.local.memory import MemoryStore
from storage.tables.tables import FILTERS, encode_filter

NAMES = [f"{one}/{two}" for one in ("a", "b", "+", "c") for two in ("x", "y", "#", "+", "z/+")]


def contents(index: TopicFilterIndex) -> dict[str, tuple[int, int]]:
    """Return the number and the holders of each filter."""
    found = {}
    for name in NAMES:
        entry = index.wake(name)
        if entry is not None:
            found[name] = (entry.filter_id, entry.holders)
    assert len(found) == len(index)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_changes_while_it_is_loaded_are_in_the_index(seed: int) -> None:
    dice = random.Random(seed)
    store = MemoryStore((FILTERS,))
    load = FilterLoad()
    load.index.shapes_max = dice.choice((0, 1, 8))
    expected: dict[str, tuple[int, int]] = {}
    for number in range(1, 120):
        name = dice.choice(NAMES)
        known = expected.get(name)
        if known is not None and dice.random() < 0.4:
            row = None
            del expected[name]
        else:
            expected[name] = (number if known is None else known[0], dice.choice((1, 1, 2, 3)))
            row = encode_filter(*expected[name])
        store.write([(FILTERS, name.encode(), row)])
        load.changed(name.encode(), row)
        if dice.random() < 0.5:
            load.changed(name.encode(), row)  # told again
        if dice.random() < 0.2:
            load.load(store, dice.randint(1, 3))
        if seed % 5 == 0 and number == 60:
            load.forget()
    load.finish(store)
    assert load.is_complete
    assert contents(load.index) == expected


def test_a_row_that_cannot_be_read_is_told_each_time_and_nothing_is_passed_over() -> None:
    store = MemoryStore((FILTERS,))
    good = encode_filter(1, 1)
    store.write([(FILTERS, b"a", good), (FILTERS, b"b", b"rubbish"), (FILTERS, b"c", good)])
    load = FilterLoad()
    for _ in range(2):
        with pytest.raises(DamagedRows):
            load.finish(store)
    assert len(load.index) == 0
    store.write([(FILTERS, b"b", encode_filter(2, 3))])
    load.finish(store)
    assert [load.index.filter_id(name) for name in "abc"] == [1, 2, 1]
