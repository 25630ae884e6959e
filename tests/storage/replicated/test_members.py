"""A node believes of others only what they said since it began, and epochs before indices."""

import pytest

from storage.replicated import members
from storage.replicated.members import TWINS_MIN, UNKNOWN, Members, Presence
from storage.replicated.record import ORIGIN, PRESENCE, NotARecord, Record

MINE, THEIRS = b"m" * 16, b"t" * 16


def presence(
    longest: tuple[int, int] = (1, 5), durable: int = 0, nonce: bytes = THEIRS
) -> Presence:
    return Presence(nonce, longest, longest, durable, "host:1883")


def heard() -> Members:
    found = Members("bob", ("ann", "bob", "cyd"), MINE)
    found.take("bob", presence(nonce=MINE), 10)
    return found


def test_a_presence_is_read_as_it_was_written() -> None:
    said = Presence(THEIRS, (3, 9), (2, 7), 4, "host:1883")
    record = Record(PRESENCE, 2, 7, ORIGIN, "ann", said.encode())
    assert members.decode(record) == said


@pytest.mark.parametrize(
    ("body", "why"), [(b"short", "of 5 bytes"), (bytes(40) + b"\xff", "not UTF-8")]
)
def test_what_is_no_presence_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(NotARecord, match=why):
        members.decode(Record(PRESENCE, 1, 1, ORIGIN, "ann", body))


def test_what_was_said_before_the_own_first_word_does_not_count() -> None:
    found = Members("bob", ("ann", "bob", "cyd"), MINE)
    found.take("ann", presence(), 5)
    assert found.missing() == ["ann", "bob", "cyd"]
    found.take("bob", presence(nonce=MINE), 10)
    assert found.missing() == ["ann", "cyd"]
    found.take("ann", presence(), 7)  # read again
    assert found.missing() == ["ann", "cyd"]
    found.take("ann", presence(), 11)
    found.take("cyd", presence(), 12)
    assert found.missing() == []
    assert not found.is_new(10)
    assert found.is_new(11)
    assert dict(found) == found.heard


def test_the_word_of_an_earlier_process_is_not_the_own_first() -> None:
    found = Members("bob", ("ann",), MINE)
    found.take("bob", presence(nonce=THEIRS), 3)
    assert not found.is_new(4)


def test_members_take_over_in_the_order_of_their_list() -> None:
    found = Members("bob", ("cyd", "bob", "ann"), MINE)
    assert (found.names, found.rank) == (("cyd", "bob", "ann"), 1)


def test_a_log_that_lost_the_first_word_makes_all_that_was_heard_doubtful() -> None:
    found = heard()
    found.take("ann", presence(), 11)
    found.shrunk(11)
    assert found.missing() == ["cyd"]
    found.shrunk(10)
    assert found.missing() == ["ann", "bob", "cyd"]
    found.take("bob", presence(nonce=MINE), 10)
    assert found.missing() == ["ann", "cyd"]


def test_a_longer_tail_of_an_earlier_epoch_is_not_ahead() -> None:
    found = heard()
    found.take("ann", presence((1, 90)), 11)
    found.take("cyd", presence((2, 10)), 12)
    assert found.ahead_of((2, 10)) == []
    assert found.ahead_of((2, 9)) == ["cyd"]
    assert found.ahead_of((1, 90)) == ["cyd"]
    assert found.have_read_beyond((1, 89)) == ["ann", "cyd"]


def test_two_nodes_are_durable_up_to_the_second_greatest() -> None:
    found = heard()
    assert found.twice_durable(50) == 0
    found.take("ann", presence(durable=30), 11)
    found.take("cyd", presence(durable=20), 12)
    assert found.twice_durable(50) == 30
    assert found.twice_durable(25) == 25


def test_who_began_with_nothing_is_told_from_who_was_not_heard() -> None:
    found = heard()
    found.take("ann", presence(UNKNOWN), 11)
    assert (found.missing(), found.forgetful()) == (["cyd"], ["ann"])
    assert found.ahead_of((0, 0)) == []
    found.take("ann", presence((0, 0)), 12)
    assert found.forgetful() == []
    found.take("ann", presence((1, 1)), 12)
    assert found.forgetful() == []


def test_what_a_node_has_durably_is_known_once_it_was_heard() -> None:
    found = heard()
    assert found.durable("ann") == 0
    found.take("ann", presence(durable=30), 11)
    assert found.durable("ann") == 30


def test_another_process_of_the_same_name_is_noticed_once_it_goes_on() -> None:
    found = heard()
    for place in range(11, 11 + TWINS_MIN):
        assert not found.has_twin
        found.take("bob", presence(nonce=THEIRS), place)
    assert found.has_twin


def test_rank_and_address() -> None:
    found = heard()
    found.take("ann", presence(), 11)
    assert found.rank == 1
    assert found.address("ann") == "host:1883"
    assert found.address("cyd") == ""
