"""The progress of the search for a session that still needs a generation.

The search looks at one slice of sessions after another while clients connect and leave. A session
that goes offline in a part that was already searched starts it again. Must never read the store.
Read next: `session.lifetime.collection`, which searches.
"""

from session.live.subscribers import Group
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, SOURCE_MASK
from session.state.session import Session
from storage.log.message_log import Cursor, Generation


class Sweep:
    """A search for a session that still needs a generation; there is one at a time."""

    def __init__(self) -> None:
        self.generation: Generation | None = None  # None = no search is running
        self.after = b""  # the next slice starts at this key
        self.groups: list[Group] | None = None  # still to be looked at; None = not begun
        # In a layout without an index: a search for the first message that the session with the key
        # `searched` still has to get (b"" = a group).
        self.search: Cursor | None = None
        self.searched = b""
        self.pin: bytes | None = None  # key of the session that stopped the last sweep

    def begin(self, generation: Generation) -> None:
        """Start a search for a session that needs this generation."""
        self.generation = generation
        self.searched = b""
        self.restart()

    def restart(self) -> None:
        """Search again from the first session."""
        self.after = b""
        self.groups = None
        self.search = None

    def end(self) -> None:
        """End the search: a session was found, or there is none."""
        self.generation = None
        self.search = None

    def session_offline(self, session: Session) -> None:
        """Start the search again if a session that goes offline needs the generation."""
        generation = self.generation
        if generation is None:
            return
        last = generation.last_offset
        if session.position < last or oldest_in_flight(session) <= last:
            self.pin = session.client_id.encode()
            self.restart()


def oldest_in_flight(session: Session) -> int:
    """Return the lowest log offset in flight, or one above all offsets."""
    return min(
        (
            entry >> REFERENCE_SHIFT
            for entry in session.in_flight.values()
            if entry & SOURCE_MASK != FROM_MAILBOX and entry >> REFERENCE_SHIFT
        ),
        default=1 << 63,
    )
