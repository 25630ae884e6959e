"""SUBSCRIBE and UNSUBSCRIBE: refusals, limits, features that are switched off, slices."""

import pytest

from broker.security.acl import LEVELS_MAX
from mqtt import reasons
from mqtt.packets import (
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from session.packets.subscribe import FILTERS_SLICE
from tests.session.harness import Broker


def test_a_forbidden_subscription_is_refused_and_the_others_are_granted() -> None:
    broker = Broker()
    broker.rules.forbid("subscribe", "secret/#")
    client = broker.durable("c", username="ann")
    assert client.subscribe("secret/#", "t", "$share/g/secret/#", qos=1) == [0x87, 1, 0x87]
    assert ("subscribe", "ann", "c", "secret/#") in broker.rules.asked
    told = [("subscribe", "c", "ann", name) for name in ("secret/#", "$share/g/secret/#")]
    assert broker.denied == told
    broker.publish("secret/x", b"1")
    broker.publish("t", b"2")
    assert client.receive_all() == [b"2"]
    four = broker.connect("four", version=4)
    assert four.subscribe("secret/#", "t", qos=2) == [0x80, 2]


# SUBSCRIBE and UNSUBSCRIBE


@pytest.mark.parametrize(
    ("topic_filter", "version", "code"),
    [
        ("a#", 5, 0x8F),
        ("#/a", 5, 0x8F),
        ("a/b+", 5, 0x8F),
        ("$share/g", 5, 0x8F),
        ("$share//t", 5, 0x8F),
        ("$share/g+/t", 5, 0x8F),
        ("$share/g/a#", 5, 0x8F),
        ("a/b/c/d/e", 5, 0x8F),
        ("a#", 4, 0x80),
        ("a/b/c/d/e", 4, 0x80),
    ],
)
def test_a_bad_filter_is_refused_on_its_own(topic_filter: str, version: int, code: int) -> None:
    broker = Broker(topic_levels_max=4)
    client = broker.connect("c", version=version)
    assert client.subscribe("t", topic_filter, "u", qos=1) == [1, code, 1]
    client.ping()


@pytest.mark.parametrize("version", [4, 5])
def test_a_filter_may_have_as_many_levels_as_mosquitto_and_the_acl_file_take(version: int) -> None:
    broker = Broker()
    most = "/" * (LEVELS_MAX - 1)
    client = broker.connect("c", version=version)
    invalid = reasons.TOPIC_FILTER_INVALID if version == 5 else 0x80
    assert client.subscribe(most, most + "/") == [0, invalid]
    assert client.subscribe("$share/g/" + most, "$share/g/" + most + "/") == [0, invalid]
    client.publish(most, b"1")
    assert set(client.payloads()) == {b"1"}


@pytest.mark.parametrize("version", [4, 5])
def test_no_more_than_the_maximum_qos_is_granted(version: int) -> None:
    client = Broker(maximum_qos=1).connect("c", version=version)
    assert client.subscribe("t", qos=2) == [1]


@pytest.mark.parametrize("version", [4, 5])
def test_a_session_may_hold_so_many_filters_and_replace_them(version: int) -> None:
    broker = Broker(subscriptions_per_session_max=2)
    client = broker.durable("c", version=version)
    full = 0x97 if version == 5 else 0x80
    assert client.subscribe("a", "b", "c", qos=1) == [1, 1, full]
    assert client.subscribe("a", qos=0) == [0]
    client.unsubscribe("b")
    assert client.subscribe("c", qos=1) == [1]


def test_the_filters_of_a_session_may_have_so_many_bytes_together() -> None:
    broker = Broker(subscription_bytes_max=10)
    client = broker.durable("c")
    assert client.subscribe("1234567", "ä", "ää") == [0, 0, 0x97]
    assert client.subscribe("1234567", qos=1) == [1]
    client.drop()
    client = broker.durable("c", clean_start=False)
    assert client.subscribe("12") == [0x97]
    client.unsubscribe("ä", "ä")
    assert client.subscribe("12", "345") == [0, 0x97]


def test_unsubscribing_answers_for_every_filter() -> None:
    broker = Broker()
    client = broker.durable("c", "a", "$share/g/b")
    assert client.unsubscribe("a", "nobody", "$share/g/b", "a", "#/bad") == [
        0x00,
        0x11,
        0x00,
        0x11,
        0x11,
    ]
    four = broker.durable("four", "a", version=4)
    four.send(Unsubscribe(9, ["a", "nobody"]))
    four.expect(Unsuback(9, []))


def test_filters_are_compared_byte_by_byte() -> None:
    broker = Broker()
    client = broker.durable("c", "a/+")
    assert client.unsubscribe("a/b", "A/+", "a/+ ") == [0x11, 0x11, 0x11]
    broker.publish("a/b", b"1")
    assert client.receive_all() == [b"1"]


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_a_request_whose_answer_the_client_cannot_take_is_refused(kind: str) -> None:
    broker = Broker()
    client = broker.connect("c", maximum_packet_size=30)
    filters = [f"t/{number}" for number in range(40)]
    if kind == "subscribe":
        client.send(Subscribe(1, [Subscription(name, 0) for name in filters]))
    else:
        client.send(Unsubscribe(1, filters))
    client.expect_closed(reasons.PACKET_TOO_LARGE)
    assert broker.engine.stats()["filters"] == 0


@pytest.mark.parametrize(
    ("setting", "topic_filter", "identifier", "code"),
    [
        ("wildcard_subscriptions", "a/+", 0, reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
        ("wildcard_subscriptions", "$share/g/#", 0, reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
        ("shared_subscriptions", "$share/g/t", 0, reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
        (
            "subscription_identifiers",
            "t",
            7,
            reasons.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        ),
    ],
)
def test_what_connack_says_is_missing_is_an_error(
    setting: str, topic_filter: str, identifier: int, code: int
) -> None:
    """Sections 3.2.2.3.11 to 13; v3.1.1 is not told and gets a failure [MQTT-3.8.3-2]."""
    broker = Broker(**{setting: False})
    client = broker.connect("c")
    assert client.connack is not None
    announced = (
        client.connack.wildcard_subscription_available,
        client.connack.shared_subscription_available,
        client.connack.subscription_identifier_available,
    )
    assert announced.count(False) == 1
    client.subscribe("plain")
    client.send(Subscribe(9, [Subscription(topic_filter, 1)], identifier))
    client.expect_closed(code)
    if not identifier:
        old = broker.connect("old", version=4)
        assert old.subscribe(topic_filter, "plain") == [0x80, 0]


def test_a_client_of_mqtt_3_1_is_not_told_of_a_refused_filter() -> None:
    """It has no code for it, and reads 0x80 as a broken packet."""
    broker = Broker()
    broker.rules.forbid("subscribe", "secret")
    client = broker.connect("c", version=3)
    client.send(Subscribe(7, [Subscription("secret", 1), Subscription("open", 2)]))
    assert client.stream.data.endswith(bytes.fromhex("90 04 0007 01 02"))
    client.take()
    broker.publish("secret", b"1")
    client.expect_nothing()


def test_a_long_subscribe_is_worked_off_in_slices_and_answered_once() -> None:
    broker = Broker()
    count = 2 * FILTERS_SLICE + 10
    client = broker.connect("c", expiry=100)
    names = [f"t/{number}" for number in range(count)] + ["bad#"]
    with broker.one_tick():
        client.send(Subscribe(5, [Subscription(name, 1) for name in names]))
        assert len(broker.engine._routes) == FILTERS_SLICE and not client.stream.is_read
    (suback,) = client.take()
    assert suback == Suback(5, [1] * count + [0x8F])
    assert client.stream.is_read and not broker.engine._dispatcher.subscriptions._unfinished
    assert broker.counters.packets_received[8] == 1
    with broker.one_tick():
        client.send(Unsubscribe(6, names), Publish("t/0", b"behind", 1, packet_id=1))
        assert len(broker.engine._routes) == count - FILTERS_SLICE
    assert client.take() == [Unsuback(6, [0] * count + [0x11]), Puback(1, 0x10)]
    assert len(broker.engine._routes) == 0


def test_a_long_subscribe_of_a_client_that_is_gone_leaves_no_answer_behind() -> None:
    broker = Broker()
    client = broker.connect("c", expiry=100)
    requests = [Subscription(f"t/{number}", 1) for number in range(2 * FILTERS_SLICE)]
    with broker.one_tick():
        client.send(Subscribe(5, requests))
        assert broker.engine._dispatcher.subscriptions._unfinished
        client.lose()
    assert not broker.engine._dispatcher.subscriptions._unfinished
    assert not broker.engine._turns.waiting
    client = broker.connect("c", expiry=100)
    assert client.connack is not None and client.connack.session_present
