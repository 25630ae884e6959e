"""Does the event loop get everything in order, and nothing that is too old to be believed?"""

import select
from collections.abc import Iterator
from typing import Any

import pytest

from storage.replicated.log_port import Acked, CaughtUp, Missing, Read
from tests.storage.replicated.kafka.stand_ins import Clock

inbox: Any = pytest.importorskip("storage.replicated.kafka.inbox")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def box(clock: Clock) -> Iterator[Any]:
    made = inbox.Inbox(clock)
    yield made
    made.close()


def is_readable(box: Any) -> bool:
    return bool(select.select([box.fileno()], [], [], 0)[0])


def test_the_descriptor_is_readable_while_there_is_something_to_take(box: Any) -> None:
    assert not is_readable(box)
    box.put([])
    assert not is_readable(box)
    box.put([Acked(1, 0)])
    box.put([Acked(2, 0)])
    assert is_readable(box)
    assert box.take() == [Acked(1, 0), Acked(2, 0)]
    assert not is_readable(box)
    assert box.take() == []
    box.put([Acked(3, 0)])
    assert is_readable(box)


def test_that_nothing_more_is_there_is_told_once(box: Any, clock: Clock) -> None:
    box.put([Read(0, b"a")])
    box.put_caught_up(1, clock())
    box.put_caught_up(1, clock())
    box.put([Read(1, b"b")])
    box.put_caught_up(2, clock())
    assert box.take() == [Read(0, b"a"), CaughtUp(1), Read(1, b"b"), CaughtUp(2)]


def test_an_answer_from_before_a_long_sleep_is_not_believed(box: Any, clock: Clock) -> None:
    box.put([Read(0, b"a")])
    box.put_caught_up(1, clock())
    box.put([Acked(1, 0)])
    clock.ms += inbox.FRESH_MS + 1
    box.put_caught_up(1, clock())
    assert box.take() == [Read(0, b"a"), Acked(1, 0), CaughtUp(1)]
    box.put_caught_up(1, clock())
    clock.ms += inbox.FRESH_MS
    assert box.take() == [CaughtUp(1)]


def test_it_is_full_until_what_was_read_is_taken(box: Any) -> None:
    box.put([Read(0, bytes(inbox.BYTES_MAX - 1))])
    assert not box.is_full()
    box.put([Read(1, b"x")])
    assert box.is_full()
    box.take()
    assert not box.is_full()


def test_what_was_read_can_be_forgotten_and_nothing_else(box: Any, clock: Clock) -> None:
    box.put([Read(0, bytes(inbox.BYTES_MAX)), Acked(1, 0)])
    box.put_caught_up(1, clock())
    box.put([Missing(7)])
    box.forget_reads()
    assert not box.is_full()
    box.put_caught_up(3, clock())
    assert box.take() == [Acked(1, 0), Missing(7), CaughtUp(3)]


def test_once_closed_it_tells_nobody(box: Any) -> None:
    box.put([Acked(1, 0)])
    box.close()
    box.put([Acked(2, 0)])
    assert box.take() == [Acked(1, 0), Acked(2, 0)]
    box.close()
