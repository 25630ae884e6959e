"""The sizes of messages are the same, read singly or all at once, damaged ones included."""

import pytest

from broker.operations.sessions.sizes import SHARE, Sizes, size_of
from mqtt.message import Message
from storage.local.memory import MemoryStore
from storage.log.message_log import MessageLog
from tests.storage.log_cases import accept, start


def nothing() -> None:
    """Do not pause."""


def filled(layout: str) -> tuple[MemoryStore, MessageLog, list[int]]:
    store = MemoryStore()
    log = start(store, layout)
    accept(store, log, "abc" * 60)
    messages = log.get_many(range(1, 181))
    return store, log, [size_of(each) for each in messages if each is not None]


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_sizes_are_the_same_singly_and_all_at_once(layout: str) -> None:
    _, log, sizes = filled(layout)
    assert len(sizes) == 180
    found = Sizes(log, nothing)
    few = 180 // SHARE - 1
    assert found.of(range(1, few + 1), 1, 180) == sizes[:few]
    for _ in range(2):
        assert found.of(range(1, 181), 1, 180) == sizes
    assert found.of([180, 7], 1, 180) == [sizes[179], sizes[6]]


@pytest.mark.parametrize("layout", ["blocks", "filters"])
def test_a_message_that_cannot_be_read_has_no_size(layout: str) -> None:
    store, log, sizes = filled(layout)
    key, _ = store.scan("msg.1", b"", count=1)[0]
    store.write([("msg.1", key, b"damaged")])
    last = int.from_bytes(key, "big")
    log = MessageLog(store, layout=layout)
    log.open(0)
    expected = [0] * last + sizes[last:]
    found = Sizes(log, nothing)
    assert found.of([1], 1, 180) == [0]
    assert found.of(range(1, 181), 1, 180) == expected


def test_bytes_are_those_of_the_topic_in_utf_8_and_of_the_payload() -> None:
    message = Message("überdruck", "kΩ".encode(), 1, False, b"\x01\x01", "p", 1, 0)
    assert size_of(message) == 10 + 3
