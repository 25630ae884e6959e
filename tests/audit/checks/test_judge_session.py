"""What became of messages, and what was wrong on the way: one session at a time, without Spark.

Each test tells a short story of one session in rows; the trace says outcomes and suspicions.
"""

import pytest

from audit.checks import packed_rows as packed
from audit.checks.packed_rows import OPEN_END, UNSTORED
from tests.audit.judged import HOUR, Session, judge


def test_what_is_acknowledged_is_done_and_what_waits_is_open() -> None:
    s = Session()
    s.connect()
    s.owe(1, 1, 2, 3, 4, 5)  # message 1 is in two of its streams
    s.exchange(1, 1)
    s.send(2, 2, qos=2)
    s.ack(2, 2, qos=2)
    s.complete(2, 2)
    s.send(3, 3, qos=2)
    s.ack(3, 3, qos=2)  # PUBREC: PUBCOMP is still to come
    s.send(4, 4)
    s.send(UNSTORED, 0, qos=0)
    outcomes, suspicions = judge(s)
    assert outcomes == {
        1: "acked",
        2: "completed",
        3: "open",
        4: "open",
        5: "open",
        UNSTORED: "delivered_qos0",
    }
    assert suspicions == []


def test_a_pubrec_with_an_error_ends_the_exchange() -> None:
    s = Session()
    s.connect(rmax=1)
    s.owe(1, 2)
    s.send(1, 1, qos=2)
    s.ack(1, 1, qos=2, reason=0x97)
    s.send(2, 1, qos=2)
    assert judge(s) == ({1: "acked", 2: "open"}, [])


def test_expired_dropped_and_what_ends_with_a_subscription_or_session() -> None:
    s = Session()
    s.connect()
    s.owe(1, 2, 3, 4, 5)
    s.row(packed.EXPIRED, 1)
    s.row(packed.DROPPED, 2, reason=1020)
    s.row(packed.DROPPED, 3, 4, reason=1027)  # a range
    s.owe(6, until=1 << 40 | s.seq + 2)
    s.row(packed.OFFLINE)
    end = s.row(packed.ENDED)
    for row in s.rows:
        if row["a"] == OPEN_END:
            row["a"] = end
    assert judge(s) == (
        {
            1: "expired",
            2: "dropped",
            3: "dropped",
            4: "dropped",
            5: "session_ended",
            6: "unsubscribed",
        },
        [],
    )


def test_a_newer_delivery_shows_what_was_passed_over() -> None:
    s = Session()
    s.connect()
    s.owe(1, 2, 3)
    s.exchange(1)
    s.exchange(3)
    outcomes, suspicions = judge(s)
    assert outcomes == {1: "acked", 2: "lost", 3: "acked"}
    assert suspicions == [("L2", "passed_over", 2)]


def test_a_position_shows_what_was_passed_over() -> None:
    s = Session()
    s.connect()
    s.owe(1, 2)
    s.exchange(1)
    s.row(packed.OFFLINE)
    s.row(packed.POSITION, a=2)
    outcomes, suspicions = judge(s)
    assert outcomes == {1: "acked", 2: "lost"}
    assert suspicions == [("L2", "passed_over", 2)]


def test_a_delivery_at_qos_0_overtakes_what_waits_in_a_stream() -> None:
    s = Session()
    s.connect()
    s.owe(1)
    s.send(2, 0, qos=0)  # stored for others, and not owed to this one
    assert judge(s) == ({1: "open", 2: "delivered_qos0"}, [])


def test_what_was_passed_over_after_unsubscribing_is_not_lost() -> None:
    s = Session()
    s.connect()
    s.owe(1, until=1 << 40 | 3)
    s.seq = 3
    s.owe(2)
    s.exchange(2)
    assert judge(s) == ({1: "unsubscribed", 2: "acked"}, [])


def test_what_was_in_flight_has_to_come_again_after_a_resume() -> None:
    s = Session()
    s.connect()
    s.owe(1, 2, 3)
    s.send(1, 1)
    s.send(2, 2)
    s.resume()
    s.resend(1, 1)
    s.exchange(3, 3)
    outcomes, suspicions = judge(s)
    assert outcomes == {1: "open", 2: "lost", 3: "acked"}
    assert suspicions == [("L2", "not_sent_again", 2)]


def test_a_resume_that_sent_nothing_new_yet_accuses_nobody() -> None:
    s = Session()
    s.connect()
    s.owe(1, 2)
    s.send(1, 1)
    s.resume()
    assert judge(s) == ({1: "open", 2: "open"}, [])


@pytest.mark.parametrize("busy", [False, True])
def test_an_idle_session_gets_what_waits_within_the_horizon(busy: bool) -> None:
    s = Session()
    s.connect()
    s.owe(1, 2)
    if busy:
        s.send(1, 1)  # a client that answers nothing may have no room
    else:
        s.exchange(1)
    outcomes, suspicions = judge(s, wait_us=2 * HOUR)
    assert outcomes == {1: "open" if busy else "acked", 2: "open" if busy else "lost"}
    assert suspicions == ([] if busy else [("L2", "stuck", 2)])
    assert judge(s, wait_us=HOUR // 2)[1] == []
    s.row(packed.OFFLINE)
    assert judge(s, wait_us=2 * HOUR)[1] == []


def test_qos_1_progress_may_be_lost_by_a_crash_but_not_by_a_shutdown() -> None:
    s = Session()
    s.connect()
    s.owe(1, 2)
    s.exchange(1, 1)
    s.send(2, 2)
    s.crash()
    s.resume()
    s.send(1, 2)  # sent as new once more, with an identifier that was another's
    s.ack(1, 2)
    s.send(2, 3)
    assert judge(s, crashed=[1]) == ({1: "acked", 2: "open"}, [])
    _, suspicions = judge(s, crashed=[])
    assert suspicions == [
        ("D2", "after_acknowledgement", 1),
        ("D2", "other_packet_id", 2),
        ("D3", "in_use_twice", 1),
    ]


def test_a_crash_takes_only_the_newest_progress() -> None:
    """What was acknowledged, or in flight, long before the crash was on disk."""
    s = Session()
    s.connect()
    s.owe(1, 2, 3)
    s.exchange(1, 1)
    s.send(2, 2)
    s.exchange(3, 3)
    s.exchange(4, 4)
    s.crash()
    s.resume()
    s.send(1, 5)
    s.send(2, 6)
    s.send(4, 2)
    _, suspicions = judge(s, crashed=[1])
    assert suspicions == [
        ("D2", "after_acknowledgement", 1),
        ("D2", "other_packet_id", 2),
        ("D3", "in_use_twice", 4),
    ]


@pytest.mark.parametrize(
    ("reason", "accused"), [(0x97, []), (0, [("D1", "delivered_after_pubrec", 1)])]
)
def test_of_pubrecs_at_qos_2_a_crash_may_take_only_a_refusal(
    reason: int, accused: list[tuple[str, str, int]]
) -> None:
    s = Session()
    s.connect()
    s.owe(1)
    s.send(1, 1, qos=2)
    s.ack(1, 1, qos=2, reason=reason)
    s.crash()
    s.resume()
    s.resend(1, 1, qos=2)
    assert judge(s, crashed=[1])[1] == accused
    assert judge(s, crashed=[])[1] == [("D1", "delivered_after_pubrec", 1)]


def test_qos_2_is_exact_even_after_a_crash() -> None:
    s = Session()
    s.connect()
    for msg, pid in ((1, 1), (2, 2), (3, 3), (4, 4)):
        s.send(msg, pid, qos=2)
    s.ack(1, 1, qos=2)
    s.ack(2, 2, qos=2)
    s.complete(2, 2)
    s.crash()
    s.resume()
    s.resend(1, 1, qos=2)
    s.resend(2, 2, qos=2)
    s.resend(3, 3, qos=2)
    s.send(4, 9, qos=2)
    _, suspicions = judge(s, crashed=[1])
    assert suspicions == [
        ("D1", "delivered_after_pubcomp", 2),
        ("D1", "delivered_after_pubrec", 1),
        ("D2", "other_packet_id", 4),
    ]


def test_a_resend_needs_a_reconnect_the_same_identifier_and_dup() -> None:
    s = Session()
    s.connect()
    for msg in range(1, 6):
        s.send(msg, msg)
    s.resend(1, 1)
    s.resume()
    s.resend(1, 1)
    s.resend(2, 2)
    s.resend(3, 8)
    s.resend(4, 4, dup=0)
    s.send(5, 5)
    s.send(6, 6, dup=1)
    _, suspicions = judge(s)
    assert suspicions == [
        ("D2", "dup_on_first", 6),
        ("D2", "other_packet_id", 3),
        ("D2", "without_dup", 4),
        ("D2", "without_dup", 5),
        ("D2", "without_reconnect", 1),
    ]


def test_a_resend_whose_first_sending_nobody_knows_needs_dup_too() -> None:
    s = Session()
    s.connect(resumed=True)
    s.resend(1, 1)
    s.resend(2, 2, dup=0)
    assert judge(s)[1] == [("D2", "without_dup", 2)]


def test_an_identifier_is_free_after_its_exchange_and_not_before() -> None:
    s = Session()
    s.connect()
    s.exchange(1, 1)
    s.send(2, 1, qos=2)
    s.ack(2, 1, qos=2)
    s.send(3, 1)  # PUBCOMP has not come
    s.row(packed.RETAINED, a=s.conn, qos=1, pid=5, attempt=1)
    s.send(4, 5)
    s.ack(-1, 5)  # which of the two was meant? both used it
    s.exchange(5, 6)
    s.send(6, 7)
    s.row(packed.EXPIRED, 6)
    s.exchange(7, 7)
    _, suspicions = judge(s)
    assert suspicions == [("D3", "in_use_twice", 3), ("D3", "in_use_twice", 4)]


def test_an_answer_names_the_message_that_its_identifier_carried() -> None:
    s = Session()
    s.connect()
    for msg, pid, qos in ((1, 1, 1), (2, 2, 2), (3, 3, 2), (4, 4, 1), (5, 5, 1)):
        s.owe(msg)
        s.send(msg, pid, qos=qos)
    s.ack(4, 1)  # two deliveries at QoS 1 were swapped
    s.ack(1, 4)
    s.ack(3, 2, qos=2)  # and a PUBREC
    s.ack(3, 3, qos=2)
    s.complete(2, 2)
    s.complete(3, 3)
    s.ack(5, 5)
    _, suspicions = judge(s)
    assert [found for found in suspicions if found[0] == "D3"] == [
        ("D3", "acknowledged_another", 1),
        ("D3", "acknowledged_another", 3),
        ("D3", "acknowledged_another", 4),
    ]


def test_nothing_is_sent_before_it_was_stored() -> None:
    s = Session()
    s.connect()
    s.send(2, 2)  # two deliveries were swapped, so this message is from the future
    s.owe(1)
    s.owe(2)
    s.send(1, 1)
    s.ack(1, 1)
    s.ack(2, 2)
    _, suspicions = judge(s)
    assert ("O1", "before_its_acceptance", 2) in suspicions
    assert [found for found in suspicions if found[1] == "before_its_acceptance"] == [
        ("O1", "before_its_acceptance", 2)
    ]


def test_an_answer_is_compared_only_with_what_is_certain() -> None:
    s = Session()
    s.connect()
    s.row(packed.RETAINED, a=s.conn, qos=1, pid=1, attempt=1)
    s.ack(7, 1)  # the row of a retained copy names no message
    s.send(1, 2)
    s.ack(-1, 2)  # and so does its answer
    s.send(2, 3)
    s.row(packed.EXPIRED, 2)
    s.send(3, 3)
    s.ack(2, 3)  # an older answer to what had the identifier before
    s.ack(9, 5)  # sent before the history begins
    s.send(4, 6)
    s.ack(4, 6)
    s.send(5, 6)  # its row is there, and a crash took what the session knew of it
    s.crash()
    s.connect(resumed=True)
    s.ack(4, 6)
    _, suspicions = judge(s, crashed=[1])
    assert [found for found in suspicions if found[0] == "D3"] == []


def test_in_flight_is_counted_per_connection() -> None:
    s = Session()
    s.connect(rmax=2)
    s.send(1, 1)
    s.send(2, 2, qos=2)
    s.ack(1, 1)
    s.ack(2, 2, qos=2)
    s.send(3, 1)
    s.resume(rmax=3)
    s.complete(2, 2)  # released on the connection before: frees nothing that was taken here
    s.resend(3, 1)
    s.send(4, 3)
    s.row(packed.RETAINED, a=s.conn, qos=1, pid=4, attempt=1)
    assert judge(s)[1] == []
    s.send(5, 5)
    s.send(6, 6)  # the excursion is reported once
    assert judge(s)[1] == [("F1", "receive_maximum_exceeded", 5)]


def test_a_copy_of_a_retained_message_is_acknowledged_without_a_message() -> None:
    s = Session()
    s.connect(rmax=1)
    for pid in (1, 2):
        s.row(packed.RETAINED, a=s.conn, qos=1, pid=pid, attempt=1)
        s.ack(-1, pid)
    assert judge(s) == ({}, [])
    s.row(packed.RETAINED, a=s.conn, qos=1, pid=3, attempt=1)
    s.row(packed.RETAINED, a=s.conn, qos=1, pid=3, attempt=1)
    assert judge(s)[1] == [("D3", "in_use_twice", -1)]


def test_the_pubcomp_of_a_message_given_up_answers_no_copy() -> None:
    s = Session()
    s.connect(rmax=1)
    s.owe(1)
    s.row(packed.RETAINED, a=s.conn, qos=1, pid=3, attempt=1)
    s.row(packed.COMPLETED, a=s.conn, qos=2, pid=2)
    assert judge(s, wait_us=2 * HOUR)[1] == []  # the copy fills the window
    s.ack(-1, 3)
    assert judge(s, wait_us=2 * HOUR)[1] == [("L2", "stuck", 1)]


def test_first_deliveries_out_of_order_are_suspected() -> None:
    s = Session()
    s.connect()
    s.exchange(2, 1)
    s.send(5, 0, qos=0)
    s.exchange(1, 2)
    s.exchange(3, 3)
    s.send(9, 4, shared=1)
    s.ack(9, 4)
    s.exchange(4, 4)
    assert judge(s)[1] == [("O1", "before_an_earlier_one", 1)]


def test_a_group_is_owed_as_one_and_may_hand_a_message_on() -> None:
    group = Session(77, group=True)
    group.owe(1, 2, 3)
    member, other = Session(1), Session(2)
    member.connect()
    member.send(1, 1, shared=1)
    member.row(packed.MOVED, 1, shared=1)
    other.seq = 10
    other.connect()
    other.send(1, 1, shared=1)
    other.ack(1, 1)
    member.seq = 20
    member.send(1, 2, shared=1)  # and back again: a new exchange
    group.seq = 5
    group.send(1, 1, shared=1)
    group.send(3, 1, shared=1)
    group.send(9, 2, shared=1)  # another group's of the same name: it moves nothing here
    group.owe(4)
    outcomes, suspicions = judge(group, member, other)
    assert suspicions == []
    assert outcomes[2] == "open"
    outcomes, suspicions = judge(group, member, other, wait_us=2 * HOUR)
    assert (outcomes[2], outcomes[4]) == ("lost", "open")
    assert suspicions == [("L2", "passed_over", 2)]


def test_sessions_do_not_touch_each_other() -> None:
    stories = []
    for number in range(1, 6):
        s = Session(number)
        s.connect(rmax=1)
        s.owe(1, 2, 3)
        for msg in (1, 2, 3):
            s.exchange(msg, 1)
        stories.append(s)
    assert judge(*stories) == ({1: "acked", 2: "acked", 3: "acked"}, [])


def test_rows_that_an_earlier_run_judged_are_not_accused_again() -> None:
    s = Session()
    s.connect()
    s.send(1, 1)
    s.resend(1, 1)
    for row in s.rows:
        row["b"] |= 1 << packed.CARRIED[0]
    assert judge(s)[1] == []
    s.resend(1, 1)
    assert judge(s)[1] == [("D2", "without_reconnect", 1)]
