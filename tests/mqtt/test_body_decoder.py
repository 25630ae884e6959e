"""Every rule about the body of a packet, by packet, with the code that section 4.13 gives it."""

import pytest

from mqtt.body_decoder import header_fault
from mqtt.decoder import Decoder
from mqtt.errors import MalformedPacket, MqttError, ProtocolError, UnsupportedProtocolVersion
from mqtt.packets import Connack, Connect, Disconnect, Packet, Publish, Subscribe, Subscription
from tests.mqtt.samples import (
    GOLDEN,
    LONG_FORMS,
    Sample,
    Sender,
    body_of,
    decode,
    decode_bytes,
    frame,
)
from tests.mqtt.test_reasons import TABLE as REASON_TABLE

STRING = {"c328": "ill formed", "eda080": "surrogate", "c080": "overlong", "610062": "null"}


def fault(hexadecimal: str, sender: Sender, version: int) -> MqttError:
    """Decode one packet that has to be refused; return the fault."""
    found, decoder = decode_bytes(bytes.fromhex(hexadecimal), sender, version)
    assert found == []
    assert decoder.error is not None
    return decoder.error


def framed(first: int, body: str) -> str:
    return frame(first, bytes.fromhex(body)).hex()


def accepted(hexadecimal: str, sender: Sender, version: int) -> Packet:
    found, decoder = decode_bytes(bytes.fromhex(hexadecimal), sender, version)
    assert decoder.error is None
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("sample", GOLDEN + LONG_FORMS, ids=repr)
def test_golden_bytes_decode_to_their_packet(sample: Sample) -> None:
    found, decoder = decode(sample)
    assert decoder.error is None
    assert found == [sample.packet]


@pytest.mark.parametrize("sample", GOLDEN, ids=repr)
def test_a_body_cut_short_is_a_fault_or_a_legal_short_form(sample: Sample) -> None:
    body = body_of(sample.data)
    for size in range(len(body)):
        data = frame(sample.data[0], body[:size])
        found, decoder = decode_bytes(data, sample.sender, sample.version)
        if found:
            assert decoder.error is None
            assert found[0].kind == sample.packet.kind
            # A shorter payload or list of codes, or the short forms of 3.4.2.1 and 3.14.2.
            assert sample.packet.kind in (3, 4, 5, 6, 7, 8, 9, 10, 11, 14)
        else:
            assert decoder.error is not None
            assert decoder.error.reason_code in (0x81, 0x82, 0x90)


# Sizes at which a prefix of the fullest body is a legal packet of its own.
LEGAL_PREFIXES = [
    (4, "client", 0x82, {8}),  # after the first of two filters
    (5, "client", 0x82, {19}),
    (4, "client", 0xA2, {7}),
    (5, "client", 0xA2, set()),
    (5, "client", 0x40, {2, 3}),
    (5, "client", 0xE0, {0, 1}),
    (5, "server", 0xE0, {0, 1}),
    (5, "client", 0xF0, set()),
    (4, "server", 0x90, {3, 4, 5}),
    (5, "server", 0x90, {15}),
    (5, "server", 0xB0, {15}),
    (4, "server", 0xB0, set()),
    (4, "server", 0x20, set()),
    (5, "server", 0x20, set()),
    (4, "client", 0x10, set()),
    (5, "client", 0x10, set()),
    (4, "client", 0x62, set()),
]


@pytest.mark.parametrize(("version", "sender", "first", "sizes"), LEGAL_PREFIXES)
def test_exactly_these_prefixes_of_a_body_are_packets(
    version: int, sender: Sender, first: int, sizes: set[int]
) -> None:
    fitting = [
        sample
        for sample in GOLDEN
        if (sample.version, sample.sender, sample.data[0]) == (version, sender, first)
    ]
    body = body_of(max(fitting, key=lambda sample: len(sample.data)).data)
    found = {
        size
        for size in range(len(body))
        if decode_bytes(frame(first, body[:size]), sender, version)[0]
    }
    assert found == sizes


@pytest.mark.parametrize("sample", GOLDEN + LONG_FORMS, ids=repr)
def test_a_byte_left_over_is_a_fault(sample: Sample) -> None:
    if sample.packet.kind == 3:
        return  # it is payload
    for extra in (b"\xee", b"\x00\xee", b"\xee" * 9):
        data = frame(sample.data[0], body_of(sample.data) + extra)
        found, decoder = decode_bytes(data, sample.sender, sample.version)
        assert found == []
        assert decoder.error is not None and decoder.error.reason_code in (0x81, 0x82)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("sender", ["client", "server"])
@pytest.mark.parametrize("kind", range(16))
def test_every_flag_bit_of_every_packet(version: int, sender: Sender, kind: int) -> None:
    """Table 2-2: only PUBLISH has flags; SUBSCRIBE, UNSUBSCRIBE and PUBREL have 0010."""
    bodies = {
        sample.data[0] & 15: body_of(sample.data)
        for sample in GOLDEN
        if (sample.version, sample.sender, sample.data[0] >> 4) == (version, sender, kind)
    }
    for flags in range(16):
        if kind == 3:
            legal = flags & 6 != 6 and flags & 14 != 8
            body = b"\x00\x01t" + (b"\x00\x01" if flags & 6 else b"") + b"\x00" * (version - 4)
        else:
            legal = bool(bodies) and flags == (2 if kind in (6, 8, 10) else 0)
            body = bodies.get(flags) or next(iter(bodies.values()), b"")
        found, decoder = decode_bytes(frame(kind << 4 | flags, body), sender, version)
        assert (len(found) == 1) is legal
        assert (decoder.error is None) is legal
        if bodies and not legal:
            assert isinstance(decoder.error, MalformedPacket)


# What a side must not send, and the code: (version, sender, packet type, is it malformed)
FOREIGN = [
    (4, "client", 2, False),
    (4, "client", 9, False),
    (4, "client", 11, False),
    (4, "client", 13, False),
    (5, "client", 2, False),
    (5, "client", 9, False),
    (5, "client", 11, False),
    (5, "client", 13, False),
    (4, "client", 15, True),
    (4, "server", 15, True),
    (4, "server", 1, False),
    (5, "server", 1, False),
    (4, "server", 8, False),
    (5, "server", 8, False),
    (4, "server", 10, False),
    (5, "server", 10, False),
    (4, "server", 12, False),
    (5, "server", 12, False),
    (4, "server", 14, False),
    (4, "client", 0, True),
    (5, "client", 0, True),
    (4, "server", 0, True),
    (5, "server", 0, True),
]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("sender", ["client", "server"])
@pytest.mark.parametrize("kind", range(16))
def test_who_may_send_what(version: int, sender: Sender, kind: int) -> None:
    first = kind << 4 | (2 if kind in (6, 8, 10) else 0)
    error = header_fault(first, version, from_client=sender == "client")
    malformed = {row[:3]: row[3] for row in FOREIGN}
    if (version, sender, kind) in malformed:
        assert isinstance(
            error, MalformedPacket if malformed[version, sender, kind] else ProtocolError
        )
    elif kind == 1:
        assert isinstance(error, ProtocolError) and "second CONNECT" in str(error)
    else:
        assert error is None


@pytest.mark.parametrize("kind", range(16))
def test_only_connect_may_come_first(kind: int) -> None:
    """[MQTT-3.1.0-1]"""
    first = kind << 4 | (2 if kind in (6, 8, 10) else 0)
    error = header_fault(first, 0, from_client=True)
    if kind == 1:
        assert error is None
    elif kind == 0:
        assert isinstance(error, MalformedPacket)
    else:
        assert isinstance(error, ProtocolError)


# CONNECT

V4 = "0004 4d515454 04"
V5 = "0004 4d515454 05"


@pytest.mark.parametrize("level", [0, 1, 2, 3, 6, 127, 128, 0x84, 255])
def test_another_protocol_version_is_told_apart(level: int) -> None:
    for rest in ("", "02 0000 0000", "ff" * 9):
        error = fault(framed(0x10, f"0004 4d515454 {level:02x} {rest}"), "client", 4)
        assert isinstance(error, UnsupportedProtocolVersion)
        assert error.protocol_version == level and error.reason_code == 0x84


def test_the_protocol_of_before_the_standard_is_understood() -> None:
    """MQTT 3.1: another name, and level 3."""
    packet = accepted(framed(0x10, "0006 4d5149736470 03 02 003c 0001 63"), "client", 0)
    assert isinstance(packet, Connect)
    assert (packet.protocol_version, packet.client_id, packet.clean_start) == (3, "c", True)


@pytest.mark.parametrize("level", ["00", "02", "04", "05", "83"])
def test_mqtt_3_1_has_one_level(level: str) -> None:
    """[MQTT-3.1.2-1] of 3.1.1: 'MQIsdp' at level 4 is not MQTT 3.1.1."""
    error = fault(framed(0x10, f"0006 4d5149736470 {level} 02 003c 0001 63"), "client", 0)
    assert isinstance(error, UnsupportedProtocolVersion)
    assert error.protocol_version == int(level, 16)


@pytest.mark.parametrize(
    ("flags", "rest", "username", "password"),
    [
        ("c2", "", None, None),
        ("c2", "0001 75", "u", None),
        ("c2", "0001 75 0001 70", "u", b"p"),
        ("82", "", None, None),
    ],
)
def test_mqtt_3_1_lets_the_end_of_the_packet_count_for_more_than_the_flags(
    flags: str, rest: str, username: str | None, password: bytes | None
) -> None:
    packet = accepted(
        framed(0x10, f"0006 4d5149736470 03 {flags} 003c 0001 63 {rest}"), "client", 0
    )
    assert isinstance(packet, Connect)
    assert (packet.username, packet.password) == (username, password)


@pytest.mark.parametrize("first", [0x6A, 0x8A, 0xAA, 0x48, 0x58, 0x78, 0x80, 0x60, 0xC8, 0x38])
def test_only_mqtt_3_1_leaves_flags_unused(first: int) -> None:
    """DUP on what is sent again, QoS 1 on what is answered: other servers take all of it."""
    assert header_fault(first, 3, from_client=True) is None
    assert isinstance(header_fault(first, 4, from_client=True), MalformedPacket)
    assert isinstance(header_fault(first, 5, from_client=True), MalformedPacket)
    assert isinstance(header_fault(0x36, 3, from_client=True), MalformedPacket)


@pytest.mark.parametrize("flags", ["03", "22", "0a", "3a"])
def test_mqtt_3_1_disregards_flags_of_a_will_that_is_not_there(flags: str) -> None:
    packet = accepted(framed(0x10, f"0006 4d5149736470 03 {flags} 003c 0001 63"), "client", 0)
    assert isinstance(packet, Connect) and packet.will is None
    error = fault(framed(0x10, f"0004 4d515454 04 {flags} 003c 0001 63"), "client", 0)
    assert isinstance(error, MalformedPacket)


def test_mqtt_3_1_has_no_auth() -> None:
    assert isinstance(header_fault(0xF0, 3, from_client=True), MalformedPacket)


@pytest.mark.parametrize("name", ["0004 6d717474", "0004 4d515458", "0000", "0003 4d5154"])
def test_another_protocol_name_is_refused(name: str) -> None:
    """A client that says version 5 may be told so; of others nobody knows what they speak."""
    for level, is_told in (("04", False), ("05", True)):
        error = fault(framed(0x10, f"{name} {level} 02 0000 0000 0000"), "client", 4)
        assert error.reason_code == 0x84
        assert isinstance(error, UnsupportedProtocolVersion) == is_told


@pytest.mark.parametrize("version", [4, 5])
def test_connect_flags_one_by_one(version: int) -> None:
    """Every value of the flags byte, with exactly the fields that it announces."""
    for flags in range(256):
        will, qos = flags & 4, flags >> 3 & 3
        body = f"0004 4d515454 {version:02x} {flags:02x} 0000 {'00' if version == 5 else ''} 0000"
        if will:
            body += ("00" if version == 5 else "") + "0001 77 0000"
        body += ("0001 75" if flags & 0x80 else "") + ("0001 70" if flags & 0x40 else "")
        legal = not flags & 1 and qos != 3 and (bool(will) or not flags & 0x38)
        if version == 4 and flags & 0xC0 == 0x40:
            legal = False  # [MQTT-3.1.2-22]
        if legal:
            connect = accepted(framed(0x10, body), "client", version)
            assert isinstance(connect, Connect)
            assert connect.clean_start is bool(flags & 2)
            assert (connect.will is not None) is bool(will)
            if connect.will is not None:
                assert connect.will.qos == qos
                assert connect.will.retain is bool(flags & 0x20)
            assert connect.username == ("u" if flags & 0x80 else None)
            assert connect.password == (b"p" if flags & 0x40 else None)
        else:
            assert fault(framed(0x10, body), "client", version).reason_code == 0x81


@pytest.mark.parametrize("version", [4, 5])
def test_connect_fields_that_the_flags_do_not_announce_are_left_over(version: int) -> None:
    props = "00" if version == 5 else ""
    for flags, tail in (("02", "0001 75"), ("82", "0001 75 0001 70"), ("02", "00")):
        body = f"0004 4d515454 {version:02x} {flags} 0000 {props} 0000 {tail}"
        assert fault(framed(0x10, body), "client", version).reason_code == 0x81


@pytest.mark.parametrize("bad", STRING, ids=STRING.values())
@pytest.mark.parametrize("version", [4, 5])
def test_strings_of_connect_are_checked(bad: str, version: int) -> None:
    field = f"{len(bad) // 2:04x} {bad}"
    props = "00" if version == 5 else ""
    start = f"0004 4d515454 {version:02x}"
    for body in (
        f"{start} 02 0000 {props} {field}",
        f"{start} 06 0000 {props} 0000 {props} {field} 0000",
        f"{start} 82 0000 {props} 0000 {field}",
    ):
        error = fault(framed(0x10, body), "client", version)
        assert isinstance(error, MalformedPacket) and error.reason_code == 0x81


@pytest.mark.parametrize("topic", ["0000", "0001 23", "0003 612f2b", "0002 2361"])
def test_a_will_topic_must_be_a_topic_name(topic: str) -> None:
    for version, props in ((4, ""), (5, "00")):
        body = f"0004 4d515454 {version:02x} 06 0000 {props} 0000 {props} {topic} 0000"
        assert fault(framed(0x10, body), "client", version).reason_code == 0x90


def test_will_payload_and_password_are_any_bytes() -> None:
    body = f"{V4} c6 0000 0000 0001 77 0003 ff00c3 0000 0002 00ff"
    connect = accepted(framed(0x10, body), "client", 4)
    assert isinstance(connect, Connect) and connect.will is not None
    assert connect.will.payload == b"\xff\x00\xc3" and connect.password == b"\x00\xff"
    assert connect.username == ""


def test_authentication_data_needs_a_method() -> None:
    """Section 3.1.2.11.10"""
    error = fault(framed(0x10, f"{V5} 02 0000 04 16 0001 00 0000"), "client", 5)
    assert isinstance(error, ProtocolError) and error.reason_code == 0x82
    accepted(framed(0x10, f"{V5} 02 0000 08 16 0001 00 15 0001 6d 0000"), "client", 5)


def test_an_empty_client_id_is_left_to_the_session() -> None:
    connect = accepted(framed(0x10, f"{V4} 00 0000 0000"), "client", 4)
    assert isinstance(connect, Connect) and connect.client_id == "" and not connect.clean_start


def test_the_byte_order_mark_in_a_client_id_is_kept() -> None:
    connect = accepted(framed(0x10, f"{V4} 02 0000 0004 efbbbf61"), "client", 4)
    assert isinstance(connect, Connect) and connect.client_id == "\ufeffa"


# CONNACK


@pytest.mark.parametrize("flags", range(2, 256, 37))
def test_connack_flags_are_0_or_1(flags: int) -> None:
    assert fault(framed(0x20, f"{flags:02x} 00"), "server", 4).reason_code == 0x81
    assert fault(framed(0x20, f"{flags:02x} 00 00"), "server", 5).reason_code == 0x81


def test_session_present_comes_with_success_only() -> None:
    assert fault(framed(0x20, "01 05"), "server", 4).reason_code == 0x82
    assert fault(framed(0x20, "01 87 00"), "server", 5).reason_code == 0x82


def test_mqtt_3_1_has_no_session_present() -> None:
    """The byte is reserved there: it says nothing, and is no fault either."""
    decoder = Decoder("client", 0, 3)
    assert decoder.receive(bytes.fromhex("2002ff00 20020100 20020105")) == [
        Connack(False, 0),
        Connack(False, 0),
        Connack(False, 5),
    ]
    assert decoder.error is None


def test_connack_needs_its_property_length_in_v5() -> None:
    assert fault(framed(0x20, "00 00"), "server", 5).reason_code == 0x81


# PUBLISH


@pytest.mark.parametrize("sender", ["client", "server"])
@pytest.mark.parametrize("version", [4, 5])
class TestPublish:
    def test_topics_with_wildcards_are_refused(self, version: int, sender: Sender) -> None:
        """[MQTT-3.3.2-2]"""
        props = "00" * (version - 4)
        for topic in ("0001 23", "0001 2b", "0003 612f23", "0003 61232f", "0002 2b61"):
            error = fault(framed(0x30, f"{topic} {props}"), sender, version)
            assert isinstance(error, MalformedPacket) and error.reason_code == 0x90

    @pytest.mark.parametrize("bad", STRING, ids=STRING.values())
    def test_topics_are_strings(self, version: int, sender: Sender, bad: str) -> None:
        props = "00" * (version - 4)
        for start in (f"{len(bad) // 2:04x} {bad}",):
            error = fault(framed(0x30, f"{start} {props}"), sender, version)
            assert error.reason_code == 0x81

    def test_an_empty_topic_needs_an_alias(self, version: int, sender: Sender) -> None:
        for first, packet_id in ((0x30, ""), (0x32, "0001")):
            error = fault(
                framed(first, f"0000 {packet_id} {'00' * (version - 4)}"), sender, version
            )
            assert error.reason_code == (0x90 if version == 4 else 0x82)
        if version == 5:
            error = fault(framed(0x30, "0000 02 0101"), sender, version)
            assert error.reason_code == 0x82

    def test_packet_id_zero_is_malformed(self, version: int, sender: Sender) -> None:
        """[MQTT-2.2.1-3], v4 [MQTT-2.3.1-1]"""
        for first in (0x32, 0x34):
            for topic in ("0001 74", "0003 78797a"):
                body = f"{topic} 0000 {'00' * (version - 4)}"
                error = fault(framed(first, body), sender, version)
                assert isinstance(error, MalformedPacket) and error.reason_code == 0x81

    def test_bodies_that_end_too_early(self, version: int, sender: Sender) -> None:
        bodies = ["", "00", "0001", "0002 74", "ffff 74"]
        if version == 5:
            bodies += ["0001 74", "0001 74 01", "0001 74 8000", "0001 74 80"]
        for body in bodies:
            assert fault(framed(0x30, body), sender, version).reason_code == 0x81
        for body in (*bodies, "0001 74 00"):
            assert fault(framed(0x32, body), sender, version).reason_code == 0x81

    def test_a_short_packet_does_not_read_into_the_next(self, version: int, sender: Sender) -> None:
        following = bytes.fromhex(framed(0x30, "0001 74" + "00" * (version - 4)))
        for body in ("", "00", "0001", "0002 74"):
            found, decoder = decode_bytes(
                bytes.fromhex(framed(0x30, body)) + following, sender, version
            )
            assert found == [] and decoder.error is not None

    def test_any_payload_is_kept(self, version: int, sender: Sender) -> None:
        for payload in (b"", b"\x00", b"\xff\xfe\x00", b"\x00" * 200, bytes(70_000)):
            data = frame(0x30, b"\x00\x01t" + b"\x00" * (version - 4) + payload)
            found, decoder = decode_bytes(data, sender, version)
            assert decoder.error is None
            assert found == [Publish("t", payload)]

    def test_a_topic_seen_before_gives_the_same_result(self, version: int, sender: Sender) -> None:
        body = "0005 c3a92f6162" + "00" * (version - 4)
        first = accepted(framed(0x30, body), sender, version)
        assert accepted(framed(0x30, body), sender, version) == first == Publish("\u00e9/ab", b"")


def test_a_client_sends_no_subscription_identifier() -> None:
    """[MQTT-3.3.4-6]"""
    error = fault(framed(0x30, "0001 74 02 0b01"), "client", 5)
    assert isinstance(error, ProtocolError) and error.reason_code == 0x82


def test_topic_and_alias_together_set_the_alias() -> None:
    publish = accepted(framed(0x30, "0001 74 03 23 ffff"), "client", 5)
    assert publish == Publish("t", b"", topic_alias=65_535)


def test_payload_format_is_not_checked_here() -> None:
    publish = accepted(framed(0x30, "0001 74 02 0101 ff"), "client", 5)
    assert publish == Publish("t", b"\xff", properties=b"\x01\x01")


def test_a_correlation_may_be_empty_and_is_kept_apart_from_absent() -> None:
    publish = accepted(framed(0x30, "0001 74 03 09 0000"), "client", 5)
    assert isinstance(publish, Publish) and publish.properties == b"\x09\x00\x00"


# PUBACK, PUBREC, PUBREL, PUBCOMP


@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70])
@pytest.mark.parametrize("sender", ["client", "server"])
class TestAcknowledgements:
    def test_packet_id_zero_is_malformed(self, first: int, sender: Sender) -> None:
        for version, body in ((4, "0000"), (5, "0000"), (5, "0000 00"), (5, "0000 00 00")):
            assert fault(framed(first, body), sender, version).reason_code == 0x81

    def test_v4_is_two_bytes(self, first: int, sender: Sender) -> None:
        for body in ("", "00", "0001 00", "0001 00 00"):
            assert fault(framed(first, body), sender, 4).reason_code == 0x81

    def test_v5_has_at_least_two_bytes(self, first: int, sender: Sender) -> None:
        for body in ("", "00"):
            assert fault(framed(first, body), sender, 5).reason_code == 0x81

    def test_exactly_the_reason_codes_of_the_table(self, first: int, sender: Sender) -> None:
        """[MQTT-3.4.2-1, MQTT-3.5.2-1, MQTT-3.6.2-1, MQTT-3.7.2-1]"""
        letter = "A" if first in (0x40, 0x50) else "L"
        for code in range(256):
            legal = letter in REASON_TABLE.get(code, "")
            for body in (f"0001 {code:02x}", f"0001 {code:02x} 00"):
                if legal:
                    accepted(framed(first, body), sender, 5)
                else:
                    assert fault(framed(first, body), sender, 5).reason_code == 0x82


# SUBSCRIBE, UNSUBSCRIBE


def test_v4_requested_qos_byte() -> None:
    """[MQTT-3.8.3-4]"""
    for options in range(256):
        body = f"0001 0001 61 {options:02x}"
        if options <= 2:
            packet = accepted(framed(0x82, body), "client", 4)
            assert packet == Subscribe(1, [Subscription("a", options)])
        else:
            error = fault(framed(0x82, body), "client", 4)
            assert isinstance(error, MalformedPacket) and error.reason_code == 0x81


def test_v5_subscription_options_byte() -> None:
    """Section 3.8.3.1, [MQTT-3.8.3-5]"""
    for options in range(256):
        hexadecimal = framed(0x82, f"0001 00 0001 61 {options:02x}")
        if options & 0xC0:
            assert fault(hexadecimal, "client", 5).reason_code == 0x81
        elif options & 3 == 3 or options & 0x30 == 0x30:
            assert fault(hexadecimal, "client", 5).reason_code == 0x82
        else:
            wanted = Subscription(
                "a", options & 3, bool(options & 4), bool(options & 8), options >> 4
            )
            assert accepted(hexadecimal, "client", 5) == Subscribe(1, [wanted])


def test_a_later_filter_is_judged_as_the_first() -> None:
    assert fault(framed(0x82, "0001 00 0001 61 00 0001 62 03"), "client", 5).reason_code == 0x82
    assert fault(framed(0x82, "0001 0001 61 00 0001 62 03"), "client", 4).reason_code == 0x81


def test_no_local_on_a_shared_subscription_is_refused() -> None:
    """[MQTT-3.8.3-4]"""
    shared = b"$share/g/t".hex()
    assert fault(framed(0x82, f"0001 00 000a {shared} 04"), "client", 5).reason_code == 0x82
    accepted(framed(0x82, f"0001 00 000a {shared} 00"), "client", 5)
    plain = b"$shared/gt".hex()
    accepted(framed(0x82, f"0001 00 000a {plain} 04"), "client", 5)


@pytest.mark.parametrize(("first", "options"), [(0x82, "00"), (0xA2, "")])
class TestFilters:
    def test_there_must_be_one(self, first: int, options: str) -> None:
        """[MQTT-3.8.3-2, MQTT-3.10.3-2]"""
        assert fault(framed(first, "0001"), "client", 4).reason_code == 0x82
        assert fault(framed(first, "0001 00"), "client", 5).reason_code == 0x82
        assert fault(framed(first, "0001 05 26 0000 0000"), "client", 5).reason_code == 0x82

    def test_it_must_not_be_empty(self, first: int, options: str) -> None:
        """[MQTT-4.7.3-1]"""
        assert fault(framed(first, f"0001 0000 {options}"), "client", 4).reason_code == 0x82
        assert fault(framed(first, f"0001 00 0000 {options}"), "client", 5).reason_code == 0x82

    @pytest.mark.parametrize("bad", STRING, ids=STRING.values())
    def test_it_is_a_string(self, first: int, options: str, bad: str) -> None:
        field = f"{len(bad) // 2:04x} {bad} {options}"
        assert fault(framed(first, f"0001 {field}"), "client", 4).reason_code == 0x81
        assert fault(framed(first, f"0001 00 {field}"), "client", 5).reason_code == 0x81

    def test_its_wildcards_are_judged_elsewhere(self, first: int, options: str) -> None:
        """A filter that is refused gets its own 0x8F in SUBACK; the connection goes on."""
        for topic_filter in (b"a#", b"#/a", b"a+", b"$share/"):
            field = f"{len(topic_filter):04x} {topic_filter.hex()} {options}"
            accepted(framed(first, f"0001 {field}"), "client", 4)
            accepted(framed(first, f"0001 00 {field}"), "client", 5)

    def test_packet_id_zero_is_malformed(self, first: int, options: str) -> None:
        assert fault(framed(first, f"0000 0001 61 {options}"), "client", 4).reason_code == 0x81
        assert fault(framed(first, f"0000 00 0001 61 {options}"), "client", 5).reason_code == 0x81


def test_subscription_identifier_zero_or_twice_is_refused() -> None:
    assert fault(framed(0x82, "0001 02 0b00 0001 61 00"), "client", 5).reason_code == 0x82
    assert fault(framed(0x82, "0001 04 0b01 0b01 0001 61 00"), "client", 5).reason_code == 0x82
    error = fault(framed(0x82, "0001 06 0b8080808001 0001 61 00"), "client", 5)
    assert error.reason_code == 0x81


# SUBACK, UNSUBACK


@pytest.mark.parametrize(
    ("first", "version", "letter"), [(0x90, 5, "s"), (0xB0, 5, "u"), (0x90, 4, "")]
)
def test_reason_codes_of_suback_and_unsuback(first: int, version: int, letter: str) -> None:
    props = "00" * (version - 4)
    for code in range(256):
        if version == 4:
            legal = code in (0, 1, 2, 0x80)  # [MQTT-3.9.3-2]
        else:
            legal = letter in REASON_TABLE.get(code, "")
        hexadecimal = framed(first, f"0001 {props} 00 {code:02x}")
        if legal:
            accepted(hexadecimal, "server", version)
        else:
            assert fault(hexadecimal, "server", version).reason_code == 0x82


def test_suback_and_unsuback_need_a_code() -> None:
    assert fault(framed(0x90, "0001"), "server", 4).reason_code == 0x82
    assert fault(framed(0x90, "0001 00"), "server", 5).reason_code == 0x82
    assert fault(framed(0xB0, "0001 00"), "server", 5).reason_code == 0x82
    assert fault(framed(0xB0, "0001"), "server", 5).reason_code == 0x81
    assert fault(framed(0xB0, "0001 00"), "server", 4).reason_code == 0x81


def test_packet_id_zero_in_suback_is_malformed() -> None:
    for first in (0x90, 0xB0):
        assert fault(framed(first, "0000 00 00"), "server", 5).reason_code == 0x81


# PINGREQ, PINGRESP, DISCONNECT, AUTH


@pytest.mark.parametrize(
    ("first", "sender", "version"),
    [
        (0xC0, "client", 4),
        (0xC0, "client", 5),
        (0xD0, "server", 4),
        (0xD0, "server", 5),
        (0xE0, "client", 4),
    ],
)
def test_packets_without_a_body(first: int, sender: Sender, version: int) -> None:
    accepted(framed(first, ""), sender, version)
    for body in ("00", "0000", "ff" * 200):
        assert fault(framed(first, body), sender, version).reason_code == 0x81


@pytest.mark.parametrize(("sender", "letter"), [("client", "c"), ("server", "d")])
def test_reason_codes_of_disconnect_depend_on_the_sender(sender: Sender, letter: str) -> None:
    """[MQTT-3.14.2-1]; 0x9B from a client is allowed by section 3.3.4"""
    for code in range(256):
        for body in (f"{code:02x}", f"{code:02x} 00"):
            if letter in REASON_TABLE.get(code, ""):
                assert accepted(framed(0xE0, body), sender, 5) == Disconnect(code)
            else:
                assert fault(framed(0xE0, body), sender, 5).reason_code == 0x82


def test_properties_of_disconnect_depend_on_the_sender() -> None:
    """[MQTT-3.14.2-2]"""
    expiry, reference = "00 05 11 00000001", "9c 04 1c 0001 73"
    accepted(framed(0xE0, expiry), "client", 5)
    assert fault(framed(0xE0, expiry), "server", 5).reason_code == 0x82
    accepted(framed(0xE0, reference), "server", 5)
    assert fault(framed(0xE0, "00 04 1c 0001 73"), "client", 5).reason_code == 0x82


@pytest.mark.parametrize(("sender", "letter"), [("client", "x"), ("server", "y")])
def test_reason_codes_of_auth_depend_on_the_sender(sender: Sender, letter: str) -> None:
    """[MQTT-3.15.2-1]"""
    for code in range(256):
        hexadecimal = framed(0xF0, f"{code:02x} 04 15 0001 6d")
        if letter in REASON_TABLE.get(code, ""):
            accepted(hexadecimal, sender, 5)
        else:
            assert fault(hexadecimal, sender, 5).reason_code == 0x82


@pytest.mark.parametrize("sender", ["client", "server"])
def test_auth_needs_a_method(sender: Sender) -> None:
    """Section 3.15.2.2.2; the empty body means 0x00 without a method."""
    for body in ("", "18 00", "18 04 16 0001 00"):
        assert fault(framed(0xF0, body), sender, 5).reason_code == 0x82
    assert fault(framed(0xF0, "18"), sender, 5).reason_code == 0x81
