"""What the broker must and may remember of one client id: its session's end, and its wills.

All times are broker time in ms, as windows [lo, hi]. The end of a connection is known exactly,
unless the broker died with it; then it is the last durable heartbeat. Only what lies outside every
window is a failure. Read next: `tests.simulation.oracle`.
"""

from typing import TYPE_CHECKING, Final

from session.engine import Engine
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.banned import Ban

NEVER: Final = 1 << 60
NO: Final = 0
MAYBE: Final = 1
YES: Final = 2


class Closing:
    """When a connection ended at the broker, and whether its DISCONNECT had been read by then."""

    __slots__ = ("disconnected", "hi", "lo", "serial")

    def __init__(self, lo: int, hi: int, disconnected: int, serial: int) -> None:
        self.lo = lo
        self.hi = hi
        self.disconnected = disconnected  # NO, MAYBE, YES
        self.serial = serial  # of the batch that carries it; a crash before that undoes it


class Ended:
    """An operator has ended the session: when, and with which batch that is durable."""

    __slots__ = ("_engine", "_serial", "at")

    def __init__(self, at: int, engine: Engine, serial: int) -> None:
        self.at = at
        self._engine = engine
        self._serial = serial

    def is_certain(self) -> bool:
        """Is it known to be durable? A crash before that may undo it."""
        return self._engine.durable >= self._serial

    def precedes(self, other: "Ended") -> bool:
        """Is there nothing left for a later one to end?"""
        return self._engine is other._engine or self.is_certain()


class Attempt:
    """One CONNECT and what came of it."""

    __slots__ = (
        "acked_ms",
        "bans",
        "clean_start",
        "closing",
        "disconnect_expiry_ms",
        "disconnect_keeps_will",
        "ended",
        "expiry_ms",
        "has_ended",
        "may_be_banned",
        "sent_ms",
        "session_present",
        "will",
    )

    def __init__(self, clean_start: bool, expiry_ms: int, sent_ms: int) -> None:
        self.clean_start = clean_start
        self.expiry_ms = expiry_ms
        self.sent_ms = sent_ms
        self.acked_ms = 0  # CONNACK with success received; 0 = not
        self.session_present = False
        self.closing: Closing | None = None  # None = open at the broker
        self.disconnect_expiry_ms: int | None = None  # a DISCONNECT carried this expiry
        self.disconnect_keeps_will = False  # it was a DISCONNECT 0x04
        self.will: Will | None = None
        self.ended: Ended | None = None
        self.has_ended = False  # it was that session: it had its CONNACK by then
        self.bans: tuple[Ban, ...] = ()  # that are against it for certain since it began
        self.may_be_banned = False

    def expiry(self) -> tuple[int, int]:
        """Return the least and the greatest expiry interval that may be in force at the end.

        An end by an operator is as if the session had expired then.
        """
        least, most = self._expiry()
        if self.ended is None or self.closing is None:
            return least, most
        least = min(least, max(0, self.ended.at - self.closing.hi))
        if self.has_ended and self.ended.is_certain():
            most = min(most, max(0, self.ended.at - self.closing.lo))
        return least, most

    def _expiry(self) -> tuple[int, int]:
        new = self.disconnect_expiry_ms
        state = self.closing.disconnected if self.closing is not None else MAYBE
        if new is None or state == NO:
            return self.expiry_ms, self.expiry_ms
        if state == YES:
            return new, new
        return min(new, self.expiry_ms), max(new, self.expiry_ms)

    def end(self) -> tuple[int, int]:
        """Return the window in which a session on this connection ends."""
        least, most = self._expiry()
        if self.closing is None:
            lo, hi = (NEVER if least else 0), (NEVER if most else 0)
        else:
            lo = min(self.closing.lo + least, NEVER) if least else 0
            hi = min(self.closing.hi + most, NEVER) if most else 0
        if self.ended is not None:
            lo = min(lo, self.ended.at)
            if self.has_ended and self.ended.is_certain():
                hi = min(hi, self.ended.at)
        return lo, hi


class Will:
    """One will and what must become of it."""

    __slots__ = ("connect", "delay_ms", "fired", "first_fired_ms", "index", "qos", "starts")

    def __init__(self, index: int, qos: int, delay_ms: int, starts: int, connect: int) -> None:
        self.connect = connect  # number of the CONNECT it came with
        self.starts = starts  # how often the broker had been started when it was armed
        self.index = index
        self.qos = qos
        self.delay_ms = delay_ms
        self.fired = 0
        self.first_fired_ms = 0


class Presence:
    """All CONNECTs of one client id in order."""

    __slots__ = ("attempts", "client", "may_end_late", "relevant", "will_may_part")

    def __init__(self, client: str) -> None:
        self.client = client
        self.attempts: list[Attempt] = []
        self.may_end_late = False  # a row that says when is damaged, or was
        # A crash may find the session's row unreadable. The broker then makes the will a timer of
        # its own, because it must fire though nobody can resume the session [MQTT-3.1.2-8]. If an
        # operator brings the row back and the session is resumed in time, it fires all the same.
        self.will_may_part = False
        # Those that may decide about the session now: the last acknowledged one and all since.
        self.relevant: list[Attempt] = []

    def connecting(self, attempt: Attempt) -> None:
        """CONNECT is sent."""
        self.attempts.append(attempt)
        self.relevant.append(attempt)

    def connected(self, attempt: Attempt, session_present: bool, now: int) -> None:
        """CONNACK came; judge its session_present."""
        others = [other for other in self.relevant if other is not attempt]
        ends = [other.end() for other in others]
        certain = any(other.acked_ms for other in others)
        must = certain and not attempt.clean_start and now < min(lo for lo, _ in ends)
        must_not = attempt.clean_start or not ends
        if not self.may_end_late:
            must_not = must_not or attempt.sent_ms > max(hi for _, hi in ends)
        if any(other.clean_start and not other.acked_ms for other in others):
            must = False
        if session_present and must_not:
            raise Violation(
                "session_present_tells_the_truth",
                f"{self.client} got session present 1 at {now}, but "
                + ("it asked for a clean start" if attempt.clean_start else f"ends are {ends}"),
            )
        if not session_present and must:
            early = any(lo < NEVER for lo, _ in ends)
            raise Violation(
                "no_session_expires_early" if early else "session_present_tells_the_truth",
                f"{self.client} got session present 0 at {now}, but its session may end only at"
                f" {min(lo for lo, _ in ends)}",
            )
        attempt.acked_ms = now
        attempt.session_present = session_present
        self.relevant = [attempt]

    def ended(self, ended: Ended) -> None:
        """An operator has ended the session that the client has now."""
        for attempt in self.relevant:
            first = attempt.ended
            if first is None or not (attempt.has_ended and first.precedes(ended)):
                attempt.ended = ended
                attempt.has_ended = bool(attempt.acked_ms)

    def refused(self, attempt: Attempt) -> None:
        """CONNACK came with an error: as if there had been no CONNECT."""
        self.relevant.remove(attempt)
        self.attempts.remove(attempt)

    def may_be_another(self) -> bool:
        """May the session now there be another one than the client knows?

        So it is when a session may have expired and a CONNECT that was never answered made a new
        one. Nobody can tell from session present 1: a careful client then asks for a clean start.
        """
        end = NEVER
        for attempt in self.relevant:
            if not attempt.acked_ms:
                latest = attempt.closing.hi if attempt.closing is not None else NEVER
                if latest >= end and end < NEVER:
                    return True
            end = min(end, attempt.end()[0])
        return False

    def latest_end(self) -> int:
        """Return when the session before the present CONNECT ended at the latest."""
        return max((attempt.end()[1] for attempt in self.relevant[:-1]), default=0)

    def time_went_back(self, now: int) -> None:
        """Broker time is `now`, and was later: what has ended may be said to have ended now."""
        for attempt in self.attempts:
            if attempt.closing is not None:
                attempt.closing.lo = min(attempt.closing.lo, now)

    # Wills

    def judge_wills(self, lost: set[int], *, times: bool, lossy: bool) -> None:
        """Judge every will, at the end of the world: all of them had the time to fire.

        `times`: has broker time never gone back, so that moments can be compared? `lossy`: may
        limits have dropped a will? `lost` are those that were in a damaged row.
        """
        for position, attempt in enumerate(self.attempts):
            will = attempt.will
            if will is None or will.qos == 0:
                continue
            if will.fired > 1 and will.qos == 2:
                raise Violation(
                    "will_fires_once_or_never",
                    f"will {will.index} of {self.client} fired {will.fired} times",
                )
            verdict, why = self.fate(position)
            if verdict == NO and "resumed" in why:
                sometimes("will_cancelled_by_resume")
            may_miss = lossy or will.index in lost
            if verdict == YES and not will.fired and not may_miss:
                raise Violation(
                    "will_fires_once_or_never",
                    f"will {will.index} of {self.client} never fired: {why}",
                )
            may_fire = self.will_may_part and "resumed" in why
            if verdict == NO and will.fired and not may_fire:
                raise Violation(
                    "will_fires_once_or_never",
                    f"will {will.index} of {self.client} fired at {will.first_fired_ms}: {why}",
                )
            if times:
                self._judge_time(position, will)

    def fate(self, position: int) -> tuple[int, str]:
        """Say whether the will of this attempt must (YES), must not (NO) or may (MAYBE) fire."""
        attempt = self.attempts[position]
        will, closing = attempt.will, attempt.closing
        assert will is not None
        if not attempt.acked_ms:
            return MAYBE, "its CONNECT was not acknowledged"
        if closing is None:
            return NO, "its connection is open"
        if closing.disconnected and not attempt.disconnect_keeps_will:
            if closing.disconnected == YES:
                return NO, "it was cancelled by DISCONNECT"
            return MAYBE, "a DISCONNECT may have been read"
        least, most = attempt.expiry()
        if will.delay_ms == 0 or most == 0:
            return YES, f"its connection ended at {closing.lo} to {closing.hi}, no delay"
        due_lo = closing.lo + min(will.delay_ms, least)
        due_hi = closing.hi + min(will.delay_ms, most)
        return self._fate_of_delayed(self.attempts[position + 1 :], due_lo, due_hi)

    def _fate_of_delayed(self, later: list[Attempt], due_lo: int, due_hi: int) -> tuple[int, str]:
        if not later:
            return YES, f"it was due at {due_lo} to {due_hi} and nobody resumed the session"
        passed = min(other.sent_ms for other in later) > due_hi
        if passed:
            return YES, f"it was due at {due_lo} to {due_hi}, before the next CONNECT"
        unsure = False
        for other in later:
            if not other.acked_ms:
                unsure = unsure or not other.clean_start
                continue
            if other.clean_start:
                return (MAYBE if unsure else YES), "its session was ended by a clean start"
            if not other.session_present:
                return (MAYBE if unsure else YES), "its session had ended"
            if other.acked_ms < due_lo:
                return NO, f"its session was resumed at {other.acked_ms}, due was {due_lo}"
            break
        return MAYBE, "it was due about when its session was resumed"

    def _judge_time(self, position: int, will: Will) -> None:
        attempt = self.attempts[position]
        closing = attempt.closing
        if not will.fired or closing is None:
            return
        if any(other.clean_start for other in self.attempts[position + 1 :]):
            return
        due = closing.lo + min(will.delay_ms, attempt.expiry()[0])
        if will.first_fired_ms < due:
            raise Violation(
                "will_fires_once_or_never",
                f"will {will.index} of {self.client} fired at {will.first_fired_ms},"
                f" before it was due at {due}",
            )
