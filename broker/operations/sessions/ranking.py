"""Sorts sessions without keeping them: of each only its place in the order and what it is owed.

A million sessions take about 300 MB when all are sorted, and none where a limit says how many are
wanted. Read next: `broker.operations.sessions.inventory`.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from broker.operations.sessions.inventory import Inventory, SessionReport
from storage.errors import DamagedRows

NAME: Final = "name"
MESSAGES: Final = "messages"
BYTES: Final = "bytes"
OLDEST: Final = "oldest"
SINCE: Final = "since"
# What `session list` sorts by, and `session top`.
ORDERS: Final = (NAME, MESSAGES, BYTES, OLDEST, SINCE)
TOP_ORDERS: Final = (BYTES, MESSAGES, OLDEST)

_LAST: Final = 1 << 63  # behind every time


def messages(report: SessionReport) -> int:
    """Return how many messages a session is owed: in flight, and behind its position."""
    return len(report.session.in_flight) + report.backlog.waiting


def place(report: SessionReport, order: str) -> int:
    """Return what `order` sorts a session by: the most owed, the oldest, the longest first."""
    if order == MESSAGES:
        return -messages(report)
    if order == BYTES:
        size = report.backlog.size_bytes
        assert size is not None, "sorted by bytes that were not counted"
        return -size
    if order == OLDEST:
        return report.backlog.oldest_ms or _LAST
    assert order == SINCE
    return report.since_ms or _LAST


def ranked(
    inventory: Inventory,
    reports: Iterable[SessionReport],
    order: str,
    limit: int | None,
    *,
    with_bytes: bool,
    damaged: Callable[[str], None],
) -> Iterator[SessionReport]:
    """Yield at most `limit` sessions, the first in this order first, equal ones by client id.

    They are read again, `with_bytes` or without: so bytes that `order` does not need are counted of
    those alone that are yielded.
    """
    places = ((place(report, order), report.session.client_id) for report in reports)
    found = sorted(places) if limit is None else heapq.nsmallest(limit, places)
    for _, client_id in found:
        try:
            report = inventory.session(client_id, with_bytes=with_bytes)
        except DamagedRows as problem:
            damaged(str(problem))
            continue
        assert report is not None, "a store that changes while it is read"
        yield report


class Totals:
    """Sums over sessions. A message that two of them are owed counts twice."""

    def __init__(self) -> None:
        self.sessions = 0
        self.messages = 0
        self.size_bytes = 0  # of those whose bytes were counted

    def counting(self, reports: Iterable[SessionReport]) -> Iterator[SessionReport]:
        """Yield these sessions, those that are owed nothing left out, and add them up."""
        for report in reports:
            count = messages(report)
            if count:
                self.sessions += 1
                self.messages += count
                self.size_bytes += report.backlog.size_bytes or 0
                yield report
