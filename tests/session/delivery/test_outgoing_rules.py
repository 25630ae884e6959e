"""What a session may receive, how large and how much: rules and limits of delivery."""

import pytest

from mqtt.packets import Pubcomp, Pubrel
from tests.session.harness import Broker
from tests.session.messages import in_flight, publish

# Rules and limits


def test_a_stored_message_that_may_not_be_received_any_more_is_dropped() -> None:
    broker = Broker()
    broker.durable("c", "#", username="ann").drop()
    publish(broker, [b"1"], topic="secret")
    publish(broker, [b"2"], topic="open")
    broker.rules.forbid("receive", "secret")
    assert broker.durable("c", username="ann").receive_all() == [b"2"]
    assert ("receive", "ann", "c", "secret") in broker.rules.asked
    assert broker.counters.dropped["not_authorized"] == 1


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_live_message_is_judged_by_the_rules_of_now(durable: bool, qos: int) -> None:
    """A subscription wider than what may be received, or one held from before the rules changed."""
    broker = Broker()
    join = broker.durable if durable else broker.clean
    client = join("c", "#", qos=2)
    broker.rules.forbid("receive", "secret")
    publish(broker, [b"1"], topic="secret", qos=qos)
    publish(broker, [b"2"], topic="open", qos=qos)
    assert client.receive_all() == [b"2"]
    assert broker.counters.dropped["not_authorized"] == 1
    assert in_flight(client) == 0
    if durable:
        client.drop()
        broker.durable("c").expect_nothing()


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_that_waits_for_room_is_judged_when_it_is_sent(durable: bool) -> None:
    broker = Broker()
    join = broker.durable if durable else broker.clean
    client = join("c", "#", qos=1, receive_maximum=1)
    publish(broker, [b"1"], topic="open", qos=1)
    publish(broker, [b"2"], topic="secret", qos=1)
    publish(broker, [b"3"], topic="open", qos=1)
    broker.rules.forbid("receive", "secret")
    assert client.receive_all() == [b"1", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_in_flight_that_may_not_be_received_any_more_is_given_up(qos: int) -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    publish(broker, [b"1"], qos=qos)
    packet_id = client.message().packet_id
    client.drop()
    broker.rules.forbid("receive", "t")
    client = broker.durable("c")
    if qos == 2:
        client.expect(Pubrel(packet_id))
        client.send(Pubcomp(packet_id))
    client.expect_nothing()
    assert in_flight(client) == 0


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_for_the_client_counts_as_delivered(durable: bool, qos: int) -> None:
    broker = Broker()
    join = broker.durable if durable else broker.clean
    client = join("c", "t", qos=2, maximum_packet_size=100, receive_maximum=1)
    publish(broker, [b"x" * 100, b"1"], qos=qos)
    assert client.receive_all() == [b"1"]
    client.drop()
    if durable:
        broker.durable("c").expect_nothing()
    assert broker.counters.dropped["too_large"] == 1


def test_a_packet_of_exactly_the_largest_size_is_sent() -> None:
    broker = Broker()
    client = broker.clean("c", "t", qos=1, maximum_packet_size=50)
    publish(broker, [b"x" * 42])  # 1 + 1 + 2 + 1 + 2 + 1 + 42
    assert client.message().payload == b"x" * 42
    publish(broker, [b"x" * 43])
    client.expect_nothing()


def test_a_message_in_flight_too_large_for_the_next_connection_is_given_up() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    publish(broker, [b"x" * 100])
    client.drop()
    client = broker.durable("c", maximum_packet_size=60)
    client.expect_nothing()
    client.drop()
    broker.durable("c").expect_nothing()


def test_a_stored_message_too_large_for_this_connection_is_not_kept_for_the_next() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    publish(broker, [b"x" * 100, b"1"])
    client = broker.durable("c", maximum_packet_size=60)
    assert client.receive_all() == [b"1"]
    client.drop()
    broker.durable("c").expect_nothing()
