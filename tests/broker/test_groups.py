"""Shared subscriptions: one member gets each message, and none of them is lost [MQTT-4.8.2]."""

from tests.broker.harness import Broker


def test_a_group_is_stored_from_its_first_stored_member_on() -> None:
    broker = Broker()
    passing = broker.clean("passing", "$share/g/t", qos=1)
    broker.publish("t", b"1")  # the route of the topic is cached without a stream
    assert passing.receive_all() == [b"1"]
    staying = broker.durable("staying", "$share/g/t")
    passing.disconnect()
    staying.drop()
    broker.publish("t", b"2")
    broker.restart()
    assert broker.durable("staying").receive_all() == [b"2"]
