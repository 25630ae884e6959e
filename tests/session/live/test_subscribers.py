"""Who wants a filter, as values: when an entry may rest, and the queue of a group in memory."""

import random

import pytest

from mqtt.decoder import Decoder
from mqtt.message import Message
from session.live.connection import Connection
from session.live.subscribers import FilterEntry, Group
from session.state.subscription import Subscription


def test_an_entry_rests_only_if_its_number_is_all_there_is_to_know() -> None:
    for holders, routes, expected in ((1, 0, True), (0, 0, False), (2, 0, False), (1, 1, False)):
        entry = FilterEntry("a", 1, holders)
        entry.routes = routes
        assert entry.may_rest() is expected


class Nowhere:
    """A transport that nothing is written to."""

    def write(self, data: bytes) -> None:
        raise AssertionError

    close = abort = pause_reading = resume_reading = lambda self: None


@pytest.mark.parametrize("seed", range(10))
def test_the_connected_sessions_of_a_filter_are_what_a_dict_would_hold(seed: int) -> None:
    """One alone has no dict. They have the same order, and the newest subscription of each."""
    source = random.Random(seed)
    entry, others = FilterEntry("a"), FilterEntry("b")
    connections = [
        Connection(number, Nowhere(), Decoder("server", 0), 0, "tcp", "", None)
        for number in range(3)
    ]
    expected: dict[Connection, Subscription] = {}
    for _ in range(60):
        connection = source.choice(connections)
        if source.random() < 0.5:
            subscription = Subscription("a", None, "a", 0, False, False, 0, 0, 0, False)
            expected[connection] = subscription
            entry.join(connection, subscription)
        else:
            expected.pop(connection, None)
            entry.leave(connection)
        assert entry.live() == list(expected.items())
        assert entry.is_live() is bool(expected)
        assert (entry.alone is not None) is (entry.subscription is not None)
        assert not others.live() and not others.is_live()


def test_shared_subscriptions_of_one_filter_are_not_those_of_another() -> None:
    entry, other = FilterEntry("a"), FilterEntry("b")
    group = Group("g", entry)
    entry.add_group(group)
    second = Group("h", entry)
    entry.add_group(second)
    assert entry.groups == {"g": group, "h": second}
    assert not other.groups and not FilterEntry("c").groups
    assert not entry.is_idle() and other.is_idle()


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
