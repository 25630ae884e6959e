"""Are message rows found by offset and by topic?"""

import pytest

from mqtt.message import Message
from storage.api import Store
from storage.log.layouts import message_rows
from storage.log.layouts.api import Slab
from tests.storage.log_cases import (
    A,
    drain,
    fill,
    new_slab,
)


def test_a_scan_with_a_limit_returns_without_messages_but_moves(store: Store) -> None:
    slab = new_slab(store, "timeline")
    fill(store, slab, ["b"] * 200 + ["a"], [A])
    reader = slab.reader([A], 0)
    assert reader.next(5, 201, 50) == []
    assert 50 <= reader.position < 201
    found: list[Message] = []
    for _ in range(10):
        found += reader.next(5, 201, 50)
    assert [m.offset for m in found] == [201]


def test_more_topics_than_are_remembered_are_all_matched(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_rows, "_TOPICS_MAX", 4)
    slab = new_slab(store, "timeline")
    fill(store, slab, [f"t/{n % 9}" for n in range(90)], [])
    assert drain(slab.scanner("t/3", 0), 90) == list(range(4, 91, 9))


def test_messages_are_found_by_offset(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a", "b", "c"], [A])
    found = slab.get_many([3, 9, 1])
    assert [None if m is None else m.topic for m in found] == ["c", None, "a"]
    assert slab.last_offset() == 3
    first = slab.first_from(2)
    assert first is not None
    assert first.offset == 2
    assert slab.first_from(4) is None


def test_a_sample_tells_the_size(store: Store, slab: Slab) -> None:
    fill(store, slab, ["a"] * 300, [])
    count, size = slab.measured()
    assert count == 300
    assert slab.sampled_size() == size // 300
