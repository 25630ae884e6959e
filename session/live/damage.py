"""What of the store cannot be read: counted and told once for each place, while the broker goes on.

A damaged row costs what it holds. Those who read pass over it, say here what it was, and drop
nothing else. Must never delete a row: an operator may still rescue it. Read next:
`storage.errors` (`DamagedRows`), `storage.tables.tables` (`scan_readable`).
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from session.counters import Counters
from storage.errors import DamagedRows
from storage.log.message_log import Cursor

# Told of damage: what the rows hold (`session.counters.DAMAGED_KINDS`), the error, the client
# identifier or "", a topic or the offsets of messages or "". Must not call back.
TellDamage: TypeAlias = Callable[[str, str, str, str], None]
# Places that are remembered; damage beyond them is counted each time and not told.
PLACES_MAX: Final = 10_000


class Damage:
    """Counts and tells what cannot be read."""

    def __init__(self, counters: Counters) -> None:
        self._counters: Final = counters
        self._places: Final[set[tuple[str, str, str]]] = set()
        self.tell: TellDamage = _untold

    def note(self, what: str, problem: DamagedRows, client_id: str = "", detail: str = "") -> None:
        """Count a damaged place and tell of it, if it is new; of a session if its client is."""
        text = str(problem)
        place = (what, client_id if what == "session" else "", text)
        if place in self._places:
            return
        self._counters.damaged_rows[what] += 1
        if len(self._places) < PLACES_MAX:
            self._places.add(place)
            self.tell(what, text, client_id, detail)

    def note_all(self, what: str, problems: list[DamagedRows]) -> None:
        """Note each of these, and empty the list."""
        for problem in problems:
            self.note(what, problem)
        problems.clear()

    def passed_over(self, cursor: Cursor, client_id: str = "") -> list[int]:
        """Note what a cursor has passed over; return the offsets, and empty its list."""
        lost = cursor.lost
        cursor.lost = []
        if cursor.damage is not None and lost:
            offsets = f"{lost[0]}" if len(lost) == 1 else f"{lost[0]} to {lost[-1]}"
            self.note("message", cursor.damage, client_id, f"offsets {offsets}")
        cursor.damage = None
        return lost


def _untold(what: str, text: str, client_id: str, detail: str) -> None:
    """Do nothing: nobody is told."""
