"""What waits behind a position is the same from wherever it was counted before."""

import random

import pytest

from broker.operations.sessions.behind import NOTHING, Behind, Extents, Known, Reading
from broker.operations.sessions.sizes import Sizes, size_of
from storage.local.memory import MemoryStore
from storage.log.message_log import MessageLog, Stream
from tests.storage.log_cases import A, B, accept, drop, rotate, start


def nothing() -> None:
    """Do not pause."""


def reading(
    log: MessageLog, streams: list[Stream], known: Known | None = None, *, with_bytes: bool = True
) -> Reading:
    sizes = Sizes(log, nothing) if with_bytes else None
    return Reading(log, Extents(log), streams, known or Known(), sizes, nothing)


def parts(behind: Behind) -> tuple[int, int, int]:
    return behind.messages, behind.size_bytes, behind.generations


def filled(layout: str = "blocks", seed: int = 1) -> MessageLog:
    """Return a log of several generations, one of them dropped, one without messages of A."""
    store = MemoryStore()
    log = start(store, layout)
    chance = random.Random(seed)
    for letters in ("ab", "abc", "bc", "ac"):
        for _ in range(4):
            accept(store, log, "".join(chance.choices(letters, k=9)))
        rotate(store, log)
    accept(store, log, "abba")
    drop(store, log, 2)
    return log


def alone(log: MessageLog, streams: list[Stream], position: int) -> tuple[int, int, int]:
    """Count by reading everything."""
    cursor = log.cursor(streams, position)
    count = size = generations = 0
    places = [(each.first_offset, each.last_offset) for each in log.list_generations()]
    while messages := cursor.next(7):
        count += len(messages)
        size += sum(size_of(message) for message in messages)
        for message in messages:
            (place,) = [n for n, (a, z) in enumerate(places) if a <= message.offset <= z]
            generations |= 1 << place
    return count, size, generations


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
@pytest.mark.parametrize("streams", [[A], [B], [A, B], [Stream(1, "a", 60), B]])
def test_counts_are_those_of_reading_everything(layout: str, streams: list[Stream]) -> None:
    log = filled(layout)
    positions = list(range(log.end + 2))
    random.Random(2).shuffle(positions)
    shared, without = reading(log, streams), reading(log, streams, with_bytes=False)
    for position in positions:
        expected = alone(log, streams, position)
        assert parts(shared.behind(position)) == expected
        assert parts(without.behind(position)) == (expected[0], 0, expected[2])


@pytest.mark.parametrize("streams", [[A], [A, B], [Stream(1, "a", 60), B]])
def test_what_is_between_two_places_is_what_is_behind_the_first_and_not_the_second(
    streams: list[Stream],
) -> None:
    log = filled()
    shared = reading(log, streams)
    chance = random.Random(3)
    for _ in range(400):
        position, until = sorted(chance.choices(range(log.end + 1), k=2))
        ends = log.cursor(streams, position, until)
        found = shared.between(position, until)
        offsets = ends.offsets(1000)
        while more := ends.offsets(1000):
            offsets += more
        needed = {Extents(log).bit_of(offset) for offset in offsets}
        assert (found.messages, found.generations) == (len(offsets), sum(needed))
        sizes = [size_of(message) for message in log.get_many(offsets) if message is not None]
        assert found.size_bytes == sum(sizes)
        assert found.first in (0, offsets[0] if offsets else 0)


def test_the_first_message_is_found_across_generations() -> None:
    log = filled()
    counted = reading(log, [A])
    for position in range(log.end + 1):
        cursor = log.cursor([A], position)
        messages = cursor.next(1)
        expected = (messages[0].offset, messages[0].accepted_at_ms) if messages else (0, 0)
        assert counted.first(position) == expected
        first = counted.behind(position).first
        assert first in (0, expected[0])
    assert counted.first(log.end + 5) == (0, 0)
    assert counted.behind(log.end) is NOTHING


def test_only_what_is_closed_and_read_alone_is_known_the_next_time() -> None:
    log = filled()
    known = Known()
    one = reading(log, [A], known)
    one.behind(0)
    one.behind(10)
    one.behind(log.end - 1)
    numbers = {number for _, number, _ in known.used}
    assert numbers == {1, 3, 4}
    assert (1, 1, 10) in known.used
    reading(log, [A, B], known).behind(0)
    reading(log, [Stream(1, "a", 60)], known).behind(0)
    reading(log, [B], known, with_bytes=False).behind(0)
    assert {number for _, number, _ in known.used} == numbers
    assert {filter_id for filter_id, _, _ in known.used} == {1}
    again = Known(dict(known.used))
    assert parts(reading(log, [A], again).behind(10)) == alone(log, [A], 10)
    # What is not needed any more is not handed on.
    assert set(again.used) == {key for key in known.used if key != (1, 1, 0)} - {
        key for key in known.used if key[2] == log.end - 1
    }
