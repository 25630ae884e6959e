"""Stored copies of the retained messages that are in flight to stored sessions.

A topic's retained message may be replaced while the old one is in flight. The packet id must still
stand for the old one, after a crash too. Read next: `session.delivery.retained_replay`.
"""

from typing import Final

from mqtt.message import Message
from session.delivery.context import DeliveryContext
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, SOURCE_MASK
from session.state.session import Session
from storage.tables.message_record import decode_message, encode_message
from storage.tables.tables import MAILBOX, mailbox_key


class Mailbox:
    """Writes a copy in the batch that binds the packet id, and deletes it when the id is free."""

    def __init__(self, context: DeliveryContext) -> None:
        self._tick: Final = context.tick
        self._store: Final = context.store

    def reserve(self, session: Session) -> int:
        """Return the reference of the session's next copy."""
        reference = session.next_mailbox
        session.next_mailbox += 1
        return reference

    def keep(self, session: Session, reference: int, identifier: int, message: Message) -> None:
        """Store a copy with its subscription identifier; 0 = none."""
        row = identifier.to_bytes(4, "big") + encode_message(message)
        self._tick.batch.append((MAILBOX, mailbox_key(session.client_id, reference), row))

    def load(self, session: Session, reference: int) -> tuple[Message, tuple[int, ...]] | None:
        """Return a copy and its subscription identifiers; None if it is not stored."""
        row = self._store.get(MAILBOX, mailbox_key(session.client_id, reference))
        if row is None:
            return None
        identifier = int.from_bytes(row[:4], "big")
        return decode_message(row[4:], 0), (identifier,) if identifier else ()

    def remove(self, session: Session, entry: int) -> None:
        """Delete the copy of an exchange that ended, if it has one."""
        if entry & SOURCE_MASK == FROM_MAILBOX and session.is_stored:
            key = mailbox_key(session.client_id, entry >> REFERENCE_SHIFT)
            self._tick.batch.append((MAILBOX, key, None))

    def drop_all(self, session: Session) -> None:
        """Delete all copies of a stored session that ends."""
        for entry in session.in_flight.values():
            self.remove(session, entry)
