"""Copies of the retained messages that are in flight to stored sessions.

A topic's retained message may be replaced while the old one is in flight; the packet id must keep
the message it was bound to, over a crash too. Read next: `session.delivery.retained_replay`.
"""

from typing import Final

from mqtt.message import Message
from session.delivery.context import DeliveryContext
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, SOURCE_MASK
from session.state.session import Session
from storage.tables.message_record import decode_message, encode_message
from storage.tables.tables import MAILBOX, mailbox_key


class Mailbox:
    """The rows of these copies: written with the batch of the packet id, removed with its end."""

    def __init__(self, context: DeliveryContext) -> None:
        self._tick: Final = context.tick
        self._store: Final = context.store

    def reserve(self, session: Session) -> int:
        """Return the reference of the session's next copy."""
        reference = session.next_mailbox
        session.next_mailbox += 1
        return reference

    def keep(self, session: Session, reference: int, identifier: int, message: Message) -> None:
        """Keep a copy, with the subscription identifier it is sent with; 0 = none."""
        row = identifier.to_bytes(4, "big") + encode_message(message)
        self._tick.batch.append((MAILBOX, mailbox_key(session.client_id, reference), row))

    def load(self, session: Session, reference: int) -> tuple[Message, tuple[int, ...]] | None:
        """Return a copy from the store, and its subscription identifiers; None if it is gone."""
        row = self._store.get(MAILBOX, mailbox_key(session.client_id, reference))
        if row is None:
            return None
        identifier = int.from_bytes(row[:4], "big")
        return decode_message(row[4:], 0), (identifier,) if identifier else ()

    def finished(self, session: Session, entry: int) -> None:
        """Drop what was kept for an exchange that ended."""
        if entry & SOURCE_MASK == FROM_MAILBOX and session.is_stored:
            key = mailbox_key(session.client_id, entry >> REFERENCE_SHIFT)
            self._tick.batch.append((MAILBOX, key, None))

    def drop_all(self, session: Session) -> None:
        """Remove all mailbox rows of a stored session that ends: each is in flight."""
        for entry in session.in_flight.values():
            self.finished(session, entry)
