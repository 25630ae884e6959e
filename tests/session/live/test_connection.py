"""A connection's buffers: what leaves at once, what waits, and in which order it leaves."""

import pytest

from mqtt.decoder import Decoder
from mqtt.message import Message
from session.live.connection import ACTIVE, CLOSED, CLOSING, Connection, Pending, Waiting
from session.live.tick import Tick
from session.state.session import Session
from tests.session.harness import Stream


def active() -> Connection:
    """Return a connection with a session and an open window."""
    connection = Connection(1, Stream(), Decoder("server", 0), 1000, "tcp", "", None)
    connection.state = ACTIVE
    connection.session = Session("c", "", 1000)
    connection.session.begin_connection(2)
    return connection


def attach(connection: Connection, serial: int = 1) -> Waiting:
    """Tie what is held to a batch, as the engine does at the end of a tick."""
    waiting = Waiting(
        serial, connection, connection.held, connection.held_acks, connection.held_messages
    )
    connection.held, connection.held_acks, connection.held_messages = [], 0, 0
    connection.commits_owed += 1
    connection.last_waiting = waiting
    return waiting


def test_an_open_window_has_room() -> None:
    assert active().has_room()


@pytest.mark.parametrize("state", [CLOSING, CLOSED])
def test_a_connection_that_ends_has_no_room(state: int) -> None:
    connection = active()
    connection.state = state
    assert not connection.has_room()


def test_there_is_no_room_without_quota_behind_resends_or_for_a_slow_client() -> None:
    connection = active()
    assert connection.session is not None
    connection.session.send_quota = 0
    assert not connection.has_room()
    connection.session.send_quota = 1
    connection.send_later(1)
    assert not connection.has_room()
    connection.resend.clear()
    connection.writable = False
    assert not connection.has_room()
    connection.writable = True
    connection.session = None
    assert not connection.has_room()


def test_what_is_sent_leaves_with_this_tick_and_the_connection_is_listed_once() -> None:
    tick, connection = Tick(200), active()
    tick.send(connection, b"a")
    tick.send(connection, b"b")
    assert connection.out == [b"a", b"b"] and tick.touched == [connection]


def test_what_is_held_waits_and_is_counted() -> None:
    tick, connection = Tick(200), active()
    tick.hold(connection, b"abc")
    tick.hold(connection, b"d")
    assert connection.out == [] and connection.held == [b"abc", b"d"]
    assert connection.held_bytes == 4 and tick.holding == [connection]


def test_behind_a_held_connack_everything_waits() -> None:
    tick, connection = Tick(200), active()
    connection.gated = True
    tick.send(connection, b"a")
    tick.follow(connection, b"b")
    tick.follow_message(connection, b"c")
    assert connection.out == [] and connection.held == [b"a", b"b", b"c"]


def test_a_follower_leaves_at_once_if_nothing_is_held() -> None:
    tick, connection = Tick(200), active()
    tick.follow(connection, b"a")
    tick.follow_message(connection, b"b")
    assert connection.out == [b"a", b"b"] and connection.messages_behind == 0


def test_a_follower_stays_behind_what_is_held_in_this_tick() -> None:
    tick, connection = Tick(200), active()
    tick.hold(connection, b"a")
    tick.follow(connection, b"b")
    assert connection.held == [b"a", b"b"]


def test_a_follower_joins_what_waits_for_an_earlier_commit_and_waits_no_longer() -> None:
    tick, connection = Tick(200), active()
    tick.hold(connection, b"a")
    waiting = attach(connection)
    tick.follow(connection, b"b")
    tick.follow_message(connection, b"cc")
    assert waiting.data == [b"a", b"b", b"cc"] and connection.held == []
    assert waiting.size == connection.held_bytes == 4
    assert waiting.messages == connection.messages_behind == 1


def test_held_messages_are_counted_until_they_are_released() -> None:
    tick, connection = Tick(200), active()
    tick.hold_message(connection, b"a")
    tick.hold(connection, b"b")
    tick.hold_message(connection, b"c")
    assert connection.messages_behind == connection.held_messages == 2
    waiting = attach(connection)
    assert waiting.messages == 2 and connection.messages_behind == 2


def test_a_closed_connection_is_not_closed_again() -> None:
    tick, connection = Tick(200), active()
    tick.close(connection)
    connection.state = CLOSED
    tick.close(connection)
    assert tick.closing == [connection]


def test_only_stored_sessions_have_records_to_write() -> None:
    tick = Tick(200)
    session = Session("c", "", 1)
    tick.mark(session)
    tick.mark_late(session)
    assert not tick.dirty and not tick.late and tick.late_due_ms is None
    session.is_stored = True
    tick.now = 1000
    tick.mark(session)
    tick.mark_late(session)
    tick.now = 1100
    tick.mark_late(session)
    assert list(tick.dirty) == list(tick.late) == [session]
    assert tick.late_due_ms == 1200  # counted from the first
    tick.forget(session)
    assert not tick.dirty and not tick.late


def test_what_waits_for_one_connection_waits_for_no_other() -> None:
    """An idle connection has no queue of its own: all of them share empty ones."""
    first, second = active(), active()
    message = Message("t", b"four", 1, False, b"", "p", 0, 0)
    assert first.pending is second.pending and first.resend is second.resend
    first.queue(Pending(message, 1, False, ()))
    first.send_later(7)
    assert not second.pending and not second.resend
    assert first.pending_bytes == 4 and first.next_pending().message is message
    assert first.pending is second.pending and first.pending_bytes == 0
    first.queue(Pending(message, 1, False, ()))
    first.clear_queue()
    assert first.pending is second.pending and first.pending_bytes == 0
