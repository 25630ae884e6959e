"""Packet ids, windows and QoS 2 phases of one session, sender side."""

from collections.abc import Callable

import pytest

from session.state.in_flight import (
    AWAITING_PUBACK,
    AWAITING_PUBCOMP,
    AWAITING_PUBREC,
    FROM_GROUP,
    FROM_LOG,
    FROM_MAILBOX,
    REFERENCE_SHIFT,
    RELEASED,
    TOOK_QUOTA,
)
from session.state.session import EXPIRY_NEVER, PACKET_ID_MAX, Session


def connected(receive_maximum: int = 10, in_flight_max: int = PACKET_ID_MAX) -> Session:
    """Return a stored session on a new connection, with everything up to offset 1000 done."""
    session = Session("c", "", 1)
    session.is_stored = True
    session.position = 1000
    session.begin_connection(receive_maximum, in_flight_max)
    return session


def test_packet_ids_begin_at_1_and_follow_each_other() -> None:
    session = connected()
    assert [session.bind(offset, 1) for offset in (5, 6, 7)] == [1, 2, 3]


def test_a_packet_id_in_flight_is_passed_over() -> None:
    session = connected()
    session.bind(5, 1)
    session.next_packet_id = PACKET_ID_MAX
    assert session.bind(6, 1) == PACKET_ID_MAX
    assert session.bind(7, 1) == 2


def test_a_packet_id_is_not_used_again_at_once() -> None:
    session = connected()
    assert session.bind(5, 1) == 1
    session.complete(1, AWAITING_PUBACK)
    assert session.bind(6, 1) == 2


def test_binding_takes_quota_and_completing_gives_it_back() -> None:
    session = connected(2)
    first, second = session.bind(5, 1), session.bind(6, 2)
    assert session.send_quota == 0
    assert session.complete(first, AWAITING_PUBACK) == 5 << REFERENCE_SHIFT | TOOK_QUOTA | 1
    assert session.send_quota == 1
    assert session.release(second)
    assert session.send_quota == 1
    assert session.complete(second, AWAITING_PUBCOMP) >= 0
    assert session.send_quota == 2
    assert session.in_flight == {}


def test_binding_many_at_once_is_binding_each() -> None:
    one, many = connected(), connected()
    for session in (one, many):
        session.bind(3, 1)
        session.next_packet_id = PACKET_ID_MAX - 1
    offsets = [5, 9, 11, 12]
    packet_ids = [one.bind(offset, 2 | FROM_LOG) for offset in offsets]
    assert many.bind_each(offsets, 2 | FROM_LOG) == packet_ids == [65534, 65535, 2, 3]
    assert many.in_flight == one.in_flight
    assert (many.send_quota, many.next_packet_id) == (one.send_quota, one.next_packet_id)
    assert not list(many.invariants())


def test_binding_without_quota_is_a_mistake() -> None:
    session = connected(1)
    session.bind(5, 1)
    with pytest.raises(AssertionError):
        session.bind(6, 1)


@pytest.mark.parametrize("phase", [AWAITING_PUBACK, AWAITING_PUBREC, AWAITING_PUBCOMP])
def test_an_answer_to_another_phase_changes_nothing(phase: int) -> None:
    session = connected()
    packet_id = session.bind(5, 1 if phase == AWAITING_PUBACK else 2)
    if phase == AWAITING_PUBCOMP:
        session.release(packet_id)
    before = dict(session.in_flight), session.send_quota
    for answered in {AWAITING_PUBACK, AWAITING_PUBREC, AWAITING_PUBCOMP} - {phase}:
        assert session.complete(packet_id, answered) == -1
    assert (session.in_flight, session.send_quota) == before
    assert session.complete(packet_id, phase) >= 0


def test_an_answer_to_an_unknown_packet_id_changes_nothing() -> None:
    session = connected()
    assert session.complete(9, AWAITING_PUBACK) == -1
    assert not session.release(9)


def test_only_qos_2_is_released() -> None:
    session = connected()
    assert not session.release(session.bind(5, 1))
    packet_id = session.bind(6, 2)
    assert session.release(packet_id) and session.release(packet_id)
    assert session.in_flight[packet_id] & RELEASED


def test_the_quota_belongs_to_a_connection() -> None:
    session = connected(2)
    first, second = session.bind(5, 1), session.bind(6, 1)
    session.begin_connection(3)
    assert session.send_quota == 3
    session.complete(first, AWAITING_PUBACK)  # answered before it was sent again
    assert session.send_quota == 3
    session.take_quota_again(second)
    assert session.send_quota == 2
    session.complete(second, AWAITING_PUBACK)
    assert session.send_quota == 3


def test_taking_quota_twice_for_one_message_is_a_mistake() -> None:
    session = connected()
    packet_id = session.bind(5, 1)
    with pytest.raises(AssertionError):
        session.take_quota_again(packet_id)


def test_a_qos_1_message_that_is_given_up_frees_its_id() -> None:
    session = connected(1)
    packet_id = session.bind(5, 1)
    session.begin_connection(1)
    assert not session.give_up(packet_id)
    assert session.send_quota == 1 and session.in_flight == {}


def test_a_qos_2_message_that_is_given_up_holds_its_id_and_names_no_message() -> None:
    session = connected(1)
    session.is_stored = True
    session.position = 5
    packet_id = session.bind(5, 2 | FROM_GROUP)
    session.leases[packet_id] = ("share", "t")
    session.begin_connection(1)
    assert session.give_up(packet_id)
    assert session.in_flight == {packet_id: AWAITING_PUBCOMP} and not session.leases
    assert session.send_quota == 1 and session.owed_releases == 1
    assert not list(session.invariants())
    assert session.bind(5, 1) != packet_id
    assert session.complete(packet_id, AWAITING_PUBCOMP) == AWAITING_PUBCOMP
    assert session.owed_releases == 0


@pytest.mark.parametrize("end", [Session.release, Session.give_up])
def test_exchanges_without_quota_leave_packet_ids_for_what_has_some(
    end: Callable[[Session, int], bool],
) -> None:
    """Their ids stay in use until PUBCOMP: with all ids in use a search for one never ends."""
    session = connected(PACKET_ID_MAX)
    session.position = PACKET_ID_MAX
    session.bind_run(1, 1, 2, PACKET_ID_MAX)
    session.begin_connection(PACKET_ID_MAX)
    for packet_id in range(1, PACKET_ID_MAX + 1):
        assert end(session, packet_id)
    assert session.send_quota == 0
    assert list(session.invariants()) == []
    session.complete(7, AWAITING_PUBCOMP)
    assert session.send_quota == 1 and session.bind(1, 1) == 7
    assert list(session.invariants()) == []


def test_releases_owed_to_earlier_connections_count_towards_our_own_limit() -> None:
    session = connected(10, in_flight_max=4)
    ids = [session.bind(offset, 2) for offset in (5, 6, 7)]
    for packet_id in ids:
        session.release(packet_id)
    session.begin_connection(10, 4)
    assert session.send_quota == 1
    session.bind(8, 1)
    session.complete(ids[0], AWAITING_PUBCOMP)
    assert session.send_quota == 1
    session.complete(ids[1], AWAITING_PUBCOMP)
    session.complete(ids[2], AWAITING_PUBCOMP)
    assert session.send_quota == 3
    assert list(session.invariants()) == []


def test_completing_old_releases_never_widens_the_clients_window() -> None:
    session = connected(2)
    packet_id = session.bind(5, 2)
    session.release(packet_id)
    session.begin_connection(2)
    assert session.send_quota == 2
    session.complete(packet_id, AWAITING_PUBCOMP)
    assert session.send_quota == 2


def test_an_early_pubrec_for_an_earlier_connection_is_counted() -> None:
    session = connected(5, in_flight_max=2)
    packet_id = session.bind(5, 2)
    session.begin_connection(5, 2)
    assert session.send_quota == 2
    session.release(packet_id)
    session.complete(packet_id, AWAITING_PUBCOMP)
    assert session.send_quota == 2
    assert list(session.invariants()) == []


def test_a_client_that_owes_everything_has_no_window() -> None:
    session = connected(5, in_flight_max=2)
    for offset in (5, 6):
        session.release(session.bind(offset, 2))
    session.begin_connection(5, 1)  # the limit was lowered meanwhile
    assert session.send_quota == 0
    session.complete(1, AWAITING_PUBCOMP)
    assert session.send_quota == 0
    session.complete(2, AWAITING_PUBCOMP)
    assert session.send_quota == 1


@pytest.mark.parametrize(
    ("interval", "ends"),
    [(0, 5000), (10, 15_000), (EXPIRY_NEVER - 1, 5000 + (EXPIRY_NEVER - 1) * 1000)],
)
def test_a_session_ends_its_interval_after_its_connection(interval: int, ends: int) -> None:
    session = Session("c", "", 1)
    session.expiry_interval_s = interval
    assert session.expires_at(5000) == ends


def test_a_session_that_never_expires_has_no_end() -> None:
    session = Session("c", "", 1)
    session.expiry_interval_s = EXPIRY_NEVER
    assert session.expires_at(5000) == 0
    session.disconnected_at_ms = 5000
    assert not session.is_expired(2**60)


def test_a_session_is_expired_from_its_end_on_and_only_offline() -> None:
    session = Session("c", "", 1)
    session.expiry_due_ms = 5000
    assert not session.is_expired(6000)
    session.disconnected_at_ms = 4000
    assert not session.is_expired(4999)
    assert session.is_expired(5000)


def test_a_sound_session_has_nothing_to_report() -> None:
    session = connected()
    session.bind(5, 1)
    session.bind(6, 2)
    packet_id = session.bind(7, FROM_GROUP | 1)
    session.leases[packet_id] = ("g", "t")
    assert list(session.invariants()) == []


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (2000 << REFERENCE_SHIFT | FROM_LOG | 1, "names offset 2000, but the position is 1000"),
        (FROM_LOG | 1, "names offset 0, but the position is 1000"),
        (5 << REFERENCE_SHIFT | 3, "in flight at QoS 3"),
        (5 << REFERENCE_SHIFT, "in flight at QoS 0"),
        (5 << REFERENCE_SHIFT | RELEASED | 1, "released at QoS 1"),
        (5 << REFERENCE_SHIFT | FROM_MAILBOX | 1, "names mailbox row 5"),
        (5 << REFERENCE_SHIFT | FROM_GROUP | 1, "and its lease disagree"),
        (5 << REFERENCE_SHIFT | TOOK_QUOTA | 1, "send quota 10 with 1 of 10 taken"),
    ],
)
def test_what_cannot_be_is_reported(entry: int, problem: str) -> None:
    session = connected()
    session.in_flight[7] = entry
    assert any(problem in found for found in session.invariants())


def test_a_lease_of_nothing_and_an_impossible_id_are_reported() -> None:
    session = connected()
    session.leases[9] = ("g", "t")
    session.in_flight[70_000] = 5 << REFERENCE_SHIFT | 1
    found = " ".join(session.invariants())
    assert "lease of packet id 9" in found and "packet id 70000" in found
