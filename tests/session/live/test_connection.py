"""A connection: has it room, has it a backlog, and what does an idle one share with others?"""

import pytest

from mqtt.decoder import Decoder
from mqtt.message import Message
from session.live.connection import ACTIVE, CLOSED, CLOSING, Connection, Pending
from session.state.session import Replay, Session
from tests.session.harness import Stream


def active() -> Connection:
    """Return a connection with a session and an open window."""
    connection = Connection(1, Stream(), Decoder("server", 0), 1000, "tcp", "", None)
    connection.state = ACTIVE
    connection.session = Session("c", "", 1000)
    connection.session.begin_connection(2)
    return connection


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


def test_a_backlog_is_what_is_sent_as_soon_as_there_is_room() -> None:
    connection = active()
    assert connection.session is not None and not connection.has_backlog()
    connection.session.replays["t"] = Replay("t", 0, 0, b"")
    assert connection.has_backlog()
    connection.session.replays.clear()
    connection.is_lagging = True
    assert connection.has_backlog()
    connection.is_lagging = False
    connection.send_later(1)
    assert connection.has_backlog()
    connection.resend.clear()
    connection.queue(Pending(Message("t", b"", 1, False, b"", "p", 0, 0), 1, False, ()))
    assert connection.has_backlog()


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


def test_a_client_that_sent_no_connect_has_told_nothing() -> None:
    connection = Connection(1, Stream(), Decoder("server", 0), 1000, "tcp", "", None)
    told = (connection.client_id, connection.username, connection.keep_alive_s)
    assert told == ("", "", 0) and connection.version == 0
