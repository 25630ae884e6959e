"""Planted bugs of packet ids that are bound ahead of the send window.

Read next: `session.delivery.window.ahead`.
"""

from typing import Any

import session.lifetime.repository
import session.state.records
from session.lifetime.repository import Sessions
from session.live.connection import Connection
from session.state.in_flight import PERHAPS_SENT
from session.state.session import Session
from tests.simulation.planting import Patcher, mutant


@mutant("qos2", seeds=300, start=458)
def packet_ids_bound_ahead_are_not_stored(patcher: Patcher) -> None:
    """The record lacks the packet ids that are bound ahead."""

    def around(original: Any, record: Session) -> bytes:
        reserved, record.reserved = record.reserved, None
        try:
            return original(record)  # type: ignore[no-any-return]
        finally:
            record.reserved = reserved

    patcher.wrap(session.lifetime.repository, "encode_session", around)


@mutant("qos2")
def the_position_passes_what_is_bound_ahead(patcher: Patcher) -> None:
    """A message counts as sent when its packet id is bound."""

    def around(original: Any, self: Sessions, connection: Connection) -> None:
        session = connection.session
        assert session is not None
        position = connection.bound_to(session)
        original(self, connection)
        session.position = max(session.position, position)

    patcher.wrap(Sessions, "detach", around)


@mutant("qos2", start=44)
def what_is_bound_ahead_counts_as_in_flight_after_a_disconnect(patcher: Patcher) -> None:
    """What a connection did not send is sent by the next one as if it had been."""

    def around(original: Any, self: Sessions, connection: Connection) -> None:
        session = connection.session
        assert session is not None
        reserved, position = session.reserved, connection.bound_to(session)
        original(self, connection)
        session.in_flight.update(reserved or {})
        session.position = max(session.position, position)

    patcher.wrap(Sessions, "detach", around)


@mutant("qos2")
def live_messages_overtake_what_is_bound_ahead(patcher: Patcher) -> None:
    """Only messages without a packet id are in the way of a new one."""
    patcher.set(Connection, "has_queued", lambda self: bool(self.pending))


@mutant("qos2")
def what_was_perhaps_sent_is_not_in_flight_after_a_crash(patcher: Patcher) -> None:
    """After a crash nobody knows of the packet ids that were bound ahead."""

    def around(original: Any, client_id: str, value: bytes) -> Session:
        loaded: Session = original(client_id, value)
        for packet_id, entry in list(loaded.in_flight.items()):
            if entry & PERHAPS_SENT:
                del loaded.in_flight[packet_id]
        return loaded

    patcher.wrap(session.lifetime.repository, "decode_session", around)


@mutant("qos2", start=10, in_history=True)
def what_was_perhaps_sent_is_told_as_sent_again(patcher: Patcher) -> None:
    """The history has no first delivery of a message that a crash left in doubt."""

    def around(original: Any, record: Session) -> bytes:
        for packet_id, entry in record.in_flight.items():
            record.in_flight[packet_id] = entry & ~PERHAPS_SENT
        return original(record)  # type: ignore[no-any-return]

    patcher.wrap(session.lifetime.repository, "encode_session", around)
