"""Rebuild the broker's state from its history.

A `Fold` is fed with flat rows (`storage.history.packed_rows.expand`) of one node in the order of
(boot, seq). It then holds what must be in the store after the last row: sessions with their
subscriptions and packet ids in flight, wills, retained messages. Sizes in the rows (`subs`,
`inflight` ...) are compared with the rebuilt state; a row that contradicts the rows before it is a
problem. The simulation compares a fold with the broker's disk after every crash; `holdfast history`
uses it to show what a session had. Must use nothing but the rows. docs/history.md defines them.

After a crash the rows of the last boot end where the disk did; the first row of the next boot says
where that was. A fold reports no problem for what it cannot know because the history began late or
has a hole: `Session.is_whole` and `is_complete` say how much it knows.
"""

from collections import deque
from collections.abc import Callable
from typing import Final
from zlib import crc32

Flat = dict[str, object]

EXPIRY_NEVER: Final = 0xFFFFFFFF
ERROR_MIN: Final = 0x80  # reason codes from here on end an exchange
REASON_CRASHED: Final = 1002  # the client was connected when the broker died
REASON_TRIMMED: Final = 1051  # rows were deleted: the next seq is higher
REASON_BEGAN: Final = 1053
REASON_DETAIL: Final = 1054  # an operator changed the level of detail
# Positions and QoS 1 exchanges of a session reach the disk up to 200 ms late. The rest allows for
# the length of a tick: all rows of a tick have its time.
LATE_US: Final = 1_000_000
NEVER_STORED: Final = 1 << 62  # message ids from here on are not offsets
PROBLEMS_MAX: Final = 1000  # further problems of a broken history are only counted


class Held:
    """A subscription of a session, by its last `subscribed` row."""

    __slots__ = ("no_local", "qos", "since", "stream")

    def __init__(self, qos: int, stream: int, since: int, no_local: bool) -> None:
        self.qos = qos  # granted
        self.stream = stream  # 0 = its messages are not stored for the session
        self.since = since  # only messages with a greater offset are owed
        self.no_local = no_local


class InFlight:
    """The message that a packet id of a session is used for."""

    __slots__ = ("at_us", "is_doubtful", "is_released", "msg", "qos", "share")

    def __init__(self, msg: int, qos: int, share: str, at_us: int) -> None:
        self.msg = msg  # 0 = a retained message
        self.qos = qos
        self.share = share  # "" unless it came from a shared subscription
        self.at_us = at_us  # time of the last row about it
        self.is_released = False  # PUBREC came, PUBCOMP did not
        self.is_doubtful = False  # a crash may have come before its begin or end was on disk


class Will:
    """A will that may still be published."""

    __slots__ = ("boot", "delay_s", "due_us", "qos", "topic")

    def __init__(self, topic: str, qos: int, delay_s: int, boot: int) -> None:
        self.topic = topic
        self.qos = qos
        self.delay_s = delay_s
        self.boot = boot  # of its connection
        # 0 = its connection is up. If it cannot be published when due, it is published later.
        self.due_us = 0


class Session:
    """A session, rebuilt from its rows."""

    __slots__ = (
        "client_id",
        "conn",
        "conn_boot",
        "disconnected_us",
        "expiry_s",
        "in_flight",
        "incarnation",
        "is_stored",
        "is_whole",
        "knows_messages",
        "position",
        "seen_in_boot",
        "subscriptions",
        "tenant",
    )

    def __init__(self, client_id: str, tenant: str, incarnation: int) -> None:
        self.client_id = client_id
        self.tenant = tenant
        self.incarnation = incarnation
        self.subscriptions: dict[str, Held] = {}  # by topic filter, `$share/..` in full
        self.in_flight: dict[int, InFlight] = {}  # by packet id
        self.expiry_s = 0
        self.position = 0  # from its last row that has one
        self.conn = 0  # 0 = not connected
        self.conn_boot = 0
        self.disconnected_us = 0  # 0 = connected
        self.is_stored = True  # False: it ends with its connection
        self.is_whole = True  # False: it began before the first row, or rows are missing since
        self.knows_messages = True  # False: rows about messages are missing since it began
        self.seen_in_boot = 0  # the last boot with a row that shows it was in the store

    def subs_check(self) -> int:
        """Return the value that `subs_check` of a row must have for these subscriptions."""
        return sum(
            crc32(f"{topic_filter}\0{held.qos}".encode())
            for topic_filter, held in self.subscriptions.items()
        )

    def settle_doubts(self, *, keep: bool) -> None:
        """Decide all doubtful packet ids: keep them as in flight, or drop them."""
        for packet_id, entry in list(self.in_flight.items()):
            if entry.is_doubtful:
                entry.is_doubtful = False
                if not keep:
                    del self.in_flight[packet_id]

    def forget_unsent(self) -> None:
        """Drop doubtful packet ids that were not re-sent, because a new message is sent now.

        On resume everything in flight is re-sent first, so what was not re-sent is not in flight.
        Released ones stay: only their PUBREL is sent again, which has no row.
        """
        for packet_id, entry in list(self.in_flight.items()):
            if entry.is_doubtful and not entry.is_released:
                del self.in_flight[packet_id]

    def in_flight_range(self) -> tuple[int, int]:
        """Return (least, most) packet ids that can be in flight."""
        doubtful = sum(entry.is_doubtful for entry in self.in_flight.values())
        return len(self.in_flight) - doubtful, len(self.in_flight)


class Fold:
    """The state that a history describes."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}  # by client_id
        # By client_id and incarnation: wills of present connections and delayed wills. A will may
        # outlive its session, if the broker could not publish it when it was due.
        self.wills: dict[tuple[str, int], list[Will]] = {}
        self.retained: dict[str, int] = {}  # topic -> when its message was accepted, us
        self.end = 0  # the greatest log position in any row
        self.boot = 0
        self.last_seq: dict[int, int] = {}  # by boot
        self.is_complete = False  # are all sessions of the broker known?
        self.knows_retained = False
        self.is_clean = False  # was `shutdown` the last row?
        self._knows_messages = False
        self._now_us = 0
        self._incarnation_max = 0  # of all sessions so far; incarnations only grow
        self._stored_before = 0  # sessions that the present boot must find
        self._problems: list[str] = []
        self._problems_more = 0
        # Exchanges that ended recently: after a crash they may be in flight again.
        self._ended: deque[tuple[int, Session, int, InFlight]] = deque()
        self._feeders: Final[dict[str, Callable[[Flat], None]]] = {
            "session_created": self._created,
            "session_resumed": self._resumed,
            "session_taken_over": self._taken_over,
            "session_disconnected": self._disconnected,
            "session_expiry_changed": self._expiry_changed,
            "session_expired": self._expired,
            "session_terminated": self._terminated,
            "session_restored": self._restored,
            "subscribed": self._subscribed,
            "unsubscribed": self._unsubscribed,
            "msg_accepted": self._accepted,
            "msg_delivered": self._delivered,
            "retained_sent": self._delivered,
            "msg_acked": self._acked,
            "msg_completed": self._completed,
            "msg_dropped": self._dropped,
            "msg_expired": self._dropped,
            "msg_moved": self._dropped,
            "will_armed": self._will_armed,
            "will_delayed": self._will_delayed,
            "will_fired": self._will_gone,
            "will_cancelled": self._will_gone,
            "retained_set": self._retained_set,
            "retained_cleared": self._retained_gone,
            "retained_expired": self._retained_gone,
            "recovered": self._recovered,
            "history_gap": self._gap,
        }

    def feed(self, flat: Flat) -> None:
        """Process the next row: every column of `events.COLUMNS`, None where it is null."""
        event = str(flat["ev"])
        boot, seq = _number(flat, "boot"), _number(flat, "seq")
        if event != "boot":
            self._follow(flat, boot, seq)
        now_us = _number(flat, "ts")
        if boot == self.boot and now_us < self._now_us:
            self._say(flat, f"its time is {self._now_us - now_us} us before that of the last one")
        if event == "boot":
            self._booted(flat)
        self.last_seq[boot] = seq
        self._now_us = now_us
        self.is_clean = event == "shutdown"
        if event != "boot":
            feeder = self._feeders.get(event)
            if feeder is not None:
                feeder(flat)
        self.end = max(self.end, _number(flat, "position"))

    def problems(self) -> list[str]:
        """Return the contradictions in the history, a sentence each, in the order of rows."""
        if self._problems_more:
            return [*self._problems, f"and {self._problems_more} more"]
        return list(self._problems)

    # Order of rows, boots and crashes

    def _follow(self, flat: Flat, boot: int, seq: int) -> None:
        """Check that the row follows the last one without a hole."""
        if boot != self.boot:
            if self.boot:
                self._say(flat, f"boot {boot} does not begin with `boot`")
            self._lose_track()
            self.boot = boot
        elif seq != self.last_seq[boot] + 1:
            if flat["ev"] != "history_gap" or flat["reason"] != REASON_TRIMMED:
                self._say(flat, f"seq {self.last_seq[boot]} was the last one")
            self._lose_track()

    def _booted(self, flat: Flat) -> None:
        boot, seq, had = _number(flat, "boot"), _number(flat, "seq"), _number(flat, "count")
        before = self.last_seq.get(self.boot, 0)
        if not self.boot:
            self.is_complete = self.knows_retained = boot == 1 and seq == 1
        elif boot <= self.boot:
            self._say(flat, f"boot {self.boot} was the last one")
        elif had < before and boot == self.boot + 1:
            self._say(flat, f"the disk has boot {self.boot} up to {had}, the rows go to {before}")
        if self.boot and (boot != self.boot + 1 or had != before or seq != 1):
            self._lose_track()
        self.cut_off()
        self.boot = boot
        self._knows_messages = str(flat["detail"]).startswith("full")
        for client_id, session in list(self.sessions.items()):
            if not session.is_stored:
                del self.sessions[client_id]
            elif not self._knows_messages:
                self._forget_messages(session)
        self._stored_before = len(self.sessions)

    def cut_off(self) -> None:
        """Mark as doubtful what may not have reached the disk, because the broker ended here."""
        crash_us = self._now_us
        if not self.is_clean:
            for session in self.sessions.values():
                if session.is_stored:
                    self._doubt(session, crash_us)
            self._bring_back(crash_us)
        self._ended.clear()

    def _doubt(self, session: Session, crash_us: int) -> None:
        """Mark recent QoS 1 deliveries: a crash may have come before they were on disk."""
        for entry in session.in_flight.values():
            if entry.qos == 1 and entry.at_us >= crash_us - LATE_US:
                entry.is_doubtful = True

    def _bring_back(self, crash_us: int) -> None:
        """Put back recently ended exchanges: a crash may have come before the end was on disk."""
        for at_us, session, packet_id, entry in self._ended:
            current = self.sessions.get(session.client_id)
            if at_us >= crash_us - LATE_US and current is session and session.is_stored:
                if packet_id not in session.in_flight:
                    entry.is_doubtful = True
                    session.in_flight[packet_id] = entry

    def _recovered(self, flat: Flat) -> None:
        detail = str(flat["detail"])
        if detail.endswith(" damaged") and not detail.endswith(" 0 damaged"):
            return  # which sessions cannot be read is not told: they are there, but not seen
        for client_id, session in list(self.sessions.items()):
            if session.is_stored and session.seen_in_boot != self.boot:
                self._say(flat, f"session {session.incarnation} of {client_id!r} is gone")
                del self.sessions[client_id]
            elif session.conn and session.conn_boot != self.boot:
                self._say(flat, f"{client_id!r} is still connected, of boot {session.conn_boot}")
        if self.is_complete and _number(flat, "count") != self._stored_before:
            self._say(flat, f"found {flat['count']} sessions, not {self._stored_before}")
        for (client_id, _), wills in self.wills.items():
            for will in wills:
                if not will.due_us and will.boot != self.boot:
                    self._say(flat, f"a will of {client_id!r} does not wait")
        self.is_complete = True

    def _gap(self, flat: Flat) -> None:
        self._knows_messages = str(flat["detail"]).startswith("full")
        if flat["reason"] in (REASON_BEGAN, REASON_DETAIL):
            for session in self.sessions.values():
                self._forget_messages(session)

    def _lose_track(self) -> None:
        """Mark the rebuilt state as uncertain, because rows are missing."""
        self.is_complete = self.knows_retained = False
        for session in self.sessions.values():
            session.is_whole = False
            self._forget_messages(session)

    def _forget_messages(self, session: Session) -> None:
        session.knows_messages = False
        session.in_flight.clear()

    def _say(self, flat: Flat, what: str) -> None:
        if len(self._problems) == PROBLEMS_MAX:
            self._problems_more += 1
            return
        client = f" {flat['client_id']!r}" if flat["client_id"] is not None else ""
        self._problems.append(f"{flat['boot']}/{flat['seq']} {flat['ev']}{client}: {what}")

    # Sessions

    def _new(self, flat: Flat) -> Session:
        client_id = _text(flat, "client_id")
        session = Session(client_id, _text(flat, "tenant"), _number(flat, "session"))
        session.knows_messages = self._knows_messages
        self.sessions[client_id] = session
        self._incarnation_max = max(self._incarnation_max, session.incarnation)
        return session

    def _find(self, flat: Flat) -> Session:
        """Return the session that a row is about; create it if it is unknown."""
        session = self.sessions.get(_text(flat, "client_id"))
        if session is None:
            if self.is_complete:
                self._say(flat, "there is no such session")
            session = self._unknown(flat)
        elif session.incarnation != _number(flat, "session"):
            self._say(flat, f"the session is {session.incarnation}, not {flat['session']}")
            session = self._unknown(flat)
        session.seen_in_boot = self.boot
        return session

    def _unknown(self, flat: Flat) -> Session:
        session = self._new(flat)
        session.is_whole = session.knows_messages = False
        return session

    def _compare(self, flat: Flat, session: Session) -> None:
        """Compare a session's sizes in a row with the rebuilt state."""
        session.position = _number(flat, "position")
        if session.is_whole:
            subs, check = len(session.subscriptions), session.subs_check()
            if flat["subs"] not in (None, subs) or flat["subs_check"] not in (None, check):
                self._say(
                    flat,
                    f"{flat['subs']} subscriptions (check {flat['subs_check']}),"
                    f" not {subs} (check {check})",
                )
        count = _number(flat, "inflight")
        if not session.knows_messages:
            # Nothing is in flight now, and rows about messages are complete from here on.
            session.knows_messages = self._knows_messages and count == 0
            return
        least, most = session.in_flight_range()
        if not least <= count <= most:
            expected = f"{least}" if least == most else f"{least} to {most}"
            self._say(flat, f"{count} packet ids in flight, not {expected}")
        if count == least:
            session.settle_doubts(keep=False)
        elif count == most:
            session.settle_doubts(keep=True)

    def _created(self, flat: Flat) -> None:
        old = self.sessions.get(_text(flat, "client_id"))
        if old is not None and (old.is_whole or old.seen_in_boot == self.boot):
            self._say(flat, f"session {old.incarnation} has not ended")
        if _number(flat, "session") <= self._incarnation_max:
            self._say(flat, f"a session was {self._incarnation_max} already")
        session = self._new(flat)
        session.seen_in_boot = self.boot
        session.position = _number(flat, "position")
        self._connect(flat, session)
        session.is_stored = session.expiry_s > 0

    def _connect(self, flat: Flat, session: Session) -> None:
        session.conn, session.conn_boot = _number(flat, "conn"), self.boot
        session.expiry_s = _number(flat, "expiry_s")
        session.tenant = _text(flat, "tenant")
        session.disconnected_us = 0

    def _resumed(self, flat: Flat) -> None:
        session = self._find(flat)
        if session.conn:
            self._say(flat, f"connection {session.conn} has not ended")
        self._compare(flat, session)
        self._connect(flat, session)

    def _taken_over(self, flat: Flat) -> None:
        session = self._find(flat)
        if session.conn != _number(flat, "conn"):
            self._say(flat, f"its connection is {session.conn}")

    def _disconnected(self, flat: Flat) -> None:
        session = self._find(flat)
        is_crash = flat["reason"] == REASON_CRASHED
        if is_crash and session.is_whole and session.conn_boot == self.boot:
            self._say(flat, "it is no connection of an earlier boot")
        elif not is_crash and session.conn != _number(flat, "conn"):
            self._say(flat, f"its connection is {session.conn}")
        self._compare(flat, session)
        session.expiry_s = _number(flat, "expiry_s")
        session.conn = 0
        session.disconnected_us = _number(flat, "at") or _number(flat, "ts")

    def _expiry_changed(self, flat: Flat) -> None:
        self._find(flat).expiry_s = _number(flat, "expiry_s")

    def _expired(self, flat: Flat) -> None:
        session = self._find(flat)
        self._compare_at_end(flat, session)
        if session.conn:
            self._say(flat, f"connection {session.conn} has not ended")
        due_us = session.disconnected_us + session.expiry_s * 1_000_000
        if session.expiry_s == EXPIRY_NEVER:
            self._say(flat, "it never expires")
        elif session.is_whole and _number(flat, "at") != due_us:
            self._say(flat, f"it was due at {due_us}, not {flat['at']}")
        del self.sessions[session.client_id]

    def _compare_at_end(self, flat: Flat, session: Session) -> None:
        """Compare the sizes; the position in the row is that of the log, not the session."""
        position = session.position
        self._compare(flat, session)
        session.position = position

    def _terminated(self, flat: Flat) -> None:
        session = self._find(flat)
        if session.conn:
            self._say(flat, f"connection {session.conn} has not ended")
        del self.sessions[session.client_id]

    def _restored(self, flat: Flat) -> None:
        session = self._find(flat)
        if session.conn:
            self._say(flat, f"connection {session.conn} has not ended")
        self._compare(flat, session)
        if session.is_whole and session.expiry_s != _number(flat, "expiry_s"):
            self._say(flat, f"its interval was {session.expiry_s} s")
        session.expiry_s = _number(flat, "expiry_s")

    # Subscriptions

    def _subscribed(self, flat: Flat) -> None:
        held = Held(
            _number(flat, "qos"),
            _number(flat, "stream"),
            _number(flat, "position"),
            bool(flat["no_local"]),
        )
        self._find(flat).subscriptions[_text(flat, "tfilter")] = held

    def _unsubscribed(self, flat: Flat) -> None:
        session = self._find(flat)
        held = session.subscriptions.pop(_text(flat, "tfilter"), None)
        if held is None and session.is_whole:
            self._say(flat, f"it does not hold {flat['tfilter']!r}")

    # Messages

    def _accepted(self, flat: Flat) -> None:
        message = _number(flat, "msg")
        if message < NEVER_STORED:
            self.end = max(self.end, message)

    def _delivered(self, flat: Flat) -> None:
        packet_id = _number(flat, "pid")
        if not packet_id:
            return
        session = self._find(flat)
        if not session.conn:
            self._say(flat, "it is not connected")
        message, qos = _number(flat, "msg"), _number(flat, "qos")
        current = session.in_flight.get(packet_id)
        if not flat["dup"]:
            session.forget_unsent()
            current = session.in_flight.get(packet_id)
            if current is not None:
                self._say(flat, f"packet id {packet_id} is message {current.msg}")
        elif current is not None and (current.msg, current.qos) != (message, qos):
            if not current.is_doubtful:  # else an earlier message has the id on disk
                self._say(flat, f"packet id {packet_id} is message {current.msg}")
            current = None
        elif current is None and session.knows_messages:
            self._say(flat, f"packet id {packet_id} is not in flight")
        if current is not None and flat["dup"]:
            current.is_doubtful = False
            current.at_us = self._now_us
            return
        entry = InFlight(message, qos, _text(flat, "share"), self._now_us)
        if session.knows_messages:
            session.in_flight[packet_id] = entry

    def _acked(self, flat: Flat) -> None:
        session, packet_id = self._find(flat), _number(flat, "pid")
        entry = session.in_flight.get(packet_id)
        if entry is None or entry.qos != _number(flat, "qos"):
            if session.knows_messages:
                self._say(flat, f"packet id {packet_id} is not in flight at QoS {flat['qos']}")
            return
        entry.is_doubtful = False
        if entry.qos == 2 and _number(flat, "reason") < ERROR_MIN:
            entry.is_released = True
            return
        self._end_exchange(session, packet_id, entry)

    def _end_exchange(self, session: Session, packet_id: int, entry: InFlight) -> None:
        del session.in_flight[packet_id]
        self._ended.append((self._now_us, session, packet_id, entry))
        while self._ended[0][0] < self._now_us - LATE_US:
            self._ended.popleft()

    def _completed(self, flat: Flat) -> None:
        session, packet_id = self._find(flat), _number(flat, "pid")
        entry = session.in_flight.get(packet_id)
        if entry is not None and entry.is_released:
            self._end_exchange(session, packet_id, entry)
        elif session.knows_messages:
            self._say(flat, f"packet id {packet_id} does not wait for PUBCOMP")

    def _dropped(self, flat: Flat) -> None:
        """Remove a message that is owed no more from what is in flight."""
        session = self.sessions.get(_text(flat, "client_id"))
        if session is None or session.incarnation != _number(flat, "session"):
            return  # the message of a publisher, or of a session that has just ended
        if flat["pid"]:
            entry = session.in_flight.get(_number(flat, "pid"))
            if entry is not None and entry.qos == 2:
                # Its packet id waits for PUBCOMP; in a history of an earlier broker it is free.
                entry.msg, entry.share = 0, ""
                entry.is_released = entry.is_doubtful = True
            elif entry is not None:
                del session.in_flight[_number(flat, "pid")]
            return
        first = _number(flat, "msg")
        last = _number(flat, "msg_last") or first
        share = _text(flat, "share")
        for packet_id, entry in list(session.in_flight.items()):
            if entry.msg and first <= entry.msg <= last and entry.share == share:
                del session.in_flight[packet_id]

    # Wills

    def _will_armed(self, flat: Flat) -> None:
        will = Will(
            _text(flat, "topic"), _number(flat, "qos"), _number(flat, "expiry_s"), self.boot
        )
        self._wills_of(flat).append(will)

    def _wills_of(self, flat: Flat) -> list[Will]:
        return self.wills.setdefault((_text(flat, "client_id"), _number(flat, "session")), [])

    def _will_delayed(self, flat: Flat) -> None:
        for will in self._wills_of(flat):
            if not will.due_us and will.topic == flat["topic"]:
                will.due_us = _number(flat, "at")
                return
        if self.is_complete:
            self._say(flat, "no will was armed")

    def _will_gone(self, flat: Flat) -> None:
        """Remove a will that was published or cancelled; `at` is when it was due."""
        wills = self._wills_of(flat)
        at_us = _number(flat, "at")
        found = [
            will
            for will in wills
            if will.topic == flat["topic"] and (will.due_us > 0) is (at_us > 0)
        ]
        # A will that could not be published when due was published later than its due time.
        exact = [will for will in found if will.due_us == at_us]
        if found:
            wills.remove((exact or found)[0])
        elif self.is_complete:
            self._say(flat, "no will was armed")
        if not wills:
            del self.wills[_text(flat, "client_id"), _number(flat, "session")]

    # Retained messages

    def _retained_set(self, flat: Flat) -> None:
        self.retained[_text(flat, "topic")] = _number(flat, "at")

    def _retained_gone(self, flat: Flat) -> None:
        if self.retained.pop(_text(flat, "topic"), None) is None and self.knows_retained:
            self._say(flat, f"nothing is retained on {flat['topic']!r}")


def _number(flat: Flat, column: str) -> int:
    """Return a number of a row; null counts as 0."""
    value = flat[column]
    return value if isinstance(value, int) else 0


def _text(flat: Flat, column: str) -> str:
    """Return a string of a row; null counts as empty."""
    value = flat[column]
    return value if isinstance(value, str) else ""
