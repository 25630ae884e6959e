"""Reads the streams of a lagging session from the store, in log order.

A session reads one page at a time while its window has room, until it reaches the end of the log
and is live again. Live messages and those of the backlog move the same position, so no message is
lost or sent twice. Read next: `session.delivery.backlog_page`,
`session.delivery.retained_replay`.
"""

from itertools import islice
from typing import Final

from mqtt.message import Message
from session.delivery.backlog_page import BacklogPages
from session.delivery.context import DeliveryContext
from session.delivery.outgoing import Outgoing
from session.delivery.redelivery import Redelivery
from session.delivery.retained_replay import RetainedReplay
from session.delivery.sender import Sender
from session.delivery.window.ahead import AheadBinder
from session.live.backlog_trim import Plan, Trim, Trimmer
from session.live.connection import ACTIVE, Arrivals, Connection
from session.state.in_flight import FROM_LOG
from session.state.session import NO_LIMITS, Session
from storage.errors import DamagedRows
from storage.log.gaps import NO_GAPS
from storage.log.message_log import Cursor, Stream

# Rows a reader may examine in one tick without a match, or 128 searches in an index: about 2 ms,
# but 40 ms if the blocks of the index have to be read from the disk.
SCAN_MAX: Final = 2048
# Messages of its backlog that one session may read in one tick: as many as may be in flight to it.
PAGE_MAX: Final = 256
# Work of all readers in one tick, in messages: about 15 ms; the last page may exceed it. Each
# reader costs READER_WORK whatever it reads. One that finds no message costs as much as a page, and
# a page is made smaller by what its messages match.
READ_WORK_MAX: Final = 2048
READER_WORK: Final = 8
# With more streams than this the first page is smaller: each message may be in all of them. Later
# pages grow while they are little work.
STREAMS_FULL_PAGE: Final = 64
ARRIVAL_BYTES_MAX: Final = 1 << 20  # read for one session in one tick; the last may exceed it
SEARCH_WORK: Final = 8  # a search in an index: for each stream one to begin with


class Backlog:
    """Sends sessions the messages that they have missed."""

    def __init__(
        self,
        context: DeliveryContext,
        outgoing: Outgoing,
        sender: Sender,
        redelivery: Redelivery,
        replay: RetainedReplay,
        ahead: AheadBinder,
    ) -> None:
        self._tick: Final = context.tick
        self._log: Final = context.log
        self._routes: Final = context.routes
        self._settings: Final = context.settings
        self._counters: Final = context.counters
        self._losses: Final = context.losses
        self._damage: Final = context.damage
        self._deliveries: Final = context.history.deliveries
        self._gate: Final = context.gate
        self._trimmer: Final = Trimmer(context.log, context.settings)
        self._pages: Final = BacklogPages(context)
        self._outgoing: Final = outgoing
        self._sender: Final = sender
        self._redelivery: Final = redelivery
        self._replay: Final = replay
        self._ahead: Final = ahead

    def begin(self, connection: Connection) -> None:
        """Let a resumed session read what it has missed, within its limits."""
        session = connection.session
        assert session is not None
        if session.position < self._log.end:
            connection.is_lagging = True
            if self._trimmer.is_limited:
                connection.plan = self._trimmer.begin(self.streams(session), session)
        if session.gaps_at != NO_LIMITS:
            session.make_room()  # durable with the CONNACK, before it gets anything
            self._tick.mark(session)

    def read(self) -> bool:
        """Let the sessions that lag and have room read; True if some have more to read.

        Call it right after the batch was written: the store then has the whole log.
        """
        tick = self._tick
        readers = tick.readers
        work = 0
        for connection in list(islice(readers, READ_WORK_MAX // READER_WORK)):
            if work > READ_WORK_MAX:
                break
            work += READER_WORK
            del readers[connection]
            session = connection.session
            quota = 0 if session is None else session.send_quota
            if connection.resend and connection.writable and connection.state == ACTIVE:
                self._redelivery.resend_waiting(connection)
                assert session is not None
                work += quota - session.send_quota
                quota = session.send_quota
            if session is None or self._gate.is_full(connection):
                continue  # reads again when replies are released
            if not connection.has_room():
                work += self._read_ahead(connection, session)
                continue
            if session.replays:
                before = tick.work
                self._replay.send_next(connection, session)
                work += tick.work - before
            if connection.is_lagging and connection.has_room():
                before = tick.work
                work += self._catch_up(connection, session)
                work += tick.work - before
            if connection.has_room() and (connection.is_lagging or session.replays):
                readers[connection] = None
            else:
                work += self._read_ahead(connection, session)
        return bool(readers)

    def _catch_up(self, connection: Connection, session: Session) -> int:
        """Send the next page of a session's backlog; return the work done, in messages."""
        counted: Plan | Trim | None = connection.plan or connection.trim
        if counted is not None and counted.cuts != self._log.cuts:
            self._count_again(connection)
        if connection.plan is not None:
            searches = connection.plan.searches
            is_complete = connection.plan.advance()
            self._tick.work += SEARCH_WORK * (connection.plan.searches - searches)
            if not is_complete:
                return PAGE_MAX
            connection.trim = connection.plan.trim()
            connection.plan = None
        arrivals = connection.arrivals
        if arrivals is not None and session.position >= arrivals.after:
            return self._send_arrivals(connection, session, arrivals)
        cursor = self._cursor(connection, session)
        messages = self._read(connection, session, cursor)
        if not messages and cursor.is_at_end:
            return self._reach_end(connection, session)
        tick = self._tick
        if messages or cursor.position > session.position:
            tick.mark(session)
        work = tick.work
        at = self._send(connection, session, messages)
        if at < len(messages):
            # They match so much that the rest of the page waits: it is read again.
            session.position = max(session.position, messages[at - 1].offset)
            connection.cursor = None
            return at
        session.position = max(session.position, cursor.position)
        is_dear = tick.work - work > READ_WORK_MAX // 8
        cursor.page = max(1, cursor.page // 2) if is_dear else min(PAGE_MAX, 4 * cursor.page)
        return len(messages)

    def _read_ahead(self, connection: Connection, session: Session) -> int:
        """Bind packet ids ahead to the next messages of a backlog; return the work done.

        What cannot be read is told when it is its turn: until then the position does not pass it.
        """
        if not connection.is_lagging or not self._ahead.room(connection, session):
            return 0
        cursor = self._cursor(connection, session)
        count = self._ahead.page(connection, session, cursor)
        if not count:
            return 0
        missing, searches = cursor.missing, cursor.searches
        messages = cursor.next(count, SCAN_MAX)
        self._tick.work += SEARCH_WORK * (cursor.searches - searches)
        if cursor.missing > missing or cursor.lost:
            connection.ahead_after = cursor.position
            connection.cursor = None
        elif messages:
            cursor.note_size(messages)
            if self._ahead.bind_page(connection, session, messages) < len(messages):
                connection.cursor = None
        elif cursor.is_at_end:
            self._reach_end(connection, session)
        return len(messages)

    def _read(self, connection: Connection, session: Session, cursor: Cursor) -> list[Message]:
        """Read the next page of a session's backlog; count and record what is gone."""
        missing, before, searches = cursor.missing, cursor.position, cursor.searches
        messages = cursor.next(min(cursor.page, session.send_quota), SCAN_MAX)
        self._tick.work += SEARCH_WORK * (cursor.searches - searches)
        if cursor.missing > missing:
            gone = cursor.missing - missing
            self._drop_range(connection, session, before + 1, cursor.position, gone, "max_age")
        if cursor.lost:
            self._pass_over(connection, session, cursor)
        cursor.note_size(messages)
        return messages

    def _pass_over(self, connection: Connection, session: Session, cursor: Cursor) -> None:
        """Count and record the messages that the cursor could not read."""
        lost = self._damage.passed_over(cursor, session.client_id)
        if connection.trim is not None:
            connection.trim.pass_over(lost)
        last = cursor.position
        self._drop_range(connection, session, lost[0], last, len(lost), "damaged")

    def _drop_range(
        self,
        connection: Connection,
        session: Session,
        first: int,
        last: int,
        count: int,
        reason: str,
    ) -> None:
        """Count and record `count` messages from `first` to `last` that are gone."""
        self._counters.drop(reason, count)
        if self._losses.tell is not None:
            self._losses.tell(session.client_id, "", reason, count)
        if self._deliveries.is_on:
            number, now = connection.number, self._tick.now
            self._deliveries.dropped_range(session, number, first, last, count, reason, now)

    def _send(self, connection: Connection, session: Session, messages: list[Message]) -> int:
        """Send messages of the backlog; return how many, fewer than all if they match so much."""
        tick = self._tick
        work_max = tick.work + READ_WORK_MAX
        at = 0
        while at < len(messages):
            at = self._pages.send(connection, session, messages, at)
            if at < len(messages):
                self._deliver_stored(connection, session, messages[at])
                at += 1
                if tick.work > work_max:
                    return at
        return at

    def _reach_end(self, connection: Connection, session: Session) -> int:
        """Go on behind the last message that the cursor reads; return the work, in messages."""
        connection.cursor = None
        connection.trim = None
        arrivals = connection.arrivals
        end = self._log.end if arrivals is None else arrivals.after
        if connection.ahead:
            connection.passed_over = end
        elif session.position < end:
            session.position = end
            session.gaps = NO_GAPS  # there are none behind the end
            self._tick.mark_late(session)
        if arrivals is not None:
            return self._send_arrivals(connection, session, arrivals)
        connection.is_lagging = False
        return 0

    def _send_arrivals(self, connection: Connection, session: Session, arrivals: Arrivals) -> int:
        """Send what was accepted while the backlog was read; return the work, in messages."""
        connection.cursor = None  # it has come to its end
        taken = 0
        size = 0
        messages: list[Message] = []
        for offset in arrivals.offsets[: min(PAGE_MAX, session.send_quota)]:
            reason = "max_age"
            message: Message | None = None
            try:
                message = self._log.get(offset)
            except DamagedRows as problem:
                reason = "damaged"
                self._damage.note("message", problem, session.client_id, f"offsets {offset}")
            if message is not None:
                messages.append(message)
                size += len(message.payload)
            elif messages:
                break  # those before it are sent first
            else:
                self._drop_range(connection, session, offset, offset, 1, reason)
                session.position = offset
            taken += 1
            if size >= ARRIVAL_BYTES_MAX:
                break
        if taken:
            self._tick.mark(session)
            sent = self._send(connection, session, messages)
            taken -= len(messages) - sent  # the rest is read again
            session.position = max(session.position, arrivals.offsets[taken - 1])
            del arrivals.offsets[:taken]
        if not arrivals.offsets:
            # If there were more, the next cursor begins behind the last of these.
            connection.arrivals = None
            if arrivals.is_complete:
                return taken + self._reach_end(connection, session)
        return taken

    def _cursor(self, connection: Connection, session: Session) -> Cursor:
        cursor = connection.cursor
        if cursor is None:
            streams = self.streams(session)
            settings = self._settings
            if connection.arrivals is None and len(streams) > settings.followed_streams:
                connection.arrivals = Arrivals(self._log.end, settings.arrivals_max)
            until = 0 if connection.arrivals is None else connection.arrivals.after
            after = connection.bound_to(session)
            cursor = self._log.cursor(streams, after, until, session.gaps)
            cursor.page = max(
                1, PAGE_MAX * STREAMS_FULL_PAGE // max(STREAMS_FULL_PAGE, len(streams))
            )
            connection.cursor = cursor
        return cursor

    def filter_removed(self, connection: Connection) -> None:
        """Read on without a filter."""
        connection.cursor = None
        self._count_again(connection)

    def _count_again(self, connection: Connection) -> None:
        """Count what exceeds the limits again: what was counted before is not all there.

        The limits are those of what waited when the session came back, no more.
        """
        session, plan, trim = connection.session, connection.plan, connection.trim
        assert session is not None
        if plan is None and trim is None:
            return
        until = plan.until if plan is not None else 0
        if trim is not None:
            until = trim.until
        connection.plan = connection.trim = None
        streams = self.streams(session)
        if streams and session.position < until:
            connection.plan = self._trimmer.begin(streams, session, until)

    def streams(self, session: Session) -> list[Stream]:
        """Return the streams whose messages are stored for the session."""
        found = []
        for subscription in session.subscriptions.values():
            if subscription.share_name is None and subscription.holds:
                filter_id = self._routes.filter_id(subscription.stream_filter)
                assert filter_id
                found.append(Stream(filter_id, subscription.stream_filter, subscription.since))
        return found

    def _deliver_stored(self, connection: Connection, session: Session, message: Message) -> None:
        # A trim counts the messages of the backlog, so it has to see every one.
        is_dropped = connection.trim is not None and connection.trim.drops(message.offset)
        options = self._outgoing.options(session, message)
        if options is None:
            return
        if is_dropped:
            self._outgoing.drop(connection, message, "session_limit")
            return
        now = self._tick.now
        if message.expires_at_ms and message.expires_at_ms <= now:
            self._outgoing.expire(connection, session, message)
            return
        max_age_ms = self._settings.max_age_s * 1000
        if max_age_ms and message.accepted_at_ms + max_age_ms <= now:
            self._outgoing.drop(connection, message, "max_age")
            return
        qos, retain, identifiers = options
        if qos == 0:
            self._sender.send_qos0_in_order(connection, message, identifiers, retain=retain)
        else:
            self._sender.send_bound(
                connection, message, qos, identifiers, message.offset, FROM_LOG, retain=retain
            )
