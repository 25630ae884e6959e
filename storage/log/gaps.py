"""Gaps: ranges of the log behind a reader's position of which it is owed nothing.

A reader with a limit that keeps the oldest messages is owed those before a gap, and perhaps some
behind it, but none in it. So a generation within a gap is not needed by that reader, though an
older one is. Gaps are values: pairs of first and last offset, in order, and never two that touch.
Pure: must never read the log. Read next: `storage.log.cursor`, which passes over them, and
`session.lifetime.trimming`, which makes them.
"""

from typing import Final, TypeAlias

Gaps: TypeAlias = tuple[tuple[int, int], ...]

NO_GAPS: Final[Gaps] = ()
# Of one reader. They are in its record, which is written often, and are looked at one by one. There
# is one for each time that a session has come back and left without reading up to the last one.
GAPS_MAX: Final = 16
_NEVER: Final = 1 << 63  # above every offset


def add(gaps: Gaps, first: int, last: int) -> Gaps | None:
    """Return the gaps with one more; it may touch others, or overlap them.

    None if there are too many then: those there are must do.
    """
    assert 0 < first <= last
    before = [each for each in gaps if each[1] < first - 1]
    after = [each for each in gaps if each[0] > last + 1]
    merged = gaps[len(before) : len(gaps) - len(after)]
    if merged:
        first = min(first, merged[0][0])
        last = max(last, merged[-1][1])
    found = (*before, (first, last), *after)
    return found if len(found) <= GAPS_MAX else None


def behind(gaps: Gaps, position: int) -> Gaps:
    """Return the gaps that are not over at a position: the others say nothing any more."""
    return tuple([each for each in gaps if each[1] > position])


def passed(gaps: Gaps, position: int) -> int:
    """Return a position, or if the next offset is in a gap the end of that."""
    for first, last in gaps:
        if last > position:
            return last if first <= position + 1 else position
    return position


def stop(gaps: Gaps, position: int) -> int:
    """Return the last offset before the next gap, one above all offsets if there is none.

    The position must be outside the gaps, as after `passed`.
    """
    for first, last in gaps:
        if last > position:
            return first - 1
    return _NEVER


def covers(gaps: Gaps, first: int, last: int) -> bool:
    """Return whether nothing from `first` to `last` is owed."""
    return passed(gaps, first - 1) >= last


def width(gaps: Gaps, position: int) -> int:
    """Return how many offsets behind a position are in gaps."""
    return sum([last - max(first - 1, position) for first, last in behind(gaps, position)])


def outside(gaps: Gaps, first: int, last: int) -> list[tuple[int, int]]:
    """Return what of a range is outside the gaps, in pieces."""
    pieces: list[tuple[int, int]] = []
    position = passed(gaps, first - 1)
    while position < last:
        end = min(last, stop(gaps, position))
        pieces.append((position + 1, end))
        position = passed(gaps, end)
    return pieces
