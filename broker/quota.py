"""What offline sessions may pin: limits per session and in total, and what happens at them.

`drop_oldest` and `drop_new` are decided when a session comes back: nothing is written per
subscriber when a message arrives, so nothing can be dropped per subscriber then either; the result
is the same. `reject` is decided at the publisher: before a message is stored, the deepest backlog
of its streams must be below the limit. Backlogs are counted in the log and remembered, not counted
per message. Read next: `broker.delivery`, which applies a `Trim`, and `broker.housekeeping`, which
frees space.
"""

from collections.abc import Sequence
from typing import Final

from broker.routes import Entry, Route
from broker.settings import Settings
from mqtt.message import Message
from session.records import decode_session
from storage.api import Store
from storage.errors import CorruptRecord
from storage.log import MessageLog, Stream
from storage.state import HOLDERS, SESSIONS, holder_key, scan_prefix, unseal

COUNT_PAGE: Final = 256
# How long a verdict about a filter's deepest backlog may be used, broker ms. A holder that drains
# is noticed this late by rejected publishers.
VERDICT_MS: Final = 500


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


class Trimmer:
    """Applies the limits per session to a backlog."""

    def __init__(self, log: MessageLog, settings: Settings) -> None:
        self._log: Final = log
        self._settings: Final = settings

    def plan(self, streams: Sequence[Stream], position: int) -> Trim | None:
        """Return what to leave out of the backlog above `position`; None = nothing."""
        settings = self._settings
        count_max, bytes_max = settings.max_offline_messages, settings.max_offline_bytes
        if not count_max and not bytes_max:
            return None
        if settings.on_limit == "reject":
            return None  # decided when it was published: what was acknowledged then is delivered
        sizes = self._sizes(streams, position, with_bytes=bytes_max > 0)
        if settings.on_limit == "drop_new":
            kept = _fitting(sizes, count_max, bytes_max)
            return Trim(0, kept, self._log.end) if kept < len(sizes) else None
        kept = _fitting(sizes[::-1], count_max, bytes_max)
        return Trim(len(sizes) - kept, -1, self._log.end) if kept < len(sizes) else None

    def _sizes(
        self, streams: Sequence[Stream], position: int, *, with_bytes: bool
    ) -> Sequence[int]:
        """Return the size of every message of a backlog, bytes; only their number if told so."""
        cursor = self._log.cursor(streams, position)
        if not with_bytes:
            count = 0
            while skipped := cursor.skip(COUNT_PAGE):
                count += skipped
            return range(count)  # nobody looks at the sizes
        sizes: list[int] = []
        while messages := cursor.next(COUNT_PAGE):
            sizes.extend(_size(message) for message in messages)
        return sizes


def _size(message: Message) -> int:
    """Return what a message counts towards limits in bytes."""
    return len(message.topic) + len(message.payload) + len(message.properties)


def _fitting(sizes: Sequence[int], count_max: int, bytes_max: int) -> int:
    """Return how many of the first sizes are within both limits (0 = no limit)."""
    total = 0
    for index, size in enumerate(sizes):
        total += size
        if (count_max and index >= count_max) or (bytes_max and total > bytes_max):
            return index
    return len(sizes)


class _Verdict:
    __slots__ = ("at_ms", "is_full")

    def __init__(self, at_ms: int, is_full: bool) -> None:
        self.at_ms = at_ms
        self.is_full = is_full


class Quota:
    """Answers, before a message is stored, whether it may be."""

    def __init__(self, store: Store, log: MessageLog, settings: Settings) -> None:
        self._store: Final = store
        self._log: Final = log
        self._settings: Final = settings
        self._verdicts: dict[int, _Verdict] = {}
        self.closed_bytes: dict[int, int] = {}  # generation -> bytes of its messages

    def rejects(self, route: Route, message: Message, now: int) -> bool:
        """Is a session's backlog full that would be owed this message? Only for `reject`."""
        settings = self._settings
        if settings.on_limit != "reject":
            return False
        if not settings.max_offline_messages and not settings.max_offline_bytes:
            return False
        return any(self._is_full(entry, now) for entry in route.entries if entry.holders)

    def is_total_full(self) -> bool:
        """Do the stored messages fill what all of them may use together?"""
        limit = self._settings.total_bytes_max
        return bool(limit) and self.total_bytes() >= limit

    def total_bytes(self) -> int:
        """Return the bytes of all stored messages, before compression; closed ones estimated."""
        return self._log.newest_size_bytes + sum(self.closed_bytes.values())

    def _is_full(self, entry: Entry, now: int) -> bool:
        known = self._verdicts.get(entry.filter_id)
        if known is not None and now - known.at_ms < VERDICT_MS:
            return known.is_full
        is_full = any(
            self._owes_too_much(entry, key[8:], int.from_bytes(value, "big"))
            for key, value in scan_prefix(self._store, HOLDERS, holder_key(entry.filter_id, b"c"))
        )
        if len(self._verdicts) > 4096:
            self._verdicts.clear()
        self._verdicts[entry.filter_id] = _Verdict(now, is_full)
        return is_full

    def _owes_too_much(self, entry: Entry, holder: bytes, since: int) -> bool:
        value = self._store.get(SESSIONS, holder[1:])
        if value is None:
            return False
        try:
            session = decode_session(holder[1:].decode(), unseal(value, "session"))
        except (CorruptRecord, ValueError):
            return False  # it cannot be resumed, so nobody is owed anything
        if not session.disconnected_at_ms:
            return False  # connected: its window and queue are its limits
        stream = Stream(entry.filter_id, entry.topic_filter, since)
        cursor = self._log.cursor([stream], session.position)
        count_max = self._settings.max_offline_messages
        bytes_max = self._settings.max_offline_bytes
        count = size = 0
        while messages := cursor.next(COUNT_PAGE):
            count += len(messages)
            size += sum(_size(message) for message in messages)
            if (count_max and count >= count_max) or (bytes_max and size >= bytes_max):
                return True
        return False
