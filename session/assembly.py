"""Makes all parts of one broker around an opened store, and connects them.

Read next: `session.engine`, which runs them.
"""

from typing import Final

from session.delivery.context import DeliveryContext
from session.delivery.delivery import Delivery
from session.feed.backfill import Backfill
from session.feed.kept import KeptRows
from session.feed.outlet import FeedOutlet
from session.feed.recorder import FeedRecorder
from session.history.history import History
from session.lifetime.census import Census
from session.lifetime.collection import Collection
from session.lifetime.connect import ConnectHandler
from session.lifetime.context import ClientContext, Ports
from session.lifetime.disconnect import DisconnectHandler
from session.lifetime.feeds import Feeds
from session.lifetime.housekeeping import Housekeeping
from session.lifetime.repository import Sessions
from session.lifetime.sweep import Sweep
from session.lifetime.trimming import Trimming
from session.lifetime.wills import Wills
from session.live.connection import Connection
from session.live.core import Core, Database
from session.packets.acknowledge import AcknowledgeHandler
from session.packets.dispatch import Dispatcher
from session.packets.proxy import ProxyHandler
from session.packets.publish import PublishHandler
from session.packets.subscribe import SubscribeHandler
from session.publish.accept import Publishing
from session.publish.storage_quota import Quota
from session.publish.store_health import StoreHealth
from session.routing.holders import Holders
from session.routing.loading import FilterLoad
from session.routing.retained import Retained
from session.routing.router import Router
from session.scheduling.admission import Admission
from session.scheduling.bans import Bans
from session.scheduling.keep_alive import KeepAlive
from session.scheduling.kept_out import KeptOut
from session.scheduling.read_pauses import ReadPauses
from session.scheduling.work_budget import WorkBudget
from session.tick_writer import TickWriter


class Assembly:
    """All parts of one broker."""

    def __init__(
        self,
        core: Core,
        database: Database,
        ports: Ports,
        filters: FilterLoad,
    ) -> None:
        """Route by the index that `filters` loads, here or before."""
        tick, settings = core.tick, core.settings
        log = database.log
        self.core: Final = core
        self.database: Final = database
        self.connections: Final[dict[Connection, None]] = {}
        live: dict[str, Connection] = {}
        self.turns: Final = WorkBudget(tick, settings.tick_work_max)
        self.pauses: Final = ReadPauses(self.turns)
        self.admission: Final = Admission(settings, self.pauses)
        self.silence: Final = KeepAlive(settings, self.connections)
        self.health: Final = StoreHealth()
        self.feed: Final = FeedRecorder(
            tick, log, core.damage, settings.feeds, settings.progress_delay_ms
        )
        self.quota: Final = Quota(core, database)
        history = self.history = History(tick, log, settings, live, self.feed)
        self.bans: Final = Bans(core, database, history)
        self.kept_out: Final = KeptOut()
        self.outlet: Final = FeedOutlet(
            core, database, self.feed, self.quota.extents, history.backends
        )
        self.routes: Final = Router(tick, filters.index)
        self.retained: Final = Retained(core, database, history)
        self.delivery: Final = Delivery(
            DeliveryContext(core, database, self.routes, ports.policy, history), self.retained
        )
        sweep = Sweep()
        holders = Holders(core, database)
        self.sessions: Final = Sessions(
            core,
            database,
            self.routes,
            filters,
            self.delivery,
            self.quota,
            sweep,
            history,
            holders,
            live,
        )
        self.writer: Final = TickWriter(
            core,
            database,
            self.retained,
            self.sessions,
            history.recorder,
            self.feed,
            self.outlet,
            self.health,
            self.pauses,
        )
        self.publishing: Final = Publishing(
            core,
            database,
            self.routes,
            self.retained,
            self.delivery,
            self.quota,
            self.health,
            history,
            self.feed,
        )
        self.outlet.refused = self.publishing.refuse
        self.feeds: Final = Feeds(
            core,
            database,
            self.routes,
            holders,
            self.feed,
            self.outlet,
            ports.new_instance,
            self.writer.write,
        )
        context = ClientContext(
            core,
            database,
            ports,
            history,
            self.writer.settle,
            self.writer.settle_for,
        )
        wills = Wills(context, self.publishing)
        self.disconnects: Final = DisconnectHandler(context, self.sessions, self.publishing, wills)
        self.connects: Final = ConnectHandler(
            context,
            self.sessions,
            self.delivery,
            self.publishing,
            wills,
            self.disconnects,
            self.bans,
            self.kept_out,
            self.silence.watch,
        )
        subscriptions = SubscribeHandler(
            context, self.sessions, self.delivery, self.publishing, self.retained
        )
        self.proxy: Final = ProxyHandler(
            context, self.sessions, self.delivery, self.publishing, subscriptions
        )
        self.dispatcher: Final = Dispatcher(
            context,
            PublishHandler(context, self.routes, self.sessions, self.publishing, self.retained),
            AcknowledgeHandler(context, self.delivery, self.feed),
            subscriptions,
            self.connects.authentication,
            self.disconnects,
        )
        self.collection: Final = Collection(
            context,
            database,
            self.delivery,
            self.sessions,
            self.outlet,
            self.quota,
            self.health,
            sweep,
            self.writer.next_serial,
        )
        trimming = Trimming(context, database, self.delivery, self.sessions, self.health)
        census = Census(context, database, self.sessions)
        self.kept: Final = KeptRows(core, database, self.outlet, live)
        health = self.health
        self.backfill: Final = Backfill(
            core,
            database,
            self.outlet,
            self.feed,
            live,
            self.writer.settle,
            lambda: health.refuses_new,
        )
        self.housekeeping: Final = Housekeeping(
            context,
            self.retained,
            self.disconnects,
            wills,
            self.collection,
            trimming,
            census,
            self.outlet,
            self.backfill,
            self.bans,
        )
