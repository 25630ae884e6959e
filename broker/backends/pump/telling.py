"""What an operator is told of the feed of one store: log lines, and the figures that go with them.

Decides which dead letters are kept, since the others are told as a gap. Must never send anything,
or change what the store gets. Read next: `broker.backends.pump.pump`.
"""

import binascii
from collections.abc import Iterable, Sequence
from typing import Any, Final

from broker.backends import resumption
from broker.backends.rows import Cursor
from broker.observe.backend_figures import BackendFigures
from broker.observe.structured_log import Log
from session.feed.dead_letters import DeadLetter
from session.feed.outlet import FeedOutlet
from storage.tables.feed_rows import FeedEvent

# Whoever may publish may be able to make rows that a store refuses: they must not fill the disk.
DEAD_LETTERS_MAX: Final = 10_000
DEAD_LETTER_BYTES_MAX: Final = 64 << 10  # of a row that is kept with its letter


class Telling:
    """Tells of one store."""

    def __init__(self, name: str, outlet: FeedOutlet, figures: BackendFigures, log: Log) -> None:
        self._name: Final = name
        self._outlet: Final = outlet
        self._figures: Final = figures
        self._log: Final = log
        self._was_refusing = False
        self._drops: int = 0  # of the outlet, as far as the log has them

    def resumed(self, found: resumption.Resumption, theirs: Cursor | None) -> None:
        """Log and count what the store's cursor means, if it is not as it should be."""
        kind, log, backend = found.kind, self._log, self._name
        confirmed = self._outlet.cursor(backend)
        if kind in (resumption.REWIND, resumption.LOST):
            self._figures.rewinds += 1
            log.warning(
                "backend_rewound",
                f"the store has lost what it had confirmed: it is at {theirs or 'nothing'}, not at "
                f"{confirmed}; "
                f"everything after {found.cursor} is sent again",
                backend=backend,
            )
        if kind == resumption.LOST:
            self.gap(
                f"the rows between {theirs or 'its beginning'} and {found.cursor} are not kept any "
                "more (rewind_keep)"
            )
        elif kind == resumption.AHEAD:
            log.warning(
                "backend_ahead",
                f"the store is at {theirs} and this database at {self._outlet.end()}: an earlier "
                f"copy was restored; it goes on from {found.cursor}, under a new mark",
                backend=backend,
            )
        elif kind == resumption.NEW:
            log.info(
                "backend_new",
                f"the store has nothing of this database; it starts at {found.cursor}",
                backend=backend,
            )

    def full(self) -> None:
        """Log it if too much waits, once for each time that something is done about it."""
        drops = self._outlet.drops(self._name)
        if drops != self._drops:
            self._drops = drops
            self._log.warning(
                "backend_full",
                "backlog_bytes_max is reached: the oldest rows are dropped",
                backend=self._name,
            )
        is_refusing = self._outlet.is_refusing(self._name)
        if is_refusing != self._was_refusing:
            self._was_refusing = is_refusing
            if is_refusing:
                what = "backlog_bytes_max is reached: QoS 1 and 2 messages for it are refused"
                self._log.warning("backend_full", what, backend=self._name)
            else:
                what = "messages are taken again"
                self._log.info("backend_has_room", what, backend=self._name)

    def gap(self, what: str) -> None:
        """Log and count rows that the store does not get."""
        self._figures.gaps += 1
        self._log.error("backend_gap", f"{what}; the store does not get them", backend=self._name)

    def gap_rows(self, gaps: Iterable[FeedEvent]) -> None:
        """Tell of gaps that the store has been told of."""
        for gap in gaps:
            what = gap.text
            if gap.offset:
                what += (
                    f": the messages {gap.offset} to {gap.accepted_ms} of the log, as far as rules "
                    "want them"
                )
            self.gap(what)

    def dead_letters(self, told: Sequence[Any]) -> tuple[list[DeadLetter], list[Cursor]]:
        """Tell of the rows that the store has refused; return those that are kept.

        And the cursors of the others.
        """
        room = DEAD_LETTERS_MAX - self._outlet.stats(self._name).dead_letters if told else 0
        kept: list[DeadLetter] = []
        gone: list[Cursor] = []
        for letter in map(_dead_letter, told):
            self._log.error(
                "backend_dead_letter",
                f"rule {letter.rule}: {letter.why}",
                backend=self._name,
                position=letter.at[0],
                event_number=letter.at[1],
            )
            if len(kept) < room:
                kept.append(letter)
            else:
                gone.append(letter.at)
        if len(kept) < len(told):
            self.gap(
                f"{len(told) - len(kept)} rows were refused while {DEAD_LETTERS_MAX} dead letters "
                "are kept already"
            )
        return kept, gone


def cursor_of(value: Any) -> Cursor:
    """Return a cursor that a process has sent."""
    position, seq = value
    return int(position), int(seq)


def _dead_letter(value: Any) -> DeadLetter:
    row = binascii.a2b_base64(value["row"])
    if len(row) > DEAD_LETTER_BYTES_MAX:
        row = b""
    return DeadLetter(cursor_of(value["at"]), str(value["rule"]), str(value["why"]), row)
