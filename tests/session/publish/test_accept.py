"""What becomes of an accepted message: stored once, retained, handed to everybody who is there."""

import pytest

from mqtt import reasons
from mqtt.message import Message
from mqtt.packets import Puback, Publish, Pubrec
from storage.errors import Recoverable
from storage.tables.feed_rows import FeedEvent, message_of
from tests.session.feed.backends import feed, take
from tests.session.harness import Broker, will


def stored(broker: Broker) -> int:
    """Return how many messages are in the log."""
    return sum(
        len(broker.rows(family)) for family in broker.store.families() if family.startswith("msg.")
    )


def test_a_message_is_stored_once_for_any_number_of_sessions() -> None:
    broker = Broker()
    for number in range(10):
        broker.durable(f"c{number}", "t", "#").drop()
    broker.publish("t")
    assert stored(broker) == 1
    assert len(broker.rows("idx.1")) == 2  # one per distinct filter


def test_a_message_nobody_durable_wants_is_not_stored() -> None:
    broker = Broker()
    broker.clean("c", "t", qos=2)
    broker.durable("zero", "t", qos=0)
    broker.publish("t")
    broker.publish("elsewhere")
    assert stored(broker) == 0


def test_everything_is_stored_if_the_operator_says_so() -> None:
    broker = Broker(store="all")
    broker.publish("elsewhere", qos=1)
    broker.publish("elsewhere", qos=0)
    assert stored(broker) == 1


def test_qos_0_is_not_stored() -> None:
    broker = Broker()
    broker.durable("c", "t")
    broker.publish("t", qos=0)
    assert stored(broker) == 0


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback(1, 0x10)), (2, Pubrec(1, 0x10))])
def test_a_v5_publisher_learns_that_nobody_subscribes(qos: int, answer: object) -> None:
    broker = Broker()
    assert broker.connect("p").start_publish("t", b"", qos) == answer
    assert broker.counters.unmatched_messages == 1


@pytest.mark.parametrize("subscriber", ["live", "offline", "group"])
def test_a_subscriber_of_any_kind_is_a_match(subscriber: str) -> None:
    broker = Broker()
    if subscriber == "live":
        broker.clean("c", "t")
    elif subscriber == "offline":
        broker.durable("c", "t").drop()
    else:
        broker.clean("c", "$share/g/t")
    assert broker.connect("p").publish("t", b"", 1) == Puback(1)


def test_a_v4_publisher_gets_a_plain_answer_whoever_subscribes() -> None:
    broker = Broker()
    publisher = broker.connect("p", version=4)
    publisher.send(Publish("t", b"", 1, packet_id=1))
    assert publisher.stream.data == b"\x40\x02\x00\x01"


# The disk


@pytest.mark.parametrize("qos", [1, 2])
def test_below_the_low_water_mark_what_needs_the_disk_is_refused(qos: int) -> None:
    broker = Broker()
    broker.durable("c", "t", qos=2)
    broker.engine.note_disk_space(is_low=True)
    publisher = broker.connect("p")
    answer = publisher.start_publish("t", b"1", qos, packet_id=3)
    assert answer == (Puback if qos == 1 else Pubrec)(3, reasons.QUOTA_EXCEEDED)
    answer = publisher.start_publish("other", b"1", qos, packet_id=3, retain=True)
    assert answer == (Puback if qos == 1 else Pubrec)(3, reasons.QUOTA_EXCEEDED)
    broker.engine.note_disk_space(is_low=False)
    assert publisher.start_publish("t", b"1", qos, packet_id=3) == (Puback if qos == 1 else Pubrec)(
        3
    )
    assert broker.counters.dropped["storage_refused"] == 2


@pytest.mark.parametrize("qos", [1, 2])
def test_below_the_low_water_mark_a_v4_publisher_is_closed_without_an_answer(qos: int) -> None:
    broker = Broker()
    session = broker.durable("c", "t", qos=2)
    broker.engine.note_disk_space(is_low=True)
    publisher = broker.connect("p", version=4)
    publisher.start_publish("t", b"1", qos)
    publisher.expect_closed()
    session.expect_nothing()


def test_below_the_low_water_mark_what_needs_no_disk_goes_on() -> None:
    broker = Broker()
    durable = broker.durable("durable", "t")
    clean = broker.clean("clean", "u", qos=2)
    broker.engine.note_disk_space(is_low=True)
    publisher = broker.connect("p")
    publisher.publish("u", b"1", 2)
    assert clean.receive_all() == [b"1"]
    publisher.publish("t", b"0", 0)
    assert durable.payloads() == [b"0"]
    durable.ping()


def test_below_the_low_water_mark_what_is_stored_is_still_delivered() -> None:
    broker = Broker()
    broker.durable("c", "t", qos=2).drop()
    broker.publish("t", b"1", 2)
    broker.engine.note_disk_space(is_low=True)
    assert broker.durable("c").receive_all() == [b"1"]


def test_subscriptions_are_not_added_below_the_low_water_mark_but_replaced() -> None:
    broker = Broker()
    durable = broker.durable("durable", "t")
    four = broker.durable("four", version=4)
    broker.engine.note_disk_space(is_low=True)
    assert durable.subscribe("t", "u", qos=0) == [0, reasons.QUOTA_EXCEEDED]
    assert four.subscribe("u") == [0x80]
    assert broker.connect("clean").subscribe("u", qos=2) == [2]
    assert durable.unsubscribe("t") == [0]


def test_a_refused_batch_is_written_later_and_nothing_is_acknowledged_meanwhile() -> None:
    broker = Broker()
    broker.durable("c", "t", qos=2).drop()
    publisher = broker.connect("p")
    broker.store.full = True
    publisher.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 2, packet_id=2))
    publisher.expect_nothing()
    assert isinstance(broker.engine.refused_by, Recoverable)
    publisher.send(Publish("t", b"3", 1, packet_id=3))  # refused from now on
    publisher.expect_nothing()
    broker.advance(s=5)
    publisher.expect_nothing()
    broker.store.full = False
    broker.advance(ms=100)
    publisher.expect(Puback(1), Pubrec(2), Puback(3, reasons.QUOTA_EXCEEDED))
    assert broker.engine.refused_by is None
    assert publisher.start_publish("t", b"4", 1, packet_id=4) == Puback(4)
    assert broker.durable("c").receive_all() == [b"1", b"2", b"4"]


def test_a_crash_while_writes_are_refused_loses_nothing_acknowledged() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.publish("t", b"1")
    publisher = broker.connect("p")
    broker.store.full = True
    publisher.send(Publish("t", b"2", 1, packet_id=1))
    publisher.expect_nothing()
    broker.restart()
    assert broker.durable("c").receive_all() == [b"1"]


def test_an_idle_broker_tries_a_refused_batch_again_by_itself() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    broker.store.full = True
    broker.hold_commits()
    session.unsubscribe("t")
    broker.advance(s=10)
    broker.store.full = False
    broker.advance(ms=200)
    broker.commit()
    assert broker.rows("subscriptions") == []


def test_a_storm_of_connects_does_not_try_the_refused_batch_again_and_again() -> None:
    broker = Broker()
    broker.durable("there").drop()
    broker.store.full = True
    broker.request("first", expiry=100)
    calls = broker.store.io_calls
    for _ in range(50):
        assert broker.refused("there", expiry=100) == reasons.SERVER_UNAVAILABLE
    assert broker.store.io_calls - calls < 150  # each looks for its session, no more
    broker.store.full = False
    broker.advance(ms=100)
    broker.durable("there").ping()


# Limits that are no matter of the disk


def test_a_full_store_refuses_no_qos_0_but_does_not_keep_it() -> None:
    broker = Broker(total_bytes_max=150, on_limit="reject", store_qos0=True)
    broker.durable("c", "t").drop()
    for _ in range(30):
        broker.publish("t", b"0", 0)
    assert stored(broker) < 10
    assert broker.counters.dropped["total_limit"] > 20


def test_a_will_over_a_limit_is_dropped_and_not_tried_for_ever() -> None:
    broker = Broker(retained_messages_max=1)
    broker.publish("t", b"R", retain=True)
    watcher = broker.clean("w", "will/#", qos=1)
    broker.connect("c", will=will("will/c", retain=True)).drop()
    broker.advance(s=10)
    watcher.expect_nothing()
    assert broker.rows("due") == []
    assert broker.counters.wills["refused"] == 1


def test_a_dropped_message_had_a_subscriber() -> None:
    """0x10 would tell the publisher that nobody wants it."""
    broker = Broker(total_bytes_max=300, on_limit="drop_new")
    broker.durable("c", "t").drop()
    publisher = broker.connect("p")
    codes = [getattr(publisher.publish("t", b"x" * 50, 1), "reason_code", None) for _ in range(20)]
    assert broker.counters.dropped["total_limit"] > 0
    assert set(codes) == {reasons.SUCCESS}


def test_a_run_with_qos_0_that_only_a_store_wants_is_accepted_together() -> None:
    broker = Broker(feeds=feed(kinds=0, qos0=("t",)))
    message = Message("t", b"", 0, False, b"", "c", broker.now, 0)
    publishing = broker.engine._publishing
    payloads = [b"1", b"2", b"3"]
    accepted = publishing.accept_run(message, payloads, 3, publishing.route("t"), None)
    assert accepted is not None and accepted.reason_code == reasons.SUCCESS
    broker.advance(1000)
    rows = take(broker)
    assert [message_of(row).payload for row in rows if isinstance(row, FeedEvent)] == payloads


def test_messages_with_qos_0_do_not_go_to_stores_while_new_state_is_refused() -> None:
    broker = Broker(feeds=feed(kinds=0, qos0=("t",)))
    receiver, client = broker.clean("r", "t"), broker.connect("c")
    broker.engine.note_disk_space(is_low=True)
    client.publish("t", b"x", 0)
    assert receiver.payloads() == [b"x"]
    assert broker.counters.dropped["storage_refused"] == 1
    broker.advance(1000)
    assert take(broker) == []
