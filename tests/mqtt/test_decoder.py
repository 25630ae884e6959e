"""Cutting the stream: splits, headers, sizes, state, cost. Bodies are judged in test_bodies."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtt import decoder as decoder_module
from mqtt.body_decoder import FILTERS_MAX, header_fault
from mqtt.decoder import PACKET_SIZE_MAX, Decoder
from mqtt.errors import MalformedPacket, MqttError, ProtocolError, UnsupportedProtocolVersion
from mqtt.packet_runs import Received
from mqtt.packets import Connect, Packet, Pingreq, Puback, Publish
from mqtt.reasons import QUOTA_EXCEEDED
from tests.mqtt.samples import GOLDEN, Sample, Sender, decoder_for, frame, streams

CONNECT_V4 = bytes.fromhex("10 0c 0004 4d515454 04 02 003c 0000")
CONNECT_V5 = bytes.fromhex("10 0d 0004 4d515454 05 02 003c 00 0000")
PINGREQ = b"\xc0\x00"

STREAMS = streams()
STREAM_IDS = [f"v{version}-{sender}" for sender, version, _, _ in STREAMS]
Stream = tuple[Sender, int, bytes, list[Packet]]


class CountingDecoder(Decoder):
    """Counts how often the decoder looks at its bytes, and how many it looks at."""

    looks = 0
    bytes_seen = 0

    def _decode(
        self, data: bytes, position: int, limit: int, found: list[Received], gathers: bool
    ) -> int:
        self.looks += 1
        self.bytes_seen += len(data)
        return super()._decode(data, position, limit, found, gathers)


def server(version: int = 5, maximum_packet_size: int = 0) -> Decoder:
    return Decoder("server", maximum_packet_size, version)


def feed(decoder: Decoder, data: bytes, size: int = 1) -> list[Packet]:
    found: list[Packet] = []
    for position in range(0, len(data), size):
        found += decoder.receive(data[position : position + size])
    return found


def fault_of(decoder: Decoder, kind: type[MqttError] = MqttError) -> MqttError:
    assert isinstance(decoder.error, kind)
    return decoder.error


# Splits


@pytest.mark.parametrize("stream", STREAMS, ids=STREAM_IDS)
def test_all_packets_of_a_stream_in_one_piece(stream: Stream) -> None:
    sender, version, data, packets = stream
    decoder = decoder_for(sender, version, connected=False)
    assert decoder.receive(data) == packets
    assert decoder.error is None and decoder.pending_size == 0
    assert decoder.version == version


@pytest.mark.parametrize("stream", STREAMS, ids=STREAM_IDS)
def test_a_stream_split_at_every_point(stream: Stream) -> None:
    sender, version, data, packets = stream
    for cut in range(len(data) + 1):
        decoder = decoder_for(sender, version, connected=False)
        assert decoder.receive(data[:cut]) + decoder.receive(data[cut:]) == packets
        assert decoder.error is None and decoder.pending_size == 0


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64])
@pytest.mark.parametrize("stream", STREAMS, ids=STREAM_IDS)
def test_a_stream_in_equal_pieces(stream: Stream, size: int) -> None:
    sender, version, data, packets = stream
    decoder = decoder_for(sender, version, connected=False)
    assert feed(decoder, data, size) == packets
    assert decoder.error is None and decoder.pending_size == 0


@pytest.mark.parametrize("sample", GOLDEN, ids=repr)
def test_every_truncation_waits_for_the_rest(sample: Sample) -> None:
    connected = not isinstance(sample.packet, Connect)
    for cut in range(len(sample.data)):
        decoder = decoder_for(sample.sender, sample.version, connected=connected)
        assert decoder.receive(sample.data[:cut]) == []
        assert decoder.error is None
        assert decoder.pending_size == cut
        assert decoder.receive(sample.data[cut:]) == [sample.packet]


@pytest.mark.parametrize("sample", GOLDEN, ids=repr)
def test_every_split_into_three(sample: Sample) -> None:
    data = sample.data
    connected = not isinstance(sample.packet, Connect)
    for one in range(0, len(data), 1 if len(data) < 40 else 7):
        for two in range(one, len(data), 1 if len(data) < 40 else 5):
            decoder = decoder_for(sample.sender, sample.version, connected=connected)
            found = decoder.receive(data[:one])
            found += decoder.receive(data[one:two])
            assert found + decoder.receive(data[two:]) == [sample.packet]


def test_nothing_is_nothing() -> None:
    decoder = server()
    assert decoder.receive(b"") == []
    assert decoder.receive(b"\xc0") == []
    assert decoder.receive(b"") == []
    assert decoder.receive(b"\x00\xc0\x00") == [Pingreq(), Pingreq()]


@settings(deadline=None, max_examples=50)
@given(st.data(), st.sampled_from(STREAMS))
def test_random_splits(data: st.DataObject, stream: Stream) -> None:
    sender, version, raw, packets = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    decoder = decoder_for(sender, version, connected=False)
    found: list[Packet] = []
    for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += decoder.receive(raw[start:stop])
    assert found == packets and decoder.error is None


# The first two bytes


@pytest.mark.parametrize(
    ("sender", "version"),
    [("client", 0), ("client", 4), ("client", 5), ("server", 4), ("server", 5)],
)
def test_all_first_two_bytes(sender: Sender, version: int) -> None:
    """Judged as soon as they are there, the same in one piece and in two."""
    role = "server" if sender == "client" else "client"
    for first in range(256):
        expected = header_fault(first, version, from_client=sender == "client")
        if version == 0 and first in range(0x11, 0x20):
            continue  # waits for its version, see below
        for second in range(256):
            decoder = Decoder(role, 0, version)
            found = decoder.receive(bytes((first, second)))
            if expected is not None:
                error = fault_of(decoder, type(expected))
                assert (str(error), error.reason_code) == (str(expected), expected.reason_code)
                assert found == []
            elif second == 0 and first >> 4 in (12, 13, 14) and decoder.error is None:
                assert len(found) == 1
            elif second == 0:
                assert found == [] and decoder.error is not None  # no packet else is that short
            else:
                assert found == [] and decoder.error is None
                assert decoder.pending_size == 2
        alone = Decoder(role, 0, version)
        alone.receive(bytes((first,)))
        assert (alone.error is None) is (expected is None)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("flags", range(1, 16))
def test_flags_of_connect_are_judged_when_it_can_be_told(flags: int, version: int) -> None:
    """[MQTT-2.1.3-1] The answer's form depends on the version, which comes after them."""
    whole = (
        bytes((0x10 | flags, 13))
        + b"\x00\x04MQTT"
        + bytes((version,))
        + b"\x02\x00\x00\x00\x00\x00"
    )
    decoder = server(0)
    assert decoder.receive(whole[:-1]) == [] and decoder.error is None
    assert decoder.receive(whole[-1:]) == []
    fault_of(decoder, MalformedPacket)
    assert decoder.version == version


def test_a_broken_connect_tells_how_large_the_answer_may_be() -> None:
    """[MQTT-3.1.2-24], as far as it could be read."""
    head = "10 17 0004 4d515454 05 02 003c 0a"
    decoder = server(0)
    decoder.receive(bytes.fromhex(head + "27 00000004 21 0000 21 00 00 0000"))
    fault_of(decoder, ProtocolError)
    assert decoder.peer_packet_size_max == 4
    decoder = server(0)
    decoder.receive(bytes.fromhex(head + "21 0000 27 00000004 21 00 00 0000"))
    fault_of(decoder, ProtocolError)
    assert decoder.peer_packet_size_max == 0


def test_a_fault_in_the_first_byte_does_not_wait_for_the_body() -> None:
    for data in (b"\x00", b"\x36", b"\x36\xff\xff\xff\x7f", b"\x60\x85\x80", b"\xf1\x20"):
        decoder = server()
        assert decoder.receive(data) == []
        fault_of(decoder, MalformedPacket)


# Remaining Length, section 2.1.4


@pytest.mark.parametrize("size", [0, 1, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 200])
def test_remaining_lengths_around_one_byte(size: int) -> None:
    data = frame(0x30, b"\x00\x01t" + b"x" * size)
    assert server(4).receive(data * 2) == [Publish("t", b"x" * size)] * 2
    assert feed(server(4), data * 2) == [Publish("t", b"x" * size)] * 2


@pytest.mark.parametrize("length", [16_383, 16_384, 2_097_151, 2_097_152])
def test_remaining_lengths_of_two_to_four_bytes(length: int) -> None:
    data = frame(0x30, b"\x00\x01t" + bytes(length - 3))
    for size in (len(data), len(data) - 1, 4096):
        decoder = server(4)
        assert feed(decoder, data + PINGREQ, size) == [Publish("t", bytes(length - 3)), Pingreq()]
        assert decoder.error is None


def test_the_largest_remaining_length_is_waited_for() -> None:
    decoder = server()
    assert decoder.receive(b"\x30\xff\xff\xff\x7f\x00\x01t") == []
    assert decoder.error is None


@pytest.mark.parametrize("length", ["8000", "ff00", "808000", "80808000", "82808000"])
def test_a_remaining_length_in_a_long_form_is_malformed(length: str) -> None:
    for pieces in (1, 9):
        decoder = server()
        assert feed(decoder, b"\xc0" + bytes.fromhex(length), pieces) == []
        assert "shortest form" in str(fault_of(decoder, MalformedPacket))


@pytest.mark.parametrize("length", ["80808080", "ffffffff", "8080808001", "ffffffff7f"])
def test_a_remaining_length_of_more_than_four_bytes_is_malformed(length: str) -> None:
    for pieces in (1, 9):
        decoder = server()
        assert feed(decoder, b"\x30" + bytes.fromhex(length), pieces) == []
        assert "more than four" in str(fault_of(decoder, MalformedPacket))


# Faults


def test_packets_before_the_fault_are_returned() -> None:
    decoder = server()
    found = decoder.receive(b"\x40\x02\x00\x01" + PINGREQ + b"\x40\x02\x00\x00" + PINGREQ)
    assert found == [Puback(1), Pingreq()]
    fault_of(decoder, MalformedPacket)


def test_nothing_comes_after_the_fault() -> None:
    decoder = server()
    decoder.receive(b"\x00")
    error = decoder.error
    assert decoder.receive(PINGREQ) == []
    assert decoder.receive(b"") == []
    assert decoder.error is error


@pytest.mark.parametrize(
    ("version", "hexadecimal"),
    [
        (5, "32 05 0001 74 0000 00"),
        (4, "30 02 0000"),
        (4, "32 05 0000 0001 78"),
        (5, "30 03 0000 00"),
        (5, "40 02 0000"),
        (5, "62 02 0000"),
        (4, "40 03 0001 00"),
        (5, "30 00"),
        (5, "30 01 00"),
        (4, "32 04 0001 74 00"),
        (5, "30 04 0001 74 7f"),
        (4, "30 04 0002 7423"),
    ],
)
def test_faults_on_the_short_path(version: int, hexadecimal: str) -> None:
    """What the loop finds itself is judged as by the longer way round."""
    data = bytes.fromhex(hexadecimal)
    for rest in (b"", PINGREQ * 9):
        for size in (1, len(data) + len(rest)):
            decoder = server(version)
            assert feed(decoder, data + rest, size) == []
            fault_of(decoder)


# CONNECT and the version


def test_dup_at_qos_0_means_nothing_in_mqtt_3_1() -> None:
    """What comes out can be sent, to clients of every version."""
    decoder = server(3)
    found = decoder.receive(bytes.fromhex("38 04 0001 74 78") + bytes.fromhex("39 04 0001 74 78"))
    assert found == [Publish("t", b"x"), Publish("t", b"x", retain=True)]
    assert decoder.receive(bytes.fromhex("3a 06 0001 74 0007 78")) == [
        Publish("t", b"x", 1, dup=True, packet_id=7)
    ]
    assert decoder.error is None


@pytest.mark.parametrize("size", [1, 7, 100])
def test_nothing_behind_a_connect_is_decoded_before_it_is_asked_for(size: int) -> None:
    """The fault in the stream, too, is found only then."""
    decoder = Decoder("server", 0, holds_after_connect=True)
    found = feed(decoder, CONNECT_V5 + PINGREQ * 2 + b"\x00", size)
    assert [type(packet) for packet in found] == [Connect]
    assert decoder.is_held and decoder.error is None
    assert decoder.go_on() == [Pingreq(), Pingreq()]
    fault_of(decoder, MalformedPacket)


def test_the_version_comes_from_connect() -> None:
    for connect, version, publish in (
        (CONNECT_V4, 4, b"\x30\x04\x00\x01t\x00"),
        (CONNECT_V5, 5, b"\x30\x05\x00\x01t\x00\x00"),
    ):
        decoder = server(0)
        assert decoder.version == 0
        found = decoder.receive(connect + publish)
        assert decoder.version == version
        assert len(found) == 2 and found[1] == Publish("t", b"\x00")


def test_a_second_connect_is_a_protocol_error() -> None:
    """[MQTT-3.1.0-2]"""
    for connect in (CONNECT_V4, CONNECT_V5):
        decoder = server(0)
        assert len(decoder.receive(connect + connect)) == 1
        assert fault_of(decoder, ProtocolError).reason_code == 0x82


def test_auth_before_and_after_connect() -> None:
    decoder = server(0)
    decoder.receive(bytes.fromhex("f0 06 18 04 15 0001 6d"))
    fault_of(decoder, ProtocolError)
    decoder = server(0)
    assert len(decoder.receive(CONNECT_V4 + bytes.fromhex("f0 06 18 04 15 0001 6d"))) == 1
    fault_of(decoder, MalformedPacket)


def test_the_version_is_known_also_of_a_broken_connect() -> None:
    """The form of the answer depends on it, and v3.1.1 gets none [MQTT-3.1.4-1]."""
    for version in (4, 5):
        decoder = server(0)
        decoder.receive(bytes.fromhex(f"10 0c 0004 4d515454 {version:02x} 03 003c 0000"))
        assert decoder.version == version
        fault_of(decoder, MalformedPacket)


def test_the_version_is_unknown_if_it_is_not_ours() -> None:
    decoder = server(0)
    decoder.receive(bytes.fromhex("10 0c 0004 4d515454 06 02 003c 0000"))
    assert decoder.version == 0
    fault_of(decoder, UnsupportedProtocolVersion)


@pytest.mark.parametrize(
    ("rest", "reads_as_five"),
    [
        ("02 003c 00 0000", True),
        ("02 003c 05 11 00000005 0001 63", True),
        ("02 003c 0000", False),
        ("02 003c 0001 63", False),
        ("02 003c 00 0001 63 00", False),
    ],
)
def test_what_follows_an_unknown_version_tells_the_form_of_the_answer(
    rest: str, reads_as_five: bool
) -> None:
    decoder = server(0)
    decoder.receive(frame(0x10, bytes.fromhex("0004 4d515454 06" + rest)))
    error = fault_of(decoder, UnsupportedProtocolVersion)
    assert isinstance(error, UnsupportedProtocolVersion)
    assert error.reads_as_five is reads_as_five


def test_a_client_has_to_know_its_version() -> None:
    with pytest.raises(ValueError, match="version 0: expected 3, 4 or 5"):
        Decoder("client", 0)
    with pytest.raises(ValueError, match="version 2"):
        Decoder("server", 0, 2)


def test_other_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="role 'broker'"):
        Decoder("broker", 0, 5)  # type: ignore[arg-type]  # the error under test
    with pytest.raises(ValueError, match="maximum_packet_size -1"):
        Decoder("server", -1)


# Sizes


@pytest.mark.parametrize("limit", [2, 3, 4, 5, 100, 127, 129, 130, 131, 5000])
def test_maximum_packet_size_counts_the_whole_packet(limit: int) -> None:
    sizes = [3, 4, 99, 100, 101, 126, 127, 128, 129, 131, 132, 5000, 5001]
    for size in sizes:
        payload = size - (5 if size < 130 else 6)
        if payload < 0:
            continue
        data = frame(0x30, b"\x00\x01t" + bytes(payload))
        assert len(data) == size
        for piece in (1, size):
            decoder = server(4, limit)
            found = feed(decoder, data, piece)
            if size <= limit:
                assert found == [Publish("t", bytes(payload))] and decoder.error is None
            else:
                assert found == []
                assert fault_of(decoder, ProtocolError).reason_code == 0x95


def test_too_large_is_decided_on_the_fixed_header() -> None:
    for header in (b"\x30\x63", b"\x30\x80\x01", b"\x30\xff\xff\xff\x7f"):
        decoder = server(5, 100)
        assert decoder.receive(header) == []
        assert fault_of(decoder, ProtocolError).reason_code == 0x95
        assert decoder.pending_size == 0


def test_the_limit_may_change_between_calls() -> None:
    decoder = server(5, 100)
    decoder.maximum_packet_size = 5
    decoder.receive(frame(0x30, b"\x00\x01t\x00p"))
    assert fault_of(decoder).reason_code == 0x95


def test_no_limit_is_the_limit_of_the_format() -> None:
    assert PACKET_SIZE_MAX == 268_435_460


@pytest.mark.parametrize("version", [4, 5])
def test_a_connect_has_its_own_limit(version: int) -> None:
    """Of one that is too large just enough is read to know the form of the answer."""
    body = bytes.fromhex(f"0004 4d515454 {version:02x} c6 0000") + b"\x00" * (version - 4)
    data = frame(0x10, body + bytes(300_000))
    for piece in (1, len(data)):
        decoder = server(0)
        assert feed(decoder, data[:11], piece) == []
        if piece == 1:
            assert decoder.error is not None or decoder.pending_size <= 11
        feed(decoder, data[11:400], piece)
        assert fault_of(decoder, ProtocolError).reason_code == 0x95
        assert decoder.version == version
        assert decoder.pending_size == 0


def test_the_smaller_limit_holds_for_connect() -> None:
    decoder = Decoder("server", 13)
    decoder.receive(CONNECT_V5)
    assert fault_of(decoder, ProtocolError).reason_code == 0x95
    assert decoder.version == 5
    decoder = Decoder("server", 15)
    assert len(decoder.receive(CONNECT_V5)) == 1
    decoder = Decoder("server", 0, connect_size_max=13)
    decoder.receive(CONNECT_V4)
    assert fault_of(decoder).reason_code == 0x95


def test_a_large_connect_of_another_protocol_is_not_read() -> None:
    decoder = Decoder("server", 0)
    decoder.receive(b"\x10\xff\xff\xff\x7f" + bytes.fromhex("0004 4d515454 06"))
    fault_of(decoder, UnsupportedProtocolVersion)
    decoder = Decoder("server", 0)
    decoder.receive(b"\x10\xff\xff\xff\x7fGET / HTTP/1.1")
    fault_of(decoder)


def test_the_connect_limit_ends_with_connect() -> None:
    decoder = Decoder("server", 0, connect_size_max=100)
    large = frame(0x30, b"\x00\x01t" + bytes(1000))
    assert len(decoder.receive(CONNECT_V4 + large)) == 2
    assert decoder.error is None


def test_the_user_property_limit_is_per_decoder() -> None:
    pair = b"\x26\x00\x00\x00\x00"
    for limit, count, fine in ((2, 2, True), (2, 3, False), (0, 1, False), (0, 0, True)):
        decoder = server()
        decoder.user_properties_max = limit
        decoder.receive(frame(0x30, b"\x00\x01t" + bytes((5 * count,)) + pair * count))
        assert (decoder.error is None) is fine


# Cost


def megabyte_of_user_properties() -> bytes:
    pair = b"\x26\x00\x10" + b"n" * 16 + b"\x03\xf0" + b"v" * 1008
    return pair * 1000


def test_a_megabyte_of_user_properties_byte_by_byte_is_looked_at_once() -> None:
    block = megabyte_of_user_properties()
    length = len(block)
    assert length > 1_000_000
    prefix = bytes((length & 127 | 128, length >> 7 & 127 | 128, length >> 14))
    data = frame(0x30, b"\x00\x01t" + prefix + block)
    decoder = CountingDecoder("server", 0, 5)
    found = feed(decoder, data)
    assert len(found) == 1 and decoder.error is None
    assert decoder.looks <= 6  # each byte of the header, then the whole
    assert decoder.bytes_seen <= len(data) + 16


def test_bytes_looked_at_grow_with_the_bytes_received() -> None:
    """Many packets in pieces that never fit: each byte is looked at twice at most."""
    data = frame(0x30, b"\x00\x01t\x00" + bytes(500)) * 200
    for piece in (1, 7, 100, 499, 501, 4096):
        decoder = CountingDecoder("server", 0, 5)
        assert len(feed(decoder, data, piece)) == 200
        assert decoder.bytes_seen <= 2 * len(data)


@pytest.mark.parametrize(
    "data",
    [
        frame(0x30, b"\x00\x01\xff\x00"),  # not UTF-8
        frame(0x30, b"\x00\x03t\x00t\x00"),
        frame(0x30, b"\x00\x01t\x02\x01\x07"),
        frame(0x10, b"\x00\x04MQTT\x04\xc2\x00\x00\x00\x01c\x00\x01\xff\x00\x01x"),
        frame(0x10, b"\x00\x04MQTT\x09\x02\x00\x00\x00\x01c"),
    ],
)
def test_an_error_keeps_nothing_of_the_stream_alive(data: bytes) -> None:
    """A traceback, its own or of what it came from, leads to the packet and back to the decoder."""
    decoder = Decoder("server", 0, 0 if data[0] == 0x10 else 5)
    decoder.receive(data)
    error = decoder.error
    assert isinstance(error, MqttError)
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


# The cache of topics


def publish_to(topic: bytes) -> bytes:
    return frame(0x30, len(topic).to_bytes(2, "big") + topic + b"\x00")


def test_the_topic_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "TOPICS_MAX", 10)
    decoder_module._topics.clear()
    decoder = server()
    for number in range(100):
        topic = f"t/{number}"
        assert decoder.receive(publish_to(topic.encode())) == [Publish(topic, b"")]
        assert len(decoder_module._topics) <= 10


def test_a_full_topic_cache_is_emptied_when_many_topics_were_not_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoder_module, "TOPICS_MAX", 2)
    monkeypatch.setattr(decoder_module, "TOPICS_PASSED_MAX", 3)
    decoder_module._topics.clear()
    decoder_module._passed[0] = 0
    sizes = []
    for number in range(8):
        topic = f"t/{number}"
        assert server().receive(publish_to(topic.encode())) == [Publish(topic, b"")]
        sizes.append(len(decoder_module._topics))
    assert sizes == [1, 2, 2, 2, 2, 1, 2, 2]


def test_long_empty_and_illegal_topics_are_not_cached() -> None:
    decoder_module._topics.clear()
    for topic in (b"x" * 257, b"", b"a/#", b"\xff", b"a\x00"):
        server().receive(publish_to(topic))
    assert decoder_module._topics == {}
    server().receive(publish_to(b"x" * 256))
    assert len(decoder_module._topics) == 1


# The cache of property blocks


def publish_with(block: bytes, topic: bytes = b"t") -> bytes:
    return frame(0x30, len(topic).to_bytes(2, "big") + topic + bytes((len(block),)) + block)


def test_the_block_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "BLOCKS_MAX", 10)
    decoder_module._blocks.clear()
    decoder = server()
    for expiry in range(100):
        block = b"\x02" + expiry.to_bytes(4, "big")
        expected = Publish("t", b"", message_expiry_interval=expiry)
        assert decoder.receive(publish_with(block) * 2) == [expected] * 2
        assert len(decoder_module._blocks) <= 10


def test_long_and_illegal_blocks_are_not_cached() -> None:
    decoder_module._blocks.clear()
    long_block = b"\x26\x00\x00\x00\xfd" + b"v" * 253  # 258 bytes
    found = server().receive(frame(0x30, b"\x00\x01t\x82\x02" + long_block))
    assert found == [Publish("t", b"", properties=long_block)]
    for block in (b"\xff", b"\x02\x00", b"\x23\x00\x00"):
        assert server().receive(publish_with(block)) == []
    assert decoder_module._blocks == {}


def test_a_block_seen_before_is_judged_by_the_rules_of_this_connection() -> None:
    """What depends on direction, limits or the topic must not come from the cache."""
    identifier, pairs, expiry = b"\x0b\x01", b"\x26\x00\x00\x00\x00" * 3, b"\x02\x00\x00\x00\x01"
    for block in (identifier, pairs, expiry):
        client = Decoder("client", 0, 5)
        assert len(client.receive(publish_with(block))) == 1
        assert block in decoder_module._blocks
    decoder = server()
    assert decoder.receive(publish_with(identifier)) == []
    assert fault_of(decoder, ProtocolError).reason_code == 0x82
    decoder = server()
    decoder.user_properties_max = 2
    assert decoder.receive(publish_with(pairs)) == []
    assert fault_of(decoder, ProtocolError).reason_code == 0x97
    decoder = server()
    assert decoder.receive(publish_with(expiry, topic=b"")) == []
    assert fault_of(decoder, ProtocolError).reason_code == 0x82


def test_the_same_fault_with_and_without_the_cache() -> None:
    pairs = publish_with(b"\x26\x00\x00\x00\x00" * 3)
    faults = []
    for warm in (False, True):
        decoder_module._blocks.clear()
        if warm:
            server().receive(pairs)
        decoder = server()
        decoder.user_properties_max = 2
        decoder.receive(pairs)
        faults.append((str(decoder.error), fault_of(decoder).reason_code))
    assert faults[0] == faults[1]


@pytest.mark.parametrize("kind", [0x82, 0xA2])
def test_filters_of_one_packet_are_limited_by_number(kind: int) -> None:
    filter_and_options = b"\x00\x01a\x00" if kind == 0x82 else b"\x00\x01a"
    for count, is_taken in ((FILTERS_MAX, True), (FILTERS_MAX + 1, False)):
        body = b"\x00\x07" + filter_and_options * count
        length = len(body)
        header = bytes((kind, length & 127 | 128, length >> 7 & 127 | 128, length >> 14))
        decoder = Decoder("server", 0, 4)
        packets = decoder.receive(header + body)
        assert len(packets) == is_taken
        assert is_taken or isinstance(decoder.error, ProtocolError)
        assert decoder.error is None or decoder.error.reason_code == QUOTA_EXCEEDED


def test_a_publish_without_room_for_its_properties_is_malformed_after_a_run_too() -> None:
    whole, without = b"\x30\x05\x00\x01t\x00x", b"\x30\x03\x00\x01t"
    decoder = server()
    assert len(decoder.receive_runs(whole + whole + without)) == 1
    assert fault_of(decoder, MalformedPacket).reason_code == 0x81


def test_bytes_that_no_packet_was_decoded_from_yet_can_be_seen() -> None:
    decoder = Decoder("server", 0, 5)
    ping = b"\xc0\x00"
    assert decoder.receive(ping + b"\x30\x05\x00") and decoder.pending_bytes() == b"\x30\x05\x00"
    decoder.receive(b"\x01")
    assert decoder.pending_bytes() == b"\x30\x05\x00\x01"
    decoder = Decoder("server", 0, 5)
    assert len(decoder.receive_runs(ping * 5, 2)) == 1 and decoder.is_cut
    decoder.receive_runs(b"\xc0")
    assert decoder.pending_bytes() == ping * 4 + b"\xc0"
    assert decoder.pending_size == len(decoder.pending_bytes())
