"""Numbers, sizes and times as an operator reads them.

Pure: the time now is an argument. Every exact time is in UTC. Read next:
`broker.admin.pages.rendering`, whose templates use these as filters.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

NONE: Final = "\N{EN DASH}"  # what is not known, or not there
MINUTE, HOUR, DAY = 60, 3600, 86_400
UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
# Above these, each unit says enough: nobody asks for the seconds of a week.
STEPS: Final = ((2 * DAY, DAY, "d"), (2 * HOUR, HOUR, "h"), (2 * MINUTE, MINUTE, "min"))


def count(number: int | None) -> str:
    """Return a number with separators of thousands."""
    return NONE if number is None else f"{number:,}"


def size(number: float | None) -> str:
    """Return a number of bytes with three digits and a unit of 1,024."""
    if number is None:
        return NONE
    value, at = float(number), 0
    while abs(value) >= 1000 and at < len(UNITS) - 1:
        value /= 1024
        at += 1
    if not at:
        return "1 byte" if number == 1 else f"{int(number):,} bytes"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {UNITS[at]}"


def plural(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def span(seconds: float) -> str:
    """Return how long something takes or took, in its largest unit."""
    for least, unit, name in STEPS:
        if seconds >= least:
            return f"{int(seconds / unit):,} {name}"
    return f"{int(seconds)} s"


def moment(text: str) -> datetime | None:
    """Return a time of ISO 8601, None for what is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def of_ms(wall_ms: int) -> datetime:
    """Return the time of so many milliseconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=wall_ms)


def exact(when: datetime) -> str:
    """Return a time to the second, as people write it."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def relative(when: datetime, now: datetime) -> str:
    """Return how long ago a time was, or how long it will be."""
    seconds = (now - when).total_seconds()
    if seconds >= 0:
        return "now" if seconds < 1 else f"{span(seconds)} ago"
    return f"in {span(-seconds)}"
