"""The parts of one broker, put together around an opened store: who is handed what, and no more.

Read next: `session.engine`, which runs them.
"""

from collections.abc import Callable
from typing import Final

from session.counters import Counters
from session.delivery.context import DeliveryContext
from session.delivery.delivery import Delivery
from session.history.delivery_events import Dispatches
from session.history.outbox import Outbox
from session.history.publish_events import Receipts
from session.history.recorder import Ledger
from session.history.session_events import Chronicle
from session.lifetime.census import Census
from session.lifetime.collection import Housekeeping
from session.lifetime.lifecycle import Lifecycle, Observe
from session.lifetime.repository import Sessions
from session.live.commit_gate import CommitGate
from session.live.connection import Connection
from session.live.tick import Tick
from session.packets.inbound import Inbound
from session.ports import Authenticator, Policy
from session.publish.accept import Publishing
from session.publish.storage_quota import Quota, generation_size
from session.routing.retained import Retained
from session.routing.router import Routes
from session.settings import Settings
from storage.api import Store
from storage.log.message_log import MessageLog
from storage.tables.tables import Totals
from storage.tables.timers import Due


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
        gate: CommitGate,
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
        context = DeliveryContext(
            tick, gate, store, self.log, self.routes, settings, policy, counters, dispatches
        )
        self.delivery: Final = Delivery(context, self.retained)
        self.sessions: Final = Sessions(
            tick,
            store,
            self.log,
            self.due,
            totals,
            self.routes,
            self.delivery,
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
            self.quota,
            settings,
            counters,
            self.receipts,
            self.chronicle,
        )
        self.lifecycle: Final = Lifecycle(
            tick,
            gate,
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
            gate,
            self.routes,
            self.sessions,
            self.delivery,
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
