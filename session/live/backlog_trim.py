"""The limits of one session's backlog: which stored messages are not delivered.

A `Plan` counts the backlog in slices; its result is a `Trim`, which names the messages to leave
out. This is done when the session is resumed: nothing is written per subscriber when a message
arrives, so nothing can be dropped per subscriber then. With `drop_oldest` it is also done while the
session is away, to free space. Read next: `session.lifetime.trimming` (that),
`session.publish.storage_quota` (the limits a publisher meets).
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from mqtt.message import Message
from session.settings import Settings
from storage.log.message_log import MessageLog, Stream

COUNT_PAGE: Final = 256
PLAN_PAGES: Final = 8  # pages of a backlog counted in one tick: 1 ms, or 8 MiB of messages
PLAN_SCAN: Final = 2048  # rows looked at for one of them, see `Cursor.next`
PLAN_SEARCHES: Final = 128  # in an index in one tick, and what the last page takes
PASSED_MAX: Final = 10_000  # damaged places that are not counted: 1 MB of their offsets


class Trim:
    """Which messages of a backlog are not delivered.

    Its oldest `drop_first`, or all after its oldest `keep_first`; a `keep_first` of -1 is no limit.
    """

    __slots__ = ("_last", "_lost", "_passed", "cuts", "drop_first", "keep_first", "until")

    def __init__(
        self, drop_first: int, keep_first: int, until: int, cuts: int, passed: Collection[int]
    ) -> None:
        self.cuts = cuts  # of the log, when the backlog was counted
        self.drop_first = drop_first
        self.keep_first = keep_first
        self.until = until  # the last offset of the backlog; later messages are not dropped
        self._passed = passed  # offsets that the plan did not count
        self._lost: list[int] = []  # offsets that cannot be read and are not counted yet, backwards
        self._last = 0  # the offset of the last message that was counted

    def pass_over(self, offsets: Sequence[int]) -> None:
        """Note messages that cannot be read; call it before `drops` for those behind them.

        They were counted with the others, each in its place, but for those that the plan could not
        read either. Some may be noted again.
        """
        found = {offset for offset in offsets if offset > self._last}
        self._lost = sorted(found.difference(self._passed).union(self._lost), reverse=True)

    def drops(self, offset: int) -> bool:
        """Return whether to drop the next message of the backlog; call it for each, in order."""
        while self._lost and self._lost[-1] < offset:
            self._take(self._lost.pop())
        self._last = offset
        return self._take(offset)

    def _take(self, offset: int) -> bool:
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
    """Counts a backlog slice by slice, to find what exceeds the limits."""

    def __init__(
        self,
        log: MessageLog,
        streams: Sequence[Stream],
        position: int,
        settings: Settings,
        until: int,
    ) -> None:
        self.until: Final = until  # later messages are not dropped
        self.cuts: Final = log.cuts  # it is void when the log was cut since
        self._cursor: Final = log.cursor(streams, position, until)
        self._count_max: Final = settings.max_offline_messages
        self._bytes_max: Final = settings.max_offline_bytes
        self._keeps_oldest: Final = settings.on_limit == "drop_new"
        self._window: deque[int] = deque()  # sizes of the messages to keep, if bytes are limited
        self._bytes = 0
        self.kept: int = 0  # so far: messages within the limits
        self.dropped: int = 0  # so far: the oldest ones, over the limits; not with `drop_new`
        self.pages: int = 0  # read so far
        # Damaged places that are not counted: whose messages were in them is not known, or how
        # large they were.
        self.passed: Final[set[int]] = set()
        self._is_over = False

    @property
    def searches(self) -> int:
        """Return how often an index was searched so far."""
        return self._cursor.searches

    def advance(self) -> bool:
        """Count the next slice; True if the plan is complete."""
        cursor = self._cursor
        searches_max = cursor.searches + PLAN_SEARCHES
        for _ in range(PLAN_PAGES):
            self.pages += 1
            if self._bytes_max:
                self._count_page(cursor.next(COUNT_PAGE, PLAN_SCAN), cursor.lost)
            else:
                count = cursor.skip(COUNT_PAGE, PLAN_SCAN)
                for _ in range(count + len(self._pass_over(cursor.lost))):
                    self._count(0)
            cursor.lost.clear()
            if cursor.is_at_end or cursor.position >= self.until or self._is_over:
                return True
            if cursor.searches >= searches_max:
                break
        return False

    def trim(self) -> "Trim | None":
        """Return what to leave out, None = nothing. Call it after `advance` returned True."""
        if self._keeps_oldest:
            return self._trim(0, self.kept) if self._is_over else None
        return self._trim(self.dropped, -1) if self.dropped else None

    def _trim(self, drop_first: int, keep_first: int) -> "Trim":
        return Trim(drop_first, keep_first, self.until, self.cuts, self.passed)

    def _pass_over(self, lost: list[int]) -> list[int]:
        """Note offsets that are not counted; return those that are, because there are too many."""
        room = PASSED_MAX - len(self.passed)
        self.passed.update(lost[:room])
        return lost[room:]

    def _count_page(self, messages: list[Message], lost: list[int]) -> None:
        """Count messages; of those that cannot be read only what `_pass_over` leaves."""
        sizes = [(message.offset, counted_size(message)) for message in messages]
        counted = self._pass_over(lost)
        if counted:
            sizes += [(offset, 0) for offset in counted]
            sizes.sort()
        for _, size in sizes:
            self._count(size)

    def _count(self, size: int) -> None:
        if self._keeps_oldest:
            is_within = not self._count_max or self.kept < self._count_max
            if is_within and not self._is_over:
                self._bytes += size
                is_within = not self._bytes_max or self._bytes <= self._bytes_max
            if is_within and not self._is_over:
                self.kept += 1
            else:
                self._is_over = True
            return
        self.kept += 1
        self._bytes += size
        window = self._window
        if self._bytes_max:
            window.append(size)
        while (self._count_max and self.kept > self._count_max) or (
            self._bytes_max and self._bytes > self._bytes_max
        ):
            self.kept -= 1
            self.dropped += 1
            if window:
                self._bytes -= window.popleft()


class Trimmer:
    """Applies the limits of a session to its backlog."""

    def __init__(self, log: MessageLog, settings: Settings) -> None:
        self._log: Final = log
        self._settings: Final = settings

    @property
    def is_limited(self) -> bool:
        """Return whether sessions have limits that are applied to what is stored for them."""
        settings = self._settings
        if settings.on_limit == "reject":
            return False  # applied at the publisher; what was accepted is delivered
        return bool(settings.max_offline_messages or settings.max_offline_bytes)

    @property
    def limits_bytes(self) -> bool:
        """Return whether the limits count bytes, and not only messages."""
        return self._settings.max_offline_bytes > 0

    def begin(self, streams: Sequence[Stream], position: int, until: int = 0) -> Plan:
        """Return a plan of the backlog above `position`; call it only if that `is_limited`.

        It ends at the offset `until`, or without one at the end of the log.
        """
        return Plan(self._log, streams, position, self._settings, until or self._log.end)


def counted_size(message: Message) -> int:
    """Return the size of a message for limits in bytes."""
    return len(message.topic) + len(message.payload) + len(message.properties)
