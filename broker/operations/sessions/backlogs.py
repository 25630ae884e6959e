"""What sessions are owed: messages, bytes, since when, and in which generations of the log.

Messages are counted in the index of the log, without reading them; bytes are counted by reading
every message, so only where somebody asks. Memory does not grow with a backlog. Must never change
the store. Read next: `broker.operations.sessions.behind`, which counts,
`broker.operations.sessions.owed`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from broker.operations.sessions.behind import (
    NOTHING,
    Behind,
    Extents,
    Known,
    Reading,
)
from broker.operations.sessions.overlaps import apart
from broker.operations.sessions.sizes import Sizes, size_of
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, RELEASED, SOURCE_MASK
from session.state.session import Session
from storage.api import Store
from storage.errors import DamagedRows
from storage.log.gaps import NO_GAPS, Gaps, outside, passed
from storage.log.message_log import MessageLog, Stream
from storage.tables.fetch_rows import Copy, decode_copy
from storage.tables.tables import MAILBOX, mailbox_key

# What is remembered at a time: counts, and the streams that they belong to. 30 MB.
POINTS_MAX: Final = 200_000
SIZES_MAX: Final = 10_000  # messages in flight whose size is remembered: 1 MB


class Backlog:
    """What one session is owed, beside the number of packet ids in flight."""

    __slots__ = ("first", "generations", "oldest_ms", "size_bytes", "waiting")

    def __init__(
        self,
        waiting: int,
        size_bytes: int | None,
        oldest_ms: int,
        generations: int = 0,
        first: int = 0,
    ) -> None:
        self.waiting: int = waiting  # messages behind its position
        # Topics and payloads of these and of what is in flight; None = not counted.
        self.size_bytes: int | None = size_bytes
        # Broker time at which the oldest of both was accepted, 0 = none.
        self.oldest_ms: int = oldest_ms
        # A bit for each generation of the log that it needs, the oldest is the lowest bit.
        self.generations: int = generations
        self.first: int = first  # offset of the first that waits, 0 = none, or not known


class Backlogs:
    """Counts the backlogs of many sessions of one store, which must not change meanwhile."""

    def __init__(
        self,
        store: Store,
        log: MessageLog | None,
        *,
        points_max: int = POINTS_MAX,
        known: Known | None = None,
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        """`known` is what is known already, and is added to; `breathe` is called now and then."""
        self._store: Final = store
        self._log: Final = log
        self.extents: Final = None if log is None else Extents(log)
        self._points_max: Final = points_max
        self._known: Final = known or Known()
        self._sizes: Final = None if log is None else Sizes(log, breathe)
        self._breathe: Final = breathe
        self._readings: dict[tuple[tuple[tuple[int, int], ...], bool], Reading] = {}
        self._points = 0  # how much is remembered in them
        # Bytes of messages in flight, and when they were accepted, by offset.
        self._in_flights: dict[int, tuple[int, int]] = {}

    def count(
        self,
        session: Session,
        streams: Sequence[Stream],
        *,
        with_bytes: bool,
        with_oldest: bool = True,
    ) -> Backlog:
        """Return what a stored session is owed, in flight and behind its position.

        Its bytes are counted only `with_bytes`. Messages that cannot be read count, without bytes.
        Unless `with_oldest` the oldest one is that of what is in flight.
        """
        size, oldest, generations = self._in_flight(session, with_bytes)
        position, gaps = session.position, session.gaps
        behind = self.behind(position, streams, gaps, with_bytes=with_bytes)
        if with_oldest and behind.messages:
            _, first_ms = self.first(position, streams, gaps, with_bytes=with_bytes)
            oldest = min((ms for ms in (oldest, first_ms) if ms), default=0)
        purged = session.purged_behind()
        size += max(0, behind.size_bytes - sum(each.size_bytes for each in purged))
        return Backlog(
            max(0, behind.messages - sum(each.count for each in purged)),
            size if with_bytes else None,
            oldest,
            generations | behind.generations,
            behind.first,
        )

    def behind(
        self, position: int, streams: Sequence[Stream], gaps: Gaps = NO_GAPS, *, with_bytes: bool
    ) -> Behind:
        """Return what waits behind a position, outside the gaps."""
        log = self._log
        if log is None or not streams or position >= log.end:
            return NOTHING
        messages = size = generations = first = 0
        is_known = True
        for reading, start in self._parts(position, streams, with_bytes):
            before = reading.size
            for begin, end in outside(gaps, start + 1, log.end):
                found = reading.between(begin - 1, end)
                messages += found.messages
                size += found.size_bytes
                generations |= found.generations
                if found.first and (not first or found.first < first):
                    first = found.first
                is_known = is_known and (bool(found.first) or not found.messages)
            self._points += reading.size - before
        return Behind(messages, size, generations, first if is_known else 0)

    def first(
        self, position: int, streams: Sequence[Stream], gaps: Gaps = NO_GAPS, *, with_bytes: bool
    ) -> tuple[int, int]:
        """Return (offset, when it was accepted) of the oldest message behind a position.

        What is in a gap does not count. (0, 0) = there is none that can be read.
        """
        log = self._log
        if log is None or not streams or position >= log.end:
            return 0, 0
        oldest = (0, 0)
        for reading, start in self._parts(position, streams, with_bytes):
            before = reading.size
            found = reading.first(passed(gaps, start))
            while found[0] and passed(gaps, found[0] - 1) >= found[0]:
                found = reading.first(passed(gaps, found[0]))
            self._points += reading.size - before
            if found[0] and (not oldest[0] or found < oldest):
                oldest = found
        return oldest

    def message(self, offset: int) -> tuple[int, int]:
        """Return (bytes, when it was accepted) of a message, (0, 0) if it cannot be read."""
        found = self._in_flights.get(offset)
        if found is None:
            try:
                message = None if self._log is None else self._log.get(offset)
            except DamagedRows:
                message = None
            found = (0, 0) if message is None else (size_of(message), message.accepted_at_ms)
            if len(self._in_flights) >= SIZES_MAX:
                self._in_flights.clear()
            self._in_flights[offset] = found
        return found

    def bit_of(self, offset: int) -> int:
        """Return the bit of the generation that holds an offset, 0 if none does."""
        return 0 if self.extents is None else self.extents.bit_of(offset)

    def _parts(
        self, position: int, streams: Sequence[Stream], with_bytes: bool
    ) -> list[tuple[Reading, int]]:
        """Return streams that have no message in common, each with the position to read from."""
        parts: list[tuple[Reading, int]] = []
        for group in apart(streams) if len(streams) > 1 else [streams]:
            start = position
            if len(group) == 1:
                start = max(start, group[0].since)
            # Below the position a since-offset says nothing, and it must not: sessions that
            # subscribed at different times have the same streams, and share what is counted.
            key = tuple(
                sorted((each.filter_id, each.since if each.since > start else 0) for each in group)
            )
            parts.append((self._reading(key, group, with_bytes), start))
        return parts

    def _reading(
        self, key: tuple[tuple[int, int], ...], group: Sequence[Stream], with_bytes: bool
    ) -> Reading:
        if self._points >= self._points_max:
            self._readings.clear()
            self._points = 0
        reading = self._readings.get((key, with_bytes))
        if reading is None:
            assert self._log is not None
            assert self.extents is not None
            filters = {each.filter_id: each.topic_filter for each in group}
            reading = self._readings[key, with_bytes] = Reading(
                self._log,
                self.extents,
                [Stream(number, filters[number], since) for number, since in key],
                self._known,
                self._sizes if with_bytes else None,
                self._breathe,
            )
            self._points += reading.size
        return reading

    def _in_flight(self, session: Session, with_bytes: bool) -> tuple[int, int, int]:
        """Return (bytes, when the oldest was accepted, generations) of what is in flight.

        A message whose PUBREC has come is not sent again. One that cannot be read has no bytes.
        """
        size = oldest = generations = 0
        offsets: list[int] = []
        for entry in session.in_flight.values():
            reference = entry >> REFERENCE_SHIFT
            is_copy = entry & SOURCE_MASK == FROM_MAILBOX
            if not is_copy and reference:
                generations |= self.bit_of(reference)
            if entry & RELEASED:
                continue
            if not is_copy:
                offsets.append(reference)
            else:
                copy = load_copy(self._store, session.client_id, reference)
                if copy is not None:
                    size += size_of(copy.message)
                    oldest = min(oldest or copy.message.accepted_at_ms, copy.message.accepted_at_ms)
        is_first = True
        for offset in sorted(offsets):
            message_size, accepted_ms = self.message(offset)
            if not accepted_ms:
                continue
            size += message_size
            if is_first:
                oldest = min(oldest or accepted_ms, accepted_ms)
                is_first = False
            if not with_bytes:
                break
        return size, oldest, generations


def load_copy(store: Store, client_id: str, reference: int) -> Copy | None:
    """Return a message in flight that is not from the log, None if it is not there or damaged."""
    try:
        row = store.get(MAILBOX, mailbox_key(client_id, reference))
        return None if row is None else decode_copy(row)
    except DamagedRows:
        return None
