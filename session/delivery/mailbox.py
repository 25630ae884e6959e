"""Stored copies of messages that are in flight to stored sessions and are not in the log.

A topic's retained message may be replaced while the old one is in flight, and a message that was
fetched is only in an external store. The packet id must still stand for it, after a crash too. Read
next: `session.delivery.retained_replay`, `session.delivery.fetching.inbox`.
"""

from typing import Final

from session.delivery.context import DeliveryContext
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, SOURCE_MASK
from session.state.session import Session
from storage.tables.fetch_rows import Copy, decode_copy, encode_copy
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

    def keep(self, session: Session, reference: int, copy: Copy) -> None:
        """Store a copy."""
        key = mailbox_key(session.client_id, reference)
        self._tick.batch.append((MAILBOX, key, encode_copy(copy)))

    def load(self, session: Session, reference: int) -> Copy | None:
        """Return a copy; None if it is not stored."""
        row = self._store.get(MAILBOX, mailbox_key(session.client_id, reference))
        return None if row is None else decode_copy(row)

    def remove(self, session: Session, entry: int) -> None:
        """Delete the copy of an exchange that ended, if it has one."""
        if entry & SOURCE_MASK == FROM_MAILBOX and session.is_stored:
            key = mailbox_key(session.client_id, entry >> REFERENCE_SHIFT)
            self._tick.batch.append((MAILBOX, key, None))

    def drop_all(self, session: Session) -> None:
        """Delete all copies of a stored session that ends."""
        for entry in session.in_flight.values():
            self.remove(session, entry)
