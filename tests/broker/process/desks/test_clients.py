"""What an operator asks of clients and sessions: who is there, and ends that are durable."""

import json
import threading
from typing import Any

import pytest

from broker.operations.control_socket import ControlError
from broker.process.desks.clients import (
    END,
    FILTERS_MAX,
    GROUP_PURGE,
    KICK,
    KNOWN_MAX,
    LIST,
    PAGE_CLIENTS,
    PURGE,
    PURGED,
    RECLAIM,
    SHOW,
    STORAGE,
    ClientDesk,
)
from broker.process.desks.engine_work import REASON_BYTES_MAX
from mqtt import reasons
from mqtt.packets import Disconnect, Puback, Suback, Subscribe, Subscription, Will
from tests.broker.inside import InsideBroker, publish, run, subscribe
from tests.broker.process.desks.asking import Operator


class Desk(Operator):
    """The desk of a broker, and an operator before it."""

    def __init__(self, broker: InsideBroker) -> None:
        super().__init__(broker, ClientDesk(broker.engine, broker.driver, broker.log))

    async def names(self, page: int = 0, match: str = "*") -> tuple[list[str], bool]:
        """Return a page of the list: client ids, and is there more?"""
        answer = await self.ask(LIST, page=str(page), match=match)
        rows: list[dict[str, Any]] = json.loads(answer["clients"])
        return [row["client_id"] for row in rows], bool(answer["more"])


def test_a_list_has_everybody_who_is_connected() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        about = {"session_expiry_interval": 60, "keep_alive": 30, "username": "anna"}
        await broker.greet(await broker.peer(), "boat", **about)
        away = await broker.connect("away", expiry=60)
        await broker.greet(await broker.peer(), "clean", will=Will("w", b"x", 0, False, 0))
        away.send(Disconnect())
        await broker.until(lambda: len(broker.engine._connections) == 2)
        answer = await desk.ask(LIST, page="0")
        boat, clean = json.loads(answer["clients"])
        assert (boat["client_id"], boat["user"], boat["durable"]) == ("boat", "anna", True)
        assert (boat["protocol_version"], boat["keep_alive_seconds"]) == (5, 30)
        assert (boat["session_expiry_interval"], boat["will_topic"]) == (60, None)
        assert (clean["client_id"], clean["durable"], clean["will_topic"]) == ("clean", False, "w")
        assert await desk.names(1) == ([], False)
        assert await desk.names(match="b*") == (["boat"], True)

    run(play)


def test_a_list_comes_in_pages_of_those_who_are_still_there() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        peers = [await broker.connect(f"c{number}") for number in range(PAGE_CLIENTS + 2)]
        first, more = await desk.names()
        assert len(first) == PAGE_CLIENTS and more
        peers[-1].send(Disconnect())
        await broker.until(lambda: len(broker.engine._connections) == PAGE_CLIENTS + 1)
        assert await desk.names(1) == ([f"c{PAGE_CLIENTS}"], True)
        await desk.names()
        with pytest.raises(ControlError, match="another operator has begun a list"):
            await desk.names(2)

    run(play)


def test_a_client_is_shown_with_its_first_subscriptions() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        peer = await broker.connect("c")
        filters = [Subscription(f"t/{number}", 1) for number in range(FILTERS_MAX + 1)]
        peer.send(Subscribe(1, filters))
        await peer.receive(Suback)
        client = json.loads((await desk.ask(SHOW, client_id="c"))["client"])
        assert client["subscriptions"] == FILTERS_MAX + 1
        assert len(client["topic_filters"]) == FILTERS_MAX
        assert client["topic_filters"][0] == {"topic_filter": "t/0", "qos": 1}
        with pytest.raises(ControlError, match="no client 'd' is connected"):
            await desk.ask(SHOW, client_id="d")

    run(play)


def test_an_end_is_answered_when_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        peer = await broker.connect("c", expiry=60)
        peer.send(subscribe("t", 1))
        await peer.receive(Suback)
        gate = threading.Event()
        sync = broker.store.sync

        def gated() -> None:
            gate.wait(30)
            sync()

        monkeypatch.setattr(broker.store, "sync", gated)
        kicked = desk.begin(KICK, client_id="c", reason="bye")
        left = await peer.receive(Disconnect)
        assert (left.reason_code, left.reason_string) == (reasons.ADMINISTRATIVE_ACTION, "bye")
        ended = desk.begin(END, client_id="c")
        await broker.until(lambda: len(broker.events("session_ended")) == 1)
        assert not kicked.done() and not ended.done()
        gate.set()
        await broker.until(lambda: kicked.done() and ended.done())
        assert kicked.result() == ended.result() == {"client_id": "c"}
        (line,) = broker.events("client_kicked")
        assert (line["client_id"], line["by"], line["reason"]) == ("c", "olga", "bye")

    run(play)


@pytest.mark.parametrize(
    ("do", "words", "why"),
    [
        (KICK, {"client_id": "c"}, "no client 'c' is connected"),
        (END, {"client_id": "c"}, "no client 'c' has a session$"),
        (END, {"client_id": "c", "offline_ms": "5"}, "has a session and is away for so long"),
        (END, {"client_id": "c", "offline_ms": "-1"}, "'-1': expected a number"),
        (KICK, {"client_id": "c", "reason": "x" * (REASON_BYTES_MAX + 1)}, "reason is too long"),
    ],
)
def test_what_cannot_be_done_is_said(do: str, words: dict[str, str], why: str) -> None:
    async def play(broker: InsideBroker) -> None:
        with pytest.raises(ControlError, match=why):
            await Desk(broker).ask(do, **words)

    run(play)


def test_a_purge_is_asked_about_until_it_is_over() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        away = await broker.connect("away", expiry=60)
        away.send(subscribe("t", 1))
        await away.receive(Suback)
        with pytest.raises(ControlError, match="'away' is connected: --kick ends that"):
            await desk.ask(PURGE, client_id="away")
        await broker.connect("brief")
        with pytest.raises(ControlError, match="'brief' ends with its connection"):
            await desk.ask(PURGE, client_id="brief", kick="1")
        away.send(Disconnect())
        publisher = await broker.connect("p")
        publisher.send(publish("t"), publish("t", packet_id=2))
        await publisher.receive(Puback)
        await publisher.receive(Puback)
        number = (await desk.ask(PURGE, client_id="away", reason="full"))["purge"]
        answer = await desk.ask(PURGED, purge=number)
        while answer["over"] != "1":
            answer = await desk.ask(PURGED, purge=number)
        assert answer == {"dropped": "2", "over": "1", "why": ""}
        with pytest.raises(ControlError, match="must be last"):
            await desk.ask(PURGE, client_id="away", topic="#/a")
        with pytest.raises(ControlError, match="not shared"):
            await desk.ask(PURGE, client_id="away", topic="$share/g/a")
        (line,) = broker.events("session_purged")
        assert (line["client_id"], line["by"], line["reason"]) == ("away", "olga", "full")
        with pytest.raises(ControlError, match="no client 'nobody' has a session"):
            await desk.ask(PURGE, client_id="nobody")
        for _ in range(KNOWN_MAX):
            await desk.ask(PURGE, client_id="away")
        with pytest.raises(ControlError, match="not known any more"):
            await desk.ask(PURGED, purge=number)

    run(play)


def test_space_is_given_back_once_and_an_empty_generation_is_left_alone() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        reader = await broker.connect("reader", expiry=60)
        reader.send(subscribe("t", 1))
        await reader.receive(Suback)
        assert (await desk.ask(RECLAIM))["generations"] == "1"
        publisher = await broker.connect("p")
        publisher.send(publish("t"))
        await publisher.receive(Puback)
        assert int((await desk.ask(STORAGE))["log_bytes"]) > 0
        assert (await desk.ask(RECLAIM))["generations"] == "2"
        assert (await desk.ask(RECLAIM))["generations"] == "2"
        assert len(broker.events("storage_reclaim")) == 3

    run(play)


def test_a_shared_group_is_purged_and_its_end_is_told() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        member = await broker.connect("member", expiry=60)
        member.send(subscribe("$share/g/t/+", 1))
        await member.receive(Suback)
        member.send(Disconnect())
        await broker.until(lambda: not broker.engine._connections)
        sender = await broker.connect("sender")
        for number, topic in enumerate(("t/a", "t/b", "t/a"), 1):
            sender.send(publish(topic, packet_id=number))
            await sender.receive(Puback)
        words = {"group": "g", "topic_filter": "t/+"}
        for topic, dropped in (("t/a", "2"), ("", "1")):
            answer = await desk.ask(GROUP_PURGE, **words, topic=topic, reason="full")
            status = {"over": "0"}
            while status["over"] == "0":
                status = await desk.ask(PURGED, purge=answer["purge"])
            assert status == {"dropped": dropped, "over": "1", "why": ""}
        assert [line["group"] for line in broker.events("group_purged")] == ["g", "g"]
        for wrong, why in (
            ({"group": "h"}, "no shared group 'h' of 't/"),
            ({"topic": "#/a"}, "last"),
        ):
            with pytest.raises(ControlError, match=why):
                await desk.ask(GROUP_PURGE, **{**words, **wrong})

    run(play)
