"""A whole process under attack: C1, C4, C8, C15, C16, C19 and C20 of docs/security.md."""

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from mqtt import reasons
from mqtt.packets import Publish, Suback, Subscribe, Subscription
from tests.durability.process import holdfast, http_get
from tests.durability.rawclient import RawClient
from tests.durability.scene import Scene

Start = Callable[..., Scene]
KIB = 1024
MIB = 1024 * KIB


def raw(scene: Scene, data: bytes = b"") -> socket.socket:
    channel = socket.create_connection(("127.0.0.1", scene.broker.port), timeout=60)
    if data:
        channel.sendall(data)
    return channel


def ended(channel: socket.socket) -> bytes:
    """Return what came until the broker closed."""
    found = b""
    with channel:
        while True:
            try:
                data = channel.recv(4096)
            except ConnectionResetError:
                return found
            if not data:
                return found
            found += data


def _connections(scene: Scene) -> float:
    samples = scene.broker.metrics().items()
    return sum(value for name, value in samples if name.startswith("holdfast_connections{"))


def _subscribe(client: RawClient, topic_filter: str) -> list[int]:
    client.send(Subscribe(99, [Subscription(topic_filter, 1)]))
    return client.expect(Suback).reason_codes


# C1, C15: connections that promise much and do nothing


DECLARING: Final = 2000


def test_c01_memory_does_not_follow_declared_lengths(start_broker: Start) -> None:
    """CVE-2017-7651: each declares 256 MiB, sends its CONNECT a byte at a time, and waits."""
    scene = start_broker(HOLDFAST__LIMITS__CONNECT_TIMEOUT="600s")
    warm = [raw(scene, b"\x10\xff\xff\xff\x7f") for _ in range(100)]
    other = scene.online("other")
    before = scene.broker.rss_bytes()
    channels = [raw(scene, b"\x10\xff\xff\xff\x7f") for _ in range(DECLARING)]
    for byte in b"\x00\x04MQ":
        for channel in channels:
            channel.send(bytes((byte,)))
    other.ping()
    assert _connections(scene) == len(warm) + DECLARING + 1
    grown = scene.broker.rss_bytes() - before
    for channel in warm + channels:
        channel.close()
    assert grown < DECLARING * 10 * KIB, f"{grown / DECLARING / KIB:.1f} KiB a connection"


def test_c15_who_says_nothing_is_closed_in_time(start_broker: Start) -> None:
    """CVE-2020-13849 (SlowITe): in silence, or a byte at a time."""
    scene = start_broker(HOLDFAST__LIMITS__CONNECT_TIMEOUT="1s")
    silent = raw(scene)
    slow = raw(scene, b"\x10")
    began = time.monotonic()
    for byte in b"\x20\x00\x04MQ":
        time.sleep(0.15)
        slow.sendall(bytes((byte,)))
    assert ended(silent) == b"" and ended(slow) == b""
    assert time.monotonic() - began < 10  # which is how long it is without the setting


def test_c15_a_refused_connect_closes_the_socket(start_broker: Start) -> None:
    """CVE-2025-56352"""
    scene = start_broker()
    channel = raw(scene, bytes.fromhex("10 0c 00 04 4d 51 54 54 04 00 00 00 00 00"))
    assert ended(channel) == bytes.fromhex("20 02 00 02")
    deadline = time.monotonic() + 10
    while _connections(scene) > 0:
        assert time.monotonic() < deadline, "the socket is kept"
        time.sleep(0.05)


# C4: a reader that does not read


def test_c04_a_reader_that_does_not_read_costs_disk_not_memory(start_broker: Start) -> None:
    scene = start_broker()
    slow = scene.durable("slow", "t")
    slow_socket = slow._socket  # type: ignore[attr-defined]
    slow_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    publisher = scene.online("publisher")
    payload = os.urandom(32 * KIB)
    publisher.publish_all([(scene.topic(), payload)] * 50, qos=1)
    before = scene.broker.rss_bytes()
    publisher.publish_all([(scene.topic(), payload)] * 3000, qos=1)
    grown = scene.broker.rss_bytes() - before
    assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB for 94 MiB owed"
    scene.online("other").ping()


@pytest.mark.parametrize(("qos", "size"), [(0, 4 * KIB), (1, 64 * KIB), (1, MIB), (2, 64 * KIB)])
def test_c04_what_readers_that_do_not_read_cost_does_not_grow(
    start_broker: Start, qos: int, size: int
) -> None:
    """Each has what one buffer holds; how much is sent, and at which size, does not matter."""
    scene = start_broker()
    slow = [scene.durable(f"slow{number}", "t", qos=qos) for number in range(8)]
    publisher = scene.online("publisher", receive_maximum=65_535)
    payload = os.urandom(size)
    messages = [(scene.topic(), payload)] * (96 * MIB // size)
    before = scene.broker.rss_bytes()
    if qos:
        publisher.publish_all(messages, qos=1, window=16)
    else:
        for topic, _ in messages:
            publisher.send(Publish(topic, payload, 0))
    scene.online("other").ping()
    grown = scene.broker.rss_bytes() - before
    # Alone it is 2 to 9 MiB; a busy machine has more on its way. Without a limit it were 96.
    assert grown < len(slow) * 20 * MIB, f"{grown / MIB / len(slow):.1f} MiB a reader"


# C8: files that cannot be right


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("PASSWORD_FILE", None),
        ("PASSWORD_FILE", "ann\n"),
        ("PASSWORD_FILE", "ann:plain\n"),
        ("PASSWORD_FILE", "\x00\x01\x02"),
        ("ACL_FILE", None),
        ("ACL_FILE", "topic\n"),
        ("ACL_FILE", "nonsense here\n"),
        ("ACL_FILE", "user\n"),
        ("ACL_FILE", "topic read a/#/b\n"),
    ],
)
def test_c08_a_file_that_cannot_be_right_stops_the_start(
    tmp_path: Path, key: str, content: str | None
) -> None:
    """CVE-2018-12551: a line that is not understood must never mean less protection."""
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    broker = holdfast(tmp_path / "broker", env={f"HOLDFAST__AUTH__{key}": str(path)})
    broker.launch()
    assert broker.wait_exit(20) != 0
    text = broker.log()
    assert str(path) in text and "Traceback" not in text, text
    broker.close()


def test_c08_an_empty_acl_file_allows_nothing(tmp_path: Path, start_broker: Start) -> None:
    """CVE-2018-12550"""
    path = tmp_path / "acl"
    path.write_text("")
    scene = start_broker(HOLDFAST__AUTH__ACL_FILE=str(path))
    client = scene.online("c")
    assert _subscribe(client, "t") == [reasons.NOT_AUTHORIZED]
    assert _subscribe(client, "$SYS/#") == [reasons.NOT_AUTHORIZED]
    client.publish("t", b"x", reason=reasons.NOT_AUTHORIZED)


def test_c08_with_a_password_file_nobody_comes_in_without_a_name(
    tmp_path: Path, start_broker: Start
) -> None:
    path = tmp_path / "passwords"
    command = [sys.executable, "-m", "broker", "passwd", "-c", "-b", str(path), "ann", "secret"]
    subprocess.run(command, check=True, capture_output=True)
    scene = start_broker(HOLDFAST__AUTH__PASSWORD_FILE=str(path))
    nobody = scene.client("nobody")
    nobody.connect(reason=reasons.NOT_AUTHORIZED)
    nobody.connect(username="ann", password=b"wrong", reason=reasons.BAD_USER_NAME_OR_PASSWORD)
    nobody.connect(username="ann", password=b"secret")


def listening_addresses(port: int) -> set[str]:
    """Return the addresses, IPv4 and IPv6, on which this machine listens for a TCP port."""
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state = line.split()[:4]
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:  # 0A is LISTEN
                words = [
                    bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)
                ]
                found.add(socket.inet_ntop(family, b"".join(words)))
    return found


def test_c08_the_default_listens_on_loopback_only(start_broker: Start) -> None:
    scene = start_broker()
    for port in (scene.broker.port, scene.broker.metrics_port):
        assert listening_addresses(port) == {"127.0.0.1"}


# C16: what others on the machine can read


def test_c16_data_is_readable_by_its_owner_only_and_nothing_secret_is_logged(
    start_broker: Start,
) -> None:
    """CVE-2017-9868"""
    scene = start_broker(HOLDFAST__LOG__LEVEL="debug")
    client = scene.client("c")
    client.connect(username="ann", password=b"hunter2")
    client.publish(scene.topic(), b"the payload")
    for path in scene.broker.data_dir.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert "hunter2" not in scene.broker.log() and "the payload" not in scene.broker.log()


# C19: names that are paths, labels without an end


NAMES = ["../../evil", "/etc/passwd", "a/../../b", "..", "con\u2028trol", '"}', "x" * 1000]


def test_c19_nothing_a_client_says_becomes_a_path_or_a_label(start_broker: Start) -> None:
    scene = start_broker()
    before = set(scene.broker.metrics())
    files = {path.name for path in scene.broker.directory.iterdir()}
    for name in NAMES:
        client = scene.client("c")
        client.client_id = name
        client.durable(username=name)
        client.publish(f"{scene.prefix}/t", b"x")
        client.disconnect()
    after = set(scene.broker.metrics())
    assert {path.name for path in scene.broker.directory.iterdir()} == files
    assert not [sample for sample in after - before if any(name in sample for name in NAMES)]
    assert len(after) < len(before) + 50


def test_c19_the_metrics_server_answers_nothing_else(start_broker: Start) -> None:
    scene = start_broker()
    port = scene.broker.metrics_port
    for path in ("/", "/../../etc/passwd", "/metrics/..", "/sessions", "/debug"):
        assert http_get(port, path)[0] == 404, path
    with socket.create_connection(("127.0.0.1", port), timeout=60) as channel:
        channel.sendall(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert channel.recv(100).split()[1] in (b"405", b"501")


# C20: what the broker tells about itself


def test_c20_the_system_topics_are_read_only_by_whom_a_rule_allows(
    tmp_path: Path, start_broker: Start
) -> None:
    path = tmp_path / "acl"
    path.write_text("topic readwrite x/#\nuser admin\ntopic read $SYS/#\n")
    scene = start_broker(HOLDFAST__AUTH__ACL_FILE=str(path))
    client = scene.online("c")
    assert _subscribe(client, "$SYS/#") == [reasons.NOT_AUTHORIZED]
    admin = scene.client("admin")
    admin.connect(username="admin")
    assert _subscribe(admin, "$SYS/broker/version") == [1]
    admin.expect_publish()
