"""Do gaps say of every offset whether it is owed, however they were made?"""

import itertools
from random import Random

import pytest

from storage.log.gaps import (
    GAPS_MAX,
    NO_GAPS,
    Gaps,
    add,
    behind,
    covers,
    outside,
    passed,
    stop,
    width,
)

TWO: Gaps = ((3, 5), (8, 8))


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1, 1, ((1, 1), (3, 5), (8, 8))),
        (1, 2, ((1, 5), (8, 8))),
        (4, 5, TWO),
        (5, 6, ((3, 6), (8, 8))),
        (6, 7, ((3, 8),)),
        (7, 7, ((3, 5), (7, 8))),
        (9, 20, ((3, 5), (8, 20))),
        (10, 20, ((3, 5), (8, 8), (10, 20))),
        (1, 20, ((1, 20),)),
    ],
)
def test_a_gap_is_one_with_those_that_it_touches(first: int, last: int, expected: Gaps) -> None:
    assert add(TWO, first, last) == expected


def test_there_is_no_room_for_more_than_so_many_but_each_may_grow() -> None:
    gaps: Gaps | None = NO_GAPS
    for number in range(1, GAPS_MAX + 1):
        assert gaps is not None
        gaps = add(gaps, 10 * number, 10 * number)
    assert gaps is not None and len(gaps) == GAPS_MAX
    assert add(gaps, 1, 1) is None and add(gaps, 12, 12) is None
    grown = add(gaps, 10 * GAPS_MAX + 1, 10_000)
    assert grown is not None and grown[-1] == (10 * GAPS_MAX, 10_000)


def test_a_gap_is_over_when_the_position_is_at_its_end() -> None:
    assert behind(TWO, 0) == behind(TWO, 4) == TWO
    assert behind(TWO, 5) == ((8, 8),)
    assert behind(TWO, 8) == NO_GAPS


def test_a_gap_is_passed_when_the_next_offset_is_in_it() -> None:
    assert [passed(TWO, at) for at in range(10)] == [0, 1, 5, 5, 5, 5, 6, 8, 8, 9]
    assert [stop(TWO, at) for at in (0, 1, 5, 6)] == [2, 2, 7, 7]
    assert stop(TWO, 8) > 1 << 62


@pytest.mark.parametrize("seed", range(20))
def test_everything_agrees_with_a_set_of_offsets(seed: int) -> None:
    random = Random(seed)
    gaps: Gaps = NO_GAPS
    model: set[int] = set()
    for _ in range(random.randrange(8)):
        first = random.randrange(1, 60)
        last = first + random.randrange(12)
        found = add(gaps, first, last)
        assert found is not None
        gaps = found
        model.update(range(first, last + 1))
    assert {each for first, last in gaps for each in range(first, last + 1)} == model
    assert all(one[1] + 1 < two[0] for one, two in itertools.pairwise(gaps))
    for first in range(1, 75):
        last = first + random.randrange(20)
        owed = [each for each in range(first, last + 1) if each not in model]
        pieces = outside(gaps, first, last)
        assert [each for begin, end in pieces for each in range(begin, end + 1)] == owed
        assert covers(gaps, first, last) == (not owed)
        assert width(gaps, first) == sum(each > first for each in model)
