"""What a trace says of a packet."""

import pytest

from broker.operations.tracing import packets
from broker.operations.tracing.packets import Direction, Fields
from mqtt.encoder import encode
from mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)


def told(packet: Packet, *, is_in: bool = True, version: int = 5) -> Fields:
    """Return what is told of a packet, without its size."""
    direction = Direction(version, {}, is_in=is_in)
    (cut,) = direction.feed(encode(packet, version or 5))
    fields = packets.fields(cut, direction.packet(cut))
    assert fields.pop("size") == len(encode(packet, version or 5))
    return fields


def test_a_connect_says_who_it_is_and_never_a_password() -> None:
    will = Will("gone", b"", 0, False)
    connect = Connect(
        "boat-17", clean_start=False, keep_alive=30, username="anna", password=b"s3cret", will=will
    )
    fields = told(connect, version=0)
    assert fields["packet"] == "CONNECT"
    assert fields["text"] == (
        "client id 'boat-17', MQTT 5.0, clean start 0, keep alive 30 s, user 'anna', will 'gone'"
    )
    assert "s3cret" not in str(told(Auth(0x18, "SCRAM", b"s3cret")))


@pytest.mark.parametrize(
    ("packet", "is_in", "expected"),
    [
        (
            Connack(True, 0),
            False,
            {"packet": "CONNACK", "reason_code": 0, "text": "session present"},
        ),
        (Puback(5, 0x10), False, {"packet": "PUBACK", "packet_id": 5, "reason_code": 0x10}),
        (
            Subscribe(6, [Subscription("a/+", 1), Subscription("b", 0)]),
            True,
            {"packet": "SUBSCRIBE", "packet_id": 6, "text": "'a/+' qos 1, 'b' qos 0"},
        ),
        (Suback(6, [1, 0x87]), False, {"packet": "SUBACK", "packet_id": 6, "text": "0x01, 0x87"}),
        (Unsubscribe(7, ["a"]), True, {"packet": "UNSUBSCRIBE", "packet_id": 7, "text": "'a'"}),
        (
            Disconnect(0x98, reason_string="too loud"),
            False,
            {"packet": "DISCONNECT", "reason_code": 0x98, "text": "too loud"},
        ),
        (Pingreq(), True, {"packet": "PINGREQ"}),
    ],
)
def test_each_packet_says_what_matters(packet: Packet, is_in: bool, expected: Fields) -> None:
    assert told(packet, is_in=is_in) == expected


def test_many_filters_are_not_all_said() -> None:
    text = told(Unsubscribe(1, [f"t/{number}" for number in range(30)]))["text"]
    assert text.endswith("'t/19' and 10 more")


def test_a_publish_says_its_topic_also_by_alias() -> None:
    direction = Direction(5, {3: "old"}, is_in=True)
    first = Publish("a/b", b"payload", 1, retain=True, packet_id=9, topic_alias=4)
    second = Publish("", b"", 0, topic_alias=4)
    third = Publish("", b"", 0, topic_alias=3)
    unknown = Publish("", b"", 0, topic_alias=5)
    cuts = direction.feed(b"".join(encode(each, 5) for each in (first, second, third, unknown)))
    found = [direction.publish(cut) for cut in cuts]
    assert [each and each.topic for each in found] == ["a/b", "a/b", "old", ""]
    assert found[0] is not None
    assert found[0].fields(3) == {
        "packet": "PUBLISH",
        "qos": 1,
        "topic": "a/b",
        "packet_id": 9,
        "size": len(encode(first, 5)),
        "text": "RETAIN",
        "payload": b"pay".hex(),
    }
    assert "payload" not in found[0].fields(0)


def test_a_publish_of_3_1_1_has_no_properties() -> None:
    direction = Direction(4, {}, is_in=False)
    (cut,) = direction.feed(encode(Publish("a", b"\x03xyz", 0, dup=False), 4))
    found = direction.publish(cut)
    assert found is not None and found.payload == b"\x03xyz"


def test_what_cannot_be_read_is_said_and_read_no_further() -> None:
    direction = Direction(5, {}, is_in=True)
    broken, ping = direction.feed(b"\x82\x02\x00\x00" + encode(Pingreq(), 5))
    assert packets.fields(broken, direction.packet(broken))["text"] == "cannot be read here"
    assert packets.fields(ping, direction.packet(ping)) == {"packet": "PINGREQ", "size": 2}
    (cut,) = direction.feed(b"\x30\x02\x00\x09")
    assert direction.publish(cut) is None
