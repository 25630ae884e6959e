"""Do map and tree hold exactly the filters that were put into them, whatever their shapes?"""

import random
from itertools import product

import pytest

from mqtt.topics import matches
from session.live.subscribers import FilterEntry
from session.routing.filter_index import (
    SHAPED_LEVELS_MAX,
    SHAPES_MAX,
    TopicFilterIndex,
    is_wild,
)

LEVELS = ("", "a", "b", "+")


def all_filters() -> list[str]:
    """Return every filter of up to three of the levels, with and without `#` behind."""
    found = []
    for count in (1, 2, 3):
        for levels in product(LEVELS, repeat=count):
            found.append("/".join(levels))
            found.append("/".join((*levels[:-1], "#")))
    return sorted(set(found) - {""})


FILTERS = all_filters()
TOPICS = ["/".join(t) for n in (1, 2, 3, 4) for t in product(("", "a", "b", "$c"), repeat=n)][1:]


def found_for(filters: TopicFilterIndex, topic: str, *, wakes: bool) -> dict[str, int]:
    """Return the filters that match, with their ids; each once."""
    entries = filters.match(topic, wakes=wakes)
    found = {entry.topic_filter: entry.filter_id for entry in entries}
    assert len(found) == len(entries)
    return found


SHAPES = pytest.mark.parametrize("shapes_max", [0, 1, 3, 1000])  # 0: all are in the tree


@SHAPES
@pytest.mark.parametrize("seed", range(12))
def test_filters_match_as_defined_awake_or_resting(seed: int, shapes_max: int) -> None:
    source = random.Random(seed)
    names = source.sample(FILTERS, source.choice((3, 12, 60)))
    filters = TopicFilterIndex(shapes_max)
    for number, name in enumerate(names, 1):
        if source.random() < 0.5:
            filters.lay(name, number)
        else:
            filters.add(FilterEntry(name, number, 2))
    ids = {name: number for number, name in enumerate(names, 1)}
    for topic in source.sample(TOPICS, 60):
        expected = {name: number for name, number in ids.items() if matches(name, topic)}
        assert found_for(filters, topic, wakes=False) == expected
        assert found_for(filters, topic, wakes=source.random() < 0.5) == expected
        for name in source.sample(names, 2):
            assert filters.filter_id(name) == ids[name]
            entry = filters.wake(name)
            assert entry is not None and (entry.topic_filter, entry.filter_id) == (name, ids[name])
            assert filters.wake(name) is entry
            entry.holders = 1
            if source.random() < 0.5:
                assert entry.may_rest()
                filters.rest(entry)
    assert len(filters) == len(names)
    source.shuffle(names)
    for name in names:
        filters.remove(name)
        del ids[name]
        topic = source.choice(TOPICS)
        assert found_for(filters, topic, wakes=False) == {
            n: i for n, i in ids.items() if matches(n, topic)
        }
    assert len(filters) == 0 and not filters._root and not filters._exact and not filters._shapes


def deep_filters(source: random.Random, count: int) -> list[str]:
    """Return filters of up to 12 levels that share long beginnings."""
    stems = [[source.choice("ab+") for _ in range(12)] for _ in range(4)]
    found = set()
    while len(found) < count:
        levels = list(source.choice(stems))[: source.randint(1, 12)]
        if source.random() < 0.5:
            levels[source.randrange(len(levels))] = source.choice("ab+")
        found.add("/".join([*levels, *source.choice(([], ["#"], ["+"]))]))
    return sorted(name for name in found if is_wild(name))


def nodes_of(filters: TopicFilterIndex) -> int:
    """Count the nodes below the root; each must have two children at least."""
    count = 0
    rest = [filters._root]
    while rest:
        for child in rest.pop().values():
            node = getattr(child, "node", child)
            if isinstance(node, dict):
                assert len(node) >= 2
                count += 1
                rest.append(node)
    return count


@SHAPES
@pytest.mark.parametrize("seed", range(8))
def test_deep_filters_that_come_and_go_leave_no_more_nodes_than_filters(
    seed: int, shapes_max: int
) -> None:
    source = random.Random(seed)
    filters = TopicFilterIndex(shapes_max)
    ids: dict[str, int] = {}
    names = deep_filters(source, 60)
    for step in range(400):
        name = source.choice(names)
        if name in ids:
            filters.remove(name)
            del ids[name]
        else:
            ids[name] = step + 1
            if source.random() < 0.5:
                filters.lay(name, ids[name])
            else:
                filters.add(FilterEntry(name, ids[name], 2))
        if ids:
            topic = source.choice(names).replace("+", "c").replace("#", "a/b")
            topic = source.choice((topic, topic.replace("c", source.choice("ab"))))
            expected = {name: number for name, number in ids.items() if matches(name, topic)}
            assert found_for(filters, topic, wakes=source.random() < 0.3) == expected
        assert nodes_of(filters) < max(len(ids), 1)
        for name in names:
            assert filters.filter_id(name) == ids.get(name, 0)
        assert len(filters) == len(ids) and len(filters._shapes) <= shapes_max
        assert all(shape.filters for shape in filters._shapes.values())


def test_filters_of_one_shape_cost_one_look_up_however_many_they_are() -> None:
    filters = TopicFilterIndex()
    for number in range(1, 1001):
        filters.lay(f"a/{number}/+/c", number)
        filters.lay(f"a/{number}/#", number + 1000)
    assert found_for(filters, "a/7/b/c", wakes=False) == {"a/7/+/c": 7, "a/7/#": 1007}
    assert filters.visited == 2


def test_more_shapes_than_are_looked_up_go_into_the_tree_until_another_one_is_gone() -> None:
    filters = TopicFilterIndex()
    names = ["/".join(["+"] * count) for count in range(1, SHAPES_MAX + 3)]
    for number, name in enumerate(names, 1):
        filters.lay(name, number)
    assert len(filters._shapes) == SHAPES_MAX and filters._tree_count == 2
    for number, name in enumerate(names, 1):
        assert found_for(filters, name.replace("+", "x"), wakes=False) == {name: number}
    filters.remove(names[0])
    filters.lay("a/#", 99)
    assert len(filters._shapes) == SHAPES_MAX and filters._tree_count == 2
    assert found_for(filters, "a", wakes=False) == {"a/#": 99}


def test_filters_of_very_many_levels_are_in_the_tree() -> None:
    filters = TopicFilterIndex()
    for levels in (SHAPED_LEVELS_MAX, SHAPED_LEVELS_MAX + 1):
        name = "/".join(["a"] * (levels - 1) + ["+"])
        filters.lay(name, levels)
        assert filters._tree_count == (levels > SHAPED_LEVELS_MAX)
        assert found_for(filters, "/".join("a" * levels), wakes=False) == {name: levels}


def test_a_long_topic_counts_as_more_work_for_each_shape() -> None:
    filters = TopicFilterIndex()
    filters.lay("+/a", 1)
    filters.match("b/" + "x" * 1022, wakes=False)
    assert filters.visited == 5


def test_filters_of_many_levels_cost_no_node_for_each_level() -> None:
    """Neither in memory nor when a topic is matched: 4 filters for each beginning, 120 levels."""
    filters = TopicFilterIndex()
    names = ["/".join(start) for start in product("a+", repeat=7)]
    chain = "/".join("a+"[at % 2] for at in range(110))
    for number, (name, end) in enumerate(product(names, ("a", "+", "b", "#")), 1):
        filters.lay(f"{name}/{chain}/{end}", number)
    assert nodes_of(filters) < 3 * len(names)
    assert len(filters.match("/".join("a" * 118), wakes=False)) == 3 * len(names)
    assert filters.visited < 100 * len(names)  # each level apart it would be 440 and more


@SHAPES
def test_nothing_is_found_that_is_not_there(shapes_max: int) -> None:
    filters = TopicFilterIndex(shapes_max)
    for name in ("a/b/+", "a/b/#", "c/+/d"):
        filters.lay(name, 1)
    for name in ("a", "a/b", "a/+", "a/b/+/#", "a/b/+/", "c/+", "c/+/d/#", "#", "+", "a/b/c"):
        assert filters.wake(name) is None and filters.filter_id(name) == 0


@SHAPES
def test_a_resting_filter_wakes_in_place_only_for_those_who_keep_the_answer(
    shapes_max: int,
) -> None:
    filters = TopicFilterIndex(shapes_max)
    for name, number in (("a/b", 1), ("a/+", 2), ("+/b", 3), ("#", 4), ("a/b/#", 5)):
        filters.lay(name, number)
    shown = filters.match("a/b", wakes=False)
    assert sorted(entry.filter_id for entry in shown) == [1, 2, 3, 4, 5]
    assert all(filters.wake(entry.topic_filter) is not entry for entry in shown)
    kept = filters.match("a/b", wakes=True)
    assert all(filters.wake(entry.topic_filter) is entry for entry in kept)


def test_wildcards_are_told_from_names() -> None:
    assert [is_wild(name) for name in ("a/b", "a/+", "#", "/")] == [False, True, True, False]
