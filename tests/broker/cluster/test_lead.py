"""Broker time when another node takes over."""

from typing import Any, cast

from broker.cluster.lead import Lead, alive_ms
from storage.local.memory import MemoryStore
from storage.replicated.roles.terms import Leads
from storage.tables.tables import META
from storage.time import machine_clocks
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat


def test_time_went_on_while_nobody_led() -> None:
    nobody = cast(Any, None)
    now = machine_clocks.boottime_ms()
    lead = Lead(nobody, nobody, nobody, alive_ms=5_000_000, alive_at_ms=now - 3_000, filters=nobody)
    before = lead.resumed_ms()
    assert before >= 5_003_000
    assert lead.resumed_ms() >= before
    assert before - 5_003_000 <= machine_clocks.boottime_ms() - now


def test_a_leader_that_wrote_and_was_not_heard_had_the_time_in_its_batch() -> None:
    store = MemoryStore((META,))
    not_heard = Leads(2, alive_ms=0, silent_ms=3_000)
    assert alive_ms(not_heard, store) == 0
    store.write([(META, HEARTBEAT_KEY, Heartbeat(5_000_000, 9, "boot", 9).encode())])
    assert alive_ms(not_heard, store) == 5_000_000
    assert alive_ms(Leads(2, alive_ms=4_000_000, silent_ms=3_000), store) == 4_000_000
    assert alive_ms(Leads(2, alive_ms=0, silent_ms=0), store) == 0  # nobody wrote, either
