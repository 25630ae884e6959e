"""Two groups of objects that nearly every part of the engine needs.

Must never have behaviour. A part that uses one of the objects often keeps it in an attribute of its
own. Read next: `session.assembly`.
"""

from typing import Final

from session.counters import Counters
from session.live.commit_gate import CommitGate
from session.live.damage import Damage
from session.live.losses import Losses
from session.live.tick import Tick
from session.settings import Settings
from storage.api import Store
from storage.log.message_log import MessageLog
from storage.tables.tables import Totals
from storage.tables.timers import Due


class Core:
    """The tick, the commit gate, the settings, the counters, and what of the store is damaged."""

    __slots__ = ("counters", "damage", "gate", "losses", "settings", "tick")

    def __init__(
        self, tick: Tick, gate: CommitGate, settings: Settings, counters: Counters
    ) -> None:
        self.tick: Final = tick
        self.gate: Final = gate
        self.settings: Final = settings
        self.counters: Final = counters
        self.damage: Final = Damage(counters)
        self.losses: Final = Losses()


class Database:
    """The opened store and its tables that are kept in memory."""

    __slots__ = ("boot", "due", "log", "store", "totals")

    def __init__(self, store: Store, log: MessageLog, due: Due, totals: Totals, boot: int) -> None:
        self.store: Final = store
        self.log: Final = log
        self.due: Final = due
        self.totals: Final = totals
        self.boot: Final = boot  # number of starts on this store, with this one
