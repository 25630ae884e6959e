"""Counts what sessions are owed: messages, bytes, and since when.

Messages are counted in the index of the log, without reading them; bytes are counted by reading
every message, so only where somebody asks. Memory does not grow with a backlog. Thousands of
sessions may be owed the same messages, so what was counted from one position serves all sessions
with the same streams: only the way to the nearest such position is counted. Must never change the
store. Read next: `storage.log.cursor`, `broker.operations.sessions.owed`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from mqtt.message import Message
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, RELEASED, SOURCE_MASK
from session.state.session import Session
from storage.api import Store
from storage.errors import DamagedRows
from storage.log.message_log import MessageLog, Stream
from storage.tables.fetch_rows import Copy, decode_copy
from storage.tables.tables import MAILBOX, mailbox_key

# Messages counted at a time: entries of an index cost 40 bytes each, messages are at most 1 MiB.
SKIP_PAGE: Final = 4096
READ_PAGE: Final = 256
# What is remembered at a time: positions from which everything was counted, and the streams that
# they belong to, one for each filter. 30 MB.
POINTS_MAX: Final = 200_000

# The streams of a session: filter ids, each with its since-offset if that is above the position.
Key = tuple[tuple[int, int], ...]


class Backlog:
    """What one session is owed, beside the number of packet ids in flight."""

    __slots__ = ("oldest_ms", "size_bytes", "waiting")

    def __init__(self, waiting: int, size_bytes: int | None, oldest_ms: int) -> None:
        self.waiting: int = waiting  # messages behind its position
        # Topics and payloads of these and of what is in flight; None = not counted.
        self.size_bytes: int | None = size_bytes
        self.oldest_ms: int = oldest_ms  # broker time at which the oldest was accepted, 0 = none


class Backlogs:
    """Counts the backlogs of many sessions of one store."""

    def __init__(
        self, store: Store, log: MessageLog | None, *, points_max: int = POINTS_MAX
    ) -> None:
        self._store: Final = store
        self._log: Final = log
        self._points_max: Final = points_max
        self._known: dict[tuple[Key, bool], _Known] = {}
        self._points = 0

    def count(self, session: Session, streams: Sequence[Stream], *, with_bytes: bool) -> Backlog:
        """Return what a stored session is owed, in flight and behind its position.

        Its bytes are counted only `with_bytes`. Messages that cannot be read count, without bytes.
        """
        size, oldest = self._in_flight(session, with_bytes)
        point = self._behind(session.position, streams, with_bytes)
        oldest_ms = min((ms for ms in (oldest, point.oldest_ms) if ms), default=0)
        return Backlog(point.messages, size + point.size if with_bytes else None, oldest_ms)

    def _behind(self, position: int, streams: Sequence[Stream], with_bytes: bool) -> "_Point":
        """Return what waits behind a position."""
        log = self._log
        if log is None or not streams or position >= log.end:
            return _Point(0, 0, 0)
        # Below the position a since-offset says nothing, and it must not: sessions that subscribed
        # at different times have the same streams, and are counted from each other's positions.
        streams = [
            Stream(each.filter_id, each.topic_filter, each.since if each.since > position else 0)
            for each in streams
        ]
        key = tuple(sorted((each.filter_id, each.since) for each in streams))
        if self._points >= self._points_max:
            self._known.clear()
            self._points = 0
        known = self._known.get((key, with_bytes))
        if known is None:
            known = self._known[key, with_bytes] = _Known(log.end)
            self._points += len(key)
        index = bisect_left(known.positions, position)
        if known.positions[index] == position:
            return known.points[index]
        above, before = known.positions[index], known.points[index]
        below = known.positions[index - 1] if index else None
        if below is not None and position - below < above - position:
            nearer = known.points[index - 1]
            messages, size = _counted(log, streams, below, position, with_bytes)
            messages, size = max(0, nearer.messages - messages), max(0, nearer.size - size)
        else:
            messages, size = _counted(log, streams, position, above, with_bytes)
            messages, size = before.messages + messages, before.size + size
        oldest_ms = _first_accepted(log, streams, position) if messages else 0
        point = _Point(messages, size, oldest_ms)
        known.positions.insert(index, position)
        known.points.insert(index, point)
        self._points += 1
        return point

    def _in_flight(self, session: Session, with_bytes: bool) -> tuple[int, int]:
        """Return (bytes, when the oldest was accepted) of what is in flight and sent again.

        A message whose PUBREC has come is not sent again. One that cannot be read has no bytes.
        """
        size = oldest = 0
        offsets: list[int] = []
        for entry in session.in_flight.values():
            if entry & RELEASED:
                continue
            reference = entry >> REFERENCE_SHIFT
            if entry & SOURCE_MASK != FROM_MAILBOX:
                offsets.append(reference)
                continue
            copy = load_copy(self._store, session.client_id, reference)
            if copy is not None:
                size += size_of(copy.message)
                oldest = min(oldest or copy.message.accepted_at_ms, copy.message.accepted_at_ms)
        is_first = True
        for offset in sorted(offsets):
            message = self._get(offset)
            if message is None:
                continue
            size += size_of(message)
            if is_first:
                oldest = min(oldest or message.accepted_at_ms, message.accepted_at_ms)
                is_first = False
            if not with_bytes:
                break
        return size, oldest

    def _get(self, offset: int) -> Message | None:
        try:
            return None if self._log is None else self._log.get(offset)
        except DamagedRows:
            return None


class _Point:
    """What waits behind one position."""

    __slots__ = ("messages", "oldest_ms", "size")

    def __init__(self, messages: int, size: int, oldest_ms: int) -> None:
        self.messages: Final = messages
        self.size: Final = size
        self.oldest_ms: Final = oldest_ms


class _Known:
    """The positions of the same streams from which everything was counted, in their order."""

    __slots__ = ("points", "positions")

    def __init__(self, end: int) -> None:
        self.positions: Final = [end]
        self.points: Final = [_Point(0, 0, 0)]


def load_copy(store: Store, client_id: str, reference: int) -> Copy | None:
    """Return a message in flight that is not from the log, None if it is not there or damaged."""
    try:
        row = store.get(MAILBOX, mailbox_key(client_id, reference))
        return None if row is None else decode_copy(row)
    except DamagedRows:
        return None


def size_of(message: Message) -> int:
    """Return the bytes of a message that are counted: its topic and its payload."""
    topic = message.topic
    return len(message.payload) + (len(topic) if topic.isascii() else len(topic.encode()))


def _counted(
    log: MessageLog, streams: Sequence[Stream], position: int, until: int, with_bytes: bool
) -> tuple[int, int]:
    """Return (messages, bytes) of some streams after `position` up to the offset `until`."""
    cursor = log.cursor(streams, position, until)
    count = size = 0
    while not cursor.is_at_end:
        if with_bytes:
            messages = cursor.next(READ_PAGE)
            count += len(messages)
            size += sum([size_of(message) for message in messages])
        else:
            count += cursor.skip(SKIP_PAGE)
        count += len(cursor.lost)
        cursor.lost.clear()
    return count, size


def _first_accepted(log: MessageLog, streams: Sequence[Stream], position: int) -> int:
    """Return when the first message after `position` was accepted, 0 if none can be read."""
    cursor = log.cursor(streams, position)
    while not cursor.is_at_end:
        messages = cursor.next(1)
        if messages:
            return messages[0].accepted_at_ms
        cursor.lost.clear()
    return 0
