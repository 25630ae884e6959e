"""Bytes that no client should send: C11, C12 and C18 of docs/security.md.

Every one costs its own connection at most. tests/mqtt proves the same of the decoder alone, and
tests/fuzz with random input.
"""

from itertools import product
from typing import Any, Final

import pytest

from mqtt import reasons
from mqtt.decoder import Decoder
from mqtt.encoder import encode
from mqtt.packets import (
    Auth,
    Connack,
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
)
from tests.fuzz.command import run_many
from tests.session.harness import Broker, connect_packet, will

FROM_CLIENT: list[Packet] = [
    Publish("t", b"x", 1, packet_id=1),
    Publish("t", b"x", 2, packet_id=2),
    Publish("t", b"x"),
    Puback(1),
    Pubrec(1),
    Pubrel(1),
    Pubcomp(1),
    Subscribe(3, [Subscription("t", 1)]),
    Unsubscribe(4, ["t"]),
    Pingreq(),
    Disconnect(0),
]
FROM_SERVER: list[Packet] = [
    Connack(False, 0),
    Suback(1, [0]),
    Unsuback(1, [0]),
    Pingresp(),
]


def kinds(packets: list[Packet]) -> list[str]:
    return [type(packet).__name__ for packet in packets]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("packet", FROM_CLIENT + FROM_SERVER, ids=kinds(FROM_CLIENT + FROM_SERVER))
def test_c12_any_packet_first_is_closed_in_silence(packet: Packet, version: int) -> None:
    """CVE-2021-28166, sol #15: CONNACK, or PUBACK before CONNECT."""
    broker = Broker()
    watcher = broker.clean("watcher", "#")
    client = broker.open(version)
    client.send(packet)
    assert client.is_closed and client.take() == []
    watcher.expect_nothing()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("packet", FROM_SERVER, ids=kinds(FROM_SERVER))
def test_c12_what_only_a_server_sends_is_an_error(packet: Packet, version: int) -> None:
    broker = Broker()
    other = broker.connect("other")
    client = broker.connect("c", version=version)
    client.send(packet)
    client.expect_closed(reasons.PROTOCOL_ERROR)
    other.ping()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("packet", FROM_CLIENT, ids=kinds(FROM_CLIENT))
def test_c12_every_truncation_waits_and_every_shortened_packet_is_refused(
    packet: Packet, version: int
) -> None:
    """Cut off: it waits. Shortened, with a length that agrees: refused or understood, no crash."""
    broker = Broker()
    other = broker.connect("other")
    whole = encode(packet, version)
    for size in range(1, len(whole)):
        client = broker.connect("c", version=version)
        client.send_bytes(whole[:size])
        assert not client.is_closed
        client.drop()
        if size < 2:
            continue
        client = broker.connect("c", version=version)
        client.send_bytes(whole[:1] + bytes((size - 2,)) + whole[2:size])
        answers = client.take()
        assert not client.is_closed or answers == [] or isinstance(answers[-1], Disconnect)
        client.drop()
    other.ping()


@pytest.mark.parametrize("version", [4, 5])
def test_c12_a_second_connect_changes_nothing_of_another_session(version: int) -> None:
    broker = Broker()
    victim = broker.durable("victim", "t")
    client = broker.connect("c", version=version)
    client.send(connect_packet("victim", version))
    client.expect_closed(reasons.PROTOCOL_ERROR)
    victim.ping()
    broker.publish("t")
    assert len(victim.receive_all()) == 1


@pytest.mark.parametrize("first", range(256))
def test_c12_every_first_byte_after_connect_costs_one_connection_at_most(first: int) -> None:
    broker = Broker()
    other = broker.connect("other")
    for second in (0, 1, 2, 5):
        for filling in (b"\x00", b"\xff", b"\x01"):
            client = broker.connect("c")
            client.send_bytes(bytes((first, second)) + filling * second)
            client.take()
            client.drop()
    other.ping()


def test_c12_auth_where_there_is_no_method_is_an_error() -> None:
    client = Broker().connect("c")
    client.send(Auth(0x19, authentication_method="X"))
    client.expect_closed(reasons.PROTOCOL_ERROR)


def test_c12_a_broken_stream_costs_its_own_connection_only() -> None:
    """[MQTT-4.13.1-1]"""
    broker = Broker()
    other = broker.connect("other")
    client = broker.open()
    client.send(connect_packet("c", 5))
    client.take()
    client.send_bytes(b"\x00\x00")
    client.expect_closed(reasons.MALFORMED_PACKET)
    other.ping()


@pytest.mark.parametrize("version", [4, 5])
def test_c12_every_truncation_of_connect_is_refused_or_waited_for(version: int) -> None:
    """With a will and both credentials: whatever is missing, nobody gets in and nothing stays."""
    broker = Broker()
    fields: dict[str, Any] = {"username": "ann", "password": b"secret", "will": will("w")}
    if version == 5:
        fields |= {"session_expiry_interval": 60, "user_properties": (("a", "b"),)}
    whole = encode(connect_packet("c", version, **fields), version)
    for size in range(2, len(whole)):
        client = broker.open(version)
        client.send_bytes(whole[:size])
        assert not client.is_closed and client.take() == []
        client.drop()
        client = broker.open(version)
        client.send_bytes(whole[:1] + bytes((size - 2,)) + whole[2:size])
        assert client.is_closed
        answers = client.take()
        assert all(isinstance(packet, Connack) and packet.reason_code for packet in answers)
    assert broker.rows("sessions") == [] and broker.rows("connections") == []
    client = broker.open(version)
    client.send_bytes(whole)
    client.answer(Connack)


@pytest.mark.parametrize("version", [4, 5])
def test_c12_a_topic_without_a_character_is_an_error(version: int) -> None:
    """CVE-2021-34432"""
    broker = Broker()
    watcher = broker.clean("watcher", "#")
    block = b"\x00" if version == 5 else b""
    for first, body in (
        (0x30, b"\x00\x00" + block + b"x"),
        (0x31, b"\x00\x00" + block + b"x"),
        (0x32, b"\x00\x00\x00\x01" + block),
        (0x82, b"\x00\x01" + block + b"\x00\x00\x01"),
        (0xA2, b"\x00\x01" + block + b"\x00\x00"),
    ):
        client = broker.connect("c", version=version)
        client.send_bytes(bytes((first, len(body))) + body)
        assert client.is_closed, hex(first)
        assert kinds(client.take()) == (["Disconnect"] if version == 5 else [])
    watcher.expect_nothing()


ZERO_IN_CONNECT: Final = {"receive maximum": "21 0000", "maximum packet size": "27 00000000"}


@pytest.mark.parametrize("text", ZERO_IN_CONNECT.values(), ids=ZERO_IN_CONNECT)
def test_c12_a_zero_where_none_may_be_is_refused(text: str) -> None:
    """FlashMQ CVE-2026-42209: a division by what a client had sent."""
    client = Broker().open()
    block = bytes.fromhex(text)
    body = b"\x00\x04MQTT\x05\x02\x00\x00" + bytes((len(block),)) + block + b"\x00\x01c"
    client.send_bytes(bytes((0x10, len(body))) + body)
    answer = client.answer(Connack)
    assert isinstance(answer, Connack) and answer.reason_code == reasons.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "text", ["82 08 0001 02 0b00 0000 01", "82 07 0000 00 0001 74 01", "32 07 0001 74 0000 00 78"]
)
def test_c12_an_id_of_zero_is_refused(text: str) -> None:
    """A Subscription Identifier, and packet ids."""
    client = Broker().connect("c")
    client.send_bytes(bytes.fromhex(text))
    assert client.is_closed and kinds(client.take()) == ["Disconnect"]


def test_c12_a_group_that_empties_while_it_is_served_is_no_fault() -> None:
    """Turns are taken by a remainder: the last member leaves, is thrown out, or takes nothing."""
    broker = Broker()
    publisher = broker.connect("p")
    for turn in range(3):
        members = [broker.clean(f"m{number}", "$share/g/t", qos=turn) for number in range(3)]
        for member in members:
            publisher.publish("t", b"x", turn)
            member.drop()
        publisher.publish("t", b"x", turn)
    publisher.ping()


PIECES: Final = {
    "connect": connect_packet("seq", 5),
    "disconnect": Disconnect(0),
    "subscribe": Subscribe(1, [Subscription("t", 2)]),
    "unsubscribe": Unsubscribe(2, ["t"]),
    "publish": Publish("t", b"x" * 100, 2, packet_id=3, retain=True),
}


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_c12_no_sequence_of_packets_leaves_anything_behind(length: int) -> None:
    """CVE-2024-8376: sequences of these five leaked, or used what was freed."""
    broker = Broker()
    other = broker.connect("other")
    before = broker.engine.stats()
    for names in product(PIECES, repeat=length):
        client = broker.open()
        client.send_bytes(b"".join(encode(PIECES[name], 5) for name in names))
        assert (kinds(client.take())[:1] == ["Connack"]) is (names[0] == "connect")
        client.drop()
        other.publish("t", b"", retain=True)
    other.ping()
    assert broker.engine.stats() == before
    for family in ("sessions", "subscriptions", "filters", "holders", "incoming", "connections"):
        assert broker.rows(family) == [], family


FUZZED: Final = 6000


def test_c12_random_sessions_break_no_rule() -> None:
    """10^7 inputs of the codec and 2 x 10^6 packets are the slow tier of tests/fuzz; a few here."""
    histories, sent, received, problems = run_many(12_000, FUZZED)
    assert not problems, problems[0]
    assert histories > 5 and sent >= FUZZED and received > FUZZED // 5


# C11: text


BAD_TEXT = {
    "surrogate": b"\xed\xa0\x80",
    "overlong": b"\xc0\x80",
    "ill formed": b"\xc3\x28",
    "null": b"a\x00b",
    "beyond": b"\xf4\x90\x80\x80",
}


@pytest.mark.parametrize("raw", BAD_TEXT.values(), ids=BAD_TEXT)
@pytest.mark.parametrize("version", [4, 5])
def test_c11_text_that_is_none_closes_wherever_it_stands(raw: bytes, version: int) -> None:
    broker = Broker()
    text = len(raw).to_bytes(2, "big") + raw
    block = b"\x00" if version == 5 else b""
    publish = text + block
    subscribe = b"\x00\x01" + block + text + b"\x00"
    unsubscribe = b"\x00\x01" + block + text
    for first, body in ((0x30, publish), (0x82, subscribe), (0xA2, unsubscribe)):
        client = broker.connect("c", version=version)
        client.send_bytes(bytes((first, len(body))) + body)
        client.expect_closed(reasons.MALFORMED_PACKET)
    head = b"\x00\x04MQTT" + bytes((version, 0x02, 0, 0)) + block
    client = broker.open(version)
    client.send_bytes(bytes((0x10, len(head) + len(text))) + head + text)
    assert client.is_closed


@pytest.mark.parametrize("raw", BAD_TEXT.values(), ids=BAD_TEXT)
def test_c11_text_that_is_none_is_found_in_every_field(raw: bytes) -> None:
    """CVE-2017-7653: one such topic or name, passed on, disconnected every other client."""
    broker = Broker()
    watcher = broker.clean("watcher", "#")
    text = len(raw).to_bytes(2, "big") + raw
    head = b"\x00\x04MQTT\x05"
    key = b"\x00\x01k"
    for body in (
        head + b"\x82\x00\x00\x00\x00\x01c" + text,  # user name
        head + b"\x06\x00\x00\x00\x00\x01c\x00" + text + b"\x00\x00",  # topic of the will
        head + b"\x02\x00\x00" + bytes((4 + len(text),)) + b"\x26" + key + text + b"\x00\x01c",
    ):
        client = broker.open()
        client.send_bytes(bytes((0x10, len(body))) + body)
        answer = client.answer(Connack)
        assert isinstance(answer, Connack) and answer.reason_code == reasons.MALFORMED_PACKET
    for name in (b"\x26" + key, b"\x26" + text, b"\x08", b"\x03"):  # and response topic, type
        block = name + (key if name[1:] == text else text)
        body = b"\x00\x01t" + bytes((len(block),)) + block
        client = broker.connect("c")
        client.send_bytes(bytes((0x30, len(body))) + body)
        client.expect_closed(reasons.MALFORMED_PACKET)
    watcher.expect_nothing()


def allowed_first_bytes(version: int) -> set[int]:
    """Return what a client may begin a packet with behind CONNECT [MQTT 2.1.2, 2.1.3]."""
    publish = {
        0x30 | dup << 3 | qos << 1 | retain
        for dup, qos, retain in product((0, 1), (0, 1, 2), (0, 1))
    }
    no_dup_at_qos0 = {first for first in publish if not (first & 8 and not first & 6)}
    others = {0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0}
    return no_dup_at_qos0 | others | ({0xF0} if version == 5 else set())


@pytest.mark.parametrize("version", [4, 5])
def test_c11_every_first_two_bytes_are_a_packet_or_an_error(version: int) -> None:
    """mosquitto 2.0.21: reserved types. All 65,536 pairs, each with three kinds of bytes behind."""
    allowed = allowed_first_bytes(version)
    for first in range(256):
        decoder = Decoder("server", 0, version)
        decoder.receive(bytes((first,)))
        decoder.receive(b"\x80\x80\x01")  # a length to wait for, where anything is waited for
        assert (decoder.error is None) is (first in allowed), hex(first)
        for second in range(256):
            for filling in (b"\x00", b"\x01", b"\xff"):
                decoder = Decoder("server", 0, version)
                found = decoder.receive(bytes((first, second)) + filling * min(second, 127))
                assert decoder.error is None or not found
                if first not in allowed:
                    assert found == [] and decoder.error is not None


@pytest.mark.parametrize("first", [0x00, 0x0F, 0xF0, 0xFF])
def test_c11_reserved_types_close_the_connection(first: int) -> None:
    broker = Broker()
    other = broker.connect("other")
    for version in (4, 5):
        if version == 5 and first == 0xF0:
            continue  # AUTH
        client = broker.connect("c", version=version)
        client.send_bytes(bytes((first, 0)))
        client.expect_closed(reasons.MALFORMED_PACKET)
    other.ping()


def test_c11_a_byte_order_mark_is_a_character_like_any_other() -> None:
    broker = Broker()
    client = broker.clean("c", "\ufeffa")
    broker.publish("a")
    client.expect_nothing()
    broker.publish("\ufeffa")
    assert client.message().topic == "\ufeffa"


@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$CONTROL/x", "$share/g/t", "$foo"])
def test_c11_a_client_cannot_publish_to_a_topic_of_the_broker(topic: str) -> None:
    """CVE-2018-12543, aedes #597: live, retained, or as a will."""
    broker = Broker()
    watcher = broker.clean("watcher", "$SYS/#", "$CONTROL/#", "$foo/#", "#")
    client = broker.connect("c")
    answer = client.publish(topic, b"x", 1, retain=True)
    assert getattr(answer, "reason_code", 0) == reasons.NOT_AUTHORIZED
    client.ping()
    broker.connect("w", will=will(topic, retain=True)).drop()
    broker.connect("w", version=4, will=will(topic, retain=True)).drop()
    watcher.expect_nothing()
    broker.clean("late", "$CONTROL/#", "$foo/#").expect_nothing()


@pytest.mark.parametrize("topic_filter", ["#", "+/#", "+/broker/#", "+"])
def test_c20_a_wildcard_in_front_does_not_see_the_topics_of_the_broker(topic_filter: str) -> None:
    """[MQTT-4.7.2-1]"""
    broker = Broker()
    client = broker.clean("c", topic_filter, f"$share/g/{topic_filter}")
    broker.engine.publish_system("$SYS/broker/version", b"1", broker.now)
    broker.settle()
    client.expect_nothing()
