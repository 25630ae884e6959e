"""Do all who handle clients work with the same tick, counters and rules, those of the engine?"""

import pytest

from tests.session.harness import Broker

SHARED = ("tick", "due", "settings", "policy", "counters", "chronicle", "settle", "observe")


@pytest.mark.parametrize("name", SHARED)
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
    known = {"settings": engine.settings, "counters": engine.counters, "settle": engine.settle}
    expected = known.get(name) or getattr(engine, f"_{name}")
    holders = [handler for handler in handlers if hasattr(handler, f"_{name}")]
    assert holders
    assert all(getattr(handler, f"_{name}") == expected for handler in holders)
