"""What a trace sees of real connections, and that nothing is left when it is over."""

import json
from collections.abc import Callable
from typing import Any

from broker.loop.client_stream import ClientStream
from broker.loop.driver import Driver
from broker.operations.tracing.taps import SLICE, Taps
from broker.operations.tracing.traces import Line, Trace, Traces
from mqtt.encoder import encode
from mqtt.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Publish, Suback
from session.settings import Settings
from tests.broker.inside import (
    InsideBroker,
    Peer,
    expect_drops_while_not_reading,
    publish,
    run,
    small_out_buffer,
    subscribe,
)


class Watch:
    """Traces of a broker inside the test's loop, at a time that stands still."""

    def __init__(self, broker: InsideBroker) -> None:
        self.traces = Traces()
        self.taps = Taps(self.traces, broker.driver, clock_ms=lambda: 5_000)
        self._broker = broker

    def begin(self, kind: str, value: str, payload_bytes: int = 0) -> Trace:
        trace = self.traces.add(
            kind, value, "anna", now_ms=0, for_ms=1000, payload_bytes=payload_bytes
        )
        self.taps.settle()
        return trace

    def end(self, trace: Trace) -> None:
        self.traces.end(trace, "over")
        self.taps.settle()

    def tapped(self) -> int:
        streams = [each for each in self._broker.driver.streams if isinstance(each, ClientStream)]
        return sum(stream.tap is not None for stream in streams)


def lines(trace: Trace) -> list[Line]:
    found: list[Line] = json.loads(trace.take(1 << 30)[0])
    return found


def short(line: Line) -> tuple[Any, ...]:
    return (line["direction"], line.get("packet", line.get("text")), line.get("topic", ""))


async def leave(broker: InsideBroker, peer: Peer) -> None:
    """DISCONNECT, and wait until the stream is gone."""
    before = len(broker.driver.streams)
    peer.send(Disconnect())
    await peer.closed()
    peer.writer.transport.abort()
    await broker.until(lambda: len(broker.driver.streams) < before)


def test_a_client_that_is_connected_is_followed_packet_by_packet() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        boat, other = await broker.connect("boat-17", expiry=60), await broker.connect("other")
        boat.send(subscribe("a", 1))
        await boat.receive(Suback)
        trace = watch.begin("client", "boat-17", payload_bytes=4)
        assert watch.tapped() == 1
        other.send(publish("a", b"for it", packet_id=3))
        await other.receive(Puback)
        got = await boat.receive(Publish)
        boat.send(Puback(got.packet_id), Pingreq())
        await boat.receive(Pingresp)
        await leave(broker, boat)
        found = lines(trace)
        assert [short(line) for line in found] == [
            ("out", "PUBLISH", "a"),
            ("in", "PUBACK", ""),
            ("in", "PINGREQ", ""),
            ("out", "PINGRESP", ""),
            ("in", "DISCONNECT", ""),
            ("", "connection closed", ""),
        ]
        assert {line["client_id"] for line in found} == {"boat-17"}
        assert (found[0]["qos"], bytes.fromhex(found[0]["payload"])) == (1, b"for ")
        assert found[1]["after_ms"] == 0 and found[1]["packet_id"] == got.packet_id

    run(play)


def test_a_client_that_connects_later_is_followed_from_its_connect_on() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        trace = watch.begin("client", "boat-17")
        await broker.connect("other")
        boat = await broker.connect("boat-17")
        assert watch.tapped() == 1  # the tap of the other one is gone
        connect, connack = lines(trace)
        assert (connect["packet"], connack["packet"]) == ("CONNECT", "CONNACK")
        assert connect["text"].startswith("client id 'boat-17', MQTT 5.0")
        await leave(broker, boat)

    run(play)


def test_a_client_is_known_by_the_name_that_it_is_assigned() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        trace = watch.begin("client", "auto-1")
        peer = await broker.peer()
        peer.writer.write(encode(Connect(""), 5)[:5])
        await broker.until(lambda: broker.counters.bytes_received == 5)
        peer.writer.write(encode(Connect(""), 5)[5:])
        assert (await peer.receive(Connack)).assigned_client_id == "auto-1"
        assert [line["packet"] for line in lines(trace)] == ["CONNECT", "CONNACK"]

    run(play)


def test_a_topic_is_followed_from_who_publishes_to_who_gets_it() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        early = await broker.connect("early")
        early.send(subscribe("a/#", 0))
        await early.receive(Suback)
        trace = watch.begin("topic", "a/+")
        late = await broker.connect("late")
        late.send(publish("a/b", qos=1), publish("b", packet_id=2), publish("a/b/c", packet_id=3))
        for _ in range(3):
            await late.receive(Puback)
        for _ in range(2):
            await early.receive(Publish)
        assert [(line["client_id"], *short(line)) for line in lines(trace)] == [
            ("late", "in", "PUBLISH", "a/b"),
            ("early", "out", "PUBLISH", "a/b"),
        ]

    run(play)


def test_an_address_is_followed_also_without_a_connect() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        trace, none = watch.begin("address", "127.0.0.0/8"), watch.begin("address", "10.0.0.0/8")
        peer = await broker.peer()
        peer.writer.write(b"\x10\x04GET ")
        await peer.closed()
        peer.writer.transport.abort()
        await broker.until(lambda: not broker.driver.streams)
        assert [short(line)[:2] for line in lines(trace)] == [
            ("in", "CONNECT"),
            ("", "connection closed"),
        ]
        assert lines(none) == []

    run(play)


def test_a_packet_that_began_before_the_trace_is_not_taken_for_another() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        boat = await broker.connect("boat-17")
        whole = encode(publish("a", b"\xd0\x00" * 500, qos=0), 5)
        received = broker.counters.bytes_received
        boat.writer.write(whole[:400])
        await broker.until(lambda: broker.counters.bytes_received == received + 400)
        trace = watch.begin("client", "boat-17")
        boat.writer.write(whole[400:])
        boat.send(Pingreq())
        await boat.receive(Pingresp)
        found = lines(trace)
        assert [line["packet"] for line in found] == ["PUBLISH", "PINGREQ", "PINGRESP"]
        assert found[0]["size"] == len(whole)

    run(play)


def test_nothing_is_left_of_a_trace_that_is_over() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        peers = [await broker.connect(f"c{number}") for number in range(3)]
        trace, second = watch.begin("topic", "#"), watch.begin("client", "c1")
        assert watch.tapped() == 3
        watch.end(trace)
        assert watch.tapped() == 1
        watch.end(second)
        assert watch.tapped() == 0 and broker.driver.new_tap is None
        peers[1].send(Pingreq())
        await peers[1].receive(Pingresp)
        assert lines(second) == []

    run(play)


def test_streams_get_their_taps_a_slice_at_a_time() -> None:
    async def play(broker: InsideBroker) -> None:
        traces = Traces()
        turns: list[tuple[Callable[..., None], tuple[object, ...]]] = []

        class Loop:
            def call_soon(self, call: Callable[..., None], *arguments: object) -> None:
                turns.append((call, arguments))

        driver = Driver(
            broker.engine,
            broker.store,
            loop=Loop(),  # type: ignore[arg-type]
            clock=broker.clock_ms,
            log=broker.log,
            fail=broker.failures.append,
        )
        taps = Taps(traces, driver, clock_ms=lambda: 0)
        streams = [ClientStream(driver, "tcp") for _ in range(2 * SLICE + 1)]
        driver.streams.update(streams)
        taps.settle()
        slices = 0
        while turns:
            call, arguments = turns.pop()
            call(*arguments)
            slices += 1
        assert slices == 2

    run(play)


def test_a_bug_in_a_tap_ends_the_trace_of_that_connection_only() -> None:
    async def play(broker: InsideBroker) -> None:
        class Broken:
            def received(self, data: bytes) -> None:
                raise ValueError("a bug")

            sent = said = closed = received

        peer = await broker.connect("c")
        (stream,) = broker.driver.streams
        assert isinstance(stream, ClientStream)
        stream.tap = Broken()  # type: ignore[assignment]
        peer.send(Pingreq())
        await peer.receive(Pingresp)
        assert stream.tap is None
        assert broker.events("internal_error")[0]["message"] == "trace: ValueError: a bug"

    run(play)


def test_messages_that_a_client_does_not_get_are_told() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        slow, fast = await broker.connect("slow"), await broker.connect("fast")
        slow.send(subscribe("a", 0))
        await slow.receive(Suback)
        trace, topic = watch.begin("client", "slow"), watch.begin("topic", "a")
        broker.engine.watch_losses(watch.taps.lost)
        await expect_drops_while_not_reading(broker, slow, fast)
        told = [line for line in lines(trace) if not line["direction"]]
        (first, *_) = [line for line in told if "does not get" in line["text"]]
        assert first["text"] == "does not get a message: slow_consumer"
        assert (first["topic"], first["client_id"]) == ("a", "slow")
        assert lines(topic)

    settings: Settings = small_out_buffer()
    run(play, settings=settings)


def test_denials_are_told_to_traces_of_the_client_and_of_the_topic() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        client, topic = watch.begin("client", "c"), watch.begin("topic", "t/#")
        address = watch.begin("address", "127.0.0.1")
        watch.taps.denied("publish", "c", "t/1")
        watch.taps.denied("publish", "d", "t/2")
        await broker.connect("c")
        lines(address)
        watch.taps.denied("subscribe", "c", "#")
        assert [short(line)[1:] for line in lines(client)[::3]] == [
            ("denied: publish, not authorized", "t/1"),
            ("denied: subscribe, not authorized", "#"),
        ]
        assert [line["client_id"] for line in lines(topic)] == ["c", "d"]
        assert [short(line)[2] for line in lines(address)] == ["#"]

    run(play)


def test_what_the_engine_says_of_a_connection_is_told() -> None:
    async def play(broker: InsideBroker) -> None:
        watch = Watch(broker)
        trace = watch.begin("client", "c")
        await broker.connect("c")
        connection = broker.engine.administer(broker.driver.now).connections()["c"]
        lines(trace)
        watch.taps.observed("closed", connection, "keep alive timeout")
        assert [line["text"] for line in lines(trace)] == ["closed: keep alive timeout"]

    run(play)
