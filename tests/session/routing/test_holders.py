"""Does a filter have a stream exactly while somebody holds it?"""

from storage.tables.tables import (
    FILTERS,
    HOLDERS,
    backend_holder,
    decode_filter,
    group_holder,
    holder_key,
    session_holder,
)
from tests.session.feed.backends import NAME, feed
from tests.session.harness import Broker


def test_sessions_groups_and_backends_hold_one_stream() -> None:
    broker = Broker(feeds=feed("t"))
    broker.durable("c", "t")
    broker.durable("m", "$share/g/t")
    ((_, value),) = broker.store.scan(FILTERS, b"", count=9)
    filter_id, holders = decode_filter(value)
    assert holders == 3
    names = (backend_holder(NAME), session_holder("c"), group_holder("g"))
    keys = [key for key, _ in broker.store.scan(HOLDERS, b"", count=9)]
    assert keys == sorted(holder_key(filter_id, name) for name in names)


def test_a_stream_ends_with_its_last_holder_and_its_number_is_not_used_again() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    first = broker.store.scan(FILTERS, b"", count=9)[0][1]
    client.unsubscribe("t")
    assert broker.store.scan(FILTERS, b"", count=9) == []
    assert broker.store.scan(HOLDERS, b"", count=9) == []
    client.subscribe("t", qos=1)
    second = broker.store.scan(FILTERS, b"", count=9)[0][1]
    assert decode_filter(second)[0] > decode_filter(first)[0]
