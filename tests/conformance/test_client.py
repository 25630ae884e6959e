"""What a client of the suite does and what it takes for an answer, byte for byte."""

from collections.abc import Callable

import pytest

from conformance import tables, wire
from conformance.client import Client, Silence, Will
from conformance.failure import Failure, Violation
from conformance.packets import Connack, Disconnect, Pingresp, Puback, Publish, Pubrec, Suback
from tests.conformance.far_end import CONNACK, FarEnd

Ends = Callable[..., FarEnd]
DISCONNECT_82 = b"\xe0\x01\x82"


def subscribed(end: FarEnd) -> Client:
    """Return a client that may be sent anything."""
    client = end.accepts()
    client.send(wire.subscribe(1, [("#", 2)], version=end.version))
    end.says(b"\x90\x04\x00\x01\x00\x02" if end.version >= 5 else b"\x90\x03\x00\x01\x02")
    client.expect(Suback)
    end.heard()
    return client


def test_connect_sends_what_it_is_told(far_end: Ends) -> None:
    end = far_end()
    end.says(CONNACK[5])
    connack = end.client.connect(
        clean=False, keep_alive=2, will=Will("w"), username="u", session_expiry=300, flags=0xFF
    )
    assert connack.code == 0
    assert end.client.connack is connack
    assert end.heard() == wire.connect(
        "clienta",
        version=5,
        clean=False,
        keep_alive=2,
        will=Will("w"),
        username="u",
        properties=[(tables.SESSION_EXPIRY, 300)],
        flags=0xFF,
    )


def test_another_code_than_the_expected_one_fails(far_end: Ends) -> None:
    end = far_end(4)
    end.says(b"\x20\x02\x00\x05")
    with pytest.raises(Failure) as caught:
        end.client.connect()
    assert caught.value.packet == b"\x20\x02\x00\x05"
    assert caught.value.expected == "code 0x00"
    end = far_end(4)
    end.says(b"\x20\x02\x00\x05")
    assert end.client.connect(expect_code=5).code == 5


def test_connecting_again_takes_a_new_connection(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    old = client.connection
    end.hangs_up()
    client.open()
    assert client.connection is not old
    assert not client.eof
    end.accepts()


def test_other_kinds_are_set_aside_in_order(far_end: Ends) -> None:
    end = far_end()
    client = subscribed(end)
    client.publish("t", qos=1, packet_id=7, wait=False)
    end.says(wire.publish("a", version=5), wire.publish("b", version=5), wire.puback(7))
    assert client.expect(Puback).packet_id == 7
    assert client.expect_publish().topic == "a"
    assert client.receive().raw == wire.publish("b", version=5)


def test_an_id_that_is_asked_for_is_waited_for(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    for packet_id in (1, 2):
        client.publish("t", qos=1, packet_id=packet_id, wait=False)
    end.says(wire.puback(1), wire.puback(2))
    assert client.expect(Puback, packet_id=2).packet_id == 2
    assert client.expect(Puback, packet_id=1).packet_id == 1


def test_what_does_not_come_is_a_failure_that_shows_what_was_sent(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    with pytest.raises(Failure, match="no PINGRESP in time") as caught:
        client.ping()
    assert caught.value.packet == wire.pingreq()
    assert caught.value.was_sent
    assert caught.value.expected == "PINGRESP"


def test_the_end_of_the_connection_and_disconnect_are_never_set_aside(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    end.says(DISCONNECT_82)
    with pytest.raises(Failure, match="received DISCONNECT 0x82"):
        client.expect(Pingresp)
    end = far_end()
    client = end.accepts()
    end.hangs_up()
    with pytest.raises(Failure, match="closed the connection"):
        client.expect(Pingresp)


@pytest.mark.parametrize(
    ("field", "value", "fails"),
    [
        ("topic", "t", False),
        ("topic", "u", True),
        ("payload", "p", False),
        ("payload", b"q", True),
        ("qos", 1, False),
        ("qos", 0, True),
        ("retain", True, False),
        ("retain", False, True),
        ("dup", False, False),
        ("dup", True, True),
    ],
)
def test_every_field_of_a_delivery_is_compared(
    far_end: Ends, field: str, value: object, fails: bool
) -> None:
    end = far_end()
    client = subscribed(end)
    end.says(wire.publish("t", b"p", version=5, qos=1, retain=True, packet_id=9))
    if fails:
        with pytest.raises(Failure, match="delivery has"):
            client.expect_publish(**{field: value})  # type: ignore[arg-type]
    else:
        client.expect_publish(**{field: value})  # type: ignore[arg-type]
        assert end.heard() == wire.puback(9)


def test_the_flow_of_a_delivery_is_completed_or_left_alone(far_end: Ends) -> None:
    end = far_end()
    client = subscribed(end)
    end.says(wire.publish("t", version=5, qos=2, packet_id=9), wire.pubrel(9))
    client.expect_publish()
    assert end.heard() == wire.pubrec(9) + wire.pubcomp(9)
    end.says(wire.publish("t", version=5, qos=2, packet_id=10))
    client.expect_publish(acknowledge=False)
    assert end.heard() == b""


def test_publishing_runs_the_whole_handshake(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    assert client.publish("t") is None
    end.says(wire.pubrec(1), wire.pubcomp(1))
    answer = client.publish("t", b"p", 2)
    assert answer is not None
    assert answer.raw == wire.pubcomp(1)
    end.says(wire.pubrec(2, 0x87))
    refused = client.publish("t", b"p", 2)
    assert isinstance(refused, Pubrec)
    assert refused.reason == 0x87


def test_nothing_means_nothing_before_the_pingresp(far_end: Ends) -> None:
    end = far_end()
    client = subscribed(end)
    end.says(wire.publish("t", version=5), b"\xd0\x00")
    with pytest.raises(Failure, match="received PUBLISH") as caught:
        client.expect_nothing()
    assert caught.value.expected == "no PUBLISH"
    client.publish("t", qos=1, packet_id=5, wait=False)
    end.says(wire.puback(5), b"\xd0\x00")
    client.expect_nothing()
    assert client.expect(Puback).packet_id == 5  # kept for whoever asks for it
    client.publish("t", qos=1, packet_id=5, wait=False)
    end.says(wire.puback(5), b"\xd0\x00")
    with pytest.raises(Failure, match="received PUBACK"):
        client.expect_nothing(Puback)


def test_nothing_is_no_excuse_for_a_close(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    end.hangs_up()
    with pytest.raises(Failure, match="closed"):
        client.expect_nothing()


def test_drain_returns_everything_and_acknowledges_nothing(far_end: Ends) -> None:
    end = far_end()
    client = subscribed(end)
    end.says(wire.publish("a", version=5, qos=1, packet_id=1), b"\xd0\x00")
    (packet,) = client.drain()
    assert isinstance(packet, Publish)
    assert end.heard() == wire.pingreq()


def test_receive_tells_silence_from_the_end(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    with pytest.raises(Silence):
        client.receive()
    end.hangs_up()
    with pytest.raises(Failure, match="closed the connection"):
        client.receive()
    assert client.eof


def test_peek_takes_nothing_away(far_end: Ends) -> None:
    end = far_end()
    client = subscribed(end)
    end.says(wire.publish("a", version=5))
    assert client.peek() is client.peek()
    client.expect_publish("a")
    end.hangs_up()
    assert client.peek() is None


# The end of a connection: what may come first, in both profiles.


@pytest.mark.parametrize(
    ("version", "strict", "said", "reasons", "fails"),
    [
        (5, False, b"", (0x82,), False),
        (5, False, DISCONNECT_82, (0x82,), False),
        (5, False, DISCONNECT_82, (0x81,), False),
        (5, False, DISCONNECT_82, (), False),
        (5, False, b"\xe0\x00", (0x82,), True),
        (5, False, wire.publish("t", version=5), (0x82,), True),
        (5, True, b"", (0x82,), True),
        (5, True, b"", (), False),
        (5, True, DISCONNECT_82, (0x82,), False),
        (5, True, DISCONNECT_82, (0x81, 0x82), False),
        (5, True, DISCONNECT_82, (0x81,), True),
        (4, True, b"", (), False),
        (4, False, wire.publish("t", version=4), (), True),
    ],
)
def test_a_close_may_be_announced_and_in_the_strict_profile_has_to_be(
    far_end: Ends, version: int, strict: bool, said: bytes, reasons: tuple[int, ...], fails: bool
) -> None:
    end = far_end(version, strict=strict)
    client = subscribed(end)
    end.says(said)
    end.hangs_up()
    if fails:
        with pytest.raises(Failure):
            client.expect_close(*reasons)
    else:
        packet = client.expect_close(*reasons)
        assert isinstance(packet, Disconnect) is bool(said)


@pytest.mark.parametrize(
    ("version", "strict", "said", "codes", "fails"),
    [
        (4, False, b"", (), False),
        (4, False, b"\x20\x02\x00\x02", (), True),
        (4, False, b"\x20\x02\x00\x02", (2,), False),
        (4, False, b"\x20\x02\x00\x01", (2,), True),
        (4, False, b"", (2,), True),
        (4, False, b"\x20\x02\x00\x00", (2,), True),
        (5, False, b"", (0x81,), False),
        (5, False, b"\x20\x03\x00\x81\x00", (0x81,), False),
        (5, False, b"\x20\x03\x00\x82\x00", (0x81,), False),
        (5, True, b"\x20\x03\x00\x82\x00", (0x81,), True),
        (5, True, b"", (0x81,), True),
        (5, False, b"\x20\x03\x00\x00\x00", (0x81,), True),
    ],
)
def test_a_refusal_has_a_code_where_the_version_asks_for_one(
    far_end: Ends, version: int, strict: bool, said: bytes, codes: tuple[int, ...], fails: bool
) -> None:
    end = far_end(version, strict=strict)
    end.client.send(wire.connect("x", version=version))
    end.says(said)
    end.hangs_up()
    if fails:
        with pytest.raises(Failure):
            end.client.expect_refused(*codes)
    else:
        packet = end.client.expect_refused(*codes)
        assert isinstance(packet, Connack) is bool(said)


def test_a_connection_that_stays_open_fails(far_end: Ends) -> None:
    client = far_end().accepts()
    with pytest.raises(Failure, match="keeps the connection open"):
        client.expect_close(0x82)


@pytest.mark.parametrize(
    ("version", "said", "statement"),
    [
        (5, DISCONNECT_82, "MQTT-3.14.4-2"),
        (5, b"\x20\x03\x00\x82\x00", "MQTT-3.2.2-7"),
        (4, b"\x20\x02\x00\x05", "MQTT-3.2.2-5"),
    ],
)
def test_a_farewell_without_an_end_is_booked(
    far_end: Ends, version: int, said: bytes, statement: str
) -> None:
    end = far_end(version)
    if said[0] == 0xE0:
        client = end.accepts()
    else:
        client = end.client
        client.send(wire.connect("x", version=version))
    end.says(said)
    with pytest.raises(Violation, match="stays open"):
        client._expect_end((5, 0x82), 0.05, silent_is_fine=True)
    assert end.booked() == [statement]


def test_more_after_the_farewell_is_booked(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    client.send(wire.pingreq())
    end.says(DISCONNECT_82, b"\xd0\x00")
    with pytest.raises(Violation):
        client.expect_close(0x82)
    assert end.booked() == ["MQTT-3.14.4-1"]


def test_a_silent_close_takes_no_packet(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    end.says(DISCONNECT_82)
    end.hangs_up()
    with pytest.raises(Failure, match="received DISCONNECT"):
        client.expect_silent_close()


def test_reading_to_the_end_keeps_everything(far_end: Ends) -> None:
    end = far_end()
    client = subscribed(end)
    end.says(wire.publish("a", version=5), DISCONNECT_82)
    end.hangs_up()
    assert [packet.raw for packet in client.read_to_end()] == [
        wire.publish("a", version=5),
        DISCONNECT_82,
    ]


def test_waiting_for_the_end_keeps_packets_for_later(far_end: Ends) -> None:
    end = far_end()
    client = subscribed(end)
    end.says(wire.publish("a", version=5))
    assert not client.wait_for_end(0.01)
    end.hangs_up()
    assert client.wait_for_end(1.0)
    client.expect_publish("a")


def test_a_barrier_takes_its_message_out_and_keeps_the_rest(far_end: Ends) -> None:
    end = far_end()
    client = subscribed(end)
    client.connection.marker = "~1"
    end.says(
        wire.publish("a", version=5),
        wire.publish("~1", version=5, qos=1, packet_id=4),
        wire.publish("b", version=5),
    )
    client.await_marker()
    assert end.heard() == wire.puback(4)
    assert [packet.raw[-2:-1] for packet in client.inbox] == [b"a", b"b"]


def test_requests_use_fresh_ids_and_their_answers(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    end.says(b"\x90\x05\x00\x01\x00\x01\x87")
    suback = client.subscribe([("a", 1), ("b", 0)])
    assert suback.codes == (1, 0x87)
    end.says(b"\xb0\x04\x00\x02\x00\x11")
    assert client.unsubscribe("a").codes == (0x11,)
    expected = wire.subscribe(1, [("a", 1), ("b", 0)], version=5)
    assert end.heard() == expected + wire.unsubscribe(2, ["a"], version=5)


def test_disconnect_and_drop_end_the_connection(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    end.far.shutdown(1)
    client.disconnect(0x04)
    assert end.heard() == b"\xe0\x01\x04"
    assert not client.is_open
    end = far_end()
    client = end.accepts()
    client.drop()
    assert not client.is_open
    assert end.far.recv(1) == b""


def test_retained_messages_are_noted_for_cleaning_up(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    client.publish("t", b"x", retain=True)
    client.publish("u", b"", retain=True)
    client.publish("v", b"x")
    client.send(wire.publish("w", b"x", version=5, retain=True))
    client.send(wire.publish("r", b"x", version=5, first_byte=0x37))
    client.send(wire.connect("x", version=5, will=Will("will", retain=True)))
    client.send(wire.connect("x", version=5, will=Will("live")))
    assert end.record.retained_topics == {"t", "w", "will"}
