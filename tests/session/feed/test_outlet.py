"""Does a store get every durable message and event of its feed, once and in order?"""

from collections.abc import Callable

import pytest

from mqtt.message import Message
from session.feed.dead_letters import DeadLetter
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DISCONNECTED,
    GAP,
    RETAIN_DELETED,
    RETAINED,
    SENT,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    FeedEvent,
)
from storage.tables.message_record import decode_message
from storage.tables.tables import DEAD_LETTERS, FEED, HOLDERS
from tests.session.feed.backends import NAME, confirm, feed, read, take, told
from tests.session.harness import Broker

MESSAGES_ONLY = 0
ACKS = 1 << ACKED


def test_messages_of_its_filters_come_with_nobody_subscribed() -> None:
    broker = Broker(feeds=feed("a/#", kinds=MESSAGES_ONLY))
    client = broker.connect("c")
    for topic, payload, qos in (("a/1", b"1", 1), ("b", b"2", 1), ("a/2", b"3", 2), ("a", b"4", 0)):
        client.publish(topic, payload, qos)
    assert told(take(broker)) == [b"1", b"3"]
    assert read(broker) == []


def test_a_message_that_matches_two_filters_comes_once() -> None:
    broker = Broker(feeds=feed("a/#", "+/1", kinds=MESSAGES_ONLY))
    broker.connect("c").publish("a/1", b"x", 1)
    assert told(take(broker)) == [b"x"]


def test_the_end_of_a_page_is_not_the_end_of_the_feed() -> None:
    broker = Broker(feeds=feed("#", kinds=MESSAGES_ONLY))
    client = broker.connect("c")
    for number in range(5):
        client.publish("t", b"%d" % number, 1)
    first = broker.engine.feeds.read(NAME, 2, 1 << 20)
    second = broker.engine.feeds.read(NAME, 100, 3)
    assert first is not None and second is not None
    assert told(first.rows) == [b"0", b"1"]
    assert told(second.rows) == [b"2", b"3"]  # two bytes of topic and payload each
    assert second.after == first.upto


def test_nothing_comes_before_it_is_durable() -> None:
    broker = Broker(feeds=feed("#"))
    broker.hold_commits()
    client = broker.connect("c")
    client.start_publish("t", b"x", 1)
    assert read(broker) == []
    broker.commit()
    assert told(read(broker)) == [(CONNECTED, "c", ""), b"x"]


def test_messages_and_events_come_in_one_order() -> None:
    broker = Broker(feeds=feed("#"))
    client = broker.connect("c")
    client.publish("t", b"1", 1)
    client.subscribe("t", qos=1)
    client.publish("t", b"2", 1)
    client.receive_all()
    client.unsubscribe("t")
    client.disconnect()
    broker.advance(1000)
    assert told(take(broker)) == [
        (CONNECTED, "c", ""),
        b"1",
        (SUBSCRIBED, "c", "t"),
        b"2",
        (SENT, "c", "t"),
        (ACKED, "c", "t"),
        (UNSUBSCRIBED, "c", "t"),
        (DISCONNECTED, "c", ""),
        (SESSION_ENDED, "c", ""),
    ]


def test_a_takeover_is_no_end() -> None:
    broker = Broker(feeds=feed())
    broker.connect("c")
    broker.connect("c")
    broker.advance(1000)
    kinds = [row.kind for row in take(broker) if isinstance(row, FeedEvent)]
    assert kinds == [CONNECTED, SESSION_ENDED, CONNECTED]


def test_a_crash_disconnects_who_was_connected_also_without_a_session() -> None:
    broker = Broker(feeds=feed())
    broker.connect("gone").disconnect()
    broker.connect("clean")
    broker.connect("kept", expiry=100)
    broker.advance(1000)
    take(broker)
    broker.restart(after_ms=5000)
    broker.advance(1000)
    assert told(take(broker)) == [
        (DISCONNECTED, "clean", ""),
        (SESSION_ENDED, "clean", ""),
        (DISCONNECTED, "kept", ""),
    ]
    broker.restart()
    broker.advance(1000)
    assert take(broker) == []


def test_an_acknowledgement_names_its_message() -> None:
    broker = Broker(feeds=feed("t", kinds=ACKS))
    sender, receiver = broker.connect("s"), broker.connect("r", expiry=100)
    receiver.subscribe("t", qos=2)
    sender.publish("t", b"1", 1)
    sender.publish("t", b"2", 2)
    receiver.receive_all()
    broker.advance(1000)
    one, two, *acks = take(broker)
    assert isinstance(one, Message) and isinstance(two, Message)
    found = [(a.offset, a.text, a.qos, a.accepted_ms) for a in acks if isinstance(a, FeedEvent)]
    assert found == [
        (one.offset, "t", 1, one.accepted_at_ms),
        (two.offset, "t", 2, two.accepted_at_ms),
    ]


def test_an_acknowledgement_of_a_message_that_is_not_in_the_log_is_not_told() -> None:
    broker = Broker(feeds=feed("t", kinds=ACKS))
    client = broker.connect("c")
    client.subscribe("u", qos=1)
    client.publish("u", b"1", 1)
    client.receive_all()
    broker.advance(1000)
    assert take(broker) == []


def test_retained_messages_are_told_whole_also_at_qos_0() -> None:
    broker = Broker(feeds=feed())
    client = broker.connect("c")
    client.publish("t", b"kept", 0, retain=True)
    client.publish("t", b"", 0, retain=True)
    client.publish("u", b"", 0, retain=True)  # the store may have one that we do not have
    broker.advance(1000)
    _, kept, *gone = take(broker)
    assert isinstance(kept, FeedEvent) and kept.kind == RETAINED
    message = decode_message(kept.body, 0)
    assert (message.topic, message.payload, message.retain) == ("t", b"kept", True)
    assert told(gone) == [(RETAIN_DELETED, "", "t"), (RETAIN_DELETED, "", "u")]


def test_a_retained_message_that_expires_is_told() -> None:
    broker = Broker(feeds=feed(kinds=1 << RETAIN_DELETED))
    broker.connect("c").publish("t", b"x", 1, retain=True, message_expiry_interval=1)
    broker.advance(3000)
    assert told(take(broker))[-1] == (RETAIN_DELETED, "", "t")


def test_what_was_not_confirmed_comes_again_after_a_crash() -> None:
    broker = Broker(feeds=feed("#", kinds=MESSAGES_ONLY))
    client = broker.connect("c")
    client.publish("t", b"1", 1)
    take(broker)
    client.publish("t", b"2", 1)
    assert told(read(broker)) == [b"2"]
    broker.restart()
    assert told(take(broker)) == [b"2"]
    broker.restart()
    assert take(broker) == []


def test_a_store_that_forgot_reads_again() -> None:
    broker = Broker(feeds=feed("#"))
    client = broker.connect("c")
    client.publish("t", b"1", 1)
    before = broker.engine.feeds.cursor(NAME)
    first = told(take(broker))
    broker.engine.feeds.begin(NAME, before)
    assert told(read(broker)) == first


def test_reading_begins_in_the_middle_of_a_tick() -> None:
    broker = Broker(feeds=feed())
    broker.connect("c").subscribe("a", "b", "c")
    broker.advance(1000)
    rows = read(broker)
    assert len(rows) == 4
    for number, row in enumerate(rows):
        assert isinstance(row, FeedEvent)
        broker.engine.feeds.begin(NAME, (row.end, row.seq))
        assert told(read(broker)) == told(rows[number + 1 :])


def test_a_generation_stays_while_a_store_may_read_it() -> None:
    broker = Broker(
        feeds=feed("#", kinds=MESSAGES_ONLY, keep_ms=60_000), generation_size_bytes=1 << 10
    )
    client = broker.connect("c")
    for number in range(8):
        client.publish("t", b"%d" % number + bytes(500), 1)
        broker.advance(3000)
    assert len(read(broker)) == 8
    assert broker.counters.generations_dropped == 0
    broker.engine.feeds.begin(NAME, broker.engine.feeds.floor(NAME))
    assert len(take(broker)) == 8
    broker.advance(30_000)
    assert broker.counters.generations_dropped == 0  # the store may forget what it has confirmed
    broker.advance(120_000)
    assert broker.counters.generations_dropped == 0  # it is not known whether the store is there
    broker.engine.feeds.heard(NAME)
    broker.advance(30_000)
    assert broker.counters.generations_dropped > 0


def broker_that_keeps_little() -> tuple[Broker, Callable[[int], None]]:
    """Return a broker with room for a few messages, and what publishes one of them."""
    broker = Broker(
        feeds=feed("#"), generation_size_bytes=1 << 10, total_bytes_max=3000, store="all"
    )
    client = broker.connect("c")

    def publish(number: int) -> None:
        client.publish("t", b"%d" % number + bytes(500), 1)
        broker.advance(3000)

    return broker, publish


def test_what_a_limit_drops_is_told_as_a_gap() -> None:
    broker, publish = broker_that_keeps_little()
    for number in range(12):
        publish(number)
    rows = take(broker)
    gaps = [row for row in rows if isinstance(row, FeedEvent) and row.kind == GAP]
    offsets = {row.offset for row in rows if isinstance(row, Message)}
    lost = {n for gap in gaps for n in range(gap.offset, gap.accepted_ms + 1)}
    assert gaps and lost | offsets == set(range(1, 13))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_a_limit_drops_cannot_be_sent_again(is_restarted: bool) -> None:
    broker, publish = broker_that_keeps_little()
    for number in range(12):
        publish(number)
        assert [row.offset for row in take(broker) if isinstance(row, Message)] == [number + 1]
    if is_restarted:
        broker.restart()
    floor = broker.engine.feeds.floor(NAME)
    assert floor[0] > 0 and floor[1] == 0
    broker.engine.feeds.begin(NAME, (0, 0))  # as a store that has lost everything
    rows = take(broker)
    offsets = [row.offset for row in rows if isinstance(row, Message)]
    assert offsets == list(range(floor[0] + 1, 13))
    events = [row.seq for row in rows if isinstance(row, FeedEvent)]
    assert events[0] == 1


def test_events_that_every_store_has_are_deleted_after_a_while() -> None:
    broker = Broker(feeds=feed(keep_ms=20_000))
    for number in range(200):
        broker.connect(f"c{number}").disconnect()
        broker.advance(1000)
    take(broker)
    broker.advance(60_000)
    broker.engine.feeds.heard(NAME)
    broker.advance(60_000)
    assert len(broker.store.scan(FEED, b"", count=1000)) == 1  # it has the last number


def test_numbers_of_events_are_not_used_again() -> None:
    broker = Broker(feeds=feed())
    broker.connect("a").disconnect()
    broker.advance(1000)
    last = take(broker)[-1]
    broker.restart()
    broker.connect("b")
    broker.advance(1000)
    following = take(broker)[0]
    assert isinstance(last, FeedEvent) and isinstance(following, FeedEvent)
    assert following.seq == last.seq + 1


def test_a_dead_letter_is_stored_with_the_cursor() -> None:
    broker = Broker(feeds=feed("#", kinds=MESSAGES_ONLY))
    broker.connect("c").publish("t", b"poison", 1)
    read(broker)
    feeds = broker.engine.feeds
    feeds.confirm(NAME, (1, 0), [DeadLetter((1, 0), "1", "WRONGTYPE", b"row")])
    broker.settle()
    broker.restart()
    assert broker.engine.feeds.stats(NAME).dead_letters == 1
    assert len(broker.store.scan(DEAD_LETTERS, b"", count=9)) == 1
    assert read(broker) == []


@pytest.mark.parametrize("after", [(), feed("b", name="other")])
def test_a_backend_that_is_not_configured_any_more_keeps_nothing(after: object) -> None:
    broker = Broker(feeds=feed("a", "b"))
    broker.connect("c").publish("a", b"x", 1)
    broker.settings.feeds = after  # type: ignore[assignment]
    recovery = broker.restart()
    assert recovery.forgotten == [NAME]
    assert len(broker.store.scan(HOLDERS, b"", count=9)) == len(broker.settings.feeds)
    assert broker.restart().forgotten == []


def test_a_filter_that_is_added_begins_at_the_end_of_the_log() -> None:
    broker = Broker(feeds=feed("a", kinds=MESSAGES_ONLY), store="all")
    client = broker.connect("c")
    client.publish("a", b"1", 1)
    client.publish("b", b"2", 1)
    broker.settings.feeds = feed("a", "b", kinds=MESSAGES_ONLY)
    broker.restart()
    broker.connect("c").publish("b", b"3", 1)
    assert told(take(broker)) == [b"1", b"3"]


def test_a_filter_that_is_removed_is_not_stored_any_more() -> None:
    broker = Broker(feeds=feed("a", "b", kinds=MESSAGES_ONLY))
    broker.settings.feeds = feed("a", kinds=MESSAGES_ONLY)
    broker.restart()
    client = broker.connect("c")
    client.publish("b", b"1", 1)
    client.publish("a", b"2", 1)
    assert told(take(broker)) == [b"2"]
    assert broker.counters.messages_stored == 1


def test_a_new_backend_is_told_of_nothing_before_it() -> None:
    broker = Broker(feeds=feed("#"))
    broker.connect("c").publish("t", b"1", 1)
    broker.settings.feeds = (*broker.settings.feeds, *feed("#", name="second"))
    broker.restart()
    broker.connect("d").publish("t", b"2", 1)
    broker.advance(1000)
    assert told(take(broker, "second")) == [
        (DISCONNECTED, "c", ""),
        (SESSION_ENDED, "c", ""),
        (CONNECTED, "d", ""),
        b"2",
    ]


def test_damage_costs_what_it_holds_and_is_counted() -> None:
    broker = Broker(feeds=feed())
    for name in "abc":
        broker.connect(name)
        broker.advance(1000)
    keys = [key for key, _ in broker.store.scan(FEED, b"", count=9)]
    broker.store.damage(FEED, [keys[1]])
    pages = []
    while (page := broker.engine.feeds.read(NAME, 100, 1 << 20)) is not None:
        pages.append(page)
    rows = [row for page in pages for row in page.rows]
    assert told(rows) == [(CONNECTED, "a", ""), (CONNECTED, "c", "")]
    assert sum(page.lost for page in pages) >= 1
    assert broker.counters.damaged_rows["feed"] == 1
    confirm(broker)


def test_without_backends_nothing_is_written_for_them() -> None:
    broker = Broker()
    client = broker.connect("c")
    client.subscribe("t", qos=1)
    client.publish("t", b"x", 1, retain=True)
    client.receive_all()
    broker.advance(1000)
    assert broker.store.scan(FEED, b"", count=1) == []
    assert broker.engine.feeds.names() == []


def test_rows_are_kept_for_a_store_that_went_and_was_away_for_long() -> None:
    broker = Broker(feeds=feed("#", keep_ms=20_000), generation_size_bytes=1 << 10)
    client = broker.connect("c", keep_alive=0)
    broker.advance(1000)
    cursors = [broker.engine.feeds.cursor(NAME)]
    for number in range(6):
        client.publish("t", b"%d" % number + bytes(500), 1)
        broker.advance(3000)
        assert len(take(broker)) >= 1
        cursors.append(broker.engine.feeds.cursor(NAME))
    broker.advance(3_600_000)  # it went, had lost the last four rows, and comes back
    broker.engine.feeds.begin(NAME, cursors[2])
    broker.settle()
    assert broker.engine.feeds.cursor(NAME) == cursors[2]
    broker.restart(after_ms=3_600_000)  # before it has got them again
    broker.advance(100_000)
    payloads = [row.payload[:1] for row in read(broker) if isinstance(row, Message)]
    assert payloads == [b"2", b"3", b"4", b"5"]
