"""The strict parser: what it reads, and which statement each fault is booked on."""

import pytest

from conformance import packets, tables
from conformance.failure import Violation
from conformance.packets import Connack, Disconnect, Puback, Publish, Suback, Unsuback


def parse(text: str, version: int = 5) -> packets.Packet:
    return packets.parse(bytes.fromhex(text), version)


def test_every_packet_a_broker_sends_is_read() -> None:
    connack = parse("20 06 01 00 03 21 00 0a")
    assert isinstance(connack, Connack)
    assert (connack.session_present, connack.code) == (True, 0)
    assert connack.properties.number(tables.RECEIVE_MAXIMUM) == 10
    publish = parse("3d 0a 00 01 74 00 07 02 01 01 68 69")
    assert isinstance(publish, Publish)
    assert (publish.topic, publish.payload, publish.qos) == ("t", b"hi", 2)
    assert (publish.retain, publish.dup, publish.packet_id) == (True, True, 7)
    assert publish.properties.number(tables.PAYLOAD_FORMAT) == 1
    puback = parse("40 03 00 01 10")
    assert isinstance(puback, Puback)
    assert (puback.packet_id, puback.reason) == (1, 0x10)
    suback = parse("90 06 00 01 00 00 01 87")
    assert isinstance(suback, Suback)
    assert suback.codes == (0, 1, 0x87)
    unsuback = parse("b0 02 00 01", 4)
    assert isinstance(unsuback, Unsuback)
    assert unsuback.codes == ()
    disconnect = parse("e0 00")
    assert isinstance(disconnect, Disconnect)
    assert disconnect.reason == 0
    assert isinstance(parse("d0 00"), packets.Pingresp)
    auth = parse("f0 0a 18 08 15 00 01 6d 16 00 01 64")
    assert isinstance(auth, packets.Auth)
    assert auth.properties.data(tables.AUTH_DATA) == b"d"


def test_properties_are_found_by_id_in_order() -> None:
    publish = parse("30 18 00 01 74 14 0b 01 26 00 01 61 00 01 62 0b 80 01 26 00 00 00 00 03 00 00")
    assert isinstance(publish, Publish)
    found = publish.properties
    assert found.subscription_ids() == [1, 128]
    assert found.user() == [("a", "b"), ("", "")]
    assert found.text(tables.CONTENT_TYPE) == ""
    assert found.get(tables.TOPIC_ALIAS) is None
    assert tables.CONTENT_TYPE in found
    assert tables.TOPIC_ALIAS not in found
    assert len(found) == 5


FAULTS_5 = {
    "21 03 00 00 00": "MQTT-2.1.3-1",
    "60 02 00 01": "MQTT-2.1.3-1",
    "f1 06 18 04 15 00 01 6d": "MQTT-3.15.1-1",
    "20 03 02 00 00": "MQTT-3.2.2-1",
    "20 03 01 82 00": "MQTT-3.2.2-6",
    "20 03 00 01 00": "MQTT-3.2.2-8",
    "20 02 00 00": "MQTT-2.2.2-1",
    "20 05 00 00 02 24 02": "MQTT-3.2.2-9",
    "20 05 00 00 02 25 02": "X-00",
    "20 06 00 00 03 21 00 00": "X-00",
    "20 05 00 00 02 0b 01": "X-10",
    "20 09 00 00 06 21 00 01 21 00 01": "X-09",
    "20 03 00 00 05": "X-00",
    "20 04 00 00 00 00": "X-00",
    "20 04 00 00 80 00": "MQTT-1.5.5-1",
    "36 05 00 01 74 00 01": "MQTT-3.3.1-4",
    "38 04 00 01 74 00": "MQTT-3.3.1-2",
    "30 01 00": "MQTT-3.3.2-1",
    "30 04 00 01 23 00": "MQTT-3.3.2-2",
    "30 05 00 02 c3 28 00": "MQTT-1.5.4-1",
    "30 06 00 03 ed a0 80 00": "MQTT-1.5.4-1",
    "30 04 00 01 00 00": "MQTT-1.5.4-2",
    "32 06 00 01 74 00 00 00": "MQTT-2.2.1-4",
    "30 03 00 00 00": "MQTT-4.7.3-1",
    "30 07 00 01 74 03 23 00 00": "MQTT-3.3.2-8",
    "30 08 00 01 74 04 08 00 01 2b": "MQTT-3.3.2-14",
    "30 08 00 01 74 04 08 00 01 ff": "MQTT-3.3.2-13",
    "30 08 00 01 74 04 03 00 01 ff": "MQTT-3.3.2-19",
    "30 0a 00 01 74 06 26 00 01 ff 00 00": "MQTT-1.5.7-1",
    "30 06 00 01 74 02 0b 00": "X-16",
    "40 03 00 01 92": "MQTT-3.4.2-1",
    "40 02 00 00": "MQTT-2.2.1-5",
    "50 03 00 01 11": "MQTT-3.5.2-1",
    "62 03 00 01 10": "MQTT-3.6.2-1",
    "70 03 00 01 80": "MQTT-3.7.2-1",
    "90 04 00 01 00 03": "MQTT-3.9.3-2",
    "b0 04 00 01 00 01": "MQTT-3.11.3-2",
    "e0 01 04": "MQTT-3.14.2-1",
    "e0 07 00 05 11 00 00 00 01": "MQTT-3.14.2-2",
    "f0 01 19": "MQTT-3.15.2-1",
    "d0 01 00": "X-00",
    "c0 00": "X-00",
    "00 00": "X-00",
}
FAULTS_4 = {
    "41 02 00 01": "MQTT-2.2.2-1",
    "20 02 02 00": "X-02",
    "20 02 01 05": "MQTT-3.2.2-4",
    "20 02 00 06": "MQTT-3.2.2-6",
    "36 05 00 01 74 00 01": "MQTT-3.3.1-4",
    "30 04 00 02 c3 28": "MQTT-1.5.3-1",
    "30 03 00 01 00": "MQTT-1.5.3-2",
    "32 05 00 01 74 00 00": "MQTT-2.3.1-1",
    "30 02 00 00": "MQTT-4.7.3-1",
    "40 02 00 00": "MQTT-2.3.1-6",
    "40 03 00 01 00": "X-00",
    "90 03 00 01 03": "MQTT-3.9.3-2",
    "90 03 00 01 87": "MQTT-3.9.3-2",
    "b0 03 00 01 00": "X-00",
    "e0 00": "X-00",
    "f0 00": "X-00",
}


@pytest.mark.parametrize(
    ("version", "text", "statement"),
    [(5, *fault) for fault in FAULTS_5.items()] + [(4, *fault) for fault in FAULTS_4.items()],
)
def test_a_fault_is_booked_on_the_statement_it_breaks(
    version: int, text: str, statement: str
) -> None:
    with pytest.raises(Violation) as caught:
        parse(text, version)
    assert caught.value.statements == (statement,)
    assert caught.value.packet == bytes.fromhex(text)


def test_the_fixed_header_tells_the_size_once_it_is_complete() -> None:
    assert packets.header(b"\x30", 5) is None
    assert packets.header(b"\x30\x80", 5) is None
    assert packets.header(b"\x30\x80\x01", 5) == (3, 128)
    assert packets.header(b"\x30\x81\x00", 4) == (3, 1)  # 3.1.1 does not forbid it
    with pytest.raises(Violation) as caught:
        packets.header(b"\x30\x81\x00", 5)
    assert caught.value.statements == ("MQTT-1.5.5-1",)
    with pytest.raises(Violation):
        packets.header(b"\x30\xff\xff\xff\xff", 4)


def test_every_truncation_of_a_packet_is_a_violation_and_nothing_else() -> None:
    whole = bytes.fromhex("20 0b 00 00 08 21 00 0a 1f 00 02 68 69")
    assert isinstance(packets.parse(whole, 5), Connack)
    for length in range(0, len(whole) - 2):
        with pytest.raises(Violation):
            packets.parse(whole[:1] + bytes([length]) + whole[2 : 2 + length], 5)


def test_a_refusal_in_the_older_form_is_translated() -> None:
    refused = packets.parse_foreign_connack(b"\x20\x02\x00\x01")
    assert refused is not None
    assert refused.code == 0x84
    assert packets.parse_foreign_connack(b"\x20\x02\x00\x00") is None
    assert packets.parse_foreign_connack(b"\x20\x03\x00\x84\x00") is None


def test_a_packet_can_be_read_by_people() -> None:
    assert packets.describe(parse("40 03 00 01 10")) == "PUBACK id 1, 0x10 No matching subscribers"
    assert packets.describe(parse("d0 00")) == "PINGRESP"
    shown = packets.describe(parse("33 08 00 01 74 00 07 00 68 69"))
    assert shown == "PUBLISH id 7, 't', QoS 1 RETAIN, payload b'hi'"
    assert "Receive Maximum=10" in packets.describe(parse("20 06 01 00 03 21 00 0a"))
