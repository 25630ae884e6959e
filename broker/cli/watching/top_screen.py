"""What `holdfast top` shows, as lines of text for a screen of any size.

Decides no colours and asks nobody. Names of clients are escaped. Read next:
`broker.cli.watching.top`.
"""

import unicodedata
from collections.abc import Iterator
from typing import Any, Final

from storage.history.words import printable

Figures = dict[str, Any]

WIDTH_MIN: Final = 40  # on a smaller screen lines are cut
NAME_WIDTH_MIN: Final = 16
UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
LABEL: Final = 9  # width of the first column
HIGH_SHARE: Final = 0.99


class Owing:
    """What is owed, as it was counted last, or why that is not known."""

    def __init__(self, answer: dict[str, str] | None, problem: str = "") -> None:
        self.problem: Final = problem
        self.is_known: Final = answer is not None
        told = answer or {}
        self.messages: Final = int(told.get("messages", "0"))
        self.size_bytes: Final = int(told.get("bytes", "0"))
        self.oldest_ms: Final = int(told.get("oldest_ms", "0"))
        self.age_ms: Final = int(told.get("age_ms", "0"))
        self.top: Final[str] = told.get("top", "[]")  # JSON


def lines(
    before: Figures, now: Figures, owing: Owing, top: list[Figures], *, width: int, height: int
) -> list[str]:
    """Return the lines of a screen: what is between two looks, and what is now."""
    rates = Rates(before, now)
    shown = list(_summary(rates, now, owing))
    room = height - len(shown) - 2
    if top and room > 0:
        shown += ["", *_top(top[:room], owing, max(width, WIDTH_MIN))]
    return [fit(line, width) for line in shown[:height]]


class Rates:
    """What happened between two looks, for each second."""

    def __init__(self, before: Figures, now: Figures) -> None:
        self._before: Final = before
        self._now: Final = now
        self._seconds: Final[float] = max(1e-3, now["at_s"] - before["at_s"])

    def of(self, name: str) -> float:
        """Return a counter's growth for each second; a broker that has begun again has none."""
        return max(0.0, float(self._now[name] - self._before[name])) / self._seconds

    def commits(self) -> tuple[float, float] | None:
        """Return the mean of the commits between, and what 99 % of them stay below, in ms."""
        count = self._now["commits"] - self._before["commits"]
        pairs = list(zip(self._before["commit_buckets"], self._now["commit_buckets"], strict=True))
        if count <= 0:
            return None
        mean = (self._now["commit_seconds"] - self._before["commit_seconds"]) / count
        below = [(bound, after - earlier) for (_, earlier), (bound, after) in pairs]
        high = next((bound for bound, found in below if found >= HIGH_SHARE * count), below[-1][0])
        return mean * 1000, high * 1000


def _summary(rates: Rates, now: Figures, owing: Owing) -> Iterator[str]:
    yield f"holdfast {now['version']}   {now['phase']}   up {duration(now['up_s'])}"
    if now["writes_refused"]:
        yield "THE STORE TAKES NO WRITES: publishers with QoS 1 and 2 are refused or wait"
    yield ""
    yield _row(
        "messages",
        f"in {number(rates.of('messages_in'))}/s",
        f"out {number(rates.of('messages_out'))}/s",
        f"dropped {number(rates.of('dropped'))}/s",
        f"expired {number(rates.of('expired'))}/s",
    )
    yield _row(
        "bytes", f"in {size(rates.of('bytes_in'))}/s", f"out {size(rates.of('bytes_out'))}/s"
    )
    yield _row(
        "clients",
        f"{now['connections']:,}",
        f"new {number(rates.of('accepted'))}/s",
        f"refused {number(rates.of('refused'))}/s",
    )
    clean = now["sessions_online"] - now["sessions_stored_online"]
    yield _row(
        "sessions",
        f"{now['sessions_stored']:,} stored",
        f"{now['sessions_stored_online']:,} of them online",
        f"{clean:,} clean",
    )
    commits = rates.commits()
    yield _row(
        "commits",
        f"{number(rates.of('commits'))}/s",
        *(("-",) if commits is None else (f"mean {commits[0]:.1f} ms", f"99% {commits[1]:.1f} ms")),
        f"{now['waiting_replies']:,} wait",
    )
    yield _owed(owing)
    yield _disk(now)


def _owed(owing: Owing) -> str:
    if not owing.is_known:
        return _row("backlog", f"not known: {owing.problem}")
    return _row(
        "backlog",
        f"{owing.messages:,} messages",
        size(owing.size_bytes),
        f"oldest {duration(owing.oldest_ms / 1000)}" if owing.messages else "",
        f"counted {duration(owing.age_ms / 1000)} ago",
    )


def _disk(now: Figures) -> str:
    disk = now["disk"]
    many = now["generations"] != 1
    log = f"log {size(now['log_bytes'])} in {now['generations']} generation" + "s" * many
    if disk is None:
        return _row("disk", "cannot be looked at", log)
    share = disk["free_bytes"] / max(1, disk["total_bytes"])
    low = "LOW" if disk["free_bytes"] < disk["low_water_bytes"] else ""
    return _row("disk", f"{size(disk['free_bytes'])} free ({share:.0%})", low, log)


def _row(label: str, *cells: str) -> str:
    return label.ljust(LABEL) + "   ".join(cell for cell in cells if cell)


def _top(top: list[Figures], owing: Owing, width: int) -> Iterator[str]:
    """Yield the table of those that are owed most."""
    rows = [
        (
            printable(each["client_id"]),
            each["state"],
            f"{each['messages']:,}",
            size(each["bytes"]),
            duration(each["oldest_ms"] / 1000),
        )
        for each in top
    ]
    header = ("OWED MOST", "STATE", "MESSAGES", "BYTES", "OLDEST")
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(1, 5)]
    room = max(NAME_WIDTH_MIN, width - sum(widths) - 2 * len(widths))
    for name, state, *numbers in (header, *rows):
        cells = [fit(name, room), state.ljust(widths[0])]
        cells += [cell.rjust(column) for cell, column in zip(numbers, widths[1:], strict=True)]
        yield "  ".join(cells)


def fit(text: str, width: int) -> str:
    """Cut or fill a text to so many columns of a terminal; some letters take two."""
    columns = 0
    kept = []
    for letter in text:
        takes = 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if unicodedata.combining(letter):
            takes = 0
        if columns + takes > width:
            break
        columns += takes
        kept.append(letter)
    return "".join(kept) + " " * (width - columns)


def number(value: float) -> str:
    """Return a rate: small ones with a digit behind the point."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def size(value: float) -> str:
    """Return a number of bytes with a unit."""
    unit = 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 else f"{value:.1f} {UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    left = int(seconds)
    parts: list[str] = []
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
