"""Is a connection's record, with its will, read back exactly, or not at all?"""

import pytest

from session.state.will_record import ConnectionRecord, decode_connection, encode_connection
from tests.session.state.cases import CONNECTIONS, golden


def fields(record: ConnectionRecord) -> tuple[object, ...]:
    """Return everything of a record."""
    return tuple(getattr(record, name) for name in ConnectionRecord.__slots__)


@pytest.mark.parametrize("case", CONNECTIONS)
def test_a_row_gives_the_record_back(case: str) -> None:
    original = CONNECTIONS[case]
    assert fields(decode_connection(encode_connection(original))) == fields(original)


@pytest.mark.parametrize("case", CONNECTIONS)
def test_the_format_is_the_one_on_disk(case: str) -> None:
    expected = golden("connection-record-v2.hex")[case]
    assert encode_connection(CONNECTIONS[case]).hex() == expected.hex()
    assert fields(decode_connection(expected)) == fields(CONNECTIONS[case])


@pytest.mark.parametrize("case", CONNECTIONS)
def test_a_row_of_version_1_is_read_and_names_no_incarnation(case: str) -> None:
    record = decode_connection(golden("connection-record-v1.hex")[case])
    assert record.incarnation == 0
    record.incarnation = CONNECTIONS[case].incarnation
    assert fields(record) == fields(CONNECTIONS[case])


@pytest.mark.parametrize("case", CONNECTIONS)
def test_every_truncation_and_every_extension_is_noticed(case: str) -> None:
    value = encode_connection(CONNECTIONS[case])
    for size in range(len(value)):
        with pytest.raises(ValueError):
            decode_connection(value[:size])
    with pytest.raises(ValueError, match="left over"):
        decode_connection(value + b"\0")


def test_another_version_is_refused() -> None:
    value = encode_connection(CONNECTIONS["without will"])
    with pytest.raises(ValueError, match="version 3, expected 1 or 2"):
        decode_connection(b"\x03" + value[1:])


def test_a_will_of_the_largest_size_comes_back() -> None:
    record = CONNECTIONS["full will"]
    assert record.will is not None
    payload, record.will.payload = record.will.payload, b"x" * 65_535
    try:
        assert fields(decode_connection(encode_connection(record))) == fields(record)
    finally:
        record.will.payload = payload
