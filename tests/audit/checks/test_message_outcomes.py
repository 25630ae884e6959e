"""Every number of the table of deliveries, and the edges of what counts as lost; no Spark."""

import pytest

from audit.checks import packed_rows as packed
from audit.checks.packed_rows import DOUBT, OPEN_END, OUTCOME, SEQ_BITS, UNSTORED
from tests.audit.judged import HOUR, Session, accusations, judge, table

SECOND = 1_000_000
NOTHING = {"owner": 0, "session": 1, "owed": 0, "shared": 0, "attempts": 0}
NOTHING |= {"first_is_new": 0, "sent_new": 0, "duplicates_new": 0, "carried": 0}


def gseq(seq: int, boot: int = 1) -> int:
    return boot << SEQ_BITS | seq


def at(seq: int, *names: str) -> dict[str, int]:
    """Return the columns of events that happened in row `seq` of a session without a crash."""
    return {
        key: value
        for name in names
        for key, value in ((f"{name}_gseq", gseq(seq)), (f"{name}_ts", seq * SECOND))
    }


def connected(*owed: int) -> Session:
    s = Session()
    s.connect()
    s.owe(*owed)
    return s


def test_the_table_says_when_and_how_each_message_went() -> None:
    s = connected(1, 1, 2, 3, 4)  # rows 2 to 6; message 1 is in two of its streams
    s.send(1, 11)  # 7
    s.resume()  # 8 and 9
    s.resend(1, 12)  # 10
    s.ack(1, 12, reason=16)
    s.ack(1, 12)  # 12
    s.send(2, 13, qos=2)
    s.ack(2, 13, qos=2)
    s.complete(2, 13)  # 15
    s.row(packed.EXPIRED, 3)
    s.row(packed.DROPPED, 3, reason=1020)  # 17
    s.send(9, 0, qos=0, shared=1)  # 18
    owed = {**NOTHING, "owed": 1, "stream": 7}
    assert table(s) == {
        1: {
            **owed,
            **at(2, "enqueued"),
            **at(7, "delivered"),
            **at(11, "acked"),
            **{"qos": 1, "pid": 12, "conn": 3, "sent_last_gseq": gseq(10)},
            **{"attempts": 2, "first_is_new": 1, "sent_new": 2, "outcome": OUTCOME["acked"]},
        },
        2: {
            **owed,
            **at(4, "enqueued"),
            **at(13, "delivered"),
            **at(14, "acked"),
            **at(15, "completed"),
            **{"qos": 2, "pid": 13, "conn": 3, "sent_last_gseq": gseq(13)},
            **{"attempts": 1, "first_is_new": 1, "sent_new": 1, "outcome": OUTCOME["completed"]},
        },
        3: {
            **owed,
            **at(5, "enqueued"),
            **at(16, "gone"),  # what came first, and the reason of the drop
            **{"reason": 1020, "outcome": OUTCOME["expired"]},
        },
        4: {**owed, **at(6, "enqueued"), "outcome": OUTCOME["open"]},
        9: {
            **NOTHING,
            **at(18, "delivered"),
            **{"shared": 1, "qos": 0, "pid": 0, "conn": 3, "sent_last_gseq": gseq(18)},
            **{"attempts": 1, "first_is_new": 1, "sent_new": 1},
            "outcome": OUTCOME["delivered_qos0"],
        },
    }


def test_a_dropped_range_takes_what_was_owed_and_has_no_end() -> None:
    s = connected(1, 2, 3, 4, 5, 6)  # rows 2 to 7
    s.exchange(3)
    s.ack(7, 9, qos=2)  # never owed: its PUBREC answers what an older history knew
    s.row(packed.DROPPED, 2, 7, reason=1027)  # 11; the first and the last one, too
    s.row(packed.DROPPED, 1, 1, reason=1020)  # 12; one message is no range
    s.owe(8)
    rows = table(s)
    words = ("open", "dropped", "acked")
    names = {OUTCOME[word]: word for word in words}
    assert [(msg, names[row["outcome"]], row.get("reason")) for msg, row in rows.items()] == [
        (1, "dropped", 1020),
        (2, "dropped", 1027),
        (3, "acked", None),
        (4, "dropped", 1027),
        (5, "dropped", 1027),
        (6, "dropped", 1027),
        (7, "open", None),
        (8, "open", None),
    ]
    gone = {msg: row.get("gone_gseq") for msg, row in rows.items() if "gone_gseq" in row}
    assert gone == {1: gseq(12), **dict.fromkeys((2, 4, 5, 6), gseq(11))}
    assert [msg for msg, row in rows.items() if "gone_ts" in row] == [1]  # a range tells no time
    s.exchange(8)
    assert judge(s)[1] == []  # what was dropped was not passed over


def test_a_dropped_range_of_one_session_leaves_the_others_alone() -> None:
    before, dropping, after = (Session(number) for number in (1, 2, 3))
    for s, first in ((before, 1), (dropping, 11), (after, 21)):
        s.connect()
        s.owe(first, first + 1)
    dropping.row(packed.DROPPED, 1, 100, reason=1027)
    outcomes, suspicions = judge(before, dropping, after)
    assert [msg for msg, word in outcomes.items() if word == "dropped"] == [11, 12]
    assert suspicions == []
    first = Session()
    first.owe(1)  # the first row of all
    first.owe(2, until=gseq(2))
    first.row(packed.DROPPED, 1, 2, reason=1027)
    assert judge(first)[0] == {1: "dropped", 2: "dropped"}


@pytest.mark.parametrize(
    ("kind", "fields", "outcome", "columns"),
    [
        (packed.OWED, {}, "open", {"owed": 1, **at(1, "enqueued")}),
        (packed.DELIVERED, {"qos": 0}, "delivered_qos0", at(1, "delivered")),
        (packed.DELIVERED, {"qos": 1}, "open", {"qos": 1, "sent_last_gseq": gseq(1)}),
        (packed.DELIVERED, {"qos": 1, "shared": 1}, "open", {"shared": 1}),
        (packed.ACKED, {"qos": 1}, "acked", {"qos": 1, **at(1, "acked")}),
        (packed.ACKED, {"qos": 2}, "open", {"qos": 2, "attempts": 0}),
        (packed.ACKED, {"qos": 2, "reason": 0x80}, "acked", {"qos": 2}),
        (packed.ACKED, {"qos": 2, "reason": 0x7F}, "open", {"qos": 2}),
        (packed.COMPLETED, {"qos": 2}, "completed", at(1, "completed")),
        (packed.DROPPED, {"reason": 1020}, "dropped", {"reason": 1020, **at(1, "gone")}),
        (packed.EXPIRED, {}, "expired", at(1, "gone")),
        (packed.MOVED, {}, "moved", {"attempts": 0}),
    ],
)
def test_a_history_may_begin_with_any_row_of_a_message(
    kind: int, fields: dict[str, int], outcome: str, columns: dict[str, int]
) -> None:
    s = Session()
    s.row(kind, 1, OPEN_END if kind == packed.OWED else -1, **fields)
    (row,) = table(s).values()
    assert row["outcome"] == OUTCOME[outcome]
    assert row | columns == row
    assert row["first_is_new"] == row["sent_new"] == row["attempts"] == (kind == packed.DELIVERED)
    s.connect()
    assert judge(s, wait_us=HOUR // 2) == ({1: outcome}, [])


def test_what_was_sent_first_of_all_ends_with_its_session() -> None:
    s = Session()
    s.send(1, 1)
    s.ack(2, 2, qos=2)
    s.row(packed.ENDED)
    assert judge(s) == ({1: "session_ended", 2: "open"}, [])


def test_the_end_of_a_session_is_not_that_of_its_neighbours() -> None:
    first, ends, last = connected(1), Session(2), Session(3)
    for s, msg in ((first, 1), (ends, 2), (last, 3)):
        s.send(msg, 1)
    ends.row(packed.ENDED)
    ends.row(packed.OFFLINE)
    assert judge(first, ends, last)[0] == {1: "open", 2: "session_ended", 3: "open"}


@pytest.mark.parametrize("kind", [packed.COMPLETED, packed.DROPPED, packed.EXPIRED])
def test_the_first_end_of_a_message_counts(kind: int) -> None:
    s = Session()
    s.row(kind, 1, reason=1020)
    s.row(kind, 1, reason=1027)
    (row,) = table(s).values()
    name = "completed" if kind == packed.COMPLETED else "gone"
    assert row | at(1, name) == row
    assert row.get("reason") == (1020 if kind == packed.DROPPED else None)


def test_a_message_may_be_dropped_after_its_pubrec() -> None:
    s = connected(1)
    s.send(1, 1, qos=2)
    s.ack(1, 1, qos=2)
    s.row(packed.DROPPED, 1, reason=1020)  # its reason is no refusal by the client
    assert judge(s)[0] == {1: "dropped"}


def test_a_message_in_flight_belongs_to_its_session_whatever_was_unsubscribed() -> None:
    s = connected()
    s.owe(1, 2, until=gseq(6))
    s.send(1, 1)
    s.seq = 7
    assert judge(s)[0] == {1: "open", 2: "unsubscribed"}
    s.row(packed.ENDED)
    assert judge(s)[0] == {1: "session_ended", 2: "unsubscribed"}


def test_a_message_of_a_group_is_moved_until_it_is_sent_again() -> None:
    s = connected()
    s.send(1, 1, shared=1)
    s.row(packed.MOVED, 1, shared=1)
    assert judge(s)[0] == {1: "moved"}
    s.send(1, 2, shared=1)
    s.row(packed.MOVED, 1, shared=1)
    assert judge(s)[0] == {1: "moved"}
    s.send(1, 2, shared=1)
    assert judge(s)[0] == {1: "open"}
    s.ack(1, 2)
    assert judge(s)[0] == {1: "acked"}


def test_a_group_shares_its_messages_and_a_session_only_what_it_was_sent_as_a_member() -> None:
    group, s = Session(7, group=True), Session(1)
    group.owe(1)
    s.send(2, 1)
    s.send(3, 2)
    s.resend(3, 2, shared=1)  # the last sending counts
    assert {msg: row["shared"] for msg, row in table(group, s).items()} == {1: 1, 2: 0, 3: 1}


@pytest.mark.parametrize(
    ("steps", "duplicates"),
    [
        ("send", 0),
        ("owe send", 0),
        ("send resend", 0),
        ("send resend resend", 0),
        ("send send", 1),
        ("send send send", 2),
        ("send ack resend", 1),
        ("ack resend", 1),
        ("send ack", 0),
        ("send2 ack2 resend2", 1),
        ("send2 ack2 complete resend2", 1),
        ("complete resend2", 1),
        ("send0 send0", 0),
        ("send move resend", 0),
    ],
)
def test_what_may_be_a_duplicate_for_the_client_is_counted(steps: str, duplicates: int) -> None:
    s = connected()
    s.ack(0, 1)  # of another message
    for step in steps.split():
        qos = int(step[-1]) if step[-1].isdigit() else 1
        match step.rstrip("012"):
            case "owe":
                s.owe(1)
            case "send":
                s.send(1, 1, qos)
            case "resend":
                s.resend(1, 1, qos)
            case "ack":
                s.ack(1, 1, qos)
            case "complete":
                s.complete(1, 1)
            case "move":
                s.row(packed.MOVED, 1)
    s.resend(2, 2)  # of another message, too
    rows = table(s)
    assert {msg: row["duplicates_new"] for msg, row in rows.items()} == {0: 0, 1: duplicates, 2: 0}


def test_what_an_earlier_run_counted_is_not_new() -> None:
    s = connected(1)
    s.send(1, 1)
    s.send(1, 1)
    for row in s.rows:
        row["b"] |= 1 << packed.CARRIED[0]
    s.send(1, 1)
    s.send(2, 2)
    s.owe(3)
    names = ("carried", "first_is_new", "attempts", "sent_new", "duplicates_new")
    assert {msg: tuple(row[name] for name in names) for msg, row in table(s).items()} == {
        1: (1, 0, 3, 1, 1),
        2: (0, 1, 1, 1, 0),
        3: (0, 0, 0, 0, 0),
    }


def test_the_evidence_of_what_was_passed_over_is_from_its_queue_to_what_passed() -> None:
    s = connected(1, 1, 2, 3)
    s.exchange(2)  # row 6
    once = [("passed_over", 1, gseq(2), gseq(6), -1)]
    assert accusations(s) == once
    s.ack(3, 3)
    assert accusations(s, wait_us=2 * HOUR) == once  # and it is not stuck as well


@pytest.mark.parametrize(("streams", "since"), [("d", 0), ("dd", 0), ("od", 2), ("do", 2)])
def test_a_subscription_in_doubt_needs_evidence_from_the_beginning(
    streams: str, since: int
) -> None:
    """Unless another one, that is not in doubt, holds the message, too."""
    s = Session()
    s.seq = 1
    for stream in streams:
        s.row(packed.OWED, 1, OPEN_END, doubt=int(stream == "d"))
    s.connect()
    idle = accusations(s, wait_us=2 * HOUR)
    s.row(packed.POSITION, a=1)
    passed = accusations(s)
    start = gseq(since) if since else 0
    assert idle == [("stuck", 1, start, s.rows[-2]["gseq"], -1)]
    assert passed == [("passed_over", 1, start, s.rows[-1]["gseq"], -1)]
    assert DOUBT == packed.DUP


def test_the_first_row_of_all_may_be_a_message_that_is_lost() -> None:
    s = Session()
    s.owe(1, 2)
    s.exchange(2)
    assert accusations(s) == [("passed_over", 1, gseq(1), gseq(3), -1)]


def test_a_position_may_be_the_last_row_and_the_only_evidence() -> None:
    s = connected(1, 2)
    s.row(packed.POSITION, a=1)
    assert judge(s) == ({1: "lost", 2: "open"}, [("L2", "passed_over", 1)])
    early = Session()
    early.row(packed.POSITION, a=1)  # before the message came
    early.owe(1)
    early.row(packed.OFFLINE)
    assert judge(early) == ({1: "open"}, [])


def test_only_what_moves_the_sessions_own_cursor_passes_over() -> None:
    s = connected(1)
    s.send(2, 2, shared=1)
    s.send(3, 0, qos=0)
    s.send(UNSTORED + 5, 4)
    s.row(packed.DROPPED, 5)
    s.row(packed.RETAINED, a=s.conn, qos=1, pid=5, attempt=1)
    s.ack(6, 6)
    assert judge(s)[1] == []


def test_what_has_an_end_or_was_sent_is_not_passed_over() -> None:
    s = Session()
    s.send(1, 0, qos=0)  # the first row of all
    s.owe(1, 2, 3, 4)
    s.row(packed.EXPIRED, 2)
    s.row(packed.DROPPED, 3)
    s.row(packed.MOVED, 4)
    s.exchange(9, 9)
    assert judge(s)[1] == [("O1", "before_its_acceptance", 1)]  # and no L2
    moved = Session()
    moved.row(packed.MOVED, 1)
    moved.owe(1)
    moved.exchange(9, 9)
    assert judge(moved)[1] == []


def test_what_ends_with_the_subscription_is_not_passed_over_by_that_row() -> None:
    s = connected()
    end = gseq(4)
    s.owe(1, until=end)
    s.owe(2)
    s.seq = 3
    assert s.row(packed.POSITION, a=1) == end
    assert judge(s) == ({1: "unsubscribed", 2: "open"}, [])
    s.rows[1]["a"] += 1
    assert judge(s)[1] == [("L2", "passed_over", 1)]
    s.rows[1]["a"] -= 1
    s.owe(1)  # another subscription wants it still
    s.row(packed.POSITION, a=1)
    assert judge(s)[0][1] == "lost"


def test_a_group_may_be_overtaken_for_the_horizon_and_only_by_its_own() -> None:
    group = Session(7, group=True)
    group.owe(1, 2)  # at 1 and 2 s
    group.send(2, 1, shared=1)  # at 3 s
    assert judge(group, wait_us=HOUR - 2 * SECOND) == ({1: "open", 2: "open"}, [])
    assert judge(group, wait_us=HOUR - 2 * SECOND + 1)[1] == [("L2", "passed_over", 1)]
    other = Session(8, group=True, node=1)
    other.owe(1, 3)
    other.send(2, 1, shared=1)  # of another group of this name
    assert judge(other, wait_us=2 * HOUR) == ({1: "open", 2: "open", 3: "open"}, [])
    other.send(3, 2, shared=1)
    assert judge(other)[1] == []
    assert judge(other, wait_us=2 * HOUR)[1] == [("L2", "passed_over", 1)]
    assert table(other)[1]["shared"] == 1


def test_the_evidence_of_what_was_not_sent_again_ends_where_a_newer_one_went() -> None:
    s = connected(5, 6)
    s.send(5, 1)  # row 4
    s.resume()
    s.send(6, 2)  # row 7, the last of all
    first = [("not_sent_again", 5, gseq(4), gseq(7), 6)]
    assert accusations(s) == first
    s.send(7, 3)
    assert accusations(s) == first


def test_only_a_resume_has_to_send_again() -> None:
    s = connected(1)
    s.send(1, 1)
    s.connect()
    s.exchange(9, 9)
    assert judge(s)[1] == []


@pytest.mark.parametrize("newer", ["owed", "qos 0", "shared", "unstored", "resent", "older", "ack"])
def test_a_resume_that_sent_nothing_newer_of_its_own_accuses_nobody(newer: str) -> None:
    s = connected(5)
    s.send(5, 5)
    s.send(6, 6)
    s.resume()
    s.resend(6, 6)
    match newer:
        case "owed":
            s.owe(9)
        case "qos 0":
            s.send(9, 0, qos=0)
        case "shared":
            s.send(9, 9, shared=1)
        case "unstored":
            s.send(UNSTORED + 9, 9)
        case "resent":
            s.resend(9, 9)
        case "older":
            s.send(4, 9)
        case "ack":
            s.ack(9, 9)
    assert [what for check, what, _ in judge(s)[1] if check == "L2"] == []


def test_what_was_sent_at_qos_0_or_acknowledged_need_not_come_again() -> None:
    s = Session()
    s.ack(1, 1)  # the first row of all; then its progress was lost
    s.connect()
    s.send(1, 1)
    s.send(2, 0, qos=0)
    s.send(3, 3, shared=1)  # a group gives it to another member
    s.send(UNSTORED, 4)
    s.send(4, 5, qos=2)
    s.complete(4, 5)  # its PUBREC is not in the history
    s.resume()
    s.exchange(9, 9)
    assert judge(s)[1] == [("D2", "after_acknowledgement", 1)]
    moved = Session()
    moved.row(packed.MOVED, 1)  # the first row of all, once more
    moved.send(1, 1)
    moved.resume()
    moved.exchange(9, 9)
    assert judge(moved)[1] == []


def test_the_resume_of_another_session_accuses_nobody() -> None:
    stays, resumes = connected(1), Session(2)
    stays.send(1, 1)
    resumes.connect()
    resumes.resume()
    resumes.exchange(9, 9)
    assert judge(stays, resumes)[1] == []
    stays.resume()
    assert judge(stays, resumes)[1] == []


def test_an_idle_session_is_stuck_after_the_horizon_and_not_at_it() -> None:
    s = connected(1, 2)  # message 2 came at 3 s
    s.exchange(1)  # until 5 s
    assert judge(s, wait_us=HOUR)[1] == []
    assert accusations(s, wait_us=HOUR + 1) == [("stuck", 2, gseq(3), gseq(5), -1)]
    s.owe(3)  # at 6 s: this one has waited for less
    assert judge(s, wait_us=HOUR - SECOND)[1] == []
    assert judge(s, wait_us=HOUR)[0] == {1: "acked", 2: "lost", 3: "open"}
    s.ack(-1, 9)  # any other row shows that the session was not idle
    assert judge(s, wait_us=HOUR)[0][2] == "open"


def test_what_is_in_flight_or_unsubscribed_is_not_stuck() -> None:
    s = connected(1)
    s.send(1, 1)
    s.owe(2, until=gseq(9))
    s.seq = 10
    s.resume()  # nothing was sent since
    assert judge(s, wait_us=2 * HOUR) == ({1: "open", 2: "unsubscribed"}, [])


def test_a_session_nobody_saw_connect_is_not_stuck() -> None:
    s = Session()
    s.owe(1)
    assert judge(s, wait_us=2 * HOUR) == ({1: "open"}, [])
    s.connect()
    s.row(packed.ENDED)
    assert judge(s, wait_us=2 * HOUR)[1] == []


def test_each_node_has_a_clock_and_boots_of_its_own() -> None:
    def idle(number: int, node: int, boot: int) -> Session:
        s = Session(number, node=node)
        s.boot = boot
        s.connect()
        s.owe(number)
        return s

    first, second, dead = idle(1, 0, 1), idle(2, 1, 5), idle(3, 1, 4)  # 3 ended in a crash
    assert judge(first, second, dead, wait_us=2 * HOUR)[0] == {1: "lost", 2: "lost", 3: "open"}
    late = Session(4, node=1)
    late.boot, late.now = 5, 2 * HOUR
    late.connect()
    assert judge(first, second, late)[0] == {1: "open", 2: "lost"}
    third = idle(6, 2, 2)
    assert judge(first, third, wait_us=2 * HOUR)[0] == {1: "lost", 6: "lost"}


@pytest.mark.parametrize(
    ("what", "busy"),
    [
        ("", False),
        ("send0", False),
        ("send1", True),
        ("send1 ack1", False),
        ("send1 ack1 send1", True),
        ("send1 ack1 send1 ack1", False),
        ("send2", True),
        ("send2 rec2", True),
        ("send2 refused2", False),
        ("send2 rec2 complete", False),
        ("copy0", False),
        ("copy1", True),
        ("copy1 answer", False),
        ("copy1 second answer answer_second", False),
        ("copy1 second answer", True),
        ("copy2 rec", True),  # PUBREC: its PUBCOMP is still to come
        ("copy2 rec comp", False),
        ("copy2 refused", False),
        ("copy1 other", True),
        ("copy1 ack1", True),  # that one names a message
        ("copy1 resume", False),
        ("send1 resume", False),
    ],
)
def test_what_is_in_flight_on_this_connection_makes_a_session_busy(what: str, busy: bool) -> None:
    s = connected()
    for step in what.split():
        match step:
            case "copy0" | "copy1" | "copy2":
                s.row(packed.RETAINED, a=s.conn, qos=int(step[-1]), pid=3, attempt=1)
            case "second":
                s.row(packed.RETAINED, a=s.conn, qos=1, pid=4, attempt=1)
            case "answer":
                s.ack(-1, 3)
            case "answer_second":
                s.ack(-1, 4)
            case "other":
                s.ack(-1, 9)
            case "rec" | "refused":
                s.ack(-1, 3, qos=2, reason=0x80 if step == "refused" else 0x7F)
            case "comp":
                s.complete(-1, 3)
            case "ack1":
                s.ack(1, 3)
            case "rec2" | "refused2":
                s.ack(1, 3, qos=2, reason=0x80 if step == "refused2" else 0x7F)
            case "complete":
                s.complete(1, 3)
            case "resume":
                s.resume()
            case _:
                s.send(1, 3, qos=int(step[-1]))
    s.owe(9)
    stuck = ("L2", "stuck", 9)
    assert (stuck not in judge(s, wait_us=2 * HOUR)[1]) == busy


def test_a_busy_session_is_not_taken_for_its_neighbour() -> None:
    idle, busy, copied = connected(1), Session(2), Session(3)
    idle.row(packed.POSITION, a=0)  # of the connection: it is no end of it
    busy.connect()
    busy.resume()
    busy.send(2, 1)
    busy.owe(3)
    copied.connect()
    copied.row(packed.RETAINED, a=copied.conn, qos=1, pid=1, attempt=1)
    copied.owe(4)
    assert judge(idle, busy, copied, wait_us=2 * HOUR)[1] == [("L2", "stuck", 1)]
