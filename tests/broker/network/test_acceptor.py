"""What comes before MQTT: PROXY headers, TLS handshakes, and strangers who finish neither."""

import asyncio
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker.configuration.listener_options import Endpoint
from broker.network import acceptor
from broker.network.listeners import Listener
from broker.network.proxy_protocol import SIGNATURE
from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
)
from session.settings import Settings
from tests.broker.inside import (
    InsideBroker,
    Peer,
    expect_drops_while_not_reading,
    run,
    small_out_buffer,
    subscribe,
)
from tests.broker.network.certificates import Authority

LINE = b"PROXY TCP4 192.0.2.7 127.0.0.1 9 1883\r\n"
BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def endpoint(authority: Authority | None = None, **values: Any) -> Endpoint:
    """Return a named TCP listener on any port, with TLS if there is an `authority`."""
    made = Endpoint("other")
    made.port = 0
    if authority is not None:
        made.tls_certificate, made.tls_key = map(str, authority.server())
    for key, value in values.items():
        assert hasattr(made, key)
        setattr(made, key, value)
    return made


def mutual(authority: Authority, kind: str) -> Endpoint:
    return endpoint(authority, tls_client_ca=str(authority.file), tls_identity=kind)


async def plain(broker: InsideBroker, listener: Listener, first: bytes = b"") -> Peer:
    """Connect without TLS and send `first`."""
    peer = broker.peer_of(*await asyncio.open_connection("127.0.0.1", listener.port))
    peer.writer.write(first)
    return peer


async def secured(
    broker: InsideBroker, listener: Listener, context: ssl.SSLContext, first: bytes = b""
) -> Peer:
    """Connect, send `first` in clear, and shake hands."""
    channel = socket.create_connection(("127.0.0.1", listener.port))
    channel.sendall(first)
    channel.setblocking(False)
    return broker.peer_of(
        *await asyncio.open_connection(sock=channel, ssl=context, server_hostname="127.0.0.1")
    )


def refusals(broker: InsideBroker) -> list[str]:
    return [line["message"] for line in broker.events("connection_refused")]


async def refused(broker: InsideBroker, why: str) -> None:
    """Expect exactly one connection more to be refused, for a reason that holds `why`."""
    await broker.until(lambda: bool(refusals(broker)))
    (message,) = refusals(broker)
    assert why in message
    assert broker.counters.connects["handshake"] == 1
    assert not broker.counters.internal_errors
    assert not broker.driver.streams


# TLS.


@BOTH
def test_clients_are_served_over_tls(authority: Authority, loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))
        peer = await secured(broker, listener, authority.client_context())
        await broker.greet(peer)
        peer.send(Pingreq())
        await peer.receive(Pingresp)
        (stream,) = broker.driver.streams
        assert stream.remote.startswith("127.0.0.1:")
        assert broker.driver.connections["other"] == 1
        peer.send(Disconnect())
        await peer.closed()
        await broker.until(lambda: not broker.driver.streams)
        assert broker.driver.connections["other"] == 0
        assert not refusals(broker)

    run(scenario, loop=loop)


@BOTH
@pytest.mark.parametrize(
    ("kind", "names", "name"),
    [
        ("cn", ["anna"], "anna"),
        ("san", ["not-this"], "boat.example"),
        ("none", ["not-this"], "the CONNECT's"),
    ],
)
def test_the_name_in_a_certificate_is_the_user_name(
    authority: Authority, loop: str, kind: str, names: list[str], name: str
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(mutual(authority, kind))
        shown = authority.issue(*names, san=[x509.DNSName("boat.example")])
        peer = await secured(broker, listener, authority.client_context(shown))
        await broker.greet(peer, username="the CONNECT's")
        (connection,) = broker.engine._connections
        assert connection.username == name

    run(scenario, loop=loop)


@BOTH
@pytest.mark.parametrize(
    ("has_one", "why"),
    [
        (False, "TLS: peer did not return a certificate"),
        (True, "TLS: unable to get local issuer certificate"),
    ],
)
def test_a_client_without_a_certificate_of_ours_is_refused(
    authority: Authority, tmp_path: Path, loop: str, has_one: bool, why: str
) -> None:
    shown = Authority(tmp_path, "stranger").issue("anna") if has_one else None

    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(mutual(authority, "cn"))
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await broker.greet(await secured(broker, listener, authority.client_context(shown)))
        await refused(broker, why)

    run(scenario, loop=loop)


@BOTH
@pytest.mark.parametrize(
    ("names", "why"), [([], "0 common names"), (["a\nb"], "control character")]
)
def test_a_certificate_that_names_nobody_is_refused(
    authority: Authority, loop: str, names: list[str], why: str
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(mutual(authority, "cn"))
        context = authority.client_context(authority.issue(*names))
        peer = await secured(broker, listener, context)
        peer.send(Connect("c"))
        assert await peer.reader.read() == b""
        await refused(broker, why)

    run(scenario, loop=loop)


@BOTH
def test_a_certificate_with_a_name_that_is_no_text_is_refused(
    authority: Authority, loop: str
) -> None:
    # A DNS name (context tag 2) of three bytes that are not even UTF-8.
    noise = x509.UnrecognizedExtension(
        x509.ObjectIdentifier("2.5.29.17"), b"\x30\x05\x82\x03\xff\xfe\xfd"
    )

    async def scenario(broker: InsideBroker) -> None:
        told: list[str] = []
        broker.loop.set_exception_handler(lambda loop, context: told.append(context["message"]))
        listener = await broker.listen(mutual(authority, "san"))
        context = authority.client_context(authority.issue("anna", extension=noise))
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await broker.greet(await secured(broker, listener, context))
        await refused(broker, "TLS: a name in the certificate is not text")
        assert told == ["SSL handshake failed"]  # what `Server` takes for a peer's fault

    run(scenario, loop=loop)


@BOTH
def test_something_else_than_tls_is_refused(authority: Authority, loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))
        peer = await plain(broker, listener, encode(Connect("c"), 5))
        await peer.closed()
        await refused(broker, "TLS: ")

    run(scenario, loop=loop)


@BOTH
def test_flow_control_works_through_tls(authority: Authority, loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))
        slow = await secured(broker, listener, authority.client_context())
        await broker.greet(slow, "slow")
        (stream,) = broker.driver.streams
        stream.pause_reading()
        slow.send(subscribe("a", 0))
        await slow.silence()
        stream.resume_reading()
        await slow.receive(Suback)
        fast = await broker.connect("fast")
        await expect_drops_while_not_reading(broker, slow, fast)

    run(scenario, settings=small_out_buffer(), loop=loop)


@BOTH
def test_the_last_packet_reaches_a_client_that_goes_on_sending(
    authority: Authority, loop: str
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))
        peer = await secured(broker, listener, authority.client_context())
        await broker.greet(peer)
        peer.writer.write(b"\xf0\x7f" + b"\0" * 1_000_000)  # a malformed AUTH and a flood behind it
        farewell = await peer.receive(Disconnect)
        assert farewell.reason_code in (reasons.MALFORMED_PACKET, reasons.PROTOCOL_ERROR)
        await peer.closed()

    run(scenario, loop=loop)


# PROXY headers.


@BOTH
@pytest.mark.parametrize(
    ("header", "remote"),
    [
        (LINE, "192.0.2.7:9"),
        (
            SIGNATURE + struct.pack("!BBH", 0x21, 0x11, 12) + socket.inet_aton("192.0.2.8")
            + socket.inet_aton("127.0.0.1") + struct.pack("!HH", 10, 1883),
            "192.0.2.8:10",
        ),
        (SIGNATURE + struct.pack("!BBH", 0x20, 0, 0), "127.0.0.1:"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1:"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has_tls", [False, True])
def test_the_address_in_the_header_is_the_client_s(
    authority: Authority, loop: str, header: bytes, remote: str, has_tls: bool
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        asked = endpoint(authority if has_tls else None, proxy_protocol=True)
        listener = await broker.listen(asked)
        if has_tls:
            peer = await secured(broker, listener, authority.client_context(), header)
        else:
            peer = await plain(broker, listener, header)
        await broker.greet(peer)
        (stream,) = broker.driver.streams
        assert stream.remote.startswith(remote)

    run(scenario, loop=loop)


@BOTH
def test_what_stands_behind_the_header_in_one_piece_is_not_lost(loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(proxy_protocol=True))
        peer = await plain(broker, listener, LINE + encode(Connect("c"), 5))
        await peer.receive(Connack)
        peer = await plain(broker, listener)
        for byte in LINE + encode(Connect("d"), 5):
            peer.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await peer.receive(Connack)

    run(scenario, loop=loop)


def test_a_client_hello_behind_the_header_in_one_piece_is_not_lost(authority: Authority) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority, proxy_protocol=True))
        inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = authority.client_context().wrap_bio(inward, outward, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        peer = await plain(broker, listener, LINE + outward.read())
        while True:
            inward.write(await asyncio.wait_for(peer.reader.read(65_536), 10))
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                continue
        assert client.version() is not None

    run(scenario)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encode(Connect("c"), 5), "PROXY header: neither version"),
        (b"PROXY TCP4 a b c d\r\n", "PROXY header: address 'a'"),
        (SIGNATURE + b"\x21\x11\xff\xff", "PROXY header: header of 65551 bytes"),
        (b"PROXY UNKNOWN " + b"x" * 200, "PROXY header: no line"),
    ],
)
def test_a_listener_behind_a_proxy_wants_the_header(data: bytes, why: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(proxy_protocol=True))
        peer = await plain(broker, listener, data)
        await peer.closed()
        await refused(broker, why)

    run(scenario)


def test_a_listener_that_is_not_behind_a_proxy_believes_no_header() -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint())
        peer = await plain(broker, listener, LINE + encode(Connect("c"), 5))
        await peer.closed()
        await broker.until(lambda: broker.counters.connects["malformed"] == 1)

    run(scenario)


def test_whoever_only_looks_whether_we_are_here_is_not_worth_a_line(authority: Authority) -> None:
    async def scenario(broker: InsideBroker) -> None:
        for asked in (endpoint(proxy_protocol=True), endpoint(authority)):
            listener = await broker.listen(asked)
            (server,) = listener._servers
            assert isinstance(server, acceptor.Acceptor)
            peer = await plain(broker, listener)
            await broker.until(lambda server=server: bool(server._pending))  # type: ignore[misc]
            peer.writer.close()
            await broker.until(lambda server=server: not server._pending)  # type: ignore[misc]
        assert not refusals(broker)

    run(scenario)


# Time, and how many.


def impatient() -> Settings:
    settings = Settings()
    settings.connect_timeout_ms = 200
    return settings


@BOTH
@pytest.mark.parametrize(
    ("has_header", "has_tls", "first", "why"),
    [
        (True, False, b"PROXY TCP4", "no PROXY header in time"),
        (False, True, b"", "no TLS handshake in time"),
        (True, True, LINE, "no TLS handshake in time"),
        (False, True, b"\x16\x03\x01", "no TLS handshake in time"),
    ],
)
def test_whoever_does_not_finish_in_time_is_dropped(
    authority: Authority, loop: str, has_header: bool, has_tls: bool, first: bytes, why: str
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        asked = endpoint(authority if has_tls else None, proxy_protocol=has_header)
        peer = await plain(broker, await broker.listen(asked), first)
        await peer.closed()
        await refused(broker, why)

    run(scenario, settings=impatient(), loop=loop)


@BOTH
def test_time_spent_before_mqtt_counts_against_the_connect_timeout(
    authority: Authority, loop: str
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority, proxy_protocol=True))
        before = broker.clock_ms()
        channel = socket.create_connection(("127.0.0.1", listener.port))
        await asyncio.sleep(0.15)
        after = broker.clock_ms()
        channel.sendall(LINE)
        channel.setblocking(False)
        broker.peer_of(
            *await asyncio.open_connection(
                sock=channel, ssl=authority.client_context(), server_hostname="127.0.0.1"
            )
        )
        await broker.until(lambda: bool(broker.driver.streams))
        (connection,) = broker.engine._connections
        # uvloop's time is that of the beginning of a turn, which may be some milliseconds ago.
        assert before <= connection.opened_at_ms + 50
        assert connection.opened_at_ms < after

    run(scenario, loop=loop)


@BOTH
def test_too_many_handshakes_end_the_oldest_one(
    authority: Authority, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "PENDING_MAX", 2)

    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))
        silent = [await plain(broker, listener) for _ in range(2)]
        (server,) = listener._servers
        assert isinstance(server, acceptor.Acceptor)
        await broker.until(lambda: len(server._pending) == 2)
        peer = await secured(broker, listener, authority.client_context())
        await broker.greet(peer)
        await silent[0].closed()
        assert not silent[1].reader.at_eof()
        assert refusals(broker) == ["2 handshakes at a time: ending the oldest one"]

    run(scenario, loop=loop)


@BOTH
def test_a_listener_that_closes_drops_what_is_in_a_handshake(
    authority: Authority, loop: str
) -> None:
    async def scenario(broker: InsideBroker) -> None:
        for asked in (endpoint(authority), endpoint(proxy_protocol=True)):
            listener = await broker.listen(asked)
            peer = await plain(broker, listener)
            (server,) = listener._servers
            assert isinstance(server, acceptor.Acceptor)
            await broker.until(lambda server=server: bool(server._pending))  # type: ignore[misc]
            listener.stop()
            await peer.closed()
            listener.stop()

    run(scenario, loop=loop)
