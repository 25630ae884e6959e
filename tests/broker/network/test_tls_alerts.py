"""The alert that a refused TLS handshake ends with, as real clients see it."""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from broker.configuration.listener_options import Endpoint
from broker.network import acceptor
from broker.network.listeners import Listener
from mqtt.encoder import encode
from mqtt.packets import Connack, Connect
from tests.broker.inside import InsideBroker, run
from tests.broker.network.certificates import Authority

BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
TLS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
PROXY = b"PROXY TCP4 192.0.2.7 127.0.0.1 9 1883\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def endpoint(authority: Authority, *, is_mutual: bool = True, has_header: bool = False) -> Endpoint:
    made = Endpoint("other")
    made.port = 0
    made.tls_certificate, made.tls_key = map(str, authority.server())
    made.proxy_protocol = has_header
    if is_mutual:
        made.tls_client_ca = str(authority.file)
    return made


def only(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    context.minimum_version = context.maximum_version = version
    return context


async def told(listener: Listener, context: ssl.SSLContext, first: bytes = b"") -> str:
    """Connect, greet, and return the alert that the handshake or the answer ends with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(first)
    try:
        await writer.start_tls(context, server_hostname="127.0.0.1")
        writer.write(encode(Connect("c"), 5))  # in TLS 1.3 the client's handshake is done already
        answer = await reader.read()
    except ssl.SSLError as problem:
        return str(problem.reason)
    finally:
        writer.transport.abort()
    raise AssertionError(f"no alert, but {answer!r}")


@BOTH
@TLS
def test_a_client_is_told_what_is_wrong_with_its_certificate(
    authority: Authority, tmp_path: Path, loop: str, version: ssl.TLSVersion
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("anna")
    expired = authority.issue("anna", is_expired=True)
    early = authority.issue("anna", is_not_yet_valid=True)
    of_server = authority.issue(
        "anna", extension=x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    )
    required = {
        ssl.TLSVersion.TLSv1_2: "SSLV3_ALERT_HANDSHAKE_FAILURE",
        ssl.TLSVersion.TLSv1_3: "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    }

    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))

        async def with_certificate(shown: tuple[Path, Path] | None) -> str:
            return await told(listener, only(authority.client_context(shown), version))

        assert await with_certificate(expired) == "SSLV3_ALERT_CERTIFICATE_EXPIRED"
        assert await with_certificate(stranger) == "TLSV1_ALERT_UNKNOWN_CA"
        assert await with_certificate(None) == required[version]
        assert await with_certificate(early) == "SSLV3_ALERT_BAD_CERTIFICATE"
        assert await with_certificate(of_server) == "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE"
        assert broker.counters.connects["handshake"] == 5
        await broker.until(lambda: not pending(listener))
        assert not broker.driver.streams and not broker.counters.internal_errors

    run(scenario, loop=loop)


@BOTH
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_a_client_is_told_that_version_or_cipher_do_not_fit(
    authority: Authority, loop: str
) -> None:
    old = authority.client_context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    only(old, ssl.TLSVersion.TLSv1_1)
    other = only(authority.client_context(), ssl.TLSVersion.TLSv1_2)
    other.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")  # the broker's key is of another kind

    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority, is_mutual=False))
        assert await told(listener, old) == "TLSV1_ALERT_PROTOCOL_VERSION"
        assert await told(listener, other) == "SSLV3_ALERT_HANDSHAKE_FAILURE"

    run(scenario, loop=loop)


@BOTH
def test_the_alert_also_comes_behind_a_proxy(authority: Authority, loop: str) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority, has_header=True))
        context = authority.client_context(authority.issue("anna", is_expired=True))
        assert await told(listener, context, PROXY) == "SSLV3_ALERT_CERTIFICATE_EXPIRED"
        (line,) = broker.events("connection_refused")
        assert line["remote"] == "192.0.2.7:9"
        assert line["message"] == "TLS: certificate has expired"

    run(scenario, loop=loop)


@BOTH
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_shows_the_alert(authority: Authority, loop: str, version: str) -> None:
    certificate, key = authority.issue("anna", is_expired=True)

    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))
        client = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", f"127.0.0.1:{listener.port}", version),
            *("-cert", str(certificate), "-key", str(key)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert client.stdout is not None
        output = await client.stdout.read()
        await client.wait()
        assert b"alert certificate expired" in output
        assert b"SSL alert number 45" in output

    run(scenario, loop=loop)


@BOTH
def test_a_refused_client_that_does_not_close_holds_its_place_for_a_moment_only(
    authority: Authority, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "LINGER_S", 0.05)

    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()  # the alert, then the end
        await broker.until(lambda: bool(broker.events("connection_refused")))
        assert len(pending(listener)) == 1
        await broker.until(lambda: not pending(listener))
        writer.transport.abort()

    run(scenario, loop=loop)


@BOTH
def test_whoever_waits_after_a_refusal_makes_room_for_a_client(
    authority: Authority, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "PENDING_MAX", 1)
    monkeypatch.setattr(acceptor, "LINGER_S", 3600.0)

    async def scenario(broker: InsideBroker) -> None:
        listener = await broker.listen(endpoint(authority))
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        context = authority.client_context(authority.issue("anna"))
        peer = broker.peer_of(
            *await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=context, server_hostname="127.0.0.1"
            )
        )
        peer.send(Connect("c"))
        assert (await peer.receive(Connack)).reason_code == 0
        await broker.until(lambda: not pending(listener))
        writer.transport.abort()

    run(scenario, loop=loop)


def pending(listener: Listener) -> list[object]:
    """Return the connections that hold a place among the handshakes."""
    (server,) = listener._servers
    assert isinstance(server, acceptor.Acceptor)
    return list(server._pending)
