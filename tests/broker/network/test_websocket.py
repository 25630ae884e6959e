"""MQTT over WebSocket: upgrades, frames right and wrong, closes, and peers that cost much."""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from broker.configuration.listener_options import WEBSOCKET, Endpoint
from broker.loop import client_stream
from broker.loop.client_stream import ClientStream
from broker.network import websocket
from broker.network.websocket import FRAME_SPARE_BYTES, SLICE_BYTES
from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Publish, Suback
from session.live.connection import Connection
from session.settings import Settings
from tests.broker.inside import (
    InsideBroker,
    expect_drops_while_not_reading,
    publish,
    run,
    small_out_buffer,
    subscribe,
)
from tests.broker.network.certificates import Authority
from tests.broker.network.webclient import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    WebPeer,
    close_frame,
    frame,
    request,
)

BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
CONNECT = encode(Connect("c"), 5)
PINGREQ = encode(Pingreq(), 5)

Open = Callable[[], Coroutine[Any, Any, WebPeer]]
WebScenario = Callable[[InsideBroker, Open], Coroutine[Any, Any, None]]


def serve(
    scenario: WebScenario,
    *,
    settings: Settings | None = None,
    loop: str = "asyncio",
    authority: Authority | None = None,
    **values: Any,
) -> None:
    """Run `scenario` with a websocket listener; it is handed a function that connects to it."""

    async def main(broker: InsideBroker) -> None:
        endpoint = Endpoint("web")
        endpoint.type, endpoint.port = WEBSOCKET, 0
        for key, value in values.items():
            setattr(endpoint, key, value)
        context = None
        if authority is not None:
            endpoint.tls_certificate, endpoint.tls_key = map(str, authority.server())
            context = authority.client_context()
        listener = await broker.listen(endpoint)

        async def connect() -> WebPeer:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context)
            broker.peer_of(reader, writer)
            return WebPeer(reader, writer)

        await scenario(broker, connect)

    run(main, settings=settings, loop=loop)


async def accepted(connect: Open, client_id: str = "c", **fields: Any) -> WebPeer:
    """Return a client that is through with upgrade and CONNECT."""
    peer = await connect()
    await peer.upgrade()
    peer.send(Connect(client_id, **fields))
    assert (await peer.receive(Connack)).reason_code == 0
    return peer


def the_stream(broker: InsideBroker) -> ClientStream:
    (stream,) = broker.driver.streams
    return stream


# The upgrade.


@BOTH
@pytest.mark.parametrize(
    ("offer", "chosen"),
    [
        ("mqtt", "mqtt"),
        ("mqttv3.1", "mqttv3.1"),
        ("mqttv3.1, mqtt", "mqtt"),
        ("x, mqtt , y", "mqtt"),
    ],
)
def test_a_client_that_offers_mqtt_is_served(loop: str, offer: str, chosen: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await connect()
        fields = await peer.upgrade(
            sec_websocket_protocol=offer,
            sec_websocket_extensions="permessage-deflate; client_max_window_bits, x-webkit-deflate",
        )
        assert fields["Sec-WebSocket-Protocol"] == chosen
        assert "Sec-WebSocket-Extensions" not in fields
        peer.send(Connect("c"))
        await peer.receive(Connack)
        assert broker.driver.connections["web"] == 1
        assert the_stream(broker).remote.startswith("127.0.0.1:")
        assert the_stream(broker).is_accepted

    serve(scenario, loop=loop)


def test_any_path_and_any_pieces_will_do() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        for line in ("GET / HTTP/1.1", "GET /a/b?c=d HTTP/1.1"):
            peer = await connect()
            for byte in request(line):
                peer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await peer.answer())[0] == 101
        peer = await connect()
        peer.write(request() + frame(CONNECT) + frame(PINGREQ))  # not waiting for the answer
        assert (await peer.answer())[0] == 101
        await peer.receive(Connack)
        await peer.receive(Pingresp)

    serve(scenario)


REFUSED: Final = [
    (request(sec_websocket_protocol=None), 400, "missing subprotocol"),
    (request(sec_websocket_protocol="chat, MQTT"), 400, "invalid subprotocol"),
    (request(sec_websocket_version="8"), 400, "Sec-WebSocket-Version"),
    (request(sec_websocket_key="short"), 400, "Sec-WebSocket-Key"),
    (request(sec_websocket_key=None), 400, "Sec-WebSocket-Key"),
    (request(upgrade=None), 426, "Upgrade"),
    (request(connection="close"), 426, "Connection"),
    (request("POST /mqtt HTTP/1.1"), 405, "POST"),
    (request("GET /mqtt HTTP/1.0"), 505, "HTTP/1.0"),
    (request("GET /mqtt"), 400, "no valid HTTP request"),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, "no valid HTTP request"),
    (b"\xc3\xa4\r\n\r\n", 400, "not HTTP"),
    (CONNECT, 400, "not HTTP"),
    (b"\x16\x03\x01\x02\x00", 400, "not HTTP"),
    (request(x_long="x" * 8192), 431, "more than 8192 bytes"),
    (request(**{f"x_{n}": "x" * 100 for n in range(100)}), 431, "more than 8192 bytes"),
    (b"GET /" + b"x" * 8192, 431, "more than 8192 bytes"),
]


@BOTH
def test_whoever_asks_for_something_else_is_refused(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        for number, (asked, status, why) in enumerate(REFUSED, 1):
            peer = await connect()
            peer.write(asked)
            assert (await peer.answer())[0] == status, asked
            await peer.closed()
            line = broker.events("connection_refused")[-1]
            assert why in line["message"]
            assert line["message"].startswith("websocket: ")
            assert line["listener"] == "web" and line["remote"].startswith("127.0.0.1:")
            assert broker.counters.connects["handshake"] == number
            peer.writer.close()
        await broker.until(lambda: not broker.driver.streams)
        assert broker.driver.connections["web"] == 0

    serve(scenario, loop=loop)


def test_the_largest_request_is_served() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await connect()
        peer.write(request(x_long="x" * (8192 - len(request(x_long="")))))
        assert (await peer.answer())[0] == 101

    serve(scenario)


@pytest.mark.parametrize(
    ("allowed", "served", "refused"),
    [
        ((), ["https://evil.example", "null", None], []),
        (
            ("https://a.example", "https://b.example:8443"),
            ["https://a.example", "https://b.example:8443", None],
            ["https://a.example:8443", "http://a.example", "https://c.example", "null", ""],
        ),
        (("https://a.example", "null"), ["null"], ["https://b.example"]),
        (("*",), ["https://b.example"], []),
    ],
)
def test_a_list_of_origins_keeps_other_pages_out(
    allowed: tuple[str, ...], served: list[str | None], refused: list[str]
) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        for origins, status in ((served, 101), (refused, 403)):
            for origin in origins:
                peer = await connect()
                peer.write(request(origin=origin))
                assert (await peer.answer())[0] == status, origin

    serve(scenario, origins=allowed)


@pytest.mark.parametrize("first", [b"", b"GET /mqtt HTTP/1.1\r\nHost: ", request()])
def test_whoever_does_not_upgrade_and_connect_in_time_is_closed(first: bytes) -> None:
    settings = Settings()
    settings.connect_timeout_ms = 100

    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await connect()
        peer.write(first)
        if first == request():
            assert (await peer.answer())[0] == 101
            await peer.closed(1000)
        else:
            await peer.closed()
        assert broker.counters.connects["timeout"] == 1

    serve(scenario, settings=settings)


# Data.


@BOTH
def test_packets_may_span_frames_and_frames_may_hold_packets(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await connect()
        await peer.upgrade()
        for byte in CONNECT:
            peer.write(frame(bytes([byte])))
        await peer.receive(Connack)
        pings = PINGREQ * 3
        pieces = [bytes([byte]) for byte in pings]
        peer.write(frame(pieces[0], fin=False))
        for piece in pieces[1:-1]:
            peer.write(frame(piece, CONTINUATION, fin=False) + frame(b"between", PING))
        peer.write(frame(pieces[-1], CONTINUATION))
        pongs = 0
        answers = b""
        while len(answers) < 6:
            opcode, payload = await peer.receive_frame()
            assert opcode in (BINARY, PONG)
            pongs += opcode == PONG
            answers += payload if opcode == BINARY else b""
        assert answers == encode(Pingresp(), 5) * 3
        for byte in frame(PINGREQ * 2 + encode(publish("a"), 5)):
            peer.write(bytes([byte]))
            await asyncio.sleep(0)
        await peer.receive(Pingresp)
        await peer.receive(Pingresp)
        await peer.receive(Puback)

    serve(scenario, loop=loop)


def test_what_the_engine_writes_at_once_is_one_message() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        peer.send(*[Pingreq()] * 100)
        opcode, payload = await peer.receive_frame()
        assert (opcode, payload) == (BINARY, encode(Pingresp(), 5) * 100)

    serve(scenario)


@BOTH
def test_messages_of_every_size_come_and_go_whole(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        peer.send(subscribe("a", 1))
        await peer.receive(Suback)
        for number, size in enumerate((0, 125, 126, 65_535, 65_536, 1_000_000), 1):
            payload = bytes(itertools.islice(itertools.cycle(range(251)), size))
            peer.send(publish("a", payload, packet_id=number))
            received = [await peer.receive(object) for _ in range(2)]
            (message,) = [packet for packet in received if isinstance(packet, Publish)]
            assert message.payload == payload
            peer.send(Puback(message.packet_id))

    serve(scenario, loop=loop)


WRONG: Final = [
    (frame(b"text", TEXT), 1003),
    (frame(b"te", TEXT, fin=False) + frame(b"xt", CONTINUATION), 1003),
    (frame(PINGREQ, TEXT), 1003),
    (frame(PINGREQ, masked=False), 1002),
    (frame(PINGREQ, reserved=4), 1002),
    (frame(PINGREQ, reserved=1), 1002),
    (frame(PINGREQ, 0x3), 1002),
    (frame(PINGREQ, 0xB), 1002),
    (frame(b"", PING, fin=False), 1002),
    (frame(b"x" * 126, PING), 1002),
    (frame(PINGREQ, CONTINUATION), 1002),
    (frame(b"\xc0", fin=False) + frame(PINGREQ), 1002),
    (close_frame(1005), 1002),
    (frame(b"\x03", CLOSE), 1002),
    (close_frame(1000, b"\xff"), 1007),
    (frame(size=2**63 - 1), 1009),
    (frame(size=2**64 - 1), 1009),
]


@BOTH
def test_a_wrong_frame_ends_the_connection_and_says_why(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        for data, code in WRONG:
            peer = await accepted(connect)
            peer.write(data + frame(encode(publish("a"), 5)))
            await peer.closed(code)
            peer.writer.close()
            await broker.until(lambda: not broker.driver.streams)
        assert broker.engine.stats()["connections"] == 0
        assert broker.counters.messages_received[1] == 0  # nothing behind it counts
        assert not broker.counters.internal_errors

    serve(scenario, loop=loop)


def test_what_came_before_a_wrong_frame_counts() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        peer.write(frame(encode(publish("a"), 5)) + frame(b"text", TEXT))
        await peer.closed(1003)
        assert broker.counters.messages_received[1] == 1

    serve(scenario)


# Limits.


def small() -> Settings:
    settings = Settings()
    settings.maximum_packet_size = 100_000
    settings.connect_size_max = 1000
    return settings


def test_a_frame_too_large_is_refused_before_it_is_here() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        early = 1000 + FRAME_SPARE_BYTES
        late = 100_000 + FRAME_SPARE_BYTES
        for size, code in ((early + 1, 1009), (early, None)):
            peer = await connect()
            await peer.upgrade()
            peer.write(frame(size=size))
            if code is not None:
                await peer.closed(code)
            else:
                await still_open(broker, peer)
        for size, code in ((late + 1, 1009), (late, None)):
            peer = await accepted(connect, f"c{size}")
            peer.write(frame(size=size))
            if code is not None:
                await peer.closed(code)
            else:
                await still_open(broker, peer)

    serve(scenario, settings=small())


async def still_open(broker: InsideBroker, peer: WebPeer) -> None:
    """Expect nothing to come for a moment, not even the end."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(peer.reader.read(1), 0.1)


def test_fragments_are_no_way_around_the_size_of_a_packet() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        whole = encode(publish("a", b"x" * 200_000), 5)
        peer.write(frame(whole[:50_000], fin=False))
        for start in range(50_000, len(whole), 50_000):
            peer.write(frame(whole[start : start + 50_000], CONTINUATION, fin=False))
        assert (await peer.receive(Disconnect)).reason_code == reasons.PACKET_TOO_LARGE
        assert (await peer.receive_frame())[0] == CLOSE

    serve(scenario, settings=small())


def test_a_peer_that_declares_much_and_sends_little_costs_little() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        peer.write(frame(size=16_000_000))
        for _ in range(100):
            peer.write(b"x" * 10)
            await asyncio.sleep(0)
        (web,) = [handler for handler in streams(broker)]
        assert web._protocol is not None
        assert len(web._protocol.reader.buffer) <= 1000

    serve(scenario)


def streams(broker: InsideBroker) -> list[websocket.WebSocketStream]:
    """Return what stands between the loop and the clients' streams."""
    found: list[Any] = [stream._transport for stream in broker.driver.streams]
    return [web for web in found if isinstance(web, websocket.WebSocketStream)]


@BOTH
def test_a_flood_of_tiny_fragments_leaves_the_loop_to_others(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        flood = await accepted(connect, "flood")
        other = await accepted(connect, "other")
        packets = encode(publish("a", b"x" * 100), 5) * 1000
        data = b"".join(frame(bytes([byte])) for byte in packets)
        assert len(data) > 20 * SLICE_BYTES
        flood.write(data)
        other.send(Pingreq())
        await other.receive(Pingresp)
        assert broker.counters.messages_received[1] < 1000  # it did not wait for all of them
        for _ in range(1000):
            await flood.receive(Puback)

    serve(scenario, loop=loop)


# Pings.


@BOTH
def test_a_ping_is_answered_and_a_pong_is_not(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        received = broker.counters.bytes_received
        (connection,) = broker.engine._connections
        silent_since = connection.last_received_ms
        peer.write(frame(b"unasked", PONG))
        peer.write(frame(b"", BINARY) + frame(b"a" * 125, PING))
        assert await peer.receive_frame() == (PONG, b"a" * 125)
        assert broker.counters.bytes_received == received  # none of it is MQTT
        assert connection.last_received_ms == silent_since  # nor a sign of life for Keep Alive

    serve(scenario, loop=loop)


@BOTH
def test_a_flood_of_pings_makes_no_flood_of_pongs(loop: str) -> None:
    settings = Settings()
    settings.out_buffer_bytes_max = 1024

    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        peer.write(b"".join(frame(b"%04d" % n, PING) for n in range(4000)))
        peer.send(Pingreq())
        pongs = []
        while True:
            opcode, payload = await peer.receive_frame()
            if opcode == BINARY:
                break
            pongs.append(payload)
        assert 1 <= len(pongs) < 100
        assert pongs == sorted(pongs)
        assert pongs[-1] == b"3999"

    serve(scenario, settings=settings, loop=loop)


def test_a_peer_that_pings_and_does_not_read_is_owed_one_pong() -> None:
    settings = Settings()
    settings.out_buffer_bytes_max = 1024

    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        (web,) = streams(broker)
        assert web._transport is not None
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        web.write(b"x" * 20_000_000)
        await broker.until(lambda: web._is_slow)
        written = web._transport.get_write_buffer_size()
        for n in range(1000):
            peer.write(frame(b"%04d" % n, PING))
        await broker.until(lambda: web._pong.endswith(b"0999"))
        assert web._transport.get_write_buffer_size() <= written
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert (await peer.receive_frame())[0] == BINARY
        assert await peer.receive_frame() == (PONG, b"0999")

    serve(scenario, settings=settings)


# Closing.


@BOTH
def test_a_close_is_answered_and_the_engine_told(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        codes = [None, 1000, 1001, 4000]
        for number, code in enumerate(codes, 1):
            peer = await accepted(connect)
            closing = close_frame(code, b"" if code is None else b"bye")
            peer.write(frame(encode(publish("a"), 5)) + closing + frame(encode(publish("b"), 5)))
            opcode, payload = await peer.receive_frame()
            assert opcode == CLOSE
            assert payload == (b"" if code is None else code.to_bytes(2, "big") + b"bye")
            await peer.closed()
            peer.writer.close()
            await broker.until(lambda: not broker.driver.streams)
            assert broker.counters.messages_received[1] == number
            assert broker.counters.disconnects["connection_lost"] == number

    serve(scenario, loop=loop)


@BOTH
@pytest.mark.parametrize("has_tls", [False, True])
def test_the_engine_s_last_packet_comes_before_the_close(
    loop: str, has_tls: bool, authority: Authority
) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        peer.send(Connect("again"))  # [MQTT-3.1.0-2]
        assert (await peer.receive(Disconnect)).reason_code == reasons.PROTOCOL_ERROR
        opcode, payload = await peer.receive_frame()
        assert (opcode, payload) == (CLOSE, (1000).to_bytes(2, "big"))
        peer.write(frame(PINGREQ) + close_frame(1000))
        await peer.closed()
        peer.writer.close()
        await broker.until(lambda: not broker.driver.streams)

    serve(scenario, loop=loop, authority=authority if has_tls else None)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@BOTH
@pytest.mark.parametrize("how", ["ours", "theirs", "wrong"])
def test_a_peer_that_does_not_end_its_side_is_dropped(
    loop: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (client_stream, websocket):
        monkeypatch.setattr(module, "LINGER_S", 0.05)

    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        if how == "ours":
            the_stream(broker).close()
        elif how == "theirs":
            peer.write(close_frame(1000))
        else:
            peer.write(frame(b"text", TEXT))
        await broker.until(lambda: not broker.driver.streams)
        assert broker.engine.stats()["connections"] == 0

    serve(scenario, loop=loop)


@BOTH
def test_a_peer_that_vanishes_is_told_to_the_engine_once(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        for client_id, reset in (("a", True), ("b", False)):
            peer = await accepted(connect, client_id)
            if reset:
                peer.writer.transport.abort()
            else:
                peer.writer.write_eof()
            await broker.until(lambda: not broker.driver.streams)
        assert broker.counters.disconnects["connection_lost"] == 2
        assert not broker.counters.internal_errors

    serve(scenario, loop=loop)


def test_a_stream_says_that_it_is_closing_before_the_loop_tells_its_end() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        await accepted(connect)
        (web,) = streams(broker)
        assert not web.is_closing()
        web.close()
        assert web.is_closing() and broker.driver.streams
        peer = await accepted(connect, "other")
        web = next(each for each in streams(broker) if each is not web)
        peer.write(frame(b"text", TEXT))
        await peer.closed(1003)  # and has not ended its side
        assert web.is_closing() and web in streams(broker)

    serve(scenario)


def test_what_is_written_before_the_upgrade_or_after_the_end_goes_nowhere() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await connect()
        await broker.until(lambda: bool(broker.driver.streams))
        stream = the_stream(broker)
        stream.write(b"early")
        await peer.upgrade()
        stream.write(b"in time")
        assert await peer.receive_frame() == (BINARY, b"in time")
        (web,) = streams(broker)
        stream.close()
        web.write(b"late")
        web.write_eof()
        assert (await peer.receive_frame())[0] == CLOSE
        peer.writer.close()
        await broker.until(lambda: not broker.driver.streams)
        for late in (web.write_eof, web.close, web.abort, web.pause_reading, web.resume_reading):
            late()
        web.write(b"late")
        assert web.is_closing()

    serve(scenario)


# Flow control.


@BOTH
def test_a_paused_stream_hands_in_nothing_until_it_is_resumed(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect)
        stream = the_stream(broker)
        stream.pause_reading()
        peer.send(Pingreq())
        await still_open(broker, peer)
        stream.resume_reading()
        await peer.receive(Pingresp)

    serve(scenario, loop=loop)


@BOTH
def test_a_read_in_pieces_stays_in_order_when_it_is_paused_within(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        peer = await accepted(connect, receive_maximum=65_535)
        receive = broker.engine.receive
        pieces = 0

        def receive_and_pause(connection: Connection, data: bytes, now: int) -> None:
            nonlocal pieces
            pieces += 1
            receive(connection, data, now)
            connection.transport.pause_reading()
            broker.loop.call_later(0.001, connection.transport.resume_reading)

        monkeypatch.setattr(broker.engine, "receive", receive_and_pause)
        total = 600
        packets = [encode(publish("a", b"x" * 100, packet_id=n + 1), 5) for n in range(total)]
        peer.write(b"".join(map(frame, packets)))
        for number in range(total):
            assert (await peer.receive(Puback)).packet_id == number + 1
        assert pieces >= total * 100 // SLICE_BYTES

    serve(scenario, loop=loop)


@BOTH
def test_a_slow_consumer_is_told_to_the_engine_and_back(loop: str) -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        slow = await accepted(connect, "slow")
        slow.send(subscribe("a", 0))
        await slow.receive(Suback)
        fast = await accepted(connect, "fast")
        await expect_drops_while_not_reading(broker, slow, fast)

    serve(scenario, settings=small_out_buffer(), loop=loop)


def test_idle_connections_cost_no_processor_time() -> None:
    async def scenario(broker: InsideBroker, connect: Open) -> None:
        for number in range(20):
            peer = await accepted(connect, f"c{number}")
            peer.write(frame(size=100))  # and one that waits for the rest of a frame
        await asyncio.sleep(0.05)
        before = time.thread_time()
        await asyncio.sleep(0.5)
        assert time.thread_time() - before < 0.1

    serve(scenario)
