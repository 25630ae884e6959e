"""Do backends begin, change and end with the configuration, and repair what a crash left?"""

import pytest

from storage.errors import CorruptRecord, DamagedRows
from storage.tables.feed_rows import CONNECTED, DISCONNECTED, SESSION_ENDED, FeedEvent
from storage.tables.tables import BACKENDS, DEAD_LETTERS, FEED, FILTERS, HOLDERS, PRESENCE
from tests.session.feed.backends import NAME, feed, read, take, told
from tests.session.harness import Broker


def test_a_new_backend_has_a_mark_that_stays() -> None:
    broker = Broker(feeds=feed("#"))
    mark = broker.engine.feeds.instance(NAME)
    broker.restart()
    assert broker.engine.feeds.instance(NAME) == mark
    broker.engine.feeds.renew(NAME, "other")
    broker.settle()
    broker.restart()
    assert broker.engine.feeds.instance(NAME) == "other"


def test_the_last_backend_takes_everything_with_it() -> None:
    broker = Broker(feeds=feed("a", "b/#"))
    broker.connect("c").publish("a", b"1", 1)
    broker.settings.feeds = ()
    assert broker.restart().forgotten == [NAME]
    for family in (BACKENDS, DEAD_LETTERS, FEED, FILTERS, HOLDERS, PRESENCE):
        assert broker.store.scan(family, b"", count=1) == [], family


def test_a_filter_that_sessions_have_too_stays_theirs() -> None:
    broker = Broker(feeds=feed("t"))
    broker.durable("c", "t").drop()
    broker.settings.feeds = ()
    broker.restart()
    broker.publish("t", b"kept")
    assert broker.durable("c").receive_all() == [b"kept"]


def test_a_filter_that_comes_back_does_not_bring_back_what_was_dropped() -> None:
    broker = Broker(feeds=feed("a", "b", kinds=0), store="all")
    broker.publish("b", b"1")
    broker.settings.feeds = feed("a", kinds=0)
    broker.restart()
    broker.publish("b", b"2")
    broker.settings.feeds = feed("a", "b", kinds=0)
    broker.restart()
    broker.publish("b", b"3")
    assert told(take(broker)) == [b"3"]


def test_a_damaged_record_of_a_backend_stops_the_start() -> None:
    broker = Broker(feeds=feed("#"))
    ((key, value),) = broker.store.scan(BACKENDS, b"", count=9)
    broker.store.write([(BACKENDS, key, value[:-1])])
    broker.store.sync()
    with pytest.raises(CorruptRecord, match="backend 'fleet'"):
        broker.restart()
    broker.store.write([(BACKENDS, key, value)])
    broker.store.sync()
    broker.store.damage(BACKENDS, [key])
    with pytest.raises(DamagedRows):
        broker.restart()


def test_numbers_go_on_behind_events_that_cannot_be_read() -> None:
    broker = Broker(feeds=feed())
    for name in "abc":
        broker.connect(name)
        broker.advance(1000)
    broker.is_audited = False
    broker.store.damage(FEED, [broker.store.scan(FEED, b"", count=9)[-1][0]])
    broker.restart()
    assert broker.counters.damaged_rows["feed"] == 1
    broker.advance(1000)
    rows = read(broker)
    ended = [(kind, name, "") for name in "abc" for kind in (DISCONNECTED, SESSION_ENDED)]
    assert told(rows) == [(CONNECTED, "a", ""), (CONNECTED, "b", ""), *ended]
    numbers = [row.seq for row in rows if isinstance(row, FeedEvent)]
    assert numbers == sorted(set(numbers)) and numbers[2] > numbers[1] + 1


def test_many_clients_of_a_crash_are_told_of_in_slices() -> None:
    broker = Broker(feeds=feed(kinds=2 | 4))
    for number in range(1200):
        broker.connect(f"c{number}")
    broker.advance(1000)
    take(broker)
    broker.restart()
    broker.advance(1000)
    assert len(take(broker)) == 1200
