"""Is an event in the batch of what it tells of, and is nothing else written for it?"""

from mqtt.packets import Connack
from session.feed.recorder import IN_MEMORY, STORED
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DISCONNECTED,
    SESSION_ENDED,
    SUBSCRIBED,
    FeedEvent,
    decode_row,
)
from storage.tables.tables import FEED, PRESENCE
from tests.session.feed.backends import feed, read, take, told
from tests.session.harness import Broker


def test_only_what_somebody_wants_is_recorded() -> None:
    broker = Broker(feeds=(*feed(kinds=1 << SUBSCRIBED), *feed(kinds=1 << ACKED, name="b")))
    client = broker.connect("c")
    client.subscribe("t", qos=1)
    client.disconnect()
    broker.advance(1000)
    events = [each for row in broker.store.scan(FEED, b"", count=9) for each in decode_row(*row)]
    assert [event.kind for event in events] == [SUBSCRIBED]
    assert broker.store.scan(PRESENCE, b"", count=1) == []


def test_each_backend_gets_what_it_wants() -> None:
    broker = Broker(feeds=(*feed(kinds=1 << SUBSCRIBED), *feed(kinds=1 << CONNECTED, name="b")))
    broker.connect("c").subscribe("t", qos=1)
    broker.advance(1000)
    assert told(take(broker)) == [(SUBSCRIBED, "c", "t")]
    assert told(take(broker, "b")) == [(CONNECTED, "c", "")]


def test_events_alone_wait_for_a_batch_and_not_for_long() -> None:
    broker = Broker(feeds=feed(kinds=1 << SUBSCRIBED), history_detail="off", progress_delay_ms=200)
    client = broker.connect("c")
    written = broker.engine.written
    for topic_filter in "abc":
        client.subscribe(topic_filter)  # of a session in memory: nothing else is written
    assert broker.engine.written == written
    broker.advance(200)
    assert broker.engine.written == written + 1
    assert told(take(broker)) == [(SUBSCRIBED, "c", each) for each in "abc"]


def test_an_event_is_durable_with_what_it_tells_of() -> None:
    broker = Broker(feeds=feed())
    broker.hold_commits()
    client = broker.connect("c", expiry=100)
    client.subscribe("t", qos=1)
    broker.restart(keep=0)  # nothing was synced
    broker.advance(1000)
    assert take(broker) == []


def test_who_is_connected_is_kept_with_what_a_crash_ends() -> None:
    broker = Broker(feeds=feed())
    broker.connect("a")
    broker.connect("b", expiry=100)
    broker.connect("c").drop()
    assert broker.store.scan(PRESENCE, b"", count=9) == [(b"a", IN_MEMORY), (b"b", STORED)]


def test_who_wants_only_the_end_of_sessions_is_told_of_those_in_memory() -> None:
    broker = Broker(feeds=feed(kinds=1 << SESSION_ENDED))
    broker.connect("a")
    broker.connect("b", expiry=100)
    broker.restart()
    broker.advance(1000)
    assert told(take(broker)) == [(SESSION_ENDED, "a", "")]


def test_a_crash_is_dated_at_the_last_sign_of_life() -> None:
    broker = Broker(feeds=feed(kinds=1 << DISCONNECTED))
    broker.connect("a")
    broker.advance(5000)
    alive = broker.now
    broker.restart(after_ms=100_000)
    broker.advance(1000)
    (event,) = take(broker)
    assert isinstance(event, FeedEvent)
    assert alive - 1000 <= event.at_ms <= alive


def test_the_acknowledgement_of_a_message_that_is_gone_is_left_out() -> None:
    broker = Broker(feeds=feed("t", kinds=1 << ACKED))
    receiver = broker.connect("r", expiry=100)
    receiver.subscribe("t", qos=1)
    broker.connect("s").publish("t", b"1", 1)
    keys = [key for key, _ in broker.store.scan("msg.1", b"", count=9)]
    broker.is_audited = False
    broker.store.damage("msg.1", keys)
    receiver.receive_all()
    broker.advance(1000)
    assert broker.counters.damaged_rows["message"] == 1
    assert [row for row in take(broker) if isinstance(row, FeedEvent)] == []


def test_a_client_without_a_session_does_not_wait_for_what_stores_are_told() -> None:
    broker = Broker(feeds=feed())
    broker.hold_commits()
    client = broker.request("c")
    assert isinstance(client.answer(Connack), Connack)
    client.ping()
    assert read(broker) == []
    broker.advance(300)
    broker.commit()
    assert told(read(broker)) == [(CONNECTED, "c", "")]
