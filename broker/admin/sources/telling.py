"""What the history tells: of one client, and of the broker's starts and ends.

Reads the newest segments first, and gives up when it takes too long. Must never write. Read next:
`broker.history.queries`, `broker.admin.sources.lanes`, which calls it on a thread.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.admin import records
from broker.configuration.config import Config
from broker.history import queries
from storage.history.words import Event, describe
from storage.time import machine_clocks

EVENTS_MAX: Final = 100  # of a client; the newest
STARTS_MAX: Final = 20
DAYS: Final = 7  # of the timeline of a client
OF_A_START: Final = ("boot", "shutdown", "recovered")


def timeline(config: Config, client_id: str, check: Callable[[], None]) -> records.Timeline:
    """Return what happened to a client in the last days."""
    newest: deque[Event] = deque(maxlen=EVENTS_MAX)
    notes = []
    events = queries.of_client(
        config, client_id, since_s=DAYS * 86_400, now_ms=machine_clocks.wall_ms()
    )
    total = 0
    try:
        for event in events:
            check()
            total += 1
            newest.append(event)
    except queries.HistoryError as problem:
        notes.append(str(problem))
    if total > len(newest):
        notes.append(f"{total - len(newest):,} older events of {DAYS} days are left out")
    told = [records.Event(_moment(each), describe(each)) for each in reversed(newest)]
    return records.Timeline(told, notes)


def starts(config: Config, check: Callable[[], None]) -> records.Starts:
    """Return the newest starts of the broker; the history says how each boot before one ended."""
    found: list[records.Start] = []
    notes = []
    ended: set[int] = set()  # boots that ended in order
    sessions: dict[int, int] = {}  # found by a boot
    try:
        for event in queries.newest_of(config, OF_A_START):
            check()
            boot = _number(event["boot"])
            if event["ev"] == "shutdown":
                ended.add(boot)
            elif event["ev"] == "recovered":
                sessions[boot] = _number(event.get("count"))
            else:
                found.append(_start(event, sessions.get(boot)))
            if len(found) > STARTS_MAX:  # one more: it tells whether the last one ended in order
                break
    except queries.HistoryError as problem:
        notes.append(str(problem))
    for start in found:
        if start.boot - 1 in ended:
            start.before = "orderly"
        elif any(each.boot == start.boot - 1 for each in found):
            start.before = "crash"
    return records.Starts(found[:STARTS_MAX], notes)


def _start(event: Event, sessions: int | None) -> records.Start:
    return records.Start(
        boot=_number(event["boot"]),
        at=_moment(event),
        before="unknown",
        sessions=sessions,
        detail=str(event.get("detail") or ""),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _moment(event: Event) -> str:
    return queries.moment(event["ts"]).replace(" ", "T")
