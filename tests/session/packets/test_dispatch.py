"""Faults and what they cost, PINGREQ, and what follows the end of a connection."""

import pytest

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import (
    Auth,
    Connack,
    Pingreq,
    Pingresp,
    Publish,
)
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


def test_the_answer_to_a_broken_connect_fits_the_client_if_that_could_be_read() -> None:
    """[MQTT-3.1.2-24]"""
    client = Broker().open()
    client.send_bytes(
        frame(0x10, bytes.fromhex("0004 4d515454 05 02 003c 08 27 00000004 21 0000 0000"))
    )
    assert client.is_closed and client.take() == []
