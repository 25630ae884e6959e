"""What a node does when the log has lost what it had not promised, or all of it."""

from storage.replicated.log_port import Acked, CaughtUp, Read, Shrunk, Unknown
from storage.replicated.record import (
    BATCH,
    CLAIM,
    HEARTBEAT,
    PART,
    Position,
    decode,
)
from storage.replicated.replica import BEAT
from storage.replicated.roles.terms import (
    BROKEN,
    CLAIMS,
    DEPOSED,
    FOLLOWS,
    LEADS,
    Anchor,
    Committed,
    Trouble,
)
from tests.replication.node import META
from tests.storage.replicated.lone_node import NONCE, OTHER, Bob, Chain, leading, row


def test_a_claim_that_the_log_lost_gives_way_to_another_of_its_epoch() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.add(CLAIM, 1, OTHER), chain.add(PART, 1, row(1)[:5]), chain.add(CLAIM, 2))
    fork = Chain()
    bob.hear(Shrunk(0))
    bob.hear(fork.add(CLAIM, 1, OTHER, node="cyd"), fork.add(BATCH, 1, row(2), node="cyd"))
    bob.keep()
    assert bob.replica.role == FOLLOWS
    assert bob.disk.where() == Anchor(fork.end, 1)
    assert bob.has(2)
    assert list(bob.tail.records) == [1, 2]


def test_a_batch_that_the_log_lost_before_it_promised_to_keep_it_was_never_applied() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.add(CLAIM, 1, OTHER), chain.add(BATCH, 1, row(1)))
    assert not bob.has(1)
    fork = Chain()
    bob.hear(Shrunk(0))
    bob.hear(fork.add(CLAIM, 1, OTHER, node="cyd"), fork.add(BATCH, 1, row(2), node="cyd"))
    bob.keep()
    assert (bob.replica.role, bob.has(1), bob.has(2)) == (FOLLOWS, False, True)


def test_a_record_that_came_to_its_old_place_does_not_prove_those_before_it() -> None:
    chain = Chain()
    claim, first = chain.add(CLAIM, 1, OTHER), chain.add(BATCH, 1, row(1))
    second = chain.add(BATCH, 1, row(2))
    old = [Anchor(Position(), 0), Anchor(chain.end, second.place)]
    bob = Bob(old[-1], old)
    # The log lost all three, and two were sent again, the last one to where it was before.
    bob.hear(Shrunk(9))
    bob.hear(claim, Read(first.place, b"another"), second, CaughtUp(9))
    assert bob.replica.log_end.index == decode(claim.data).index
    assert bob.replica.end == chain.end


def test_what_the_log_lost_is_kept_in_the_tail_until_something_else_counts() -> None:
    bob, chain = Bob(), Chain()
    claim, batch = chain.add(CLAIM, 1, OTHER), chain.add(BATCH, 1, row(1))
    bob.hear(claim, batch)
    bob.hear(Shrunk(0), CaughtUp(0))
    assert bob.replica.longest == (1, 2)
    assert list(bob.tail.records) == [1, 2]
    bob.hear(claim, batch, chain.beat())  # it was sent again
    assert bob.has(1)


def test_a_follower_applies_what_the_leader_says_it_has_committed() -> None:
    bob, chain = Bob(), Chain()
    claim, batch = chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1))
    beat = chain.beat()
    bob.hear(claim, batch, chain.add(BATCH, 1, row(2)))
    assert not bob.has(1)
    bob.hear(beat)
    assert (bob.has(1), bob.has(2)) == (True, False)


def test_what_a_leader_has_committed_may_be_read_after_it_said_so() -> None:
    bob, chain = Bob(), Chain()
    claim, batch = chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1))
    bob.hear(claim, chain.beat(), batch)
    assert bob.has(1)


def test_what_a_leader_of_another_branch_has_committed_says_nothing_of_this_one() -> None:
    bob, chain, fork = Bob(), Chain(), Chain()
    fork.add(CLAIM, 1, OTHER, node="cyd")
    fork.add(BATCH, 1, row(2), node="cyd")
    bob.hear(chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)), fork.beat(node="cyd"))
    assert not bob.has(1)


def test_a_node_does_not_lead_before_the_log_keeps_its_claim() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(4000)
    claim = chain.sent(bob.log)
    bob.hear(claim, CaughtUp(4))
    assert bob.replica.role == CLAIMS
    bob.hear(bob.ack(claim), CaughtUp(4))
    assert bob.replica.role == LEADS


def test_a_node_whose_claim_is_lost_does_not_lead() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(4000)
    claim = chain.sent(bob.log)
    bob.hear(claim, CaughtUp(4))
    bob.hear(Shrunk(3))
    bob.hear(Read(1, bob.tail.records[1]), CaughtUp(3))
    bob.wait(100)
    assert bob.replica.role == FOLLOWS
    bob.hear(Read(3, claim.data), CaughtUp(4))  # it got there twice
    bob.keep()
    assert bob.replica.role == LEADS


def test_a_deposed_leader_whose_batch_is_lost_begins_anew_behind_what_it_committed() -> None:
    bob, chain = leading()
    before = chain.end
    bob.replica.write([(META, b"1", b"value")])
    bob.hear(chain.sent(bob.log))
    bob.hear(Shrunk(4))
    claim = Chain(before, 4).add(CLAIM, 3, OTHER)
    bob.hear(Read(1, bob.tail.records[1]), Read(3, bob.tail.records[2]), claim)
    assert bob.replica.role == DEPOSED
    bob.begin(bob.disk.where(), tuple(bob.disk.anchors()))
    assert bob.replica.end == before
    assert bob.replica.longest == (3, 3)


def test_the_place_of_what_is_committed_is_its_own_though_more_was_read() -> None:
    bob, chain = leading()
    bob.replica.write([(META, b"1", b"value")])
    first, end = chain.sent(bob.log), chain.end
    bob.hear()  # synced
    bob.replica.write([(META, b"2", bytes(100))])
    more = [chain.sent(bob.log, 2), chain.sent(bob.log, 1)]
    bob.hear(first, *more, bob.ack(more[-1]), synced=False)
    assert bob.told(Committed) == [Committed(end, first.place)]


def test_a_leader_says_what_it_has_committed_and_not_what_it_has_read() -> None:
    bob, chain = leading()
    claimed = chain.end
    bob.replica.write([(META, b"1", b"value")])
    read = chain.sent(bob.log)
    bob.hear(read)
    assert decode(bob.replica.heartbeat(5)).before == claimed.digest
    bob.hear(bob.ack(read))
    assert decode(bob.replica.heartbeat(5)).before == chain.end.digest


def test_a_leader_with_a_slow_disk_does_not_send_again_what_the_log_has() -> None:
    bob, chain = leading()
    bob.replica.write([(META, b"1", b"value")])
    read = chain.sent(bob.log)
    bob.kinds()
    bob.hear(read, bob.ack(read), synced=False)
    bob.wait(13_000)
    assert BATCH not in bob.kinds()


def test_a_leader_that_was_idle_waits_before_it_sends_again() -> None:
    bob, _ = leading()
    bob.wait(13_000)
    bob.replica.write([(META, b"1", b"value")])
    bob.wait(1000)
    assert bob.kinds().count(BATCH) == 1


def test_an_unknown_outcome_of_what_was_read_is_asked_for_and_not_sent_again() -> None:
    bob, chain = leading()
    index = bob.replica.write([(META, b"1", b"value")])
    read = chain.sent(bob.log)
    bob.kinds()
    bob.hear(read, Unknown(bob.log.tokens[index], "timed out"))
    assert not bob.told(Committed)
    bob.wait(200)
    assert bob.kinds() == []
    assert bob.told(Committed) == [Committed(chain.end, read.place)]


def test_a_node_that_hears_one_machine_of_the_log_alone_does_not_claim() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(1000)
    bob.wait(30_000, alone=True)
    assert bob.kinds() == []
    assert bob.replica.role == FOLLOWS
    bob.wait(500)
    assert bob.kinds() == [CLAIM]


def test_a_word_that_is_not_read_back_proves_nothing() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    for _ in range(60):
        bob.wait(100, alone=True)
        bob.hear(*(Acked(token, 1000) for token in bob.log.words), CaughtUp(3))
    assert bob.replica.role == FOLLOWS


def test_a_node_whose_leader_has_resigned_claims_at_once() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.hear(chain.other(HEARTBEAT, BEAT.pack(78) + b"Rbob", "ann"), CaughtUp(4))
    bob.replica.timeout(bob.now)
    assert bob.kinds() == [CLAIM]


def test_a_claim_that_another_one_followed_before_the_log_lost_that_does_not_lead() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(4000)
    claim = chain.sent(bob.log)
    bob.hear(claim, chain.add(CLAIM, 3, OTHER), chain.add(BATCH, 3, row(1)))
    bob.hear(Shrunk(4))
    bob.hear(Read(1, bob.tail.records[1]), claim, CaughtUp(4))
    bob.keep()
    assert bob.replica.role == FOLLOWS
    assert bob.replica.longest == (3, 4)  # it may have been promised, and can be given back


RENEWED = Position(3, 0, b"d" * 16)  # a database that begins a new log


def test_a_renewed_database_leads_in_a_new_log_and_a_copy_of_it_follows() -> None:
    bob, chain = Bob(Anchor(RENEWED, 0)), Chain(RENEWED)
    bob.hear(chain.word("bob", NONCE), chain.word("ann", OTHER), CaughtUp(2))
    bob.wait(4000)
    claim = chain.sent(bob.log)
    assert decode(claim.data).epoch == 4
    bob.hear(bob.ack(claim), claim, CaughtUp(3))
    bob.wait(100)
    assert bob.replica.role == LEADS
    ann = Bob(Anchor(RENEWED, 0))
    ann.hear(claim, chain.add(BATCH, 4, row(1), node="bob"))
    ann.keep()
    assert ann.has(1)


def test_an_empty_node_does_not_follow_a_log_that_a_renewed_database_began() -> None:
    bob = Bob()
    bob.hear(Chain(RENEWED).add(CLAIM, 4))
    assert bob.replica.role == BROKEN
    (trouble,) = bob.told(Trouble)
    assert trouble == Trouble(
        "the log begins with a database of ann that is another one than this node has: copy the "
        "database of another node"
    )


def test_a_renewed_database_passes_over_the_claim_of_an_empty_one() -> None:
    bob = Bob(Anchor(RENEWED, 0))
    bob.hear(Chain().add(CLAIM, 1))
    assert (bob.replica.role, bob.replica.passed_over) == (FOLLOWS, 1)


def test_a_log_that_lost_everything_is_one_line_that_says_what_to_do() -> None:
    chain = Chain()
    chain.add(CLAIM, 1)
    bob = Bob(Anchor(chain.end, 7))
    bob.hear(CaughtUp(0))
    assert bob.replica.role == BROKEN
    assert bob.told(Trouble) == [
        Trouble(
            "the log ended at 0, and this node remembers no place from where to read again: copy "
            "the database of another node, or if none can go on, see holdfast cluster renew"
        )
    ]


def test_an_acknowledgement_says_nothing_of_what_was_read_before_and_lost_since() -> None:
    bob, chain = leading()
    bob.replica.write([(META, b"1", b"value")])
    mine, at = chain.sent(bob.log), chain.place
    bob.hear(mine, chain.word("ann", OTHER), CaughtUp(at + 1))
    bob.now += 1000
    bob.replica.timeout(bob.now)
    # The log has lost both, and a claim of ann is where the batch was; nobody told this node yet.
    bob.hear(Acked(bob.log.words.pop(), at))
    assert not bob.told(Committed)
    bob.hear(Shrunk(mine.place))
    assert not bob.told(Committed)


def test_a_node_that_looks_again_for_what_is_lost_claims_in_the_end() -> None:
    """A record without the one before it is read again and again: no sign of life (527604)."""
    chain = Chain()
    claim = chain.add(CLAIM, 1)
    first = Anchor(chain.end, claim.place)
    batch = chain.add(BATCH, 1, row(1))
    at = Anchor(chain.end, batch.place)
    chain.add(BATCH, 1, row(2))  # which the log has lost
    chain.add(BATCH, 1, row(3))
    stray = chain.add(BATCH, 1, row(4))
    bob = Bob(at, (first,))
    bob.begin(at, (first,), members=("bob",), takeover_ms=5000, has_led=True)
    looked = 0
    while bob.replica.role != CLAIMS and bob.now < 100_000:
        if len(bob.log.read_at) > looked:
            looked = len(bob.log.read_at)
            bob.hear(claim, batch, stray)
        bob.wait(100)
    assert looked > 2
    assert bob.replica.role == CLAIMS
