"""W1: the wills of one session, from `will_armed` to publication or cancellation. Without Spark.

A will is open from `will_armed` until it is published or cancelled. After its connection ended
without a DISCONNECT with 0x00, it is due when its delay or the session ends, whichever is first.
"""

from collections.abc import Iterator
from typing import Final

from audit.checks.fold_findings import Findings
from audit.input.fold_context import SECOND, Node
from audit.input.session_columns import SessionRow

CRASHED: Final = 1002
NORMAL: Final = 0  # the reason code of a DISCONNECT that discards the will
CANCELLED_BY_DISCONNECT: Final = 1040
CANCELLED_BY_RESUMING: Final = 1041
# Rows of one tick have the same time; clocks in records are in milliseconds.
SLACK_US: Final = SECOND


class Will:
    """One will: the row that armed it, and the end of its connection."""

    __slots__ = ("armed", "due_us", "is_judged", "left", "rows", "was_resumed")

    def __init__(self, armed: SessionRow) -> None:
        self.armed = armed
        self.left: int | None = None  # why its connection ended, None = it is up
        self.due_us: int | None = None
        self.was_resumed = False  # within the delay: it must not be published any more
        self.is_judged = False  # already counted as never published
        self.rows = [armed.gseq]


class Wills:
    """The wills of one session."""

    def __init__(self) -> None:
        self.open: list[Will] = []
        self.is_whole = True  # False: a will may have been armed or ended unseen
        self.had_hole = False  # because of a hole, not because the history begins late
        self._early: tuple[Will, SessionRow] | None = None
        # A will cancelled for a resume, which must follow at once.
        self._held: tuple[Will, SessionRow] | None = None

    def rows(self) -> Iterator[int]:
        """Yield the places of the rows that the next batch needs while a will is open."""
        for will in self.open:
            yield from will.rows
        for waits in (self._early, self._held):
            if waits is not None:
                yield from waits[0].rows
                yield waits[1].gseq

    def is_over(self) -> bool:
        """Return whether no will is open."""
        return not self.open and self._early is None and self._held is None

    def lose_track(self) -> None:
        """Forget the open wills, because they may have ended in a hole of the history."""
        self.is_whole = False
        self.had_hole = True
        self.open.clear()
        self._early = self._held = None

    def arm(self, row: SessionRow) -> None:
        """Add the will of a new connection."""
        self.open.append(Will(row))

    def leave(self, row: SessionRow | None, reason: int, left_us: int, expiry_s: int) -> None:
        """End the connection; `row` is the row of its end, None if the broker crashed."""
        for will in self.open:
            if will.left is None:
                will.left = reason
                will.due_us = left_us + min(will.armed.expiry_s or 0, expiry_s) * SECOND
                if row is not None:
                    will.rows.append(row.gseq)

    def leave_again(self, left_us: int, expiry_s: int) -> None:
        """Correct the time of a connection's end by a crash, which is known only now."""
        for will in self.open:
            if will.left == CRASHED:
                will.due_us = left_us + min(will.armed.expiry_s or 0, expiry_s) * SECOND

    def delay(self, row: SessionRow) -> None:
        """Note that a will is delayed."""
        for will in self.open:
            if will.left is not None and row.gseq not in will.rows:
                will.rows.append(row.gseq)
                if will.due_us is None:
                    will.due_us = row.at_us
                return

    def resume(self, row: SessionRow) -> None:
        """Note that the session was resumed."""
        self._held = None
        for will in self.open:
            if will.due_us is not None and row.us < will.due_us:
                will.was_resumed = True
                will.rows.append(row.gseq)

    def fire(self, row: SessionRow, found: Findings, node: Node, tolerance_us: int) -> None:
        """Judge a will that was published."""
        will = self._take(row)
        if will is None:
            if self.is_whole:
                found.violated("W1", "published, but no will was armed any more", **row.place())
            elif self.had_hole:
                found.unknown("W1")
            return
        if will.is_judged:
            return
        due_us = will.due_us
        if will.left is None or due_us is None:
            found.violated("W1", "published though its client was connected", **row.place())
        elif will.left == NORMAL:
            found.violated("W1", "published after DISCONNECT with 0x00", **row.place())
        elif will.was_resumed:
            what = "published though the session was resumed within the delay"
            found.violated("W1", what, **row.place(), due_us=due_us)
        elif row.us < due_us - SLACK_US:
            self._early = will, row  # too early, unless the session ends now
        else:
            deadline = node.deadline(due_us, tolerance_us)
            late = deadline is not None and row.us > deadline
            found.judge("W1", late, "published late", **row.place(), due_us=due_us, at_us=row.us)

    def cancel(self, row: SessionRow, found: Findings, tolerance_us: int) -> None:
        """Judge a will that was cancelled."""
        will = self._take(row)
        if will is None or will.is_judged:
            if self.had_hole:
                found.unknown("W1")
            return
        if row.reason == CANCELLED_BY_DISCONNECT and will.left != NORMAL:
            what = "held back, though the connection did not end with DISCONNECT 0x00"
            found.violated("W1", what, **row.place(), reason=will.left)
            return
        if row.reason == CANCELLED_BY_RESUMING:
            self._held = will, row
        late = (
            row.reason == CANCELLED_BY_RESUMING
            and will.due_us is not None
            and row.us > will.due_us + tolerance_us
        )
        found.judge("W1", late, "held back, though it was due", **row.place(), due_us=will.due_us)

    def end(self, us: int) -> None:
        """Note that the session ended: delayed wills are due now."""
        for will in self.open:
            if will.due_us is not None:
                will.due_us = min(will.due_us, us)

    def settle(self, us: int, found: Findings, *, ended: bool) -> None:
        """Judge wills published early or held back, now that the time is `us`."""
        if self._held is not None and us > self._held[1].us + SLACK_US:
            will, row = self._held
            what = "held back for a resume that did not come"
            found.violated("W1", what, **row.place(), due_us=will.due_us)
            self._held = None
        if self._early is None:
            return
        will, row = self._early
        if ended and us <= row.us + SLACK_US:
            found.ok("W1")
        elif us > row.us + SLACK_US:
            what = "published before its delay was over"
            found.violated("W1", what, **row.place(), due_us=will.due_us, at_us=row.us)
        else:
            return
        self._early = None

    def judge(self, us: int, found: Findings, node: Node, tolerance_us: int) -> None:
        """Find wills that should have been published by `us`."""
        for will, deadline in self._overdue(us, node, tolerance_us):
            will.is_judged = True
            if deadline > node.before_us:  # or an earlier batch has counted it
                place = will.armed.place()
                found.violated("W1", "never published", **place, due_us=will.due_us)

    def leave_open(self, us: int, found: Findings, node: Node, tolerance_us: int) -> None:
        """Count as unknown the wills that time would decide by `us`: a hole follows the last row.

        Wills stay open, because a late segment may fill the hole.
        """
        for waits in (self._held, self._early):
            if waits is not None and us > waits[1].us + SLACK_US > node.before_us:
                found.unknown("W1")
        for _, deadline in self._overdue(us, node, tolerance_us):
            if deadline > node.before_us:  # or an earlier batch has counted it
                found.unknown("W1")

    def leave_undecided(self, us: int, found: Findings, node: Node, tolerance_us: int) -> None:
        """Count as unknown what is due and must still be judged, because the history ends at `us`.

        That is a will whose broker has not had the tolerance yet, as far as known, and one that was
        published early or held back less than `SLACK_US` ago.
        """
        for waits in (self._held, self._early):
            if waits is not None and us <= waits[1].us + SLACK_US:
                found.unknown("W1")
        for _, due_us in self._waiting():
            deadline = node.deadline(due_us, tolerance_us)
            if us > due_us + SLACK_US and (deadline is None or us <= deadline):
                found.unknown("W1")

    def _overdue(self, us: int, node: Node, tolerance_us: int) -> Iterator[tuple[Will, int]]:
        """Yield the wills that should have been published by `us`, each with its deadline."""
        for will, due_us in self._waiting():
            deadline = node.deadline(due_us, tolerance_us)
            if deadline is not None and us > deadline:
                yield will, deadline

    def _waiting(self) -> Iterator[tuple[Will, int]]:
        """Yield the wills that must be published, each with the time when it is due."""
        for will in self.open:
            if not (will.is_judged or will.was_resumed or will.left in (None, NORMAL)):
                assert will.due_us is not None
                yield will, will.due_us

    def forget_settled(self) -> None:
        """Drop wills that cannot cause a violation any more after the session was resumed."""
        self.open = [will for will in self.open if will.left != NORMAL and not will.was_resumed]

    def _take(self, row: SessionRow) -> Will | None:
        """Remove and return the will of a row: the first delayed one, with its topic if given."""
        waiting = [will for will in self.open if will.left is not None] or self.open
        for will in waiting:
            if row.topic is None or will.armed.topic in (None, row.topic):
                self.open.remove(will)
                return will
        return None
