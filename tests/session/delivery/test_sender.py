"""A message leaves with a free packet id, and never before the commit it depends on."""

import pytest

from mqtt.packets import Publish, Subscribe, Subscription
from session.live.commit_gate import REPLY_COST
from tests.session.harness import Broker
from tests.session.messages import publish


def test_a_live_qos_0_message_does_not_overtake_the_retained_one() -> None:
    broker = Broker()
    broker.publish("t", b"old", 0, retain=True)
    client = broker.connect("c", expiry=100)
    publisher = broker.connect("p")
    broker.hold_commits()
    client.send(Subscribe(1, [Subscription("t", 0)]))
    publisher.send(Publish("t", b"new", 0))
    broker.commit()
    assert client.payloads() == [b"old", b"new"]


def test_qos_2_messages_that_wait_for_a_commit_are_bounded() -> None:
    broker = Broker(out_buffer_bytes_max=2000)
    client = broker.durable("c", "t", qos=2)
    publisher = broker.connect("p")
    broker.hold_commits()
    payloads = [bytes([number]) * 400 for number in range(50)]
    for number, payload in enumerate(payloads):
        publisher.send(Publish("t", payload, 2, packet_id=number + 1))
    assert client.connection.waiting_size() < 2000 + 500 + REPLY_COST * 8
    broker.commit()
    assert client.receive_all() == payloads


def test_qos_0_behind_a_commit_that_does_not_come_is_bounded() -> None:
    broker = Broker(held_bytes_max=1000)
    client = broker.durable("c", "t", qos=2)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"", 2, packet_id=1))
    for _ in range(100):
        publisher.send(Publish("t", b"x" * 100, 0))
    assert client.connection.waiting_size() < 1500
    assert broker.counters.dropped["slow_consumer"] > 80
    broker.commit()
    assert client.connection.waiting_size() == 0


def test_packet_ids_go_round_and_pass_over_those_in_flight() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    session = client.connection.session
    assert session is not None
    publish(broker, [b"stays"])
    assert client.message().packet_id == 1
    session.next_packet_id = 65_535
    publish(broker, [b"last", b"first"])
    assert [message.packet_id for message in client.messages()] == [65_535, 2]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_was_sent_does_not_expire_any_more(qos: int) -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", qos, message_expiry_interval=5)
    client.message()
    client.drop()
    broker.advance(s=10)
    again = broker.durable("c").message()
    assert again.dup and again.message_expiry_interval == 0


def test_a_message_that_waits_for_its_commit_sets_no_alias() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2, topic_alias_maximum=5)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"2", 2, packet_id=1))
    publisher.send(Publish("t", b"0", 0))
    broker.commit()
    assert [(m.topic, m.topic_alias) for m in client.messages()] == [("t", 0), ("t", 1)]


def test_messages_that_waited_are_counted_when_they_leave() -> None:
    broker = Broker(max_inflight=1)
    client = broker.durable("c", "t", qos=2)
    publish(broker, [b"1", b"2", b"3"], qos=1)
    publish(broker, [b"4", b"5"], qos=2)
    assert broker.counters.messages_sent == [0, 1, 0]
    client.receive_all()
    assert broker.counters.messages_sent == [0, 3, 2]
