"""History events of traces: from where to where all rows of one client are recorded.

The first row of a trace comes before all rows that are there because of it, the last one behind
them. So a reader knows for which stretch of the history a client is told in full. A trace raises
`books` and `sampled`; at `sessions` and `off` messages are left out on purpose, and stay so. Read
next: `session.history.traced`, `session.history.recorder`, docs/history.md.
"""

from collections.abc import Iterable
from typing import Final

from session.history.recorder import Recorder
from session.live.tick import Tick
from storage.history import events
from storage.history.packed_rows import ACTOR_SHIFT, HAS_AT

_ADMIN: Final = events.ADMIN << ACTOR_SHIFT
_BEGAN: Final = events.TRACE_BEGAN | HAS_AT | _ADMIN
_ENDED: Final = events.TRACE_ENDED


class TraceEvents:
    """Begins and ends traces in the history."""

    def __init__(self, tick: Tick, recorder: Recorder) -> None:
        self._tick: Final = tick
        self._recorder: Final = recorder

    @property
    def raises(self) -> bool:
        """Return whether all rows of a traced client are recorded at the present level."""
        return self._recorder.has_books

    def begin(self, client_id: str, streams: Iterable[int], until_ms: int, by: str) -> None:
        """Record all rows of a client from now on; its messages are stored under `streams`."""
        recorder = self._recorder
        now = self._tick.now
        if recorder.is_on and client_id not in recorder.traced.clients:
            recorder.at(now)
            detail = recorder.words(f"{recorder.describe()}, {by}")
            recorder.put(_BEGAN, 0, 0, recorder.name(f"{client_id}\0") | detail, 0, w8=until_ms)
        recorder.traced.add(client_id, streams)
        recorder.traces_changed()

    def end(self, client_id: str, why: str, *, by_operator: bool = False) -> None:
        """Record no more of a client than of others, if no other trace of it is on."""
        recorder = self._recorder
        if not recorder.traced.remove(client_id):
            return
        recorder.traces_changed()
        if recorder.is_on:
            recorder.at(self._tick.now)
            w0 = _ENDED | _ADMIN if by_operator else _ENDED
            detail = recorder.words(f"{recorder.describe()}, {why}")
            recorder.put(w0, 0, 0, recorder.name(f"{client_id}\0") | detail, 0)

    def end_all(self, why: str) -> None:
        """End every trace: the broker ends."""
        for client_id in list(self._recorder.traced.clients):
            while client_id in self._recorder.traced.clients:
                self.end(client_id, why)
