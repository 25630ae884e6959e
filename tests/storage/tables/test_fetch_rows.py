"""Are the rows of what sessions fetch what is on disk, and read back exactly or not at all?"""

import pytest

from mqtt.message import Message
from storage.errors import CorruptRecord
from storage.tables import fetch_rows
from storage.tables.fetch_rows import Copy, Origin
from storage.tables.tables import seal
from tests.storage.log_cases import golden

MESSAGE = Message("t/ä", b"payload", 1, False, b"", "app", 1_763_711_111_111, 0, 0)
ORIGIN = Origin("cache", fetch_rows.QUEUE, "2VFt0kuNrOktefX6m4nP")
KEY = fetch_rows.fetch_key("clïent", "cache", fetch_rows.PUBSUB, "t/ä")
COPIES = {
    "retained": Copy(MESSAGE, 268_435_455, None),
    "fetched": Copy(MESSAGE, 0, ORIGIN),
    "fetched with identifier": Copy(MESSAGE, 268_435_455, ORIGIN),
}
VALUES = {
    "fetch key": KEY,
    "fetch": fetch_rows.encode_fetch(1_763_711_111_111, ORIGIN.message_id),
    "fetch key of a retained message": fetch_rows.fetch_key("c", "cache", fetch_rows.RETAIN, "t"),
    "fetch of a queue": fetch_rows.encode_fetch(0, ""),
    **{f"copy, {name}": fetch_rows.encode_copy(copy) for name, copy in COPIES.items()},
}


@pytest.mark.parametrize("case", VALUES)
def test_the_format_is_the_one_on_disk(case: str) -> None:
    assert VALUES[case].hex() == golden("fetch-rows-v1.hex")[case].hex()


def test_a_key_gives_its_parts_back() -> None:
    assert fetch_rows.split_fetch_key(KEY) == ("clïent", "cache", fetch_rows.PUBSUB, "t/ä")


@pytest.mark.parametrize("began_ms, position", [(0, ""), (2**63, "1"), (5, "Ö" * 100)])
def test_a_row_gives_its_values_back(began_ms: int, position: str) -> None:
    value = fetch_rows.encode_fetch(began_ms, position)
    assert fetch_rows.decode_fetch(value) == (began_ms, position)


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_read_back(name: str) -> None:
    copy = COPIES[name]
    found = fetch_rows.decode_copy(fetch_rows.encode_copy(copy))
    assert (found.identifier, found.origin) == (copy.identifier, copy.origin)
    assert found.message.payload == b"payload" and found.message.topic == "t/ä"


@pytest.mark.parametrize("name", COPIES)
def test_every_truncation_of_a_copy_is_noticed(name: str) -> None:
    value = fetch_rows.encode_copy(COPIES[name])
    for size in range(len(value)):
        with pytest.raises(CorruptRecord):
            fetch_rows.decode_copy(value[:size])


@pytest.mark.parametrize(
    "key", [b"", b"c", b"c\0b\0", b"c\0b\0\x09t", b"c\0b\0\x01", b"\0b\0\x01t"]
)
def test_another_key_is_refused(key: bytes) -> None:
    with pytest.raises(CorruptRecord):
        fetch_rows.split_fetch_key(key)


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="fetch"):
        fetch_rows.split_fetch_key(b"\xff\0b\0\x01t")


@pytest.mark.parametrize("body", [b"", bytes(8), b"\x02" + bytes(8), b"\x01" + bytes(8) + b"\xff"])
def test_another_row_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptRecord):
        fetch_rows.decode_fetch(seal(body))
    with pytest.raises(CorruptRecord, match="checksum"):
        fetch_rows.decode_fetch(bytes(4) + b"\x01" + bytes(8))


@pytest.mark.parametrize("head", [b"\x02\x01", b"\x01\x09"])
def test_a_copy_of_a_later_version_is_refused(head: bytes) -> None:
    value = fetch_rows.encode_copy(COPIES["fetched"])
    with pytest.raises(CorruptRecord, match="version"):
        fetch_rows.decode_copy(value[:4] + head + value[6:])


def test_origins_are_compared_by_their_fields() -> None:
    assert Origin("cache", 1, "x") == Origin("cache", 1, "x") != Origin("cache", 1, "y")
    assert len({Origin("cache", 1, "x"), Origin("cache", 1, "x")}) == 1
    assert Origin("cache", 1, "x") != "x"
    assert "cache" in repr(ORIGIN)
