"""How much sessions are owed, over the last hour: points in the memory of this process.

Pure: it is told the figures and the time. When a point is added that is more than an hour younger
than others, those go. Must never hold more than `POINTS_MAX`. Read next:
`broker.admin.pages.desk`, which takes the figures.
"""

from collections import deque
from typing import Final

from broker.admin.pages.words import amounts

SPAN_S: Final = 3600.0
POINTS_MAX: Final = 720
LEAST_S: Final = 30.0  # between two points that say how something grows


class Point:
    """What all sessions were owed at one time."""

    __slots__ = ("at_s", "messages", "size")

    def __init__(self, at_s: float, messages: int, size: int) -> None:
        self.at_s: Final = at_s  # wall clock, s since 1970
        self.messages: Final = messages
        self.size: Final = size  # bytes


class Growth:
    """The points of the last hour, the oldest first."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)

    def add(self, point: Point) -> None:
        """Take a point; one that is not younger than the last, after a step of the clock, starts
        anew.
        """
        if self._points and point.at_s <= self._points[-1].at_s:
            self._points.clear()
        self._points.append(point)
        while point.at_s - self._points[0].at_s > SPAN_S:
            self._points.popleft()

    def columns(self) -> list[list[float]]:
        """Return times, messages and bytes, as the chart draws them."""
        points = list(self._points)
        return [
            [point.at_s for point in points],
            [point.messages for point in points],
            [point.size for point in points],
        ]

    def sentence(self) -> str:
        """Return how what is owed has changed."""
        points = list(self._points)
        if not points or points[-1].at_s - points[0].at_s < LEAST_S:
            return "What is owed is noted from now on, for an hour."
        first, last = points[0], points[-1]
        span = amounts.span(last.at_s - first.at_s)
        messages, size = last.messages - first.messages, last.size - first.size
        if not messages and not size:
            return f"Unchanged for {span}: {amounts.plural(last.messages, 'message')}."
        return (
            f"In {span}: {_signed(messages)} messages, {'-' if size < 0 else '+'}"
            f"{amounts.size(abs(size))}. Then {first.messages:,}, now {last.messages:,}."
        )


def _signed(number: int) -> str:
    return f"{number:+,}"
