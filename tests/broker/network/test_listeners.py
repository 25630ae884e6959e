"""Listeners from bind to close: addresses, socket files, certificates, and what a process says."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker.configuration.listener_options import Endpoint
from broker.network import listeners
from broker.network.listeners import Listener, ListenError, Listeners, UnixPath, bind
from broker.observe.structured_log import Log
from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import Connack, Connect, Disconnect, Pingreq, Pingresp
from session.counters import REFUSALS
from tests.broker.inside import InsideBroker, run
from tests.broker.network.certificates import Authority
from tests.broker.network.webclient import CLOSE, WebPeer
from tests.durability.process import BrokerProcess, free_port
from tests.durability.rawclient import RawClient

BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
Start = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose path is short enough for a socket."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def port() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def endpoint(name: str = "other", **values: Any) -> Endpoint:
    made = Endpoint(name)
    made.name = name
    made.port = 0
    for key, value in values.items():
        assert hasattr(made, key)
        setattr(made, key, value)
    return made


def unix(folder: Path, **values: Any) -> Endpoint:
    return endpoint("local", type="unix", port=None, path=str(folder / "mqtt.sock"), **values)


# Addresses.


def test_an_address_that_cannot_be_had_is_one_line(port: int) -> None:
    for host, wanted, words in [
        ("127.0.0.1", port, f"listener.x: port {port} on 127.0.0.1 is in use by another process"),
        ("192.0.2.1", 0, "listener.x: cannot listen on 192.0.2.1 port 0"),
        ("not.a.host.invalid", 0, "listener.x.host = 'not.a.host.invalid': "),
        ("a" * 70 + ".example", 0, "listener.x.host = 'aaa"),
    ]:
        with pytest.raises(ListenError) as caught:
            bind("listener.x", host, wanted)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen anywhere")
def test_a_port_of_the_system_is_one_line() -> None:
    with pytest.raises(ListenError, match="no permission to listen on port 1 of"):
        bind("listener", "127.0.0.1", 1)


def test_port_0_is_the_same_free_port_on_every_address() -> None:
    channels = bind("listener", "localhost", 0)
    assert len({channel.getsockname()[1] for channel in channels}) == 1
    for channel in channels:
        assert channel.getsockname()[1] != 0
        with pytest.raises(ConnectionRefusedError):  # bound, not listening
            socket.create_connection(channel.getsockname()[:2], 1)
        channel.close()


def test_an_address_that_two_have_bound_is_one_line_to_the_second_who_listens() -> None:
    async def scenario(broker: InsideBroker) -> None:
        first = Listener(endpoint(), broker.log)
        first.bind()
        second = Listener(endpoint("late", port=first.port), broker.log)
        broker.listeners += [first, second]
        second.bind()
        await first.start(broker.driver)
        with pytest.raises(ListenError, match=f"port {first.port} on 127.0.0.1 is in use"):
            await second.start(broker.driver)

    run(scenario)


# Socket files.


@BOTH
@pytest.mark.parametrize("has_header", [False, True])
def test_clients_are_served_over_a_socket_file(loop: str, has_header: bool, folder: Path) -> None:
    async def scenario(broker: InsideBroker) -> None:
        listener = Listener(unix(folder, mode=0o640, proxy_protocol=has_header), broker.log)
        broker.listeners.append(listener)
        path = folder / "mqtt.sock"
        listener.bind()
        assert not path.exists()  # nobody finds it before it listens
        await listener.start(broker.driver)
        assert os.listdir(folder) == ["mqtt.sock"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        peer = broker.peer_of(*await asyncio.open_unix_connection(str(path)))
        if has_header:
            peer.writer.write(b"PROXY UNKNOWN\r\n")
        await broker.greet(peer)
        (stream,) = broker.driver.streams
        assert stream.remote == str(path)
        assert broker.driver.connections["local"] == 1
        peer.send(Disconnect())
        await peer.closed()
        listener.stop()
        listener.close()
        listener.close()
        assert os.listdir(folder) == []

    run(scenario, loop=loop)


def test_a_socket_file_that_a_dead_process_left_is_replaced(folder: Path) -> None:
    async def scenario(broker: InsideBroker) -> None:
        path = folder / "mqtt.sock"
        for name in (path, path.with_name("mqtt.sock.new")):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(name))
        await broker.listen(unix(folder))
        await broker.greet(broker.peer_of(*await asyncio.open_unix_connection(str(path))))

    run(scenario)


def test_a_path_that_cannot_be_is_one_line(folder: Path) -> None:
    def complaint(path: Path) -> str:
        with pytest.raises(ListenError) as caught:
            UnixPath("listener.local", str(path), 0o660).bind()
        text = str(caught.value)
        assert text.startswith(f"listener.local.path = '{path}': ")
        assert "\n" not in text
        return text

    assert "no directory" in complaint(folder / "absent" / "mqtt.sock")
    (folder / "file").write_text("precious")
    assert "exists and is not a socket" in complaint(folder / "file")
    assert "exists and is not a socket" in complaint(folder)
    assert (folder / "file").read_text() == "precious"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(folder / "live"))
        live.listen()
        assert "in use by another process" in complaint(folder / "live")
        assert (folder / "live").is_socket()
    (folder / "full.new").mkdir()
    assert "Is a directory" in complaint(folder / "full")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_one_line(folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(ListenError, match="no permission to write to directory"):
        UnixPath("listener.local", str(folder / "mqtt.sock"), 0o660).check()


def test_of_two_that_start_on_one_path_the_loser_touches_nothing(folder: Path) -> None:
    path = str(folder / "mqtt.sock")
    first, second = UnixPath("listener.a", path, 0o660), UnixPath("listener.b", path, 0o660)
    with contextlib.closing(first.bind()), contextlib.closing(second.bind()) as channel:
        with pytest.raises(ListenError, match="another process wants it too"):
            first.publish()
        channel.listen()
        second.publish()
        first.remove()
        assert os.listdir(folder) == ["mqtt.sock"]
        third = UnixPath("listener.c", path, 0o660)
        with pytest.raises(ListenError, match="in use"):
            third.bind()
        third.remove()
        assert os.listdir(folder) == ["mqtt.sock"]
    second.remove()
    assert os.listdir(folder) == []


def test_a_path_taken_by_a_third_in_the_meantime_is_left_alone(folder: Path) -> None:
    path = folder / "mqtt.sock"
    ours = UnixPath("listener.a", str(path), 0o660)
    with contextlib.closing(ours.bind()), socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        with pytest.raises(ListenError, match="in use by another process"):
            ours.publish()
    ours.remove()
    assert os.listdir(folder) == ["mqtt.sock"]


# Certificates.


@BOTH
def test_a_reload_shows_new_certificates_and_keeps_the_old_one_for_bad_files(
    authority: Authority, tmp_path: Path, loop: str
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "c.key"

    def install(names: list[str]) -> None:
        san = [x509.DNSName(name) for name in ["localhost", *names]]
        made = authority.issue("broker", san=san)
        certificate.write_bytes(made[0].read_bytes())
        key.write_bytes(made[1].read_bytes())

    async def scenario(broker: InsideBroker) -> None:
        install(["old"])
        secured = endpoint(tls_certificate=str(certificate), tls_key=str(key))
        opened = Listeners([endpoint("tcp"), secured], broker.log)
        opened.bind()
        broker.listeners += opened._listeners
        await opened.start(broker.driver)
        port = broker.listeners[1].port

        async def shown() -> list[str]:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=authority.client_context(), server_hostname="localhost"
            )
            peer = broker.peer_of(reader, writer)
            await broker.greet(peer)
            names: Any = writer.get_extra_info("peercert")["subjectAltName"]
            return [name for _, name in names]

        assert await shown() == ["localhost", "old"]
        install(["new"])
        opened.reload()
        assert await shown() == ["localhost", "new"]
        key.write_text("nonsense")
        opened.reload()
        assert await shown() == ["localhost", "new"]
        certificate.unlink()
        opened.reload()
        assert await shown() == ["localhost", "new"]
        assert [line["listener"] for line in broker.events("reload")] == ["listener.other"]
        first, second = broker.events("reload_failed")
        assert "expected an unencrypted private key" in first["message"]
        assert "cannot read it" in second["message"]
        assert second["message"].endswith("; keeping the certificate in use")
        install(["elsewhere"])
        secured.tls_certificate = str(certificate.rename(tmp_path / "other.pem"))
        opened.reload()
        assert await shown() == ["localhost", "elsewhere"]

    run(scenario, loop=loop)


# All of them.


def test_it_is_known_when_the_certificate_in_use_expires(
    authority: Authority, tmp_path: Path, folder: Path
) -> None:
    """Also after a reload; a bad file leaves the certificate, and so its date."""
    certificate, key = tmp_path / "c.pem", tmp_path / "c.key"

    def install(*, is_expired: bool) -> int:
        made = authority.issue("broker", is_expired=is_expired)
        certificate.write_bytes(made[0].read_bytes())
        key.write_bytes(made[1].read_bytes())
        year = 2021 if is_expired else 2120
        return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())

    past = install(is_expired=True)
    secured = endpoint(tls_certificate=str(certificate), tls_key=str(key))
    opened = Listeners([endpoint("tcp"), unix(folder), secured], Log())
    assert opened.expiries() == {}
    opened.bind()
    assert opened.expiries() == {"other": past}
    far = install(is_expired=False)
    assert opened.expiries() == {"other": past}, "the new file is not in use yet"
    opened.reload()
    assert opened.expiries() == {"other": far}
    install(is_expired=True)
    key.write_text("nonsense")
    opened.reload()
    assert opened.expiries() == {"other": far}
    opened.close()


def test_refused_connections_are_counted_by_listener_from_the_start() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await broker.listen(endpoint("plain"))
        listener = await broker.listen(endpoint("behind", proxy_protocol=True))
        refused = broker.counters.refused
        assert refused["plain"] == refused["behind"] == dict.fromkeys(REFUSALS, 0)
        peer = broker.peer_of(*await asyncio.open_connection("127.0.0.1", listener.port))
        peer.writer.write(b"no header\r\n")
        await peer.closed()
        await broker.until(lambda: refused["behind"]["handshake"] == 1)
        assert refused["plain"]["handshake"] == 0
        assert broker.counters.connects["handshake"] == 1

    run(scenario)


def test_listeners_say_where_they_are(authority: Authority, folder: Path) -> None:
    certificate, key = map(str, authority.server())
    opened = Listeners(
        [
            endpoint("tcp"),
            endpoint(host="::1", type="websocket", tls_certificate=certificate, tls_key=key),
            unix(folder),
        ],
        Log(),
    )
    opened.bind()
    tcp, websocket, local = str(opened).split(", ")
    assert tcp == f"tcp 127.0.0.1:{opened.port}"
    assert websocket.startswith("websocket+tls [::1]:") and not websocket.endswith(":0")
    assert local == f"unix {folder}/mqtt.sock"
    opened.close()
    opened.close()
    socket.create_server(("127.0.0.1", opened.port)).close()
    assert os.listdir(folder) == []


def test_a_first_listener_without_a_port_has_port_0(folder: Path) -> None:
    opened = Listeners([unix(folder)], Log())
    opened.bind()
    assert opened.port == 0
    opened.close()


def test_check_finds_what_a_start_would_and_leaves_nothing(
    authority: Authority, folder: Path, port: int
) -> None:
    certificate, key = map(str, authority.server())
    good = [
        endpoint("tcp"),
        endpoint(type="websocket", tls_certificate=certificate, tls_key=key),
        unix(folder),
    ]
    listeners.check(good, is_running=False)
    assert os.listdir(folder) == []
    busy = endpoint(port=port)
    with pytest.raises(ListenError, match="in use"):
        listeners.check([*good, busy], is_running=False)
    listeners.check([*good, busy], is_running=True)
    missing = endpoint(tls_certificate=str(folder / "absent"))
    for is_running in (False, True):
        with pytest.raises(ListenError, match="cannot read it"):
            listeners.check([missing], is_running=is_running)
    nowhere = unix(folder / "absent")
    with pytest.raises(ListenError, match="no directory"):
        listeners.check([nowhere], is_running=False)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "broker.network.websocket", None)
    with pytest.raises(ListenError, match="type = 'websocket': a package is missing"):
        Listener(endpoint(type="websocket"), Log()).bind()
    without = Listener(endpoint(), Log())
    without.bind()
    without.close()


# The process.


def listening(authority: Authority, folder: Path) -> dict[str, str]:
    """Return the environment of a broker with a listener of each kind."""
    certificate, key = map(str, authority.server())
    prefix = "HOLDFAST__LISTENER__"
    secured = {"TLS_CERTIFICATE": certificate, "TLS_KEY": key}
    mutual = {"TLS_CLIENT_CA": str(authority.file), "TLS_IDENTITY": "cn"}
    tables: dict[str, dict[str, str]] = {
        "WEB": {"TYPE": "websocket", "PORT": str(free_port())},
        "SECURE": {"PORT": str(free_port()), **secured, **mutual},
        "WEB_SECURE": {"TYPE": "websocket", "PORT": str(free_port()), **secured},
        "LOCAL": {"TYPE": "unix", "PATH": str(folder / "mqtt.sock")},
    }
    return {
        f"{prefix}{name}__{key}": value
        for name, table in tables.items()
        for key, value in table.items()
    }


def ready_line(broker: BrokerProcess) -> dict[str, Any]:
    lines = [json.loads(line) for line in broker.log().splitlines()]
    (ready,) = [line for line in lines if line["event"] == "ready"]
    return dict(ready)


async def say_goodbye(broker: BrokerProcess, authority: Authority, folder: Path) -> None:
    """Connect to every listener, end the broker, and expect its farewell everywhere."""
    env = broker.env
    web = [
        WebPeer(
            *await asyncio.open_connection(
                "127.0.0.1", int(env[f"HOLDFAST__LISTENER__{name}__PORT"]), ssl=context
            )
        )
        for name, context in (("WEB", None), ("WEB_SECURE", authority.client_context()))
    ]
    plain = [
        WebPeer(
            *await asyncio.open_connection(
                "127.0.0.1",
                int(env["HOLDFAST__LISTENER__SECURE__PORT"]),
                ssl=authority.client_context(authority.issue("anna")),
            )
        ),
        WebPeer(*await asyncio.open_unix_connection(str(folder / "mqtt.sock"))),
    ]
    await talk(web, plain)
    samples = broker.metrics()
    for name in ("web", "secure", "web_secure", "local"):
        assert samples[f'holdfast_connections{{listener="{name}"}}'] == 1, name
    assert samples['holdfast_connections{listener="tcp"}'] == 0
    broker.signal(signal.SIGTERM)
    for peer in web:
        assert (await peer.receive(Disconnect)).reason_code == reasons.SERVER_SHUTTING_DOWN
        assert (await peer.receive_frame())[0] == CLOSE
    for peer in plain:
        assert b"\xe0\x01\x8b" in await peer.reader.read()
    for peer in web + plain:
        peer.writer.transport.abort()
        with contextlib.suppress(OSError):
            await peer.writer.wait_closed()


async def talk(web: list[WebPeer], plain: list[WebPeer]) -> None:
    for number, peer in enumerate(web):
        await peer.upgrade()
        peer.send(Connect(f"web{number}"), Pingreq())
        assert (await peer.receive(Connack)).reason_code == 0
        await peer.receive(Pingresp)
    for number, peer in enumerate(plain):
        peer.write(encode(Connect(f"plain{number}"), 5) + encode(Pingreq(), 5))
        assert (await peer.reader.readuntil(b"\xd0\x00"))[3] == 0


def test_a_process_serves_on_all_its_listeners_until_it_ends(
    start: Start, authority: Authority, folder: Path
) -> None:
    broker = start(**listening(authority, folder))
    asyncio.run(say_goodbye(broker, authority, folder))
    assert broker.wait_exit(20) == 0
    assert os.listdir(folder) == []
    ready = ready_line(broker)
    assert ready["port"] == broker.port
    kinds = [item.split(" ")[0] for item in ready["listeners"].split(", ")]
    assert sorted(kinds) == ["tcp", "tcp+tls", "unix", "websocket", "websocket+tls"]


def test_after_a_crash_the_socket_file_is_taken_over(
    start: Start, authority: Authority, folder: Path
) -> None:
    path = str(folder / "mqtt.sock")
    broker = start(HOLDFAST__LISTENER__LOCAL__TYPE="unix", HOLDFAST__LISTENER__LOCAL__PATH=path)
    broker.kill()
    assert os.listdir(folder) == ["mqtt.sock"]
    broker.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    line = complaint(broker, "serve", HOLDFAST__LISTENER__PORT="0", status=1)
    assert "in use by" in line


def complaint(broker: BrokerProcess, *arguments: str, status: int, **environment: str) -> str:
    """Run a command with the broker's settings and return the one line it fails with."""
    result = subprocess.run(
        [sys.executable, "-m", "broker", *arguments],
        env={
            **os.environ,
            **broker.env,
            "HOLDFAST__METRICS__PORT": "0",
            "HOLDFAST__STORAGE__DATA_DIR": str(broker.directory / "other"),
            **environment,
        },
        cwd=broker.directory,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("holdfast: ")
    return line


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"PORT": "1", "TLS_CERTIFICATE": "absent.pem"}, "listener.x.tls_certificate = 'absent.p"),
        ({"TYPE": "unix", "PATH": "absent/mqtt.sock"}, "listener.x.path = 'absent/mqtt.sock': no"),
        ({"PORT": "BUSY"}, "on 127.0.0.1 is in use by another process"),
    ],
)
def test_what_is_wrong_with_a_listener_ends_a_start_and_a_test_of_the_configuration(
    prepare: Start, port: int, values: dict[str, str], words: str
) -> None:
    broker = prepare()
    environment = {
        f"HOLDFAST__LISTENER__X__{key}": str(port) if value == "BUSY" else value
        for key, value in values.items()
    }
    environment["HOLDFAST__LISTENER__PORT"] = "0"
    assert words in complaint(broker, "serve", status=1, **environment)
    assert words in complaint(broker, "serve", "--test-config", status=2, **environment)


def test_the_configuration_of_a_running_broker_can_be_tested(start: Start) -> None:
    broker = start()
    command = [sys.executable, "-m", "broker", "serve", "--test-config", "-p", str(broker.port)]
    result = subprocess.run(
        [*command, "--data-dir", str(broker.data_dir)],
        env={**os.environ, **broker.env},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (result.returncode, result.stdout) == (0, "configuration is good\n"), result.stderr


def test_sighup_reads_certificates_again(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "c.key"
    port = free_port()
    made = authority.server()
    certificate.write_bytes(made[0].read_bytes())
    key.write_bytes(made[1].read_bytes())
    broker = start(
        HOLDFAST__LISTENER__SECURE__PORT=str(port),
        HOLDFAST__LISTENER__SECURE__TLS_CERTIFICATE=str(certificate),
        HOLDFAST__LISTENER__SECURE__TLS_KEY=str(key),
    )

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(authority.file))

    assert shown() == made[0].read_text()
    other = authority.server()
    certificate.write_bytes(other[0].read_bytes())
    key.write_bytes(other[1].read_bytes())
    broker.signal(signal.SIGHUP)
    client = RawClient(broker.port, "c")
    client.connect()
    for _ in range(100):
        if "certificate read again" in broker.log():
            break
        client.ping()
    client.drop()
    assert shown() == other[0].read_text()


def test_a_certificate_of_noise_is_no_bug_of_ours(start: Start, authority: Authority) -> None:
    noise = x509.UnrecognizedExtension(
        x509.ObjectIdentifier("2.5.29.17"), b"\x30\x05\x82\x03\xff\xfe\xfd"
    )
    certificate, key = map(str, authority.server())
    port = free_port()
    prefix = "HOLDFAST__LISTENER__SECURE__"
    broker = start(
        **{
            f"{prefix}PORT": str(port),
            f"{prefix}TLS_CERTIFICATE": certificate,
            f"{prefix}TLS_KEY": key,
            f"{prefix}TLS_CLIENT_CA": str(authority.file),
        }
    )
    context = authority.client_context(authority.issue("anna", extension=noise))
    with socket.create_connection(("127.0.0.1", port)) as channel:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            with context.wrap_socket(channel, server_hostname="127.0.0.1") as secured:
                assert secured.recv(1) == b""
    samples = broker.metrics()
    assert samples['holdfast_connects_total{result="handshake"}'] == 1
    assert samples["holdfast_internal_errors_total"] == 0
