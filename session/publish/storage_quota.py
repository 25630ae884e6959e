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
from session.state.session import Session
from storage.errors import DamagedRows
from storage.log.message_log import Stream
from storage.tables.tables import (
    HOLDERS,
    SESSIONS,
    holder_key,
    prefix_end,
    scan_all,
    unseal,
)

# How long a filter counts as full before its deepest reader is checked again, broker ms. Publishers
# are rejected up to this long after the reader has made progress.
RECHECK_MS: Final = 500
BUDGETS_MAX: Final = 4096  # filters whose budget is kept


class _Budget:
    """What may still be accepted for one filter before its deepest backlog is full."""

    __slots__ = (
        "accepted_end",
        "at_ms",
        "bytes_left",
        "holder",
        "messages_left",
        "start",
        "was_full",
    )

    def __init__(
        self, at_ms: int, messages_left: int, bytes_left: int, holder: bytes, start: int
    ) -> None:
        self.at_ms = at_ms
        self.messages_left = messages_left
        self.bytes_left = bytes_left
        self.holder = holder  # key of the deepest offline reader, b"" = nobody is offline
        self.start = start  # the offset after which it still has to get messages
        self.was_full = False  # was it full when it was counted, and not only later?
        self.accepted_end = 0  # offset of the newest message counted as accepted

    def is_spent(self) -> bool:
        """Would the next message exceed a limit?"""
        return self.messages_left <= 0 or self.bytes_left <= 0


class Quota:
    """Says, before a message is stored, whether it may be."""

    def __init__(self, core: Core, database: Database) -> None:
        self._store: Final = database.store
        self._log: Final = database.log
        self._settings: Final = core.settings
        self._damage: Final = core.damage
        self._budgets: dict[int, _Budget] = {}
        self._closed_bytes: dict[int, int] = {}  # generation -> bytes of its messages

    def rejects(self, route: Route, message: Message, now: int) -> bool:
        """Is the backlog full of an offline session that would get this message? For `reject` only.

        If False, the message counts as accepted. A backlog grows only by accepted messages, so it
        is counted in the log again only when these could have filled it.
        """
        settings = self._settings
        if settings.on_limit != "reject":
            return False
        if not settings.max_offline_messages and not settings.max_offline_bytes:
            return False
        budgets = [self._budget(entry, now) for entry in route.entries if entry.holders]
        if any(budget.is_spent() for budget in budgets):
            return True
        size = counted_size(message)
        for budget in budgets:
            budget.messages_left -= 1
            budget.bytes_left -= size
            budget.accepted_end = self._log.end + 1
        return False

    def session_offline(self, session: Session) -> None:
        """Forget all budgets if a session goes offline with a backlog: none has counted it."""
        if self._budgets and session.position < self._log.end:
            self._budgets.clear()

    def settings_changed(self) -> None:
        """Forget all budgets: they were counted for other limits."""
        self._budgets.clear()

    def generation_closed(self, number: int, size_bytes: int) -> None:
        """Note the size of a generation that takes no more messages."""
        self._closed_bytes[number] = size_bytes

    def generation_dropped(self, number: int) -> None:
        """Note that a generation and its messages are gone."""
        self._closed_bytes.pop(number, None)

    def is_total_full(self) -> bool:
        """Have the stored messages reached the total limit?"""
        limit = self._settings.total_bytes_max
        return bool(limit) and self.total_bytes() >= limit

    def total_bytes(self) -> int:
        """Return the bytes of all stored messages, before compression; closed ones estimated."""
        return self._log.newest_size_bytes + sum(self._closed_bytes.values())

    def _budget(self, entry: FilterEntry, now: int) -> _Budget:
        budget = self._budgets.get(entry.filter_id)
        if budget is not None and not budget.is_spent():
            return budget
        if budget is not None and not budget.was_full:
            if budget.holder and not self._log.is_written(budget.accepted_end):
                return budget  # the log lacks the messages of this tick: do not count now
        elif budget is not None:
            if now - budget.at_ms < RECHECK_MS:
                return budget
            budget.at_ms = now
            if self._owed_from(entry, budget.holder) == budget.start:
                return budget  # the deepest reader has not moved
        if len(self._budgets) >= BUDGETS_MAX:
            self._budgets.clear()
        budget = self._budgets[entry.filter_id] = self._measure(entry, now)
        return budget

    def _measure(self, entry: FilterEntry, now: int) -> _Budget:
        """Find the deepest backlog of a filter, and count what fits below its limits."""
        settings = self._settings
        deepest, start = b"", 1 << 63
        prefix = holder_key(entry.filter_id, b"c")
        damages: list[DamagedRows] = []
        for key, _ in scan_all(self._store, HOLDERS, prefix, prefix_end(prefix), damages):
            owed_from = self._owed_from(entry, key[8:])
            if owed_from is not None and owed_from < start:
                deepest, start = key[8:], owed_from
        self._damage.note_all("holder", damages)
        count_max = settings.max_offline_messages or 1 << 62
        bytes_max = settings.max_offline_bytes or 1 << 62
        budget = _Budget(now, count_max, bytes_max, deepest, start)
        if not deepest:
            return budget
        cursor = self._log.cursor([Stream(entry.filter_id, entry.topic_filter, start)], start)
        while not budget.is_spent():
            if settings.max_offline_bytes:
                messages = cursor.next(COUNT_PAGE)
                found = len(messages) + len(cursor.lost)
                cursor.lost.clear()
                budget.bytes_left -= sum(counted_size(message) for message in messages)
            else:
                found = cursor.skip(COUNT_PAGE)
            if not found:
                break
            budget.messages_left -= found
        budget.was_full = budget.is_spent()
        return budget

    def _owed_from(self, entry: FilterEntry, holder: bytes) -> int | None:
        """Return the offset after which an offline session still has to get a filter's messages.

        None if it is connected (its queue is its limit then), has ended, or has unsubscribed.
        """
        try:
            since = self._store.get(HOLDERS, holder_key(entry.filter_id, holder))
            value = self._store.get(SESSIONS, holder[1:])
            if since is None or value is None:
                return None
            session = decode_session(holder[1:].decode(), unseal(value, "session"))
        except (DamagedRows, ValueError):
            return None  # it cannot be resumed
        if not session.disconnected_at_ms:
            return None
        return max(int.from_bytes(since, "big"), session.position)


def generation_size(settings: Settings) -> int:
    """Return the size at which a generation ends, bytes: at most a quarter of the total limit.

    Only whole generations free space, so below a total limit there must be several.
    """
    if not settings.total_bytes_max:
        return settings.generation_size_bytes
    return min(settings.generation_size_bytes, max(1, settings.total_bytes_max // 4))
