"""What a client hears from a node that does not lead."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import uvloop

from broker.cluster import standby as standby_module
from broker.cluster.standby import Standby
from broker.configuration.listener_options import Endpoint
from broker.network import acceptor
from broker.network.listeners import ListenError
from broker.observe.structured_log import Log
from mqtt.decoder import Decoder
from mqtt.encoder import encode
from mqtt.packets import V4, V5, Connack, Connect
from mqtt.reasons import SERVER_UNAVAILABLE, USE_ANOTHER_SERVER
from tests.broker.cluster.town import until
from tests.broker.network.certificates import Authority


async def ask(data: bytes, version: int, leader: str) -> Sequence[object]:
    """Send `data` to a standby; return the packets that it answers until it closes."""
    endpoint = Endpoint()
    endpoint.port = 0
    standby = Standby([endpoint], lambda: leader, Log(level="error"))
    await standby.open()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", standby.port)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        return list(Decoder("client", 0, version).receive(answer)) if answer else []
    finally:
        await standby.close()


def connack(version: int, leader: str) -> Connack:
    packets = asyncio.run(ask(encode(Connect("c", version), version), version, leader))
    assert len(packets) == 1 and isinstance(packets[0], Connack)
    return packets[0]


def test_mqtt_5_names_the_leader() -> None:
    found = connack(V5, "bob.example:1883")
    assert found.reason_code == USE_ANOTHER_SERVER
    assert found.server_reference == "bob.example:1883"


def test_without_a_leader_clients_come_again() -> None:
    assert connack(V5, "").reason_code == SERVER_UNAVAILABLE


def test_mqtt_3_says_unavailable() -> None:
    assert connack(V4, "bob.example:1883").reason_code == 3


def test_no_answer_is_longer_than_a_client_takes() -> None:
    """[MQTT-3.1.2-24]: the address is left out first."""
    leader = "bob.example:1883"
    for limit, found in ((60, leader), (20, None)):
        data = encode(Connect("c", V5, maximum_packet_size=limit), V5)
        (answer,) = asyncio.run(ask(data, V5, leader))
        assert isinstance(answer, Connack)
        assert (answer.reason_code, answer.server_reference) == (USE_ANOTHER_SERVER, found)
    assert asyncio.run(ask(encode(Connect("c", V5, maximum_packet_size=4), V5), V5, leader)) == []


@pytest.mark.parametrize("data", [b"\x30\x05\x00\x01ahi", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 9])
def test_what_is_no_connect_is_closed_without_an_answer(data: bytes) -> None:
    assert asyncio.run(ask(data, V5, "")) == []


def test_a_port_in_use_is_one_line() -> None:
    async def run() -> None:
        endpoint = Endpoint()
        endpoint.port = 0
        first = Standby([endpoint], lambda: "", Log(level="error"))
        await first.open()
        endpoint.port = first.port
        with pytest.raises(ListenError, match="in use by another process"):
            await Standby([endpoint], lambda: "", Log(level="error")).open()
        await first.close()

    asyncio.run(run())


def test_a_client_that_says_nothing_is_gone_when_the_node_leads_or_ends() -> None:
    async def run() -> None:
        endpoint = Endpoint()
        endpoint.port = 0
        standby = Standby([endpoint], lambda: "", Log(level="error"))
        await standby.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", standby.port)
        await until(lambda: bool(standby._clients))
        await standby.close()
        assert not standby._clients
        assert await reader.read() == b""
        writer.close()

    asyncio.run(run())


def test_connections_without_a_handshake_keep_nobody_from_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would keep a file descriptor, which the database and the log need."""
    monkeypatch.setattr(acceptor, "PENDING_MAX", 2)
    authority = Authority(tmp_path)
    endpoint = Endpoint()
    endpoint.port = 0
    endpoint.tls_certificate, endpoint.tls_key = map(str, authority.server())

    async def run() -> None:
        standby = Standby([endpoint], lambda: "bob:1", Log(level="error"))
        await standby.open()
        silent = [await asyncio.open_connection("127.0.0.1", standby.port) for _ in range(2)]
        context = ssl.create_default_context(cafile=str(authority.file))
        reader, writer = await asyncio.open_connection("127.0.0.1", standby.port, ssl=context)
        writer.write(encode(Connect("c", V5), V5))
        (answer,) = Decoder("client", 0, V5).receive(await reader.read())
        assert isinstance(answer, Connack) and answer.server_reference == "bob:1"
        assert await silent[0][0].read() == b""
        await standby.close()
        for _, each in (*silent, (reader, writer)):
            each.close()

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await run()

    asyncio.run(bounded())


def test_a_certificate_that_was_renewed_is_shown_once_it_is_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node may follow for longer than a certificate is good."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    endpoint = Endpoint()
    endpoint.port, endpoint.tls_certificate, endpoint.tls_key = 0, str(certificate), str(key)

    def install(authority: Authority) -> None:
        for source, path in zip(authority.server(), (certificate, key), strict=True):
            path.write_bytes(source.read_bytes())

    async def is_trusted(standby: Standby, authority: Authority) -> bool:
        context = ssl.create_default_context(cafile=str(authority.file))
        try:
            connected = asyncio.open_connection("127.0.0.1", standby.port, ssl=context)
            _, writer = await connected
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
        return True

    async def run() -> None:
        install(old)
        standby = Standby([endpoint], lambda: "bob:1", Log(level="info"))
        await standby.open()
        install(new)
        assert await is_trusted(standby, old)
        standby.reload()
        assert await is_trusted(standby, new) and not await is_trusted(standby, old)
        certificate.write_text("no certificate")
        standby.reload()
        assert await is_trusted(standby, new)
        await standby.close()

    asyncio.run(run())
    told = capsys.readouterr().err
    assert "certificate read again" in told and "keeping the certificate in use" in told


def test_whoever_is_too_many_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "CLIENTS_MAX", 1)

    async def run() -> None:
        endpoint = Endpoint()
        endpoint.port = 0
        standby = Standby([endpoint], lambda: "", Log(level="error"))
        await standby.open()
        first = await asyncio.open_connection("127.0.0.1", standby.port)
        await until(lambda: len(standby._clients) == 1)
        second = await asyncio.open_connection("127.0.0.1", standby.port)
        assert await second[0].read() == b""
        await standby.close()
        for _, each in (first, second):
            each.close()

    asyncio.run(run())


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("turns", range(8))
def test_whoever_comes_as_it_ends_does_not_hold_up_the_loop(
    turns: int, make_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = Endpoint()
    endpoint.port = 0

    async def come_and_end() -> None:
        standby = Standby([endpoint], lambda: "", Log(level="error"))
        await standby.open()
        clients = [socket.create_connection(("127.0.0.1", standby.port)) for _ in range(5)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await standby.close()
        for client in clients:
            client.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(come_and_end())
    assert caplog.records == []
