"""What an operator asks of messages: what is answered is durable, and every mistake is named."""

import base64
import json
from concurrent.futures import Future

import pytest

from broker.operations.control_socket import ControlError, Request
from broker.process.desks.publishing import (
    DELETE,
    EXPIRY_S_MAX,
    PAYLOAD_BYTES_MAX,
    PUBLISH,
    PublishDesk,
)
from mqtt.packets import Publish, Suback
from session.settings import Settings
from tests.broker.inside import InsideBroker, run, subscribe
from tests.broker.process.desks.asking import Operator


def encoded(payload: bytes) -> str:
    """Return a payload as requests have it."""
    return base64.b64encode(payload).decode()


class Desk(Operator):
    """The desk of a broker, and an operator before it."""

    def __init__(self, broker: InsideBroker) -> None:
        super().__init__(broker, PublishDesk(broker.engine, broker.driver, broker.log))


def test_a_message_reaches_who_is_there_and_the_answer_counts_them() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        peer = await broker.connect("c", expiry=60)
        peer.send(subscribe("t", 1))
        await peer.receive(Suback)
        answer = await desk.ask(
            PUBLISH,
            topic="t",
            payload=encoded(b"\x00\xff"),
            qos="1",
            content_type="text/plain",
            properties=json.dumps([["k", "v"]]),
            expiry_s="60",
        )
        assert answer == {
            "matched": "2",
            "connected": "1",
            "groups": "0",
            "filters": "1",
            "stored": "1",
        }
        message = await peer.receive(Publish)
        assert (message.payload, message.qos) == (b"\x00\xff", 1)
        assert 0 < message.message_expiry_interval <= 60
        (line,) = broker.events("operator_published")
        assert (line["topic"], line["bytes"], line["by"]) == ("t", 2, "olga")
        nobody = await desk.ask(PUBLISH, topic="nobody")
        assert nobody["matched"] == "0" and nobody["stored"] == "0"

    run(play)


def test_a_stored_message_is_answered_when_it_is_durable() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        before = broker.engine.durable
        answer = desk.begin(PUBLISH, topic="t", payload=encoded(b"x"), qos="1", retain="1")
        assert not answer.done() and broker.engine.durable == before
        await broker.until(answer.done)
        assert broker.engine.durable > before
        assert answer.result()["stored"] == "1"

    run(play)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({}, "topic '': "),
        ({"topic": "a/#"}, "wildcards are for filters only"),
        ({"topic": "a\0"}, "U+0000"),
        ({"topic": "$SYS/x"}, "'$SYS/x': what begins with $ is the broker's own"),
        ({"topic": "a/" * 300}, "more than 201 levels"),
        ({"topic": "t", "qos": "3"}, "qos = 3: expected 0, 1 or 2"),
        ({"topic": "t", "qos": "x"}, "qos = 'x': expected a number"),
        ({"topic": "t", "retain": "yes"}, "retain = 'yes': expected 0 or 1"),
        ({"topic": "t", "payload": "no base64!"}, "payload: expected base64"),
        ({"topic": "t", "payload": encoded(bytes(PAYLOAD_BYTES_MAX + 1))}, "at most 262144"),
        ({"topic": "t", "properties": "{"}, "properties: expected a JSON list"),
        ({"topic": "t", "properties": "[" * 100_000}, "properties: expected a JSON list"),
        ({"topic": "t", "properties": '[["k"]]'}, "list of pairs of text"),
        ({"topic": "t", "properties": '[["k", 1]]'}, "list of pairs of text"),
        ({"topic": "t", "properties": '{"k": "v"}'}, "list of pairs of text"),
        ({"topic": "t", "properties": '[["k", "\\u0000"]]'}, "user property value holds U+0000"),
        ({"topic": "t", "properties": json.dumps([["k", "v"]] * 1025)}, "more than 1024 user"),
        ({"topic": "t", "content_type": "x" * 65_536}, "content type"),
        ({"topic": "t", "expiry_s": "-1"}, "expiry_s = '-1': expected a number"),
        ({"topic": "t", "expiry_s": str(EXPIRY_S_MAX + 1)}, "expected at most 4294967295"),
    ],
)
def test_what_cannot_be_published_is_named(words: dict[str, str], complaint: str) -> None:
    async def play(broker: InsideBroker) -> None:
        with pytest.raises(ControlError) as refused:
            await Desk(broker).ask(PUBLISH, **words)
        assert complaint in str(refused.value) and len(str(refused.value)) < 400
        assert broker.events("operator_published") == []
        assert broker.counters.internal_errors == 0

    run(play)


@pytest.mark.parametrize(
    ("name", "value", "words", "complaint"),
    [
        ("maximum_qos", 1, {"qos": "2"}, "the highest QoS is 1"),
        ("retain_available", False, {"retain": "1"}, "retains no messages"),
        ("maximum_packet_size", 128, {"payload": encoded(bytes(200))}, "may be, 128 bytes"),
        ("retained_messages_max", 1, {"retain": "1", "payload": encoded(b"x")}, "has no room"),
    ],
)
def test_a_limit_that_refuses_is_named(
    name: str, value: int, words: dict[str, str], complaint: str
) -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        if name == "retained_messages_max":
            await desk.ask(PUBLISH, topic="kept", payload=encoded(b"x"), retain="1")
        with pytest.raises(ControlError, match=complaint):
            await desk.ask(PUBLISH, topic="t", **words)

    settings = Settings()
    setattr(settings, name, value)
    run(play, settings=settings)


def test_retained_messages_are_deleted_by_topic_and_by_filter() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        for topic in ("a", "b/c", "b/d"):
            await desk.ask(PUBLISH, topic=topic, payload=encoded(b"x"), retain="1")
        before = broker.engine.durable
        assert await desk.ask(DELETE, topic="a", reason="wrong") == {"deleted": "1"}
        assert broker.engine.durable > before
        assert await desk.ask(DELETE, topic_filter="b/+") == {"deleted": "2"}
        assert await desk.ask(DELETE, topic_filter="#") == {"deleted": "0"}
        assert broker.engine.stats()["retained_messages"] == 0
        lines = broker.events("retained_deleted")
        assert [line["topic_filter"] for line in lines] == ["a", "b/+", "#"]
        assert (lines[0]["by"], lines[0]["reason"]) == ("olga", "wrong")

    run(play)


def test_a_broker_that_ends_says_how_many_are_deleted() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = Desk(broker)
        answers: list[Future[Request]] = []

        def end() -> None:  # in one turn: no slice comes between
            answers.append(desk.begin(DELETE, topic_filter="#"))
            broker.engine.drain(broker.driver.now)

        broker.loop.call_soon(end)
        await broker.until(lambda: bool(answers) and answers[0].done())
        with pytest.raises(ControlError, match=r"^0 are deleted; then the broker ends$"):
            answers[0].result()

    run(play)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({}, "expected topic or topic_filter, one of them"),
        ({"topic": "a", "topic_filter": "a"}, "one of them"),
        ({"topic": "+"}, "wildcards are for filters only"),
        ({"topic_filter": "a/#/b"}, "must be last"),
        ({"topic_filter": "$share/g/a"}, "not shared"),
    ],
)
def test_what_cannot_be_deleted_is_named(words: dict[str, str], complaint: str) -> None:
    async def play(broker: InsideBroker) -> None:
        with pytest.raises(ControlError, match=complaint):
            await Desk(broker).ask(DELETE, **words)

    run(play)
