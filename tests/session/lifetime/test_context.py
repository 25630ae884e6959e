"""Do all who handle clients work with the same tick, counters and rules, those of the engine?"""

import pytest

from tests.session.harness import Broker


@pytest.mark.parametrize(
    "name",
    [
        "tick",
        "due",
        "settings",
        "policy",
        "counters",
        "session_events",
        "settle",
        "observe",
        "denied",
    ],
)
def test_everybody_has_what_the_engine_has(name: str) -> None:
    engine = Broker().engine
    dispatcher = engine._dispatcher
    handlers = [
        engine._connects,
        engine._disconnects,
        engine._housekeeping._wills,
        dispatcher,
        dispatcher.publishes,
        dispatcher.acknowledgements,
        dispatcher.subscriptions,
    ]
    housekeeping = engine._housekeeping
    known = {
        "tick": engine._tick,
        "due": housekeeping._due,
        "settings": engine.settings,
        "policy": engine._ports.policy,
        "counters": engine.counters,
        "session_events": housekeeping._session_events,
        "settle": engine._writer.settle,
        "observe": engine._ports.observe,
        "denied": engine._ports.denied,
    }
    holders = [handler for handler in handlers if hasattr(handler, f"_{name}")]
    assert holders
    assert all(getattr(handler, f"_{name}") == known[name] for handler in holders)
