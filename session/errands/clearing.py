"""Deletes the retained messages that match a topic filter, because an operator asks.

A clearing works in slices: each reads some retained messages from where the last one ended, and
deletes those that were there when it was asked for. Must never delete a message that is newer.
Read next: `session.routing.retained`.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from mqtt.topics import matches
from session.assembly import Assembly
from storage.errors import Recoverable

CLEARINGS_MAX: Final = 64  # that wait for their turn
CLEAR_PAGE: Final = 256  # retained messages that one step deletes; about 2 ms


class Clearing:
    """One of them: how far it is, and when it is over, why it ended early if it did."""

    __slots__ = ("asker", "begun_ms", "deleted", "ended", "is_over", "start", "topic_filter", "why")

    def __init__(self, topic_filter: str, asker: str, begun_ms: int) -> None:
        self.topic_filter: str = topic_filter
        self.asker: str = asker  # who asks, and why, for the history
        self.begun_ms: int = begun_ms  # later messages are kept
        self.start: bytes = b""  # where the next step begins
        self.deleted: int = 0  # so far
        self.is_over: bool = False
        self.why: str = ""  # it ended before its end
        self.ended: Callable[[], None] = (
            _untold  # called once, when it is over; whoever waits sets it
        )


class RetainedClearing:
    """Works off clearings, one after the other."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly: Final = assembly
        self._clearings: Final[deque[Clearing]] = deque()

    def begin(self, topic_filter: str, asker: str) -> Clearing:
        """Begin to delete what matches a valid filter. Raises `Recoverable` if too many wait."""
        if len(self._clearings) >= CLEARINGS_MAX:
            raise Recoverable(f"{CLEARINGS_MAX} deletions wait already: ask again later")
        clearing = Clearing(topic_filter, asker, self._assembly.core.tick.now)
        self._clearings.append(clearing)
        return clearing

    @property
    def is_busy(self) -> bool:
        """Has `run` something to do?"""
        return bool(self._clearings)

    def run(self) -> None:
        """Do one step of the oldest clearing, if the store takes the open batch."""
        if self._clearings and self._assembly.writer.settle():
            clearing = self._clearings[0]
            if self._clear_next(clearing):
                self._end(self._clearings.popleft(), "")

    def stop(self) -> None:
        """End all of them: the broker ends, and what they have not deleted stays."""
        while self._clearings:
            self._end(self._clearings.popleft(), "the broker ends")

    def _clear_next(self, clearing: Clearing) -> bool:
        """Delete the next retained messages; True if that was the end."""
        events = self._assembly.history.sessions
        events.asked_by = clearing.asker
        try:
            return self._clear(clearing)
        finally:
            events.asked_by = ""

    def _clear(self, clearing: Clearing) -> bool:
        assembly, topic_filter = self._assembly, clearing.topic_filter
        if "+" not in topic_filter and "#" not in topic_filter:
            # Without reading it: so that also one goes that cannot be read.
            clearing.deleted += assembly.publishing.clear_retained(topic_filter)
        else:
            found, clearing.start, _ = assembly.retained.read(
                topic_filter, clearing.start, CLEAR_PAGE
            )
            for message in found:
                assert matches(topic_filter, message.topic)
                if message.accepted_at_ms <= clearing.begun_ms:
                    clearing.deleted += assembly.publishing.clear_retained(message.topic)
        return not clearing.start

    def _end(self, clearing: Clearing, why: str) -> None:
        clearing.is_over, clearing.why = True, why
        if clearing.deleted:
            self._assembly.history.sessions.acted(
                "retained delete", clearing.topic_filter, clearing.deleted, clearing.asker
            )
        clearing.ended()


def _untold() -> None:
    """Do nothing: nobody waits for the end."""
