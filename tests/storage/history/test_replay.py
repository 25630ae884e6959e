"""Does a fold rebuild the state from what happened, and notice what cannot have happened?"""

from zlib import crc32

import pytest

from storage.history.events import COLUMNS, UNSTORED
from storage.history.replay import EXPIRY_NEVER, PROBLEMS_MAX, Fold

NOW_US = 1_763_711_111_111_000
CHECK_T1 = crc32(b"t\x001")


class Teller:
    """Feeds a fold, with a number for every event."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.boot = 0
        self.seq = 0
        self.now = NOW_US

    def tell(self, ev: str, client_id: str | None = None, **columns: object) -> None:
        """Add an event; of the client's session 7 unless another one is named."""
        self.seq += 1
        flat: dict[str, object] = {name: None for name, _ in COLUMNS}
        flat |= {"v": 1, "node": "n", "boot": self.boot, "seq": self.seq, "ts": self.now, "ev": ev}
        if client_id is not None:
            flat |= {"client_id": client_id, "tenant": "", "session": 7, "conn": 1}
        self.fold.feed(flat | columns)

    def begin(self, detail: str = "full", **columns: object) -> None:
        """Begin the next boot; it found all that the one before told."""
        count, self.seq = self.seq, 0
        self.boot += 1
        self.tell("boot", **({"detail": detail, "count": count, "position": 0} | columns))

    def create(self, client_id: str = "c", **columns: object) -> None:
        """Begin a session that never expires."""
        sizes = {"subs": 0, "inflight": 0, "position": 0, "subs_check": 0}
        self.tell("session_created", client_id, **({"expiry_s": EXPIRY_NEVER} | sizes | columns))

    def subscribe(self, client_id: str = "c", **columns: object) -> None:
        """Subscribe to `t` at QoS 1, stored as stream 5."""
        options = {"tfilter": "t", "qos": 1, "stream": 5, "position": 3, "no_local": False}
        self.tell("subscribed", client_id, **(options | columns))

    def deliver(self, msg: int, pid: int, qos: int = 1, **columns: object) -> None:
        """Send a message to `c`."""
        fields = {"msg": msg, "pid": pid, "qos": qos, "dup": False}
        self.tell("msg_delivered", "c", **(fields | columns))

    def sized(self, ev: str, who: str = "c", **columns: object) -> None:
        """Tell something about a session with one subscription and nothing in flight."""
        sizes = {"subs": 1, "inflight": 0, "position": 9, "subs_check": CHECK_T1}
        self.tell(ev, who, **({"expiry_s": EXPIRY_NEVER} | sizes | columns))

    def problem(self) -> str:
        """Return the only problem."""
        (problem,) = self.fold.problems()
        return problem


@pytest.fixture
def teller() -> Teller:
    """Return a teller of a broker's first boot."""
    teller = Teller()
    teller.begin()
    return teller


@pytest.fixture
def session(teller: Teller) -> Teller:
    """Return a teller that has begun session `c`, subscribed to `t`."""
    teller.create()
    teller.subscribe()
    return teller


# What is rebuilt


def test_a_session_is_what_its_events_made_it(session: Teller) -> None:
    session.subscribe(tfilter="$share/g/u", qos=2, stream=6, no_local=True)
    session.tell("unsubscribed", "c", tfilter="t", position=4)
    (folded,) = session.fold.sessions.values()
    held = folded.subscriptions["$share/g/u"]
    assert list(folded.subscriptions) == ["$share/g/u"]
    assert (held.qos, held.stream, held.since, held.no_local) == (2, 6, 3, True)
    assert (folded.client_id, folded.incarnation, folded.conn) == ("c", 7, 1)
    assert (folded.expiry_s, folded.is_stored, folded.disconnected_us) == (EXPIRY_NEVER, True, 0)
    assert not session.fold.problems()


def test_a_session_goes_and_comes_back_with_what_it_had(session: Teller) -> None:
    session.tell("session_expiry_changed", "c", expiry_s=60)
    session.sized("session_disconnected", expiry_s=60, reason=1001)
    folded = session.fold.sessions["c"]
    assert (folded.conn, folded.disconnected_us, folded.expiry_s) == (0, NOW_US, 60)
    assert folded.position == 9
    session.sized("session_resumed", conn=4, tenant="ann", expiry_s=90)
    assert (folded.conn, folded.disconnected_us, folded.expiry_s) == (4, 0, 90)
    assert folded.tenant == "ann"
    assert not session.fold.problems()


def test_a_session_ends_once(session: Teller) -> None:
    session.sized("session_disconnected", expiry_s=60)
    session.sized("session_expired", expiry_s=60, conn=0, at=NOW_US + 60_000_000)
    assert not session.fold.sessions
    session.create(session=8)
    session.sized("session_disconnected", session=8, subs=0, subs_check=0)
    session.tell("session_terminated", "c", session=8, conn=0, reason=1011)
    assert not session.fold.sessions
    assert not session.fold.problems()


def test_packet_ids_stand_for_messages_until_their_exchange_ends(session: Teller) -> None:
    session.deliver(10, 1)
    session.deliver(11, 2, qos=2)
    session.deliver(12, 3, qos=2, share="g")
    session.tell("retained_sent", "c", topic="r", pid=4, qos=1, dup=False)
    session.deliver(14, 0, qos=0)
    folded = session.fold.sessions["c"]
    assert {pid: entry.msg for pid, entry in folded.in_flight.items()} == {
        1: 10,
        2: 11,
        3: 12,
        4: 0,
    }
    session.tell("msg_acked", "c", msg=10, pid=1, qos=1, reason=0)
    session.tell("msg_acked", "c", msg=11, pid=2, qos=2, reason=0)
    assert folded.in_flight[2].is_released
    session.tell("msg_completed", "c", msg=11, pid=2, qos=2)
    session.tell("msg_acked", "c", msg=12, pid=3, qos=2, reason=0x97)
    session.tell("msg_acked", "c", pid=4, qos=1, reason=0)
    assert not folded.in_flight
    assert not session.fold.problems()


@pytest.mark.parametrize(
    ("ev", "columns", "left"),
    [
        ("msg_expired", {"msg": 10}, {2, 3, 4}),
        ("msg_dropped", {"msg": 10, "msg_last": 11, "count": 2}, {3, 4}),
        ("msg_moved", {"msg": 10, "share": "g"}, {1, 2, 4}),
        ("msg_dropped", {"pid": 4}, {1, 2, 3}),
    ],
)
def test_what_is_given_up_is_in_flight_no_more(
    session: Teller, ev: str, columns: dict[str, object], left: set[int]
) -> None:
    session.deliver(10, 1)
    session.deliver(11, 2)
    session.deliver(10, 3, share="g")
    session.tell("retained_sent", "c", topic="r", pid=4, qos=1, dup=False)
    session.tell(ev, "c", **columns)
    assert set(session.fold.sessions["c"].in_flight) == left
    session.tell(ev, "gone", **columns)
    session.tell("msg_dropped", None, reason=1020)
    assert not session.fold.problems()


def test_wills_wait_from_connect_to_their_end(session: Teller) -> None:
    for topic in ("w", "x", "y"):
        session.tell("will_armed", "c", topic=topic, qos=1, expiry_s=5)
    session.tell("will_fired", "c", topic="x", qos=1, msg=9)
    session.tell("will_delayed", "c", topic="w", at=NOW_US + 5, conn=0)
    wills = session.fold.wills["c", 7]
    assert [(will.topic, will.qos, will.delay_s, will.due_us) for will in wills] == [
        ("w", 1, 5, NOW_US + 5),
        ("y", 1, 5, 0),
    ]
    session.tell("will_cancelled", "c", topic="y", reason=1040, conn=0)
    session.tell("will_fired", "c", topic="w", at=NOW_US + 9, conn=0)  # refused at first
    assert not session.fold.wills
    assert not session.fold.problems()


def test_of_several_wills_the_one_that_was_due_is_gone(session: Teller) -> None:
    for due in (NOW_US + 5, NOW_US + 6, 0):
        session.tell("will_armed", "c", topic="w", qos=1, expiry_s=5)
        if due:
            session.tell("will_delayed", "c", topic="w", at=due, conn=0)
    session.tell("will_fired", "c", topic="w", at=NOW_US + 6, conn=0)
    session.tell("will_fired", "c", topic="w", conn=0)
    assert [will.due_us for will in session.fold.wills["c", 7]] == [NOW_US + 5]


def test_retained_messages_are_those_set_and_not_cleared(teller: Teller) -> None:
    for topic in ("a", "b", "c"):
        teller.tell("retained_set", None, topic=topic, at=NOW_US + len(topic))
    teller.tell("retained_cleared", None, topic="a")
    teller.tell("retained_expired", None, topic="b")
    teller.tell("retained_set", None, topic="c", at=NOW_US + 7)
    assert teller.fold.retained == {"c": NOW_US + 7}
    assert not teller.fold.problems()


def test_the_end_of_the_log_is_the_greatest_offset_named(teller: Teller) -> None:
    teller.tell("msg_accepted", "p", msg=41)
    teller.tell("msg_accepted", "p", msg=UNSTORED + 5)
    teller.tell("recovered", None, count=0, position=40)
    assert teller.fold.end == 41
    assert teller.fold.last_seq == {1: 4}


# Over a crash


def test_a_crash_ends_sessions_in_memory_and_disconnects_the_others(session: Teller) -> None:
    session.create("clean", session=8, expiry_s=0)
    session.now += 1_000_000
    session.begin()
    assert list(session.fold.sessions) == ["c"]
    session.sized("session_disconnected", reason=1002, conn=0, at=NOW_US + 5, subs=None)
    folded = session.fold.sessions["c"]
    assert (folded.conn, folded.disconnected_us) == (0, NOW_US + 5)
    session.sized("session_restored", conn=0)
    session.tell("recovered", None, count=1)
    assert not session.fold.problems()


def test_what_is_late_by_design_may_be_as_before_after_a_crash(session: Teller) -> None:
    session.deliver(10, 1)
    session.deliver(11, 2, qos=2)
    session.deliver(12, 3)
    session.now += 2_000_000
    session.tell("msg_acked", "c", msg=12, pid=3, qos=1, reason=0)
    session.deliver(13, 4)
    session.begin()
    folded = session.fold.sessions["c"]
    assert {pid for pid, entry in folded.in_flight.items() if entry.is_doubtful} == {3, 4}
    assert folded.in_flight_range() == (2, 4)
    session.sized("session_disconnected", reason=1002, conn=0, at=session.now, inflight=3)
    session.sized("session_resumed", inflight=3)
    session.deliver(10, 1, dup=True)
    session.deliver(11, 2, qos=2, dup=True)
    session.deliver(12, 3, dup=True)
    session.deliver(13, 5)  # its first delivery was not in the record: it is sent anew
    assert {pid: entry.msg for pid, entry in folded.in_flight.items()} == {
        1: 10,
        2: 11,
        3: 12,
        5: 13,
    }
    assert not session.fold.problems()


@pytest.mark.parametrize("count", [2, 4])
def test_a_count_settles_what_was_in_doubt(session: Teller, count: int) -> None:
    session.deliver(10, 1, qos=2)
    session.deliver(11, 2, qos=2)
    session.deliver(12, 3)
    session.deliver(13, 4)
    session.begin()
    session.sized("session_disconnected", reason=1002, conn=0, at=session.now, inflight=count)
    assert session.fold.sessions["c"].in_flight_range() == (count, count)


def test_a_clean_shutdown_leaves_nothing_in_doubt(session: Teller) -> None:
    session.deliver(12, 3)
    session.sized("session_disconnected", inflight=1)
    session.tell("shutdown", None)
    assert session.fold.is_clean
    session.begin()
    assert session.fold.sessions["c"].in_flight_range() == (1, 1)
    assert not session.fold.is_clean


# What cannot have happened


@pytest.mark.parametrize(
    ("ev", "columns", "words"),
    [
        ("session_created", {"session": 8, "subs": 0}, "session 7 has not ended"),
        ("session_resumed", {}, "connection 1 has not ended"),
        ("session_resumed", {"session": 8}, "the session is 7, not 8"),
        ("session_taken_over", {"conn": 9}, "its connection is 1"),
        ("session_disconnected", {"conn": 9}, "its connection is 1"),
        ("session_disconnected", {"conn": 0, "reason": 1002}, "no connection of an earlier boot"),
        ("session_disconnected", {"subs": 2}, "2 subscriptions"),
        ("session_disconnected", {"subs_check": 1}, "1 subscriptions (check 1)"),
        ("session_disconnected", {"inflight": 3}, "3 packet ids in flight, not 0"),
        ("session_terminated", {}, "connection 1 has not ended"),
        ("unsubscribed", {"tfilter": "u"}, "does not hold 'u'"),
        ("msg_delivered", {"pid": 5, "msg": 1, "dup": True, "qos": 1}, "5 is not in flight"),
        ("msg_acked", {"pid": 5, "qos": 1}, "packet id 5 is not in flight at QoS 1"),
        ("msg_completed", {"pid": 5, "qos": 2}, "packet id 5 does not wait for PUBCOMP"),
        ("will_fired", {"topic": "w"}, "no will was armed"),
        ("will_delayed", {"topic": "w"}, "no will was armed"),
        ("retained_cleared", {"topic": "r"}, "nothing is retained on 'r'"),
    ],
)
def test_a_contradiction_is_said(
    session: Teller, ev: str, columns: dict[str, object], words: str
) -> None:
    session.sized(ev, **columns)
    assert words in session.problem()
    assert session.problem().startswith(f"1/4 {ev} 'c':")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"at": NOW_US + 59_000_000}, "it was due at"),
        ({"subs": 0, "at": NOW_US + 60_000_000}, "0 subscriptions"),
    ],
)
def test_an_expiry_too_early_or_of_another_session_is_said(
    session: Teller, columns: dict[str, object], words: str
) -> None:
    session.sized("session_disconnected", expiry_s=60)
    session.sized("session_expired", expiry_s=60, conn=0, **columns)
    assert words in session.problem()


def test_what_never_expires_and_what_is_connected_does_not_expire(session: Teller) -> None:
    session.sized("session_expired", conn=0, at=NOW_US)
    never, connected = session.fold.problems()[1], session.fold.problems()[0]
    assert "it never expires" in never and "connection 1 has not ended" in connected


def test_a_session_with_the_number_of_an_earlier_one_is_said(session: Teller) -> None:
    session.create("d")
    assert "a session was 7 already" in session.problem()


def test_a_packet_id_that_is_taken_is_no_other_message(session: Teller) -> None:
    session.deliver(10, 1)
    session.deliver(11, 1)
    assert "packet id 1 is message 10" in session.problem()
    session.deliver(12, 1, dup=True)
    assert "packet id 1 is message 11" in session.fold.problems()[1]


def test_who_is_not_connected_gets_nothing(session: Teller) -> None:
    session.sized("session_disconnected")
    session.deliver(10, 1)
    assert "it is not connected" in session.problem()


def test_a_session_that_a_boot_does_not_find_is_gone(session: Teller) -> None:
    session.create("d", session=8)
    session.begin()
    session.sized("session_disconnected", reason=1002, conn=0, at=NOW_US)
    session.tell("recovered", None, count=1)
    gone, count = session.fold.problems()
    assert "session 8 of 'd' is gone" in gone
    assert "found 1 sessions, not 2" in count
    assert list(session.fold.sessions) == ["c"]


def test_a_session_nobody_made_is_said(session: Teller) -> None:
    session.begin()
    session.sized("session_restored", "e", session=9)
    assert "there is no such session" in session.problem()


def test_a_connection_or_a_will_that_a_crash_did_not_end_is_said(session: Teller) -> None:
    session.tell("will_armed", "c", topic="w", qos=1, expiry_s=0)
    session.begin()
    session.sized("session_restored", conn=0)
    session.tell("recovered", None, count=1)
    problems = "\n".join(session.fold.problems())
    assert "'c' is still connected, of boot 1" in problems
    assert "a will of 'c' does not wait" in problems


def test_rows_that_the_disk_had_promised_and_lost_are_said(teller: Teller) -> None:
    teller.tell("gc_run", None, count=1)
    teller.begin(count=1)
    assert "the disk has boot 1 up to 1, the rows go to 2" in teller.problem()


def test_time_that_goes_back_within_a_boot_is_said(teller: Teller) -> None:
    teller.now -= 5
    teller.tell("gc_run", None, count=1)
    assert "its time is 5 us before" in teller.problem()


def test_problems_beyond_a_limit_are_only_counted(session: Teller) -> None:
    for _ in range(PROBLEMS_MAX + 3):
        session.tell("unsubscribed", "c", tfilter="u")
    assert session.fold.problems()[-1] == "and 3 more"
    assert len(session.fold.problems()) == PROBLEMS_MAX + 1


# What it cannot know, it does not accuse


def test_a_history_that_began_late_accuses_nobody() -> None:
    teller = Teller()
    teller.boot, teller.seq = 4, 100
    teller.sized("session_resumed", subs=17, inflight=4)
    teller.deliver(10, 1, dup=True)
    teller.tell("msg_acked", "c", msg=10, pid=1, qos=1, reason=0)
    teller.tell("unsubscribed", "c", tfilter="u")
    teller.tell("retained_cleared", None, topic="r")
    teller.tell("will_fired", "c", topic="w")
    assert not teller.fold.problems()
    folded = teller.fold.sessions["c"]
    assert not folded.is_whole and not folded.knows_messages and not teller.fold.is_complete


def test_a_session_of_which_only_the_end_is_told_is_accused_of_nothing() -> None:
    teller = Teller()
    teller.boot, teller.seq = 4, 100
    teller.sized("session_expired", conn=0, at=NOW_US)
    assert not teller.fold.problems() and not teller.fold.sessions


def test_a_census_makes_the_set_of_sessions_complete_again() -> None:
    teller = Teller()
    teller.boot, teller.seq = 4, 100
    teller.begin()
    teller.sized("session_restored", conn=0)
    teller.tell("recovered", None, count=1)
    assert teller.fold.is_complete
    teller.sized("session_resumed", "nobody")
    assert "there is no such session" in teller.problem()


def test_a_hole_is_said_unless_it_is_explained(session: Teller) -> None:
    session.seq += 4
    session.tell("gc_run", None, count=1)
    assert "seq 3 was the last one" in session.problem()
    session.seq += 4
    session.tell("history_gap", None, reason=1051, count=4, detail="full")
    assert len(session.fold.problems()) == 1
    assert not session.fold.sessions["c"].is_whole


def test_boots_without_history_between_two_others_are_a_hole_and_no_loss(session: Teller) -> None:
    session.boot += 3
    session.begin(count=0)
    assert not session.fold.problems()
    assert not session.fold.is_complete


def test_a_boot_that_is_no_later_one_and_one_that_does_not_begin_are_said(teller: Teller) -> None:
    teller.boot -= 1
    teller.begin()
    assert "boot 1 was the last one" in teller.problem()
    teller.boot += 1
    teller.tell("gc_run", None, count=1)
    assert "boot 2 does not begin with `boot`" in teller.fold.problems()[1]


def test_where_messages_are_not_told_nothing_is_said_of_packet_ids() -> None:
    teller = Teller()
    teller.begin(detail="books")
    teller.create()
    teller.tell("msg_acked", "c", msg=10, pid=1, qos=1, reason=0)
    teller.sized("session_disconnected", inflight=4, subs=0, subs_check=0)
    assert not teller.fold.problems()


def test_a_gap_makes_packet_ids_unknown_and_sessions_stay_known(session: Teller) -> None:
    session.deliver(10, 1)
    session.tell("history_gap", None, reason=1053, detail="books")
    folded = session.fold.sessions["c"]
    assert not folded.in_flight and not folded.knows_messages and folded.is_whole
    session.tell("history_gap", None, reason=1050, detail="full", count=3)
    session.tell("msg_acked", "c", msg=10, pid=1, qos=1, reason=0)
    session.create("d", session=8)
    assert session.fold.sessions["d"].knows_messages
    session.sized("session_disconnected", inflight=1)
    assert not folded.knows_messages
    session.sized("session_resumed")
    assert folded.knows_messages  # nothing is in flight, and from here on all is told
    assert not session.fold.problems()


@pytest.mark.parametrize("is_completed", [True, False])
def test_a_qos_2_message_dropped_in_flight_may_hold_its_packet_id(is_completed: bool) -> None:
    """Its client may know the id until PUBREL; a broker of earlier days freed it at once."""
    teller = Teller()
    teller.begin()
    teller.create()
    teller.deliver(9, pid=1, qos=2)
    teller.sized("session_disconnected", subs=0, subs_check=0, inflight=1)
    teller.sized("session_resumed", subs=0, subs_check=0, inflight=1)
    teller.tell("msg_dropped", "c", msg=9, pid=1, reason=1027, count=1)
    assert teller.fold.sessions["c"].in_flight_range() == (0, 1)
    for ev in ("session_disconnected", "session_resumed"):
        teller.sized(ev, subs=0, subs_check=0, inflight=int(is_completed))
    if is_completed:
        teller.tell("msg_completed", "c", pid=1, qos=2)
    assert teller.fold.sessions["c"].in_flight_range() == (0, 0)
    assert not list(teller.fold.problems())
