"""What clients send on an accepted connection, and what each packet is answered."""

import pytest

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import (
    Auth,
    Connack,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from session.packets.inbound import FILTERS_SLICE
from tests.session.harness import Broker, connect_packet, will

MALFORMED = reasons.MALFORMED_PACKET
PROTOCOL = reasons.PROTOCOL_ERROR


def frame(first: int, body: bytes) -> bytes:
    """Return a packet of less than 128 bytes."""
    return bytes((first, len(body))) + body


# Faults of the peer: section 7 of the rules


@pytest.mark.parametrize(
    ("data", "reason_code"),
    [
        (b"\x00\x00", MALFORMED),  # packet type 0
        (frame(0xC1, b""), MALFORMED),  # PINGREQ with flags
        (frame(0x60, b"\x00\x01"), MALFORMED),  # PUBREL without its flags
        (frame(0x80, b"\x00\x01\x00\x00\x01t\x00"), MALFORMED),  # SUBSCRIBE without its flags
        (b"\x30\xff\xff\xff\xff\x01", MALFORMED),  # remaining length of five bytes
        (frame(0x36, b"\x00\x01t\x00\x01\x00"), MALFORMED),  # QoS 3
        (frame(0x38, b"\x00\x01t\x00"), MALFORMED),  # DUP at QoS 0
        (frame(0x30, b"\x00\x05t\x00"), MALFORMED),  # topic past the end
        (frame(0x30, b"\x00\x01\xff\x00"), MALFORMED),  # bad UTF-8
        (frame(0x30, b"\x00\x01\x00\x00"), MALFORMED),  # U+0000
        (frame(0x30, b"\x00\x01t\x02\x1f\x00"), MALFORMED),  # property not for PUBLISH
        (frame(0x32, b"\x00\x01t\x00\x00\x00"), MALFORMED),  # packet id 0
        (frame(0x82, b"\x00\x01\x00\x00\x01t\x40"), MALFORMED),  # reserved option bits
        (frame(0x20, b"\x00\x00\x00"), PROTOCOL),  # CONNACK from a client
        (frame(0x90, b"\x00\x01\x00\x00"), PROTOCOL),  # SUBACK from a client
        (frame(0xB0, b"\x00\x01\x00\x00"), PROTOCOL),  # UNSUBACK from a client
        (frame(0xD0, b""), PROTOCOL),  # PINGRESP from a client
        (frame(0x30, b"\x00\x00\x00"), PROTOCOL),  # no topic and no alias
        (frame(0x30, b"\x00\x00\x03\x23\x00\x05"), PROTOCOL),  # an alias that was never set
        (frame(0x30, b"\x00\x01t\x03\x23\x00\x00"), reasons.TOPIC_ALIAS_INVALID),
        (frame(0x30, b"\x00\x01t\x03\x23\x00\x41"), reasons.TOPIC_ALIAS_INVALID),  # 65 of 64
        (frame(0x30, b"\x00\x01t\x02\x0b\x01"), PROTOCOL),  # subscription identifier
        (frame(0x30, b"\x00\x01t\x04\x01\x01\x01\x01"), PROTOCOL),  # repeated property
        (frame(0x30, b"\x00\x01#\x00"), reasons.TOPIC_NAME_INVALID),
        (frame(0x82, b"\x00\x01\x00"), PROTOCOL),  # SUBSCRIBE without filter
        (frame(0x82, b"\x00\x01\x00\x00\x01t\x03"), PROTOCOL),  # QoS 3
        (frame(0x82, b"\x00\x01\x00\x00\x01t\x30"), PROTOCOL),  # retain handling 3
        (frame(0x82, b"\x00\x01\x00\x00\x0a$share/g/t\x04"), PROTOCOL),  # No Local, shared
        (frame(0x82, b"\x00\x01\x02\x0b\x00\x00\x01t\x00"), PROTOCOL),  # identifier 0
        (frame(0x82, b"\x00\x01\x04\x0b\x01\x0b\x01\x00\x01t\x00"), PROTOCOL),  # twice
        (frame(0xA2, b"\x00\x01\x00"), PROTOCOL),  # UNSUBSCRIBE without filter
        (frame(0xE0, b"\x05"), PROTOCOL),  # a reason clients may not give
        (frame(0xF0, b"\x19\x00"), PROTOCOL),  # AUTH without method
        (b"\x30\x80\x80\x80\x08", reasons.PACKET_TOO_LARGE),  # 16 MiB and more
    ],
)
def test_a_fault_closes_the_connection_and_v5_is_told_why(data: bytes, reason_code: int) -> None:
    broker = Broker()
    watcher = broker.clean("watcher", "w")
    client = broker.connect("c", will=will("w", b"gone", 0))
    client.send_bytes(data)
    client.expect_closed(reason_code)
    assert watcher.payloads() == [b"gone"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",
        frame(0xF0, b""),  # AUTH is reserved
        frame(0x20, b"\x00\x00"),
        frame(0x30, b"\x00\x00x"),
        frame(0x30, b"\x00\x01+x"),
        frame(0x82, b"\x00\x01"),
        frame(0x82, b"\x00\x01\x00\x01t\x03"),
        frame(0x82, b"\x00\x01\x00\x01t\x04"),  # v5 options
        frame(0xA2, b"\x00\x01"),
        frame(0x40, b"\x00\x01\x00"),  # PUBACK with a reason
        frame(0xE0, b"\x00"),  # DISCONNECT with a reason
        frame(0x32, b"\x00\x01t\x00\x00x"),  # packet id 0
    ],
)
def test_a_fault_of_a_v4_client_closes_in_silence(data: bytes) -> None:
    broker = Broker()
    watcher = broker.clean("watcher", "w")
    client = broker.connect("c", version=4, will=will("w", b"gone", 0))
    client.send_bytes(data)
    client.expect_closed()
    assert watcher.payloads() == [b"gone"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_second_connect_is_a_protocol_error(version: int) -> None:
    broker = Broker()
    client = broker.connect("c", version=version)
    client.send(connect_packet("other", version))
    client.expect_closed(PROTOCOL)


def test_the_first_packet_must_be_connect() -> None:
    for data in (
        encode(Pingreq(), 5),
        b"\x00\x00",
        frame(0x30, b"\x00\x01t"),
        b"GET / HTTP/1.1\r\n",
    ):
        client = Broker().open()
        client.send_bytes(data)
        client.expect_closed()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x01c", MALFORMED),  # reserved flag
        (b"\x00\x04MQTT\x05\x1e\x00\x00\x00\x00\x01c\x00\x00\x01w\x00\x00", MALFORMED),  # QoS 3
        (b"\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x00\x00\x01c", PROTOCOL),  # 0x21 is 0
        (b"\x00\x04MQTT\x05\x02\x00\x00\x05\x27\x00\x00\x00\x00\x00\x01c", PROTOCOL),
        (b"\x00\x04MQTT\x05\x02\x00\x00\x02\x17\x02\x00\x01c", PROTOCOL),
        (b"\x00\x04MQTT\x05\x02\x00\x00\x02\x19\x02\x00\x01c", PROTOCOL),
        (b"\x00\x04MQTT\x05\x02\x00\x00\x03\x16\x00\x00\x00\x01c", PROTOCOL),  # data, no method
        (b"\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c\x00", MALFORMED),  # left over
        (b"\x00\x04MQTT\x06\x02\x00\x00\x00\x00\x01c", reasons.UNSUPPORTED_PROTOCOL_VERSION),
    ],
)
def test_a_broken_v5_connect_is_answered_with_its_reason(body: bytes, answer: int) -> None:
    client = Broker().open()
    client.send_bytes(frame(0x10, body))
    client.expect(Connack(False, answer))
    assert client.is_closed


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"\x00\x04MQTT\x04\x03\x00\x00\x00\x01c", b""),  # reserved flag
        (b"\x00\x04MQTT\x04\x42\x00\x00\x00\x01c\x00\x01p", b""),  # password without user name
        (b"\x00\x04MQTT\x04\x0a\x00\x00\x00\x01c", b""),  # QoS without a will
        (b"\x00\x04MQTT\x03\x02\x00\x00\x00\x01c", b"\x20\x02\x00\x01"),
        (b"\x00\x06MQIsdp\x04\x02\x00\x00\x00\x01c", b"\x20\x02\x00\x01"),
    ],
)
def test_a_broken_v4_connect_gets_no_answer_but_an_unknown_level_does(
    body: bytes, answer: bytes
) -> None:
    client = Broker().open(4)
    client.send_bytes(frame(0x10, body))
    assert client.stream.data == answer
    assert client.is_closed


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("0004 4d515454 84 02 003c 0001 61", "20020001"),  # a bridge that tries its private level
        ("0006 4d5149736470 83 02 003c 0001 61", "20020001"),
        ("0004 4d515454 06 02 003c 0001 61", "20020001"),
        ("0004 4d515454 7f 02 003c 0000", "20020001"),
        ("0004 4d515454 06 02 003c 00 0001 61", "20030084 00"),
        ("0004 4d515454 7f 02 003c 05 11 0000000a 0001 61", "20030084 00"),
        ("0004 4d515458 05 02 003c 00 0001 61", "20030084 00"),
        ("0004 4d515454 00 02 003c 00 0001 61", "20020001"),
    ],
)
def test_an_unknown_level_is_answered_in_the_form_of_its_connect(body: str, answer: str) -> None:
    """[MQTT-3.1.2-2] of both versions: a client understands the form that it speaks."""
    client = Broker().open(4)
    client.send_bytes(frame(0x10, bytes.fromhex(body)))
    assert client.stream.data == bytes.fromhex(answer)
    assert client.is_closed


def test_a_connect_above_the_packet_size_is_told_so() -> None:
    client = Broker(maximum_packet_size=200).open()
    client.send(connect_packet("c" * 300, 5))
    client.expect(Connack(False, reasons.PACKET_TOO_LARGE))


def test_auth_on_a_plain_connection_is_a_protocol_error() -> None:
    client = Broker().connect("c")
    client.send(Auth(reasons.REAUTHENTICATE, "SCRAM"))
    client.expect_closed(PROTOCOL)


def test_what_was_complete_before_the_fault_is_done() -> None:
    broker = Broker()
    client = broker.connect("c")
    client.send_bytes(
        encode(Publish("t", b"R", 0, retain=True), 5) + b"\x00\x00" + encode(Pingreq(), 5)
    )
    client.expect_closed(MALFORMED)
    assert len(broker.rows("retained")) == 1


def test_faults_of_one_client_touch_no_other() -> None:
    broker = Broker()
    watcher = broker.durable("watcher", "t")
    for data in (b"\x00\x00", b"\xff" * 100, bytes(range(256)), b"\x10\x00", b"\x30" * 1000):
        broker.open().send_bytes(data)
        bad = broker.connect("bad")
        bad.send_bytes(data)
        broker.publish("t", b"1")
        assert watcher.receive_all() == [b"1"]


def test_bytes_may_come_in_any_pieces() -> None:
    broker = Broker()
    client = broker.open()
    for byte in encode(connect_packet("c", 5), 5) + encode(Pingreq(), 5):
        client.send_bytes(bytes((byte,)))
    assert client.take()[1:] == [Pingresp()]


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


@pytest.mark.parametrize("version", [4, 5])
def test_answers_to_unknown_ids_are_no_errors(version: int) -> None:
    client = Broker().durable("c", version=version)
    client.send(Puback(9), Pubcomp(9))
    client.expect_nothing()
    client.send(Pubrec(9))
    client.expect(Pubrel(9, 0x92 if version == 5 else 0))
    client.ping()


@pytest.mark.parametrize("kind", [Puback, Pubcomp])
def test_the_wrong_answer_to_a_qos_2_message_is_a_protocol_error(kind: type) -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", 2)
    client.send(kind(client.message().packet_id))
    client.expect_closed(PROTOCOL)
    assert broker.durable("c").message().dup


def test_pubrec_for_a_qos_1_message_is_a_protocol_error() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=1)
    broker.publish("t", b"1", 1)
    client.send(Pubrec(client.message().packet_id))
    client.expect_closed(PROTOCOL)


def test_short_and_long_forms_of_acknowledgements_are_legal() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    for form in (b"\x40\x02\x00\x01", b"\x40\x03\x00\x02\x00", b"\x40\x04\x00\x03\x80\x00"):
        broker.publish("t", b"1")
        client.message()
        client.send_bytes(form)
    client.ping()
    client.send_bytes(b"\xe0\x00")
    client.expect_closed()
    client = broker.durable("c")
    client.expect_nothing()
    client.send_bytes(b"\xe0\x01\x00")
    client.expect_closed()


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


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_forbidden_publish_is_refused_and_the_connection_stays(qos: int) -> None:
    broker = Broker()
    reader = broker.clean("reader", "t", qos=2)
    broker.rules.forbid("publish", "t")
    client = broker.connect("c", username="ann")
    client.send(Publish("t", b"", qos, True, packet_id=7 if qos else 0))
    expected = {0: [], 1: [Puback(7, 0x87)], 2: [Pubrec(7, 0x87)]}[qos]
    client.expect(*expected)
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


def test_a_forbidden_subscription_is_refused_and_the_others_are_granted() -> None:
    broker = Broker()
    broker.rules.forbid("subscribe", "secret/#")
    client = broker.durable("c", username="ann")
    assert client.subscribe("secret/#", "t", "$share/g/secret/#", qos=1) == [0x87, 1, 0x87]
    assert ("subscribe", "ann", "c", "secret/#") in broker.rules.asked
    broker.publish("secret/x", b"1")
    broker.publish("t", b"2")
    assert client.receive_all() == [b"2"]
    four = broker.connect("four", version=4)
    assert four.subscribe("secret/#", "t", qos=2) == [0x80, 2]


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


# PINGREQ and our last word


@pytest.mark.parametrize("version", [4, 5])
def test_every_ping_has_its_answer(version: int) -> None:
    client = Broker().connect("c", version=version)
    client.send(*[Pingreq()] * 20)
    client.expect(*[Pingresp()] * 20)


def test_nothing_follows_our_disconnect() -> None:
    broker = Broker(linger=True)
    broker.durable("other", "t")
    client = broker.connect("c")
    broker.hold_commits()
    client.send(Publish("t", b"1", 1, packet_id=1))
    with broker.one_tick():
        client.send_bytes(b"\x00\x00")
        broker.store.sync()
        broker.engine.committed(broker.engine.written, broker.now)
    client.expect_closed(reasons.MALFORMED_PACKET)


def test_a_v4_message_at_qos_0_with_too_many_levels_is_dropped() -> None:
    broker = Broker(topic_levels_max=2)
    client = broker.connect("c", version=4)
    client.send(Publish("a/b/c", b"", 0, True))
    client.ping()
    assert broker.rows("retained") == []


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


def test_the_answer_to_a_broken_connect_fits_the_client_if_that_could_be_read() -> None:
    """[MQTT-3.1.2-24]"""
    client = Broker().open()
    client.send_bytes(
        frame(0x10, bytes.fromhex("0004 4d515454 05 02 003c 08 27 00000004 21 0000 0000"))
    )
    assert client.is_closed and client.take() == []


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
    assert client.stream.is_read and not broker.engine._inbound.under_way
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
        assert broker.engine._inbound.under_way
        client.lose()
    assert not broker.engine._inbound.under_way and not broker.engine._turns.waiting
    client = broker.connect("c", expiry=100)
    assert client.connack is not None and client.connack.session_present
