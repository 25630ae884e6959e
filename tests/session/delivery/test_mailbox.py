"""A retained message in flight keeps its bytes over replacement and crash, and leaves no row."""

import pytest

from mqtt.packets import Publish, Subscribe, Subscription
from tests.session.harness import Broker
from tests.session.messages import in_flight, retain


def test_a_retained_copy_that_was_acknowledged_just_before_a_crash_is_not_sent_again() -> None:
    broker = Broker()
    broker.publish("t", b"R", retain=True)
    client = broker.durable("c", "t")
    client.acknowledge(client.message())
    broker.restart()  # the row of the copy is gone, the record still names it
    client = broker.durable("c")
    client.expect_nothing()
    assert in_flight(client) == 0


def test_a_copy_in_flight_keeps_its_message_when_the_topic_gets_a_new_one() -> None:
    broker = Broker()
    retain(broker, "t", qos=2)
    client = broker.durable("c", "t", qos=2)
    message = client.message()
    client.unsubscribe("t")
    broker.publish("t", b"new", retain=True)
    client.drop()
    broker.restart()
    client = broker.durable("c")
    assert client.message() == Publish(
        "t", b"t", 2, retain=True, dup=True, packet_id=message.packet_id
    )
    client.acknowledge(message)
    assert broker.rows("mailbox") == []


def test_a_session_that_ends_leaves_no_copies_behind_even_if_the_disk_is_full() -> None:
    broker = Broker()
    retain(broker, "t")
    client = broker.durable("c")
    broker.hold_commits()
    with broker.one_tick():
        client.send(Subscribe(1, [Subscription("t", 1)]))
        broker.engine.end_tick(broker.now)
        broker.store.full = True
        client.disconnect(session_expiry_interval=0)
    broker.store.full = False
    broker.advance(s=1)
    broker.commit()
    assert broker.rows("sessions") == [] and broker.rows("mailbox") == []


@pytest.mark.parametrize("identifier", [0, 1, 268_435_455])
def test_a_copy_sent_again_has_the_identifier_of_its_subscription(identifier: int) -> None:
    broker = Broker()
    retain(broker, "t")
    client = broker.durable("c")
    client.subscribe("t", qos=1, identifier=identifier)
    wanted = (identifier,) if identifier else ()
    assert client.message().subscription_identifiers == wanted
    client.drop()
    broker.restart()
    again = broker.durable("c").message()
    assert again.dup and again.subscription_identifiers == wanted
