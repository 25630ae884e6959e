"""Searches for rows beside damage, by asking for the first row at or after a key.

A scan ends at a damaged block, and nothing tells where the next whole one begins. Must always end:
a search takes a number of steps that grows with the bits of a key, and no more bytes of a key than
`SEARCHED_BYTES` are told apart. Read next: `storage.local.salvage.around_damage`, which reads all
that can be read.
"""

from collections.abc import Callable
from typing import Final

from storage.api import Row
from storage.errors import DamagedRows

# The first row at or after a key, None if there is none; raises `DamagedRows`.
Seek = Callable[[bytes], Row | None]

# Among keys that begin alike in so many bytes, readable rows may be passed over.
SEARCHED_BYTES: Final = 40


def can_seek(seek: Seek, key: bytes) -> bool:
    """Return whether the first row at or after `key`, or the end, can be read."""
    try:
        seek(key)
    except DamagedRows:
        return False
    return True


def first_behind(
    seek: Seek, start: bytes, stop: bytes | None, size: int = SEARCHED_BYTES
) -> bytes | None:
    """Return a key of `size` bytes from which reading goes on behind damage at `start`.

    None if nothing before `stop` can be read. Doubles the distance until a search succeeds, then
    halves it: what it may pass over between two damaged places is near to them.
    """
    low = _number(start, size)
    limit = (1 << 8 * size) - 1
    if stop is not None:
        limit = min(limit, _number(stop, size))
    bad, distance = low, 1
    while True:
        place = min(low + distance, limit)
        if place <= bad:
            return None
        if can_seek(seek, place.to_bytes(size)):
            return first_between(seek, bad, place, size)
        bad = place
        distance *= 2


def first_between(seek: Seek, bad: int, good: int, size: int) -> bytes:
    """Return the first place that can be read, of those between one that cannot and one."""
    while good - bad > 1:
        middle = (bad + good) // 2
        if can_seek(seek, middle.to_bytes(size)):
            good = middle
        else:
            bad = middle
    return good.to_bytes(size)


def last_before(seek: Seek, start: bytes, stop: bytes) -> Row | None:
    """Return the last row with start <= key < stop, None if there is none.

    Raises `DamagedRows` if that row cannot be read; `resume` is then the first key after all rows
    of the range.
    """
    size = max(len(start), len(stop))
    low, high = _number(start, size), _number(stop, size)
    found: Row | None = None
    problem: DamagedRows | None = None
    while high > low:  # nothing is at `high` or after it
        middle = (low + high) // 2
        try:
            row = seek(middle.to_bytes(size))
        except DamagedRows as damage:
            problem, low = damage, middle + 1
            continue
        if row is None or row[0] >= stop:
            high = middle
        else:
            found, problem, low = row, None, middle + 1
    if problem is not None:
        problem.resume = high.to_bytes(size)
        raise problem
    return found


def _number(key: bytes, size: int) -> int:
    return int.from_bytes(key[:size].ljust(size, b"\0"))
