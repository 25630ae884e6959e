"""What was read waits until the log keeps it and the own tail has it; else it is forgotten."""

from storage.replicated import batch_codec
from storage.replicated.record import BATCH, PART, Position, Record, after
from storage.replicated.roles.acknowledgements import Acknowledgements
from storage.replicated.roles.follower import Following
from storage.replicated.roles.terms import Anchor, Settings
from tests.replication.node import META, Disk, TailFile
from tests.storage.replicated.roles.test_acknowledgements import Log

START = Position(1, 3, b"s" * 16)


class Bob:
    """A follower, and the batches that it reads."""

    def __init__(self) -> None:
        self.log, self.disk, self.tail = Log(), Disk(), TailFile()
        self.acks = Acknowledgements(self.log, -1)
        settings = Settings("bob", ("bob",), anchor_every=5)
        at = Anchor(START, 9)
        self.node = Following(settings, self.disk, self.tail, self.acks, at, ())

    def read(self, place: int, *, key: bytes, kind: int = BATCH) -> Position:
        """Read a batch, or a part that is not one."""
        body = batch_codec.encode([(META, key, b"value")])
        end = self.node.end
        record = Record(kind, end.epoch, end.index + 1, end.digest, "ann", body)
        data = record.encode()
        self.node.take(after(record, data), data)
        self.node.take_part(record, place)
        return self.node.end

    def has(self, key: bytes) -> bool:
        """Return whether the database has a row."""
        return self.disk.store.get(META, key) is not None


def test_a_batch_is_applied_once_it_is_promised_and_synced() -> None:
    bob = Bob()
    bob.read(10, key=b"1")
    bob.node.tail_synced = 4
    bob.node.apply_kept()
    assert not bob.has(b"1")
    bob.acks.promised = 10
    bob.node.apply_kept()
    assert bob.has(b"1")
    assert bob.node.applied == bob.node.end


def test_a_leader_names_what_is_kept_before_or_after_it_is_read() -> None:
    bob = Bob()
    bob.node.tail_synced = 9
    first = bob.read(10, key=b"1")
    bob.node.hear_kept(Position(first.epoch, first.index, b"o" * 16))  # of another branch
    bob.node.apply_kept()
    assert not bob.has(b"1")
    bob.node.hear_kept(first)
    bob.node.apply_kept()
    assert bob.has(b"1")
    assert [each.place for each in bob.disk.anchors()] == [9]
    second = bob.read(11, key=b"2")
    bob.node.hear_kept(second)
    bob.node.apply_kept()
    assert [each.place for each in bob.disk.anchors()] == [9, 11]


def test_what_is_forgotten_stays_in_the_tail_until_another_record_counts() -> None:
    bob = Bob()
    lost = bob.read(10, key=b"1")
    bob.read(11, key=b"2", kind=PART)
    longest = bob.node.longest
    bob.node.forget_unapplied()
    assert (bob.node.end, bob.node.longest) == (START, longest)
    assert (list(bob.node.unapplied), bob.node.parts) == ([], [])
    assert list(bob.tail.records) == [4, 5]
    assert bob.read(10, key=b"1") == lost  # the same again: the tail has it
    assert list(bob.tail.records) == [4, 5]
    bob.node.forget_unapplied()
    bob.read(10, key=b"3")
    assert list(bob.tail.records) == [4]


def anchored(*places: int) -> Bob:
    """Return a follower that reads from its first anchor, 9, and has others for these places."""
    bob = Bob()
    for place in places:
        bob.node.anchors.append(Anchor(Position(1, place, b"p" * 16), place))
    bob.node.doubt_anchors()
    return bob


def test_anchors_of_what_the_log_lost_go() -> None:
    bob = anchored(11, 12)
    bob.node.drop_anchors(0, 12)
    assert [each.place for each in bob.disk.anchors()] == [9, 11]
    bob.node.drop_anchors(0, 11)
    assert [each.place for each in bob.disk.anchors()] == [9]
    bob.node.drop_anchor()
    assert bob.disk.anchors() == []


def test_a_node_begins_with_its_first_anchor_and_keeps_the_others_until_they_are_found() -> None:
    bob = Bob()
    kept = [Anchor(Position(1, place, b"p" * 16), place) for place in (5, 10, 15)]
    at = Anchor(Position(1, 17, b"s" * 16), 17)
    node = Following(
        Settings("bob", ("bob",), anchor_every=5), bob.disk, bob.tail, bob.acks, at, kept
    )
    assert list(node.anchors) == kept[:1]
    node.found_again(kept[1].position, 30)
    assert [each.place for each in node.anchors] == [5, 30]
    assert [each.place for each in bob.disk.anchors()] == [5, 30, 15]


def test_of_the_anchors_in_a_log_that_lost_records_the_oldest_is_read_from() -> None:
    for start, first in ((0, 9), (9, 9), (10, 11), (50, 12)):
        bob = Bob()
        for place in (11, 12):
            bob.node.anchors.append(Anchor(Position(1, place, b"p" * 16), place))
        bob.node.drop_anchors(start, 99)
        assert [each.place for each in bob.node.anchors] == [first], start


def test_where_the_oldest_is_deleted_a_later_one_is_used() -> None:
    bob = anchored(11, 12, 13)
    assert bob.node.begin_behind(12)
    assert [each.place for each in bob.node.anchors] == [12]
    assert [each.place for each in bob.disk.anchors()] == [12, 13]
    assert not bob.node.begin_behind(14)
    assert [each.place for each in bob.node.anchors] == [12]


def test_what_is_behind_a_wrong_anchor_is_wrong_too() -> None:
    bob = anchored(11, 12)
    bob.node.drop_anchor()
    assert not bob.disk.anchors()
    assert not bob.node.begin_behind(0)


def test_what_is_found_again_is_an_anchor_where_it_is_now() -> None:
    bob = Bob()
    bob.node.tail_synced, bob.acks.promised = 9, 99
    first, second = bob.read(10, key=b"1"), bob.read(11, key=b"2")
    assert [each.place for each in bob.disk.anchors()] == [9, 11]
    bob.node.drop_anchors(0, 99)
    bob.node.found_again(first, 20)
    bob.node.found_again(second, 21)
    bob.node.found_again(Position(1, 10, b"n" * 16), 22)  # it has not applied that
    assert [each.place for each in bob.disk.anchors()] == [9, 21]
