"""The clients that an operator traces: all rows of theirs are recorded, whatever the level.

`session.history.recorder` keeps it and asks only while somebody is traced. It is in memory alone: a
trace ends with the broker. Must never decide anything but what is recorded. Read next:
`session.history.trace_events`, which changes it.
"""

from collections.abc import Iterable
from typing import Final


class Traced:
    """The traced clients, and the streams whose messages are stored for them."""

    def __init__(self) -> None:
        self.clients: Final[dict[str, set[int]]] = {}  # client id -> its streams
        self._times: Final[dict[str, int]] = {}  # how many traces each has
        self._streams: set[int] = set()  # of all of them

    def add(self, client_id: str, streams: Iterable[int]) -> bool:
        """Add a trace of a client that holds these streams; return whether it is the first."""
        is_first = client_id not in self.clients
        self.clients.setdefault(client_id, set()).update(streams)
        self._times[client_id] = self._times.get(client_id, 0) + 1
        self._gather()
        return is_first

    def remove(self, client_id: str) -> bool:
        """Remove a trace of a client; return whether it has no other any more."""
        left = self._times[client_id] - 1
        if left:
            self._times[client_id] = left
            return False
        del self._times[client_id], self.clients[client_id]
        self._gather()
        return True

    def hold(self, client_id: str, stream: int) -> None:
        """Note that messages are stored for a client under another stream; 0 = under none.

        It stays until the trace ends: what is stored for nobody of them is recorded for nothing,
        and wrongs nobody.
        """
        streams = self.clients.get(client_id)
        if streams is not None and stream:
            streams.add(stream)
            self._streams.add(stream)

    def wants_stored(self, streams: Iterable[int]) -> bool:
        """Return whether a message that is stored under these streams is owed to one of them."""
        return not self._streams.isdisjoint(streams)

    def _gather(self) -> None:
        self._streams = set().union(*self.clients.values())
