"""What sessions are owed is counted exactly, however many share it."""

import random

import pytest

from broker.operations.sessions.backlogs import Backlog, Backlogs
from broker.operations.sessions.inventory import Inventory
from mqtt.message import Message
from mqtt.packets import Pubrec, Subscribe, Subscription
from storage.log.gaps import NO_GAPS, Gaps, add, covers
from storage.tables.tables import MAILBOX, mailbox_key
from tests.session.backlogs import with_a_gap
from tests.session.harness import Broker, Client


def backlog_of(broker: Broker, client_id: str, *, with_bytes: bool = True) -> Backlog:
    report = Inventory(broker.store).session(client_id, with_bytes=with_bytes)
    assert report is not None
    return report.backlog


def publish_each(publisher: Client, topics: list[str]) -> None:
    """Publish a message to each topic, many in a tick."""
    with publisher.broker.one_tick():
        for topic in topics:
            publisher.start_publish(topic, b"12345")
    publisher.take()


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_a_deep_backlog_is_counted_exactly_in_every_layout(layout: str) -> None:
    broker = Broker(layout=layout, store_qos0=True)
    broker.durable("boat", "a/#").drop()
    publisher = broker.connect("p")
    for _ in range(5):
        publish_each(publisher, ["a/x", "b", "a/yy"] * 500)
    found = backlog_of(broker, "boat")
    assert found.waiting == 5000
    assert found.size_bytes == 2500 * (3 + 5) + 2500 * (4 + 5)
    assert backlog_of(broker, "boat", with_bytes=False).waiting == 5000


def test_a_message_of_several_subscriptions_counts_once() -> None:
    broker = Broker()
    broker.durable("boat", "a/#", "a/+", "a/b", "#").drop()
    for number in range(7):
        broker.publish("a/b" if number % 2 else "c", b"xx")
    found = backlog_of(broker, "boat")
    assert (found.waiting, found.size_bytes) == (7, 3 * 5 + 4 * 3)


def test_bytes_are_those_of_topics_and_payloads_in_utf_8() -> None:
    broker = Broker()
    broker.durable("boat", "#").drop()
    broker.publish("überdruck", "kΩ".encode(), properties=b"\x01\x01")
    assert backlog_of(broker, "boat").size_bytes == 10 + 3


def test_bytes_that_nobody_asked_for_are_not_counted() -> None:
    broker = Broker()
    broker.durable("boat", "a").drop()
    broker.publish("a")
    assert backlog_of(broker, "boat", with_bytes=False).size_bytes is None


def test_what_is_in_flight_counts_with_its_bytes_until_pubrec_has_come() -> None:
    broker = Broker(max_inflight=3)
    boat = broker.durable("boat", "a", qos=2)
    broker.publish("a", b"one", 1)
    broker.advance(s=1)
    broker.publish("a", b"three", 2)
    broker.publish("a", b"fifteen", 2)
    broker.publish("a", b"waits!!!!", 1)
    (_, second, _) = boat.messages()
    found = backlog_of(broker, "boat")
    assert found.waiting == 1
    assert found.size_bytes == 4 + 3 + 5 + 7 + 9
    boat.send(Pubrec(second.packet_id))
    assert backlog_of(broker, "boat").size_bytes == 3 + 3 + 7 + 9


def test_the_oldest_is_the_first_that_will_be_sent_again_or_waits() -> None:
    broker = Broker(max_inflight=1)
    boat = broker.durable("boat", "a")
    assert backlog_of(broker, "boat").oldest_ms == 0
    times = []
    for _ in range(3):
        broker.advance(s=1)
        times.append(broker.now)
        broker.publish("a")
    for with_bytes in (True, False):
        assert backlog_of(broker, "boat", with_bytes=with_bytes).oldest_ms == times[0]
    boat.acknowledge(*boat.messages())
    boat.take()
    boat.drop()
    assert backlog_of(broker, "boat").oldest_ms == times[1]


def test_a_retained_message_in_flight_is_a_copy_and_counts() -> None:
    broker = Broker()
    accepted = broker.now
    broker.publish("a/kept", b"four", retain=True)
    broker.advance(s=5)
    boat = broker.durable("boat", "a/kept")
    boat.drop()
    found = backlog_of(broker, "boat")
    assert (found.waiting, found.size_bytes, found.oldest_ms) == (0, 6 + 4, accepted)
    broker.is_audited = False
    broker.store.write([(MAILBOX, mailbox_key("boat", 1), b"damaged")])
    assert backlog_of(broker, "boat").size_bytes == 0


@pytest.mark.parametrize("is_copy_older", [True, False])
def test_the_oldest_in_flight_may_be_a_copy_or_in_the_log(is_copy_older: bool) -> None:
    broker = Broker()
    times = []
    boat = broker.durable("boat", "log")
    for is_copy in (is_copy_older, not is_copy_older, True):
        times.append(broker.now)
        broker.publish(f"kept/{len(times)}" if is_copy else "log", retain=is_copy)
        broker.advance(s=1)
    boat.subscribe("kept/+", qos=1)
    boat.drop()
    for with_bytes in (True, False):
        assert backlog_of(broker, "boat", with_bytes=with_bytes).oldest_ms == times[0]


def test_only_what_came_after_a_subscription_counts() -> None:
    broker = Broker(max_inflight=1)
    boat = broker.durable("boat", "a")
    broker.publish("a")  # in flight from now on, so the position stays here
    broker.publish("b")
    broker.publish("a")
    boat.subscribe("b", qos=1)
    broker.publish("b")
    assert backlog_of(broker, "boat").waiting == 2


def test_sessions_that_share_streams_are_counted_as_each_alone() -> None:
    broker = Broker()
    chance = random.Random(7)
    filters = (("a",), ("a", "b"), ("#",))
    publisher = broker.connect("p")
    for number in range(12):
        broker.durable(f"c{number:02}", *filters[number % 3]).drop()
        publisher.publish("a", b"x", 1)
        publisher.publish("b", b"x", 1)
    for _ in range(200):
        publisher.publish(chance.choice("abc"), b"x" * chance.randrange(9), 1)
        if chance.random() < 0.2:
            client = broker.connect(f"c{chance.randrange(12):02}", expiry=3600)
            if chance.random() < 0.3:
                client.stop_taking()  # its position stays, but its new filter begins here
                client.send(Subscribe(9, [Subscription("c", 1)]))
            else:
                client.receive_all()
            client.drop()
    together = {
        report.session.client_id: report.backlog
        for report in Inventory(broker.store).sessions(with_bytes=True)
    }
    alone = {client_id: backlog_of(broker, client_id) for client_id in together}
    assert len({each.waiting for each in alone.values()}) > 4
    for client_id, expected in alone.items():
        found = together[client_id]
        assert (found.waiting, found.size_bytes, found.oldest_ms) == (
            expected.waiting, expected.size_bytes, expected.oldest_ms,
        )  # fmt: skip


def test_counts_are_the_same_when_little_is_remembered() -> None:
    broker = Broker()
    for number in range(9):
        broker.durable(f"c{number}", "a" if number % 2 else "#").drop()
        broker.publish("a" if number % 3 else "b")
    inventory = Inventory(broker.store)
    backlogs = Backlogs(broker.store, inventory.log, points_max=3)
    for report in inventory.sessions():
        streams = inventory.streams(report.session)
        found = backlogs.count(report.session, streams, with_bytes=False)
        assert found.waiting == report.backlog.waiting
        assert found.waiting == backlog_of(broker, report.session.client_id).waiting > 0


def test_messages_that_cannot_be_read_count_without_bytes() -> None:
    broker = Broker()
    broker.durable("boat", "a").drop()
    accepted = []
    for number in range(4):
        accepted.append(broker.now)
        broker.publish("a", b"%d" % number)
        broker.advance(s=1)
    broker.is_audited = False
    broker.store.write([("msg.1", (1).to_bytes(8, "big"), b"damaged")])
    found = backlog_of(broker, "boat")
    assert (found.waiting, found.size_bytes, found.oldest_ms) == (4, 6, accepted[1])
    assert backlog_of(broker, "boat", with_bytes=False).waiting == 4
    for offset in (2, 3, 4):
        broker.store.write([("msg.1", offset.to_bytes(8, "big"), b"damaged")])
    found = backlog_of(broker, "boat")
    assert (found.waiting, found.size_bytes, found.oldest_ms) == (4, 0, 0)


def test_what_an_operator_has_dropped_by_topic_does_not_count() -> None:
    broker = Broker(max_inflight=1)
    boat = broker.durable("boat", "#")
    broker.publish("a", b"in flight")
    boat.drop()
    for topic in ("a", "bb", "a", "bb"):
        broker.publish(topic, b"12345")
    broker.engine.administer(broker.now).purge("boat", "olga", topic="a")
    broker.advance(ms=1)
    found = backlog_of(broker, "boat")
    assert (found.waiting, found.size_bytes) == (2, 1 + len(b"in flight") + 2 * (2 + 5))
    broker.durable("boat").receive_all()
    assert backlog_of(broker, "boat").waiting == 0


def test_what_is_in_a_gap_does_not_count() -> None:
    broker = with_a_gap()
    for with_bytes in (True, False):
        found = backlog_of(broker, "boat", with_bytes=with_bytes)
        assert found.waiting == 4
        assert found.size_bytes == (4 * 2 if with_bytes else None)
        assert found.generations == 0b111, "the gap has freed the others"


@pytest.mark.parametrize("seed", range(5))
def test_gaps_count_as_if_their_messages_were_not_there(seed: int) -> None:
    chance = random.Random(seed)
    broker = Broker(store_qos0=True)
    broker.durable("boat", "a", "b/#", "+").drop()
    publisher = broker.connect("p")
    for _ in range(6):
        publish_each(publisher, chance.choices(["a", "b", "b/c", "d"], k=20))
        broker.engine.rotate(broker.now)
        broker.advance(s=1)
    inventory = Inventory(broker.store)
    report, log = inventory.session("boat"), inventory.log
    assert report is not None and log is not None
    session, streams = report.session, inventory.streams(report.session)
    backlogs = Backlogs(broker.store, log)
    for _ in range(60):
        gaps: Gaps = NO_GAPS
        for _ in range(chance.randrange(5)):
            first = chance.randrange(1, log.end + 1)
            gaps = add(gaps, first, min(log.end, first + chance.randrange(50))) or gaps
        session.gaps, session.position = gaps, chance.randrange(log.end)
        cursor = log.cursor(streams, session.position)
        messages: list[Message] = []
        while not cursor.is_at_end:
            page = cursor.next(50)
            messages += [each for each in page if not covers(gaps, each.offset, each.offset)]
        found = backlogs.count(session, streams, with_bytes=True)
        assert found.waiting == len(messages)
        assert found.size_bytes == sum(len(each.topic) + 5 for each in messages)
        assert found.oldest_ms == (messages[0].accepted_at_ms if messages else 0)
        needed = {backlogs.bit_of(message.offset) for message in messages}
        assert found.generations == sum(needed)
