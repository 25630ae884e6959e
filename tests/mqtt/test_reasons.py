"""The tables of reason codes against section 2.4, written out a second time."""

import pytest

from mqtt import reasons

# code -> packets that may carry it: K CONNACK, A PUBACK and PUBREC, L PUBREL and PUBCOMP, s SUBACK,
# u UNSUBACK, c DISCONNECT from a client, d DISCONNECT from a server, x AUTH client, y AUTH server
TABLE = {
    0x00: "KALsucdy",
    0x01: "s",
    0x02: "s",
    0x04: "c",
    0x10: "A",
    0x11: "u",
    0x18: "xy",
    0x19: "x",
    0x80: "KAsucd",
    0x81: "Kcd",
    0x82: "Kcd",
    0x83: "KAsucd",
    0x84: "K",
    0x85: "K",
    0x86: "K",
    0x87: "KAsud",
    0x88: "K",
    0x89: "Kd",
    0x8A: "K",
    0x8B: "d",
    0x8C: "Kcd",
    0x8D: "d",
    0x8E: "d",
    0x8F: "sud",
    0x90: "KAcd",
    0x91: "Asu",
    0x92: "L",
    0x93: "cd",
    0x94: "cd",
    0x95: "Kcd",
    0x96: "cd",
    0x97: "KAscd",
    0x98: "cd",
    0x99: "KAcd",
    0x9A: "Kd",
    0x9B: "Kcd",
    0x9C: "Kd",
    0x9D: "Kd",
    0x9E: "sd",
    0x9F: "Kd",
    0xA0: "d",
    0xA1: "sd",
    0xA2: "sd",
}


@pytest.mark.parametrize(
    ("letter", "codes"),
    [
        ("K", reasons.CONNACK_CODES),
        ("A", reasons.PUBACK_CODES),
        ("A", reasons.PUBREC_CODES),
        ("L", reasons.PUBREL_CODES),
        ("L", reasons.PUBCOMP_CODES),
        ("s", reasons.SUBACK_CODES),
        ("u", reasons.UNSUBACK_CODES),
        ("c", reasons.DISCONNECT_CODES_FROM_CLIENT),
        ("d", reasons.DISCONNECT_CODES_FROM_SERVER),
        ("x", reasons.AUTH_CODES_FROM_CLIENT),
        ("y", reasons.AUTH_CODES_FROM_SERVER),
    ],
)
def test_each_packet_allows_the_codes_of_the_table(letter: str, codes: frozenset[int]) -> None:
    assert codes == {code for code, letters in TABLE.items() if letter in letters}


def test_every_code_has_a_name_and_a_constant() -> None:
    constants = {
        value
        for name, value in vars(reasons).items()
        if name.isupper() and isinstance(value, int) and not name.startswith("_")
    }
    assert set(reasons.NAMES) == set(TABLE) == constants


def test_names_are_those_of_the_standard() -> None:
    assert reasons.name(0x82) == "Protocol Error"
    assert reasons.name(0x00) == "Success"
    assert reasons.name(0xA2) == "Wildcard Subscriptions not supported"


def test_an_unknown_code_is_named_by_its_value() -> None:
    assert reasons.name(0x03) == "0x03"


@pytest.mark.parametrize(
    ("reason", "code"),
    [(0, 0), (0x84, 1), (0x85, 2), (0x88, 3), (0x89, 3), (0x97, 3), (0x86, 4), (0x87, 5), (0x8A, 5)]
    + [(code, code) for code in range(6)],
)
def test_refusals_map_to_return_codes(reason: int, code: int) -> None:
    assert reasons.connack_v4(reason) == code


@pytest.mark.parametrize("reason", [0x81, 0x82, 0x90, 0x95, 0x99, 0x9A, 0x9B])
def test_a_faulty_connect_has_no_return_code(reason: int) -> None:
    assert reasons.connack_v4(reason) == -1
