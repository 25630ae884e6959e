"""Broker time when another node takes over."""

from typing import Any, cast

from broker.cluster.lead import Lead
from storage.time import machine_clocks


def test_time_went_on_while_nobody_led() -> None:
    nobody = cast(Any, None)
    now = machine_clocks.boottime_ms()
    lead = Lead(nobody, nobody, nobody, alive_ms=5_000_000, alive_at_ms=now - 3_000)
    before = lead.resumed_ms()
    assert before >= 5_003_000
    assert lead.resumed_ms() >= before
    assert before - 5_003_000 <= machine_clocks.boottime_ms() - now
