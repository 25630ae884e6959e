"""What is judged on every connection, whoever looks: order, limits, ids, filters."""

import pytest

from conformance import packets, tables, wire
from conformance.failure import Violation
from conformance.packets import Publish
from conformance.rules import Rules, matches
from conformance.wire import Property

CONNACK = {4: "20 02 00 00", 5: "20 03 00 00 00"}
RESUMED = {4: "20 02 01 00", 5: "20 03 01 00 00"}


def connected(version: int = 5, *properties: Property, connack: str | None = None) -> Rules:
    rules = Rules(version)
    rules.sent(wire.connect("x", version=version, properties=properties))
    receive(rules, connack or CONNACK[version])
    return rules


def receive(rules: Rules, text: str) -> packets.Packet:
    return rules.received(packets.parse(bytes.fromhex(text), rules.version))


def broken(rules: Rules, text: str) -> tuple[str, ...]:
    with pytest.raises(Violation) as caught:
        receive(rules, text)
    return caught.value.statements


def subscribed(version: int = 5, *properties: Property) -> Rules:
    rules = connected(version, *properties)
    rules.sent(wire.subscribe(1, [("t/#", 2)], version=version))
    receive(rules, "90 04 00 01 00 02" if version >= 5 else "90 03 00 01 02")
    return rules


def test_a_sound_conversation_breaks_nothing() -> None:
    for version in (4, 5):
        rules = subscribed(version)
        none = "00" * (version >= 5)
        receive(rules, f"30 {6 + (version >= 5):02x} 0003 742f61 {none} 41")
        rules.sent(wire.publish("t/a", version=version, qos=2, packet_id=9))
        receive(rules, "50 02 00 09")
        rules.sent(wire.pubrel(9))
        receive(rules, "70 02 00 09")
        rules.sent(wire.pingreq())
        receive(rules, "d0 00")


def test_connack_comes_first_and_once() -> None:
    rules = Rules(5)
    rules.sent(wire.connect("x", version=5))
    assert broken(rules, "d0 00") == ("MQTT-3.2.0-1",)
    receive(rules, CONNACK[5])
    assert broken(rules, CONNACK[5]) == ("MQTT-3.2.0-2",)
    assert broken(connected(4), CONNACK[4]) == ("MQTT-3.1.0-2",)


def test_disconnect_comes_after_acceptance_and_last() -> None:
    rules = Rules(5)
    rules.sent(wire.pingreq())
    assert broken(rules, "e0 01 82") == ("MQTT-3.14.0-1",)
    rules = connected()
    receive(rules, "e0 01 8b")
    assert broken(rules, "d0 00") == ("MQTT-3.14.4-1",)


def test_no_packet_exceeds_what_the_client_takes() -> None:
    rules = connected(5, (tables.MAXIMUM_PACKET_SIZE, 8))
    rules.sent(wire.publish("t", version=5, qos=1, packet_id=1) * 2)
    receive(rules, "40 02 00 01")
    long = "40 0a 00 01 10 06 1f 00 03 61 62 63"
    assert broken(rules, long) == ("MQTT-3.1.2-24", "MQTT-3.4.2-2")
    user = "40 0b 00 01 10 07 26 00 01 61 00 01 62"
    assert broken(rules, user) == ("MQTT-3.1.2-24", "MQTT-3.4.2-3")


def test_a_refusal_of_a_malformed_connect_need_not_know_its_limits() -> None:
    rules = Rules(5)
    rules.sent(wire.connect("x", version=5, properties=[(tables.MAXIMUM_PACKET_SIZE, 4)]))
    receive(rules, "20 03 00 82 00")
    rules = Rules(5)
    rules.sent(wire.connect("x", version=5, properties=[(tables.MAXIMUM_PACKET_SIZE, 4)]))
    assert broken(rules, "20 03 00 87 00") == ("MQTT-3.1.2-24",)


def test_nobody_explains_what_nobody_asked_for() -> None:
    rules = connected(5, (tables.REQUEST_PROBLEM_INFO, 0))
    rules.sent(wire.publish("t", version=5, qos=1, packet_id=1))
    assert broken(rules, "40 08 00 01 10 04 1f 00 01 61") == ("MQTT-3.1.2-29",)
    rules = Rules(5)
    rules.sent(wire.connect("x", version=5))
    assert broken(rules, "20 07 00 00 04 1a 00 01 61") == ("MQTT-3.1.2-28",)
    rules = Rules(5)
    rules.sent(wire.connect("x", version=5, properties=[(tables.REQUEST_RESPONSE_INFO, 1)]))
    receive(rules, "20 07 00 00 04 1a 00 01 61")


def test_the_authentication_method_is_the_one_of_connect_or_none() -> None:
    rules = Rules(5)
    rules.sent(wire.connect("x", version=5))
    assert broken(rules, "f0 06 18 04 15 00 01 6d") == ("MQTT-4.12.0-6",)
    assert broken(rules, "20 07 00 00 04 15 00 01 6d") == ("MQTT-4.12.0-6",)
    rules = Rules(5)
    rules.sent(wire.connect("x", version=5, properties=[(tables.AUTH_METHOD, "m")]))
    receive(rules, "f0 06 18 04 15 00 01 6d")
    assert broken(rules, "f0 06 18 04 15 00 01 6e") == ("MQTT-4.12.0-5",)
    assert broken(rules, CONNACK[5]) == ("MQTT-4.12.0-5",)


def test_topic_aliases_stay_within_the_maximum_and_are_resolved() -> None:
    rules = subscribed(5, (tables.TOPIC_ALIAS_MAXIMUM, 2))
    receive(rules, "30 09 0003 742f61 03 230001")
    again = receive(rules, "30 06 0000 03 230001")
    assert isinstance(again, Publish)
    assert (again.topic, again.wire_topic) == ("t/a", "")
    assert broken(rules, "30 06 0000 03 230002") == ("MQTT-3.3.2-7",)
    assert broken(rules, "30 09 0003 742f61 03 230003") == ("MQTT-3.1.2-26", "MQTT-3.3.2-11")
    assert broken(subscribed(), "30 09 0003 742f61 03 230001") == ("MQTT-3.1.2-27",)


def test_a_delivery_matches_a_filter_of_a_fresh_session() -> None:
    other = "30 04 0001 78 00"
    assert broken(subscribed(), other) == ("MQTT-3.3.2-3",)
    receive(connected(connack=RESUMED[5]), other)  # what a session held before is not known


def test_a_shared_filter_counts_as_the_filter_in_it() -> None:
    rules = connected()
    rules.sent(wire.subscribe(1, [("$share/g/x", 0)], version=5))
    receive(rules, "90 04 00 01 00 00")
    receive(rules, "30 04 0001 78 00")


def test_packet_ids_of_open_deliveries_differ() -> None:
    delivery = "32 08 0003 742f61 0007 00"
    rules = subscribed()
    receive(rules, delivery)
    assert broken(rules, delivery) == ("MQTT-2.2.1-4",)
    rules.sent(wire.puback(7))
    receive(rules, delivery)
    rules = subscribed(4)
    receive(rules, "32 07 0003 742f61 0007")
    assert broken(rules, "32 07 0003 742f61 0007") == ("MQTT-2.3.1-4",)


def test_nothing_is_sent_again_while_the_connection_is_up() -> None:
    rules = subscribed()
    receive(rules, "32 08 0003 742f61 0007 00")
    assert broken(rules, "3a 08 0003 742f61 0007 00") == ("MQTT-4.4.0-1",)
    rules = subscribed(4)  # 3.1.1 permits it
    receive(rules, "32 07 0003 742f61 0007")
    receive(rules, "3a 07 0003 742f61 0007")


def test_dup_on_a_first_transmission_is_seen_in_a_fresh_session() -> None:
    assert broken(subscribed(), "3a 08 0003 742f61 0007 00") == ("MQTT-3.3.1-3",)
    receive(connected(connack=RESUMED[5]), "3a 08 0003 742f61 0007 00")


def test_open_deliveries_stay_within_the_receive_maximum() -> None:
    rules = subscribed(5, (tables.RECEIVE_MAXIMUM, 2))
    for packet_id in (1, 2):
        receive(rules, f"34 08 0003 742f61 {packet_id:04x} 00")
    assert broken(rules, "34 08 0003 742f61 0003 00") == ("MQTT-3.3.4-9", "MQTT-4.9.0-2")
    rules = subscribed(5, (tables.RECEIVE_MAXIMUM, 1))
    receive(rules, "34 08 0003 742f61 0001 00")
    rules.sent(wire.pubrec(1, 0x80))  # an error settles it, a success does not
    receive(rules, "34 08 0003 742f61 0002 00")
    rules.sent(wire.pubrec(2, 0x00))
    assert "MQTT-4.9.0-2" in broken(rules, "34 08 0003 742f61 0003 00")


def test_an_acknowledgement_answers_something_that_is_open() -> None:
    for version, ids in ((4, "MQTT-2.3.1-6"), (5, "MQTT-2.2.1-5")):
        rules = connected(version)
        rules.sent(wire.publish("t", version=version, qos=1, packet_id=1))
        assert broken(rules, "40 02 00 02") == (ids,)
        assert broken(rules, "50 02 00 01") == (ids,)  # QoS 1 is not answered by PUBREC
        receive(rules, "40 02 00 01")
        assert broken(rules, "40 02 00 01") == (ids,)
        assert broken(rules, "70 02 00 01") == (ids,)
        assert broken(rules, "d0 00") == ("MQTT-3.12.4-1",)


def test_requests_are_acknowledged_with_their_id_and_a_code_each() -> None:
    rules = connected()
    rules.sent(wire.subscribe(1, [("a", 0), ("b", 0)], version=5))
    assert broken(rules, "90 05 00 02 00 00 00") == ("MQTT-3.8.4-2", "MQTT-2.2.1-6")
    assert broken(rules, "90 04 00 01 00 00") == ("MQTT-3.8.4-6",)
    rules.sent(wire.unsubscribe(1, ["a"], version=5))
    assert broken(rules, "b0 04 00 02 00 00") == ("MQTT-3.10.4-5", "MQTT-2.2.1-6")
    assert broken(rules, "b0 05 00 01 00 00 00") == ("MQTT-3.11.3-2",)
    rules = connected(4)
    rules.sent(wire.subscribe(1, [("a", 0), ("b", 0)], version=4))
    assert broken(rules, "90 03 00 01 00") == ("MQTT-3.8.4-5",)
    assert broken(rules, "b0 02 00 01") == ("MQTT-3.10.4-4", "MQTT-2.3.1-7")


def test_a_client_that_sends_garbage_is_not_judged_by_it() -> None:
    rules = connected()
    rules.sent(wire.subscribe(1, [(b"\xff", 0)], version=5))
    receive(rules, "90 04 00 09 00 00")
    receive(rules, "30 04 0001 78 00")


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matched"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+/+", "/b", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("a//b", "a/b", False),
    ],
)
def test_filters_match_as_the_texts_say(topic_filter: str, topic: str, matched: bool) -> None:
    assert matches(topic_filter, topic) is matched
