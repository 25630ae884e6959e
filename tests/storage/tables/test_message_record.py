"""Is a stored message read back exactly, or not at all?"""

import struct
import zlib

import pytest

from mqtt.message import NEVER, Message
from storage.errors import CorruptRecord
from storage.tables.message_record import decode_message, encode_message, topic_bytes
from tests.storage.log_cases import fields, golden

CASES = {
    "smallest": Message("t", b"", 0, False, b"", "", 0, NEVER),
    "qos 1": Message(
        "site/7/temperature", b"21.5", 1, False, b"", "sensor-7", 1_763_711_111_111, NEVER
    ),
    "qos 2, retain, expiry, properties": Message(
        "täg/☃",
        bytes(range(256)),
        2,
        True,
        b"\x01\x01\x03\x00\x04text",
        "clïent",
        1_763_711_111_111,
        1_763_711_171_111,
    ),
    "largest names": Message(
        "t" * 65_535, b"p", 2, False, b"\x26" * 70_000, "c" * 65_535, 2**63, 2**64 - 1
    ),
    "user name": Message(
        "t", b"21.5", 1, True, b"\x01\x01", "c", 1_763_711_111_111, NEVER, username="änna"
    ),
    "largest user name": Message("t", b"", 0, False, b"", "c", 0, NEVER, username="u" * 65_535),
}
SMALL = ["smallest", "qos 1", "qos 2, retain, expiry, properties", "user name"]


@pytest.mark.parametrize("case", CASES)
def test_a_record_gives_the_message_back(case: str) -> None:
    original = CASES[case]
    decoded = decode_message(encode_message(original), 77)
    assert decoded.offset == 77
    original.offset = 77
    assert fields(decoded) == fields(original)


@pytest.mark.parametrize("case", CASES)
def test_the_topic_alone_is_the_topic(case: str) -> None:
    assert topic_bytes(encode_message(CASES[case]), 1) == CASES[case].topic.encode()


def test_a_large_payload_comes_back() -> None:
    payload = bytes(range(256)) * 4096
    record = encode_message(Message("t", payload, 1, False, b"", "c", 1, NEVER))
    assert decode_message(record, 1).payload == payload


@pytest.mark.parametrize("read", [decode_message, topic_bytes])
@pytest.mark.parametrize("case", SMALL)
def test_every_truncation_and_every_extension_is_noticed(read: object, case: str) -> None:
    assert callable(read)
    record = encode_message(CASES[case])
    for size in range(len(record)):
        with pytest.raises(CorruptRecord):
            read(record[:size], 1)
        with pytest.raises(CorruptRecord):
            read(record[size + 1 :], 1)
    for tail in (b"\0", b"\xff", record):
        with pytest.raises(CorruptRecord):
            read(record + tail, 1)


@pytest.mark.parametrize("read", [decode_message, topic_bytes])
@pytest.mark.parametrize("case", SMALL)
def test_every_flipped_bit_is_noticed(read: object, case: str) -> None:
    assert callable(read)
    record = encode_message(CASES[case])
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            read(bytes(damaged), 1)


def sealed(body: bytes) -> bytes:
    """Return `body` with a right checksum: damage that only a program can do."""
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (struct.pack(">BBQQHHII", 3, 0, 1, 0, 0, 1, 0, 0) + b"t", "version 3, expected 1 or 2"),
        (struct.pack(">BBQQHHII", 2, 0, 1, 0, 0, 1, 0, 0) + b"t", "by its sizes"),
        (struct.pack(">BBQQHHII", 2, 0, 1, 0, 0, 1, 0, 0) + b"t\0\0", "by its sizes"),
        (struct.pack(">BBQQHHII", 2, 0, 1, 0, 0, 1, 0, 0) + b"t\0\2u", "by its sizes"),
        (struct.pack(">BBQQHHII", 2, 0, 1, 0, 0, 1, 0, 0) + b"t\0\1\xff", "not UTF-8"),
        (struct.pack(">BBQQHHII", 1, 3, 1, 0, 0, 1, 0, 0) + b"t", "flags 0x03"),
        (struct.pack(">BBQQHHII", 1, 8, 1, 0, 0, 1, 0, 0) + b"t", "flags 0x08"),
        (struct.pack(">BBQQHHII", 1, 0, 1, 0, 0, 2, 0, 0) + b"t", "expected 36 by its sizes"),
        (struct.pack(">BBQQHHII", 1, 0, 1, 0, 0, 1, 0, 0) + b"tt", "expected 35 by its sizes"),
        (struct.pack(">BBQQHHII", 1, 0, 1, 0, 0, 1, 0, 0) + b"\xff", "not UTF-8"),
        (struct.pack(">BBQQHHII", 1, 0, 1, 0, 1, 1, 0, 0) + b"\xfft", "not UTF-8"),
        (b"\x01" * 10, "checksum does not match"),
    ],
)
def test_a_sound_checksum_does_not_excuse_wrong_contents(body: bytes, complaint: str) -> None:
    with pytest.raises(CorruptRecord, match=complaint):
        decode_message(sealed(body), 9)


def test_a_record_of_a_later_version_has_no_topic_for_this_one() -> None:
    with pytest.raises(CorruptRecord, match="message 9"):
        topic_bytes(sealed(struct.pack(">BBQQHHII", 3, 0, 1, 0, 0, 1, 0, 0) + b"t"), 9)


@pytest.mark.parametrize("case", SMALL)
def test_records_are_as_documented(case: str) -> None:
    """Does this version still read and write what earlier ones wrote?"""
    version = 2 if CASES[case].username else 1
    expected = golden(f"message-record-v{version}.hex")[case]
    assert encode_message(CASES[case]) == expected
    original = CASES[case]
    original.offset = 5
    assert fields(decode_message(expected, 5)) == fields(original)
