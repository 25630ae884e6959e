"""Is every row that a broker writes decoded, and no damaged one?"""

import pytest

from broker.operations.damage.decoding import DECODERS, split_client, try_decode
from storage.replicated.applied import POSITION_KEY, encode_reached
from storage.replicated.record import Position
from storage.tables.tables import FAMILIES, META
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


def test_the_position_in_the_replicated_log_is_decoded() -> None:
    value = encode_reached(Position(1, 2), 3)
    assert not isinstance(try_decode(DECODERS[META], POSITION_KEY, value), str)
    assert "checksum" in str(try_decode(DECODERS[META], POSITION_KEY, value[:-1]))


def test_a_key_has_a_client() -> None:
    assert split_client(b"boat\0x\0y") == ("boat", b"x\0y")
    with pytest.raises(ValueError, match="without a client id"):
        split_client(b"boat")
