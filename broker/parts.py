"""The parts of one broker, put together around an opened store: who is handed what, and no more.

Read next: `broker.engine`, which runs them.
"""

from collections.abc import Callable
from typing import Final

from broker.census import Census
from broker.chronicle import Chronicle
from broker.connection import Connection
from broker.counters import Counters
from broker.delivery import Delivery
from broker.dispatches import Dispatches
from broker.groups import Groups
from broker.housekeeping import Housekeeping
from broker.inbound import Inbound
from broker.ledger import Ledger
from broker.lifecycle import Lifecycle, Observe
from broker.outbox import Outbox
from broker.ports import Authenticator, Policy
from broker.publishing import Publishing
from broker.quota import Quota, generation_size
from broker.receipts import Receipts
from broker.replies import Replies
from broker.retained import Retained
from broker.routes import Routes
from broker.sessions import Sessions
from broker.settings import Settings
from broker.tick import Tick
from storage.api import Store
from storage.due import Due
from storage.log import MessageLog
from storage.state import Totals


class Hooks:
    """What the parts may ask of the engine."""

    def __init__(
        self,
        settle: Callable[[], bool],
        settle_for: Callable[[str], bool],
        watch: Callable[[Connection], None],
        observe: Observe,
        read_on: Callable[[Connection], None],
    ) -> None:
        self.settle: Final = settle
        self.settle_for: Final = settle_for
        self.watch: Final = watch
        self.observe: Final = observe
        self.read_on: Final = read_on


class Parts:
    """One of each."""

    def __init__(
        self,
        tick: Tick,
        store: Store,
        settings: Settings,
        policy: Policy,
        counters: Counters,
        totals: Totals,
        boot: int,
        authenticator: Authenticator,
        new_client_id: Callable[[], str],
        hooks: Hooks,
    ) -> None:
        self.log: Final = MessageLog(
            store,
            layout=settings.layout,
            generation_size_bytes=generation_size(settings),
            generation_age_ms=settings.generation_age_s * 1000,
        )
        self.ledger: Final = Ledger(settings)
        self.outbox: Final = Outbox(tick, self.ledger, self.log, settings)
        self.receipts: Final = Receipts(self.ledger)
        dispatches = Dispatches(self.ledger)
        self.chronicle: Final = Chronicle(self.ledger, tick, self.log)
        self.due: Final = Due(store)
        self.routes: Final = Routes()
        self.retained: Final = Retained(tick, store, self.due, totals, settings, self.chronicle)
        self.quota: Final = Quota(store, self.log, settings)
        self.delivery: Final = Delivery(
            tick,
            store,
            self.log,
            self.routes,
            self.retained,
            settings,
            policy,
            counters,
            dispatches,
        )
        self.groups: Final = Groups(
            tick,
            store,
            self.log,
            self.routes,
            self.delivery,
            settings,
            policy,
            counters,
            dispatches,
        )
        self.replies: Final = Replies(
            tick, self.delivery, self.groups, settings, counters, hooks.read_on
        )
        self.sessions: Final = Sessions(
            tick,
            store,
            self.log,
            self.due,
            totals,
            self.routes,
            self.delivery,
            self.groups,
            counters,
            boot,
            self.chronicle,
        )
        self.chronicle.live = self.sessions.live
        self.publishing: Final = Publishing(
            tick,
            self.log,
            self.routes,
            self.retained,
            self.delivery,
            self.groups,
            self.quota,
            settings,
            counters,
            self.receipts,
            self.chronicle,
        )
        self.lifecycle: Final = Lifecycle(
            tick,
            self.due,
            self.sessions,
            self.delivery,
            self.publishing,
            settings,
            authenticator,
            policy,
            counters,
            new_client_id,
            hooks.settle,
            hooks.settle_for,
            hooks.watch,
            hooks.observe,
            self.chronicle,
        )
        self.inbound: Final = Inbound(
            tick,
            self.routes,
            self.sessions,
            self.delivery,
            self.groups,
            self.publishing,
            self.retained,
            settings,
            policy,
            counters,
            self.receipts,
            dispatches,
        )
        self.census: Final = Census(
            tick,
            store,
            self.sessions,
            totals,
            hooks.settle,
            self.chronicle,
            boot,
        )
        self.housekeeping: Final = Housekeeping(
            tick,
            store,
            self.log,
            self.due,
            self.sessions,
            self.groups,
            self.delivery,
            self.retained,
            self.lifecycle,
            self.quota,
            settings,
            counters,
            hooks.settle,
            self.chronicle,
            self.census,
        )
        self.sessions.parted = self.housekeeping.parted
