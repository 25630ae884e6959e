"""Every property in every packet: allowed, foreign, repeated, cut off, out of range."""

import pytest

from mqtt import packets, properties
from mqtt.errors import MalformedPacket, MqttError, ProtocolError
from mqtt.packets import Connect, Packet, Publish
from mqtt.properties import ALLOWED, NAMES, TABLES, TYPES, WILL, forwardable, read
from mqtt.wire import Reader, encode_varint
from tests.mqtt.samples import FORWARD, Sender, decode_bytes, frame

# Table 2-4 written a second time, by property. W will, C CONNECT, K CONNACK, P PUBLISH, A PUBACK
# PUBREC PUBREL PUBCOMP, S SUBSCRIBE, s SUBACK, U UNSUBSCRIBE, u UNSUBACK, D DISCONNECT, X AUTH
TABLE: dict[int, tuple[str, str]] = {
    0x01: ("PW", "01"),
    0x02: ("PW", "00000001"),
    0x03: ("PW", "0001 74"),
    0x08: ("PW", "0001 74"),
    0x09: ("PW", "0002 00ff"),
    0x0B: ("PS", "01"),
    0x11: ("CKD", "00000001"),
    0x12: ("K", "0001 69"),
    0x13: ("K", "0001"),
    0x15: ("CKX", "0001 6d"),
    0x16: ("CKX", "0002 00ff"),
    0x17: ("C", "01"),
    0x18: ("W", "00000001"),
    0x19: ("C", "01"),
    0x1A: ("K", "0001 69"),
    0x1C: ("KD", "0001 69"),
    0x1F: ("KAsuDX", "0001 72"),
    0x21: ("CK", "0001"),
    0x22: ("CK", "0001"),
    0x23: ("P", "0001"),
    0x24: ("K", "01"),
    0x25: ("K", "01"),
    0x26: ("CWKPASsUuDX", "0001 6b 0001 76"),
    0x27: ("CK", "00000001"),
    0x28: ("K", "01"),
    0x29: ("K", "01"),
    0x2A: ("K", "01"),
}
VALUES = {identifier: bytes.fromhex(value) for identifier, (_, value) in TABLE.items()}

# letter, sender, packet type, bytes before and after the property block, properties always needed
CARRIERS: list[tuple[str, Sender, int, str, str, str]] = [
    ("C", "client", 0x10, "0004 4d515454 05 02 0000", "0000", ""),
    ("W", "client", 0x10, "0004 4d515454 05 06 0000 00 0000", "0001 77 0000", ""),
    ("K", "server", 0x20, "00 00", "", ""),
    ("P", "server", 0x32, "0001 74 0001", "70", ""),
    ("A", "client", 0x40, "0001 00", "", ""),
    ("A", "client", 0x50, "0001 00", "", ""),
    ("A", "client", 0x62, "0001 00", "", ""),
    ("A", "client", 0x70, "0001 00", "", ""),
    ("A", "server", 0x40, "0001 00", "", ""),
    ("A", "server", 0x50, "0001 00", "", ""),
    ("A", "server", 0x62, "0001 00", "", ""),
    ("A", "server", 0x70, "0001 00", "", ""),
    ("S", "client", 0x82, "0001", "0001 66 00", ""),
    ("s", "server", 0x90, "0001", "00", ""),
    ("U", "client", 0xA2, "0001", "0001 66", ""),
    ("u", "server", 0xB0, "0001", "00", ""),
    ("D", "client", 0xE0, "00", "", ""),
    ("X", "client", 0xF0, "18", "", "15 0001 6d"),
    ("X", "server", 0xF0, "18", "", "15 0001 6d"),
]
CARRIER_IDS = [f"{letter}-{sender}-{first:02x}" for letter, sender, first, *_ in CARRIERS]
REPEATABLE = {(0x26, letter) for letter in "CWKPASsUuDX"} | {(0x0B, "P")}

Carrier = tuple[str, Sender, int, str, str, str]


def carry(carrier: Carrier, block: bytes) -> tuple[list[Packet], MqttError | None]:
    """Decode the carrier packet with `block` as its properties."""
    _, sender, first, before, after, needed = carrier
    if needed and block[:1] != b"\x15":
        block = bytes.fromhex(needed) + block
    body = bytes.fromhex(before) + encode_varint(len(block), "") + block + bytes.fromhex(after)
    found, decoder = decode_bytes(frame(first, body), sender, 5)
    return found, decoder.error


def one(identifier: int) -> bytes:
    return bytes((identifier,)) + VALUES[identifier]


def companion(identifier: int, letter: str) -> bytes:
    """Return what `identifier` must not come without."""
    return one(0x15) if identifier == 0x16 and letter == "C" else b""


def test_the_tables_agree() -> None:
    kinds = {"W": [0], "C": [1], "K": [2], "P": [3], "A": [4, 5, 6, 7], "S": [8], "s": [9]}
    kinds |= {"U": [10], "u": [11], "D": [14], "X": [15]}
    expected: dict[int, set[int]] = {}
    for identifier, (letters, _) in TABLE.items():
        for letter in letters:
            for kind in kinds[letter]:
                expected.setdefault(kind, set()).add(identifier)
    assert ALLOWED == expected
    assert set(NAMES) == set(TYPES) == set(TABLE)
    for kind, table in TABLES.items():
        assert {identifier for identifier in range(256) if table[identifier]} == expected[kind]


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
def test_no_properties_is_fine(carrier: Carrier) -> None:
    found, error = carry(carrier, b"")
    assert error is None and len(found) == 1


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
def test_each_identifier_is_accepted_or_malformed_as_the_table_says(carrier: Carrier) -> None:
    letter, sender = carrier[0], carrier[1]
    for identifier in range(256):
        if identifier not in TABLE or letter not in TABLE[identifier][0]:
            for value in {VALUES.get(identifier, b"\x00"), b"", bytes(20)}:
                found, error = carry(carrier, bytes((identifier,)) + value)
                assert found == []
                assert isinstance(error, MalformedPacket) and error.reason_code == 0x81
        elif letter == "D" and identifier == (0x1C if sender == "client" else 0x11):
            continue  # the direction decides, see test_bodies
        else:
            found, error = carry(carrier, companion(identifier, letter) + one(identifier))
            assert error is None and len(found) == 1, hex(identifier)


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
def test_each_single_property_may_come_once(carrier: Carrier) -> None:
    letter = carrier[0]
    for identifier, (letters, _) in TABLE.items():
        if letter not in letters:
            continue
        other = b"" if identifier == 0x26 else one(0x26)
        start = companion(identifier, letter)
        for block in (one(identifier) * 2, one(identifier) + other + one(identifier)):
            found, error = carry(carrier, start + block)
            if (identifier, letter) in REPEATABLE:
                assert error is None and len(found) == 1
            else:
                assert found == []
                assert isinstance(error, ProtocolError) and error.reason_code == 0x82


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
def test_a_block_that_does_not_end_on_a_property_border_is_malformed(carrier: Carrier) -> None:
    letter, sender = carrier[0], carrier[1]
    for identifier, (letters, _) in TABLE.items():
        if letter not in letters:
            continue
        whole = one(identifier)
        for size in range(1, len(whole)):
            found, error = carry(carrier, companion(identifier, letter) + whole[:size])
            assert found == [], (letter, sender, hex(identifier), size)
            assert isinstance(error, MalformedPacket) and error.reason_code == 0x81


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
def test_a_property_length_beyond_the_packet_is_malformed(carrier: Carrier) -> None:
    _, sender, first, before, after, _ = carrier
    size = len(bytes.fromhex(after))
    for length in (b"%c" % (size + 1), b"\xff\x7f", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x7f"):
        body = bytes.fromhex(before) + length + bytes.fromhex(after)
        found, decoder = decode_bytes(frame(first, body), sender, 5)
        assert found == [] and isinstance(decoder.error, MalformedPacket)


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
def test_a_property_length_in_a_long_form_is_malformed(carrier: Carrier) -> None:
    _, sender, first, before, after, needed = carrier
    block = bytes.fromhex(needed)
    body = bytes.fromhex(before) + bytes((len(block) | 0x80, 0)) + block + bytes.fromhex(after)
    found, decoder = decode_bytes(frame(first, body), sender, 5)
    assert found == [] and isinstance(decoder.error, MalformedPacket)


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
def test_an_identifier_in_a_long_form_is_malformed(carrier: Carrier) -> None:
    found, error = carry(carrier, b"\xa6\x00" + VALUES[0x26])
    assert found == [] and isinstance(error, MalformedPacket)


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
@pytest.mark.parametrize("raw", [b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"a\x00b"])
def test_strings_in_properties_are_checked(carrier: Carrier, raw: bytes) -> None:
    bad = len(raw).to_bytes(2, "big") + raw
    blocks = [b"\x26" + bad + b"\x00\x00", b"\x26\x00\x00" + bad]
    for identifier, (letters, _) in TABLE.items():
        if carrier[0] in letters and TYPES[identifier] == properties.STRING:
            blocks.append(bytes((identifier,)) + bad)
    for block in blocks:
        found, error = carry(carrier, block)
        assert found == [] and isinstance(error, MalformedPacket) and error.reason_code == 0x81


# identifier, value, reason code
ILLEGAL_VALUES = [
    (0x01, "02", 0x82),
    (0x01, "ff", 0x82),
    (0x08, "0000", 0x90),
    (0x08, "0001 23", 0x90),
    (0x08, "0003 612f2b", 0x90),
    (0x0B, "00", 0x82),
    (0x0B, "8000", 0x81),
    (0x0B, "8080808001", 0x81),
    (0x17, "02", 0x82),
    (0x19, "02", 0x82),
    (0x21, "0000", 0x82),
    (0x23, "0000", 0x94),
    (0x24, "02", 0x82),
    (0x25, "02", 0x82),
    (0x27, "00000000", 0x82),
    (0x28, "02", 0x82),
    (0x29, "02", 0x82),
    (0x2A, "02", 0x82),
]


@pytest.mark.parametrize(("identifier", "value", "code"), ILLEGAL_VALUES)
def test_values_that_are_never_legal(identifier: int, value: str, code: int) -> None:
    tried = 0
    for carrier in CARRIERS:
        if carrier[0] in TABLE[identifier][0]:
            tried += 1
            found, error = carry(carrier, bytes((identifier,)) + bytes.fromhex(value))
            assert found == []
            assert error is not None and error.reason_code == code
    assert tried


# identifier, value at the edge
LEGAL_VALUES = [
    (0x01, "00"),
    (0x02, "00000000"),
    (0x02, "ffffffff"),
    (0x03, "0000"),
    (0x09, "0000"),
    (0x0B, "ffffff7f"),
    (0x11, "00000000"),
    (0x11, "ffffffff"),
    (0x12, "0000"),
    (0x13, "0000"),
    (0x15, "0000"),
    (0x17, "00"),
    (0x18, "00000000"),
    (0x18, "ffffffff"),
    (0x19, "00"),
    (0x21, "ffff"),
    (0x22, "0000"),
    (0x22, "ffff"),
    (0x23, "ffff"),
    (0x24, "00"),
    (0x25, "00"),
    (0x26, "0000 0000"),
    (0x27, "ffffffff"),
    (0x28, "00"),
    (0x29, "00"),
    (0x2A, "00"),
]


@pytest.mark.parametrize(("identifier", "value"), LEGAL_VALUES)
def test_values_at_the_edge_are_legal(identifier: int, value: str) -> None:
    for carrier in CARRIERS:
        if carrier[0] not in TABLE[identifier][0]:
            continue
        if (carrier[0], carrier[1], identifier) == ("D", "server", 0x11):
            continue
        found, error = carry(carrier, bytes((identifier,)) + bytes.fromhex(value))
        assert error is None and len(found) == 1


def test_user_properties_keep_order_and_repeats() -> None:
    pairs = [("b", "1"), ("a", ""), ("b", "1"), ("", "x"), ("", "")]
    block = b"".join(
        b"\x26"
        + len(name).to_bytes(2, "big")
        + name.encode()
        + len(value).to_bytes(2, "big")
        + value.encode()
        for name, value in pairs
    )
    found, error = carry(CARRIERS[0], block)
    assert error is None
    assert isinstance(found[0], Connect) and list(found[0].user_properties) == pairs


@pytest.mark.parametrize("carrier", CARRIERS, ids=CARRIER_IDS)
def test_the_number_of_user_properties_is_limited(carrier: Carrier) -> None:
    found, error = carry(carrier, one(0x26) * 1024)
    assert error is None and len(found) == 1
    found, error = carry(carrier, one(0x26) * 1025)
    assert found == []
    assert isinstance(error, ProtocolError) and error.reason_code == 0x97


def test_reading_stops_at_the_limit() -> None:
    block = Reader(one(0x26) * 100_000, 0, 7 * 100_000)
    with pytest.raises(ProtocolError):
        read(block, packets.PUBLISH, 3)
    assert block.position == 22


def _publish_with(block: bytes) -> Publish:
    found, error = carry(CARRIERS[3], block)
    assert error is None
    assert isinstance(found[0], Publish)
    return found[0]


def test_forwarded_properties_are_kept_raw_and_in_order() -> None:
    assert _publish_with(FORWARD).properties == FORWARD
    user = bytes.fromhex("26 0000 0001 78")
    mixed = user + one(0x09) + user + one(0x01) + one(0x08) + user + one(0x03)
    assert _publish_with(mixed).properties == mixed


def test_properties_of_the_delivery_are_cut_out_wherever_they_stand() -> None:
    """Message Expiry Interval, Topic Alias and Subscription Identifier are not forwarded raw."""
    kept = [one(0x01), one(0x26), one(0x03), one(0x26)]
    for cut in (one(0x02), one(0x23), one(0x0B), b"\x0b\xff\xff\xff\x7f"):
        for place in range(len(kept) + 1):
            block = b"".join(kept[:place]) + cut + b"".join(kept[place:])
            assert _publish_with(block).properties == b"".join(kept)
    block = one(0x02) + one(0x23) + kept[0] + one(0x0B) + one(0x0B) + kept[1] + one(0x0B)
    publish = _publish_with(block)
    assert publish.properties == kept[0] + kept[1]
    assert publish.subscription_identifiers == (1, 1, 1)
    assert publish.message_expiry_interval == 1
    assert publish.topic_alias == 1


def test_a_block_with_nothing_to_forward_forwards_nothing() -> None:
    block = one(0x02) + one(0x23)
    assert forwardable(block, 0, len(block)) == b""
    assert forwardable(b"", 0, 0) == b""


def test_the_will_delay_and_expiry_are_not_forwarded() -> None:
    block = one(0x18) + one(0x01) + one(0x02) + one(0x26)
    found, error = carry(CARRIERS[1], block)
    assert error is None
    assert isinstance(found[0], Connect) and found[0].will is not None
    assert found[0].will.properties == one(0x01) + one(0x26)
    assert found[0].will.delay_interval == 1
    assert found[0].will.message_expiry_interval == 1


def test_the_will_has_no_table_of_a_packet() -> None:
    assert WILL == 0 and packets.NAMES[WILL] == "reserved"
