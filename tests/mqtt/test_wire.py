"""The data types of section 1.5 and 2.2.2, at their edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt.errors import MalformedPacket
from mqtt.wire import (
    TWO_BYTES,
    VARINT_MAX,
    Reader,
    encode_binary,
    encode_byte,
    encode_four_bytes,
    encode_string,
    encode_two_bytes,
    encode_varint,
    text,
)


def reader(hexadecimal: str) -> Reader:
    data = bytes.fromhex(hexadecimal)
    return Reader(data, 0, len(data))


# Table 1-1 of v5, table 2.4 of v3.1.1
VARINTS = [
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (321, "c102"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2_097_151, "ffff7f"),
    (2_097_152, "80808001"),
    (268_435_455, "ffffff7f"),
]


@pytest.mark.parametrize(("value", "hexadecimal"), VARINTS)
def test_varint_bytes(value: int, hexadecimal: str) -> None:
    assert encode_varint(value, "x").hex() == hexadecimal
    source = reader(hexadecimal)
    assert source.varint("x") == value
    source.finish()


@given(st.integers(0, VARINT_MAX))
def test_varint_round_trip(value: int) -> None:
    raw = encode_varint(value, "x")
    assert Reader(raw, 0, len(raw)).varint("x") == value


@pytest.mark.parametrize("hexadecimal", ["8000", "ff00", "808000", "80808000", "ffffff00"])
def test_varint_in_a_longer_form_than_needed_is_malformed(hexadecimal: str) -> None:
    with pytest.raises(MalformedPacket, match="shortest form"):
        reader(hexadecimal).varint("x")


@pytest.mark.parametrize("hexadecimal", ["80808080", "8080808001", "ffffffff7f"])
def test_varint_of_more_than_four_bytes_is_malformed(hexadecimal: str) -> None:
    with pytest.raises(MalformedPacket, match="more than four bytes"):
        reader(hexadecimal).varint("x")


@pytest.mark.parametrize("value", [-1, VARINT_MAX + 1])
def test_varint_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=r"speed -?\d+: expected 0 to"):
        encode_varint(value, "speed")


@pytest.mark.parametrize("cut", ["", "80", "8080", "808080"])
def test_varint_cut_off_is_malformed(cut: str) -> None:
    with pytest.raises(MalformedPacket, match="x is missing"):
        reader(cut).varint("x")


def test_numbers_are_big_endian() -> None:
    source = reader("01 0203 04050607")
    assert source.byte("x") == 1
    assert source.two_bytes("x") == 0x0203
    assert source.four_bytes("x") == 0x04050607
    source.finish()
    assert encode_byte(1, "x") + encode_two_bytes(0x0203, "x") == bytes.fromhex("010203")
    assert encode_four_bytes(0x04050607, "x") == bytes.fromhex("04050607")


def test_the_smallest_and_the_largest_number_of_each_kind_are_encoded() -> None:
    """A Session Expiry Interval of 0xFFFFFFFF means that a session never expires."""
    assert encode_byte(0, "x") + encode_byte(0xFF, "x") == bytes.fromhex("00ff")
    assert encode_two_bytes(0, "x") + encode_two_bytes(0xFFFF, "x") == bytes.fromhex("0000ffff")
    assert encode_four_bytes(0, "x") == bytes(4)
    assert encode_four_bytes(0xFFFFFFFF, "x") == bytes.fromhex("ffffffff")


def test_numbers_cut_off_are_malformed() -> None:
    with pytest.raises(MalformedPacket, match="x is missing"):
        reader("").byte("x")
    with pytest.raises(MalformedPacket, match="x runs past the end"):
        reader("00").two_bytes("x")
    with pytest.raises(MalformedPacket, match="x runs past the end"):
        reader("000000").four_bytes("x")


def test_numbers_out_of_range_are_refused() -> None:
    for encode, limit in ((encode_byte, 256), (encode_two_bytes, 1 << 16)):
        for value in (-1, limit):
            with pytest.raises(ValueError, match="speed"):
                encode(value, "speed")
    for value in (-1, 1 << 32):
        with pytest.raises(ValueError, match="speed"):
            encode_four_bytes(value, "speed")


def test_two_bytes_are_ready_made() -> None:
    assert len(TWO_BYTES) == 65_536
    assert TWO_BYTES[0x1234] == b"\x12\x34"


@pytest.mark.parametrize("cut", ["", "00", "0001", "0002ff", "ffff00"])
def test_binary_cut_off_is_malformed(cut: str) -> None:
    with pytest.raises(MalformedPacket, match="x runs past the end"):
        reader(cut).binary("x")


@given(st.binary(max_size=70))
def test_binary_round_trip(value: bytes) -> None:
    raw = encode_binary(value, "x")
    assert Reader(raw, 0, len(raw)).binary("x") == value


def test_fields_may_have_65535_bytes_and_no_more() -> None:
    raw = encode_binary(bytes(65_535), "x")
    assert Reader(raw, 0, len(raw)).binary("x") == bytes(65_535)
    with pytest.raises(ValueError, match="x of 65536 bytes"):
        encode_binary(bytes(65_536), "x")
    with pytest.raises(ValueError, match="x of 65536 bytes"):
        encode_string("é" * 32_768, "x")


def test_a_reader_sees_nothing_beyond_its_end() -> None:
    data = bytes.fromhex("0002 6161 ff")
    with pytest.raises(MalformedPacket):
        Reader(data, 0, 3).binary("x")
    with pytest.raises(MalformedPacket):
        Reader(data, 4, 4).byte("x")


# [MQTT-1.5.4-1], v4 [MQTT-1.5.3-1]
ILL_FORMED = [
    "c328",  # a continuation byte is missing
    "c3",
    "80",
    "c080",  # overlong U+0000
    "c1bf",
    "e080af",  # overlong '/'
    "f08080af",
    "eda080",  # U+D800
    "edbfbf",  # U+DFFF
    "eda081edb080",  # CESU-8
    "f4908080",  # U+110000
    "f5808080",
    "fe",
    "ff",
    "6180",
]


@pytest.mark.parametrize("hexadecimal", ILL_FORMED)
def test_ill_formed_utf8_is_malformed(hexadecimal: str) -> None:
    with pytest.raises(MalformedPacket, match="x is not well-formed UTF-8") as caught:
        text(bytes.fromhex(hexadecimal), "x")
    assert caught.value.reason_code == 0x81


@pytest.mark.parametrize("hexadecimal", ["00", "6100", "610062"])
def test_the_null_character_is_malformed(hexadecimal: str) -> None:
    with pytest.raises(MalformedPacket, match="U\\+0000"):
        text(bytes.fromhex(hexadecimal), "x")


def test_the_byte_order_mark_is_an_ordinary_character() -> None:
    assert text(b"\xef\xbb\xbfa", "x") == "\ufeffa"
    assert text(b"a\xef\xbb\xbf", "x") == "a\ufeff"


@pytest.mark.parametrize("value", ["\t", "\x01", "\x7f", "\x9f", "\ufdd0", "\uffff", "\U0010ffff"])
def test_code_points_that_may_be_refused_are_passed_on(value: str) -> None:
    assert text(value.encode(), "x") == value


def test_strings_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(ValueError, match="name holds U\\+0000"):
        encode_string("a\0", "name")
    with pytest.raises(ValueError, match="name holds a surrogate"):
        encode_string("\ud800", "name")


def test_left_over_bytes_are_malformed() -> None:
    source = reader("0102")
    source.byte("x")
    with pytest.raises(MalformedPacket, match="1 bytes are left over"):
        source.finish()


def test_a_property_block_ends_inside_its_packet() -> None:
    source = reader("02 0102 ff")
    block = source.properties()
    assert (block.position, block.end, source.position) == (1, 3, 3)
    with pytest.raises(MalformedPacket, match="past the end of the packet"):
        reader("03 0102").properties()
    with pytest.raises(MalformedPacket, match="property length is missing"):
        reader("").properties()
