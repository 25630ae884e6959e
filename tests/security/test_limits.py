"""Much of everything against a whole process: C4, C10, C13 and C15 of docs/security.md."""

import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import (
    Connack,
    Connect,
    Puback,
    Suback,
    Subscribe,
    Subscription,
)
from session.settings import Settings
from tests.broker.network.certificates import Authority
from tests.durability.process import free_port
from tests.durability.rawclient import RawClient
from tests.durability.scene import Scene
from tests.session.harness import Broker
from tests.simulation import rare
from tests.simulation.command import run_chunk

Start = Callable[..., Scene]
KIB: Final = 1024
MIB: Final = 1024 * KIB
DROPPED: Final = 'holdfast_messages_dropped_total{{reason="{}"}}'


# C4: those who do not read, and those who are not there


def test_c04_others_are_served_while_one_does_not_read(start_broker: Start) -> None:
    """Round trips of others are done while the backlog of one is not; then it gets all of it."""
    scene = start_broker()
    slow = scene.durable("slow", "t")
    publisher, other = scene.online("publisher"), scene.online("other")
    other.subscribe(scene.topic("other"), qos=1)
    filling = os.urandom(32 * KIB)
    payloads = [b"%05d" % number + filling for number in range(600)]  # 19 MiB
    before = scene.broker.rss_bytes()
    for start in range(0, len(payloads), 100):
        burst = [(scene.topic(), payload) for payload in payloads[start : start + 100]]
        publisher.publish_all(burst, qos=1)
        other.ping()
        other.publish(scene.topic("other"), b"%d" % start)
        other.expect_publish(b"%d" % start)
    owed = scene.broker.metrics()["holdfast_session_queue_messages"]
    assert owed > 0 or scene.broker.metrics()["holdfast_sessions_lagging"] == 1
    assert scene.broker.rss_bytes() - before < 48 * MIB
    assert [message.payload for message in slow.take(len(payloads), timeout=60)] == payloads


def test_c04_an_offline_backlog_is_on_disk_and_complete(start_broker: Start) -> None:
    scene = start_broker()
    away = scene.offline("away", "t")
    publisher = scene.online("publisher")
    filling = os.urandom(32 * KIB)
    payloads = [b"%05d" % number + filling for number in range(2000)]
    publisher.publish_all([(scene.topic(), payload) for payload in payloads[:200]], qos=1)
    before = scene.broker.rss_bytes()
    publisher.publish_all([(scene.topic(), payload) for payload in payloads[200:]], qos=1)
    grown = scene.broker.rss_bytes() - before
    assert grown < 40 * MIB, f"{grown / MIB:.0f} MiB for 56 MiB owed"
    away.resume()
    for start in range(0, len(payloads), 500):
        received = [message.payload for message in away.take(500, timeout=60)]
        assert received == payloads[start : start + 500]


@pytest.mark.parametrize(
    ("policy", "kept", "reason"),
    [
        ("drop_oldest", [b"7", b"8", b"9"], "session_limit"),
        ("drop_new", [b"0", b"1", b"2"], "session_limit"),
    ],
)
@pytest.mark.parametrize("limit", ["max_offline_messages", "max_offline_bytes"])
def test_c04_what_an_absent_client_is_owed_has_a_limit_and_drops_are_counted(
    policy: str, kept: list[bytes], reason: str, limit: str
) -> None:
    """mosquitto 1.6, amqtt #14 and #123: a session nobody comes back for grew for ever."""
    size = 3 if limit == "max_offline_messages" else 3 * len(b"t0")
    broker = Broker(on_limit=policy, **{limit: size})
    broker.durable("c", "t").drop()
    for number in range(10):
        broker.publish("t", b"%d" % number)
    assert broker.durable("c").receive_all() == kept
    assert broker.counters.dropped[reason] == 7


def test_c04_a_publisher_is_told_where_nothing_may_be_dropped(start_broker: Start) -> None:
    scene = start_broker(
        HOLDFAST__SESSION__ON_LIMIT="reject", HOLDFAST__SESSION__MAX_OFFLINE_MESSAGES="3"
    )
    away = scene.offline("away", "t")
    publisher = scene.online("publisher")
    for number in range(3):
        publisher.publish(scene.topic(), b"%d" % number)
    publisher.publish(scene.topic(), b"3", reason=reasons.QUOTA_EXCEEDED)
    old = scene.online("old", version=4)
    old.publish_begin(scene.topic(), b"4")  # has no code for it: a close, and no acknowledgement
    old.expect_closed()
    assert not [packet for packet in old.inbox if isinstance(packet, Puback)]
    assert scene.broker.metrics()[DROPPED.format("session_limit")] == 0
    away.resume()
    assert [message.payload for message in away.take(3)] == [b"0", b"1", b"2"]
    deadline = time.monotonic() + 20
    answer = reasons.QUOTA_EXCEEDED
    while answer == reasons.QUOTA_EXCEEDED:  # looked at again twice a second
        assert time.monotonic() < deadline
        publisher.publish_begin(scene.topic(), b"5")
        answer = publisher.expect(Puback).reason_code
    away.expect_publish(b"5")


def test_c04_drops_of_a_process_are_in_its_metrics(start_broker: Start) -> None:
    scene = start_broker(HOLDFAST__SESSION__MAX_OFFLINE_MESSAGES="3")
    away = scene.offline("away", "t")
    publisher = scene.online("publisher")
    publisher.publish_all([(scene.topic(), b"%d" % number) for number in range(10)], qos=1)
    away.resume()
    assert [message.payload for message in away.take(3)] == [b"7", b"8", b"9"]
    assert scene.broker.metrics()[DROPPED.format("session_limit")] == 7


# C10: bombs


RETAINED: Final = 20_000


def test_c10_retained_messages_cost_disk_and_have_a_limit(start_broker: Start) -> None:
    """sol CVE-2025-63235, scaled: 20,000 topics, 0x97 behind them, and a replay that streams."""
    scene = start_broker(HOLDFAST__LIMITS__RETAINED_MESSAGES=str(RETAINED))
    publisher = scene.online("publisher")
    payload = b"x" * 500

    def retain(start: int, stop: int) -> None:
        messages = [(f"r/{number % 100}/{number}", payload) for number in range(start, stop)]
        publisher.publish_all(messages, qos=1, retain=True)

    retain(0, 2000)
    before = scene.broker.rss_bytes()
    retain(2000, RETAINED)
    assert scene.broker.rss_bytes() - before < 40 * MIB
    assert scene.broker.metrics()["holdfast_retained_messages"] == RETAINED
    publisher.publish_begin("r/more", b"x", retain=True)
    assert publisher.expect(Puback).reason_code == reasons.QUOTA_EXCEEDED
    before = scene.broker.rss_bytes()
    deaf = scene.client("deaf")
    deaf.durable(receive_maximum=10)
    deaf.send(Subscribe(1, [Subscription("r/#", 1)]))
    assert deaf.expect(Suback).reason_codes == [1]
    scene.online("other").ping()
    assert scene.broker.rss_bytes() - before < 24 * MIB
    assert len(deaf.take(1000)) == 1000


def test_c10_a_subscribe_of_many_filters_is_cut_at_the_limit(start_broker: Start) -> None:
    scene = start_broker(HOLDFAST__SESSION__SUBSCRIPTIONS_MAX="1000")
    client = scene.client("c")
    client.durable()
    codes: list[int] = []
    before = scene.broker.rss_bytes()
    for start in range(0, 20_000, 5000):
        filters = [Subscription(f"{number}/+/#", 1) for number in range(start, start + 5000)]
        client.send(Subscribe(start + 1, filters))
        codes += client.expect(Suback).reason_codes
    assert codes == [1] * 1000 + [reasons.QUOTA_EXCEEDED] * 19_000
    samples = scene.broker.metrics().items()
    counted = [value for name, value in samples if name.startswith("holdfast_subscriptions")]
    assert sum(counted) == 1000, counted
    assert scene.broker.rss_bytes() - before < 24 * MIB


# C13: the simulation, in worlds with many takeovers


TAKEOVER_WORLDS: Final = 60


def test_c13_worlds_of_takeovers_keep_every_promise() -> None:
    """CVE-2025-59946, CVE-2026-22040, CVE-2026-8741. tests/simulation has 50,000 more of them."""
    worlds, failures, reached = run_chunk((4_000_000, TAKEOVER_WORLDS, "sessions"))
    assert worlds == TAKEOVER_WORLDS
    assert not failures, failures[0][1]
    for name in (
        "takeover",
        "half_open_resume",
        "clean_start_over_a_session",
        "session_expired_while_up",
        "resume_after_crash",
        "unsubscribed_with_messages_in_flight",
    ):
        assert name in rare.RARE
        assert reached.get(name, 0) > 0, f"{name} in none of {worlds} worlds"


# C15: many connections, and slow ones


def refusal(client: RawClient) -> int | None:
    """Return the reason code of a refused CONNECT, None if the door was closed before."""
    client.open()
    client.send(Connect(client.client_id))
    try:
        packet = client.receive()
    except AssertionError:
        return None
    assert isinstance(packet, Connack)
    if packet.reason_code:
        client.drop()
    return packet.reason_code


def test_c15_connections_are_limited_in_all_and_by_address(start_broker: Start) -> None:
    scene = start_broker(HOLDFAST__LIMITS__MAX_CONNECTIONS="5")
    clients = [scene.online(f"c{number}") for number in range(5)]
    assert refusal(scene.client("more")) in (reasons.SERVER_BUSY, None)
    clients[0].connect()  # one that is there may come again
    clients[1].disconnect()
    scene.online("more")
    scene = start_broker(HOLDFAST__LIMITS__CONNECTIONS_PER_ADDRESS="5")
    clients = [scene.online(f"c{number}") for number in range(5)]
    assert refusal(scene.client("more")) not in (0,)
    for client in clients:
        client.ping()
    clients[0].disconnect()
    deadline = time.monotonic() + 20
    while refusal(scene.client("again")) != 0:  # until the broker has seen the end of it
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_c15_connections_that_come_too_fast_are_refused(start_broker: Start) -> None:
    scene = start_broker(HOLDFAST__LIMITS__CONNECTION_RATE="5")
    codes = [refusal(scene.client(f"c{number}")) for number in range(60)]
    assert 0 in codes
    assert sum(code != 0 for code in codes) >= 20
    assert {code for code in codes if code} <= {reasons.CONNECTION_RATE_EXCEEDED}


def test_c15_a_tls_handshake_has_as_long_as_a_connect(tmp_path: Path, start_broker: Start) -> None:
    """In silence, with half a greeting, and with none but the handshake."""
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.server()
    port = free_port()
    scene = start_broker(
        HOLDFAST__LIMITS__CONNECT_TIMEOUT="1s",
        HOLDFAST__LISTENER__TLS__PORT=str(port),
        HOLDFAST__LISTENER__TLS__TLS_CERTIFICATE=str(certificate),
        HOLDFAST__LISTENER__TLS__TLS_KEY=str(key),
    )
    context = authority.client_context()
    silent = socket.create_connection(("127.0.0.1", port), timeout=60)
    half = socket.create_connection(("127.0.0.1", port), timeout=60)
    half.sendall(bytes.fromhex("16 03 01 02 00 01 00"))
    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
    shaken = context.wrap_socket(plain, server_hostname="127.0.0.1")
    for channel in (silent, half, shaken):
        with channel:
            try:
                assert channel.recv(100) == b""
            except (ConnectionResetError, ssl.SSLError):
                continue
    scene.online("other").ping()
    deadline = time.monotonic() + 20
    while scene.broker.metrics()['holdfast_connections{listener="tls"}']:
        assert time.monotonic() < deadline, "a socket is kept"
        time.sleep(0.05)


def test_c15_a_client_that_says_nothing_is_given_up(start_broker: Start) -> None:
    """CVE-2020-13849 (SlowITe): the ceiling for Keep Alive holds for every version."""
    scene = start_broker(HOLDFAST__LIMITS__KEEP_ALIVE_MAX="1s")
    client = scene.client("five")
    assert client.connect(keep_alive=0).server_keep_alive == 1
    other = scene.client("five-b")
    assert other.connect(keep_alive=65_535).server_keep_alive == 1
    disconnect = client.expect_closed()
    assert disconnect is not None and disconnect.reason_code == reasons.KEEP_ALIVE_TIMEOUT
    other.expect_closed()
    for keep_alive in (0, 2, 65_535):  # cannot be told another one
        scene.client("four", version=4).connect(keep_alive=keep_alive, reason=2)
    old = scene.client("four", version=4)
    old.connect(keep_alive=1)
    old.expect_closed()


IDLE: Final = 1000


def test_c15_an_idle_client_costs_less_than_20_kib(start_broker: Start) -> None:
    scene = start_broker()
    warm = [_idle(scene, f"warm{number}") for number in range(100)]
    before = scene.broker.rss_bytes()
    idle = [_idle(scene, f"idle{number}") for number in range(IDLE)]
    grown = scene.broker.rss_bytes() - before
    for channel in warm + idle:
        channel.close()
    assert grown < IDLE * 20 * KIB, f"{grown / IDLE / KIB:.1f} KiB each"


def _idle(scene: Scene, client_id: str) -> socket.socket:
    channel = socket.create_connection(("127.0.0.1", scene.broker.port), timeout=60)
    channel.sendall(encode(Connect(client_id, keep_alive=600), 5))
    assert channel.recv(100)[:1] == b"\x20"
    return channel


def test_c15_limits_are_on_or_off_by_default_as_documented() -> None:
    """The table of limits in docs/operations.md has these defaults."""
    settings = Settings()
    assert settings.connect_timeout_ms <= 10_000
    assert settings.connect_size_max <= 256 * KIB
    assert 0 < settings.subscriptions_per_session_max <= 100_000
    assert 0 < settings.topic_levels_max <= 201
    off = (
        settings.max_connections,
        settings.connections_per_address,
        settings.connection_rate,
        settings.publish_rate,
        settings.receive_rate_bytes,
        settings.keep_alive_max_s,
        settings.retained_messages_max,
        settings.max_offline_messages,
        settings.max_offline_bytes,
        settings.max_age_s,
        settings.total_bytes_max,
    )
    assert off == (0,) * len(off)
    assert settings.session_expiry_max_s is None
