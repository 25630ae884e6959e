"""Where the feed of a store goes on, by what the store says that it has.

    floor ........ confirmed ........ end
      |  kept, for    |  still to be   |
      |  a rewind     |  sent          |

The store's own cursor is true: what it has, it has, and what it lost is sent again. Pure. Read
next: `broker.backends.pump.pump`, which does what is decided here.
"""

from typing import Final

from broker.backends.rows import Cursor

NEW: Final = "new"  # the store has nothing of this database
ON: Final = "on"  # everything that was confirmed is there
REWIND: Final = "rewind"  # the store has lost its newest rows, and they can be sent again
LOST: Final = "lost"  # it has lost more than that, perhaps everything
AHEAD: Final = "ahead"  # the database is older than the store: an earlier copy was restored


class Resumption:
    """Where to go on, and why there."""

    __slots__ = ("cursor", "kind")

    def __init__(self, kind: str, cursor: Cursor) -> None:
        self.kind: Final = kind
        self.cursor: Final = cursor

    def __repr__(self) -> str:
        return f"Resumption({self.kind}, {self.cursor})"


def resume(
    theirs: Cursor | None,
    is_ours: bool,
    *,
    had_ours: bool,
    floor: Cursor,
    confirmed: Cursor,
    end: Cursor,
) -> Resumption:
    """Return where to go on after the store's cursor `theirs`; `is_ours` = this database wrote it.

    `had_ours`: the store once had a cursor of this database, as far as that is known. After AHEAD
    the rows of the backend must be marked otherwise (`FeedOutlet.renew`) first. A store that keeps
    no cursor says that it is ours and has none: our own decides, and rows may come twice.
    """
    if theirs is None and is_ours:
        return Resumption(ON, confirmed)
    if theirs is None and (had_ours or floor != confirmed):
        return Resumption(LOST, floor)
    if theirs is None or not is_ours:
        return Resumption(NEW, confirmed)
    if _is_behind(end, theirs):
        return Resumption(AHEAD, confirmed)
    if _is_behind(theirs, floor):
        # The floor may be in the middle of rows: a limit drops messages and no events.
        return Resumption(LOST, (max(theirs[0], floor[0]), max(theirs[1], floor[1])))
    if _is_behind(theirs, confirmed):
        return Resumption(REWIND, theirs)
    return Resumption(ON, theirs)


def _is_behind(cursor: Cursor, other: Cursor) -> bool:
    return cursor[0] < other[0] or cursor[1] < other[1]
