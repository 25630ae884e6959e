"""The door for browsers, of a whole broker: C14 of docs/security.md.

Byte for byte and turn for turn of the loop in tests/broker/network/test_websocket.py; here a
process is attacked, and it must go on serving others.
"""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from mqtt.encoder import encode
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
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
from tests.durability.process import BrokerProcess, free_port, holdfast
from tests.durability.rawclient import RawClient

PACKET_MAX: Final = 100_000
SPARE: Final = 65_536  # what a frame may hold beyond one packet
MIB: Final = 1 << 20
ORIGIN: Final = "https://dashboard.example"
# An upgrade is a first step only: who takes longer for it and CONNECT than this is closed.
CONNECT_TIMEOUT: Final = "2s"

Open = Callable[[], Coroutine[Any, Any, WebPeer]]
Scenario = Callable[["Door"], Coroutine[Any, Any, None]]


class Door:
    """A websocket listener of a running broker, and what was opened to it."""

    def __init__(self, broker: BrokerProcess, ports: dict[str, int]) -> None:
        self.broker = broker
        self.ports = ports
        self.context: ssl.SSLContext | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, name: str = "web") -> WebPeer:
        """Open a connection and say nothing."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.ports[name], ssl=self.context
        )
        self._writers.append(writer)
        return WebPeer(reader, writer)

    async def accepted(self, client_id: str, **fields: Any) -> WebPeer:
        """Return a client that is through with upgrade and CONNECT."""
        peer = await self.open()
        await peer.upgrade()
        peer.send(Connect(client_id, **fields))
        assert (await peer.receive(Connack)).reason_code == 0
        return peer

    async def serves(self) -> None:
        """Expect another client to be served."""
        other = await self.accepted("other")
        other.send(Pingreq())
        await other.receive(Pingresp)
        other.write(close_frame(1000))
        await other.closed(1000)

    def run(self, scenario: Scenario) -> None:
        """Run `scenario` in a loop of its own; afterwards the broker must serve others."""

        async def main() -> None:
            try:
                await scenario(self)
                self.context = None
                await self.serves()
            finally:
                for writer in self._writers:
                    writer.transport.abort()
                self._writers.clear()

        asyncio.run(main())
        assert self.broker.is_running()
        assert self.broker.metrics()["holdfast_internal_errors_total"] == 0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def process(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[tuple[BrokerProcess, dict[str, int]]]:
    ports = {name: free_port() for name in ("web", "pages", "wss")}
    certificate, key = authority.server()
    env = {
        "HOLDFAST__LIMITS__MAXIMUM_PACKET_SIZE": str(PACKET_MAX),
        "HOLDFAST__LIMITS__CONNECT_SIZE": "1000",
        "HOLDFAST__LIMITS__CONNECT_TIMEOUT": CONNECT_TIMEOUT,
        "HOLDFAST__LISTENER__PAGES__ORIGINS": ORIGIN,
        "HOLDFAST__LISTENER__WSS__TLS_CERTIFICATE": str(certificate),
        "HOLDFAST__LISTENER__WSS__TLS_KEY": str(key),
        "HOLDFAST__LISTENER__WSS__TLS_CLIENT_CA": str(authority.file),
        "HOLDFAST__LISTENER__WSS__TLS_IDENTITY": "cn",
        "HOLDFAST__LISTENER__WSS__ORIGINS": ORIGIN,
    }
    for name, port in ports.items():
        env[f"HOLDFAST__LISTENER__{name.upper()}__TYPE"] = "websocket"
        env[f"HOLDFAST__LISTENER__{name.upper()}__PORT"] = str(port)
    broker = holdfast(tmp_path_factory.mktemp("web"), env=env)
    broker.start()
    yield broker, ports
    broker.close()


@pytest.fixture
def door(process: tuple[BrokerProcess, dict[str, int]]) -> Door:
    return Door(*process)


# The upgrade


def test_c14_compression_is_never_agreed_on(door: Door) -> None:
    """websockets #407, GHSA-hxp9-w8x3-p566, CVE-2026-1526: a few bytes that mean gigabytes."""

    async def scenario(door: Door) -> None:
        for offer in (
            "permessage-deflate",
            "permessage-deflate; client_max_window_bits, x-webkit-deflate-frame",
            "permessage-deflate; server_no_context_takeover; client_max_window_bits=15",
        ):
            peer = await door.open()
            fields = await peer.upgrade(sec_websocket_extensions=offer)
            assert not [name for name in fields if name.lower() == "sec-websocket-extensions"]
            peer.send(Connect("c"))
            assert (await peer.receive(Connack)).reason_code == 0
            peer.write(frame(b"\xaa\x00\x00", reserved=4))  # as if it had been
            await peer.closed(1002)

    door.run(scenario)


def test_c14_a_client_must_offer_to_speak_mqtt(door: Door) -> None:
    async def scenario(door: Door) -> None:
        for offer in (None, "", "chat", "MQTT5", "mqtt2, xmqtt"):
            peer = await door.open()
            peer.write(request(sec_websocket_protocol=offer))
            status, _ = await peer.answer()
            assert 400 <= status < 500, offer
            peer.write(frame(encode(Connect("c"), 5)))
            assert await peer.reader.read() == b""

    door.run(scenario)


def test_c14_only_pages_of_the_list_may_connect(door: Door) -> None:
    """mosquitto 2.1 added it: a browser sends the Origin of whatever page its user looks at."""

    async def scenario(door: Door) -> None:
        for origin, status in (
            (ORIGIN, 101),
            (None, 101),  # no browser
            ("https://evil.example", 403),
            (f"{ORIGIN}.evil.example", 403),
            (ORIGIN.replace("https", "http"), 403),
            ("null", 403),
        ):
            peer = await door.open("pages")
            peer.write(request(origin=origin))
            assert (await peer.answer())[0] == status, origin

    door.run(scenario)


def test_c14_a_header_beyond_8_kib_is_refused_before_it_ends(door: Door) -> None:
    async def scenario(door: Door) -> None:
        for data in (
            b"GET /" + b"a" * 9000,
            request()[:-2] + b"Cookie: " + b"x" * 8192,
            b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2000,
        ):
            peer = await door.open()
            peer.write(data)
            assert (await peer.answer())[0] == 431
            assert await peer.reader.read() == b""

    door.run(scenario)


def test_c14_a_slow_upgrade_is_closed(door: Door) -> None:
    """Slowloris: a byte now and then, for ever, or an upgrade and then nothing."""

    async def scenario(door: Door) -> None:
        silent, trickling, upgraded = [await door.open() for _ in range(3)]
        await upgraded.upgrade()

        async def trickle() -> None:
            for byte in request(cookie="x" * 4000):
                trickling.write(bytes((byte,)))
                await asyncio.sleep(0.02)

        task = asyncio.create_task(trickle())
        assert await asyncio.wait_for(silent.reader.read(), 20) == b""
        assert await asyncio.wait_for(trickling.reader.read(), 20) == b""
        assert not task.done()  # it was closed in the midst of it
        task.cancel()
        await upgraded.closed(1000)

    door.run(scenario)


# Frames


def test_c14_a_frame_beyond_the_limit_is_refused_on_its_header(door: Door) -> None:
    """Of 64-bit lengths too; before CONNECT the limit is that of a CONNECT."""

    async def scenario(door: Door) -> None:
        for size in (1000 + SPARE + 1, PACKET_MAX, 1 << 31, 1 << 32, (1 << 63) - 1):
            peer = await door.open()
            await peer.upgrade()
            peer.write(frame(size=size))
            await peer.closed(1009)
        for size in (PACKET_MAX + SPARE + 1, 1 << 31, 1 << 32, (1 << 63) - 1):
            peer = await door.accepted("c")
            peer.write(frame(size=size))
            await peer.closed(1009)
        peer = await door.accepted("c")
        peer.write(frame(size=(1 << 64) - 1))  # no length at all [RFC 6455 5.2]
        opcode, payload = await peer.receive_frame()
        assert opcode == CLOSE and struct.unpack("!H", payload[:2])[0] in (1002, 1009)

    door.run(scenario)


def test_c14_text_is_refused(door: Door) -> None:
    """[MQTT-6.0.0-1]"""

    async def scenario(door: Door) -> None:
        peer = await door.open()
        await peer.upgrade()
        peer.write(frame(encode(Connect("c"), 5), TEXT))
        await peer.closed(1003)
        peer = await door.accepted("c")
        peer.write(frame(encode(Pingreq(), 5), TEXT))
        await peer.closed(1003)

    door.run(scenario)


def test_c14_a_packet_may_declare_more_than_its_frame_holds(door: Door) -> None:
    """NanoMQ CVE-2026-25627 read behind the frame. Here the rest is awaited, and it counts."""

    async def scenario(door: Door) -> None:
        peer = await door.accepted("c")
        whole = encode(Publish("t", b"x" * 100, 1, packet_id=1), 5)
        peer.write(frame(whole[:20]))
        peer.write(frame(b"", PING))
        assert await peer.receive_frame() == (PONG, b"")
        peer.write(frame(whole[20:]))
        assert (await peer.receive(Puback)).packet_id == 1
        peer.write(frame(bytes.fromhex("30 ff ff ff 7f")))  # 256 MiB that never come
        assert (await peer.receive(Disconnect)).reason_code == 0x95
        await peer.closed(1000)

    door.run(scenario)


def test_c14_fragments_of_one_byte_are_put_together(door: Door) -> None:
    async def scenario(door: Door) -> None:
        peer = await door.open()
        await peer.upgrade()
        packets = encode(Connect("c"), 5) + b"".join(
            encode(Publish("t", b"x" * 50, 1, packet_id=number), 5) for number in range(1, 101)
        )
        pieces = [packets[at : at + 1] for at in range(len(packets))]
        for number, piece in enumerate(pieces):
            opcode = BINARY if number == 0 else CONTINUATION
            peer.write(frame(piece, opcode, fin=number == len(pieces) - 1))
        await peer.receive(Connack)
        for number in range(1, 101):
            assert (await peer.receive(Puback)).packet_id == number

    door.run(scenario)


def test_c14_fragments_without_an_end_keep_no_more_than_a_packet(door: Door) -> None:
    async def scenario(door: Door) -> None:
        peer = await door.accepted("c")
        before = door.broker.rss_bytes()
        peer.write(frame(b"\x30\xff\xff\x05", fin=False))  # 96 KiB declared, which it may
        for _ in range(200):
            peer.write(frame(b"x" * 10_000, CONTINUATION, fin=False))
        with contextlib.suppress(ConnectionError):  # it may be closed while this end still writes
            while (received := await peer.receive_frame())[0] != CLOSE:
                assert received[0] == BINARY
        assert door.broker.rss_bytes() - before < 16 * MIB

    door.run(scenario)


def test_c14_a_flood_of_pings_is_bounded_and_others_are_served(door: Door) -> None:
    """By a peer that reads its pongs, and by one that does not."""

    async def scenario(door: Door) -> None:
        before = door.broker.rss_bytes()
        deaf = await door.accepted("deaf")
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        flood = await door.accepted("flood")
        pings = b"".join(frame(b"%0100d" % number, PING) for number in range(20_000))
        for _ in range(5):
            deaf.write(pings)
        flood.write(pings)
        await door.serves()  # in the midst of it
        flood.send(Pingreq())
        pongs = []
        while (received := await flood.receive_frame())[0] == PONG:
            pongs.append(received[1])
        assert pongs == sorted(pongs) and pongs[-1] == b"%0100d" % 19_999
        assert len(pongs) < 20_000 / 10  # the latest answers those before it
        assert door.broker.rss_bytes() - before < 16 * MIB

    door.run(scenario)


def test_c14_who_is_gone_is_not_kept(door: Door) -> None:
    """mosquitto CVE-2023-5632: connections that ended half-way kept a processor busy."""

    async def scenario(door: Door) -> None:
        client = RawClient(door.broker.port, "watcher")
        client.connect()
        for number in range(20):
            peer = await door.accepted(f"c{number}")
            if number % 3 == 0:
                peer.write(close_frame(1001))
            elif number % 3 == 1:
                peer.writer.write_eof()
            else:
                peer.write(frame(b"\x30\x7f", fin=False))
                peer.writer.transport.abort()
        name = 'holdfast_connections{listener="web"}'
        for _ in range(1000):
            if door.broker.metrics()[name] == 0:
                break
            await asyncio.sleep(0.02)
        assert door.broker.metrics()[name] == 0
        client.ping()
        client.drop()

    door.run(scenario)


# TLS


def test_c14_a_certificate_is_asked_for_behind_tls_too(
    door: Door, authority: Authority, tmp_path: Path
) -> None:
    """mosquitto 1.5.4: the certificate of a client was not looked at over WebSocket."""

    async def refused(shown: tuple[Path, Path] | None) -> None:
        door.context = authority.client_context(shown)
        try:
            peer = await door.open("wss")
            peer.write(request())
            data = await peer.reader.read()
        except (ssl.SSLError, ConnectionResetError):
            return
        assert data == b"", "let in without a certificate"

    async def scenario(door: Door) -> None:
        stranger = Authority(tmp_path, "stranger")
        await refused(None)
        await refused(stranger.issue("ann"))
        door.context = authority.client_context(authority.issue("ann"))
        peer = await door.open("wss")
        await peer.upgrade()
        peer.send(Connect("c", clean_start=False, session_expiry_interval=60, username="bob"))
        connack = await peer.receive(Connack)
        assert connack.reason_code == 0
        peer.send(Subscribe(1, [Subscription("t", 1)]))
        assert (await peer.receive(Suback)).reason_codes == [1]
        peer.write(close_frame(1000))
        await peer.closed(1000)
        door.context = authority.client_context(authority.issue("bob"))
        thief = await door.open("wss")  # the certificate decides who owns a session
        await thief.upgrade()
        thief.send(Connect("c", clean_start=False, username="ann"))
        assert (await thief.receive(Connack)).reason_code == 0x87

    door.run(scenario)


def test_c14_certificates_that_name_users_need_a_list_of_pages(
    tmp_path: Path, authority: Authority
) -> None:
    """A browser shows its user's certificate to whatever page asks: without the list, no start."""
    certificate, key = authority.server()
    env = {
        "HOLDFAST__LISTENER__TYPE": "websocket",
        "HOLDFAST__LISTENER__TLS_CERTIFICATE": str(certificate),
        "HOLDFAST__LISTENER__TLS_KEY": str(key),
        "HOLDFAST__LISTENER__TLS_CLIENT_CA": str(authority.file),
        "HOLDFAST__LISTENER__TLS_IDENTITY": "cn",
    }
    broker = holdfast(tmp_path / "broker", env=env)
    broker.launch()
    assert broker.wait_exit(20) == 2
    assert "listener.origins" in broker.log()
    broker.close()
