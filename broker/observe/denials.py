"""Logs what the rules deny to clients: the first denial of a client at once, then a count a minute.

A client chooses how often it is denied, and how many clients there are. So each has one line a
minute, `CLIENTS_MAX` clients are remembered at a time, the others share a count, and long names are
cut. What a subscriber may not read is not logged: a wide filter meets it with every message.
"""

import time
from collections.abc import Callable
from typing import Final

from broker.observe.structured_log import Log

PERIOD_S: Final = 60.0
CLIENTS_MAX: Final = 1000  # with three names each, 3 MB at most
# The log takes 50 lines of an event in 10 seconds; what waits here is counted on, not lost.
LINES_PER_BEAT: Final = 4
NAME_CHARACTERS_MAX: Final = 256  # of a client identifier, user name or topic; up to 65,535 come


class Denied:
    """What was denied to one client since its last line."""

    __slots__ = ("action", "count", "due", "topic", "user")

    def __init__(self, due: float) -> None:
        self.due: float = due  # when its next line may be written
        self.count: int = 0
        self.action: str = ""  # of the newest denial, as what follows
        self.user: str = ""
        self.topic: str = ""


class Denials:
    """What was denied and is not logged yet; used on the loop's thread only."""

    def __init__(self, log: Log, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log: Final = log
        self._clock: Final = clock
        self._clients: Final[dict[str, Denied]] = {}  # whose line is due next comes first
        self._others = Denied(0.0)  # of clients for whom there is no room

    def note(self, action: str, client_id: str, identity: str, topic: str) -> None:
        """Take note that a client may not do `action`; log it if that is new of this client."""
        name = client_id[:NAME_CHARACTERS_MAX]
        denied = self._clients.get(name)
        is_new = denied is None
        if denied is None:
            if len(self._clients) < CLIENTS_MAX:
                denied = self._clients[name] = Denied(self._clock() + PERIOD_S)
            else:
                denied, is_new = self._others, False
        denied.count += 1
        denied.action = action
        denied.user = identity[:NAME_CHARACTERS_MAX]
        denied.topic = topic[:NAME_CHARACTERS_MAX]
        if is_new:
            self._tell(name, denied)

    def beat(self) -> None:
        """Write lines that are due, and forget who was denied nothing more; for each second."""
        now = self._clock()
        lines = 0
        while self._clients and lines < LINES_PER_BEAT:
            name, denied = next(iter(self._clients.items()))
            if denied.due > now:
                break
            del self._clients[name]
            if denied.count:
                denied.due = now + PERIOD_S
                self._clients[name] = denied
                self._tell(name, denied)
                lines += 1
        others = self._others
        if others.count and others.due <= now:
            others.due = now + PERIOD_S
            self._log.info("clients_denied", "further clients: not authorized", count=others.count)
            others.count = 0

    def _tell(self, name: str, denied: Denied) -> None:
        self._log.info(
            "client_denied",
            "not authorized",
            client_id=name,
            user=denied.user,
            action=denied.action,
            topic=denied.topic,
            count=denied.count,
        )
        denied.count = 0
