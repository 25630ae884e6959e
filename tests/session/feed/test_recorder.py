"""Is an event in the batch of what it tells of, and is nothing else written for it?"""

import pytest

from mqtt.message import Message
from mqtt.packets import Connack, Publish
from session.feed.recorder import (
    IN_MEMORY,
    ROW_BYTES_MAX,
    ROW_EVENTS_MAX,
    STORED,
    WAITING_BYTES_MAX,
)
from session.settings import LayoutName
from session.state import backend_record
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DISCONNECTED,
    PUBLISHED,
    RETAINED,
    SENT,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSTORED,
    UNSUBSCRIBED,
    FeedEvent,
    decode_row,
    message_of,
    username_of,
)
from storage.tables.tables import FEED, PRESENCE
from tests.session.feed.backends import NAME, feed, read, take, told
from tests.session.harness import Broker, will


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


def sent(broker: Broker) -> list[tuple[str, str, int, bool]]:
    """Return (client, topic, QoS, is in the log) of the deliveries that a store is told of."""
    broker.advance(1000)
    return [
        (row.client_id, row.text, row.qos, row.offset > 0)
        for row in take(broker)
        if isinstance(row, FeedEvent) and row.kind == SENT
    ]


def deliveries(detail: str = "books") -> Broker:
    """Return a broker with a store that is told of deliveries."""
    return Broker(feeds=feed(kinds=1 << SENT), history_detail=detail)


@pytest.mark.parametrize("detail", ["off", "books", "full"])
def test_a_delivery_is_told_once_at_every_qos(detail: str) -> None:
    broker = deliveries(detail)
    durable, clean = broker.durable("d", "t", qos=2), broker.clean("c", "t", qos=1)
    for qos in (0, 1, 2):
        broker.publish("t", b"x", qos)
    clean.receive_all()
    durable.receive_all()
    assert sorted(sent(broker)) == sorted(
        [
            ("d", "t", 0, False),
            ("d", "t", 1, True),
            ("d", "t", 2, True),
            ("c", "t", 0, False),
            ("c", "t", 1, True),
            ("c", "t", 1, True),
        ]
    )


def test_what_is_sent_again_is_not_told_again() -> None:
    broker = deliveries()
    durable = broker.durable("d", "t")
    broker.publish("t")
    assert durable.message().dup is False
    durable.drop()
    durable = broker.connect("d", clean_start=False, expiry=100)
    assert durable.message().dup is True
    assert sent(broker) == [("d", "t", 1, True)]


@pytest.mark.parametrize("count", [1, 40])
def test_what_a_session_finds_when_it_comes_back_is_told(count: int) -> None:
    broker = deliveries()
    broker.durable("d", "t", "u").drop()
    for number in range(count):
        broker.publish("tu"[number % 2])
    assert sent(broker) == []
    broker.connect("d", clean_start=False, expiry=100).receive_all()
    assert sent(broker) == [("d", "tu"[number % 2], 1, True) for number in range(count)]


def test_a_run_of_messages_is_told_one_by_one() -> None:
    broker = deliveries("off")
    readers = [broker.durable("d", "t"), broker.clean("c", "t", qos=1)]
    publisher = broker.connect("p")
    publisher.send(*[Publish("t", b"%d" % each, 1, packet_id=each) for each in range(1, 9)])
    for reader in readers:
        reader.receive_all()
    assert sorted(sent(broker)) == [("c", "t", 1, True)] * 8 + [("d", "t", 1, True)] * 8


def test_retained_messages_and_those_of_groups_are_told() -> None:
    broker = deliveries()
    broker.publish("r", b"x", 1, retain=True)
    broker.clean("c", "r", qos=0)
    broker.clean("g", "$share/s/t", qos=1)
    broker.publish("t")
    assert [each[:3] for each in sent(broker)] == [("c", "r", 0), ("g", "t", 1)]


def test_nobody_is_told_of_deliveries_without_a_rule() -> None:
    broker = Broker(feeds=feed(kinds=1 << ACKED))
    broker.durable("d", "t").receive_all()
    broker.publish("t")
    assert sent(broker) == []


def test_what_the_broker_says_of_itself_is_told_to_no_store_whatever_its_filters() -> None:
    broker = Broker(feeds=feed("#", "$SYS/#", "+/broker/#"))
    live = broker.clean("c", "$SYS/#", qos=2)
    durable = broker.durable("d", "$SYS/#", qos=2)
    broker.engine.publish_system("$SYS/broker/uptime", b"1", broker.now)
    late = broker.clean("late", "$SYS/broker/uptime", qos=0)
    for client in (live, durable, late):
        assert client.message().topic == "$SYS/broker/uptime"
    refused = broker.connect("p")
    for retain in (False, True):
        refused.publish("$SYS/broker/uptime", b"forged", 1, retain=retain)
    broker.advance(1000)
    kinds = {row.kind if isinstance(row, FeedEvent) else row.topic for row in take(broker)}
    assert kinds == {CONNECTED, SUBSCRIBED}
    assert broker.engine.backfill.begin(NAME, backend_record.RETAINED) == ""
    broker.advance(10_000)
    assert take(broker) == []


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


# Messages with QoS 0


def published(rows: list[Message | FeedEvent]) -> list[tuple[str, bytes, int]]:
    """Return (topic, payload, QoS) of the messages that a store gets, in order."""
    found: list[tuple[str, bytes, int]] = []
    for row in rows:
        if isinstance(row, FeedEvent) and row.kind == PUBLISHED:
            row = message_of(row)
        if isinstance(row, Message):
            found.append((row.topic, row.payload, row.qos))
    return found


def test_messages_with_qos_0_come_in_the_order_of_all_and_are_not_in_the_log() -> None:
    broker = Broker(feeds=feed(kinds=0, qos0=("a/#",)))
    client = broker.connect("c")
    for payload, qos in ((b"1", 0), (b"2", 1), (b"3", 0), (b"4", 2), (b"5", 0)):
        client.publish("a/b", payload, qos)
    client.publish("b", b"6", 0)
    broker.advance(1000)
    rows = take(broker)
    assert published(rows) == [
        ("a/b", b"1", 0), ("a/b", b"2", 1), ("a/b", b"3", 0), ("a/b", b"4", 2), ("a/b", b"5", 0),
    ]  # fmt: skip
    assert broker.engine._log.end == 2


def test_only_the_store_that_asks_gets_messages_with_qos_0() -> None:
    others = feed("a/#", name="others", qos0=("a/c",))
    broker = Broker(feeds=(*feed("#", name="none"), *others, *feed(qos0=("a/#",))))
    broker.connect("c").publish("a/b", b"x", 0)
    broker.advance(1000)
    assert [published(take(broker, name)) for name in ("none", "others", "fleet")] == [
        [],
        [],
        [("a/b", b"x", 0)],
    ]


@pytest.mark.parametrize("size", [1, 2])
def test_a_message_with_qos_0_that_is_in_the_log_comes_once(size: int) -> None:
    broker = Broker(feeds=feed(qos0=("a/#",)), store_qos0=True)
    client = broker.connect("c")
    with broker.one_tick():
        for _ in range(size):
            client.publish("a/b", b"x", 0)
    broker.advance(1000)
    assert published(take(broker)) == [("a/b", b"x", 0)] * size
    assert broker.engine._log.end == size


def test_messages_with_qos_0_wait_for_a_batch_and_not_for_long() -> None:
    broker = Broker(feeds=feed(kinds=0, qos0=("#",)), history_detail="off", progress_delay_ms=200)
    client = broker.connect("c")
    written = broker.engine.written
    for number in range(9):
        client.publish("t", b"%d" % number, 0)
    assert broker.engine.written == written
    broker.advance(200)
    assert broker.engine.written == written + 1
    assert [payload for _, payload, _ in published(take(broker))] == [
        b"%d" % number for number in range(9)
    ]


def test_much_that_waits_is_written_at_once() -> None:
    broker = Broker(feeds=feed(kinds=0, qos0=("#",)), history_detail="off")
    client = broker.connect("c")
    written = broker.engine.written
    client.publish("t", bytes(WAITING_BYTES_MAX // 2), 0)
    assert broker.engine.written == written
    client.publish("t", bytes(WAITING_BYTES_MAX // 2), 0)
    assert broker.engine.written == written + 1


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [
        (ROW_EVENTS_MAX + 1, 1, [ROW_EVENTS_MAX, 1]),
        (ROW_EVENTS_MAX, 1, [ROW_EVENTS_MAX]),
        (3, ROW_BYTES_MAX, [1, 1, 1]),
    ],
)
def test_a_row_has_so_many_events_and_numbers_go_on(
    count: int, size: int, sizes: list[int]
) -> None:
    broker = Broker(feeds=feed(kinds=0, qos0=("#",)), history_detail="off")
    client = broker.connect("c")
    with broker.one_tick():
        for number in range(count):
            client.publish("t", b"%d" % number + bytes(size), 0)
    broker.advance(1000)
    rows = [decode_row(*row) for row in broker.store.scan(FEED, b"", count=9)]
    assert [len(row) for row in rows] == sizes
    events = [event for row in rows for event in row]
    assert [event.seq for event in events] == list(range(1, count + 1))
    assert [payload.rstrip(b"\0") for _, payload, _ in published(take(broker))] == [
        b"%d" % number for number in range(count)
    ]


def test_a_crash_may_lose_the_last_messages_with_qos_0_and_none_comes_twice() -> None:
    broker = Broker(feeds=feed(kinds=0, qos0=("#",)))
    client = broker.connect("c")
    client.publish("t", b"1", 0)
    broker.advance(1000)
    broker.hold_commits()
    client.publish("t", b"2", 0)
    broker.restart(keep=0)
    broker.connect("c").publish("t", b"3", 0)
    broker.advance(1000)
    assert [payload for _, payload, _ in published(take(broker))] == [b"1", b"3"]


def test_a_retained_message_with_qos_0_is_one_message_with_one_number() -> None:
    broker = Broker(feeds=feed(qos0=("t",)))
    receiver = broker.durable("r", "x")
    client = broker.connect("c")
    client.publish("x", b"1", 1)
    keys = [key for key, _ in broker.store.scan("msg.1", b"", count=9)]
    broker.is_audited = False
    broker.store.damage("msg.1", keys)
    with broker.one_tick():
        receiver.acknowledge(*receiver.messages())  # this event goes: its message is unreadable
        client.publish("t", b"x", 0, retain=True)
    broker.advance(1000)
    rows = [row for row in take(broker) if isinstance(row, FeedEvent)]
    (message,) = [row for row in rows if row.kind == PUBLISHED]
    (kept,) = [row for row in rows if row.kind == RETAINED]
    assert message.seq < kept.seq
    assert kept.offset == UNSTORED | message.seq == message_of(message).offset


def test_a_will_with_qos_0_is_told_and_what_the_broker_itself_says_is_not() -> None:
    broker = Broker(feeds=feed(kinds=0, qos0=("#", "$SYS/#")))
    broker.connect("c", will=will("w", b"gone", 0)).drop()
    broker.engine.publish_system("$SYS/broker/uptime", b"1", broker.now)
    broker.advance(1000)
    assert published(take(broker)) == [("w", b"gone", 0)]


def test_the_user_of_a_client_is_told_with_what_it_does() -> None:
    broker = Broker(feeds=feed("t"))
    client = broker.connect("c", username="ann", expiry=100)
    client.subscribe("t", qos=1)
    broker.connect("p", username="bob").publish("t", b"1", 1)
    client.receive_all()
    client.unsubscribe("t")
    broker.advance(1000)
    names = {
        row.kind: username_of(row)
        for row in take(broker)
        if isinstance(row, FeedEvent) and row.client_id == "c"
    }
    assert names == dict.fromkeys((CONNECTED, SUBSCRIBED, SENT, ACKED, UNSUBSCRIBED), "ann")


def usernames(rows: list[Message | FeedEvent]) -> list[tuple[str, bytes, str]]:
    """Return topic, payload and publisher's user name of all messages."""
    found = [
        message_of(row) if isinstance(row, FeedEvent) and row.body else row
        for row in rows
        if isinstance(row, Message) or row.kind in (PUBLISHED, RETAINED)
    ]
    return [(m.topic, m.payload, m.username) for m in found if isinstance(m, Message)]


@pytest.mark.parametrize("layout", ["blocks", "timeline", "filters"])
def test_the_user_of_a_publisher_is_told_with_each_message_if_it_is_wanted(
    layout: LayoutName,
) -> None:
    feeds = feed(qos0=("#",), kinds=1 << RETAINED, usernames=True)
    broker = Broker(feeds=feeds, layout=layout)
    ann, bob = broker.connect("a", username="ann"), broker.connect("b", username="bob")
    nobody = broker.connect("c")
    ann.publish("one", b"1", 1)
    ann.publish("kept", b"2", 1, retain=True)
    with broker.one_tick():
        for client in (ann, bob, nobody):
            for qos in (0, 1):
                run = [
                    Publish("run", b"%d" % number, qos, packet_id=qos and 10 + number)
                    for number in range(4)
                ]
                client.send(*run)
    broker.restart()
    kept, *rest = sorted(usernames(take(broker)))
    assert [kept, rest[0]] == [("kept", b"2", "ann")] * 2
    assert rest[1] == ("one", b"1", "ann")
    assert rest[2:] == sorted(
        ("run", b"%d" % number, name)
        for name in ("", "ann", "bob")
        for number in range(4)
        for _ in range(2)
    )


def test_nobody_pays_for_user_names_that_no_store_wants() -> None:
    broker = Broker(feeds=feed("#", qos0=("#",)))
    client = broker.connect("c", username="ann")
    client.publish("t", b"1", 1)
    client.publish("t", b"0", 0)
    broker.advance(1000)
    assert usernames(take(broker)) == [("t", b"1", ""), ("t", b"0", "")]
    assert not any(b"ann" in value for _, value in broker.rows("msg.1"))
