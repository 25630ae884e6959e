"""Is what waits for a store measured, bounded and told, and is nobody else affected?"""

import pytest

from mqtt.message import Message
from mqtt.packets import Puback, Publish
from session.feed.backlogs import MARK_BYTES, MARKS_MAX, EventSizes, log_bytes
from session.feed.dead_letters import DeadLetter
from session.settings import Feed
from storage.local.memory import MemoryStore
from storage.tables.feed_rows import (
    CONNECTED,
    GAP,
    PUBLISHED,
    FeedEvent,
    encode_row,
    feed_key,
    message_of,
)
from storage.tables.tables import FEED
from tests.session.feed.backends import EVERYTHING, NAME, confirm, feed, read, take
from tests.session.harness import Broker, Client

LIMIT = 8000
PAYLOAD = 500
MESSAGES_ONLY = 0


def limited(
    *filters: str, kinds: int = MESSAGES_ONLY, on_full: str = "drop_oldest", limit: int = LIMIT
) -> tuple[Feed, ...]:
    """Return a backend that may have a backlog of `limit` bytes."""
    return (Feed(NAME, filters, kinds, 0, (), limit, on_full),)  # type: ignore[arg-type]


def publish(client: Client, count: int, topic: str = "a/t", first: int = 0) -> None:
    """Publish messages of 500 bytes that begin with their numbers."""
    for number in range(first, first + count):
        client.publish(topic, b"%d." % number + bytes(PAYLOAD), 1)


def numbers(rows: list[Message | FeedEvent]) -> list[int]:
    """Return the numbers of the messages among rows."""
    return [int(row.payload.partition(b".")[0]) for row in rows if isinstance(row, Message)]


def gaps(rows: list[Message | FeedEvent]) -> list[FeedEvent]:
    """Return the gaps among rows."""
    return [row for row in rows if isinstance(row, FeedEvent) and row.kind == GAP]


def backlog(broker: Broker) -> int:
    """Return the bytes that wait."""
    return broker.engine.feeds.stats(NAME).backlog_bytes


# How much waits


def test_a_backlog_grows_with_what_waits_and_ends_with_the_confirmation() -> None:
    broker = Broker(feeds=feed("a/#", kinds=MESSAGES_ONLY))
    client = broker.connect("c")
    assert backlog(broker) == 0
    publish(client, 10)
    ten = backlog(broker)
    assert 10 * PAYLOAD <= ten <= 10 * PAYLOAD * 1.3
    assert len(read(broker)) == 10
    assert backlog(broker) == ten  # nothing is confirmed
    confirm(broker)
    assert backlog(broker) == 0


def test_what_others_want_counts_only_while_something_waits_before_it() -> None:
    broker = Broker(feeds=feed("a/#", kinds=MESSAGES_ONLY), store="all")
    client = broker.connect("c")
    publish(client, 10, "other")
    assert read(broker) == []
    assert backlog(broker) == 0  # it was passed over, and needs no confirmation
    publish(client, 1)
    publish(client, 10, "other")
    read(broker)
    assert backlog(broker) > 10 * PAYLOAD


def test_events_count_for_those_who_want_some() -> None:
    sizes = {}
    for kinds in (EVERYTHING, MESSAGES_ONLY):
        broker = Broker(feeds=feed(kinds=kinds))
        broker.connect("c")
        broker.advance(1000)
        sizes[kinds] = backlog(broker)
    assert sizes[EVERYTHING] > 0
    assert sizes[MESSAGES_ONLY] == 0


def test_a_restart_knows_about_how_much_waits() -> None:
    broker = Broker(feeds=feed("a/#"), generation_size_bytes=2000)
    client = broker.connect("c")
    for number in range(8):
        publish(client, 2, first=2 * number)
        broker.advance(3000)
    before = backlog(broker)
    broker.restart()
    assert before * 0.8 < backlog(broker) < before * 1.3


def test_bytes_of_a_generation_are_shared_out_evenly() -> None:
    extents = [(21, 30, 500), (11, 20, 1000), (1, 10, 100)]
    found = [log_bytes(extents, position) for position in (30, 29, 20, 15, 10, 0)]
    assert found == [0, 50, 500, 1000, 1500, 1600]
    assert log_bytes([(5, 4, 0)], 3) == 0  # it has no message yet


def test_the_curve_of_events_is_exact_at_its_marks_and_stays_small() -> None:
    sizes = EventSizes()
    for seq in range(1, 2 * MARKS_MAX + 2):
        sizes.add(seq, seq * 10, MARK_BYTES)
    total = (2 * MARKS_MAX + 1) * MARK_BYTES
    assert sizes.after(0) == total
    assert sizes.after(MARKS_MAX) == total - MARKS_MAX * MARK_BYTES
    assert sizes.after(2 * MARKS_MAX + 1) == 0
    assert len(sizes._seqs) <= MARKS_MAX
    assert sizes.upto(10**9) == 2 * MARKS_MAX + 1
    assert 0 <= 1000 - sizes.upto(10_000) < 4


def test_the_curve_begins_with_a_sample_of_what_is_stored() -> None:
    store = MemoryStore()
    store.create_family(FEED)
    size = 0
    for row in range(300):
        events = [FeedEvent(CONNECTED, 0, row, "c"), FeedEvent(CONNECTED, 0, row, "c")]
        value = encode_row(events)
        size += 8 + len(value)
        store.write([(FEED, feed_key(11 + 2 * row), value)])
    sizes = EventSizes()
    sizes.open(store, 610, 400)
    assert sizes.after(10) == size
    assert sizes.after(0) == size
    assert size * 0.49 < sizes.after(310) < size * 0.51
    assert 290 < sizes.upto(150) <= 312  # of the row that ends there, or a little earlier


# Dropping the oldest


def test_the_oldest_rows_go_and_the_gap_names_them() -> None:
    broker = Broker(feeds=limited("a/#"))
    client = broker.connect("c")
    for number in range(40):
        publish(client, 1, first=number)
        broker.advance(100)
        assert backlog(broker) <= LIMIT + PAYLOAD * 1.3
    rows = take(broker)
    gap, *others = gaps(rows)
    assert rows[0] is gap and not others
    assert gap.text == "dropped by backlog_bytes_max"
    assert gap.body == NAME.encode()
    kept = [row.offset for row in rows if isinstance(row, Message)]
    assert list(range(gap.offset, gap.accepted_ms + 1)) + kept == list(range(1, 41))
    assert len(kept) >= LIMIT * 3 // 4 // (PAYLOAD * 1.3)
    assert broker.engine.feeds.drops(NAME) > 0
    assert backlog(broker) == 0
    publish(client, 1, first=40)
    assert numbers(take(broker)) == [40]


def test_nothing_is_dropped_below_the_limit() -> None:
    broker = Broker(feeds=limited("a/#"))
    publish(broker.connect("c"), 12)
    broker.advance(10_000)
    assert numbers(take(broker)) == list(range(12))
    assert broker.engine.feeds.drops(NAME) == 0


def test_the_gap_waits_until_it_is_durable() -> None:
    broker = Broker(feeds=limited("a/#"))
    publish(broker.connect("c"), 20)
    broker.hold_commits()
    broker.advance(3000)
    assert broker.engine.feeds.drops(NAME) > 0
    assert read(broker) == []
    broker.commit()
    assert gaps(read(broker))


def test_what_is_given_up_stays_so_and_is_told_after_a_crash() -> None:
    broker = Broker(feeds=limited("a/#"))
    publish(broker.connect("c"), 40)
    broker.advance(3000)
    broker.restart()
    rows = read(broker)
    assert len(gaps(rows)) == 1
    again = broker.engine.feeds
    again.begin(NAME, again.cursor(NAME))  # the store did not get it
    assert len(gaps(read(broker))) == 1


def test_gaps_that_follow_each_other_are_one_until_it_is_told() -> None:
    broker = Broker(feeds=limited("a/#"))
    client = broker.connect("c")
    told = []
    for first in (0, 40, 80):
        publish(client, 40, first=first)
        broker.advance(3000)
        if first != 40:
            continue
        told = take(broker)
    told += take(broker)
    named = {n for gap in gaps(told) for n in range(gap.offset, gap.accepted_ms + 1)}
    assert len(gaps(told)) == 2
    assert gaps(told)[0].offset == 1
    assert named | {row.offset for row in told if isinstance(row, Message)} == set(range(1, 121))


def test_the_space_of_what_is_given_up_returns() -> None:
    broker = Broker(feeds=limited("a/#"), generation_size_bytes=2000)
    client = broker.connect("c")
    for number in range(20):
        publish(client, 2, first=2 * number)
        broker.advance(3000)
    assert broker.counters.generations_dropped > 5
    assert len(gaps(take(broker))) == 1  # what is dropped behind it is not told again


def test_a_gap_is_told_only_of_what_rules_want() -> None:
    broker = Broker(feeds=limited("a/#"), store="all")
    client = broker.connect("c")
    publish(client, 40, "other")
    broker.advance(3000)
    publish(client, 1)
    rows = take(broker)
    assert numbers(rows) == [0]
    assert not gaps(rows)


def test_events_that_are_given_up_are_named() -> None:
    broker = Broker(feeds=limited(kinds=EVERYTHING))
    for _ in range(200):
        broker.connect("c").disconnect()
        broker.advance(100)
    assert backlog(broker) <= LIMIT + 500
    rows = take(broker)
    (gap,) = gaps(rows)
    assert gap.offset == 0  # no message is among them
    assert gap.text == f"dropped by backlog_bytes_max (events 1 to {gap.seq}, too)"
    events = [row.seq for row in rows if isinstance(row, FeedEvent) and row.kind != GAP]
    assert events == list(range(gap.seq + 1, broker.engine.feeds.end()[1] + 1))
    assert len(events) > 50


def test_rows_of_events_that_are_given_up_are_deleted() -> None:
    broker = Broker(feeds=limited(kinds=EVERYTHING))
    for _ in range(200):
        broker.connect("c").disconnect()
        broker.advance(100)
    broker.advance(3000)
    first = broker.store.scan(FEED, b"", None, count=1)[0][0]
    assert int.from_bytes(first, "big") > 100


def test_a_dead_letter_that_was_to_be_sent_again_stays_if_that_is_given_up() -> None:
    broker = Broker(feeds=limited("a/#", kinds=EVERYTHING))
    client = broker.connect("c")
    publish(client, 1)
    take(broker)
    feeds = broker.engine.feeds
    feeds.confirm(NAME, feeds.cursor(NAME), [DeadLetter((1, 0), "1", "no", b"row")])
    broker.settle()
    assert feeds.retry_dead_letter(NAME, 1) == ""
    broker.advance(1000)
    publish(client, 40)
    broker.advance(3000)
    assert len(gaps(take(broker))) == 1
    assert [number for number, _ in feeds.dead_letters(NAME, 0, 10)] == [1]
    assert not feeds.is_retried(NAME, 1)


def test_a_store_that_loses_what_it_had_before_a_gap_is_told_so() -> None:
    broker = Broker(feeds=(Feed(NAME, ("a/#",), 0, 60_000, (), LIMIT),))
    client = broker.connect("c")
    publish(client, 5)
    take(broker)
    confirmed = broker.engine.feeds.cursor(NAME)
    publish(client, 40)
    broker.advance(3000)
    assert broker.engine.feeds.floor(NAME) == confirmed


def test_a_comparison_with_the_store_begins_behind_what_was_given_up() -> None:
    broker = Broker(feeds=(Feed(NAME, ("a/#",), 0, 60_000, (), LIMIT),))
    client = broker.connect("c")
    publish(client, 5)
    take(broker)
    confirmed = broker.engine.feeds.cursor(NAME)
    publish(client, 40)
    broker.advance(3000)
    assert broker.engine.kept.first(NAME, 0) == confirmed  # the gap is not told yet
    (gap,) = gaps(take(broker))
    assert broker.engine.kept.first(NAME, 0)[0] == gap.accepted_ms


# Refusing


def reason(client: Client, topic: str) -> int:
    """Publish a message with QoS 1; return the reason code of its PUBACK."""
    acknowledgement = client.start_publish(topic, bytes(PAYLOAD), 1)
    assert isinstance(acknowledgement, Puback)
    return acknowledgement.reason_code


def test_publishers_of_a_full_backend_are_refused_and_others_are_not() -> None:
    broker = Broker(feeds=limited("a/#", on_full="reject"))
    subscriber = broker.connect("s", expiry=100)
    subscriber.subscribe("b", qos=1)
    client = broker.connect("c")
    accepted = 0
    while reason(client, "a/t") == 0:
        accepted += 1
        assert accepted < 100
        broker.advance(100)
    assert accepted * PAYLOAD < LIMIT + 2 * PAYLOAD
    assert broker.engine.feeds.is_refusing(NAME)
    assert reason(client, "b") == 0
    client.publish("a/t", b"x", 0)
    assert reason(client, "a/t") == 0x97
    assert [each.topic for each in subscriber.take() if isinstance(each, Publish)] == ["b"]
    assert not gaps(read(broker))
    confirm(broker)
    broker.advance(100)
    assert reason(client, "a/t") == 0
    assert not broker.engine.feeds.is_refusing(NAME)


def test_refusing_ends_only_when_there_is_room_again() -> None:
    broker = Broker(feeds=limited("a/#", on_full="reject"))
    client = broker.connect("c")
    while reason(client, "a/t") == 0:
        broker.advance(100)
    feeds = broker.engine.feeds
    feeds.read(NAME, 1, 1 << 20)
    confirm(broker)
    broker.advance(3000)
    assert backlog(broker) < LIMIT
    assert reason(client, "a/t") == 0x97  # less than an eighth is free
    feeds.read(NAME, 3, 1 << 20)
    confirm(broker)
    broker.advance(3000)
    assert reason(client, "a/t") == 0


def test_a_client_of_3_1_1_is_disconnected_and_keeps_its_message() -> None:
    broker = Broker(feeds=limited("a/#", on_full="reject"))
    client = broker.connect("c")
    while reason(client, "a/t") == 0:
        broker.advance(100)
    older = broker.connect("old", version=4)
    older.send(Publish("a/t", b"x", 1, packet_id=1))
    older.expect_closed()


def test_a_restart_goes_on_refusing_from_about_the_same_limit_on() -> None:
    broker = Broker(feeds=limited("a/#", on_full="reject"))
    client = broker.connect("c")
    while reason(client, "a/t") == 0:
        broker.advance(100)
    broker.restart()
    client = broker.connect("c")
    accepted = 0
    while reason(client, "a/t") == 0:
        accepted += 1
        broker.advance(100)
    assert accepted <= 3  # what is stored is estimated


def test_events_that_cannot_be_refused_are_dropped() -> None:
    broker = Broker(feeds=limited("a/#", kinds=EVERYTHING, on_full="reject"))
    for _ in range(200):
        broker.connect("c").disconnect()
        broker.advance(100)
    assert backlog(broker) <= LIMIT + 500
    broker.advance(3000)
    assert reason(broker.connect("p"), "a/t") == 0
    assert len(gaps(take(broker))) == 1


@pytest.mark.parametrize("on_full", ["drop_oldest", "reject"])
def test_a_run_of_messages_is_within_the_limit_too(on_full: str) -> None:
    broker = Broker(feeds=limited("a/#", on_full=on_full))
    client = broker.connect("c")
    for _ in range(6):
        for _ in range(10):
            client.start_publish("a/t", bytes(PAYLOAD), 1)
        client.receive_all()
        broker.advance(3000)
    assert backlog(broker) <= LIMIT + 10 * PAYLOAD * 1.3
    is_dropped = bool(gaps(read(broker)))
    assert is_dropped == (on_full == "drop_oldest")


def test_messages_with_qos_0_are_given_up_and_never_refused() -> None:
    feeds = (Feed(NAME, ("#",), 0, 0, (), LIMIT, "reject", qos0=("#",)),)
    broker = Broker(feeds=feeds, history_detail="off")
    receiver, client = broker.clean("r", "t"), broker.connect("c")
    for number in range(100):
        client.publish("t", b"%03d" % number + bytes(LIMIT // 20), 0)
        broker.advance(500)
    assert len(receiver.payloads()) == 100
    assert backlog(broker) <= LIMIT + LIMIT // 4
    rows = take(broker)
    (gap,) = gaps(rows)
    assert gap.offset == 0 and "events 1 to" in gap.text
    kept = [
        int(message_of(row).payload[:3])
        for row in rows
        if isinstance(row, FeedEvent) and row.kind == PUBLISHED
    ]
    assert kept == list(range(kept[0], 100)) and len(kept) > 5
