"""Each rule of a replica as a small history: what the log said, and what the node then does."""

import pytest

from storage.errors import Recoverable, WriteStalled
from storage.replicated.log_port import Acked, CaughtUp, Missing, Read, Shrunk, Unknown
from storage.replicated.members import Presence
from storage.replicated.record import (
    BATCH,
    CLAIM,
    HEARTBEAT,
    PART,
    PRESENCE,
    Position,
    decode,
)
from storage.replicated.replica import HEARD_GAP_MS
from storage.replicated.roles.terms import (
    BROKEN,
    CLAIMS,
    DEPOSED,
    FOLLOWS,
    LEADS,
    Anchor,
    Committed,
    Deposed,
    Leads,
    Trouble,
)
from tests.replication.node import META
from tests.storage.replicated.lone_node import NONCE, OTHER, Bob, Chain, leading, row


def test_a_follower_applies_a_batch_once_its_own_tail_has_it_synced() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)), chain.beat(), synced=False)
    assert not bob.has(1)
    bob.replica.tail_synced(1)
    assert not bob.has(1)
    bob.replica.tail_synced(2)
    assert bob.has(1)
    assert bob.disk.where() == Anchor(chain.end, 1)
    assert list(bob.tail.records) == [1, 2]


def test_a_batch_in_parts_is_applied_when_it_is_whole() -> None:
    bob, chain = Bob(), Chain()
    body = row(1)
    bob.hear(chain.add(CLAIM, 1), chain.add(PART, 1, body[:5]))
    bob.keep()
    assert bob.disk.where().position.index == 1
    bob.hear(chain.add(BATCH, 1, body[5:]))
    bob.keep()
    assert bob.has(1)


def test_parts_that_an_old_leader_did_not_end_are_dropped() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.add(CLAIM, 1), chain.add(PART, 1, row(1)), chain.add(CLAIM, 2, node="cyd"))
    bob.hear(chain.add(BATCH, 2, row(2), node="cyd"))
    bob.keep()
    assert not bob.has(1)
    assert bob.has(2)


def test_what_does_not_count_is_passed_over() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)))
    old = Chain(Position())
    bob.hear(Read(2, old.add(CLAIM, 1, node="cyd").data), Read(3, b"rubbish"))
    assert bob.replica.end == chain.end
    assert (bob.replica.passed_over, bob.replica.foreign) == (1, 1)


def test_a_node_claims_after_silence_and_leads_when_nothing_is_behind_its_claim() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(3000)
    assert bob.replica.role == FOLLOWS
    bob.wait(1000)
    assert bob.replica.role == CLAIMS
    claim = chain.sent(bob.log)
    bob.hear(bob.ack(claim), claim)
    assert bob.replica.role == CLAIMS
    assert not bob.told(Leads)
    bob.hear(CaughtUp(4))
    assert bob.replica.role == LEADS
    (leads,) = bob.told(Leads)
    assert isinstance(leads, Leads)
    assert (leads.epoch, leads.alive_ms) == (2, 77)
    assert leads.silent_ms >= 3500


def test_the_clock_of_a_leader_that_was_not_heard_is_not_that_of_the_one_before_it() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(2000)
    bob.hear(chain.add(CLAIM, 2, node="cyd"), chain.add(BATCH, 2, row(1), node="cyd"), CaughtUp(5))
    bob.wait(4000)
    claim = chain.sent(bob.log)
    bob.hear(bob.ack(claim), claim)
    bob.hear(CaughtUp(6))
    (leads,) = bob.told(Leads)
    assert isinstance(leads, Leads)
    assert (leads.epoch, leads.alive_ms) == (3, 0)  # it may have been behind what ann has said
    assert 3500 <= leads.silent_ms <= 4000


def test_the_clock_goes_on_from_a_leader_that_only_claimed() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(2000)
    bob.hear(chain.add(CLAIM, 2, node="cyd"), CaughtUp(4))
    bob.wait(4000)
    claim = chain.sent(bob.log)
    bob.hear(bob.ack(claim), claim)
    bob.hear(CaughtUp(5))
    (leads,) = bob.told(Leads)
    assert isinstance(leads, Leads)
    assert (leads.epoch, leads.alive_ms) == (3, 77)
    assert leads.silent_ms >= 5500


def test_a_claim_that_another_one_follows_does_not_lead() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(4000)
    claim = chain.sent(bob.log)
    bob.hear(bob.ack(claim), claim, chain.add(CLAIM, 3, OTHER), CaughtUp(5))
    assert bob.replica.role == FOLLOWS
    assert not bob.told(Leads)


def test_a_node_does_not_lead_before_its_database_has_all() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(4000)
    claim = chain.sent(bob.log)
    bob.hear(bob.ack(claim), claim, CaughtUp(4), synced=False)
    assert bob.replica.role == CLAIMS
    bob.kinds()
    bob.wait(9000)
    assert bob.kinds() == []  # nor does it claim again and again
    bob.replica.tail_synced(2)
    bob.wait(100)
    assert bob.replica.role == LEADS


def test_a_twin_with_another_nonce_does_not_make_this_process_lead() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1, OTHER, node="bob"), CaughtUp(2))
    assert bob.replica.role == FOLLOWS
    bob.hear(*(chain.word("bob", OTHER) for _ in range(3)))
    (trouble,) = bob.told(Trouble)
    assert trouble == Trouble("another process says that it is bob: end one of them")


def test_a_batch_is_committed_when_tail_log_and_read_back_have_it_in_any_order() -> None:
    def tail(bob: Bob, read: Read) -> None:
        bob.tail.sync_begin()
        bob.replica.tail_synced(bob.tail.sync_end())

    def back(bob: Bob, read: Read) -> None:
        bob.hear(read, synced=False)

    def ack(bob: Bob, read: Read) -> None:
        bob.hear(bob.ack(read), synced=False)

    for order in ((tail, back, ack), (ack, back, tail), (back, tail, ack), (ack, tail, back)):
        bob, chain = leading()
        assert bob.replica.write([(META, b"1", b"value")]) == 3
        read = chain.sent(bob.log)
        for step in order:
            assert not bob.told(Committed)
            step(bob, read)
        assert bob.told(Committed) == [Committed(chain.end, read.place)]


def test_an_acknowledgement_does_not_count_before_the_log_was_read_so_far() -> None:
    """The copy that this node read may be lost, and the claim of another be in its place."""
    bob, chain = leading()
    before = chain.end
    index = bob.replica.write([(META, b"1", b"value")])
    bob.hear(Unknown(bob.log.tokens[index], "timed out"))
    bob.hear(chain.sent(bob.log))
    # The log loses that, another node claims, and the copy that is sent again comes behind it.
    bob.hear(Acked(bob.log.tokens[index], 8))
    assert not bob.told(Committed)
    claim = Chain(before, 4).add(CLAIM, 3, OTHER)
    bob.hear(Shrunk(4))
    bob.hear(Read(1, bob.tail.records[1]), Read(3, bob.tail.records[2]), claim)
    assert bob.replica.role == DEPOSED
    assert not bob.told(Committed)


def test_an_append_of_unknown_outcome_is_sent_again_with_all_behind_it() -> None:
    bob, _ = leading()
    for command in range(3):
        bob.replica.write([(META, b"%d" % command, b"value")])
    bob.kinds()
    second, third = bob.log.tokens[4], bob.log.tokens[5]
    bob.hear(Unknown(second, "timed out"))
    assert [decode(data).index for data, _ in bob.log.sent] == [4, 5]
    bob.log.sent.clear()
    bob.hear(Unknown(third, "timed out"))  # it was sent again already
    assert not bob.log.sent


def test_what_does_not_come_back_is_sent_again_ever_more_rarely() -> None:
    bob, _ = leading()
    bob.replica.write([(META, b"1", b"value")])
    bob.kinds()
    bob.wait(13_000)
    assert bob.kinds().count(BATCH) == 2


def test_a_deposed_leader_releases_nothing_and_says_who_leads() -> None:
    bob, chain = leading()
    index = bob.replica.write([(META, b"1", b"value")])
    word, claim = chain.word("ann", OTHER), chain.add(CLAIM, 3, OTHER)
    bob.hear(word, claim, Acked(bob.log.tokens[index], 9))
    assert bob.replica.role == DEPOSED
    assert bob.replica.told == [Deposed("ann", "host")]
    with pytest.raises(Recoverable, match="deposed"):
        bob.replica.write([])


def test_a_large_batch_is_cut_and_committed_as_one() -> None:
    bob, chain = leading()
    bob.replica.write([(META, b"1", bytes(100))])
    assert [decode(data).kind for data, _ in bob.log.sent] == [PART, BATCH]
    reads = [chain.sent(bob.log, 2), chain.sent(bob.log, 1)]
    bob.hear(*reads, bob.ack(reads[-1]))
    assert len(bob.told(Committed)) == 1


def test_a_longer_tail_of_an_earlier_epoch_does_not_lead() -> None:
    bob, chain = Bob(), Chain()
    for index in range(1, 6):
        read = chain.add(CLAIM if index == 1 else BATCH, 1, row(index))
        bob.tail.append(index, read.data)
    bob.begin(Anchor(Position(), 0))
    assert bob.replica.longest == (1, 5)
    log = Chain()
    bob.hear(log.word("bob", NONCE), log.word("ann", OTHER, (2, 3)), CaughtUp(2))
    bob.wait(8000)
    assert bob.replica.role == FOLLOWS


def test_records_that_were_sent_again_do_not_make_a_node_warm() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)))
    assert not bob.replica.is_warm
    bob.hear(chain.beat())
    assert bob.replica.is_warm


def test_a_candidate_appends_first_what_only_its_tail_has() -> None:
    bob, chain = Bob(), Chain()
    reads = [chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)), chain.add(BATCH, 1, row(2))]
    for index, read in enumerate(reads, 1):
        bob.tail.append(index, read.data)
    bob.begin(Anchor(Position(), 0))
    log = Chain()
    bob.hear(log.word("bob", NONCE), log.word("ann", OTHER, (1, 1)), CaughtUp(2))
    bob.wait(4000)
    assert bob.kinds() == [CLAIM, BATCH, BATCH, CLAIM]


def test_what_only_the_own_tail_has_gives_way_to_what_counts() -> None:
    bob, old = Bob(), Chain()
    for index in range(1, 4):
        bob.tail.append(index, old.add(CLAIM if index == 1 else BATCH, 1, row(index)).data)
    bob.begin(Anchor(Position(), 0))
    chain = Chain()
    bob.hear(chain.add(CLAIM, 5, node="ann"))
    assert list(bob.tail.records) == [1]
    assert bob.replica.longest == (5, 1)


def test_a_node_reads_on_from_the_first_anchor_and_checks_the_record_there() -> None:
    chain = Chain()
    claim = chain.add(CLAIM, 1)
    first = Anchor(chain.end, claim.place)
    batch = chain.add(BATCH, 1, row(1))
    at = Anchor(chain.end, batch.place)
    bob = Bob(at, (first, at))
    assert bob.log.read_at == [first.place]
    bob.hear(claim, batch, chain.add(BATCH, 1, row(2)), chain.beat())
    assert bob.has(2)
    assert not bob.has(1)  # the database has it already


def test_a_record_that_is_at_its_place_by_chance_does_not_hide_what_is_missing() -> None:
    """The log lost two records while this node was away, and got the second one again: 525973."""
    chain = Chain()
    claim = chain.add(CLAIM, 1)
    first = Anchor(chain.end, claim.place)
    lost = chain.add(BATCH, 1, row(1))
    again = chain.add(BATCH, 1, row(2))
    at = Anchor(chain.end, again.place)
    bob = Bob(at, (first, at))
    bob.hear(claim, Read(again.place, again.data))
    assert bob.replica.log_end == first.position
    bob.hear(Read(again.place + 1, lost.data), Read(again.place + 2, again.data))
    assert bob.replica.log_end == bob.replica.end == at.position


def test_a_part_of_a_batch_is_no_anchor() -> None:
    """Nodes that have read it once have none there, and would miss what is before it: 549710."""
    chain = Chain()
    begun = [chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)), chain.add(BATCH, 1, row(2))]
    whole = row(3)
    parted = [chain.add(PART, 1, whole[:5]), chain.add(BATCH, 1, whole[5:])]
    bob = Bob(Anchor(chain.end, parted[1].place), (Anchor(Position(), 0),))
    bob.hear(*begun, *parted)
    assert parted[0].place == 3  # the fourth record: there would be an anchor
    assert not bob.disk.anchors()
    assert bob.replica.log_end == chain.end


def test_without_an_anchor_that_is_right_a_node_is_broken() -> None:
    chain = Chain()
    chain.add(CLAIM, 1)
    bob = Bob(Anchor(chain.end, 7))
    bob.hear(Read(7, b"another"))
    assert bob.replica.role == BROKEN
    (trouble,) = bob.told(Trouble)
    assert "copy the database of another node" in trouble.why  # type: ignore[attr-defined]


def test_a_log_that_ends_before_the_anchor_has_shrunk() -> None:
    chain = Chain()
    chain.add(CLAIM, 1)
    bob = Bob(Anchor(chain.end, 7))
    bob.hear(CaughtUp(7))
    assert bob.replica.role == BROKEN


def test_a_leader_gives_back_what_the_log_lost() -> None:
    bob, chain = leading()
    bob.replica.write([(META, b"1", b"value")])
    read = chain.sent(bob.log)
    bob.hear(read, bob.ack(read))
    bob.kinds()
    bob.hear(Shrunk(4))
    bob.hear(Read(1, bob.tail.records[1]), Read(3, bob.tail.records[2]), CaughtUp(4))
    assert bob.kinds() == [BATCH]


def test_a_follower_gives_back_what_the_log_lost_when_nobody_leads() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)))
    bob.keep()
    bob.hear(Shrunk(1), CaughtUp(1))
    bob.wait(4500)
    assert bob.kinds() == [CLAIM, BATCH]
    assert bob.replica.role == FOLLOWS


def test_others_that_went_on_without_what_this_node_has_break_it() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)), chain.add(BATCH, 1, row(2)))
    bob.keep()
    fork = Chain()
    reads = [fork.add(CLAIM, 1), fork.add(CLAIM, 2, OTHER, node="cyd")]
    bob.hear(Shrunk(1))
    bob.hear(*reads)
    assert bob.replica.role == BROKEN


def test_a_fork_of_the_same_epoch_breaks_a_node_where_it_ends() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)))
    bob.keep()
    fork = Chain()
    bob.hear(Shrunk(0))
    bob.hear(fork.add(CLAIM, 1, OTHER, node="cyd"), fork.add(BATCH, 1, row(9), node="cyd"))
    assert bob.replica.role == BROKEN
    assert not bob.has(9)


def test_records_that_were_deleted_before_they_were_read_break_a_node() -> None:
    bob = Bob()
    bob.hear(Missing(5))
    assert bob.replica.role == BROKEN


def test_the_log_is_deleted_up_to_what_two_nodes_have_synced() -> None:
    bob, chain = leading()
    reads = []
    for command in range(6):
        bob.replica.write([(META, b"%d" % command, b"value")])
        reads.append(chain.sent(bob.log))
    bob.hear(*reads)
    bob.wait(1500)
    assert not bob.log.deleted
    bob.replica.synced(8)
    bob.wait(1500)
    assert not bob.log.deleted
    ann = Presence(OTHER, (2, 8), (2, 8), 5, "host")
    bob.hear(chain.other(PRESENCE, ann.encode(), "ann"))
    bob.wait(1500)
    assert set(bob.log.deleted) == {reads[1].place}  # index 4: the last anchor up to index 5


def test_the_log_keeps_for_a_while_what_a_member_needs_that_is_away() -> None:
    bob, chain = leading(members=("ann", "bob", "cyd"), keep_ms=20_000)
    reads = []
    for command in range(6):
        bob.replica.write([(META, b"%d" % command, b"value")])
        reads.append(chain.sent(bob.log))
    cyd = Presence(OTHER, (2, 3), (2, 3), 3, "host")
    bob.hear(chain.other(PRESENCE, cyd.encode(), "cyd"), *reads)
    bob.replica.synced(8)
    began = bob.now
    while bob.now < began + 25_000 and not bob.log.deleted:
        ann = Presence(OTHER, (2, 8), (2, 8), 8, "host")
        bob.hear(chain.other(PRESENCE, ann.encode(), "ann"))
        bob.wait(500)
    assert set(bob.log.deleted) == {reads[5].place}
    assert bob.now - began >= 20_000


def test_the_log_keeps_what_a_member_needs_that_was_not_heard_yet() -> None:
    bob, chain = leading(members=("ann", "bob", "cyd"), keep_ms=60_000)
    reads = []
    for command in range(6):
        bob.replica.write([(META, b"%d" % command, b"value")])
        reads.append(chain.sent(bob.log))
    ann = Presence(OTHER, (2, 8), (2, 8), 8, "host")
    bob.hear(*reads, chain.other(PRESENCE, ann.encode(), "ann"))
    bob.replica.synced(8)
    bob.wait(5000)
    assert not bob.log.deleted


def test_a_leader_that_does_not_hear_the_log_says_so_and_when_it_is_over() -> None:
    bob, _ = leading()
    bob.now += 3500
    bob.replica.timeout(bob.now)
    assert bob.replica.is_stalled
    bob.hear(CaughtUp(bob.replica._read_to))
    assert not bob.replica.is_stalled
    assert [each.why for each in bob.told(Trouble)][-1] == ""  # type: ignore[attr-defined]


def test_who_did_not_hear_the_log_does_not_claim_before_it_has_waited_anew() -> None:
    bob, chain = Bob(), Chain()
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.now += 60_000 + HEARD_GAP_MS
    bob.hear(CaughtUp(3))
    bob.replica.timeout(bob.now)
    assert bob.replica.role == FOLLOWS
    bob.wait(4000)
    assert bob.replica.role == CLAIMS


def test_a_leader_beats_when_it_is_due() -> None:
    bob, _ = leading()
    for _ in range(3):
        bob.replica.beat(123, bob.now)
    assert bob.kinds() == [HEARTBEAT]


def test_a_node_that_lacks_records_for_its_claim_says_so() -> None:
    chain = Chain()
    chain.add(CLAIM, 1)
    chain.add(BATCH, 1, row(1))
    anchor = Anchor(chain.end, 9)
    bob = Bob(anchor, (Anchor(Position(), 0), anchor))  # a copy: its tail has nothing
    bob.hear(CaughtUp(2))
    log = Chain()
    bob.hear(log.word("bob", NONCE), log.word("ann", OTHER, (1, 1)), CaughtUp(2))
    bob.wait(4000)
    assert bob.replica.role == FOLLOWS
    assert any("start the other nodes" in each.why for each in bob.told(Trouble))  # type: ignore[attr-defined]


def test_a_follower_whose_database_stalls_tries_again_and_loses_nothing() -> None:
    """After a long absence it reads faster than a database takes what it reads."""
    bob, chain = Bob(), Chain()
    stall = WriteStalled("write failed: Write stall")
    take = bob.disk.apply

    def refuse(*_: object) -> None:
        raise stall

    bob.disk.apply = refuse  # type: ignore[method-assign]
    bob.hear(chain.add(CLAIM, 1), chain.add(BATCH, 1, row(1)), chain.add(BATCH, 1, row(2)))
    bob.hear(chain.beat(), CaughtUp(4))
    assert bob.replica.is_refused
    bob.replica.timeout(bob.now)
    bob.replica.timeout(bob.now + 4000)
    assert bob.told(Trouble) == [Trouble(f"the database takes nothing: {stall}")]
    assert not bob.has(1)
    bob.disk.apply = take  # type: ignore[method-assign]
    bob.replica.timeout(bob.now + 4100)
    assert not bob.replica.is_refused
    assert bob.told(Trouble) == [Trouble("")]
    assert bob.has(1) and bob.has(2)
    assert bob.disk.where().position == chain.end
