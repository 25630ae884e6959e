"""The limits of one session's backlog: which stored messages are not delivered.

A `Plan` counts the backlog in slices; its result is a `Trim`, which names the messages to leave
out. This is done when the session is resumed: nothing is written per subscriber when a message
arrives, so nothing can be dropped per subscriber then. It is also done while the session is away,
to free space. With `drop_new` what was dropped then is a gap: it is not counted again. Read next:
`session.lifetime.trimming` (that), `session.publish.storage_quota` (the limits a publisher meets).
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from mqtt.message import Message
from session.settings import Settings
from session.state.session import Session
from storage.log.gaps import NO_GAPS, Gaps
from storage.log.message_log import MessageLog, Stream

COUNT_PAGE: Final = 256
PLAN_PAGES: Final = 8  # pages of a backlog counted in one tick: 1 ms, or 8 MiB of messages
PLAN_SCAN: Final = 2048  # rows looked at for one of them, see `Cursor.next`
PLAN_SEARCHES: Final = 128  # in an index in one tick, and what the last page takes
PASSED_MAX: Final = 10_000  # damaged places that are not counted: 1 MB of their offsets


class Trim:
    """Which messages of a backlog are not delivered.

    Its oldest `drop_first`, or all after the offset `keep_until`; a `keep_until` of -1 is no limit.
    """

    __slots__ = ("_last", "_lost", "_passed", "cuts", "drop_first", "keep_until", "until")

    def __init__(
        self, drop_first: int, keep_until: int, until: int, cuts: int, passed: Collection[int]
    ) -> None:
        self.cuts = cuts  # of the log, when the backlog was counted
        self.drop_first = drop_first
        self.keep_until = keep_until
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
        return 0 <= self.keep_until < offset


class Plan:
    """Counts a backlog slice by slice, to find what exceeds the limits."""

    def __init__(
        self,
        log: MessageLog,
        streams: Sequence[Stream],
        position: int,
        settings: Settings,
        until: int,
        gaps: Gaps = NO_GAPS,
        full_after: int = -1,
    ) -> None:
        """Of the gaps nothing is counted.

        `full_after`, if it is not -1, is an offset behind which nothing is kept, as is known
        already; this is for `drop_new` only.
        """
        self.until: Final = until  # later messages are not dropped
        self.cuts: Final = log.cuts  # it is void when the log was cut since
        self._cursor: Final = log.cursor(streams, position, until, gaps)
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
        # With `drop_new`: is something over the limits, and behind which offset is everything?
        self.is_over: bool = full_after >= 0
        self.keep_until: int = full_after if self.is_over else position
        # The session is owed nothing up to here, not even what cannot be read.
        self.begin: int = position

    @property
    def searches(self) -> int:
        """Return how often an index was searched so far."""
        return self._cursor.searches

    def advance(self) -> bool:
        """Count the next slice; True if the plan is complete."""
        cursor = self._cursor
        searches_max = cursor.searches + PLAN_SEARCHES
        if self.is_over:
            return True
        for _ in range(PLAN_PAGES):
            self.pages += 1
            if self._bytes_max:
                page = 1 if self._keeps_oldest and not self.kept else COUNT_PAGE
                self._count_page(cursor.next(page, PLAN_SCAN), cursor.lost)
            elif self._keeps_oldest:
                self._skip_oldest()
            else:
                count = cursor.skip(COUNT_PAGE, PLAN_SCAN)
                for _ in range(count + len(self._pass_over(cursor.lost))):
                    self._count(0, 0)
            cursor.lost.clear()
            if cursor.is_at_end or cursor.position >= self.until or self.is_over:
                return True
            if cursor.searches >= searches_max:
                break
        return False

    def trim(self) -> "Trim | None":
        """Return what to leave out, None = nothing. Call it after `advance` returned True."""
        if self._keeps_oldest:
            return self._trim(0, self.keep_until) if self.is_over else None
        return self._trim(self.dropped, -1) if self.dropped else None

    def _trim(self, drop_first: int, keep_until: int) -> "Trim":
        return Trim(drop_first, keep_until, self.until, self.cuts, self.passed)

    def _pass_over(self, lost: list[int]) -> list[int]:
        """Note offsets that are not counted; return those that are, because there are too many."""
        room = PASSED_MAX - len(self.passed)
        self.passed.update(lost[:room])
        return lost[room:]

    def _skip_oldest(self) -> None:
        """Count the next messages, if only their number matters, up to the first over the limit."""
        cursor = self._cursor
        room = self._count_max - self.kept
        # The first one is skipped alone: only then is it known where it is.
        page = min(COUNT_PAGE, room) if self.kept and room > 0 else 1
        count = cursor.skip(page, PLAN_SCAN) + len(self._pass_over(cursor.lost))
        if count and room > 0:
            self._keep(count, cursor.position)
        elif count:
            self.is_over = True

    def _keep(self, count: int, upto: int) -> None:
        """Count messages up to an offset as within the limits."""
        if not self.kept and not self.passed and self._cursor.missing == 0:
            self.begin = upto - 1
        self.kept += count
        self.keep_until = upto

    def _count_page(self, messages: list[Message], lost: list[int]) -> None:
        """Count messages; of those that cannot be read only what `_pass_over` leaves."""
        sizes = [(message.offset, counted_size(message)) for message in messages]
        counted = self._pass_over(lost)
        if counted:
            sizes += [(offset, 0) for offset in counted]
            sizes.sort()
        for offset, size in sizes:
            self._count(offset, size)

    def _count(self, offset: int, size: int) -> None:
        if self._keeps_oldest:
            is_within = not self._count_max or self.kept < self._count_max
            if is_within and not self.is_over:
                self._bytes += size
                is_within = self._bytes <= self._bytes_max
            if is_within and not self.is_over:
                self._keep(1, offset)
            else:
                self.is_over = True
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

    @property
    def limits(self) -> tuple[int, int]:
        """Return the limits as they are now, messages and bytes: see `Session.gaps_at`."""
        return self._settings.max_offline_messages, self._settings.max_offline_bytes

    def full_after(self, session: Session) -> int:
        """Return the offset behind which a session gets nothing, because its limit is reached.

        -1 = it has to be counted. It is known of a session that has been away since its last gap
        was made at these limits, if all that waits before that is still there.
        """
        gaps = session.gaps
        if not gaps or session.gaps_at != self.limits or self._settings.on_limit != "drop_new":
            return -1
        is_all_left_out = len(gaps) == 1 and gaps[0][0] <= session.position + 1
        if session.position + 1 < self._log.begin and not is_all_left_out:
            return -1
        return gaps[-1][1]

    def begin(self, streams: Sequence[Stream], session: Session, until: int = 0) -> Plan:
        """Return a plan of the backlog of a session; call it only if that `is_limited`.

        It ends at the offset `until`, or without one at the end of the log.
        """
        return Plan(
            self._log,
            streams,
            session.position,
            self._settings,
            until or self._log.end,
            session.gaps,
            self.full_after(session),
        )


def counted_size(message: Message) -> int:
    """Return the size of a message for limits in bytes."""
    return len(message.topic) + len(message.payload) + len(message.properties)
