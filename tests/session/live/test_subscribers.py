"""Who wants a filter, as values: when an entry may rest, and the queue of a group in memory."""

from mqtt.message import Message
from session.live.subscribers import FilterEntry, Group


def test_an_entry_rests_only_if_its_number_is_all_there_is_to_know() -> None:
    for holders, routes, expected in ((1, 0, True), (0, 0, False), (2, 0, False), (1, 1, False)):
        entry = FilterEntry("a", 1, holders)
        entry.routes = routes
        assert entry.may_rest() is expected


def message(payload: bytes) -> Message:
    return Message("t", payload, 1, False, b"", "p", 0, 0)


def test_a_message_that_came_back_to_a_group_goes_out_first() -> None:
    group = Group("share", FilterEntry("t"))
    group.queue(message(b"one"))
    group.queue(message(b"three"))
    first = group.next_pending()
    assert (first.payload, group.pending_bytes) == (b"one", 5)
    group.queue_again(first)
    assert group.pending_bytes == 8
    assert [group.next_pending().payload for _ in range(2)] == [b"one", b"three"]
    assert group.pending_bytes == 0


def test_a_group_stores_what_it_owes_and_what_is_out_with_members_that_are_not_stored() -> None:
    group = Group("share", FilterEntry("t"))
    group.position, group.since, group.stored_members = 9, 2, 1
    group.owed.append(4)
    group.leased[7] = None
    record = group.record()
    assert (record.position, record.since, record.stored_members) == (9, 2, 1)
    assert list(record.owed) == [4, 7]
    assert group.key() == ("share", "t")
