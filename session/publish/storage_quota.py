"""What offline sessions may pin: limits per session and in total, and what happens at them.

`drop_oldest` and `drop_new` are decided when a session comes back: nothing is written per
subscriber when a message arrives, so nothing can be dropped per subscriber then either; the result
is the same. The backlog is counted in slices first. `reject` is decided at the publisher: before a
message is stored, the deepest backlog of its streams must be below the limit. Backlogs are counted
in the log, and again only when what was accepted since could have filled them. Read next:
`session.delivery.backlog`, which applies a `Trim`, and `session.lifetime.collection`, which frees
space.
"""

from typing import Final

from mqtt.message import Message
from session.live.backlog_trim import COUNT_PAGE, counted_size
from session.live.subscribers import Entry
from session.routing.router import Route
from session.settings import Settings
from session.state.records import decode_session
from session.state.session import Session
from storage.api import Store
from storage.errors import CorruptRecord
from storage.log.message_log import MessageLog, Stream
from storage.tables.tables import HOLDERS, SESSIONS, holder_key, scan_prefix, unseal

# How long a filter counts as full before its deepest reader is looked at again, broker ms. One that
# drains is noticed this late by rejected publishers.
VERDICT_MS: Final = 500
BUDGETS_MAX: Final = 4096  # filters whose backlog is remembered


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
        self.start = start  # from where on it is owed messages
        self.was_full = False  # already when it was counted, not only since
        self.accepted_end = 0  # offset of the newest message that was accepted against it

    def is_spent(self) -> bool:
        """Would the next message be too much?"""
        return self.messages_left <= 0 or self.bytes_left <= 0


class Quota:
    """Answers, before a message is stored, whether it may be."""

    def __init__(self, store: Store, log: MessageLog, settings: Settings) -> None:
        self._store: Final = store
        self._log: Final = log
        self._settings: Final = settings
        self._budgets: dict[int, _Budget] = {}
        self._closed_bytes: dict[int, int] = {}  # generation -> bytes of its messages

    def rejects(self, route: Route, message: Message, now: int) -> bool:
        """Is a session's backlog full that would be owed this message? Only for `reject`.

        False counts the message as accepted: a backlog grows by no more than what is accepted, so
        it is counted in the log only when that could have filled it.
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
        """A session goes offline; one that leaves a backlog behind was in no budget."""
        if self._budgets and session.position < self._log.end:
            self._budgets.clear()

    def generation_closed(self, number: int, size_bytes: int) -> None:
        """A generation takes no more messages; those it has are of this size."""
        self._closed_bytes[number] = size_bytes

    def generation_dropped(self, number: int) -> None:
        """A generation is gone with its messages."""
        self._closed_bytes.pop(number, None)

    def is_total_full(self) -> bool:
        """Do the stored messages fill what all of them may use together?"""
        limit = self._settings.total_bytes_max
        return bool(limit) and self.total_bytes() >= limit

    def total_bytes(self) -> int:
        """Return the bytes of all stored messages, before compression; closed ones estimated."""
        return self._log.newest_size_bytes + sum(self._closed_bytes.values())

    def _budget(self, entry: Entry, now: int) -> _Budget:
        budget = self._budgets.get(entry.filter_id)
        if budget is not None and not budget.is_spent():
            return budget
        if budget is not None and not budget.was_full:
            if budget.holder and not self._log.is_written(budget.accepted_end):
                return budget  # counting in the log would miss what this tick accepted
        elif budget is not None:
            if now - budget.at_ms < VERDICT_MS:
                return budget
            budget.at_ms = now
            if self._owed_from(entry, budget.holder) == budget.start:
                return budget  # the deepest one has not moved
        if len(self._budgets) >= BUDGETS_MAX:
            self._budgets.clear()
        budget = self._budgets[entry.filter_id] = self._measure(entry, now)
        return budget

    def _measure(self, entry: Entry, now: int) -> _Budget:
        """Find the deepest backlog of a filter, and what is left to fill it."""
        settings = self._settings
        deepest, start = b"", 1 << 63
        for key, _ in scan_prefix(self._store, HOLDERS, holder_key(entry.filter_id, b"c")):
            owed_from = self._owed_from(entry, key[8:])
            if owed_from is not None and owed_from < start:
                deepest, start = key[8:], owed_from
        count_max = settings.max_offline_messages or 1 << 62
        bytes_max = settings.max_offline_bytes or 1 << 62
        budget = _Budget(now, count_max, bytes_max, deepest, start)
        if not deepest:
            return budget
        cursor = self._log.cursor([Stream(entry.filter_id, entry.topic_filter, start)], start)
        while not budget.is_spent():
            if settings.max_offline_bytes:
                messages = cursor.next(COUNT_PAGE)
                found = len(messages)
                budget.bytes_left -= sum(counted_size(message) for message in messages)
            else:
                found = cursor.skip(COUNT_PAGE)
            if not found:
                break
            budget.messages_left -= found
        budget.was_full = budget.is_spent()
        return budget

    def _owed_from(self, entry: Entry, holder: bytes) -> int | None:
        """Return the offset after which an offline session is owed messages of a filter.

        None if it is connected (then its window and queue are its limits), gone, or no reader any
        more.
        """
        since = self._store.get(HOLDERS, holder_key(entry.filter_id, holder))
        value = self._store.get(SESSIONS, holder[1:])
        if since is None or value is None:
            return None
        try:
            session = decode_session(holder[1:].decode(), unseal(value, "session"))
        except (CorruptRecord, ValueError):
            return None  # it cannot be resumed, so nobody is owed anything
        if not session.disconnected_at_ms:
            return None
        return max(int.from_bytes(since, "big"), session.position)


def generation_size(settings: Settings) -> int:
    """Return when a generation ends, bytes: what all may use together is several of them.

    Space returns with whole generations, so a total limit means nothing without some to drop.
    """
    if not settings.total_bytes_max:
        return settings.generation_size_bytes
    return min(settings.generation_size_bytes, max(1, settings.total_bytes_max // 4))
