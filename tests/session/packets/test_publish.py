"""PUBLISH and PUBREL: the answer to each QoS, the receive maximum, access, topic aliases."""

import pytest

from mqtt import reasons
from mqtt.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from tests.session.harness import Broker

PROTOCOL = reasons.PROTOCOL_ERROR


# PUBLISH


@pytest.mark.parametrize("version", [4, 5])
def test_each_qos_has_its_answer(version: int) -> None:
    broker = Broker()
    broker.clean("reader", "t")
    client = broker.connect("c", version=version)
    client.send(Publish("t", b"0", 0))
    client.expect_nothing()
    client.send(Publish("t", b"1", 1, packet_id=9))
    client.expect(Puback(9))
    client.send(Publish("t", b"2", 2, packet_id=9))
    client.expect(Pubrec(9))
    client.send(Pubrel(9))
    client.expect(Pubcomp(9))


@pytest.mark.parametrize("durable", [True, False])
def test_a_qos_2_message_sent_again_is_not_delivered_again_even_if_it_differs(
    durable: bool,
) -> None:
    broker = Broker()
    reader = broker.clean("reader", "#", qos=2)
    client = broker.connect("c", expiry=100 if durable else 0)
    client.send(Publish("t", b"1", 2, packet_id=9))
    client.expect(Pubrec(9))
    client.send(Publish("u", b"other", 2, dup=True, packet_id=9))
    client.expect(Pubrec(9))
    client.send(Pubrel(9))
    client.expect(Pubcomp(9))
    assert reader.receive_all() == [b"1"]
    client.send(Publish("t", b"2", 2, packet_id=9))
    client.expect(Pubrec(9))
    assert reader.receive_all() == [b"2"]


@pytest.mark.parametrize("crash", [True, False])
def test_a_qos_2_exchange_goes_on_over_connections(crash: bool) -> None:
    broker = Broker()
    broker.durable("reader", "t", qos=2).drop()
    client = broker.durable("c")
    client.start_publish("t", b"1", 2, packet_id=9)
    if crash:
        broker.restart()
    else:
        client.drop()
    client = broker.durable("c")
    assert client.start_publish("t", b"1", 2, dup=True, packet_id=9) == Pubrec(9)
    client.send(Pubrel(9))
    client.expect(Pubcomp(9))
    assert broker.durable("reader").receive_all() == [b"1"]


@pytest.mark.parametrize("version", [4, 5])
def test_pubrel_for_an_unknown_id_is_answered_and_the_connection_stays(version: int) -> None:
    client = Broker().connect("c", version=version)
    client.send(Pubrel(9))
    client.expect(Pubcomp(9, 0x92 if version == 5 else 0))
    client.ping()


def test_more_open_messages_than_announced_are_too_many() -> None:
    broker = Broker(receive_maximum=3)
    client = broker.connect("c")
    for packet_id in (1, 2, 3):
        client.send(Publish("t", b"", 2, packet_id=packet_id))
    client.send(Publish("t", b"", 2, dup=True, packet_id=3))  # no new one
    client.take()
    client.send(Publish("t", b"", 2, packet_id=4))
    client.expect_closed(reasons.RECEIVE_MAXIMUM_EXCEEDED)


@pytest.mark.parametrize("end", ["pubrel", "refused"])
def test_an_exchange_that_ended_makes_room_for_another(end: str) -> None:
    broker = Broker(receive_maximum=1)
    client = broker.connect("c")
    for packet_id in range(1, 5):
        client.send(Publish("$SYS/x" if end == "refused" else "t", b"", 2, packet_id=packet_id))
        if end == "pubrel":
            client.send(Pubrel(packet_id))
    client.ping()
    assert not client.is_closed


def test_qos_1_messages_waiting_for_their_commit_are_open() -> None:
    broker = Broker(receive_maximum=3)
    broker.durable("reader", "t").drop()
    client = broker.connect("c")
    broker.hold_commits()
    client.send(*[Publish("t", b"", 1, packet_id=n) for n in (1, 2, 3)])
    broker.commit()
    client.expect(Puback(1), Puback(2), Puback(3))
    broker.hold_commits()
    client.send(*[Publish("t", b"", 1, packet_id=n) for n in (4, 5, 6, 7)])
    client.expect_closed(reasons.RECEIVE_MAXIMUM_EXCEEDED)


def test_qos_0_is_never_too_many() -> None:
    broker = Broker(receive_maximum=1)
    client = broker.connect("c")
    client.send(*[Publish("t", b"", 0)] * 50)
    client.ping()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("settings", "packet", "reason_code"),
    [
        ({"maximum_qos": 1}, Publish("t", b"", 2, packet_id=1), reasons.QOS_NOT_SUPPORTED),
        ({"maximum_qos": 0}, Publish("t", b"", 1, packet_id=1), reasons.QOS_NOT_SUPPORTED),
        (
            {"retain_available": False},
            Publish("t", b"", 0, retain=True),
            reasons.RETAIN_NOT_SUPPORTED,
        ),
    ],
)
def test_what_connack_has_excluded_is_a_protocol_error(
    version: int, settings: dict[str, object], packet: Publish, reason_code: int
) -> None:
    client = Broker(**settings).connect("c", version=version)
    client.send(packet)
    client.expect_closed(reason_code)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_topic_with_too_many_levels_is_refused(qos: int) -> None:
    broker = Broker(topic_levels_max=3)
    client = broker.connect("c")
    kind = Puback if qos == 1 else Pubrec
    assert client.start_publish("a/b/c/d", b"", qos, packet_id=7) == kind(
        7, reasons.TOPIC_NAME_INVALID
    )
    client.publish("a/b/c", b"", qos)
    client.send(Publish("a/b/c/d", b"", 0))
    client.expect_closed(reasons.TOPIC_NAME_INVALID)


def test_clients_exchange_nothing_over_dollar_topics() -> None:
    broker = Broker()
    reader = broker.clean("reader", "$foo/#")
    client = broker.connect("c")
    for number, topic in enumerate(("$foo/x", "$SYS/x", "$share/g/t"), 1):
        assert client.publish(topic, b"", 1) == Puback(number, reasons.NOT_AUTHORIZED)
    reader.expect_nothing()


def test_a_payload_that_is_not_the_text_it_says_is_forwarded_unaltered() -> None:
    broker = Broker()
    reader = broker.clean("reader", "t")
    broker.connect("c").publish("t", b"\xff\xfe", 0, properties=b"\x01\x01")
    assert reader.message() == Publish("t", b"\xff\xfe", properties=b"\x01\x01")


# Policies


def test_every_forbidden_message_of_one_read_is_told_with_the_topic_of_its_alias() -> None:
    broker = Broker()
    broker.rules.forbid("publish", "t")
    client = broker.connect("c")
    first = Publish("t", b"", 1, packet_id=1, topic_alias=1)
    client.send(first, *[Publish("", b"", 1, packet_id=n, topic_alias=1) for n in range(2, 5)])
    client.send(*[Publish("t", b"", 1, packet_id=n) for n in range(5, 8)], Publish("u", b"", 0))
    assert broker.denied == 7 * [("publish", "c", "", "t")]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_forbidden_publish_is_refused_and_the_connection_stays(qos: int) -> None:
    broker = Broker()
    reader = broker.clean("reader", "t", qos=2)
    broker.rules.forbid("publish", "t")
    client = broker.connect("c", username="ann")
    client.send(Publish("t", b"", qos, True, packet_id=7 if qos else 0))
    expected = {0: [], 1: [Puback(7, 0x87)], 2: [Pubrec(7, 0x87)]}[qos]
    client.expect(*expected)
    assert broker.denied == [("publish", "c", "ann", "t")]
    client.ping()
    reader.expect_nothing()
    assert broker.rows("retained") == []
    assert broker.rules.asked[-1] == ("publish", "ann", "c", "t")
    assert broker.counters.dropped["not_authorized"] == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_forbidden_v4_publish_is_acknowledged_and_dropped(qos: int) -> None:
    broker = Broker()
    reader = broker.clean("reader", "t", qos=2)
    broker.rules.forbid("publish", "t")
    client = broker.connect("c", version=4)
    client.publish("t", b"", qos)
    client.ping()
    client.expect_nothing()
    reader.expect_nothing()


# Topic aliases from clients


def test_an_alias_stands_for_the_topic_it_was_set_with_last() -> None:
    broker = Broker()
    reader = broker.clean("reader", "#")
    client = broker.connect("c")
    client.send(
        Publish("a", b"1", topic_alias=1),
        Publish("", b"2", topic_alias=1),
        Publish("b", b"3", topic_alias=1),
        Publish("", b"4", topic_alias=1),
        Publish("c", b"5", topic_alias=64),
        Publish("", b"6", topic_alias=64),
    )
    assert [(m.topic, m.payload) for m in reader.messages()] == [
        ("a", b"1"),
        ("a", b"2"),
        ("b", b"3"),
        ("b", b"4"),
        ("c", b"5"),
        ("c", b"6"),
    ]


def test_an_alias_of_a_refused_message_is_set_all_the_same() -> None:
    broker = Broker()
    reader = broker.clean("reader", "#")
    broker.rules.forbid("publish", "secret")
    client = broker.connect("c")
    client.send(Publish("secret", b"1", 1, packet_id=1, topic_alias=1))
    client.expect(Puback(1, 0x87))
    client.send(Publish("", b"2", 1, packet_id=2, topic_alias=1))
    client.expect(Puback(2, 0x87))
    client.send(Publish("t", b"3", 2, packet_id=3))
    client.send(Publish("u", b"3", 2, dup=True, packet_id=3, topic_alias=1))
    client.send(Publish("", b"4", topic_alias=1))
    assert [(m.topic, m.payload) for m in reader.messages()] == [("t", b"3"), ("u", b"4")]


def test_aliases_end_with_their_connection_and_are_no_ones_elses() -> None:
    broker = Broker()
    client = broker.durable("c")
    client.send(Publish("a", b"1", topic_alias=1))
    other = broker.connect("other")
    other.send(Publish("", b"2", topic_alias=1))
    other.expect_closed(PROTOCOL)
    client.drop()
    client = broker.durable("c")
    client.send(Publish("", b"3", topic_alias=1))
    client.expect_closed(PROTOCOL)


def test_both_directions_have_their_own_aliases() -> None:
    broker = Broker()
    client = broker.clean("c", "out/#", topic_alias_maximum=1)
    broker.publish("out/1", b"1", 0)
    client.send(Publish("in", b"2", topic_alias=1))
    client.send(Publish("out/1", b"3"))
    messages = client.messages()
    assert [(m.topic, m.topic_alias) for m in messages] == [("out/1", 1), ("", 1)]


@pytest.mark.parametrize("alias", [1, 65_535])
def test_without_aliases_announced_every_alias_is_invalid(alias: int) -> None:
    broker = Broker(topic_alias_maximum=0)
    client = broker.connect("c")
    assert client.connack is not None and client.connack.topic_alias_maximum == 0
    client.send(Publish("t", b"", topic_alias=alias))
    client.expect_closed(reasons.TOPIC_ALIAS_INVALID)


def test_a_v4_message_at_qos_0_with_too_many_levels_is_dropped() -> None:
    broker = Broker(topic_levels_max=2)
    client = broker.connect("c", version=4)
    client.send(Publish("a/b/c", b"", 0, True))
    client.ping()
    assert broker.rows("retained") == []
