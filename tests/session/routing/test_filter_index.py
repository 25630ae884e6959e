"""Does the tree of wildcards hold exactly the filters that were put into it, in any shape?"""

import random
from itertools import product

import pytest

from mqtt.topics import matches
from session.live.subscribers import FilterEntry
from session.routing.filter_index import TopicFilterIndex, is_wild

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


@pytest.mark.parametrize("seed", range(12))
def test_filters_match_as_defined_awake_or_resting(seed: int) -> None:
    source = random.Random(seed)
    names = source.sample(FILTERS, source.choice((3, 12, 60)))
    filters = TopicFilterIndex()
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
    assert len(filters) == 0 and not filters._root and not filters._exact


def test_nothing_is_found_that_is_not_there() -> None:
    filters = TopicFilterIndex()
    for name in ("a/b/+", "a/b/#", "c/+/d"):
        filters.lay(name, 1)
    for name in ("a", "a/b", "a/+", "a/b/+/#", "a/b/+/", "c/+", "c/+/d/#", "#", "+", "a/b/c"):
        assert filters.wake(name) is None and filters.filter_id(name) == 0


def test_a_resting_filter_wakes_in_place_only_for_those_who_keep_the_answer() -> None:
    filters = TopicFilterIndex()
    for name, number in (("a/b", 1), ("a/+", 2), ("+/b", 3), ("#", 4), ("a/b/#", 5)):
        filters.lay(name, number)
    shown = filters.match("a/b", wakes=False)
    assert sorted(entry.filter_id for entry in shown) == [1, 2, 3, 4, 5]
    assert all(filters.wake(entry.topic_filter) is not entry for entry in shown)
    kept = filters.match("a/b", wakes=True)
    assert all(filters.wake(entry.topic_filter) is entry for entry in kept)


def test_wildcards_are_told_from_names() -> None:
    assert [is_wild(name) for name in ("a/b", "a/+", "#", "/")] == [False, True, True, False]
