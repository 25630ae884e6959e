"""How long it takes until something is reached: a commit after its write, a database after the log.

Pure: time is an argument, in seconds of any clock that never goes back. Read next:
`broker.cluster.member`.
"""

from collections import deque
from typing import Final

WAITING_MAX: Final = 10_000  # beyond it, of what comes later only the end is known


class Delay:
    """Indexes that were begun and are not reached yet, and how long those took that are."""

    def __init__(self) -> None:
        self.count: int = 0
        self.seconds: float = 0.0  # sum of all that were reached
        self._waiting: Final[deque[tuple[int, float]]] = deque()

    def begin(self, index: int, now: float) -> None:
        """Note that `index` is to be reached. What is not behind the newest one is no news."""
        is_news = not self._waiting or index > self._waiting[-1][0]
        if is_news and len(self._waiting) < WAITING_MAX:
            self._waiting.append((index, now))

    def reach(self, index: int, now: float) -> None:
        """Note that everything up to `index` is reached."""
        while self._waiting and self._waiting[0][0] <= index:
            self.seconds += now - self._waiting.popleft()[1]
            self.count += 1

    def age(self, now: float) -> float:
        """Return for how long the oldest one waits, 0 = there is none."""
        return now - self._waiting[0][1] if self._waiting else 0.0
