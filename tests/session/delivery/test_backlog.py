"""A session that is behind reads from the store what it has missed, in order and once."""

from itertools import product

import pytest

from mqtt.packets import Publish
from session.delivery.backlog import PAGE_MAX
from session.live.commit_gate import REPLY_COST
from tests.session.harness import Broker
from tests.session.messages import in_flight, numbers, publish


def test_what_no_local_kept_away_behind_a_backlog_stays_away_after_a_crash() -> None:
    broker = Broker()
    client = broker.durable("c", receive_maximum=1)
    client.subscribe("t", qos=1, no_local=True)
    broker.publish("t", b"1")
    broker.publish("t", b"2")  # waits for room
    client.publish("t", b"own", 1)
    assert client.receive_all() == [b"1", b"2"]
    client.subscribe("t", qos=1)
    broker.advance(s=1)
    broker.restart()
    assert broker.durable("c").receive_all() == []


def test_properties_keep_their_order_through_the_store() -> None:
    properties = b"\x26\x00\x01k\x00\x01v\x03\x00\x01t\x26\x00\x01k\x00\x01w\x01\x01"
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.publish("t", b"1", properties=properties)
    broker.restart()
    assert broker.durable("c").message().properties == properties


def test_a_live_message_does_not_overtake_the_backlog() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    publish(broker, numbers(5))
    client = broker.durable("c", receive_maximum=10)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"9", 1, packet_id=1))
    broker.commit()
    assert client.receive_all() == [*numbers(5), b"9"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("durable", [True, False])
def test_order_holds_through_window_queue_and_store(qos: int, durable: bool) -> None:
    broker = Broker(pending_messages_max=5, clean_queue_messages_max=1000)
    join = broker.durable if durable else broker.clean
    client = join("c", "t", qos=2, receive_maximum=3)
    publish(broker, numbers(200), qos=qos)
    assert client.receive_all() == numbers(200)


def test_messages_published_while_a_session_drains_come_in_their_order() -> None:
    broker = Broker(pending_messages_max=2, max_inflight=2)
    client = broker.durable("c", "t")
    publish(broker, numbers(10))
    received: list[bytes] = []
    for number in range(10, 20):
        for message in client.messages():
            received.append(message.payload)
            client.acknowledge(message)
        publish(broker, numbers(1, start=number))
    assert received + client.receive_all() == numbers(20)


def test_a_session_that_is_behind_survives_a_crash() -> None:
    broker = Broker(pending_messages_max=2, max_inflight=2)
    client = broker.durable("c", "t")
    publish(broker, numbers(10))
    done = client.messages()
    client.acknowledge(*done)
    broker.advance(s=1)
    broker.restart()
    assert broker.durable("c").receive_all() == numbers(8, start=2)


def test_a_session_that_is_behind_may_disconnect_and_go_on_later() -> None:
    broker = Broker(pending_messages_max=2, max_inflight=2)
    client = broker.durable("c", "t")
    publish(broker, numbers(10))
    client.acknowledge(*client.messages())
    client.disconnect()
    client = broker.durable("c")
    publish(broker, numbers(5, start=10))
    assert client.receive_all() == numbers(13, start=2)


def test_a_slow_consumer_is_sent_nothing_until_it_has_taken_its_bytes() -> None:
    broker = Broker(pending_messages_max=2)
    client = broker.durable("c", "t")
    client.stop_taking()
    publish(broker, numbers(5))
    publish(broker, [b"zero"], qos=0)
    client.expect_nothing()
    assert broker.counters.dropped["slow_consumer"] == 1
    client.go_on_taking()
    assert client.receive_all() == numbers(5)


def test_an_offline_session_costs_no_memory_and_gets_everything() -> None:
    broker = Broker()
    broker.durable("c", "t", "u/#").drop()
    assert "c" not in broker.engine._sessions.live
    for payload in numbers(300):
        publish(broker, [payload], topic="t" if int(payload) % 3 else "u/x")
    assert broker.durable("c").receive_all() == numbers(300)


def test_a_deep_backlog_is_read_in_slices() -> None:
    broker = Broker(max_inflight=10_000)
    broker.durable("c", "t").drop()
    publish(broker, numbers(5 * PAGE_MAX))
    steps = []
    with broker.one_tick():
        client = broker.request("c", expiry=100)
        while broker.engine.end_tick(broker.now) or len(steps) < 3:
            steps.append(in_flight(client) - sum(steps))
    assert max(steps) == PAGE_MAX and sum(steps) == 5 * PAGE_MAX


def test_a_page_whose_messages_match_very_much_goes_on_where_it_stopped() -> None:
    """Is every message handled once when the rest of a page has to wait for the next tick?"""
    topic = "/".join("abcdefghi")
    patterns = ["/".join(levels) for levels in product(*((level, "+") for level in topic[::2]))]
    broker = Broker()
    reader = broker.connect("c", expiry=100)
    reader.subscribe(topic, qos=1)
    reader.drop()
    broker.clean("o", *patterns)
    publisher = broker.connect("p")
    expired, kept = numbers(60), numbers(20, start=60)
    for payload in expired:
        publisher.publish(topic, payload, 1, message_expiry_interval=1)
    for payload in kept:
        publisher.publish(topic, payload, 1, message_expiry_interval=60)
    broker.advance(s=2)
    reader = broker.connect("c", expiry=100)
    assert broker.counters.expired_messages == 60
    assert reader.receive_all() == kept


def test_qos_0_is_not_kept_for_offline_sessions() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    publish(broker, [b"zero"], qos=0)
    publish(broker, [b"one"], qos=1)
    assert broker.durable("c").receive_all() == [b"one"]


def test_qos_0_is_kept_if_the_operator_says_so() -> None:
    broker = Broker(store_qos0=True)
    broker.durable("c", "t").drop()
    publish(broker, [b"zero"], qos=0)
    publish(broker, [b"one"], qos=1)
    broker.restart()
    assert broker.durable("c").receive_all() == [b"zero", b"one"]


def test_a_stored_qos_0_message_is_delivered_once() -> None:
    broker = Broker(store_qos0=True, max_inflight=1, pending_messages_max=1)
    client = broker.durable("c", "t")
    for payload in numbers(6):
        publish(broker, [payload], qos=0 if int(payload) % 2 else 1)
    assert sorted(client.receive_all()) == numbers(6)
    client.drop()
    broker.durable("c").expect_nothing()


def test_a_backlog_behind_a_commit_that_does_not_come_is_bounded() -> None:
    broker = Broker(held_bytes_max=2000, store_qos0=True)
    client = broker.durable("c", "t")
    client.stop_taking()
    for _ in range(600):
        publish(broker, [b"x" * 100], qos=1)
    client.subscribe("t", qos=0)
    client.drop()
    broker.hold_commits()
    client = broker.request("c", expiry=100)
    broker.settle()
    assert client.connection.waiting_size() < 2000 + (PAGE_MAX + 1) * (116 + REPLY_COST)
    broker.commit()
    assert len(client.receive_all()) == 600


@pytest.mark.parametrize("restart", [True, False])
def test_an_expired_message_is_not_delivered(restart: bool) -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.publish("t", b"1", message_expiry_interval=60)
    if restart:
        broker.restart(after_ms=60_000)
    else:
        broker.advance(s=60)
    broker.durable("c").expect_nothing()
    assert broker.counters.expired_messages == 1


def test_a_message_before_a_subscription_does_not_carry_its_identifier() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1)
    client = broker.connect("c", expiry=100)
    client.subscribe("a/+", qos=1, identifier=1)
    publish(broker, numbers(4), topic="a/b")
    client.subscribe("a/#", qos=1, identifier=2)
    publish(broker, numbers(1, start=4), topic="a/b")
    seen = []
    while messages := client.messages():
        seen += [message.subscription_identifiers for message in messages]
        client.acknowledge(*messages)
    assert seen[:4] == [(1,)] * 4
    assert sorted(seen[4]) == [1, 2]


def test_what_a_dropped_generation_held_is_missing_and_counted() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1, max_age_s=60, generation_age_s=10)
    client = broker.durable("c", "t")
    publish(broker, numbers(5))
    first = client.message()
    broker.advance(s=11)
    broker.advance(s=61)
    publish(broker, [b"young"])
    client.acknowledge(first)
    assert client.receive_all() == [b"young"]
    assert broker.counters.dropped["max_age"] >= 4


def test_own_messages_in_the_backlog_are_passed_over() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1)
    client = broker.connect("c", expiry=100)
    client.subscribe("t", qos=1, no_local=True)
    publish(broker, numbers(4))
    assert client.connection.is_lagging
    client.publish("t", b"own", 1)
    publish(broker, numbers(1, start=4))
    assert client.receive_all() == numbers(5)


@pytest.mark.parametrize("count", [65, 129, 300, 1000])
def test_a_session_with_many_filters_reaches_the_end_of_a_log_that_grows(count: int) -> None:
    broker = Broker(max_inflight=10_000)
    reader = broker.durable("c", *(f"f/{number}" for number in range(count)))
    broker.durable("other", "other")
    reader.drop()
    publish(broker, numbers(3), topic="f/7")
    publisher = broker.connect("p")
    wanted = numbers(3)
    with broker.one_tick():
        client = broker.request("c", expiry=100)
        steps = 0
        while not steps or client.connection.is_lagging:
            publisher.send(Publish("other", b"x", 1, packet_id=2 * steps + 1))
            if steps % 3 == 0:
                wanted.append(b"%d" % (1000 + steps))
                packet = Publish(f"f/{steps}", wanted[-1], 1, packet_id=2 * steps + 2)
                publisher.send(packet)
            broker.engine.end_tick(broker.now)
            steps += 1
            assert steps <= count // 64 + 3
    publish(broker, [b"live"], topic="f/1")
    assert client.receive_all() == [*wanted, b"live"]
    broker.advance(s=1)
    broker.restart()
    assert broker.durable("c").receive_all() == []


def test_more_than_can_be_noted_while_a_backlog_is_read_is_read_from_there() -> None:
    broker = Broker(followed_streams=1, arrivals_max=3, max_inflight=2)
    broker.durable("c", "a", "b").drop()
    publish(broker, numbers(4), topic="a")
    client = broker.durable("c")
    publish(broker, numbers(9, start=4), topic="b")
    assert client.connection.is_lagging
    assert client.receive_all() == numbers(13)
    assert not client.connection.is_lagging
    publish(broker, [b"live"], topic="a")
    assert client.receive_all() == [b"live"]


def test_what_came_while_a_backlog_was_read_and_is_gone_is_counted() -> None:
    broker = Broker(followed_streams=1, max_inflight=1, max_age_s=60, generation_age_s=10)
    broker.durable("c", "a", "b").drop()
    publish(broker, numbers(1), topic="a")
    client = broker.durable("c")
    publish(broker, numbers(4, start=1), topic="b")
    first = client.message()
    assert client.connection.arrivals is not None
    broker.advance(s=11)
    broker.advance(s=61)
    publish(broker, [b"young"], topic="b")
    client.acknowledge(first)
    assert client.receive_all() == [b"young"]
    assert broker.counters.dropped["max_age"] >= 4


def test_a_filter_that_is_removed_while_a_backlog_is_read_gives_no_more_messages() -> None:
    broker = Broker(followed_streams=1, max_inflight=1)
    broker.durable("c", "a", "b").drop()
    publish(broker, numbers(2), topic="a")
    client = broker.durable("c")
    publish(broker, [b"of b"], topic="b")
    publish(broker, numbers(1, start=2), topic="a")
    client.unsubscribe("b")
    client.subscribe("d", qos=1)
    publish(broker, [b"of d"], topic="d")
    assert client.receive_all() == [*numbers(3), b"of d"]
