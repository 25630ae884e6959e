"""What one tick gathers: its batch, and which records changed.

One tick is everything that happens between two writes. It is written as one batch, so the store
always holds the broker as it was at some tick boundary; which replies wait for that batch is up to
`session.live.commit_gate`. Knows no protocol. Read next: `session.engine`, which ends a tick.
"""

from typing import Final

from session.live.connection import Connection
from session.live.subscribers import Group
from session.state.session import Session
from storage.api import Batch

# A unit of work is one delivery or so many bytes read: 128, an ordinary message. Interpreted it is
# about 4 microseconds, compiled 1.
UNIT_SHIFT: Final = 7
# What is no delivery, in units: a retained row read and written, a CONNECT with all its rows, the
# parting from a lost connection, a filter of a SUBSCRIBE or UNSUBSCRIBE.
RETAIN_WORK: Final = 4
CONNECT_WORK: Final = 32
LOSS_WORK: Final = 16
FILTER_WORK: Final = 4


class Tick:
    """The changes of the current tick."""

    def __init__(self, progress_delay_ms: int) -> None:
        self._progress_delay_ms: Final = progress_delay_ms
        self.now: int = 0  # broker time, ms; set at every event
        self.work: int = 0  # done in this tick, see `session.scheduling.work_budget`
        self.batch: Batch = []
        # Session records to write with this batch, and those whose only news is QoS 1 progress,
        # which may reach the store up to `progress_delay_ms` late: a crash then costs duplicates.
        self.dirty: dict[Session, None] = {}
        self.late: dict[Session, None] = {}
        self.late_due_ms: int | None = None
        self.dirty_groups: dict[Group, None] = {}
        # Stored sessions that ended: in this batch, and in batches that are not durable yet (by the
        # batch's serial). A crash would bring them back, so nobody may be told that they are gone.
        self.ending: list[str] = []
        self.ended: dict[str, int] = {}
        # Stored sessions that lost their connection, or ended, in the batch that is not written
        # yet: of all offline ones only theirs may differ from what the store has.
        self.parted: set[str] = set()
        self.totals_changed: bool = False
        # Connections and groups with room that want to read from the store after the write.
        self.readers: dict[Connection, None] = {}
        self.group_readers: dict[Group, None] = {}

    def mark(self, session: Session) -> None:
        """The session's record changed and belongs into this batch."""
        if session.is_stored:
            self.dirty[session] = None

    def mark_late(self, session: Session) -> None:
        """The session made QoS 1 progress; its record may be written a little later."""
        if session.is_stored:
            self.late[session] = None
            if self.late_due_ms is None:
                self.late_due_ms = self.now + self._progress_delay_ms

    def batch_written(self, serial: int) -> None:
        """Begin the next batch: this one is written and has the serial `serial`."""
        self.batch = []
        self.parted.clear()
        if self.ending:
            self.ended.update(dict.fromkeys(self.ending, serial))
            self.ending.clear()

    def batch_committed(self, serial: int) -> None:
        """Forget the ended sessions of batches up to `serial`, which are durable now."""
        if self.ended:
            self.ended = {name: at for name, at in self.ended.items() if at > serial}

    def forget(self, session: Session) -> None:
        """The session is gone; its record must not be written any more."""
        self.dirty.pop(session, None)
        self.late.pop(session, None)
