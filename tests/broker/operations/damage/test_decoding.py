"""Is every row that a broker writes decoded, and no damaged one?"""

import pytest

from broker.operations.damage.decoding import DECODERS, split_client, try_decode
from storage.tables.tables import FAMILIES
from tests.broker.operations.damage.databases import fleet


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_decoded_and_no_torn_one_is(family: str) -> None:
    broker = fleet()
    rows = broker.rows(family)
    assert rows
    for key, value in rows:
        assert not isinstance(try_decode(DECODERS[family], key, value), str)
        for damaged in (value[:-1], value + b"x", value[:1], b"torn"):
            if damaged != value:
                assert isinstance(try_decode(DECODERS[family], key, damaged), str)


def test_a_key_has_a_client() -> None:
    assert split_client(b"boat\0x\0y") == ("boat", b"x\0y")
    with pytest.raises(ValueError, match="without a client id"):
        split_client(b"boat")
