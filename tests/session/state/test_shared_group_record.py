"""Is a shared subscription's record read back exactly, or not at all?"""

import pytest

from session.state.shared_group_record import GroupRecord, decode_group, encode_group
from tests.session.state.cases import GROUPS, golden


def fields(record: GroupRecord) -> tuple[object, ...]:
    """Return everything of a record."""
    return tuple(getattr(record, name) for name in GroupRecord.__slots__)


@pytest.mark.parametrize("case", GROUPS)
def test_a_row_gives_the_record_back(case: str) -> None:
    assert fields(decode_group(encode_group(GROUPS[case]))) == fields(GROUPS[case])


@pytest.mark.parametrize("case", GROUPS)
def test_the_format_is_the_one_on_disk(case: str) -> None:
    expected = golden("group-record-v1.hex")[case]
    assert encode_group(GROUPS[case]).hex() == expected.hex()
    assert fields(decode_group(expected)) == fields(GROUPS[case])


@pytest.mark.parametrize("case", GROUPS)
def test_every_truncation_and_every_extension_is_noticed(case: str) -> None:
    value = encode_group(GROUPS[case])
    for size in range(len(value)):
        with pytest.raises(ValueError):
            decode_group(value[:size])
    with pytest.raises(ValueError, match="left over"):
        decode_group(value + b"\0")


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 02"):
        decode_group(b"\x02" + encode_group(GROUPS["new"])[1:])
