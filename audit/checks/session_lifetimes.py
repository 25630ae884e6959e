"""S1 to S5, W1 and part of G1: the lifetimes of one client's sessions, row by row, without Spark.

Call `Client.feed` with the rows of one client identifier in the order of the log, then
`Client.finish`. After a hole between two rows of a session, everything that may have changed in it
is unknown, until a later row gives it again.

Rows carried over from an earlier batch rebuild the state and are not judged again. `Life.rows`
names the rows to carry: they must rebuild the same state. docs/audit.md defines the invariants.
"""

from collections.abc import Callable
from typing import Final
from zlib import crc32

from audit.checks.fold_findings import Findings
from audit.checks.wills import CRASHED, Wills
from audit.input.fold_context import SECOND, Known, Node
from audit.input.session_columns import BALANCE, SessionRow

NEVER: Final = 0xFFFFFFFF  # the session does not expire
TAKEN_OVER: Final = 0x8E
ENDED_WITH_CONNECTION: Final = (1010, 1012)  # only if its expiry interval is 0
CLEAN_START: Final = 1011
# Positions and the ends of exchanges reach the disk up to 200 ms late; this is generous.
SLACK_US: Final = SECOND
# An expired session that still exists after this time: garbage collection does not keep up.
BACKLOG_US: Final = 3600 * SECOND


class Life:
    """One session (one incarnation), rebuilt from its rows so far."""

    def __init__(self, row: SessionRow, *, whole: bool) -> None:
        self.session = row.session
        self.tenant = row.tenant
        self.first = row
        self.last = row
        # Number and check of its subscriptions beside those whose rows are known; None if unknown,
        # (0, 0) if its history is known from the beginning.
        self.others: tuple[int, int] | None = (0, 0) if whole else None
        # Difference of the broker's numbers from that; the same difference is reported only once.
        self.odd: tuple[int, int] | None = None
        self.was_doubted = False  # `others` or `odd` changed
        self.had_hole = False  # because of a hole
        self.is_connected: bool | None = None  # None = unknown
        self.conn: int | None = None
        self.expiry_s: int | None = None
        self.left_us: int | None = None
        self.left_row: SessionRow | None = None
        self.connect_row: SessionRow | None = None
        self.expiry_row: SessionRow | None = None
        self.census: SessionRow | None = None  # the last row with its sizes
        self.taken_over: SessionRow | None = None
        self.ended: SessionRow | None = None
        self.is_gone = False  # it ended with the broker, which is allowed
        self.is_lost = False  # it was missing after a boot
        self.seen_boot = row.boot
        self.subscriptions: dict[str, tuple[int, int]] = {}  # filter -> check, place of its row
        self.wills = Wills()
        # Change of the number in flight since the census.
        self.least = self.most = self.fresh_starts = self.fresh_ends = 0
        self.fresh_us = 0
        self.is_moving = False  # something was sent or acknowledged since then
        self.again = 0  # messages sent again since then
        self.offline_ends = 0  # messages that may have ended while it was offline
        self.connects = self.takeovers = 0
        self.created_us: int | None = None

    @property
    def subs_check(self) -> int:
        """Return the expected `subs_check` of a row."""
        return sum(check for check, _ in self.subscriptions.values())

    @property
    def due_us(self) -> int | None:
        """Return when it expires; None if it never does, or that is unknown."""
        if self.is_connected is not False or self.left_us is None:
            return None
        if self.expiry_s is None or self.expiry_s == NEVER:
            return None
        return self.left_us + self.expiry_s * SECOND

    def rows(self) -> set[int]:
        """Return the places of the rows from which the next batch can rebuild it."""
        kept = [self.last, self.connect_row, self.expiry_row, self.census, self.left_row]
        kept += [self.taken_over, self.ended]
        if self.first.ev == "session_created":
            kept.append(self.first)
        places = {row.gseq for row in kept if row is not None and row.ev != BALANCE}
        places.update(place for _, place in self.subscriptions.values())
        places.update(self.wills.rows())
        return places


class Client:
    """All sessions of one client identifier, one after the other."""

    def __init__(self, known: Known, node: Node, found: Findings) -> None:
        self.lives: dict[int, Life] = {}
        self.over: list[Life] = []  # for the table of sessions
        # The row of a session ended by a clean start; the next session must begin with it.
        self._cleaned: SessionRow | None = None
        self._known = known
        self._node = node
        self._real = found
        self._scrap = Findings(0)
        self._found = found
        self._feeders: Final[dict[str, Callable[[SessionRow, Life], None]]] = {
            "session_resumed": self._resumed,
            "session_taken_over": self._taken_over,
            "session_disconnected": self._disconnected,
            "session_expiry_changed": self._set_expiry,
            "session_expired": self._expired,
            "session_terminated": self._terminated,
            "session_restored": self._restored,
            "subscribed": self._subscribed,
            "sub_restored": self._subscribed,
            "unsubscribed": self._unsubscribed,
            "will_armed": lambda row, life: life.wills.arm(row),
            "will_delayed": lambda row, life: life.wills.delay(row),
            "will_fired": self._will_fired,
            "will_cancelled": self._will_cancelled,
            BALANCE: self._balance,
        }

    def feed(self, row: SessionRow) -> None:
        """Process the next row of the client."""
        self._found = self._scrap if row.carried else self._real
        if row.ev == "session_created":
            self._created(row)
            return
        life = self.lives.get(row.session)
        if life is None:
            life = self._unheard(row)
        else:
            self._pass(life, row)
        life.wills.settle(row.us, self._found, ended=self._ends(row))
        self._feeders[row.ev](row, life)
        if row.ev != BALANCE:
            if not row.ev.startswith("will_"):
                life.is_gone = life.is_lost = False
            life.last = row
            life.seen_boot = max(life.seen_boot, row.boot)
        if life.ended and life.wills.is_over():
            self._bury(life)

    def finish(self) -> None:
        """Judge what is overdue at the present end of the history."""
        self._found = self._real
        end_us = self._node.last_us
        for life in list(self.lives.values()):
            if not life.ended:
                self._miss(life, self._node.boots[-1].boot, None)
                self._leave_overdue(life, end_us)
                self._judge_backlog(life, end_us)
            self._judge_wills(life, end_us)
            if (life.ended or life.is_gone) and life.wills.is_over():
                self._bury(life)

    def _judge_wills(self, life: Life, end_us: int) -> None:
        wills, tolerance_us = life.wills, self._known.tolerance_us
        if self._hole(life.last.gseq, self._node.boots[-1].last_gseq + 1):
            wills.leave_open(end_us, self._found, self._node, tolerance_us)
        else:
            wills.settle(end_us, self._found, ended=False)
            wills.judge(end_us, self._found, self._node, tolerance_us)
        wills.leave_undecided(end_us, self._found, self._node, tolerance_us)

    # Order of rows, holes and boots

    @staticmethod
    def _ends(row: SessionRow) -> bool:
        return row.ev in ("session_expired", "session_terminated")

    def _pass(self, life: Life, row: SessionRow) -> None:
        """Account for holes and boots between a session's last row and this one."""
        if self._hole(life.last.gseq, row.gseq):
            self._doubt(life)
        if row.boot > life.last.boot:
            self._miss(life, row.boot, row if row.session == life.session else None)
            self._crashed(life)

    def _hole(self, start: int, end: int) -> bool:
        return self._node.holes.touch(start + 1, end - 1)

    def _doubt(self, life: Life) -> None:
        life.others = None
        life.was_doubted = life.had_hole = True
        life.is_connected = None
        life.taken_over = None
        life.left_us = None
        life.wills.lose_track()

    def _crashed(self, life: Life) -> None:
        """Disconnect the session, because the boot of its last row is over."""
        boot = self._node.boot(life.last.boot)
        if life.is_connected:
            life.is_connected = False
            life.left_us = None  # a row with reason 1002 has the time of the crash
            life.wills.leave(None, CRASHED, boot.last_us, life.expiry_s or 0)
        life.taken_over = None

    def _miss(self, life: Life, until: int, row: SessionRow | None) -> None:
        """S5: check that the session existed after every boot whose census is complete.

        `row` is the next row of the session, if there is one. A session without an expiry interval
        may end with the broker.
        """
        if life.is_gone or life.ended or life.seen_boot >= until:
            return
        if life.expiry_s == 0:
            self._crashed(life)
            life.is_gone = row is None or row.ev.startswith("will_")
            return
        for boot in self._node.boots:
            if not life.seen_boot < boot.boot <= until or boot.recovered is None:
                continue
            if row is not None and row.gseq < boot.recovered and row.boot == boot.boot:
                continue
            if life.is_lost:
                pass
            elif boot.recovered <= self._node.before_gseq:
                life.is_lost = not self._hole(life.last.gseq, boot.recovered)
            elif (
                boot.has_damage
                or life.expiry_s is None
                or self._hole(life.last.gseq, boot.recovered)
            ):
                self._found.unknown("S5")
            else:
                life.is_lost = True
                what = "it was there before the boot, and not after it"
                self._found.violated("S5", what, **life.last.place(), after_boot=boot.boot)
            life.seen_boot = boot.boot

    def _unheard(self, row: SessionRow) -> Life:
        """Add a session that is not known: it has ended, never began, or began unseen."""
        life = Life(row, whole=False)
        life.wills.is_whole = False
        self.lives[row.session] = life
        invariant = {
            "session_resumed": "S1",
            "session_restored": "S5",
            "session_taken_over": "S4",
            "session_disconnected": "S4",
            "session_expired": "S3",
            "session_terminated": "S3",
            "subscribed": "G1",
            "unsubscribed": "G1",
            "will_armed": "W1",
            "will_fired": "W1",  # Wills does not report it again
        }.get(row.ev)
        if invariant is None or row.carried:
            return life
        if self._node.holes.touch(0, row.gseq - 1):
            self._found.unknown(invariant)
        elif not self._node.is_cut:
            what = f"{row.ev} of a session that is not there"
            self._found.violated(invariant, what, **row.place())
        return life

    # The beginning and the end of connections

    def _created(self, row: SessionRow) -> None:
        for life in list(self.lives.values()):
            if not life.ended:
                self._pass(life, row)
                life.wills.settle(row.us, self._found, ended=False)
                self._succeed(life, row)
        cleaned, self._cleaned = self._cleaned, None
        if row.sp:
            self._found.violated("S1", "Session Present, but the session is new", **row.place())
        elif cleaned is not None and not row.clean_start and not self._hole(cleaned.gseq, row.gseq):
            what = "the session before it was ended by a clean start that was not requested"
            self._found.violated("S1", what, **row.place(), ended=cleaned.session)
        else:
            self._found.ok("S1")
        life = Life(row, whole=True)
        life.created_us = row.us
        self.lives[row.session] = life
        self._found.ok("S4")
        self._connect(row, life)
        self._take_census(row, life)

    def _succeed(self, life: Life, row: SessionRow) -> None:
        """Judge a session that is created while, as far as known, an earlier one exists."""
        if life.is_gone or life.is_lost:
            pass
        elif self._hole(life.last.gseq, row.gseq):
            self._found.unknown("S1")
        elif life.first.ev != "session_created" and life.expiry_s is None:
            self._found.unknown("S1")
        elif row.clean_start:
            what = "a clean start left the session before it without an end"
            self._found.violated("G1", what, **row.place(), left=life.session)
        else:
            what = "no Session Present, but there was a session"
            self._found.violated("S1", what, **row.place(), existing=life.session)
        life.is_gone = True
        if life.wills.is_over():
            self._bury(life)

    def _resumed(self, row: SessionRow, life: Life) -> None:
        if row.sp is False or row.clean_start:
            what = "a session was resumed, but its client was told of none"
            self._found.violated("S1", what, **row.place())
        elif life.first is not row:
            self._found.ok("S1")
        if life.is_connected and life.last.boot == row.boot:
            what = "resumed while another connection was up"
            self._found.violated("S4", what, **row.place(), conn=life.conn)
        elif life.is_connected is None and life.first is not row:
            self._found.unknown("S4")
        else:
            self._found.ok("S4")
        due_us = life.due_us
        if due_us is not None:
            late = row.us > due_us + SLACK_US
            self._found.judge("S3", late, "resumed past its time", **row.place(), due_us=due_us)
        self._judge_backlog(life, row.us)
        self._same_position(row, life)
        if life.is_connected is not None:
            life.wills.resume(row)
        self._compare(row, life)
        life.wills.judge(row.us, self._found, self._node, self._known.tolerance_us)
        life.wills.forget_settled()
        self._connect(row, life)

    def _same_position(self, row: SessionRow, life: Life) -> None:
        left = life.left_row
        if left is None or life.is_connected is not False:
            return
        told = life.census
        if told is not None and told.ev == "session_restored" and told.gseq > left.gseq:
            left = told  # what a crash took is one violation, already reported
        if left.position is None or row.position is None:
            return
        invariant = "S2"
        if left.boot != row.boot:
            boot = self._node.boot(left.boot)
            if not boot.clean and boot.last_us - left.us <= SLACK_US:
                return  # the position need not have been on disk yet
            invariant = "S5"
        back = row.position < left.position
        what = "its position went back while it was offline"
        self._found.judge(invariant, back, what, **row.place(), left_at=left.position)

    def _connect(self, row: SessionRow, life: Life) -> None:
        life.is_connected = True
        life.conn = row.conn
        life.connect_row = row
        life.left_us = None
        life.left_row = None
        life.taken_over = None
        life.connects += not row.carried
        self._set_expiry(row, life)

    def _set_expiry(self, row: SessionRow, life: Life) -> None:
        if row.expiry_s is not None:
            life.expiry_s = row.expiry_s
            life.expiry_row = row

    def _taken_over(self, row: SessionRow, life: Life) -> None:
        wrong = row.reason != TAKEN_OVER
        self._found.judge("S4", wrong, "taken over without reason 0x8E", **row.place())
        life.taken_over = row
        life.takeovers += not row.carried

    def _disconnected(self, row: SessionRow, life: Life) -> None:
        self._judge_disconnect(row, life)
        self._compare(row, life)
        crashed = row.reason == CRASHED
        left_us = row.at_us if row.at_us is not None else row.us
        if not crashed or life.is_connected is not False or life.left_row is None:
            life.left_us = left_us
        self._set_expiry(row, life)
        if crashed:
            life.wills.leave_again(left_us, life.expiry_s or 0)
        life.wills.leave(row, row.reason or 0, left_us, life.expiry_s or 0)
        life.is_connected = False
        life.left_row = row
        life.taken_over = None

    def _judge_disconnect(self, row: SessionRow, life: Life) -> None:
        if life.is_connected is None or row.reason == CRASHED:
            return
        what = ""
        if not life.is_connected:
            what = "a connection ended that had ended before"
        elif life.taken_over is not None and row.reason != TAKEN_OVER:
            what = "a connection that was taken over was not told 0x8E"
        elif life.taken_over is None and row.reason == TAKEN_OVER:
            what = "a connection was told 0x8E but not taken over"
        elif row.conn and life.conn and row.conn != life.conn:
            what = "another connection ended than the one that was up"
        self._found.judge("S4", bool(what), what, **row.place(), reason=row.reason)

    # The end of sessions

    def _expired(self, row: SessionRow, life: Life) -> None:
        if life.first is not row:
            self._judge_expiry(row, life)
            self._judge_backlog(life, row.us)
            self._compare(row, life)
        self._end(row, life)

    def _judge_expiry(self, row: SessionRow, life: Life) -> None:
        due_us = life.due_us
        what = ""
        if life.is_connected and life.last.boot == row.boot:
            what = "expired while its client was connected"
        elif life.is_connected is not None and life.expiry_s == NEVER:
            what = "expired though it never does"
        elif due_us is None:
            self._found.unknown("S3")
            return
        elif row.us < due_us - SLACK_US:
            what = "expired before its time"
        else:
            deadline = self._node.deadline(due_us, self._known.tolerance_us)
            if deadline is not None and row.us > deadline:
                what = "expired late"
        self._found.judge("S3", bool(what), what, **row.place(), due_us=due_us, at_us=row.us)

    def _leave_overdue(self, life: Life, end_us: int) -> None:
        """S3: count as unknown a session that is due, but whose end the history does not have yet.

        In the end it is collected, perhaps late, or garbage collection does not keep up (G1).
        """
        due_us = life.due_us
        if due_us is None or life.is_gone or life.is_lost or end_us <= due_us + SLACK_US:
            return
        deadline = self._node.deadline(due_us, self._known.tolerance_us + BACKLOG_US)
        if deadline is None or end_us <= deadline:
            self._found.unknown("S3")

    def _judge_backlog(self, life: Life, us: int) -> None:
        """G1: garbage collection must keep up with expired sessions."""
        due_us = life.due_us
        if due_us is None or life.is_gone:
            return
        deadline = self._node.deadline(due_us, self._known.tolerance_us + BACKLOG_US)
        if deadline is not None and us > deadline > self._node.before_us:
            what = "past its time for long, and not collected"
            self._found.violated("G1", what, **life.last.place(), due_us=due_us)

    def _end(self, row: SessionRow, life: Life) -> None:
        life.wills.end(row.us)
        if row.actor == "gc":
            live = life.is_connected and life.last.boot == row.boot
            if live:
                what = "garbage collection took a session whose client was connected"
                self._found.violated("G1", what, **row.place())
            else:
                self._found.ok("G1")
        life.ended = row
        life.is_connected = False

    def _terminated(self, row: SessionRow, life: Life) -> None:
        told, expiry_s = life.expiry_row, life.expiry_s
        if row.reason in ENDED_WITH_CONNECTION and told is not None and expiry_s is not None:
            if self._hole(told.gseq, row.gseq):
                self._found.unknown("S3")  # its expiry interval may have changed there
            else:
                what = "it ended with its connection, but it had an expiry interval"
                self._found.judge("S3", expiry_s > 0, what, **row.place(), expiry_s=expiry_s)
        self._cleaned = row if row.reason == CLEAN_START else None
        self._end(row, life)

    def _restored(self, row: SessionRow, life: Life) -> None:
        if life.first is row:
            self._take_census(row, life)
            self._set_expiry(row, life)
            life.is_connected = False
            return
        self._same_position(row, life)
        self._compare(row, life, "S5")
        if life.expiry_s is not None and life.is_connected is not None and row.expiry_s is not None:
            changed = row.expiry_s != life.expiry_s
            what = "its expiry interval is another after the boot"
            self._found.judge("S5", changed, what, **row.place(), before_boot=life.expiry_s)
        self._set_expiry(row, life)
        life.is_connected = False

    # Subscriptions and messages in flight

    def _subscribed(self, row: SessionRow, life: Life) -> None:
        if row.tfilter is not None:
            self._touch(row.tfilter, life)
            check = crc32(f"{row.tfilter}\0{row.qos or 0}".encode())
            life.subscriptions[row.tfilter] = check, row.gseq

    def _unsubscribed(self, row: SessionRow, life: Life) -> None:
        if row.tfilter is not None:
            self._touch(row.tfilter, life)
            life.subscriptions.pop(row.tfilter, None)

    def _touch(self, tfilter: str, life: Life) -> None:
        """Note the change of a subscription that may be among those whose rows are unknown."""
        if tfilter not in life.subscriptions and life.others is not None and life.others[0]:
            life.others = None
            life.was_doubted = True

    def _compare(self, row: SessionRow, life: Life, invariant: str = "S2") -> None:
        """Compare the broker's numbers about a session with its rows.

        The first row of a session in a boot shows what survived: that is S5, all others are S2.
        """
        if row.boot > life.last.boot or row.ev == "session_restored":
            invariant = "S5"
        self._compare_subscriptions(row, life, invariant)
        self._compare_inflight(row, life, invariant)
        self._take_census(row, life)

    def _compare_subscriptions(self, row: SessionRow, life: Life, invariant: str) -> None:
        if row.subs is None or row.carried:
            return
        own = len(life.subscriptions), life.subs_check
        if life.others is None:
            if (row.subs, row.subs_check) == own:
                self._found.ok(invariant)
            elif life.had_hole:
                self._found.unknown(invariant)
            self._learn_others(row, life, own)
            return
        expected = own[0] + life.others[0], own[1] + life.others[1]
        check = expected[1] if row.subs_check is None else row.subs_check
        odd = row.subs - expected[0], check - expected[1]
        if odd == (0, 0):
            self._found.ok(invariant)
        elif odd != life.odd:
            life.odd = odd
            life.was_doubted = True
            self._found.violated(
                invariant,
                "its subscriptions differ from those it made",
                **row.place(),
                subs=row.subs,
                expected=expected[0],
                filters=sorted(life.subscriptions)[:10],
            )

    @staticmethod
    def _learn_others(row: SessionRow, life: Life, own: tuple[int, int]) -> None:
        if row.subs is not None and row.subs_check is not None:
            life.others = row.subs - own[0], row.subs_check - own[1]
            life.was_doubted = True
            life.had_hole = False

    def _compare_inflight(self, row: SessionRow, life: Life, invariant: str) -> None:
        census = life.census
        if row.inflight is None or census is None or census.inflight is None:
            return
        if self._node.silences.touch(census.gseq + 1, row.gseq - 1):
            return
        least = census.inflight + life.least - life.offline_ends
        most = census.inflight + life.most
        if census is life.connect_row and life.is_moving:
            # Messages in flight then may have been sent again as new (a violation of D2).
            least -= census.inflight
        # Messages sent again though no longer in flight (D1) were acknowledged a second time.
        most += max(0, life.again - census.inflight)
        if row.boot > census.boot and not self._node.boot(census.boot).clean:
            died_us = self._node.boot(census.boot).last_us
            if life.fresh_us == 0 or died_us - life.fresh_us <= SLACK_US:
                least, most = least - life.fresh_starts, most + life.fresh_ends
        wrong = not least <= row.inflight <= most
        what = "the number in flight is not what was sent and not acknowledged"
        self._found.judge(
            invariant,
            wrong,
            what,
            **row.place(),
            inflight=row.inflight,
            expected=[max(least, 0), most],
        )

    def _take_census(self, row: SessionRow, life: Life) -> None:
        if row.inflight is not None:
            life.census = row
            life.least = life.most = life.fresh_starts = life.fresh_ends = 0
            life.fresh_us = 0
            life.is_moving = False
            life.again = 0

    def _balance(self, row: SessionRow, life: Life) -> None:
        if row.carried:
            known = row.subs is not None and row.subs_check is not None
            life.others = (row.subs or 0, row.subs_check or 0) if known else None
            if row.inflight is not None and row.position is not None:
                life.odd = row.inflight, row.position
            life.was_doubted, life.had_hole = True, row.qos == 1
        if not row.conn:
            life.offline_ends -= row.least or 0
            return
        life.is_moving = True
        life.again += row.again or 0
        life.least += row.least or 0
        life.most += row.most or 0
        if row.carried:
            life.fresh_us = row.us
            life.fresh_starts, life.fresh_ends = row.fresh_starts or 0, row.fresh_ends or 0
        elif row.fresh_starts or row.fresh_ends:
            life.fresh_us = 0
            life.fresh_starts += row.fresh_starts or 0
            life.fresh_ends += row.fresh_ends or 0

    # Wills

    def _will_fired(self, row: SessionRow, life: Life) -> None:
        life.wills.fire(row, self._found, self._node, self._known.tolerance_us)

    def _will_cancelled(self, row: SessionRow, life: Life) -> None:
        life.wills.cancel(row, self._found, self._known.tolerance_us)

    def _bury(self, life: Life) -> None:
        self.over.append(self.lives.pop(life.session))
