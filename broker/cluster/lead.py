"""What a process has open when it begins to lead its cluster.

Read next: `broker.cluster.member`, `broker.process.open`, which opens the rest.
"""

from dataclasses import dataclass

from broker.cluster.member import Member
from storage.local.data_directory import DataDirectory
from storage.local.opening import OpenDatabase
from storage.time import machine_clocks


@dataclass(frozen=True, slots=True)
class Lead:
    """A member that leads, and what it holds open."""

    member: Member
    directory: DataDirectory
    opened: OpenDatabase
    alive_ms: int  # broker time when the leader before was heard last, 0 = never
    alive_at_ms: int  # and this machine's boot-time clock then
    is_timed: bool = True  # was it heard when it said so? Otherwise `alive_at_ms` is too late

    def resumed_ms(self) -> int:
        """Return broker time now, as far as the log tells: it went on while nobody led."""
        return self.alive_ms + machine_clocks.boottime_ms() - self.alive_at_ms
