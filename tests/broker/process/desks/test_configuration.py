"""An operator has the configuration read again, or the log's level changed for a time."""

import json

import pytest

from broker.configuration.config import Config
from broker.operations.control_socket import BY, ControlError, Request
from broker.process.desks.configuration import LEVEL, RELOAD, ConfigurationDesk
from broker.process.reload import Outcome
from tests.broker.inside import InsideBroker, run


def desk_of(broker: InsideBroker, outcome: Outcome | None = None) -> ConfigurationDesk:
    return ConfigurationDesk(Config(), broker.driver, broker.log, lambda: outcome or Outcome())


def test_a_reload_is_answered_with_what_it_has_done() -> None:
    async def play(broker: InsideBroker) -> None:
        outcome = Outcome()
        outcome.changed, outcome.needs_restart = ["a = 1"], ["b = 2 needs a restart"]
        outcome.problems = ["c is wrong"]
        answer = desk_of(broker, outcome).answer({"do": RELOAD, BY: "anna"})
        assert {key: json.loads(value) for key, value in answer.items()} == {
            "changed": ["a = 1"],
            "needs_restart": ["b = 2 needs a restart"],
            "problems": ["c is wrong"],
        }
        assert broker.events("reload_asked")[0]["by"] == "anna"

    run(play)


def test_a_level_holds_for_its_time_and_then_the_configured_one_does() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        broker.log.set_level("info")
        request = {"do": LEVEL, "level": "debug", BY: "anna"}
        assert desk.answer({**request, "for_ms": "86400000"}) == {
            "level": "debug",
            "configured": "info",
        }
        assert broker.log.is_debug()
        desk.answer({**request, "for_ms": "1"})  # in place of the one before
        await broker.until(lambda: not broker.log.is_debug())
        first, _, last = broker.events("log_level")
        assert (first["to"], first["by"]) == ("debug", "anna")
        assert (last["to"], last["message"]) == ("info", "its time is over")

    run(play)


def test_a_level_without_a_time_holds_until_a_reload() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        desk.answer({"do": LEVEL, "level": "error", BY: "anna"})
        broker.log.warning("unheard")
        assert not broker.events("unheard") and broker.events("log_level")
        desk.answer({"do": LEVEL, "level": "debug", "for_ms": "1", BY: "anna"})
        desk.answer({"do": LEVEL, "level": "warning", BY: "anna"})
        assert desk._back is None  # what was to come back does not

    run(play)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"level": "loud"}, "level 'loud': expected debug, info, warning, error"),
        ({}, "level '': expected"),
        ({"level": "info", "for_ms": "86400001"}, "expected 24 h at most"),
        ({"level": "info", "for_ms": "²"}, "expected 24 h at most"),
    ],
)
def test_bad_levels_are_said_and_change_nothing(request_: Request, words: str) -> None:
    async def play(broker: InsideBroker) -> None:
        with pytest.raises(ControlError, match=words):
            desk_of(broker).answer({"do": LEVEL, **request_, BY: "anna"})
        assert broker.log.is_debug()

    run(play)
