"""How far the search for a session that still needs a generation has come.

It looks at one slice of sessions after another while clients come and go. Who goes offline behind
it is looked at again. Must never read the store. Read next: `session.lifetime.collection`, which
searches.
"""

from session.live.subscribers import Group
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, SOURCE_MASK
from session.state.session import Session
from storage.log.message_log import Cursor, Generation


class Sweep:
    """The search for a session that still needs a generation; there is one at a time."""

    def __init__(self) -> None:
        self.generation: Generation | None = None  # None = nothing is searched for
        self.after = b""  # key behind the last session that was looked at
        self.groups: list[Group] | None = None  # those to be looked at; None = it begins
        # What the session under this key (b"" = a group) is owed, where the layout has no index to
        # say so at once.
        self.search: Cursor | None = None
        self.searched = b""
        self.pin: bytes | None = None  # key of the session that was found pinning last

    def begin(self, generation: Generation) -> None:
        """Search for whoever needs this generation."""
        self.generation = generation
        self.searched = b""
        self.begin_again()

    def begin_again(self) -> None:
        """Forget what was looked at."""
        self.after = b""
        self.groups = None
        self.search = None

    def end(self) -> None:
        """The search is over: somebody was found, or nobody is left."""
        self.generation = None
        self.search = None

    def parted(self, session: Session) -> None:
        """A stored session goes offline: a search that has passed it must look at it."""
        generation = self.generation
        if generation is None:
            return
        last = generation.last_offset
        if session.position < last or oldest_in_flight(session) <= last:
            self.pin = session.client_id.encode()
            self.begin_again()


def oldest_in_flight(session: Session) -> int:
    """Return the lowest log offset that is in flight, or more than any."""
    return min(
        (
            entry >> REFERENCE_SHIFT
            for entry in session.in_flight.values()
            if entry & SOURCE_MASK != FROM_MAILBOX and entry >> REFERENCE_SHIFT
        ),
        default=1 << 63,
    )
