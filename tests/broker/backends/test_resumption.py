"""Where a feed goes on: never behind what the store has, never before what can be sent again."""

import pytest

from broker.backends.resumption import AHEAD, LOST, NEW, ON, REWIND, resume
from broker.backends.rows import Cursor

FLOOR, CONFIRMED, END = (10, 5), (20, 8), (30, 9)


@pytest.mark.parametrize(
    ("theirs", "is_ours", "kind", "cursor"),
    [
        (None, False, NEW, CONFIRMED),
        ((15, 6), False, NEW, CONFIRMED),
        ((99, 99), False, NEW, CONFIRMED),
        (CONFIRMED, True, ON, CONFIRMED),
        ((25, 8), True, ON, (25, 8)),  # applied, and we were killed before we knew
        (END, True, ON, END),
        ((15, 6), True, REWIND, (15, 6)),
        ((20, 7), True, REWIND, (20, 7)),
        (FLOOR, True, REWIND, FLOOR),
        ((9, 5), True, LOST, FLOOR),
        ((10, 4), True, LOST, FLOOR),
        ((0, 0), True, LOST, FLOOR),
        ((31, 9), True, AHEAD, CONFIRMED),
        ((30, 10), True, AHEAD, CONFIRMED),
        ((5, 10), True, AHEAD, CONFIRMED),
    ],
)
def test_the_feed_goes_on_where_the_store_is(
    theirs: Cursor | None, is_ours: bool, kind: str, cursor: Cursor
) -> None:
    found = resume(theirs, is_ours, floor=FLOOR, confirmed=CONFIRMED, end=END)
    assert (found.kind, found.cursor) == (kind, cursor)


def test_a_store_that_has_nothing_yet_of_an_empty_database_starts_at_its_beginning() -> None:
    found = resume(None, False, floor=(0, 0), confirmed=(0, 0), end=(0, 0))
    assert (found.kind, found.cursor) == (NEW, (0, 0))
