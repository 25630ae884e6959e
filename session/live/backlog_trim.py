"""What of a backlog is delivered when a session has more stored than its limits allow.

The backlog is counted in slices (`Plan`); the result says what to leave out (`Trim`). Decided when
the session comes back: nothing is written per subscriber when a message arrives, so nothing can be
dropped per subscriber then either. Read next: `session.publish.storage_quota`, the limits a
publisher meets.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from session.settings import Settings
from storage.log.message_log import MessageLog, Stream

COUNT_PAGE: Final = 256
PLAN_PAGES: Final = 8  # pages of a backlog that are counted in one tick: 1 ms, or 8 MiB of messages


class Trim:
    """What of a backlog is not delivered: its oldest `drop_first`, or all after `keep_first`."""

    __slots__ = ("drop_first", "keep_first", "until")

    def __init__(self, drop_first: int, keep_first: int, until: int) -> None:
        self.drop_first = drop_first
        self.keep_first = keep_first
        self.until = until  # the last offset of the backlog; later messages are not judged

    def drops(self, offset: int) -> bool:
        """Judge the next message of the backlog, in order."""
        if offset > self.until:
            return False
        if self.drop_first:
            self.drop_first -= 1
            return True
        if self.keep_first == 0:
            return True
        if self.keep_first > 0:
            self.keep_first -= 1
        return False


class Plan:
    """Counts a backlog slice by slice, to say in the end what of it is over the limits."""

    def __init__(
        self, log: MessageLog, streams: Sequence[Stream], position: int, settings: Settings
    ) -> None:
        self._log: Final = log
        self._streams: Final = streams
        self._cursor: Final = log.cursor(streams, position)
        self._until: Final = log.end  # messages that come from now on are not judged
        self._count_max: Final = settings.max_offline_messages
        self._bytes_max: Final = settings.max_offline_bytes
        self._keeps_oldest: Final = settings.on_limit == "drop_new"
        self._window: deque[int] = deque()  # sizes of what would be kept, where bytes count
        self._bytes = 0
        self._kept = 0
        self._dropped = 0
        self._is_over = False

    def advance(self) -> bool:
        """Count the next slice; True when everything that matters was counted."""
        for _ in range(PLAN_PAGES):
            if self._cursor.position >= self._until:
                return True
            if self._bytes_max:
                messages = self._cursor.next(COUNT_PAGE)
                for message in messages:
                    if message.offset > self._until:
                        return True
                    self._count(counted_size(message))
                found = len(messages)
            else:
                found = self._skip()
            if not found or self._is_over:
                return True
        return False

    def trim(self) -> "Trim | None":
        """Return what to leave out; None = nothing. After `advance` said True."""
        if self._keeps_oldest:
            return Trim(0, self._kept, self._until) if self._is_over else None
        return Trim(self._dropped, -1, self._until) if self._dropped else None

    def _skip(self) -> int:
        """Count a page without reading the messages."""
        before = self._cursor.position
        skipped = self._cursor.skip(COUNT_PAGE)
        counted = skipped
        if self._cursor.position > self._until:
            page = self._log.cursor(self._streams, before).next(COUNT_PAGE)
            counted = sum(message.offset <= self._until for message in page)
        for _ in range(counted):
            self._count(0)
        return skipped

    def _count(self, size: int) -> None:
        if self._keeps_oldest:
            is_within = not self._count_max or self._kept < self._count_max
            if is_within and not self._is_over:
                self._bytes += size
                is_within = not self._bytes_max or self._bytes <= self._bytes_max
            if is_within and not self._is_over:
                self._kept += 1
            else:
                self._is_over = True
            return
        self._kept += 1
        self._bytes += size
        window = self._window
        if self._bytes_max:
            window.append(size)
        while (self._count_max and self._kept > self._count_max) or (
            self._bytes_max and self._bytes > self._bytes_max
        ):
            self._kept -= 1
            self._dropped += 1
            if window:
                self._bytes -= window.popleft()


class Trimmer:
    """Applies the limits per session to a backlog."""

    def __init__(self, log: MessageLog, settings: Settings) -> None:
        self._log: Final = log
        self._settings: Final = settings

    def begin(self, streams: Sequence[Stream], position: int) -> Plan | None:
        """Begin to count the backlog above `position`; None = nothing limits it."""
        settings = self._settings
        if not settings.max_offline_messages and not settings.max_offline_bytes:
            return None
        if settings.on_limit == "reject":
            return None  # decided when it was published: what was acknowledged then is delivered
        return Plan(self._log, streams, position, settings)


def counted_size(message: Message) -> int:
    """Return what a message counts towards limits in bytes."""
    return len(message.topic) + len(message.payload) + len(message.properties)
