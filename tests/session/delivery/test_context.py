"""Do all parts of delivery go by the same rules?"""

from broker.security.authenticators import AllowAllPolicy
from session.counters import Counters
from session.delivery.context import DeliveryContext
from session.live.core import Core, Database
from session.live.tick import Tick
from session.ports import Policy
from session.routing.filter_index import TopicFilterIndex
from session.routing.router import Router
from session.settings import Settings
from storage.local.memory import MemoryStore
from storage.log.message_log import MessageLog
from storage.tables.tables import FAMILIES, Totals
from storage.tables.timers import Due
from tests.session.harness import Rules, idle_gate, untold_history


def context(policy: Policy, settings: Settings) -> DeliveryContext:
    store, counters = MemoryStore(FAMILIES), Counters()
    tick, log = Tick(200), MessageLog(store)
    return DeliveryContext(
        Core(tick, idle_gate(settings, counters), settings, counters),
        Database(store, log, Due(store), Totals(), 1),
        Router(Tick(0), TopicFilterIndex()),
        policy,
        untold_history(tick, log, settings, counters),
    )


def test_a_policy_with_rules_is_asked() -> None:
    assert not context(Rules(), Settings()).is_open
    assert context(AllowAllPolicy(), Settings()).is_open
