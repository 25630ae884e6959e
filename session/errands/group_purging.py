"""Drops what waits for a shared subscription because an operator asks, its members here or away.

A purge works in slices and ends at what waited when it was asked for, or at a message that is young
enough to be kept. What is in flight to a member stays. With a topic filter the messages of other
topics stay owed, before all that comes later, so there may not be very many between. Must never
drop a message that came later. Read next: `session.delivery.shared.distribution`,
`session.purging`, which does it for sessions.
"""

from collections import deque
from typing import Final

from mqtt.message import Message
from mqtt.topics import matches
from session.assembly import Assembly
from session.lifetime.trimming import DROP_PAGE
from session.live.subscribers import Group
from storage.errors import DamagedRows, Recoverable

PURGES_MAX: Final = 64  # that wait for their turn
KEPT_MAX: Final = 1000  # messages of other topics: the group's record lists them, 8 bytes each


class GroupPurge:
    """One purge: how far it is, and when it is over, why it ended early if it did."""

    __slots__ = (
        "asker",
        "dropped",
        "end",
        "group",
        "in_memory",
        "is_over",
        "kept",
        "returned",
        "topic_filter",
        "until_ms",
        "why",
    )

    def __init__(
        self, group: Group, asker: str, end: int, until_ms: int, topic_filter: str | None
    ) -> None:
        self.group: Group = group
        self.asker: str = asker  # who asks, and why, for the history
        self.end: int = end  # the last offset that may be dropped
        self.until_ms: int = until_ms  # messages accepted later are kept
        self.topic_filter: str | None = topic_filter  # what is dropped, None = everything
        self.returned: deque[int] = deque(group.owed)  # offsets that come first
        self.in_memory: int = len(group.pending)  # of those that wait without an offset
        self.kept: int = 0  # messages of other topics, so far
        self.dropped: int = 0  # so far
        self.is_over: bool = False
        self.why: str = ""  # it ended before its end

    def wants(self, message: Message) -> bool:
        """Return whether a message is to be dropped."""
        return self.topic_filter is None or matches(self.topic_filter, message.topic)

    def is_young(self, message: Message) -> bool:
        """Return whether a message is kept for its age, with all behind it."""
        return message.accepted_at_ms > self.until_ms


class GroupPurging:
    """Works off purges, one after the other."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly: Final = assembly
        self._purges: Final[deque[GroupPurge]] = deque()

    def begin(
        self, key: tuple[str, str], asker: str, older_ms: int, topic_filter: str | None
    ) -> GroupPurge | None:
        """Begin to drop what waits for a group, by (share name, topic filter); None = no such one.

        Messages younger than `older_ms` are kept. Raises `Recoverable` if too many purges wait.
        """
        if len(self._purges) >= PURGES_MAX:
            raise Recoverable(f"{PURGES_MAX} purges wait already: ask again later")
        group = self._assembly.delivery.groups.find(key)
        if group is None:
            return None
        until_ms = self._assembly.core.tick.now - older_ms
        end = self._assembly.database.log.end
        purge = GroupPurge(group, asker, end, until_ms, topic_filter)
        self._purges.append(purge)
        return purge

    @property
    def is_busy(self) -> bool:
        """Has `run` something to do?"""
        return bool(self._purges)

    def run(self) -> None:
        """Do one step of the oldest purge, if the store takes the open batch."""
        if not self._purges or not self._assembly.writer.settle():
            return
        purge = self._purges[0]
        if self._assembly.delivery.groups.find(purge.group.key()) is not purge.group:
            self._end(self._purges.popleft(), "the shared subscription has ended")
        elif self._step(purge):
            self._end(self._purges.popleft(), purge.why)

    def stop(self) -> None:
        """End all purges: the broker ends, and what they have not dropped stays."""
        while self._purges:
            self._end(self._purges.popleft(), "the broker ends")

    def _step(self, purge: GroupPurge) -> bool:
        """Drop the next messages; True if that was the end."""
        if purge.returned:
            self._drop_returned(purge)
        elif purge.in_memory:
            self._drop_in_memory(purge)
        elif self._drop_behind(purge):
            return True
        return False

    def _drop_returned(self, purge: GroupPurge) -> None:
        """Drop messages that came back from sessions which have ended, or were kept by a purge."""
        group = purge.group
        page = [purge.returned.popleft() for _ in range(min(DROP_PAGE, len(purge.returned)))]
        there = set(page).intersection(group.owed)  # others were handed out meanwhile
        gone: set[int] = set()
        for offset in page:
            message = self._get(offset) if offset in there else None
            if message is None:
                continue  # its turn tells of it
            if purge.wants(message) and not purge.is_young(message):
                self._drop(purge, message)
                gone.add(offset)
        if gone:
            group.owed = deque(offset for offset in group.owed if offset not in gone)
            self._assembly.core.tick.dirty_groups[group] = None

    def _get(self, offset: int) -> Message | None:
        try:
            return self._assembly.database.log.get(offset)
        except DamagedRows:
            return None

    def _drop_in_memory(self, purge: GroupPurge) -> None:
        """Drop messages that only the memory has, as many as `limits.queue_messages` at most."""
        group = purge.group
        count = min(purge.in_memory, len(group.pending))
        kept: list[Message] = []
        for _ in range(count):
            message = group.next_pending()
            if purge.wants(message) and not purge.is_young(message):
                self._drop(purge, message)
            else:
                kept.append(message)
        for message in reversed(kept):
            group.queue_again(message)
        purge.in_memory = 0

    def _drop_behind(self, purge: GroupPurge) -> bool:
        """Drop messages behind the position of the group; True if that was the end."""
        group = purge.group
        if not group.is_stored or not group.is_lagging or group.position >= purge.end:
            return True
        distribution = self._assembly.delivery.shared
        page = min(DROP_PAGE, self._assembly.core.settings.expiry_slice)
        messages, upto = distribution.look_behind(group, page)
        last = group.position
        is_end = upto >= purge.end or upto == last
        for message in messages:
            if message.offset > purge.end or purge.is_young(message):
                upto, is_end = last, True
                break
            if purge.wants(message):
                self._drop(purge, message)
            elif purge.kept == KEPT_MAX:
                purge.why = f"{KEPT_MAX} messages of other topics wait between: the rest stays"
                upto, is_end = last, True
                break
            else:
                group.owed.append(message.offset)
                purge.kept += 1
            last = message.offset
        distribution.move(group, upto)
        return is_end

    def _drop(self, purge: GroupPurge, message: Message) -> None:
        self._assembly.delivery.shared.drop(purge.group, message, "purged")
        purge.dropped += 1

    def _end(self, purge: GroupPurge, why: str) -> None:
        purge.is_over, purge.why = True, why
        if purge.dropped:
            share_name, topic_filter = purge.group.key()
            self._assembly.history.sessions.acted(
                "group purge", f"$share/{share_name}/{topic_filter}", purge.dropped, purge.asker
            )
        self._assembly.delivery.shared.hand_out_waiting(purge.group)
