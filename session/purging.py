"""Drops what waits for a session because an operator asks, while its client is away.

A purge works in slices, a page in each step, and ends at the end that the log had when it was
asked, or at a message that is young enough to be kept. What is in flight stays. A session is a
position in its streams, so a purge of everything moves that; one of a few topics is remembered in
the session's record instead, and its messages are passed over when it is their turn. Must never
touch a session that is connected, or that came and went since. Read next:
`session.lifetime.trimming`, which drops what is over a session's limits, `session.administration`.
"""

from collections import deque
from typing import Final

from mqtt.message import Message
from mqtt.topics import matches
from session.assembly import Assembly
from session.delivery.backlog import SCAN_MAX
from session.lifetime.trimming import DROP_PAGE
from session.state.session import PurgedTopics, Session
from storage.errors import DamagedRows
from storage.log.message_log import Cursor
from storage.tables.tables import SESSIONS

NEVER: Final = 1 << 62
PURGES_MAX: Final = 64  # that wait for their turn
# Topic filters that the record of a session remembers: each is compared with every message of its
# backlog when it comes back.
TOPICS_MAX: Final = 16


class Purge:
    """One purge: how far it is, and when it is over, why it ended early if it did."""

    __slots__ = (
        "by",
        "cursor",
        "dropped",
        "end",
        "is_over",
        "keeps_out",
        "session",
        "topic",
        "until_ms",
        "value",
        "why",
    )

    def __init__(
        self,
        session: Session,
        value: bytes,
        by: str,
        end: int,
        until_ms: int,
        topic: str | None,
        keeps_out: bool,
    ) -> None:
        self.session: Session = session
        self.value: bytes = value  # its record; another one in the store = its client was here
        self.by: str = by  # who asks, and why, for the history
        self.end: int = end  # the last offset that may be dropped
        self.until_ms: int = until_ms  # messages accepted later are kept
        self.topic: str | None = topic  # only what this filter matches, None = everything
        self.keeps_out: bool = keeps_out  # its client may not connect until it is over
        self.cursor: Cursor | None = None
        self.dropped: int = 0  # so far
        self.is_over: bool = False
        self.why: str = ""  # it ended before its end


class Purging:
    """Works off purges, one after the other."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly: Final = assembly
        self._tick: Final = assembly.core.tick
        self._purges: Final[deque[Purge]] = deque()

    def begin(
        self,
        session: Session,
        value: bytes,
        by: str,
        older_ms: int,
        topic: str | None = None,
        *,
        keeps_out: bool = False,
    ) -> Purge | None:
        """Begin to drop what waits for a session that is loaded with all its rows.

        `value` is its record in the store. Messages younger than `older_ms` are kept, and those
        that the topic filter `topic` does not match. With `keeps_out` the client may not connect
        until the purge is over. None = too many purges wait already.
        """
        if self.is_full:
            return None
        log = self._assembly.database.log
        until_ms = self._tick.now - older_ms
        purge = Purge(session, value, by, log.end, until_ms, topic, keeps_out)
        self._purges.append(purge)
        if keeps_out:
            self._assembly.kept_out.keep(session.client_id)
        return purge

    @property
    def is_full(self) -> bool:
        """Is there no room for one more?"""
        return len(self._purges) >= PURGES_MAX

    @property
    def is_busy(self) -> bool:
        """Has `run` something to do?"""
        return bool(self._purges)

    def run(self) -> None:
        """Do one step of the oldest purge, if the store takes the open batch."""
        if not self._purges or not self._assembly.writer.settle():
            return
        purge = self._purges[0]
        try:
            why = self._why_not(purge)
            drop_next = self._drop_next if purge.topic is None else self._drop_topic
            if not why and not drop_next(purge):
                return
            why = why or purge.why
        except DamagedRows as problem:
            self._assembly.core.damage.note("session", problem, purge.session.client_id)
            why = str(problem)
        self._end(self._purges.popleft(), why)

    def stop(self) -> None:
        """End all purges: the broker ends, and what they have not dropped stays."""
        while self._purges:
            self._end(self._purges.popleft(), "the broker ends")

    def _end(self, purge: Purge, why: str) -> None:
        purge.is_over, purge.why = True, why
        if purge.keeps_out:
            self._assembly.kept_out.release(purge.session.client_id)
        if purge.dropped:
            events = self._assembly.history.sessions
            events.purged(purge.session, purge.dropped, purge.by, purge.topic)

    def _why_not(self, purge: Purge) -> str:
        """Return why the session must not be touched any more, "" = it may be."""
        client_id = purge.session.client_id
        if client_id in self._assembly.sessions.live:
            return "its client has come back"
        if self._assembly.database.store.get(SESSIONS, client_id.encode()) != purge.value:
            return "its client was here meanwhile"
        return ""

    def _drop_next(self, purge: Purge) -> bool:
        """Drop the next page of what waits; True if that was the end."""
        session, drops = purge.session, self._assembly.housekeeping.trimming.drops
        cursor = self._cursor(purge)
        if cursor is None:
            return True
        missing, before = cursor.missing, cursor.position
        page = min(DROP_PAGE, self._assembly.core.settings.expiry_slice)
        messages = cursor.next(page, SCAN_MAX)
        young = next((m for m in messages if m.accepted_at_ms > purge.until_ms), None)
        if young is not None:
            purge.end, purge.cursor = young.offset - 1, None  # read again, up to there
            return purge.end <= session.position
        upto = cursor.position
        drops.gone(session, before + 1, upto, cursor.missing - missing)
        drops.unreadable(session, cursor)
        purge.dropped += drops.messages(session, messages, "purged")
        session.make_room()
        purge.value = drops.move(session, upto) or purge.value
        return cursor.is_at_end or upto >= purge.end

    def _cursor(self, purge: Purge) -> Cursor | None:
        """Return what reads the backlog, None if no message is stored for the session."""
        if purge.cursor is None:
            session = purge.session
            streams = self._assembly.delivery.backlog.streams(session)
            if streams:
                log = self._assembly.database.log
                purge.cursor = log.cursor(streams, session.position, purge.end, session.gaps)
        return purge.cursor

    def _drop_topic(self, purge: Purge) -> bool:
        """Drop what the purge's filter matches of the next page of the backlog; True if that ends.

        Other messages stay owed, and what cannot be read is told when it is its turn.
        """
        session, drops = purge.session, self._assembly.housekeeping.trimming.drops
        cursor = self._cursor(purge)
        if cursor is None:
            return True
        topic_filter = purge.topic
        assert topic_filter is not None
        page = min(DROP_PAGE, self._assembly.core.settings.expiry_slice)
        messages = cursor.next(page, SCAN_MAX)
        cursor.lost.clear()
        young = next((m.offset for m in messages if m.accepted_at_ms > purge.until_ms), NEVER)
        found = [
            message
            for message in messages
            if message.offset < young and matches(topic_filter, message.topic)
        ]
        wanted = [message for message in found if self._is_wanted(session, message)]
        if wanted:
            mark = _mark(session, topic_filter)
            if mark is None:
                purge.why = (
                    f"{TOPICS_MAX} purges by topic are remembered already, until its client has "
                    "come back"
                )
                return True
            purge.dropped += drops.messages(session, wanted, "purged")
            mark.count += len(wanted)
            mark.size_bytes += sum(len(m.topic.encode()) + len(m.payload) for m in wanted)
            mark.upto = max(mark.upto, wanted[-1].offset)
            purge.value = drops.write(session)
        return young < NEVER or cursor.is_at_end or cursor.position >= purge.end

    def _is_wanted(self, session: Session, message: Message) -> bool:
        return self._assembly.delivery.outgoing.options(session, message) is not None


def _mark(session: Session, topic_filter: str) -> PurgedTopics | None:
    """Return what remembers that messages of a filter are dropped; None if there is no room."""
    if session.purged is None:
        session.purged = []
    session.purged[:] = session.purged_behind()
    for mark in session.purged:
        if mark.topic_filter == topic_filter:
            return mark
    if len(session.purged) == TOPICS_MAX:
        return None
    mark = PurgedTopics(topic_filter, session.position, 0, 0)
    session.purged.append(mark)
    return mark
