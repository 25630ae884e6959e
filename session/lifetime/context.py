"""What everybody works with who handles clients and their packets, handed over as one.

Decides nothing. Read next: `session.lifetime.connect`, `session.packets.dispatch`.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from session.history.history import History
from session.live.connection import Connection
from session.live.core import Core, Database
from session.ports import Policy

# Told of what happens to a connection: event, connection, detail in words. Must not call back.
Observe: TypeAlias = Callable[[str, Connection, str], None]


class ClientContext:
    """The tick, the gate, the timers, the rules, and who counts, records and watches."""

    def __init__(
        self,
        core: Core,
        database: Database,
        policy: Policy,
        history: History,
        settle: Callable[[], bool],
        observe: Observe,
    ) -> None:
        """`settle` writes the open batch, so that loads see it; False if the store refused it."""
        self.tick: Final = core.tick
        self.gate: Final = core.gate
        self.due: Final = database.due
        self.settings: Final = core.settings
        self.policy: Final = policy
        self.counters: Final = core.counters
        self.history: Final = history
        self.settle: Final = settle
        self.observe: Final = observe
