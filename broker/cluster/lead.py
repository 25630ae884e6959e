"""What a process has open when it begins to lead its cluster.

Read next: `broker.cluster.member`, `broker.process.open`, which opens the rest.
"""

from dataclasses import dataclass

from broker.cluster.member import Member
from session.routing.loading import FilterLoad
from storage.api import Store
from storage.local.data_directory import DataDirectory
from storage.local.opening import OpenDatabase
from storage.replicated.roles.terms import Leads
from storage.tables.tables import META
from storage.time import machine_clocks
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat


@dataclass(frozen=True, slots=True)
class Lead:
    """A member that leads, and what it holds open."""

    member: Member
    directory: DataDirectory
    opened: OpenDatabase
    alive_ms: int  # broker time when the leader before was heard last, 0 = never
    alive_at_ms: int  # and this machine's boot-time clock then
    filters: FilterLoad
    is_timed: bool = True  # was it heard when it said so? Otherwise `alive_at_ms` is too late

    def resumed_ms(self) -> int:
        """Return broker time now, as far as the log tells: it went on while nobody led."""
        return self.alive_ms + machine_clocks.boottime_ms() - self.alive_at_ms


def alive_ms(leads: Leads, store: Store) -> int:
    """Return the time of the last leader as many ms ago as it is silent, 0 = nobody knows.

    One that wrote and was never heard had at its last batch the time in that, or a later one.
    """
    value = store.get(META, HEARTBEAT_KEY)
    if leads.alive_ms or not leads.silent_ms or value is None:
        return leads.alive_ms
    return Heartbeat.decode(value).broker_ms
