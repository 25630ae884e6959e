"""The parts of one broker, put together around an opened store: who is handed what, and no more.

Read next: `session.engine`, which runs them.
"""

from collections.abc import Callable
from typing import Final

from session.counters import Counters
from session.delivery.delivery import Delivery
from session.delivery.shared import Groups
from session.history.delivery_events import Dispatches
from session.history.outbox import Outbox
from session.history.publish_events import Receipts
from session.history.recorder import Ledger
from session.history.session_events import Chronicle
from session.lifetime.census import Census
from session.lifetime.collection import Housekeeping
from session.lifetime.lifecycle import Lifecycle, Observe
from session.lifetime.repository import Sessions
from session.live.connection import Connection
from session.live.tick import Tick
from session.packets.inbound import Inbound
from session.ports import Authenticator, Policy
from session.publish.accept import Publishing
from session.publish.storage_quota import Quota, generation_size
from session.publish.store_health import StoreHealth
from session.routing.retained import Retained
from session.routing.router import Routes
from session.scheduling.admission import Admission
from session.scheduling.commit_gate import Replies
from session.scheduling.keep_alive import Silence
from session.scheduling.read_pauses import ReadPauses
from session.scheduling.work_budget import Turns
from session.settings import Settings
from session.tick_writer import TickWriter
from storage.api import Store
from storage.log.message_log import MessageLog
from storage.tables.tables import Totals
from storage.tables.timers import Due


class Ports:
    """The engine's surroundings, as far as its parts ask them."""

    def __init__(
        self,
        authenticator: Authenticator,
        policy: Policy,
        new_client_id: Callable[[], str],
        observe: Observe,
    ) -> None:
        self.authenticator: Final = authenticator
        self.policy: Final = policy
        self.new_client_id: Final = new_client_id
        self.observe: Final = observe


class Assembly:
    """One of each part."""

    def __init__(
        self,
        tick: Tick,
        store: Store,
        settings: Settings,
        counters: Counters,
        totals: Totals,
        boot: int,
        ports: Ports,
    ) -> None:
        self.store: Final = store
        self.counters: Final = counters
        self.totals: Final = totals
        self.boot: Final = boot
        self.connections: Final[dict[Connection, None]] = {}
        live: dict[str, Connection] = {}
        self.turns: Final = Turns(tick, settings.tick_work_max)
        self.pauses: Final = ReadPauses(self.turns)
        self.admission: Final = Admission(settings, self.pauses)
        self.silence: Final = Silence(settings, self.connections)
        self.health: Final = StoreHealth()
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
        self.chronicle: Final = Chronicle(self.ledger, tick, self.log, live)
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
            ports.policy,
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
            ports.policy,
            counters,
            dispatches,
        )
        self.replies: Final = Replies(
            tick, self.delivery, self.groups, settings, counters, self.pauses.resume
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
            live,
        )
        self.writer: Final = TickWriter(
            tick,
            store,
            self.log,
            self.ledger,
            self.due,
            self.retained,
            self.sessions,
            counters,
            self.health,
            self.pauses,
        )
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
            self.health,
        )
        self.lifecycle: Final = Lifecycle(
            tick,
            self.due,
            self.sessions,
            self.delivery,
            self.publishing,
            settings,
            ports.authenticator,
            ports.policy,
            counters,
            ports.new_client_id,
            self.writer.settle,
            self.writer.settle_for,
            self.silence.watch,
            ports.observe,
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
            ports.policy,
            counters,
            self.receipts,
            dispatches,
        )
        self.census: Final = Census(
            tick,
            store,
            self.sessions,
            totals,
            self.writer.settle,
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
            self.writer.settle,
            self.chronicle,
            self.census,
            self.writer.next_serial,
        )
        self.sessions.parted = self.housekeeping.parted
