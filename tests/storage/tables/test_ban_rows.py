"""Are the rows of bans what is on disk, and read back exactly or not at all?"""

import pytest

from storage.errors import CorruptRecord
from storage.tables import ban_rows
from storage.tables.tables import seal
from tests.storage.log_cases import golden

MADE_MS = 1_763_711_111_111
VALUES = {
    "client key": ban_rows.ban_key(ban_rows.CLIENT_ID, "böat-17"),
    "user key": ban_rows.ban_key(ban_rows.USER, "anna"),
    "address key": ban_rows.ban_key(ban_rows.ADDRESS, "10.0.0.0/8"),
    "ban": ban_rows.encode_ban(MADE_MS, MADE_MS + 3_600_000, "ölga", "stölen"),
    "ban without a reason": ban_rows.encode_ban(0, 1, "root", ""),
}


@pytest.mark.parametrize("case", VALUES)
def test_the_format_is_the_one_on_disk(case: str) -> None:
    assert VALUES[case].hex() == golden("ban-rows-v1.hex")[case].hex()


@pytest.mark.parametrize("kind", ban_rows.KINDS)
def test_a_key_gives_its_parts_back(kind: bytes) -> None:
    assert ban_rows.split_ban_key(ban_rows.ban_key(kind, "ä")) == (kind, "ä")


@pytest.mark.parametrize("key", [b"", b"c", b"xboat", b"u\xff"])
def test_a_key_of_another_form_is_refused(key: bytes) -> None:
    with pytest.raises(CorruptRecord):
        ban_rows.split_ban_key(key)


@pytest.mark.parametrize(
    "fields", [(0, 0, "", ""), (2**64 - 1, 2**63, "n" * 65_535, "r" * 1024), (1, 2, "ö", "ü")]
)
def test_a_row_gives_its_values_back(fields: tuple[int, int, str, str]) -> None:
    assert ban_rows.decode_ban(ban_rows.encode_ban(*fields)) == fields


def test_every_truncation_is_noticed() -> None:
    value = VALUES["ban"]
    for size in range(len(value)):
        with pytest.raises(CorruptRecord):
            ban_rows.decode_ban(value[:size])


@pytest.mark.parametrize(
    "body",
    [
        b"\x02" + bytes(18),  # of another version
        b"\x01" + bytes(16) + b"\x00\x09short",  # its name is longer than the row
        b"\x01" + bytes(16) + b"\x00\x01\xff",
        b"\x01" + bytes(18) + b"\xff",
    ],
)
def test_a_row_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptRecord):
        ban_rows.decode_ban(seal(body))
