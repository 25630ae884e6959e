"""W1: the wills of one session, from being armed to being published or not. Plain, no Spark.

A will is open from `will_armed` until it is published or cancelled. After its connection ended, and
not by a DISCONNECT with 0x00, it is due when its delay or the session is over, whichever is first.
"""

from collections.abc import Iterator
from typing import Final

from audit.checks.fold_findings import Findings
from audit.input.fold_context import SECOND, Node
from audit.input.session_columns import SessionRow

CRASHED: Final = 1002
NORMAL: Final = 0  # the reason of a DISCONNECT that takes the will with it
CANCELLED_BY_DISCONNECT: Final = 1040
CANCELLED_BY_RESUMING: Final = 1041
# Rows of one tick have one time; clocks of records are in milliseconds.
SLACK_US: Final = SECOND


class Will:
    """One will: what armed it, and what became of its connection."""

    __slots__ = ("armed", "due_us", "is_judged", "left", "rows", "was_resumed")

    def __init__(self, armed: SessionRow) -> None:
        self.armed = armed
        self.left: int | None = None  # the reason its connection ended, None = it is up
        self.due_us: int | None = None
        self.was_resumed = False  # within the delay: it may not be published any more
        self.is_judged = False  # counted as never published
        self.rows = [armed.gseq]


class Wills:
    """The wills of one session."""

    def __init__(self) -> None:
        self.open: list[Will] = []
        self.is_whole = True  # False: some may have been armed, or gone, unseen
        self.had_hole = False  # that is because of a hole, and not of where the history begins
        self._early: tuple[Will, SessionRow] | None = None
        # Held back for a resume that has to follow at once.
        self._held: tuple[Will, SessionRow] | None = None

    def rows(self) -> Iterator[int]:
        """Yield the places of rows that have to be seen again as long as this is open."""
        for will in self.open:
            yield from will.rows
        for waits in (self._early, self._held):
            if waits is not None:
                yield from waits[0].rows
                yield waits[1].gseq

    def is_over(self) -> bool:
        """Tell whether nothing is open."""
        return not self.open and self._early is None and self._held is None

    def lose_track(self) -> None:
        """There is a hole in the history: what is open may have ended in it."""
        self.is_whole = False
        self.had_hole = True
        self.open.clear()
        self._early = self._held = None

    def arm(self, row: SessionRow) -> None:
        """A connection came with a will."""
        self.open.append(Will(row))

    def leave(self, row: SessionRow | None, reason: int, left_us: int, expiry_s: int) -> None:
        """The connection ended; `row` says so, unless the broker died with it."""
        for will in self.open:
            if will.left is None:
                will.left = reason
                will.due_us = left_us + min(will.armed.expiry_s or 0, expiry_s) * SECOND
                if row is not None:
                    will.rows.append(row.gseq)

    def leave_again(self, left_us: int, expiry_s: int) -> None:
        """The broker died with the connection, and only now it is known when."""
        for will in self.open:
            if will.left == CRASHED:
                will.due_us = left_us + min(will.armed.expiry_s or 0, expiry_s) * SECOND

    def delay(self, row: SessionRow) -> None:
        """The will waits."""
        for will in self.open:
            if will.left is not None and row.gseq not in will.rows:
                will.rows.append(row.gseq)
                if will.due_us is None:
                    will.due_us = row.at_us
                return

    def resume(self, row: SessionRow) -> None:
        """The session has a connection again."""
        self._held = None
        for will in self.open:
            if will.due_us is not None and row.us < will.due_us:
                will.was_resumed = True
                will.rows.append(row.gseq)

    def fire(self, row: SessionRow, found: Findings, node: Node, tolerance_us: int) -> None:
        """The will was published."""
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
            self._early = will, row  # unless the session ends now
        else:
            deadline = node.deadline(due_us, tolerance_us)
            late = deadline is not None and row.us > deadline
            found.judge("W1", late, "published late", **row.place(), due_us=due_us, at_us=row.us)

    def cancel(self, row: SessionRow, found: Findings, tolerance_us: int) -> None:
        """The will will not be published."""
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
        """The session ended: what waits is due now."""
        for will in self.open:
            if will.due_us is not None:
                will.due_us = min(will.due_us, us)

    def settle(self, us: int, ended: bool, found: Findings) -> None:
        """Decide about wills published early, or held back: time has come to `us`."""
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
        """Count what time has decided by `us`, if it was not in a hole after the last row.

        Nothing is settled: a late segment may fill the hole.
        """
        for waits in (self._held, self._early):
            if waits is not None and us > waits[1].us + SLACK_US > node.before_us:
                found.unknown("W1")
        for _, deadline in self._overdue(us, node, tolerance_us):
            if deadline > node.before_us:  # or an earlier batch has counted it
                found.unknown("W1")

    def _overdue(self, us: int, node: Node, tolerance_us: int) -> Iterator[tuple[Will, int]]:
        """Yield the wills that should have been published by `us`, each with its deadline."""
        for will in self.open:
            if will.is_judged or will.was_resumed or will.left in (None, NORMAL):
                continue
            assert will.due_us is not None
            deadline = node.deadline(will.due_us, tolerance_us)
            if deadline is not None and us > deadline:
                yield will, deadline

    def forget_settled(self) -> None:
        """Drop what can bring no violation any more, once its session is connected anew."""
        self.open = [will for will in self.open if will.left != NORMAL and not will.was_resumed]

    def _take(self, row: SessionRow) -> Will | None:
        """Take the will that a row is about: the first that waits, of that topic if it says one."""
        waiting = [will for will in self.open if will.left is not None] or self.open
        for will in waiting:
            if row.topic is None or will.armed.topic in (None, row.topic):
                self.open.remove(will)
                return will
        return None
