"""The builders: right packets byte for byte, and every field can be made wrong."""

import pytest

from conformance import tables, wire
from conformance.wire import Will


@pytest.mark.parametrize(
    ("number", "width", "encoded"),
    [
        (0, None, "00"),
        (127, None, "7f"),
        (128, None, "8001"),
        (16_383, None, "ff7f"),
        (16_384, None, "808001"),
        (268_435_455, None, "ffffff7f"),
        (268_435_456, None, "8080808001"),
        (1, 2, "8100"),
        (1, 4, "81808000"),
    ],
)
def test_a_length_is_as_short_as_can_be_unless_a_width_is_asked_for(
    number: int, width: int | None, encoded: str
) -> None:
    assert wire.varint(number, width).hex() == encoded


def test_strings_take_text_lone_surrogates_and_raw_bytes() -> None:
    assert wire.string("aé") == b"\x00\x03a\xc3\xa9"
    assert wire.string("\ud800") == b"\x00\x03\xed\xa0\x80"
    assert wire.string(b"\xff\xfe") == b"\x00\x02\xff\xfe"


def test_a_plain_connect_of_both_versions() -> None:
    assert wire.connect("x", version=4).hex(" ") == ("10 0d 00 04 4d 51 54 54 04 02 00 3c 00 01 78")
    assert wire.connect("x", version=5, clean=False, keep_alive=1).hex(" ") == (
        "10 0e 00 04 4d 51 54 54 05 00 00 01 00 00 01 78"
    )


def test_connect_with_everything_has_its_fields_in_order() -> None:
    will = Will("w", b"p", qos=2, retain=True, properties=[(tables.WILL_DELAY, 5)])
    data = wire.connect(
        "x",
        version=5,
        will=will,
        username="u",
        password=b"\x00",
        properties=[(tables.SESSION_EXPIRY, 300), (tables.USER_PROPERTY, ("k", "v"))],
    )
    assert data[9] == 0xF6  # name, password, retain, QoS 2, will, clean start
    assert data[12:].hex(" ") == (
        "0c 11 00 00 01 2c 26 00 01 6b 00 01 76"  # properties
        " 00 01 78"  # client id
        " 05 18 00 00 00 05 00 01 77 00 01 70"  # will
        " 00 01 75 00 01 00"  # user name, password
    )


def test_connect_can_be_wrong_in_every_field() -> None:
    assert wire.connect("x", version=4, flags=0x03)[9] == 0x03
    assert wire.connect("x", version=4, level=127)[8] == 127
    assert wire.connect("x", version=4, name="MQTX")[4:8] == b"MQTX"
    assert wire.connect("x", version=4, first_byte=0x11)[0] == 0x11
    assert wire.connect(version=4, payload=b"\x01\x02").endswith(b"\x00\x3c\x01\x02")
    assert wire.connect("x", version=4, trailing=b"!").endswith(b"x!")
    assert wire.connect("x", version=4, remaining=200)[1:3] == b"\xc8\x01"
    assert wire.connect("x", version=4, remaining=b"\xff" * 5)[1:6] == b"\xff" * 5


def test_publish_of_all_flags_and_with_an_id_only_if_one_is_given() -> None:
    assert wire.publish("t", b"p", version=4).hex() == "3004000174" + "70"
    data = wire.publish("t", "p", version=5, qos=2, retain=True, dup=True, packet_id=258)
    assert data.hex(" ") == "3d 07 00 01 74 01 02 00 70"
    assert wire.publish("t", version=4, qos=1).hex() == "3203000174"
    assert wire.publish("t", version=4, first_byte=0x36)[0] == 0x36


def test_requests_of_both_versions() -> None:
    assert wire.subscribe(1, [("a", 2), ("b", 0)], version=4).hex(" ") == (
        "82 0a 00 01 00 01 61 02 00 01 62 00"
    )
    identifier = [(tables.SUBSCRIPTION_ID, 200)]
    assert wire.subscribe(1, [("a", 0x2C)], version=5, properties=identifier).hex(" ") == (
        "82 0a 00 01 03 0b c8 01 00 01 61 2c"
    )
    assert wire.unsubscribe(1, ["a"], version=4).hex(" ") == "a2 05 00 01 00 01 61"
    assert wire.unsubscribe(1, [], version=5).hex(" ") == "a2 03 00 01 00"


def test_acknowledgements_have_a_short_and_two_longer_forms() -> None:
    assert wire.puback(1).hex() == "40020001"
    assert wire.pubrec(1, 0x10).hex() == "5003000110"
    assert wire.pubrel(1, 0x92, []).hex() == "620400019200"
    assert wire.pubcomp(1, None, [(tables.REASON_STRING, "r")]).hex() == "7008000100041f000172"


def test_ends_and_pings() -> None:
    assert wire.pingreq() == b"\xc0\x00"
    assert wire.disconnect() == b"\xe0\x00"
    assert wire.disconnect(0x04) == b"\xe0\x01\x04"
    assert wire.disconnect(first_byte=0xE1) == b"\xe1\x00"
    assert wire.auth(0x19, [(tables.AUTH_METHOD, "m")]).hex() == "f00619041500016d"


def test_a_property_block_may_be_raw_in_parts_or_as_a_whole() -> None:
    assert wire.props([(tables.TOPIC_ALIAS, 3), b"\x7f"]) == b"\x04\x23\x00\x03\x7f"
    assert wire.props(b"\xff") == b"\xff"
    assert wire.props([(0x7F, b"\x01")]) == b"\x02\x7f\x01"
