"""The state of the current tick: its batch, and the records that changed.

A tick is everything between two writes. It is written as one batch, so the store always has the
state of a tick boundary. `session.live.commit_gate` decides which replies wait for the batch. Knows
no protocol. Read next: `session.engine`, which ends a tick.
"""

from typing import Final

from session.live.connection import Connection
from session.live.subscribers import Group
from session.state.session import Session
from storage.api import Batch

# A unit of work is one packet, one delivery, one index row, or 128 bytes read (2 ** UNIT_SHIFT), an
# ordinary message. It takes about 4 microseconds interpreted, 1 compiled.
UNIT_SHIFT: Final = 7
# Other work in these units: a retained row read and written, a CONNECT with all its rows, the
# clean-up of a lost connection, a filter of a SUBSCRIBE or UNSUBSCRIBE, one of a session that comes
# or goes, a shared subscription that gets a message, a step of an AUTH exchange.
RETAIN_WORK: Final = 4
CONNECT_WORK: Final = 32
LOSS_WORK: Final = 16
FILTER_WORK: Final = 4
ATTACH_WORK: Final = 2
GROUP_WORK: Final = 2
AUTH_WORK: Final = 16
# Short steps of a loop that count as one unit: a node of the filters looked at, a member or a group
# asked for room, a filter compared.
STEPS_SHIFT: Final = 3
# Bytes of a large message that are copied for each of its receivers: 8 KiB are a unit.
COPY_SHIFT: Final = 13

# Changes of a batch that the store refuses above which nobody may add to it: clients are not read
# from, and no client connects.
STALLED_CHANGES_MAX: Final = 4096


class Tick:
    """The time, the work and the changes of the current tick."""

    def __init__(self, progress_delay_ms: int) -> None:
        self._progress_delay_ms: Final = progress_delay_ms
        self.now: int = 0  # broker time, ms; set at every event
        self.work: int = 0  # done in this tick, see `session.scheduling.work_budget`
        # Serials of the last batch that is written, and that is durable.
        self.written: int = 0
        self.durable: int = 0
        self.work_max: int = 0  # where the turn of the present client ends; set by the budget
        self.batch: Batch = []
        # Session records to write with this batch, and those with QoS 1 progress only, which may be
        # written up to `progress_delay_ms` later: a crash within it costs duplicates.
        self.dirty: dict[Session, None] = {}
        self.late: dict[Session, None] = {}
        self.late_due_ms: int | None = None
        self.dirty_groups: dict[Group, None] = {}
        # Stored sessions that ended: in this batch, and in batches that are not durable yet (with
        # their serial). A crash would bring them back, so no reply may show yet that they ended.
        self.ending: list[str] = []
        self.ended: dict[str, int] = {}
        # Stored sessions that were disconnected or ended since the last written batch: of all
        # offline sessions only these may differ from the store.
        self.parted: set[str] = set()
        self.totals_changed: bool = False
        # Connections and groups with room that read from the store after the write.
        self.readers: dict[Connection, None] = {}
        self.group_readers: dict[Group, None] = {}

    def mark(self, session: Session) -> None:
        """Write the session's record with this batch."""
        if session.is_stored:
            self.dirty[session] = None

    def mark_late(self, session: Session) -> None:
        """Write the session's record soon: only QoS 1 messages were acknowledged."""
        if session.is_stored:
            self.late[session] = None
            if self.late_due_ms is None:
                self.late_due_ms = self.now + self._progress_delay_ms

    def batch_written(self, serial: int) -> None:
        """Begin the next batch: this one is written and has the serial `serial`."""
        self.written = serial
        self.batch = []
        self.parted.clear()
        if self.ending:
            self.ended.update(dict.fromkeys(self.ending, serial))
            self.ending.clear()

    def batch_committed(self, serial: int) -> None:
        """Note that batches up to `serial` are durable; forget the sessions that ended in them."""
        self.durable = serial
        if self.ended:
            self.ended = {name: at for name, at in self.ended.items() if at > serial}

    def forget(self, session: Session) -> None:
        """Write no record of a session that was removed."""
        self.dirty.pop(session, None)
        self.late.pop(session, None)
