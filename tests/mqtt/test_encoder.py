"""Bytes going out: golden vectors, round trips, what is refused, what v3.1.1 leaves out."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtt import encoder
from mqtt.decoder import Decoder
from mqtt.encoder import (
    PACKET_ID,
    encode,
    encode_publish_parts,
    message_properties,
    publish_properties,
)
from mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
    Will,
)
from mqtt.properties import read_publish
from mqtt.wire import encode_varint
from tests.mqtt.samples import FORWARD, GOLDEN, LONG_FORMS, USER, Sample, Sender, decoder_for
from tests.mqtt.strategies import connects, packets_from


@pytest.mark.parametrize("sample", GOLDEN, ids=repr)
def test_packets_encode_to_their_golden_bytes(sample: Sample) -> None:
    assert encode(sample.packet, sample.version).hex() == sample.data.hex()


@pytest.mark.parametrize("sample", LONG_FORMS, ids=repr)
def test_the_shortest_form_is_sent(sample: Sample) -> None:
    assert len(encode(sample.packet, sample.version)) <= len(sample.data)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("sender", ["client", "server"])
class TestRoundTrip:
    @settings(deadline=None, max_examples=150)
    @given(data=st.data())
    def test_what_is_encoded_decodes_to_the_same(
        self, data: st.DataObject, sender: Sender, version: int
    ) -> None:
        packets = data.draw(st.lists(packets_from(sender, version), min_size=1, max_size=4))
        raw = b"".join([encode(packet, version) for packet in packets])
        decoder = decoder_for(sender, version)
        assert decoder.receive(raw) == packets
        assert decoder.error is None and decoder.pending_size == 0


@pytest.mark.parametrize("version", [4, 5])
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_connect_round_trip(version: int, data: st.DataObject) -> None:
    connect = data.draw(connects(version))
    decoder = Decoder("server", 0)
    assert decoder.receive(encode(connect, version)) == [connect]
    assert decoder.error is None and decoder.version == version


def test_acknowledgements_without_a_reason_are_ready_made() -> None:
    makers: list[tuple[Callable[[int], bytes], type[Puback | Pubrec | Pubrel | Pubcomp]]] = [
        (encoder.puback, Puback),
        (encoder.pubrec, Pubrec),
        (encoder.pubrel, Pubrel),
        (encoder.pubcomp, Pubcomp),
    ]
    for maker, packet_type in makers:
        for packet_id in (1, 255, 256, 65_535):
            for version in (4, 5):
                assert maker(packet_id) == encode(packet_type(packet_id), version)
        for packet_id in (0, -1, 65_536):
            with pytest.raises(AssertionError):
                maker(packet_id)
    assert encode(Pingresp(), 4) == encoder.PINGRESP_BYTES
    assert encode(Pingreq(), 5) == encoder.PINGREQ_BYTES
    assert PACKET_ID[0x1234] == b"\x12\x34" and len(PACKET_ID) == 65_536


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1, 100, 120, 130, 16_370, 16_384, 70_000])
def test_publish_in_two_parts_is_the_same_packet(version: int, qos: int, size: int) -> None:
    for retain in (False, True):
        for dup in (False, True) if qos else (False,):
            packet = Publish("a/\u00e9", bytes(size), qos, retain, dup, 0x1234 if qos else 0)
            if version == 5:
                packet.properties, packet.topic_alias = FORWARD, 3
            block = publish_properties(-1, packet.topic_alias, (), packet.properties)
            head, tail = encode_publish_parts(
                version, b"a/\xc3\xa9", packet.payload, qos, retain, dup, block
            )
            whole = head + (PACKET_ID[0x1234] if qos else b"") + tail
            assert whole == encode(packet, version)
            assert decoder_for("server", version).receive(whole) == [packet]


def test_properties_are_ignored_for_v4() -> None:
    head, tail = encode_publish_parts(4, b"t", b"p", 0, False, False, FORWARD)
    assert head + tail == bytes.fromhex("30 04 0001 74 70")


def test_publish_properties_are_composed_in_front_of_the_forwarded_ones() -> None:
    assert publish_properties(-1, 0, (), b"") == b""
    assert publish_properties(-1, 0, (), FORWARD) is FORWARD
    assert publish_properties(0, 0, (), b"") == bytes.fromhex("02 00000000")
    assert publish_properties(0xFFFFFFFF, 65_535, (1, 128, 268_435_455), FORWARD) == (
        bytes.fromhex("02 ffffffff 23 ffff 0b 01 0b 8001 0b ffffff7f") + FORWARD
    )


@pytest.mark.parametrize(
    ("expiry", "alias", "identifiers", "named"),
    [
        (1 << 32, 0, (), "message expiry interval"),
        (-1, 65_536, (), "topic alias"),
        (-1, -1, (), "topic alias"),
        (-1, 0, (0,), "subscription identifier"),
        (-1, 0, (1, 268_435_456), "subscription identifier"),
        (-1, 0, (-1,), "subscription identifier"),
    ],
)
def test_publish_properties_out_of_range_are_refused(
    expiry: int, alias: int, identifiers: tuple[int, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        publish_properties(expiry, alias, identifiers, b"")


LONG = "x" * 65_536
REFUSED: list[tuple[Packet, int, str]] = [
    (Pingreq(), 2, "version 2"),
    (Pingreq(), 0, "version 0"),
    (Publish("", b""), 4, "topic is empty"),
    (Publish("", b""), 5, "topic is empty"),
    (Publish("", b"", topic_alias=1), 4, "topic is empty"),
    (Publish("a/#", b""), 5, "wildcard"),
    (Publish("+", b""), 4, "wildcard"),
    (Publish("a\0", b""), 4, "topic holds U\\+0000"),
    (Publish("\ud800", b""), 5, "topic holds a surrogate"),
    (Publish(LONG, b""), 5, "topic of 65536 bytes"),
    (Publish("t", b"", 3, packet_id=1), 5, "qos 3"),
    (Publish("t", b"", -1), 5, "qos -1"),
    (Publish("t", b"", 0, dup=True), 5, "dup at qos 0"),
    (Publish("t", b"", 1), 5, "packet_id 0"),
    (Publish("t", b"", 2, packet_id=65_536), 4, "packet_id 65536"),
    (Publish("t", b"", 0, packet_id=1), 4, "packet_id 1 at qos 0"),
    (Publish("t", b"", topic_alias=65_536), 5, "topic alias"),
    (Puback(0), 5, "packet_id 0"),
    (Puback(65_536), 4, "packet_id 65536"),
    (Puback(1, 0x82), 5, "reason_code 0x82"),
    (Pubrec(1, 0x92), 5, "reason_code 0x92"),
    (Pubrel(1, 0x10), 5, "reason_code 0x10"),
    (Pubcomp(1, 0x80), 5, "reason_code 0x80"),
    (Puback(1, 0, LONG), 5, "reason string of 65536 bytes"),
    (Puback(1, 0, None, (("a", LONG),)), 5, "user property value of 65536"),
    (Puback(1, 0, None, ((LONG, "a"),)), 5, "user property name of 65536"),
    (Puback(1, 0, "a\0"), 5, "reason string holds U\\+0000"),
    (Connect("c", 4), 5, "protocol_version 4"),
    (Connect("c", 5), 4, "protocol_version 5"),
    (Connect("c", 4, password=b""), 4, "password without username"),
    (Connect(LONG, 4), 4, "client id of 65536"),
    (Connect("c", 4, username=LONG), 4, "user name"),
    (Connect("c", 5, password=bytes(65_536)), 5, "password of 65536"),
    (Connect("c", 4, keep_alive=65_536), 4, "keep alive"),
    (Connect("c", 5, receive_maximum=0), 5, "receive maximum 0"),
    (Connect("c", 5, receive_maximum=65_536), 5, "receive maximum"),
    (Connect("c", 5, session_expiry_interval=1 << 32), 5, "session expiry interval"),
    (Connect("c", 5, maximum_packet_size=1 << 32), 5, "maximum packet size"),
    (Connect("c", 5, topic_alias_maximum=-1), 5, "topic alias maximum"),
    (Connect("c", 5, authentication_data=b""), 5, "without authentication method"),
    (Connect("c", 4, will=Will("a/+", b"", 0, False)), 4, "will topic"),
    (Connect("c", 5, will=Will("", b"", 0, False)), 5, "will topic"),
    (Connect("c", 5, will=Will("t", b"", 3, False)), 5, "will qos 3"),
    (Connect("c", 5, will=Will("t", bytes(65_536), 0, False)), 5, "will payload"),
    (Connect("c", 5, will=Will("t", b"", 0, False, 1 << 32)), 5, "will delay interval"),
    (Connack(True, 0x87), 5, "session_present"),
    (Connack(True, 0x87), 4, "session_present"),
    (Connack(False, 0x81), 4, "reason_code 0x81"),
    (Connack(False, 0x8B), 5, "reason_code 0x8B"),
    (Connack(maximum_qos=3), 5, "maximum QoS 3"),
    (Connack(receive_maximum=0), 5, "receive maximum 0"),
    (Connack(server_keep_alive=65_536), 5, "server keep alive"),
    (Subscribe(1, []), 5, "subscriptions is empty"),
    (Subscribe(0, [Subscription("a", 0)]), 4, "packet_id 0"),
    (Subscribe(1, [Subscription("", 0)]), 4, "topic filter is empty"),
    (Subscribe(1, [Subscription(LONG, 0)]), 4, "topic filter of 65536"),
    (Subscribe(1, [Subscription("a", 3)]), 4, "subscription qos 3"),
    (Subscribe(1, [Subscription("a", 0, retain_handling=3)]), 5, "retain_handling 3"),
    (Subscribe(1, [Subscription("a", 0)], 268_435_456), 5, "subscription identifier"),
    (Suback(1, []), 5, "reason_codes is empty"),
    (Suback(1, [0, 3]), 5, "reason_code 0x03"),
    (Suback(1, [0x11]), 4, "reason_code 0x11"),
    (Unsuback(1, []), 5, "reason_codes is empty"),
    (Unsuback(1, [0x97]), 5, "reason_code 0x97"),
    (Unsubscribe(1, []), 4, "topic_filters is empty"),
    (Unsubscribe(1, ["a", ""]), 5, "topic filter is empty"),
    (Disconnect(0x84), 5, "reason_code 0x84"),
    (Disconnect(0, 1 << 32), 5, "session expiry interval"),
    (Auth(0x18, "m"), 4, "AUTH"),
    (Auth(0x18), 5, "authentication method is missing"),
    (Auth(0x80, "m"), 5, "reason_code 0x80"),
]


@pytest.mark.parametrize(("packet", "version", "named"), REFUSED)
def test_what_must_not_be_sent_is_refused_by_name(packet: Packet, version: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        encode(packet, version)


class _Huge(bytes):
    """Bytes that claim to be longer than a packet may be, without the memory."""

    def __len__(self) -> int:
        return 268_435_455


def test_a_packet_beyond_the_largest_remaining_length_is_refused() -> None:
    with pytest.raises(ValueError, match="packet body of 268435458 bytes"):
        encode_publish_parts(4, b"t", _Huge(), 0, False, False)


def test_parts_refuse_a_topic_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="topic of 65536 bytes"):
        encode_publish_parts(4, b"x" * 65_536, b"", 0, False, False)


# What v3.1.1 cannot say


@pytest.mark.parametrize("code", [0x00, 0x10, 0x80, 0x97])
def test_v4_acknowledgements_have_no_reason(code: int) -> None:
    assert encode(Puback(1, code, "why", USER), 4) == bytes.fromhex("40 02 0001")


def test_v4_suback_knows_one_failure() -> None:
    assert encode(Suback(1, [0, 1, 2, 0x8F, 0x97], "r", USER), 4).hex() == "90070001000102" + "8080"


def test_v4_unsuback_has_no_codes() -> None:
    assert encode(Unsuback(1, [0, 0x11], "r", USER), 4) == bytes.fromhex("b0 02 0001")


def test_v4_disconnect_has_no_reason() -> None:
    assert encode(Disconnect(0x8E, 1, "r", USER, "s"), 4) == b"\xe0\x00"


@pytest.mark.parametrize(
    ("reason", "code"), [(0x84, 1), (0x85, 2), (0x88, 3), (0x86, 4), (0x87, 5)]
)
def test_v4_connack_maps_the_reason(reason: int, code: int) -> None:
    connack = Connack(False, reason, reason_string="r", assigned_client_id="i")
    assert encode(connack, 4) == bytes((0x20, 2, 0, code))


def test_v4_publish_drops_properties() -> None:
    publish = Publish("t", b"p", 1, False, False, 1, FORWARD, 10, 3, (1,))
    assert encode(publish, 4) == bytes.fromhex("32 06 0001 74 0001 70")


def test_v4_will_and_subscriptions_drop_options() -> None:
    will = Will("t", b"", 0, False, 5, 6, FORWARD)
    plain = Connect("c", 4, will=Will("t", b"", 0, False))
    assert encode(Connect("c", 4, will=will), 4) == encode(plain, 4)
    subscribe = Subscribe(1, [Subscription("a", 1, True, True, 2)], 7, USER)
    assert encode(subscribe, 4) == bytes.fromhex("82 06 0001 0001 61 01")
    assert encode(Unsubscribe(1, ["a"], USER), 4) == bytes.fromhex("a2 05 0001 0001 61")


def test_fields_of_the_largest_size_can_be_sent() -> None:
    longest = "x" * 65_535
    publish = Publish(longest, b"", 1, packet_id=65_535)
    subscribe = Subscribe(1, [Subscription(longest, 0)])
    connect = Connect(
        longest, 4, will=Will("t", bytes(65_535), 0, False), username="u", password=bytes(65_535)
    )
    for version in (4, 5):
        raw = encode(publish, version) + encode(subscribe, version)
        assert decoder_for("client", version).receive(raw) == [publish, subscribe]
    assert Decoder("server", 0).receive(encode(connect, 4)) == [connect]


@pytest.mark.parametrize("length", [126, 127, 128, 129, 16_382, 16_383, 16_384, 16_385, 2_097_152])
def test_remaining_lengths_at_the_edges_of_their_size(length: int) -> None:
    publish = Publish("t", bytes(length - 3))
    raw = encode(publish, 4)
    assert len(raw) == 1 + length + (1 if length < 128 else 2 if length < 16_384 else 3) + (
        1 if length >= 2_097_152 else 0
    )
    assert decoder_for("client", 4).receive(raw) == [publish]


def test_every_length_that_is_encoded_in_advance_is_the_one_that_is_worked_out() -> None:
    for length in range(4, 16_386):
        head, tail = encode_publish_parts(4, b"t", bytes(length - 3), 0, False, False, b"")
        assert head[1:] == encode_varint(length, "remaining length") + b"\x00\x01t"
        assert len(tail) == length - 3
    every = list(range(65_536))
    assert encoder.pubacks(every, True) == encoder.pubacks(every, False)


@pytest.mark.parametrize("version", [4, 5])
def test_the_first_byte_of_a_body_is_not_taken_for_length(version: int) -> None:
    """Remaining length 127 is the last of one byte; here a packet id with a high byte follows."""
    size = 127 - 2 - 2 - 1 - (version - 4)
    subscribe = Subscribe(0x0101, [Subscription("x" * size, 1)])
    raw = encode(subscribe, version)
    assert raw[:4] == b"\x82\x7f\x01\x01"
    assert decoder_for("client", version).receive(raw + raw) == [subscribe, subscribe]


def test_mqtt_3_1_has_its_own_name_and_no_session_present() -> None:
    connect = Connect("c", 3, True, 60, None, None, None)
    assert encode(connect, 3) == bytes.fromhex("100f 0006 4d5149736470 03 02 003c 0001 63")
    assert encode(Connack(True, 0), 3) == bytes.fromhex("20 02 00 00")
    assert encode(Connack(False, 0x85), 3) == bytes.fromhex("20 02 00 02")
    assert encode(Suback(1, [2]), 3) == encode(Suback(1, [2]), 4)


def test_the_properties_of_a_message_are_those_that_a_publisher_sends() -> None:
    assert message_properties(None, ()) == b""
    raw = message_properties("text/plain", (("k", "v"), ("k", "")))
    assert raw == b"\x03\x00\x0atext/plain\x26\x00\x01k\x00\x01v\x26\x00\x01k\x00\x00"
    assert read_publish(raw, 2).forward == raw


@pytest.mark.parametrize("text", ["a\0", "\ud800", "x" * 65_536])
def test_a_property_that_no_packet_can_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="user property value"):
        message_properties(None, (("k", text),))
    with pytest.raises(ValueError, match="content type"):
        message_properties(text, ())
