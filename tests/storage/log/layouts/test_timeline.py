"""Is a generation without an index just its messages?"""

from storage.api import Batch, Store
from storage.local.memory import MemoryStore
from storage.log.layouts import timeline
from storage.log.layouts.api import Stream
from storage.tables.message_record import encode_message
from tests.storage.log_cases import drain, fill, golden, message, new_slab, stored


def test_an_append_is_one_row_whatever_the_filters() -> None:
    slab = new_slab(MemoryStore(), "timeline")
    batch: Batch = []
    sent = stored(message("a"), 1)
    slab.append(batch, sent, [1, 2, 3])
    assert batch == [("msg.1", golden("message-keys.hex")["message 1"], encode_message(sent))]


def test_the_families_are_as_documented() -> None:
    assert timeline.families(12) == ("msg.12",)
    assert new_slab(MemoryStore(), "timeline").families == ("msg.1",)


def test_a_reader_compares_topics_and_ignores_filter_ids(store: Store) -> None:
    slab = new_slab(store, "timeline")
    fill(store, slab, ["a", "b", "a"], [])
    assert drain(slab.reader([Stream(99, "a", 0)], 0), 3) == [1, 3]
    assert slab.first_owed([Stream(99, "b", 0)], 0, 3) == 2
