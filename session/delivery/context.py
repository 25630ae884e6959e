"""What the parts of delivery share.

Decides nothing. Read next: `session.delivery.delivery`, which makes the parts.
"""

from typing import Final

from session.history.history import History
from session.live.core import Core, Database
from session.ports import Policy
from session.routing.router import Router


class DeliveryContext:
    """The tick, the gate, the store and its log, the routes, the policy, counters and history."""

    def __init__(
        self,
        core: Core,
        database: Database,
        routes: Router,
        policy: Policy,
        history: History,
    ) -> None:
        settings = core.settings
        self.tick: Final = core.tick
        self.gate: Final = core.gate
        self.store: Final = database.store
        self.log: Final = database.log
        self.routes: Final = routes
        self.settings: Final = settings
        self.policy: Final = policy
        self.is_open: Final = policy.is_open  # the policy permits everything and is not asked
        self.counters: Final = core.counters
        self.damage: Final = core.damage
        self.losses: Final = core.losses
        self.history: Final = history
