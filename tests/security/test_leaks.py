"""What a process keeps of those who come again and again: classes of docs/security.md.

Each attack runs until everything that fills once is full, and is then measured: a leak of one
packet in a hundred would show.
"""

import os
import socket
from collections.abc import Callable
from typing import Final

import pytest

from mqtt.encoder import encode
from mqtt.packets import Connect, Publish, Suback, Subscribe, Subscription
from tests.durability.rawclient import RawClient
from tests.durability.scene import Scene

Start = Callable[..., Scene]
KIB: Final = 1024
MIB: Final = 1024 * KIB
WARM_TURNS: Final = 300
TURNS: Final = 1500
BULK: Final = b"\xea\x60" + b"x" * 60_000  # binary data or text of 60,000 bytes
KEPT_MAX: Final = 6 * MIB  # of the 86 MiB that `TURNS` of them are


def connect_of(body: bytes) -> bytes:
    """Return a CONNECT whose length agrees with `body`, of more than 16 KiB."""
    size = len(body)
    return bytes((0x10, size & 127 | 128, size >> 7 & 127 | 128, size >> 14)) + body


V4: Final = b"\x00\x04MQTT\x04"
V5: Final = b"\x00\x04MQTT\x05"
CRAFTED: Final = {
    # CVE-2017-7654: whoever is refused has been read before.
    "unknown version": connect_of(b"\x00\x04MQTT\x09\x02\x00\x00\x00\x01c" + BULK),
    "reserved flag": connect_of(V4 + b"\x03\x00\x00\x00\x01c" + BULK),
    "user name that is no text": connect_of(V4 + b"\xc2\x00\x00\x00\x01c\x00\x01\xff" + BULK),
    "bytes behind the end": connect_of(V4 + b"\x02\x00\x00\x00\x01c" + BULK),
    "password without user": connect_of(V4 + b"\x42\x00\x00\x00\x01c" + BULK),
}
CRAFTED_WILLS: Final = {
    # Properties that are wrong, behind such as are right.
    "will with a property of no will": connect_of(
        V5
        + b"\x06\x00\x00\x00\x00\x01c\xe5\xd4\x03"
        + b"\x09"
        + BULK
        + b"\x0b\x01\x00\x01w\x00\x00"
    ),
    "will with a property twice": connect_of(
        V5
        + b"\x06\x00\x00\x00\x00\x01c\xe7\xd4\x03"
        + b"\x09"
        + BULK
        + b"\x01\x01\x01\x01\x00\x01w\x00\x00"
    ),
    "will to a wildcard": connect_of(V4 + b"\x06\x00\x00\x00\x01c\x00\x01#" + BULK),
    "will of QoS 3": connect_of(V4 + b"\x1e\x00\x00\x00\x01c\x00\x01w" + BULK),
}


def knock(scene: Scene, data: bytes, turns: int) -> None:
    """Connect, send it all, and wait for the end, so many times."""
    for _ in range(turns):
        with socket.create_connection(("127.0.0.1", scene.broker.port), timeout=60) as channel:
            channel.sendall(data)
            try:
                answer = channel.recv(100)
                assert answer[:1] in (b"", b"\x20") and answer[3:4] != b"\x00", answer
                assert not answer or channel.recv(100) == b""
            except ConnectionResetError:
                continue


@pytest.mark.parametrize("kind", CRAFTED)
def test_c01_a_refused_connect_leaves_no_memory_behind(kind: str, start_broker: Start) -> None:
    """CVE-2017-7654: 60 KB each, refused, 1,500 times."""
    refuse_many(start_broker(), CRAFTED[kind])


@pytest.mark.parametrize("kind", CRAFTED_WILLS)
def test_c02_a_refused_will_leaves_no_memory_behind(kind: str, start_broker: Start) -> None:
    """CVE-2023-3592"""
    refuse_many(start_broker(), CRAFTED_WILLS[kind])


def refuse_many(scene: Scene, data: bytes) -> None:
    """See it refused every time, and measure what the process keeps."""
    knock(scene, data, WARM_TURNS)
    before = scene.broker.rss_bytes()
    knock(scene, data, TURNS)
    grown = scene.broker.rss_bytes() - before
    assert grown < KEPT_MAX, f"{grown / TURNS / KIB:.1f} KiB of each"
    assert scene.broker.metrics()['holdfast_connects_total{result="accepted"}'] == 0
    scene.online("other").ping()


def test_c10_subscribing_again_leaves_no_memory_behind(start_broker: Start) -> None:
    """mosquitto #248"""
    scene = start_broker()
    client = scene.client("c")
    client.durable()
    filters = [Subscription(f"a/{number}/+/#", 1) for number in range(500)]

    def again(turns: int) -> None:
        for turn in range(turns):
            client.send(Subscribe(turn + 1, filters))
            assert client.expect(Suback).reason_codes == [1] * 500

    again(20)
    before = scene.broker.rss_bytes()
    again(100)
    assert scene.broker.rss_bytes() - before < KEPT_MAX
    samples = scene.broker.metrics().items()
    assert sum(v for name, v in samples if name.startswith("holdfast_subscriptions")) == 500


def test_c04_a_reader_of_qos_0_that_does_not_read_is_left_out(start_broker: Start) -> None:
    """Nothing is owed at QoS 0, so what does not fit is dropped, counted, and costs nothing."""
    scene = start_broker()
    slow, quick = scene.online("slow"), scene.online("quick")
    slow_socket = slow._socket  # type: ignore[attr-defined]
    slow_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for client in (slow, quick):
        client.subscribe(scene.topic(), qos=0)
    publisher = scene.online("publisher")
    payload = os.urandom(32 * KIB)

    def flood(count: int) -> None:
        for _ in range(count // 50):
            publisher.send(*[Publish(scene.topic(), payload)] * 50)
            publisher.ping()
            quick.take(50, timeout=60)

    flood(500)
    before = scene.broker.rss_bytes()
    flood(2500)
    assert scene.broker.rss_bytes() - before < 16 * MIB, "of 78 MiB"
    dropped = scene.broker.metrics()['holdfast_messages_dropped_total{reason="slow_consumer"}']
    assert 2000 < dropped <= 3000


def test_c12_garbage_costs_the_process_nothing_but_connections(start_broker: Start) -> None:
    """Thousands of broken streams: nothing in the log, no socket kept, no fault counted."""
    scene = start_broker()
    other = scene.online("other")
    good = encode(Connect("garbage"), 5)
    streams = [bytes((first, second)) * 8 for first in range(0, 256, 3) for second in (0, 2, 255)]
    for stream in streams:
        for data in (stream, good + stream):
            with socket.create_connection(("127.0.0.1", scene.broker.port), timeout=60) as channel:
                channel.sendall(data)
                if data is not stream:
                    assert channel.recv(5)[:1] == b"\x20"
    other.ping()
    witness: RawClient = scene.online("witness")
    for _ in range(2000):
        metrics = scene.broker.metrics()
        open_now = sum(v for name, v in metrics.items() if name.startswith("holdfast_connections{"))
        if open_now == 2:
            break
        witness.ping()
    assert open_now == 2
    assert metrics["holdfast_internal_errors_total"] == 0
    assert '"level": "error"' not in scene.broker.log()
