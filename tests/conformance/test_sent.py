"""What is known of the client's own packets: enough, and never an exception."""

from conformance import tables, wire
from conformance.sent import Splitter


def test_packets_are_found_however_they_are_cut() -> None:
    stream = wire.connect("x", version=5) + wire.subscribe(7, [("a/#", 1)], version=5)
    splitter = Splitter(5)
    found = [packet for byte in stream for packet in splitter.feed(bytes([byte]))]
    assert [packet.kind for packet in found] == [tables.CONNECT, tables.SUBSCRIBE]
    assert found[1].packet_id == 7
    assert found[1].filters == ("a/#",)
    assert not splitter.is_lost


def test_what_the_rules_need_is_read() -> None:
    connect = wire.connect("x", version=5, properties=[(tables.RECEIVE_MAXIMUM, 3)])
    (packet,) = Splitter(5).feed(connect)
    assert packet.properties.number(tables.RECEIVE_MAXIMUM) == 3
    assert packet.level == 5
    (packet,) = Splitter(5).feed(wire.pubrec(9, 0x80))
    assert (packet.packet_id, packet.reason) == (9, 0x80)
    (packet,) = Splitter(4).feed(wire.publish("t", version=4, qos=1, packet_id=5))
    assert packet.packet_id == 5


def test_what_cannot_be_understood_is_shown_all_the_same() -> None:
    for data in (
        wire.subscribe(1, [(b"\xff", 0)], version=5),
        wire.connect("x", version=4, name=b"\xff"),
        wire.packet(0x82, b"\x00"),
        wire.publish("t", version=5, properties=b"\x7f"),
    ):
        splitter = Splitter(5)
        (packet,) = splitter.feed(data)
        assert splitter.is_lost
        assert packet.raw == data
        assert packet.describe().endswith("(not well formed)")


def test_a_length_of_five_bytes_loses_the_thread_quietly() -> None:
    splitter = Splitter(5)
    assert splitter.feed(b"\x30\xff\xff\xff\xff\x01aaaa") == []
    assert splitter.is_lost


def test_the_level_of_a_connect_of_another_version_is_known() -> None:
    splitter = Splitter(5)
    (packet,) = splitter.feed(wire.connect("x", version=5, level=127))
    assert packet.level == 127
    assert splitter.is_lost


def test_a_packet_can_be_read_by_people() -> None:
    (packet,) = Splitter(4).feed(wire.publish("t", b"p", version=4, qos=1, dup=True, packet_id=5))
    assert packet.describe() == "PUBLISH id 5, 't', QoS 1 DUP, payload b'p'"
    (packet,) = Splitter(4).feed(wire.subscribe(1, [("a", 1), ("b", 2)], version=4))
    assert packet.describe() == "SUBSCRIBE id 1, 'a' 0x01, 'b' 0x02"
    (packet,) = Splitter(4).feed(wire.pingreq())
    assert packet.describe() == "PINGREQ"
