"""What lies beside damage is found, in a number of steps that the length of a key limits."""

from bisect import bisect_left
from collections.abc import Sequence

import pytest

from storage.api import Row
from storage.errors import DamagedRows
from storage.local.key_search import SEARCHED_BYTES, Seek, can_seek, first_behind, last_before

KEYS = [number.to_bytes(8) for number in range(1, 1001)]


class Rows:
    """Rows of which some cannot be read: a search that would come to one of these fails."""

    def __init__(self, keys: Sequence[bytes], damaged: Sequence[int] = ()) -> None:
        self.keys = keys
        self.damaged = {keys[at] for at in damaged}
        self.seeks = 0

    def seek(self, key: bytes) -> Row | None:
        self.seeks += 1
        at = bisect_left(self.keys, key)
        if at == len(self.keys):
            return None
        if self.keys[at] in self.damaged:
            raise DamagedRows("Corruption")
        return self.keys[at], b"v"


def first_row(seek: Seek, key: bytes | None) -> bytes | None:
    assert key is not None
    row = seek(key)
    return None if row is None else row[0]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 500), (10, 20), (500, 998)])
def test_reading_goes_on_at_the_first_row_behind_the_damage(first: int, last: int) -> None:
    rows = Rows(KEYS, range(first, last + 1))
    assert first_row(rows.seek, first_behind(rows.seek, KEYS[first], None)) == KEYS[last + 1]
    assert rows.seeks <= 2 * 8 * SEARCHED_BYTES


def test_behind_the_last_row_there_is_only_the_end() -> None:
    rows = Rows(KEYS, range(990, 1000))
    assert first_row(rows.seek, first_behind(rows.seek, KEYS[990], None)) is None


def test_nothing_is_behind_damage_that_reaches_the_end_of_the_range() -> None:
    rows = Rows(KEYS, range(100, 200))
    assert first_behind(rows.seek, KEYS[100], KEYS[150]) is None
    assert first_behind(rows.seek, KEYS[100], KEYS[100]) is None
    found = first_behind(rows.seek, KEYS[100], KEYS[300])
    assert first_row(rows.seek, found) == KEYS[200]


def test_keys_that_are_damaged_up_to_the_last_possible_one_have_nothing_behind_them() -> None:
    rows = Rows([b"a", b"\xff" * (SEARCHED_BYTES + 1)], [0, 1])
    assert first_behind(rows.seek, b"a", None) is None


def test_a_long_key_costs_no_more_steps_and_rows_that_begin_alike_may_be_passed_over() -> None:
    same = b"x" * SEARCHED_BYTES
    keys = [same + b"1", same + b"2", b"y"]
    rows = Rows(keys, [0])
    assert first_row(rows.seek, first_behind(rows.seek, keys[0], None)) == b"y"
    assert rows.seeks <= 2 * 8 * SEARCHED_BYTES
    found = first_behind(rows.seek, keys[0], None, SEARCHED_BYTES + 1)
    assert first_row(rows.seek, found) == keys[1]


@pytest.mark.parametrize(
    ("start", "stop", "damaged", "last"),
    [
        (0, 999, [], 998),
        (0, 999, [500], 998),
        (0, 999, range(998), 998),
        (300, 400, range(400, 1000), 399),
        (300, 301, [], 300),
        (300, 300, [], None),
    ],
)
def test_the_last_row_of_a_range_is_found_beside_damage(
    start: int, stop: int, damaged: Sequence[int], last: int | None
) -> None:
    rows = Rows(KEYS, damaged)
    found = last_before(rows.seek, KEYS[start], KEYS[stop])
    assert found == (None if last is None else (KEYS[last], b"v"))


@pytest.mark.parametrize("first", [0, 500, 998])
def test_a_damaged_last_row_is_an_error_that_names_where_the_range_ends(first: int) -> None:
    rows = Rows(KEYS, range(first, 999))
    with pytest.raises(DamagedRows) as raised:
        last_before(rows.seek, KEYS[0], KEYS[999])
    resume = raised.value.resume
    assert resume is not None and KEYS[998] < resume <= KEYS[999]


def test_a_search_can_tell_damage_from_the_end() -> None:
    rows = Rows(KEYS, [999])
    assert not can_seek(rows.seek, KEYS[999])
    assert can_seek(rows.seek, b"\xff")
