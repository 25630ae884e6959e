"""What the pages keep between two requests, in memory: answers, notices, what is owed over time.

Read next: `broker.admin.pages.fresh`, `broker.admin.pages.growth`.
"""

import asyncio
from collections import OrderedDict, deque
from typing import Any, Final

from broker.admin.pages.fresh import Fresh
from broker.admin.pages.growth import Growth, Point
from broker.admin.pages.notices import Notices
from broker.admin.problems import EXPECTED
from broker.admin.records import Backlog, Reloaded
from broker.admin.services import Services
from storage.time import machine_clocks

LOOK_S: Final = 10.0  # between two looks at what the broker has counted
TRACES_MAX: Final = 16  # that were begun here, those that have ended too
LINES_MAX: Final = 500  # of a trace
NEW_S: Final = 0.5  # a count is the same one if its time differs by less


class Followed:
    """What a trace has told that was begun here."""

    __slots__ = ("has_payloads", "left_out", "lines", "over", "what")

    def __init__(self, what: str, has_payloads: bool) -> None:
        self.what: Final = what  # is followed
        self.has_payloads: Final = has_payloads
        self.lines: Final[deque[dict[str, Any]]] = deque(maxlen=LINES_MAX)
        self.left_out: int = 0
        self.over: str = ""  # why it has ended, empty = it is on

    def take(self, lines: list[dict[str, Any]], left_out: int, over: str) -> None:
        """Take what it has told since."""
        self.left_out += left_out + max(0, len(self.lines) + len(lines) - LINES_MAX)
        self.lines.extend(lines)
        self.over = over


class Reload:
    """What the last reload that was asked for here has done."""

    __slots__ = ("at", "by", "done")

    def __init__(self, done: Reloaded, by: str, at: str) -> None:
        self.done: Final = done
        self.by: Final = by
        self.at: Final = at  # wall-clock time as text


class Desk:
    """What one process keeps for all who look."""

    def __init__(self, services: Services) -> None:
        self._services: Final = services
        self.fresh: Final = Fresh()
        self.notices: Final = Notices()
        self.growth: Final = Growth()
        # The traces that were begun here, by number, oldest first.
        self.traces: Final[OrderedDict[int, Followed]] = OrderedDict()
        self._counted_s = 0.0  # wall clock of the newest count
        self.backlog: Backlog | None = None  # as the broker has counted it last
        self.why: str = "not counted yet"  # there is none
        self.reload: Reload | None = None  # None = none was asked for

    async def run(self) -> None:
        """Look for ever at what the broker has counted."""
        while True:
            try:
                self._take(await self._services.asking.backlog())
            except EXPECTED as problem:
                self.backlog, self.why = None, str(problem)
            await asyncio.sleep(LOOK_S)

    def _take(self, backlog: Backlog) -> None:
        self.backlog = backlog
        counted_s = (machine_clocks.wall_ms() - backlog.age_ms) / 1000
        if counted_s - self._counted_s > NEW_S:
            self._counted_s = counted_s
            self.growth.add(Point(counted_s, backlog.messages, backlog.bytes))

    def follow(self, number: int, what: str, has_payloads: bool) -> None:
        """Keep what a trace tells, from now on."""
        self.traces[number] = Followed(what, has_payloads)
        while len(self.traces) > TRACES_MAX:
            self.traces.popitem(last=False)

    async def close(self) -> None:
        """End what is under way."""
        await self.fresh.close()
