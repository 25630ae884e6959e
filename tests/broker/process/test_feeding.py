"""All backends of a broker together: figures, readiness, and what an operator asks."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.observe.metrics import Status
from broker.operations.control_socket import ControlError
from broker.process.feeding import PAUSE, RESUME, STATUS, Feeding, answer
from mqtt.packets import Puback
from session.settings import Feed, Settings
from tests.broker.backends.pump.feeding import Store
from tests.broker.inside import InsideBroker, publish, run


class Stores:
    """Two stores, told apart by the configuration of their process."""

    def __init__(self) -> None:
        self.first = Store()
        self.second = Store()
        self.made = 0

    def make(self, answered: Any, ended: Any) -> Any:
        self.made += 1
        return (self.first if self.made == 1 else self.second).make(answered, ended)


def scenario(play: Callable[..., Coroutine[Any, Any, None]]) -> None:
    settings = Settings()
    settings.feeds = (Feed("first", ("a",), 0), Feed("second", ("b",), 0))

    async def main(broker: InsideBroker) -> None:
        stores, status = Stores(), Status()
        status.phase = "ready"
        feeding = Feeding(
            {"first": {"name": "first"}, "second": {"name": "second"}},
            frozenset({"second"}),
            broker.engine,
            broker.driver,
            status,
            broker.log,
            make_link=stores.make,
        )
        feeding.start()
        try:
            await play(broker, feeding, stores, status)
        finally:
            await feeding.close()

    run(main, settings=settings)


def test_each_store_gets_what_its_rules_want() -> None:
    async def play(broker: InsideBroker, feeding: Feeding, stores: Stores, status: Status) -> None:
        publisher = await broker.connect("p")
        for topic in ("a", "b", "b"):
            publisher.send(publish(topic, topic.encode()))
            await publisher.receive(Puback)
        await broker.until(lambda: len(stores.second.rows) == 2 and len(stores.first.rows) == 1)
        assert stores.first.payloads() == [b"a"]
        assert stores.second.payloads() == [b"b", b"b"]
        assert [figures.name for figures in broker.driver.snapshot().backends] == [
            "first",
            "second",
        ]

    scenario(play)


def test_a_broker_is_ready_without_a_store_unless_it_is_required() -> None:
    async def play(broker: InsideBroker, feeding: Feeding, stores: Stores, status: Status) -> None:
        assert not status.is_ready()
        assert status.backends_down == {"first": False, "second": True}
        await broker.until(status.is_ready)
        assert status.lines() == ["ready"]
        stores.first.link.say({"state": "disconnected", "why": "refused"})
        assert status.is_ready()
        assert status.lines() == ["ready", "backend first is down"]
        stores.second.link.say({"state": "disconnected", "why": "refused"})
        assert not status.is_ready()
        assert status.lines()[2] == "backend second is down, and it is required"

    scenario(play)


def test_an_operator_sees_and_pauses_backends() -> None:
    async def play(broker: InsideBroker, feeding: Feeding, stores: Stores, status: Status) -> None:
        await broker.until(status.is_ready)
        assert answer(feeding, {"do": PAUSE, "name": "first"}) == {"name": "first"}
        told = json.loads(answer(feeding, {"do": STATUS})["backends"])
        assert [(each["backend"], each["state"], each["paused"]) for each in told] == [
            ("first", "connected", True),
            ("second", "connected", False),
        ]
        answer(feeding, {"do": RESUME, "name": "first"})
        told = json.loads(answer(feeding, {"do": STATUS})["backends"])
        assert not any(each["paused"] for each in told)
        with pytest.raises(ControlError, match="no backend 'third' that a rule names"):
            answer(feeding, {"do": PAUSE, "name": "third"})

    scenario(play)


def test_a_broker_without_backends_says_so() -> None:
    assert answer(None, {"do": STATUS}) == {"backends": "[]"}
    with pytest.raises(ControlError):
        answer(None, {"do": RESUME, "name": "first"})
