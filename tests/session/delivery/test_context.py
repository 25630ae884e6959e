"""Do all parts of delivery go by the same limit and the same rules?"""

import pytest

from broker.security.authenticators import AllowAllPolicy
from session.counters import Counters
from session.delivery.context import DeliveryContext
from session.history.delivery_events import Dispatches
from session.history.recorder import Ledger
from session.live.core import Core, Database
from session.live.tick import Tick
from session.ports import Policy
from session.routing.router import Routes
from session.settings import Settings
from storage.local.memory import MemoryStore
from storage.log.message_log import MessageLog
from storage.tables.tables import FAMILIES, Totals
from storage.tables.timers import Due
from tests.session.harness import Rules


def context(policy: Policy, settings: Settings) -> DeliveryContext:
    store = MemoryStore(FAMILIES)
    return DeliveryContext(
        Core(Tick(200), settings, Counters()),
        Database(store, MessageLog(store), Due(store), Totals(), 1),
        Routes(),
        policy,
        Dispatches(Ledger(settings)),
    )


@pytest.mark.parametrize(("held", "out_buffer"), [(100, 900), (900, 100)])
def test_what_is_held_is_bounded_by_the_smaller_of_both_limits(held: int, out_buffer: int) -> None:
    settings = Settings()
    settings.held_bytes_max, settings.out_buffer_bytes_max = held, out_buffer
    assert context(AllowAllPolicy(), settings).held_max == 100


def test_a_policy_with_rules_is_asked() -> None:
    assert not context(Rules(), Settings()).is_open
    assert context(AllowAllPolicy(), Settings()).is_open
