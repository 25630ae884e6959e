"""Applies the limits of an offline backlog while its session is away, so that space returns.

Which messages are over the limits does not depend on when they are counted: a message over the
limits now is over them when the session comes back, too (`session.delivery.backlog` does the same
then). So a pass over the stored sessions drops them now, counts each and tells the history. With
`drop_oldest` it moves the session's position behind them. With `drop_new` they are a gap behind
what is kept, in the session's record, and only whole generations matter: until one is closed there
is nothing to free. Passes work in slices with pauses, and begin only when a backlog may have grown.
Must never touch a session that is connected, or that came and went since it was counted, and never
leave out a message that is not told of in the same batch. Read next: `session.live.backlog_trim`,
`storage.log.gaps`, `session.lifetime.collection`, which frees the space.
"""

from typing import Final

from mqtt.message import Message
from session.delivery.backlog import SCAN_MAX
from session.delivery.delivery import Delivery
from session.lifetime.context import ClientContext
from session.lifetime.repository import Sessions
from session.live.backlog_trim import PLAN_PAGES, Plan, Trimmer
from session.live.core import Database
from session.publish.store_health import StoreHealth
from session.state.session import Session
from storage.errors import DamagedRows
from storage.log.gaps import add, behind
from storage.log.message_log import Cursor, Stream
from storage.tables.tables import SESSIONS, scan_readable

NEVER: Final = 1 << 62
TRIM_SLICE: Final = 64  # sessions that one step loads; about 2 ms
DROP_PAGE: Final = 256  # messages that one step drops; about 2 ms
FILTERS_SHIFT: Final = 6  # loading 64 subscriptions counts as one page
# Pause between two steps: they take at most a tenth of the loop. Between two passes over all
# sessions it is a share of the time that a generation takes messages: 10 s of an hour. While the
# disk is low there is no pause between steps, and one second between passes.
STEP_MS: Final = 20
PASSES: Final = 360
LOW_PASS_MS: Final = 1000
# A backlog is trimmed when it is over its limits by this share of what it may keep, so that a
# session is not written again for every message. While the disk is low any message counts.
EXCESS_SHIFT: Final = 3
WITHOUT_END: Final = 1 << 62  # messages to be dropped: all there are up to the end of the plan


class OfflineDrops:
    """Counts and records what a session that is away will not get, and moves its position."""

    def __init__(self, context: ClientContext, delivery: Delivery, sessions: Sessions) -> None:
        self._tick: Final = context.tick
        self._counters: Final = context.counters
        self._losses: Final = context.losses
        self._damage: Final = context.damage
        self._deliveries: Final = context.history.deliveries
        self._outgoing: Final = delivery.outgoing
        self._sessions: Final = sessions

    def gone(self, session: Session, first: int, last: int, count: int) -> None:
        """Tell of `count` messages from `first` to `last` that the log has dropped."""
        if count:
            self._drop_range(session, first, last, count, "max_age")

    def unreadable(self, session: Session, cursor: Cursor) -> list[int]:
        """Tell of messages that the cursor could not read; return their offsets."""
        if not cursor.lost:
            return []
        offsets = self._damage.passed_over(cursor, session.client_id)
        self._drop_range(session, offsets[0], cursor.position, len(offsets), "damaged")
        return offsets

    def _drop_range(self, session: Session, first: int, last: int, count: int, reason: str) -> None:
        self._counters.drop(reason, count)
        if self._losses.tell is not None:
            self._losses.tell(session.client_id, "", reason, count)
        if self._deliveries.is_on:
            now = self._tick.now
            self._deliveries.dropped_range(session, 0, first, last, count, reason, now)

    def messages(self, session: Session, messages: list[Message], reason: str) -> int:
        """Drop messages that the session would get; return how many these are."""
        count = 0
        for message in messages:
            if self._outgoing.options(session, message) is not None:
                self._outgoing.drop_offline(session, message, reason)
                count += 1
        return count

    def move(self, session: Session, upto: int) -> bytes | None:
        """Move the session's position; return its new record, None if it was there already."""
        if upto <= session.position:
            return None
        session.position = upto
        return self.write(session)

    def leave_out(self, session: Session, plan: Plan, upto: int) -> bytes | None:
        """Note that all behind what a plan keeps is dropped; return the new record, if there is.

        There must be room for a gap.
        """
        if upto <= plan.keep_until:
            return None
        gaps = add(session.gaps, plan.keep_until + 1, upto)
        assert gaps is not None
        session.position = max(session.position, plan.begin)
        session.gaps = behind(gaps, session.position)
        return self.write(session)

    def write(self, session: Session) -> bytes:
        """Write the record of a session that is away; return it."""
        record = self._sessions.write(session)
        # A CONNECT in this tick must load the new record, so it has to settle first.
        self._tick.parted.add(session.client_id)
        return record


class _Job:
    """A session whose backlog is being counted, and then trimmed."""

    __slots__ = (
        "cursor",
        "key",
        "left",
        "limits",
        "plan",
        "session",
        "streams",
        "value",
        "version",
    )

    def __init__(
        self,
        key: bytes,
        value: bytes,
        session: Session,
        streams: list[Stream],
        plan: Plan,
        limits: tuple[int, int],
        version: int,
    ) -> None:
        self.key: bytes = key
        self.value: bytes = value  # its record; another one in the store = it was here
        self.session: Session = session
        self.streams: list[Stream] = streams
        self.plan: Plan = plan
        self.limits: tuple[int, int] = limits
        self.version: int = version  # of the subscriptions of sessions that are away
        self.cursor: Cursor | None = None  # reads what is dropped, once it is counted
        self.left: int = 0  # messages still to be dropped


class Trimming:
    """Drops what offline sessions have over their limits."""

    def __init__(
        self,
        context: ClientContext,
        database: Database,
        delivery: Delivery,
        sessions: Sessions,
        health: StoreHealth,
    ) -> None:
        settings = context.settings
        self._damage: Final = context.damage
        self._settle: Final = context.settle
        self._store: Final = database.store
        self._log: Final = database.log
        self._backlog: Final = delivery.backlog
        self.drops: Final = OfflineDrops(context, delivery, sessions)
        self._sessions: Final = sessions
        self._health: Final = health
        self._trimmer: Final = Trimmer(database.log, settings)
        self._settings: Final = settings
        self._pass_ms: Final = settings.generation_age_s * 1000 // PASSES
        self._after = b""  # the next slice starts at this key
        # What backlogs over the limits depend on, when the pass began: up to where they are looked
        # at, sessions that left with a backlog, is the disk low?
        self._begun_at = (-1, 0, False)
        self._is_under_way = False
        self._job: _Job | None = None
        self._due_ms = 1
        self._ended_ms = 0  # when the last pass ended, or was found to be needless
        self.trimmed = 0  # backlogs so far
        self.given_up = 0  # those so far whose session came back meanwhile

    def next_deadline(self) -> int:
        """Return when `run` has something to do, broker ms."""
        if not self._is_on():
            return NEVER
        if self._health.refuses_new and not self._is_under_way:
            return min(self._due_ms, self._ended_ms + LOW_PASS_MS)
        return self._due_ms

    def run(self, now: int) -> None:
        """Do one step if it is time and the store takes the open batch."""
        if now < self.next_deadline():
            return
        is_low = self._health.refuses_new
        self._due_ms = now if is_low else now + STEP_MS
        if not self._settle():
            self._due_ms = now + STEP_MS
            return
        if not self._is_under_way:
            state = self._until(), self._sessions.left_behind, is_low
            if state == self._begun_at:
                self._ended_ms = now
                self._due_ms = now + LOW_PASS_MS
                return
            self._begun_at = state
            self._is_under_way = True
            self._after = b""
        job = self._job
        if job is not None:
            if self._go_on(job):
                self._job = None
        elif self._look_at_sessions():
            self._is_under_way = False
            self._ended_ms = now
            self._due_ms = now + self._pass_ms

    def _is_on(self) -> bool:
        return self._trimmer.is_limited

    @property
    def _keeps_oldest(self) -> bool:
        return self._settings.on_limit == "drop_new"

    def _until(self) -> int:
        """Return the last offset that a pass looks at.

        Behind what `drop_new` keeps only whole generations are freed. While the disk is low the
        open one may be closed for that.
        """
        if self._keeps_oldest and not self._health.refuses_new:
            return self._log.closed_end
        return self._log.end

    def _look_at_sessions(self) -> bool:
        """Count the backlogs of the next sessions; True if there are no more."""
        count = min(TRIM_SLICE, self._settings.expiry_slice)
        damages: list[DamagedRows] = []
        rows = scan_readable(self._store, SESSIONS, self._after, None, damages, count=count)
        self._damage.note_all("session", damages)
        work = 0  # in pages of a backlog
        for key, value in rows:
            self._after = key + b"\0"
            job = self._begin(key, value)
            if job is None:
                continue
            is_done = self._go_on(job)
            work += job.plan.pages + (len(job.session.subscriptions) >> FILTERS_SHIFT)
            if not is_done:
                self._job = job
            if not is_done or work >= PLAN_PAGES:
                return False
        return len(rows) < count

    def _begin(self, key: bytes, value: bytes) -> _Job | None:
        """Return a job for a session that may be over its limits."""
        client_id = key.decode()
        if client_id in self._sessions.live:
            return None
        try:
            session = self._sessions.decode(client_id, value)
            until = self._until()
            after = max(session.position, self._trimmer.full_after(session))
            owed_max = until - session.position
            if after >= until:
                return None
            if self._settings.max_offline_messages >= owed_max and not self._trimmer.limits_bytes:
                return None
            self._sessions.load_rest(session)
        except DamagedRows as problem:
            self._damage.note("session", problem, client_id)  # CONNECT refuses its client
            return None
        streams = self._backlog.streams(session)
        if not streams:
            return None
        plan = self._trimmer.begin(streams, session, until)
        limits, version = self._trimmer.limits, self._sessions.unsubscribed_away
        return _Job(key, value, session, streams, plan, limits, version)

    def _go_on(self, job: _Job) -> bool:
        """Count on, or drop the next messages; True if done, or if the session was here since."""
        is_void = job.plan.cuts != self._log.cuts and job.cursor is None
        is_void |= job.limits != self._trimmer.limits
        is_void |= job.version != self._sessions.unsubscribed_away
        if is_void or job.session.client_id in self._sessions.live or not self._is_as_counted(job):
            self.given_up += 1
            return True
        if job.cursor is not None:
            return self._drop_next(job, job.cursor)
        if not job.plan.advance():
            return False
        session = job.session
        after = session.position
        if self._keeps_oldest:
            after = job.plan.keep_until
            if not job.plan.is_over or add(session.gaps, after + 1, after + 1) is None:
                return True
            job.left = WITHOUT_END
        else:
            job.left = job.plan.dropped
            excess_min = 0 if self._health.refuses_new else job.plan.kept >> EXCESS_SHIFT
            if job.left <= excess_min:
                return True
        job.cursor = self._log.cursor(job.streams, after, job.plan.until, session.gaps)
        self.trimmed += 1
        return False

    def _is_as_counted(self, job: _Job) -> bool:
        """Is the session's record the one with which the job began?"""
        try:
            return self._store.get(SESSIONS, job.key) == job.value
        except DamagedRows as problem:
            self._damage.note("session", problem, job.session.client_id)
            return False

    def _drop_next(self, job: _Job, cursor: Cursor) -> bool:
        """Drop the next messages of a backlog; True if done.

        If the log was cut since they were counted, only what is gone is told.
        """
        session, drops = job.session, self.drops
        page = min(DROP_PAGE, self._settings.expiry_slice)
        missing, before = cursor.missing, cursor.position
        messages = cursor.next(min(page, job.left), SCAN_MAX)
        upto = cursor.position
        is_cut = job.plan.cuts != self._log.cuts
        if is_cut:
            job.left = 0
            if messages:
                upto = messages[0].offset - 1
                messages = []
        gone = cursor.missing - missing
        drops.gone(session, before + 1, upto, gone)
        passed = job.plan.passed
        lost = len([offset for offset in drops.unreadable(session, cursor) if offset not in passed])
        drops.messages(session, messages, "session_limit")
        job.left -= len(messages) + gone + lost
        is_over = job.left <= 0 or cursor.is_at_end or upto >= job.plan.until
        if self._keeps_oldest:
            if is_over and not is_cut:
                session.gaps_at = job.limits
            job.value = drops.leave_out(session, job.plan, upto) or job.value
        else:
            job.value = drops.move(session, upto) or job.value
        return is_over
