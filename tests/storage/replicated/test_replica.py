"""Each rule of a replica as a small history: what the log said, and what the node then does."""

from typing import Any

import pytest

from storage.errors import Recoverable
from storage.replicated import batch_codec
from storage.replicated.log_port import Acked, CaughtUp, Event, Missing, Read, Shrunk, Unknown
from storage.replicated.members import Presence
from storage.replicated.record import (
    BATCH,
    CHAINED,
    CLAIM,
    HEARTBEAT,
    PART,
    PRESENCE,
    Position,
    Record,
    after,
    decode,
)
from storage.replicated.replica import BEAT, HEARD_GAP_MS, Replica
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
    Settings,
    Trouble,
)
from tests.replication.node import META, Disk, TailFile

NONCE, OTHER = b"n" * 16, b"o" * 16


class Log:
    """What a replica has sent, and from where it reads."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int | None]] = []
        self.tokens: dict[int, int] = {}  # of records that continue the chain, by their index
        self.words: list[int] = []  # tokens of presences
        self.read_at: list[int] = []
        self.deleted: list[int] = []

    def append(self, data: bytes, token: int | None = None) -> None:
        """Send a record."""
        self.sent.append((data, token))
        record = decode(data)
        if record.kind in CHAINED and token is not None:
            self.tokens[record.index] = token
        elif record.kind == PRESENCE:
            assert token is not None
            self.words.append(token)

    def take(self) -> list[Event]:
        """Return nothing: the test says what happened."""
        return []

    def read_from(self, place: int) -> None:
        """Note from where to read on."""
        self.read_at.append(place)

    def delete_before(self, place: int) -> None:
        """Note what may be deleted."""
        self.deleted.append(place)


class Chain:
    """Records by another node, each of which continues the chain."""

    def __init__(self, end: Position | None = None, place: int = 0) -> None:
        self.end = end or Position()
        self.place = place

    def add(self, kind: int, epoch: int, body: bytes = b"", node: str = "ann") -> Read:
        """Return the next record."""
        record = Record(kind, epoch, self.end.index + 1, self.end.digest, node, body)
        data = record.encode()
        self.end = after(record, data)
        self.place += 1
        return Read(self.place - 1, data)

    def other(self, kind: int, body: bytes, node: str, epoch: int | None = None) -> Read:
        """Return a record that is not part of the chain."""
        end = self.end
        self.place += 1
        epoch = end.epoch if epoch is None else epoch
        record = Record(kind, epoch, end.index, end.digest, node, body)
        return Read(self.place - 1, record.encode())

    def word(self, node: str, nonce: bytes, longest: tuple[int, int] = (0, 0)) -> Read:
        """Return the presence of a node."""
        said = Presence(nonce, longest, longest, self.end.index, "host")
        return self.other(PRESENCE, said.encode(), node)

    def beat(self, node: str = "ann") -> Read:
        """Return a heartbeat of the leader."""
        return self.other(HEARTBEAT, BEAT.pack(77), node)

    def sent(self, log: Log, back: int = 1) -> Read:
        """Return what a replica has sent, as read back."""
        data = [each for each, _ in log.sent if decode(each).kind in CHAINED][-back]
        record = decode(data)
        self.end = after(record, data)
        self.place += 1
        return Read(self.place - 1, data)


def row(command: int) -> bytes:
    return batch_codec.encode([(META, b"%d" % command, b"value")])


class Bob:
    """A node under test, its log and the clock."""

    def __init__(self, at: Anchor | None = None, anchors: tuple[Anchor, ...] = ()) -> None:
        self.log = Log()
        self.disk = Disk()
        self.tail = TailFile()
        self.now = 1000
        self.begin(at or Anchor(Position(), 0), anchors)

    def begin(
        self,
        at: Anchor,
        anchors: tuple[Anchor, ...] = (),
        *,
        is_new: bool = False,
        **more: Any,
    ) -> None:
        """Start a process."""
        members = more.pop("members", ("ann", "bob"))
        settings = Settings("bob", members, anchor_every=4, trim_ms=1000, part_bytes=64, **more)
        self.replica = Replica(
            settings, self.log, self.disk, self.tail,
            nonce=NONCE, at=at, anchors=anchors, now=self.now, is_new=is_new,
        )  # fmt: skip

    def hear(self, *events: Event, synced: bool = True) -> None:
        """Take events; by default what they bring is synced in the tail at once."""
        self.replica.events(events, self.now)
        if synced:
            self.tail.sync_begin()
            self.replica.tail_synced(self.tail.sync_end())

    def wait(self, ms: int, *, alone: bool = False) -> None:
        """Let time pass in which the log is heard and says nothing, but that it keeps all.

        `alone`: what is heard is one machine of the log, which is cut off and keeps nothing.
        """
        until = self.now + ms
        while self.now < until:
            self.now += 100
            end = self.replica._read_to
            kept = [] if alone else [Acked(token, end - 1) for token in self.log.words]
            self.log.words.clear()
            self.replica.events([*kept, CaughtUp(end)], self.now)
            self.replica.timeout(self.now)

    def keep(self) -> None:
        """The log says that it keeps what was read."""
        self.now += self.replica.settings.presence_ms
        self.replica.timeout(self.now)
        self.hear(Acked(self.log.words.pop(), self.replica._read_to - 1))

    def ack(self, read: Read) -> Acked:
        """Return that the log keeps a record that this node has sent."""
        return Acked(self.log.tokens[decode(read.data).index], read.place)

    def told(self, kind: type) -> list[object]:
        """Return and forget what was told of a kind."""
        found = [each for each in self.replica.told if isinstance(each, kind)]
        self.replica.told[:] = []
        return found

    def kinds(self) -> list[int]:
        """Return the kinds of what was sent that is part of the chain, and forget all."""
        found = [decode(data).kind for data, _ in self.log.sent]
        self.log.sent.clear()
        return [kind for kind in found if kind != PRESENCE]

    def has(self, command: int) -> bool:
        """Return whether the database has a row."""
        return self.disk.store.get(META, b"%d" % command) is not None


def leading(**settings: Any) -> tuple[Bob, Chain]:
    """Return a node that leads in epoch 2, with nothing written."""
    bob, chain = Bob(), Chain()
    if settings:
        bob.begin(Anchor(Position(), 0), **settings)
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), chain.beat(), CaughtUp(3))
    bob.wait(5000)
    assert bob.replica.role == CLAIMS
    claim = chain.sent(bob.log)
    bob.hear(bob.ack(claim), claim, CaughtUp(4))
    bob.wait(100)
    assert bob.replica.role == LEADS
    bob.log.sent.clear()
    bob.replica.told.clear()
    return bob, chain


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
    bob.hear(chain.sent(bob.log))
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
    bob.hear(chain.sent(bob.log))
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
    bob.hear(chain.word("ann", OTHER, (0, 0)))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS
    (trouble,) = bob.told(Trouble)
    assert "ann began with a copy or with nothing" in trouble.why  # type: ignore[attr-defined]
    bob.hear(chain.word("ann", OTHER, (1, 2)))
    bob.wait(4000)
    assert bob.replica.role == CLAIMS


def test_a_node_that_began_with_a_copy_or_nothing_does_not_lead_a_cold_cluster() -> None:
    bob, chain = written(is_new=True)
    bob.hear(chain.word("ann", OTHER, (1, 2)))
    bob.wait(6000)
    assert bob.replica.role == FOLLOWS
    assert bob.replica.longest == (0, 0)
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
    bob.hear(chain.word("bob", NONCE), chain.word("ann", OTHER, (0, 0)), CaughtUp(2))
    assert not bob.replica.is_new
    bob.wait(4000)
    assert bob.replica.role == CLAIMS


def test_a_new_cluster_whose_first_leader_wrote_nothing_begins_again() -> None:
    bob, chain = Bob(), Chain()
    bob.begin(Anchor(Position(), 0), is_new=True)
    bob.hear(chain.word("bob", NONCE), chain.add(CLAIM, 1), CaughtUp(2))
    bob.hear(chain.word("ann", OTHER, (0, 0)))
    bob.wait(5000)
    assert bob.replica.role == CLAIMS


def test_a_copy_that_is_told_to_lead_remembers_from_then_on() -> None:
    settings = Settings("bob", ("ann", "bob"), accepts_data_loss=True)
    bob, chain = written(is_new=True)
    bob.replica.settings = settings  # type: ignore[misc]
    bob.wait(5000)
    bob.hear(chain.sent(bob.log), CaughtUp(4))
    bob.wait(100)
    assert bob.replica.role == LEADS
    assert not bob.replica.is_new


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


def test_a_node_reads_on_from_the_last_anchor_and_checks_the_record_there() -> None:
    chain = Chain()
    claim = chain.add(CLAIM, 1)
    anchor = Anchor(chain.end, claim.place)
    batch = chain.add(BATCH, 1, row(1))
    at = Anchor(chain.end, batch.place)
    bob = Bob(at, (Anchor(Position(), 0), anchor))
    assert bob.log.read_at == [anchor.place]
    bob.hear(claim, batch, chain.add(BATCH, 1, row(2)), chain.beat())
    assert bob.has(2)
    assert not bob.has(1)  # the database has it already


def test_a_node_goes_further_back_where_another_record_is() -> None:
    chain = Chain()
    claim = chain.add(CLAIM, 1)
    anchor = Anchor(chain.end, 7)
    bob = Bob(anchor, (Anchor(Position(), 0), anchor))
    bob.hear(Read(7, b"another"), Read(8, chain.add(BATCH, 1, row(1)).data))
    assert bob.log.read_at == [7, 0]
    assert bob.replica.end.index == 1  # what was read before going back does not count
    assert [each.place for each in bob.disk.anchors()] == [0]
    bob.hear(claim)
    assert bob.replica.log_end == bob.replica.end


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
    anchor = Anchor(chain.end, 7)
    bob = Bob(anchor, (Anchor(Position(), 0), anchor))
    bob.hear(CaughtUp(7))
    assert bob.log.read_at == [7, 0]


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
    bob.hear(bob.ack(claim))
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
