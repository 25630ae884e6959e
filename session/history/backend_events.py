"""History events of external stores: which filters each follows, and what it was told.

Every level of detail but `off` records them; they are few: one for each minute and store. Decides
nothing. Read next: `session.feed.told_counts`, which counts, and docs/history.md.
"""

from typing import Final

from session.history.recorder import Recorder
from session.history.stage_counts import MINUTE_MS
from session.live.tick import Tick
from storage.history import events
from storage.history.packed_rows import (
    HAS_COUNT,
    HAS_POSITION,
    HAS_REASON,
    RANGE_FLAGS,
    REASON_SHIFT,
)

_OPENED: Final = events.BACKEND_OPENED | HAS_POSITION | HAS_COUNT
_HASHED: Final = HAS_REASON | events.NAMES_HASHED << REASON_SHIFT
_FOLLOWS: Final = events.BACKEND_FOLLOWS | HAS_POSITION
_FORGOTTEN: Final = events.BACKEND_FORGOTTEN | HAS_POSITION
_TOLD: Final = events.BACKEND_TOLD | RANGE_FLAGS
_GAP: Final = events.BACKEND_GAP | RANGE_FLAGS


class BackendEvents:
    """Records what becomes of external stores."""

    def __init__(self, tick: Tick, recorder: Recorder) -> None:
        self._tick: Final = tick
        self._recorder: Final = recorder

    def opened(self, name: str, position: int, filters: dict[str, int]) -> None:
        """Record the filters of a store for this boot, each with the offset behind which it reads.

        `position` is the last offset that the history told of before.
        """
        recorder = self._recorder
        if not recorder.is_on:
            return
        now = self._tick.now
        recorder.at(now)
        w0 = _OPENED | (_HASHED if recorder.hashes_names else 0)
        recorder.put(w0, 0, 0, recorder.backend(name), position, w9=len(filters))
        for topic_filter, since in filters.items():
            recorder.at(now)
            names = recorder.text(topic_filter) | recorder.backend(name)
            recorder.put(_FOLLOWS, 0, 0, names, since)

    def forgotten(self, name: str, position: int) -> None:
        """Record that a store is not configured any more, and was told up to `position`."""
        if self._recorder.is_on:
            self._recorder.at(self._tick.now)
            self._recorder.put(_FORGOTTEN, 0, 0, self._recorder.backend(name), position)

    def told(
        self, name: str, reason: int, minute_ms: int, first: int, last: int, tally: list[int]
    ) -> None:
        """Record a tally of the messages among `first` to `last` that were accepted in a minute."""
        self._put(_TOLD, name, reason, minute_ms, first, last, tally)

    def gap(self, name: str, reason: int, first: int, last: int) -> None:
        """Record that a store does not get what its filters want among `first` to `last`."""
        now = self._tick.now
        self._put(_GAP, name, reason, now - now % MINUTE_MS, first, last, [0, 0, 0])

    def _put(
        self,
        w0: int,
        name: str,
        reason: int,
        minute_ms: int,
        first: int,
        last: int,
        tally: list[int],
    ) -> None:
        recorder = self._recorder
        if not recorder.is_on:
            return
        recorder.at(self._tick.now)
        count, check1, check2 = tally
        w0 |= reason << REASON_SHIFT
        names = recorder.backend(name)
        recorder.put(w0, last, 0, names, first, 1, check1, check2, minute_ms, count)
