"""What every part of delivery works with, handed over as one.

Decides nothing. Read next: `session.delivery.delivery`, which makes the parts.
"""

from typing import Final

from session.counters import Counters
from session.history.delivery_events import Dispatches
from session.live.commit_gate import CommitGate
from session.live.tick import Tick
from session.ports import Policy
from session.routing.router import Routes
from session.settings import Settings
from storage.api import Store
from storage.log.message_log import MessageLog


class DeliveryContext:
    """The tick, the gate, the store and its log, routes, rules, and who counts and records."""

    def __init__(
        self,
        tick: Tick,
        gate: CommitGate,
        store: Store,
        log: MessageLog,
        routes: Routes,
        settings: Settings,
        policy: Policy,
        counters: Counters,
        dispatches: Dispatches,
    ) -> None:
        self.tick: Final = tick
        self.gate: Final = gate
        self.store: Final = store
        self.log: Final = log
        self.routes: Final = routes
        self.settings: Final = settings
        self.policy: Final = policy
        self.is_open: Final = policy.is_open  # it permits everything and need not be asked
        self.counters: Final = counters
        self.dispatches: Final = dispatches
