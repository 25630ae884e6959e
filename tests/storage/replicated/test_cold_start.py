"""Who may lead when nobody was heard who leads: all must have said how far they are."""

from storage.replicated.log_port import CaughtUp, Shrunk
from storage.replicated.members import UNKNOWN
from storage.replicated.record import (
    BATCH,
    CLAIM,
    Position,
)
from storage.replicated.roles.terms import (
    CLAIMS,
    FOLLOWS,
    LEADS,
    Anchor,
    Settings,
    Trouble,
)
from tests.storage.replicated.lone_node import NONCE, OTHER, Bob, Chain, row


def test_a_cold_node_waits_for_every_member_and_says_so() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), CaughtUp(2))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS
    (trouble,) = bob.told(Trouble)
    assert "ann was not heard" in trouble.why  # type: ignore[attr-defined]
    bob.hear(chain.word("ann", OTHER, (1, 2)))
    bob.wait(4000)
    assert bob.told(Trouble) == [Trouble("waiting for ann, which has more records than this node")]
    bob.hear(chain.word("ann", OTHER, (1, 1)))
    bob.wait(4000)
    assert bob.replica.role == CLAIMS


def test_a_node_that_has_led_leads_again_though_its_successor_is_never_heard() -> None:
    bob, chain = Bob(), Chain()
    bob.begin(Anchor(Position(), 0), has_led=True)
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)))
    bob.hear(CaughtUp(3))
    bob.wait(6000)
    assert bob.replica.role == CLAIMS  # ann was not heard, and leads no more


def test_a_node_that_has_led_is_cold_again_once_the_log_has_lost_records() -> None:
    bob, chain = Bob(), Chain()
    bob.begin(Anchor(Position(), 0), has_led=True)
    bob.hear(Shrunk(0))
    bob.hear(chain.add(CLAIM, 1), chain.word("bob", NONCE), CaughtUp(2))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS


def test_a_node_that_has_led_is_cold_if_the_log_lacks_what_it_had_promised_before() -> None:
    """Nobody has told of that: it was not reading then. Its successor may have more."""
    bob, chain = Bob(), Chain()
    claim, word = chain.add(CLAIM, 1), chain.word("bob", NONCE)
    batch = chain.add(BATCH, 1, row(1))
    bob.tail.append(1, claim.data)
    bob.tail.append(2, batch.data)
    bob.begin(Anchor(chain.end, 2), (Anchor(Position(), 0),), has_led=True)
    bob.hear(claim, word, CaughtUp(2))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS


def written(is_new: bool, node: str = "ann") -> tuple[Bob, Chain]:
    """Return a node that has read a log with a batch in it, and heard no leader."""
    bob, chain = Bob(), Chain()
    bob.begin(Anchor(Position(), 0), is_new=is_new)
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1, node=node))
    bob.hear(chain.add(BATCH, 1, row(1), node=node), CaughtUp(3))
    return bob, chain


def test_a_member_that_began_with_a_copy_or_nothing_does_not_count_as_heard() -> None:
    """It may have acknowledged, before it lost its disk, what nobody else has."""
    bob, chain = written(is_new=False)
    bob.hear(chain.word("ann", OTHER, UNKNOWN))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS
    (trouble,) = bob.told(Trouble)
    assert "ann began with a copy or with nothing" in trouble.why  # type: ignore[attr-defined]
    bob.hear(chain.word("ann", OTHER, (1, 2)))
    bob.wait(4000)
    assert bob.replica.role == CLAIMS


def test_a_member_that_never_had_anything_counts_as_heard() -> None:
    """The log may have lost what it promised before that had read any of it."""
    bob, chain = written(is_new=False)
    bob.hear(chain.word("ann", OTHER, (0, 0)))
    bob.wait(6000)
    assert bob.replica.role == CLAIMS


def test_a_node_that_began_with_a_copy_or_nothing_does_not_lead_a_cold_cluster() -> None:
    bob, chain = written(is_new=True)
    bob.hear(chain.word("ann", OTHER, (1, 2)))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS
    assert bob.replica.longest == UNKNOWN
    (trouble,) = bob.told(Trouble)
    assert "bob began with a copy or with nothing" in trouble.why  # type: ignore[attr-defined]


def test_a_copy_that_has_more_than_others_is_not_told_to_wait_for_them() -> None:
    bob, chain = written(is_new=True)
    bob.hear(chain.word("ann", OTHER, (1, 1)))
    bob.wait(6000)
    (trouble,) = bob.told(Trouble)
    assert "waiting" not in trouble.why  # type: ignore[attr-defined]


def test_what_a_copy_had_before_does_not_matter_once_a_leader_was_heard() -> None:
    bob, chain = written(is_new=True)
    bob.hear(chain.beat())
    assert not bob.replica.is_new
    assert bob.replica.longest == (1, 2)
    bob.wait(4000)
    assert bob.replica.role == CLAIMS


def test_a_new_cluster_needs_nobody_to_remember_anything() -> None:
    bob, chain = Bob(), Chain()
    bob.begin(Anchor(Position(), 0), is_new=True)
    bob.hear(chain.word("bob", NONCE), chain.word("ann", OTHER, UNKNOWN), CaughtUp(2))
    assert not bob.replica.is_new
    bob.wait(4000)
    assert bob.replica.role == CLAIMS


def test_a_new_cluster_whose_first_leader_wrote_nothing_begins_again() -> None:
    bob, chain = Bob(), Chain()
    bob.begin(Anchor(Position(), 0), is_new=True)
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), CaughtUp(2))
    bob.hear(chain.word("ann", OTHER, UNKNOWN))
    bob.wait(5000)
    assert bob.replica.role == CLAIMS


def test_a_copy_that_is_told_to_lead_remembers_from_then_on() -> None:
    settings = Settings("bob", ("ann", "bob"), accepts_data_loss=True)
    bob, chain = written(is_new=True)
    bob.replica.settings = settings  # type: ignore[misc]
    bob.wait(5000)
    claim = chain.sent(bob.log)
    bob.hear(bob.ack(claim), claim, CaughtUp(4))
    bob.wait(100)
    assert bob.replica.role == LEADS
    assert not bob.replica.is_new


def test_a_loss_is_accepted_at_the_start_and_not_a_month_later() -> None:
    bob, chain = Bob(), Chain()
    bob.begin(Anchor(Position(), 0), accepts_data_loss=True)
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    more = Chain(Position(1, 9, b"d" * 16), chain.place)  # ann has read what the log has lost since
    bob.hear(more.word("ann", OTHER))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS
    assert bob.told(Trouble) == [Trouble("waiting for ann, which has more records than this node")]


def test_whoever_has_led_by_an_accepted_loss_accepts_no_other_one() -> None:
    bob, chain = Bob(), Chain()
    bob.begin(Anchor(Position(), 0), has_led=True, accepts_data_loss=True)
    bob.hear(Shrunk(0))
    bob.hear(chain.add(CLAIM, 1), chain.word("bob", NONCE), CaughtUp(2))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS


def test_a_node_that_is_no_member_is_told_once() -> None:
    """The lists of two nodes are not the same, or two clusters have one topic."""
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat())
    for _ in range(3):
        bob.hear(chain.word("dan", OTHER, (1, 1)))
    (trouble,) = bob.told(Trouble)
    assert "dan is no member as far as this node knows" in trouble.why  # type: ignore[attr-defined]
