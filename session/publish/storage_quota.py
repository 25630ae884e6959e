"""Limits of what may be stored for offline sessions, for each session and in total.

`drop_oldest` and `drop_new` are applied when a session resumes: an arriving message writes nothing
per subscriber, so there is nothing to drop per subscriber then. The result is the same. The backlog
is counted first, in slices. `reject` is applied to the publisher: before a message is stored, the
deepest backlog of its streams must be below the limit. A backlog is counted in the log, and counted
again only when the messages accepted since could have filled it. Read next:
`session.delivery.backlog`, which applies a `Trim`, and `session.lifetime.collection`, which frees
space.
"""

from typing import Final

from mqtt.message import Message
from session.live.backlog_trim import COUNT_PAGE, counted_size
from session.live.core import Core, Database
from session.live.subscribers import FilterEntry
from session.routing.router import Route
from session.settings import Settings
from session.state.records import decode_session
from storage.errors import DamagedRows
from storage.log.gaps import NO_GAPS, Gaps, width
from storage.log.message_log import Cursor, Stream
from storage.tables.tables import (
    HOLDERS,
    SESSIONS,
    holder_key,
    prefix_end,
    scan_readable,
    session_holder,
    unseal,
)

# How long a filter counts as full before its deepest reader is checked again, broker ms. Publishers
# are rejected up to this long after the reader has made progress.
RECHECK_MS: Final = 500
BUDGETS_MAX: Final = 65_536  # filters whose budget is kept, 200 bytes each
# Looks at stored rows for one message: a holder of a filter with its session is one, a page of a
# backlog LOOKS_PAGE. About 20 ms. What is not counted then is counted for later messages.
LOOKS_MAX: Final = 1024
LOOKS_PAGE: Final = 64
LOOK_WORK: Final = 8


class _Budget:
    """What may still be accepted for one filter before its deepest backlog is full."""

    __slots__ = (
        "accepted_end",
        "after",
        "at_ms",
        "bytes_left",
        "cursor",
        "gaps",
        "holder",
        "messages_left",
        "start",
        "stream",
        "until",
        "was_full",
    )

    def __init__(self, stream: Stream, at_ms: int, messages_left: int, bytes_left: int) -> None:
        self.stream = stream
        self.at_ms = at_ms
        self.messages_left = messages_left
        self.bytes_left = bytes_left
        self.after: bytes | None = b""  # holders up to this key were looked at, None = all of them
        self.holder = b""  # key of the deepest offline reader found, b"" = nobody is offline
        self.start = 1 << 63  # the offset after which it still has to get messages
        self.gaps: Gaps = NO_GAPS  # but none of these: they were dropped for it
        self.cursor: Cursor | None = None  # counts its backlog; None = counted
        self.until = 0  # the last offset that the cursor counts
        self.was_full = False  # was it full when it was counted, and not only later?
        self.accepted_end = 0  # offset of the newest message counted as accepted

    def is_deeper(self, start: int, gaps: Gaps) -> bool:
        """Is a reader owed more of the log than the deepest one found so far?"""
        return start + width(gaps, start) < self.start + width(self.gaps, self.start)

    def is_spent(self) -> bool:
        """Would the next message exceed a limit?"""
        return self.messages_left <= 0 or self.bytes_left <= 0


class Quota:
    """Says, before a message is stored, whether it may be."""

    def __init__(self, core: Core, database: Database) -> None:
        self._tick: Final = core.tick
        self._store: Final = database.store
        self._log: Final = database.log
        self._settings: Final = core.settings
        self._damage: Final = core.damage
        self._budgets: dict[int, _Budget] = {}
        self._looks_left = 0  # at stored rows, for this message
        self._closed_bytes: dict[int, int] = {}  # generation -> bytes of its messages

    def rejects(self, route: Route, message: Message, now: int) -> bool:
        """Is the backlog full of an offline session that would get this message? For `reject` only.

        If False, the message counts as accepted. A backlog grows only by accepted messages, so it
        is counted in the log again only when these could have filled it. Where there is much to
        count, this takes several messages, which are accepted.
        """
        settings = self._settings
        if settings.on_limit != "reject":
            return False
        if not settings.max_offline_messages and not settings.max_offline_bytes:
            return False
        self._looks_left = LOOKS_MAX
        budgets = [self._budget(entry, now) for entry in route.entries if entry.holders]
        self._tick.work += (LOOKS_MAX - self._looks_left) * LOOK_WORK
        if any(budget.is_spent() for budget in budgets):
            return True
        size = counted_size(message)
        for budget in budgets:
            budget.messages_left -= 1
            budget.bytes_left -= size
            budget.accepted_end = self._log.end + 1
        return False

    @property
    def has_budgets(self) -> bool:
        """Return whether backlogs are counted, so that `reader_offline` has to be called."""
        return bool(self._budgets)

    def reader_offline(
        self, filter_id: int, client_id: str, start: int, gaps: Gaps = NO_GAPS
    ) -> None:
        """Note that a session goes offline and still has to get a filter's messages after `start`.

        No budget has counted these, unless another reader of the filter is at least as deep.
        """
        budget = self._budgets.get(filter_id)
        if budget is not None and budget.is_deeper(start, gaps):
            budget.holder = session_holder(client_id)
            budget.start, budget.gaps = start, gaps
            self._begin_count(budget)

    def settings_changed(self) -> None:
        """Forget all budgets: they were counted for other limits."""
        self._budgets.clear()

    def generation_closed(self, number: int, size_bytes: int) -> None:
        """Note the size of a generation that takes no more messages."""
        self._closed_bytes[number] = size_bytes

    def generation_dropped(self, number: int) -> None:
        """Note that a generation and its messages are gone: backlogs may be smaller now."""
        self._closed_bytes.pop(number, None)
        for budget in self._budgets.values():
            budget.was_full = False  # so it is counted again, though its reader has not moved

    def is_total_full(self) -> bool:
        """Have the stored messages reached the total limit?"""
        limit = self._settings.total_bytes_max
        return bool(limit) and self.total_bytes() >= limit

    def total_bytes(self) -> int:
        """Return the bytes of all stored messages, before compression; closed ones estimated."""
        return self._log.newest_size_bytes + sum(self._closed_bytes.values())

    def extents(self) -> list[tuple[int, int, int]]:
        """Return first and last offset and bytes of each generation, the newest first."""
        sizes = self._closed_bytes
        return [
            (
                each.first_offset,
                each.last_offset,
                sizes.get(each.number, 0) if each.is_closed else self._log.newest_size_bytes,
            )
            for each in reversed(self._log.list_generations())
        ]

    def _budget(self, entry: FilterEntry, now: int) -> _Budget:
        budget = self._budgets.get(entry.filter_id)
        if budget is None:
            budget = self._begin(entry, now)
        elif budget.after is None and budget.cursor is None and budget.is_spent():
            if not budget.was_full:
                if budget.holder and not self._log.is_written(budget.accepted_end):
                    return budget  # the log lacks the messages of this tick: do not count now
            elif now - budget.at_ms < RECHECK_MS or self._looks_left <= 0:
                return budget
            if self._looks_left <= 0:
                budget.messages_left = budget.bytes_left = 1  # looked at with the next message
                return budget
            budget.at_ms = now
            self._looks_left -= 1
            owed = self._owed_from(entry, budget.holder) if budget.holder else None
            if owed is None or owed != (budget.start, budget.gaps):
                budget = self._begin(entry, now)
            elif budget.was_full:
                return budget  # the deepest reader has not moved
            else:
                self._begin_count(budget)
        if budget.after is not None:
            self._look_on(budget)
        if budget.after is None and budget.cursor is not None:
            self._count_on(budget)
        return budget

    def _begin(self, entry: FilterEntry, now: int) -> _Budget:
        """Begin to look for the deepest backlog of a filter."""
        budgets = self._budgets
        budgets.pop(entry.filter_id, None)
        if len(budgets) >= BUDGETS_MAX:
            del budgets[next(iter(budgets))]  # the oldest
        stream = Stream(entry.filter_id, entry.topic_filter, 0)
        budget = budgets[entry.filter_id] = _Budget(stream, now, *self._limits())
        return budget

    def _limits(self) -> tuple[int, int]:
        settings = self._settings
        return settings.max_offline_messages or 1 << 62, settings.max_offline_bytes or 1 << 62

    def _look_on(self, budget: _Budget) -> None:
        """Look at the next holders of a filter; with the last one begin to count."""
        prefix = holder_key(budget.stream.filter_id, b"c")
        stop = prefix_end(prefix)
        damages: list[DamagedRows] = []
        while budget.after is not None and self._looks_left > 0:
            count = min(LOOKS_PAGE, self._looks_left)
            start = budget.after or prefix
            rows = scan_readable(self._store, HOLDERS, start, stop, damages, count=count)
            self._looks_left -= 1 + len(rows)
            for key, since in rows:
                owed = self._owed_after(key[8:], since)
                if owed is not None and budget.is_deeper(*owed):
                    budget.holder = key[8:]
                    budget.start, budget.gaps = owed
            budget.after = rows[-1][0] + b"\0" if len(rows) == count else None
        self._damage.note_all("holder", damages)
        if budget.after is None and budget.holder:
            self._begin_count(budget)

    def _begin_count(self, budget: _Budget) -> None:
        """Begin to count the deepest backlog, if it is not certainly within the limits."""
        budget.messages_left, budget.bytes_left = self._limits()
        budget.was_full = False
        end = self._log.end
        if not self._settings.max_offline_bytes and end - budget.start < budget.messages_left:
            budget.messages_left -= max(0, end - budget.start)
            budget.cursor = None
            return
        # Later messages are counted when they are accepted.
        budget.until = end
        budget.cursor = self._log.cursor([budget.stream], budget.start, end, budget.gaps)

    def _count_on(self, budget: _Budget) -> None:
        """Count the next messages of the deepest backlog."""
        cursor = budget.cursor
        assert cursor is not None
        while self._looks_left > 0 and not budget.is_spent():
            if self._settings.max_offline_bytes:
                messages = cursor.next(COUNT_PAGE, LOOKS_MAX)
                found = len(messages) + len(cursor.lost)
                budget.bytes_left -= sum([counted_size(message) for message in messages])
            else:
                found = cursor.skip(COUNT_PAGE, LOOKS_MAX) + len(cursor.lost)
            cursor.lost.clear()
            budget.messages_left -= found
            self._looks_left -= LOOKS_PAGE
            if cursor.is_at_end:
                break
        is_over = cursor.is_at_end and self._log.is_written(budget.until)
        if is_over or budget.is_spent():
            budget.cursor = None
            budget.was_full = budget.is_spent()

    def _owed_from(self, entry: FilterEntry, holder: bytes) -> tuple[int, Gaps] | None:
        """Return the offset after which an offline session still has to get a filter's messages.

        With it come the session's gaps. None if it is connected (its queue is its limit then), has
        ended, or has unsubscribed.
        """
        try:
            since = self._store.get(HOLDERS, holder_key(entry.filter_id, holder))
        except DamagedRows:
            return None
        return None if since is None else self._owed_after(holder, since)

    def _owed_after(self, holder: bytes, since: bytes) -> tuple[int, Gaps] | None:
        """Return the same for a holder whose row says `since`."""
        try:
            value = self._store.get(SESSIONS, holder[1:])
            if value is None:
                return None
            session = decode_session(holder[1:].decode(), unseal(value, "session"))
        except (DamagedRows, ValueError):
            return None  # it cannot be resumed
        if not session.disconnected_at_ms and session.client_id not in self._tick.parted:
            return None
        # Of one that left in this tick the row is older: it is owed this much at most.
        return max(int.from_bytes(since, "big"), session.position), session.gaps


def generation_size(settings: Settings) -> int:
    """Return the size at which a generation ends, bytes: at most a quarter of the total limit.

    Only whole generations free space, so below a total limit there must be several.
    """
    if not settings.total_bytes_max:
        return settings.generation_size_bytes
    return min(settings.generation_size_bytes, max(1, settings.total_bytes_max // 4))
