"""A new subscription gets the retained messages that match, in slices, each once."""

import pytest

from mqtt.packets import Publish, Subscribe, Subscription
from tests.session.harness import Broker
from tests.session.messages import retain, topics_of


def test_they_carry_the_flag_and_live_messages_do_not() -> None:
    broker = Broker()
    retain(broker, "t")
    client = broker.clean("c", "t", qos=1)
    assert client.message().retain
    broker.publish("t", b"live", retain=True)
    assert not client.message().retain


@pytest.mark.parametrize(("stored", "granted"), [(0, 2), (1, 0), (2, 1), (2, 2)])
@pytest.mark.parametrize("durable", [True, False])
def test_they_are_sent_at_the_lower_of_both_qos(stored: int, granted: int, durable: bool) -> None:
    broker = Broker()
    retain(broker, "t", qos=stored)
    client = (broker.durable if durable else broker.clean)("c", "t", qos=granted)
    assert client.message().qos == min(stored, granted)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_published_after_subscribing_is_not_sent_a_second_time(qos: int) -> None:
    broker = Broker()
    retain(broker, "t", "u")
    client, publisher = broker.connect("c"), broker.connect("p")
    with broker.one_tick():
        client.send(Subscribe(1, [Subscription("#", 2)]))
        publisher.send(Publish("t", b"new", qos, True, packet_id=1 if qos else 0))
    assert sorted(client.receive_all()) == [b"new", b"u"]


def test_what_no_local_keeps_back_live_comes_as_a_retained_message() -> None:
    broker = Broker()
    retain(broker, "t")
    client = broker.connect("c")
    client.send(
        Subscribe(1, [Subscription("t", 1, no_local=True)]),
        Publish("t", b"own", 1, True, packet_id=1),
    )
    assert client.receive_all() == [b"own"]


def test_a_message_replaced_while_others_are_sent_comes_once() -> None:
    broker = Broker()
    retain(broker, *(f"t/{number}" for number in range(10)))
    client = broker.connect("c", receive_maximum=1)
    client.subscribe("t/#", qos=1)
    first = client.message()
    assert first.payload == b"t/0"
    broker.publish("t/9", b"new", retain=True)
    client.acknowledge(first)
    received = client.receive_all()
    assert received.count(b"new") == 1 and b"t/9" not in received and len(received) == 9


def test_a_replaced_message_comes_once_to_its_publisher_and_to_those_beside_it() -> None:
    """The publisher has No Local: it gets the new one as a retained message, the others live."""
    broker = Broker()
    retain(broker, *(f"t/{number}" for number in range(10)))
    before, publisher, after = (broker.connect(name, receive_maximum=1) for name in "bpa")
    for client in (before, publisher, after):
        client.subscribe("t/#", qos=1, no_local=client is publisher)
    publisher.send(Publish("t/9", b"new", 1, True, packet_id=1))
    for client in (before, publisher, after):
        received = client.receive_all()
        assert received.count(b"new") == 1 and b"t/9" not in received and len(received) == 10


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("durable", [True, False])
def test_all_of_many_are_sent_whatever_the_window(qos: int, durable: bool) -> None:
    broker = Broker()
    topics = [f"a/{number:04}/b" for number in range(300)]
    retain(broker, *topics, *(f"a/{number:04}/c" for number in range(0, 300, 7)))
    client = broker.connect("c", expiry=100 if durable else 0, receive_maximum=3)
    client.subscribe("a/+/b", qos=qos)
    assert topics_of(client) == topics


@pytest.mark.parametrize("pattern", ["t/{}", "t/{}/+"])
def test_many_filters_without_retained_messages_cost_few_batches(pattern: str) -> None:
    broker = Broker()
    retain(broker, "elsewhere")
    client = broker.durable("c")
    written = broker.engine.written
    assert client.subscribe(*(pattern.format(n) for n in range(2000)), qos=1) == [1] * 2000
    assert broker.engine.written - written < 20


def test_many_filters_are_answered_in_their_order() -> None:
    broker = Broker()
    topics = [f"t/{number:03}" for number in range(200)]
    retain(broker, *topics)
    client = broker.durable("c", receive_maximum=7)
    client.subscribe(*reversed(topics), qos=1)
    assert client.receive_all() == [topic.encode() for topic in reversed(topics)]


@pytest.mark.parametrize("crash", [True, False])
def test_what_a_subscribe_is_still_owed_comes_after_a_resume(crash: bool) -> None:
    broker = Broker()
    topics = [f"t/{number}" for number in range(8)]
    retain(broker, *topics)
    client = broker.durable("c", receive_maximum=2)
    client.subscribe("t/#", qos=1)
    done = client.messages()
    client.acknowledge(*done)
    seen = [message.payload.decode() for message in done]
    if crash:
        broker.advance(s=1)
        broker.restart()
    else:
        client.drop()
    client = broker.durable("c")
    assert sorted(seen + topics_of(client)) == topics
    assert broker.rows("mailbox") == []


def test_unsubscribing_ends_the_sending() -> None:
    broker = Broker()
    retain(broker, *(f"t/{number}" for number in range(8)))
    client = broker.durable("c", receive_maximum=2)
    client.subscribe("t/#", qos=1)
    done = client.messages()
    client.unsubscribe("t/#")
    client.acknowledge(*done)
    client.expect_nothing()
