"""Does a database keep the places of the log from where it can be read again?"""

import pytest

from storage.errors import CorruptRecord
from storage.local.memory import MemoryStore
from storage.replicated import anchors
from storage.replicated.applied import POSITION_KEY
from storage.replicated.record import Position
from storage.replicated.roles.terms import Anchor
from storage.tables.tables import META, seal
from tests.storage.log_cases import golden

PLACES = [
    Anchor(Position(1, 256, bytes(range(16))), 300),
    Anchor(Position(3, 2**40, bytes(range(16, 32))), 2**41),
]


def test_the_row_is_what_is_on_disk() -> None:
    assert golden("replica-anchors-v1.hex") == {"anchors": anchors.encode(PLACES)}
    assert anchors.decode(anchors.encode(PLACES)) == PLACES
    assert anchors.decode(anchors.encode([])) == []


def test_a_database_has_those_that_were_saved_last() -> None:
    store = MemoryStore([META])
    assert anchors.load(store) == []
    anchors.save(store, PLACES)
    anchors.save(store, PLACES[1:])
    assert anchors.load(store) == PLACES[1:]
    assert anchors.ANCHORS_KEY != POSITION_KEY


@pytest.mark.parametrize("value", [seal(b"\2"), seal(b"\1" + bytes(39)), seal(b""), b"\1"])
def test_what_is_no_row_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptRecord, match="replica anchors"):
        anchors.decode(value)
