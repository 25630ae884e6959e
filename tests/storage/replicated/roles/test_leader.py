"""What a leader has written is sent until the log has it, and released in order."""

import pytest

from storage.errors import Recoverable
from storage.replicated.record import Position, decode
from storage.replicated.roles.acknowledgements import Acknowledgements
from storage.replicated.roles.leader import Writing
from storage.replicated.roles.terms import Settings
from tests.replication.node import META, TailFile
from tests.storage.replicated.roles.test_acknowledgements import Log

SETTINGS = Settings("ann", ("ann",), part_bytes=64, resend_ms=1000)


def writing(tail: TailFile | None = None) -> tuple[Writing, Log]:
    log = Log()
    acks = Acknowledgements(log, -1)
    return Writing(SETTINGS, tail or TailFile(), acks, Position(2, 5), 0), log


def test_a_batch_is_released_when_its_last_part_is_kept() -> None:
    leader, log = writing()
    first, last = leader.write([(META, b"1", bytes(80))])
    assert (decode(first.data).index, leader.end) == (6, last.position)
    assert leader.was_read(first.position, 10)
    assert leader.was_read(last.position, 11)
    acks = leader._acks
    acks.acknowledged(log.tokens[0], 10)
    assert list(leader.commit(7)) == []
    acks.acknowledged(log.tokens[1], 11)
    assert list(leader.commit(6)) == []
    assert list(leader.commit(7)) == [last]
    assert not leader.pending


def test_a_batch_that_was_acknowledged_elsewhere_than_it_was_read_is_not_released() -> None:
    leader, log = writing()
    (last,) = leader.write([(META, b"1", b"one")])
    leader.was_read(last.position, 10)  # which the log has lost since
    leader._acks.acknowledged(log.tokens[0], 11)
    assert list(leader.commit(6)) == []
    leader.was_read(last.position, 11)
    leader._acks.read(12)
    assert list(leader.commit(6)) == [last]


def test_what_was_acknowledged_and_waits_for_nobody_is_forgotten() -> None:
    leader, log = writing()
    (last,) = leader.write([(META, b"1", b"one")])
    leader.was_read(last.position, 10)
    leader._acks.acknowledged(log.tokens[0], 11)
    leader.pending.clear()
    assert list(leader.commit(6)) == []
    assert not leader._acks._kept_at


def test_another_record_at_the_index_of_an_own_one_is_noticed() -> None:
    leader, _ = writing()
    leader.write([(META, b"1", b"one")])
    assert not leader.was_read(Position(2, 6, b"o" * 16), 10)
    assert leader.was_read(Position(2, 7, b"o" * 16), 10)  # it has none there


def test_what_the_log_lacks_is_overdue_ever_more_rarely_until_something_counts() -> None:
    leader, log = writing()
    leader.write([(META, b"1", b"one")])
    before = Position(2, 5)
    times = [now for now in range(0, 9000, 500) if leader.is_overdue(before, now, is_stalled=False)]
    assert times == [1500, 4000, 8500]
    leader.counted(8500)
    assert leader.is_overdue(before, 9600, is_stalled=False)
    assert not leader.is_overdue(leader.end, 99_000, is_stalled=False)
    sent = len(log.tokens)
    leader.send_again(7)
    assert len(log.tokens) == sent
    leader.send_again(6)
    assert len(log.tokens) == sent + 1


def test_a_tail_without_room_leaves_nothing_of_a_batch() -> None:
    class Full(TailFile):
        def append(self, index: int, data: bytes) -> None:
            if index == 7:
                raise Recoverable("no room")
            super().append(index, data)

    tail = Full()
    leader, log = writing(tail)
    with pytest.raises(Recoverable):
        leader.write([(META, b"1", bytes(80))])
    assert (tail.records, log.tokens, list(leader.pending)) == ({}, [], [])
    assert leader.end == Position(2, 5)
