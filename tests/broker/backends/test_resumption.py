"""Where a feed goes on: never behind what the store has, never before what can be sent again."""

import pytest

from broker.backends.resumption import AHEAD, LOST, NEW, ON, REWIND, resume
from broker.backends.rows import Cursor

FLOOR, CONFIRMED, END = (10, 5), (20, 8), (30, 9)


@pytest.mark.parametrize(
    ("theirs", "is_ours", "kind", "cursor"),
    [
        (None, False, LOST, FLOOR),  # it was emptied
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
        ((9, 7), True, LOST, (10, 7)),  # a limit has dropped messages, and no events
        ((31, 9), True, AHEAD, CONFIRMED),
        ((30, 10), True, AHEAD, CONFIRMED),
        ((5, 10), True, AHEAD, CONFIRMED),
    ],
)
def test_the_feed_goes_on_where_the_store_is(
    theirs: Cursor | None, is_ours: bool, kind: str, cursor: Cursor
) -> None:
    found = resume(theirs, is_ours, had_ours=False, floor=FLOOR, confirmed=CONFIRMED, end=END)
    assert (found.kind, found.cursor) == (kind, cursor)


@pytest.mark.parametrize("had_ours", [False, True])
def test_a_store_that_keeps_no_cursor_goes_on_where_we_are(had_ours: bool) -> None:
    found = resume(None, True, had_ours=had_ours, floor=FLOOR, confirmed=CONFIRMED, end=END)
    assert (found.kind, found.cursor) == (ON, CONFIRMED)


@pytest.mark.parametrize(("had_ours", "kind"), [(False, NEW), (True, LOST)])
def test_a_store_without_a_cursor_is_new_unless_it_is_known_to_have_had_one(
    had_ours: bool, kind: str
) -> None:
    found = resume(None, False, had_ours=had_ours, floor=(5, 1), confirmed=(5, 1), end=(9, 9))
    assert (found.kind, found.cursor) == (kind, (5, 1))
