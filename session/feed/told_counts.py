"""Counts what a store was told, by the minute in which its messages were accepted.

One event of the history for each minute and store says how many messages of a range of offsets the
store has, how many it has refused, with checksums; another one says what it does not get. The
ranges of a store follow each other without holes. Whoever has the messages themselves can compare
(`holdfast audit`). A message counts when the store has confirmed it, in the batch that moves its
cursor. If the store loses it and is told again, it counts apart. Read next:
`session.state.told_record` (what is stored), `session.feed.outlet` (which calls).
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final, Protocol, TypeAlias

from session.live.tick import Tick
from session.state.backend_record import Cursor
from session.state.told_record import FIELDS, MINUTE_MS, Told, add
from storage.history import events
from storage.log.message_log import MessageLog, Stream

# Messages that were read for a store and that it has not confirmed: cursor, time of acceptance.
Unconfirmed: TypeAlias = deque[tuple[Cursor, int]]

READ_MESSAGES: Final = 128
SCAN_MAX: Final = 2048
# Of messages that a store had applied when the broker died: some batches are unanswered at a time.
UNHEARD_PAGES_MAX: Final = 256
# That one record keeps: while a store is away, one generation after the other may go.
GAPS_MAX: Final = 64
# After its minute: rows are confirmed a little later than messages are accepted.
GRACE_MS: Final = 5000


class ToldHistory(Protocol):
    """Where it is told: `session.history.backend_events`."""

    def opened(self, name: str, position: int, filters: dict[str, int]) -> None:
        """Record the filters of a store for this boot."""
        ...

    def forgotten(self, name: str, position: int) -> None:
        """Record that a store is not configured any more."""
        ...

    def told(
        self, name: str, reason: int, minute_ms: int, first: int, last: int, tally: list[int]
    ) -> None:
        """Record a tally of messages of a range that were accepted in a minute."""
        ...

    def gap(self, name: str, reason: int, first: int, last: int) -> None:
        """Record that a store does not get what it wants of a range."""
        ...


class ToldCounts:
    """Counts for all stores; what is open is in their records."""

    def __init__(self, tick: Tick, log: MessageLog, history: ToldHistory) -> None:
        self._tick: Final = tick
        self._log: Final = log
        self._history: Final = history

    def opened(self, name: str, told: Told, filters: dict[str, int]) -> None:
        """Begin a boot with these filters. What was open is told before: others were in force."""
        self.close(name, told, told.counted)
        self._history.opened(name, told.upto, filters)

    def forgotten(self, name: str, told: Told) -> None:
        """End with what was told: what waits will not come."""
        self.close(name, told, told.counted)
        self._history.forgotten(name, told.upto)

    def confirm(
        self,
        name: str,
        told: Told,
        unconfirmed: Unconfirmed,
        upto: int,
        dead: Collection[Cursor],
        refused: Collection[Cursor],
    ) -> None:
        """Count the messages up to an offset, which the store has confirmed or refused."""
        is_dead, is_refused = _least(dead), _least(refused)
        while unconfirmed and unconfirmed[0][0][0] <= upto:
            at, at_ms = unconfirmed.popleft()
            reason = events.CONFIRMED
            # The place of a message has an event before it; that of an event which comes directly
            # behind the message has the same offset, and the event itself.
            if is_dead.get(at[0], at[1] + 1) <= at[1]:
                reason = events.DEAD_LETTERED
            elif is_refused.get(at[0], at[1] + 1) <= at[1]:
                reason = events.REFUSED
            self._count(name, told, at[0], at_ms, reason)
        self._reach(told, upto)

    def unheard(
        self,
        name: str,
        told: Told,
        streams: Sequence[Stream],
        upto: int,
        dead: Collection[int],
        refused: Collection[int],
    ) -> None:
        """Count the messages up to an offset that the store had applied when its answer was lost.

        They are read from the log. Raises the store's errors; nothing was counted then.
        """
        if upto <= told.counted or not streams:
            self._reach(told, upto)
            return
        cursor = self._log.cursor(streams, told.counted, upto)
        found: list[tuple[int, int]] = []
        for _ in range(UNHEARD_PAGES_MAX):
            page = cursor.next(READ_MESSAGES, SCAN_MAX)
            found += [(message.offset, message.accepted_at_ms) for message in page]
            if cursor.is_at_end:
                break
        for offset, at_ms in found:
            reason = events.REFUSED if offset in refused else events.CONFIRMED
            reason = events.DEAD_LETTERED if offset in dead else reason
            self._count(name, told, offset, at_ms, reason)
        if cursor.lost or cursor.missing or not cursor.is_at_end:
            self.gap(name, told, events.NOT_COUNTED, told.counted + 1, upto)
        self._reach(told, upto)

    def _count(self, name: str, told: Told, offset: int, at_ms: int, reason: int) -> None:
        """Count a message that the store has taken or refused; call `_reach` after the last one."""
        if offset <= told.counted:
            told.again_first = min(told.again_first or offset, offset)
            told.again_last = max(told.again_last, offset)
            add(told.again, offset)
            return
        if told.gaps and told.is_in_gap(offset):
            return  # it was on its way when it was given up
        minute_ms = at_ms - at_ms % MINUTE_MS
        if minute_ms != told.minute_ms:
            self.close(name, told, offset - 1)
            told.minute_ms = minute_ms
        if reason == events.CONFIRMED:
            add(told.confirmed, offset)
        else:
            add(told.dead if reason == events.DEAD_LETTERED else told.refused, offset)

    def _reach(self, told: Told, offset: int) -> None:
        """Note that all messages up to an offset are counted."""
        told.counted = max(told.counted, offset)
        if told.gaps:
            told.gaps[:] = [gap for gap in told.gaps if gap[1] > told.counted]

    def gap(self, name: str, told: Told, reason: int, first: int, last: int) -> None:
        """Note that the store does not get what it wants among two offsets."""
        if first <= told.counted:
            # It once had these.
            self._history.gap(name, events.LOST_THERE, first, min(last, told.counted))
            first = told.counted + 1
        if first > last:
            return
        is_soft = reason in (events.UNREADABLE, events.NOT_COUNTED)
        before = told.gaps[-1] if told.gaps and not is_soft else (0, 0)
        if before[0] and (before[1] >= first - 1 or len(told.gaps) == GAPS_MAX):
            # What lies between two gaps that are joined is in neither count: it may still come.
            first, last = min(first, before[1] + 1), max(last, before[1])
            told.gaps[-1] = before[0], last
        elif not is_soft:
            told.gaps.append((first, last))
        if first <= last:
            self._history.gap(name, reason, first, last)

    def close_if_due(self, name: str, told: Told) -> bool:
        """Tell what is open if its minute is over, and nothing is under way; return whether."""
        if told.minute_ms:
            is_due = self._tick.now >= told.minute_ms + MINUTE_MS + GRACE_MS
        else:
            is_due = told.again[0] > 0
        if is_due:
            self.close(name, told, told.counted)
        return is_due

    def close(self, name: str, told: Told, last: int) -> None:
        """Tell what is open, as of the messages up to `last`; the record has to be written."""
        first = told.upto + 1
        for reason, tally in (
            (events.CONFIRMED, told.confirmed),
            (events.DEAD_LETTERED, told.dead),
            (events.REFUSED, told.refused),
        ):
            if tally[0]:
                self._history.told(name, reason, told.minute_ms, first, last, tally)
                told.upto = last
        if told.again[0]:
            minute_ms = self._tick.now - self._tick.now % MINUTE_MS
            self._history.told(
                name, events.TOLD_AGAIN, minute_ms, told.again_first, told.again_last, told.again
            )
            told.again_first = told.again_last = 0
        for tally in (told.confirmed, told.dead, told.refused, told.again):
            tally[:] = [0] * FIELDS
        told.minute_ms = 0


def _least(places: Collection[Cursor]) -> dict[int, int]:
    """Return the least event number of the places that have the same offset."""
    found: dict[int, int] = {}
    for offset, seq in places:
        found[offset] = min(seq, found.get(offset, seq))
    return found
