"""The progress of the search for sessions that still need a generation.

The search looks at one slice of sessions after another while clients connect and leave. A session
that goes offline meanwhile is looked at once more. What a search found is only in memory: after a
crash the next one finds it again. Must never read the store. Read next:
`session.lifetime.collection`, which searches.
"""

from collections.abc import Sequence
from typing import Final

from session.live.connection import Connection
from session.live.subscribers import Group
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, SOURCE_MASK
from session.state.session import Session
from storage.log.gaps import NO_GAPS, Gaps
from storage.log.generations import INDEXED
from storage.log.message_log import Cursor, Generation, Stream

# Sessions that go offline during a search and are to be looked at again. With more of them the
# search ends without a result; the next one begins soon.
WAITING_MAX: Final = 4096


class Candidate:
    """Offsets of a generation that nobody may need: all of a closed one, the first of the open."""

    __slots__ = ("first", "is_indexed", "is_open", "last", "number")

    def __init__(self, generation: Generation, last: int) -> None:
        self.number: int = generation.number
        self.first: int = generation.first_offset
        self.last: int = last
        self.is_open: bool = not generation.is_closed
        self.is_indexed: bool = generation.layout in INDEXED


class Sweep:
    """A search for sessions that still need some generations; there is one at a time."""

    def __init__(self) -> None:
        # Those that nobody was found to need yet, oldest first; empty = no search is running.
        self.candidates: list[Candidate] = []
        self.after = b""  # the next slice of sessions starts at this key
        self.is_through = False  # were all sessions looked at?
        self.groups: list[Group] | None = None  # still to be looked at; None = not begun
        self.backends: list[str] = []  # names of those still to be looked at
        self.connections: list[Connection] = []  # still to be looked at
        # What these had to get of the candidates was found; it can only be less since, except for
        # messages that others gave back to a group.
        self.checked: set[Connection] = set()
        self.waiting: dict[bytes, None] = {}  # keys of sessions to be looked at next
        # Without an index, or with many streams: a search for the messages that the session with
        # the key `searched` still has to get (b"" = a group or a backend).
        self.search: Cursor | None = None
        self.streams: Sequence[Stream] = ()
        self.gaps: Gaps = NO_GAPS
        self.searched = b""
        # Key of the session that was found to need a generation last, by the generation's number.
        self.pins: dict[int, bytes] = {}
        self.left: int = 0  # sessions so far that went offline and had to be looked at again

    def begin(self, candidates: list[Candidate]) -> None:
        """Start a search for sessions that need these, which must be in the log's order.

        The sessions that needed them last are looked at first.
        """
        self.candidates = candidates
        self.after = b""
        self.is_through = False
        self.groups = None
        self.search = None
        self.connections = []
        self.checked = set()
        self.waiting = {
            self.pins[each.number]: None for each in candidates if each.number in self.pins
        }

    def end(self) -> None:
        """End the search."""
        self.candidates = []
        self.waiting = {}
        self.search = None
        self.connections = []
        self.checked = set()

    def pin(self, candidate: Candidate, key: bytes) -> None:
        """Note that a session needs it, b"" = one in memory, a group, a backend; it may end."""
        self.candidates.remove(candidate)
        if key:
            self.pins[candidate.number] = key
        if not self.candidates:
            self.end()

    def pin_in_flight(self, session: Session, key: bytes) -> None:
        """Note which candidates have a message in flight to the session."""
        for candidate in list(self.candidates):
            if _is_in_flight(session, candidate.first, candidate.last):
                self.pin(candidate, key)

    def pin_offset(self, offset: int) -> None:
        """Note that the message at an offset is needed by one in memory."""
        for candidate in self.candidates:
            if candidate.first <= offset <= candidate.last:
                self.pin(candidate, b"")
                return

    def last(self) -> int:
        """Return the last offset of all candidates, 0 = none is left."""
        return self.candidates[-1].last if self.candidates else 0

    def generation_dropped(self, number: int) -> None:
        """Forget a generation, and who needed it."""
        self.pins.pop(number, None)
        left = [each for each in self.candidates if each.number != number]
        if len(left) < len(self.candidates):
            self.candidates = left
            if not left:
                self.end()

    def session_offline(self, session: Session) -> None:
        """Look at a session again that goes offline and may need a candidate."""
        last = self.last()
        if session.position < last or oldest_in_flight(session) <= last:
            self.waiting[session.client_id.encode()] = None
            self.left += 1
            if len(self.waiting) > WAITING_MAX:
                self.end()


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


def _is_in_flight(session: Session, first: int, last: int) -> bool:
    """Is a message with one of these log offsets in flight?"""
    for entry in session.in_flight.values():
        if entry & SOURCE_MASK != FROM_MAILBOX and first <= entry >> REFERENCE_SHIFT <= last:
            return True
    return False
