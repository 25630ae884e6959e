"""One flipped bit in a table of a real database: it costs what its block holds, at every start."""

import random
from collections.abc import Callable

import pytest

from mqtt import reasons
from mqtt.packets import Connack, Connect
from tests.broker.process.starts import events
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient
from tests.durability.scene import Scene

pytestmark = pytest.mark.ci  # a dozen starts, and hundreds of clients

Start = Callable[..., Scene]

MESSAGES = 40
SESSIONS = 200
STARTS = 6  # so many make RocksDB want to compact the tables that they wrote


def flip(broker: BrokerProcess, wanted: bytes, at: int | None = None) -> None:
    """Flip a bit of these bytes, or of byte `at`, in every table that has these bytes."""
    tables = [
        (path, bytearray(path.read_bytes())) for path in (broker.data_dir / "db").glob("*.sst")
    ]
    damaged = 0
    for path, content in tables:
        if wanted in content:
            content[content.index(wanted) if at is None else at] ^= 1
            path.write_bytes(content)
            damaged += 1
    assert damaged


def is_refused(client: RawClient) -> bool:
    """Does the broker refuse this client, and not accept it with its session?"""
    client.open()
    client.send(Connect(client.client_id, clean_start=False, session_expiry_interval=3600))
    connack = client.receive()
    assert isinstance(connack, Connack)
    if connack.reason_code == reasons.SERVER_UNAVAILABLE:
        return True
    assert (connack.reason_code, connack.session_present) == (0, True)
    client.disconnect()
    return False


def test_a_damaged_block_of_messages_is_passed_over(start_broker: Start) -> None:
    source = random.Random(1)
    payloads = [source.randbytes(2000) for _ in range(MESSAGES)]
    broker = start_broker().broker
    client, publisher = RawClient(broker.port, "boat"), RawClient(broker.port, "p")
    client.durable()
    client.subscribe("t", qos=1)
    client.disconnect()
    publisher.connect()
    for payload in payloads:
        publisher.publish("t", payload, qos=1)
    assert broker.stop() == 0
    flip(broker, payloads[20][:100])
    for turn in range(STARTS):
        broker.start()
        client.durable()
        publisher.connect()
        publisher.publish("t", b"live", qos=1)
        found: list[bytes] = []
        while b"live" not in found:
            found += [publish.payload for publish in client.take(1)]
        if turn == 0:
            lost = set(payloads) - set(found)
            assert payloads[20] in lost and len(lost) <= 3
            assert found[:-1] == [payload for payload in payloads if payload not in lost]
            metrics = broker.metrics()
            assert metrics['holdfast_messages_dropped_total{reason="damaged"}'] == len(lost)
            assert metrics['holdfast_damaged_rows_total{what="message"}'] >= 1
            assert "holdfast db check" in str(events(broker)["rows_damaged"])
        client.disconnect()
        assert broker.stop() == 0


def test_a_damaged_block_of_sessions_refuses_their_clients_only(start_broker: Start) -> None:
    broker = start_broker().broker
    clients = [RawClient(broker.port, f"client-{number:03}") for number in range(SESSIONS)]
    for client in clients:
        client.durable()
        client.subscribe("t", qos=1)
        client.disconnect()
    assert broker.stop() == 0
    flip(broker, b"\x04\x08namesessions", 200)
    for _ in range(STARTS):
        broker.start()
        refused = 0
        for client in clients:
            refused += is_refused(client)
        assert 0 < refused < SESSIONS
        newcomer = RawClient(broker.port, "newcomer")
        newcomer.durable()
        newcomer.publish("t", b"served", qos=1)
        newcomer.disconnect()
        assert broker.metrics()['holdfast_damaged_rows_total{what="session"}'] >= refused
        assert broker.stop() == 0
