"""Traces over the control socket: begun, read, listed and ended, and each of them is logged."""

import json

import pytest

from broker.operations.control_socket import BY, ControlError, Request
from broker.operations.tracing.traces import UNREAD_MS_MAX
from broker.process.desks.tracing import ADD, LIST, READ, REMOVE, TraceDesk
from mqtt.packets import Pingreq, Pingresp
from storage.history.events import SESSIONS
from tests.broker.inside import InsideBroker, run


def desk_of(broker: InsideBroker) -> TraceDesk:
    return TraceDesk(broker.engine, broker.driver, broker.log)


def add(desk: TraceDesk, kind: str, value: str, **more: str) -> str:
    request = {"do": ADD, "kind": kind, "value": value, "for_ms": "60000", BY: "anna"}
    return desk.answer({**request, **more})["trace"]


def test_a_trace_is_begun_read_listed_and_ended() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        peer = await broker.connect("boat-17")
        number = add(desk, "client", "boat-17")
        peer.send(Pingreq())
        await peer.receive(Pingresp)
        (row,) = json.loads(desk.answer({"do": LIST})["traces"])
        assert (row["kind"], row["value"], row["by"]) == ("client", "boat-17", "anna")
        assert row["lines_waiting"] == 2 and 58 <= row["seconds_left"] <= 60
        answer = desk.answer({"do": READ, "trace": number})
        assert [line["packet"] for line in json.loads(answer["lines"])] == ["PINGREQ", "PINGRESP"]
        assert (answer["left_out"], answer["over"]) == ("0", "")
        desk.answer({"do": REMOVE, "trace": number, BY: "bert"})
        assert desk.answer({"do": READ, "trace": number}) == {
            "lines": "[]",
            "left_out": "0",
            "over": "bert has stopped it",
        }
        with pytest.raises(ControlError, match="no trace '1' is on"):
            desk.answer({"do": READ, "trace": number})
        assert broker.events("trace_begun")[0]["by"] == "anna"

    run(play)


def test_a_trace_ends_by_itself_and_nothing_is_left_of_it() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        await broker.connect("boat-17")
        number = add(desk, "topic", "#", for_ms="300")
        assert broker.driver.new_tap is not None
        await broker.until(lambda: not desk.traces)
        assert broker.driver.new_tap is None
        answer = desk.answer({"do": READ, "trace": number})
        assert answer["over"] == "its time is over"
        assert broker.events("trace_ended")[0]["message"] == "its time is over"

    run(play)


def test_a_trace_is_kept_while_somebody_reads_it() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        number = add(desk, "client", "c")
        (trace,) = desk.traces
        trace.read_ms -= UNREAD_MS_MAX + 1000
        desk.answer({"do": READ, "trace": number})
        desk.traces.look(trace.read_ms)
        assert desk.traces

    run(play)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"do": ADD, "kind": "user", "value": "x", "for_ms": "1"}, "expected client, topic"),
        ({"do": ADD, "kind": "client", "value": "x"}, "expected 1 ms to 24 h"),
        ({"do": ADD, "kind": "client", "value": "x", "for_ms": "86400001"}, "for_ms = '86400001'"),
        ({"do": ADD, "kind": "client", "value": "x", "for_ms": "-1"}, "for_ms = '-1'"),
        ({"do": ADD, "kind": "client", "value": "x", "for_ms": "²"}, "for_ms = '²'"),
        ({"do": READ}, "no trace '' is on"),
        ({"do": REMOVE, "trace": "9" * 400}, "no trace '9999"),
        ({"do": READ, "trace": "²"}, "no trace '²'"),
    ],
)
def test_bad_requests_are_said(request_: Request, words: str) -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        with pytest.raises(ControlError, match=words):
            desk.answer({**request_, BY: "anna"})
        assert not desk.traces and broker.driver.new_tap is None

    run(play)


def test_losses_are_told_while_a_trace_is_on_only() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        losses = broker.engine._core.losses
        number = add(desk, "client", "c")
        assert losses.tell is not None
        losses.tell("c", "t", "queue_full", 3)
        (line,) = json.loads(desk.answer({"do": READ, "trace": number})["lines"])
        assert line["text"] == "does not get 3 messages: queue full"
        desk.answer({"do": REMOVE, "trace": number, BY: "anna"})
        assert losses.tell is None

    run(play)


def test_the_history_tells_all_of_a_traced_client_until_it_is_stopped() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        clients = broker.engine._recorder.traced.clients
        answer = desk.answer(
            {"do": ADD, "kind": "client", "value": "boat-17", "for_ms": "60000", BY: "anna"}
        )
        assert answer["not_recorded"] == "" and list(clients) == ["boat-17"]
        add(desk, "topic", "boat-17")
        assert list(clients) == ["boat-17"]
        desk.answer({"do": REMOVE, "trace": answer["trace"], BY: "anna"})
        assert not clients
        desk.answer({"do": READ, "trace": answer["trace"]})

    run(play)


def test_the_history_tells_no_more_of_a_client_whose_trace_nobody_reads() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        add(desk, "client", "boat-17")
        (trace,) = desk.traces
        trace.read_ms -= UNREAD_MS_MAX + 1000
        await broker.until(lambda: not desk.traces)
        assert not broker.engine._recorder.traced.clients

    run(play)


def test_a_level_that_leaves_out_messages_on_purpose_is_said() -> None:
    async def play(broker: InsideBroker) -> None:
        broker.engine._recorder.want(SESSIONS, 1, broker.driver.now, 0)
        desk = desk_of(broker)
        answer = desk.answer(
            {"do": ADD, "kind": "client", "value": "c", "for_ms": "60000", BY: "anna"}
        )
        assert answer["not_recorded"] == "history.detail leaves out single messages on purpose"

    run(play)


def test_a_broker_that_ends_is_traced_and_records_no_more() -> None:
    async def play(broker: InsideBroker) -> None:
        desk = desk_of(broker)
        number = add(desk, "client", "c")
        broker.engine.drain(broker.driver.now)
        answer = desk.answer(
            {"do": ADD, "kind": "client", "value": "d", "for_ms": "60000", BY: "anna"}
        )
        assert "shutting down" in answer["not_recorded"]
        desk.answer({"do": REMOVE, "trace": number, BY: "anna"})
        assert list(broker.engine._recorder.traced.clients) == ["c"]
        broker.engine.finish(broker.driver.now)
        assert not broker.engine._recorder.traced.clients

    run(play)
