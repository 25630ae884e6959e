"""One client's stream: handing bytes over, closing politely, and containing our own mistakes."""

import asyncio
import gc

import pytest

from broker.loop import client_stream
from broker.loop.client_stream import ClientStream, remote_name
from broker.loop.driver import Stream
from mqtt.encoder import encode
from mqtt.packets import (
    PUBLISH,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Suback,
)
from session.live.connection import Connection
from storage.errors import Unrecoverable
from tests.broker.inside import (
    InsideBroker,
    expect_drops_while_not_reading,
    publish,
    run,
    small_out_buffer,
    subscribe,
)


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (("127.0.0.1", 5), "127.0.0.1:5"),
        (("::1", 5, 0, 0), "[::1]:5"),
        ("/run/socket", "/run/socket"),
        (None, ""),
    ],
)
def test_a_peer_is_named_as_people_write_it(peer: object, name: str) -> None:
    assert remote_name(peer) == name


def test_a_bug_met_by_one_connection_costs_that_connection_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        healthy = await broker.connect("healthy")
        unlucky = await broker.connect("unlucky")
        receive = broker.engine.receive

        def receive_or_break(connection: Connection, data: bytes, now: int) -> None:
            if b"boom" in data:
                raise ValueError("a bug")
            receive(connection, data, now)

        monkeypatch.setattr(broker.engine, "receive", receive_or_break)
        unlucky.send(publish("a", b"boom"))
        await unlucky.closed()
        healthy.send(Pingreq())
        await healthy.receive(Pingresp)
        assert broker.counters.internal_errors == 1
        (line,) = broker.events("internal_error")
        assert line["message"] == "connection: ValueError: a bug"
        assert line["remote"].startswith("127.0.0.1:")
        assert "receive_or_break" in line["traceback"]
        assert broker.engine.stats()["connections"] == 1
        assert not broker.failures

    run(scenario)


@pytest.mark.parametrize("method", ["open", "transport_lost", "resume_writing"])
def test_a_bug_in_any_callback_is_counted_and_contained(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        healthy = await broker.connect("healthy")
        unlucky = await broker.connect("unlucky")

        def broken(*arguments: object, **options: object) -> None:
            raise ValueError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(broker.engine, method, broken)
            if method == "open":
                await (await broker.peer()).closed()
            elif method == "transport_lost":
                unlucky.writer.close()
            else:
                for stream in list(broker.driver.streams)[1:]:
                    stream.resume_writing()
            await broker.until(lambda: broker.counters.internal_errors > 0)
            await asyncio.sleep(0.01)
        healthy_streams = [s for s in broker.driver.streams]
        assert healthy_streams
        assert not broker.failures
        del healthy

    run(scenario)


def test_the_engine_hears_of_a_lost_stream_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: InsideBroker) -> None:
        lost: list[Connection] = []
        transport_lost = broker.engine.transport_lost

        def count(connection: Connection, now: int) -> None:
            lost.append(connection)
            transport_lost(connection, now)

        monkeypatch.setattr(broker.engine, "transport_lost", count)
        for client_id in ("leaves", "vanishes"):
            peer = await broker.connect(client_id)
            if client_id == "leaves":
                peer.send(Disconnect())
                await peer.closed()
            peer.writer.close()
        await broker.until(lambda: not broker.driver.streams)
        assert len(lost) == len(set(lost)) == 2

    run(scenario)


def test_a_paused_stream_reads_nothing_until_it_is_resumed() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("c")
        (stream,) = broker.driver.streams
        stream.pause_reading()
        stream.pause_reading()
        peer.send(Pingreq())
        await peer.silence()
        stream.resume_reading()
        stream.resume_reading()
        await peer.receive(Pingresp)

    run(scenario)


def test_a_closed_stream_sends_what_was_written_and_then_ends_whatever_is_said() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("c")
        (stream,) = broker.driver.streams
        stream.pause_reading()
        stream.write(b"\xd0\x00")
        stream.close()
        stream.close()
        stream.write(b"\xff\xff")
        peer.writer.write(b"\0" * 200_000)
        await peer.receive(Pingresp)
        assert await peer.reader.read() == b""
        peer.writer.close()
        await broker.until(lambda: not broker.driver.streams)
        stream.write(b"late")
        stream.close()
        stream.abort()
        stream.pause_reading()
        stream.resume_reading()

    run(scenario)


def test_what_was_read_before_a_stream_is_aborted_is_not_handed_in_after_it() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await broker.connect("c")
        (stream,) = broker.driver.streams
        stream.abort()
        stream.data_received(encode(publish("a", qos=0), 5))
        await broker.until(lambda: not broker.driver.streams)
        assert broker.counters.messages_received == [0, 0, 0]

    run(scenario)


def test_a_peer_that_does_not_close_is_dropped_after_the_linger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_stream, "LINGER_S", 0.05)

    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("c")
        (stream,) = broker.driver.streams
        stream.close()
        await broker.until(lambda: not broker.driver.streams)
        assert broker.engine.stats()["connections"] == 0
        del peer

    run(scenario)


def test_a_slow_consumer_is_told_to_the_engine_and_back() -> None:
    async def scenario(broker: InsideBroker) -> None:
        slow = await broker.connect("slow")
        slow.send(subscribe("a", 0))
        await slow.receive(Suback)
        fast = await broker.connect("fast")
        await expect_drops_while_not_reading(broker, slow, fast)

    run(scenario, settings=small_out_buffer())


def test_a_failing_store_met_by_one_connection_ends_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        unlucky = await broker.connect("unlucky")

        def broken(*arguments: object, **options: object) -> None:
            raise Unrecoverable("reading failed: input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(broker.engine, "receive", broken)
            unlucky.writer.write(b"\xc0\x00")
            await broker.until(lambda: bool(broker.failures))
        assert isinstance(broker.failures[0], Unrecoverable)
        assert not broker.counters.internal_errors

    run(scenario)


def test_a_closed_connection_needs_no_garbage_collector() -> None:
    """The broker freezes what is old, so a cycle would never be freed."""
    rounds = 30

    async def scenario(broker: InsideBroker) -> None:
        async def live(number: int) -> None:
            peer = await broker.connect(f"c{number}", expiry=100 * (number % 2))
            peer.send(subscribe(f"t/{number}", 1))
            await peer.receive(Suback)
            peer.send(publish(f"t/{number}"))
            await peer.receive(object)
            await peer.receive(object)
            peer.writer.write(encode(Disconnect(), 5) if number % 3 else b"\0\0")
            await peer.closed()
            peer.writer.close()
            broker.peers.remove(peer)

        for number in range(rounds):  # what is made once is made
            await live(number)
        await broker.until(lambda: not broker.driver.streams)
        gc.collect()
        gc.disable()
        try:
            for number in range(rounds, 2 * rounds):
                await live(number)
            await broker.until(lambda: not broker.driver.streams)
            assert gc.collect() < rounds
        finally:
            gc.enable()

    run(scenario, loop="uvloop")


def test_what_must_come_before_any_data_comes_before_it() -> None:
    """Such as what the operator wants from now on: the signal came before the data."""

    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("c")
        received = broker.counters.packets_received
        seen: list[int] = []
        broker.driver.before_data = lambda: seen.append(received[PUBLISH])
        peer.send(publish("a"))
        await peer.receive(Puback)
        assert (seen[0], received[PUBLISH]) == (0, 1)

    run(scenario)


class HeldCommits:
    """A committer that never reports."""

    mode = "fsync"

    def request(self, serial: int) -> None:
        """Do nothing."""


def waits_for_its_connack(stream: Stream) -> bool:
    """Return whether a client has sent CONNECT and its CONNACK waits for a commit."""
    assert isinstance(stream, ClientStream)
    connection = stream._connection
    return connection is not None and connection.connack_waits()


def test_clients_are_told_of_another_server_as_far_as_they_have_come() -> None:
    async def scenario(broker: InsideBroker) -> None:
        there = await broker.connect("there")
        waits = await broker.peer()
        broker.driver._committer = HeldCommits()  # type: ignore[assignment]
        waits.send(Connect("waits", session_expiry_interval=60))
        await broker.until(lambda: any(map(waits_for_its_connack, broker.driver.streams)))
        broker.driver.send_away("there.example:1883")
        farewell = await there.receive(Disconnect)
        assert (farewell.reason_code, farewell.server_reference) == (0x9C, "there.example:1883")
        refusal = await waits.receive(Connack)  # not a DISCONNECT: it was not let in
        assert (refusal.reason_code, refusal.server_reference) == (0x9C, "there.example:1883")

    run(scenario)
