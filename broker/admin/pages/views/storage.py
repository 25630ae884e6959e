"""The page of the disk: how large the log is, what is free, how long that lasts.

Pure. Read next: `broker.admin.records`, `broker.admin.figures`.
"""

from collections.abc import Sequence
from typing import Any, Final

from broker.admin.figures import Figure
from broker.admin.pages.words import amounts
from broker.admin.records import Generation, Storage

LEAST_S: Final = 600.0  # of growth that says something about days
DAYS_MAX: Final = 999


def context(
    storage: Storage,
    disk: tuple[int, int] | None,
    kept: Sequence[Figure],
    generations: Sequence[Generation],
    *,
    pins_problem: str,
    may_act: bool,
) -> dict[str, Any]:
    """Return what the page shows; the disk is its size and what is free of it, bytes."""
    tiles = [
        _tile("Log", amounts.size(storage.log_bytes), "messages and their indexes"),
        _tile("Generations", amounts.count(storage.generations), "one of them is open"),
        _tile("Sessions", amounts.count(storage.sessions_stored), "stored"),
        _tile("Retained messages", amounts.count(storage.retained_messages)),
    ]
    if disk is not None:
        whole, free = disk
        lasts = days_left(free, kept)
        tiles[1:1] = [
            _tile("Free on the disk", amounts.size(free), f"of {amounts.size(whole)}"),
            _tile("Lasts", lasts or amounts.NONE, "as the log grew in the last hour"),
        ]
    return {
        "tiles": tiles,
        "pins": [pin(each) for each in generations],
        "pins_problem": pins_problem,
        "may_act": may_act,
        "address": "/storage",
    }


def pin(generation: Generation) -> dict[str, Any]:
    """Return a line of the table of generations."""
    kinds = (
        (generation.sessions, "session"),
        (generation.groups, "shared group"),
        (generation.backends, "backend"),
        (generation.unreadable, "session that cannot be read"),
    )
    needed = [amounts.plural(number, word) for number, word in kinds if number]
    if generation.unreadable > 1:
        needed[-1] = f"{generation.unreadable:,} sessions that cannot be read"
    return {
        "number": generation.generation,
        "is_open": generation.state == "open",
        "bytes": generation.bytes,
        "messages": generation.messages,
        "began": generation.created_at,
        "needed_by": ", ".join(needed) or "nobody",
        "clients": [each.name for each in generation.largest_sessions],
        "groups": [each.name for each in generation.largest_groups],
        "backends": [each.name for each in generation.largest_backends],
    }


def days_left(free: int, kept: Sequence[Figure]) -> str:
    """Return how long the free bytes last as the log grew lately, empty if that is not known."""
    points = [
        (when.timestamp(), figure.log_bytes)
        for figure in kept
        if figure.log_bytes is not None and (when := amounts.moment(figure.at)) is not None
    ]
    if len(points) < 2 or points[-1][0] - points[0][0] < LEAST_S:
        return ""
    seconds = points[-1][0] - points[0][0]
    grown = points[-1][1] - points[0][1]
    if grown <= 0:
        return "it does not grow"
    left = free * seconds / grown
    if left > DAYS_MAX * amounts.DAY:
        return f"over {DAYS_MAX} d"
    return amounts.span(left)


def _tile(word: str, value: str, note: str = "") -> dict[str, str]:
    return {"word": word, "value": value, "note": note}
