"""The verdict on what a real broker told a real Redis: a lost batch is found, and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from audit.checks import backend_checks, log_checks
from audit.run import Part, run
from broker.backends.sink import Fence
from session.state.backend_record import decode_backend, encode_backend
from storage.tables.tables import BACKENDS, seal, unseal
from tests.audit.real_broker import Paho, recording, rows, whole_history
from tests.broker.backends.redis_server import RedisServer, needs_redis
from tests.broker.operations.damage.databases import opened
from tests.broker.process.test_server_backends import feed, until
from tests.durability.process import BrokerProcess

pytestmark = [pytest.mark.ci, needs_redis]  # starts processes

RULES = """[[rules]]
on = "message.publish"
topic = "a/#"
backend = "cache"
action = "on_message_publish"
"""
PARTS = (
    Part("the log", log_checks.check, log_checks.carry),
    Part("external stores", backend_checks.check, backend_checks.carry),
)
COUNT = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running Redis."""
    running = RedisServer(tmp_path / "redis").start()
    yield running
    running.kill()


@pytest.fixture
def broker(tmp_path: Path, server: RedisServer) -> Iterator[BrokerProcess]:
    """A running broker that mirrors to it and records every message."""
    process = recording(tmp_path / "broker")
    feed(process, server, RULES)
    process.start()
    # Somebody wants the other messages, so that they have offsets, too.
    Paho(process.port, "watcher").connect().subscribe("other", 1).leave()
    yield process
    process.close()


def publish(broker: BrokerProcess, count: int = COUNT, topic: str = "a/b") -> None:
    """Have messages acknowledged, half of which the store wants."""
    client = Paho(broker.port, "publisher").connect()
    for number in range(count):
        client.publish(topic, b"%d" % number, 1)
        client.publish("other", b"%d" % number, 1)
    client.leave()


def stored(server: RedisServer) -> int:
    """Return how many messages the store has."""
    with server.client() as client:
        return len(client.keys("mqtt:msg:*")) - len(client.keys("mqtt:msg:a/*"))


def verdict(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> dict[str, Any]:
    """Return what the audit says of the whole history of an ended broker: of B1."""
    history = whole_history(broker, tmp_path / "whole")
    found = run(spark, str(history), str(tmp_path / "out"), progress=lambda line: None, parts=PARTS)
    assert found.document["invariants"]["H1"]["status"] == "ok"
    said: dict[str, Any] = found.document["invariants"]["B1"]
    return said


def test_kills_and_refusals_balance(
    broker: BrokerProcess, server: RedisServer, spark: SparkSession, tmp_path: Path
) -> None:
    publish(broker)
    until(lambda: stored(server) == COUNT, broker)
    broker.kill()
    broker.start()
    server.freeze()
    publish(broker)
    broker.kill()
    server.thaw()
    broker.start()
    until(lambda: stored(server) == 2 * COUNT, broker)
    with server.client() as client:
        client.set("mqtt:msg:a/refused", "no set")
    publish(broker, 3, "a/refused")
    until(lambda: stored(server) == 2 * COUNT + 3, broker)
    server.kill()
    publish(broker, 2)
    server.start()
    until(lambda: stored(server) == 2 * COUNT + 5, broker)
    assert broker.stop() == 0
    said = verdict(spark, broker, tmp_path)
    assert (said["status"], said["witnesses"]) == ("ok", [])
    assert said["checked"] and said["facts"]["waiting"] == {"n1 cache": 0}
    told = rows(tmp_path / "whole", ["backend_told"], ["reason", "count"])
    sums: dict[int, int] = {}
    for row in told:
        sums[row["reason"]] = sums.get(row["reason"], 0) + row["count"]
    assert (sums[1060], sums[1061]) == (2 * COUNT + 2, 3)


def test_a_batch_that_was_passed_over_is_found_with_its_numbers(
    broker: BrokerProcess, server: RedisServer, spark: SparkSession, tmp_path: Path
) -> None:
    publish(broker)
    until(lambda: stored(server) == COUNT, broker)
    server.kill()
    publish(broker, 7)
    assert broker.stop() == 0
    server.start()
    pass_over(broker, server)
    broker.start()
    publish(broker, 5)
    until(lambda: stored(server) == COUNT + 5, broker)
    assert broker.stop() == 0
    said = verdict(spark, broker, tmp_path)
    assert said["status"] == "violated"
    assert sum(each["stored"] - each["confirmed"] for each in said["witnesses"]) == 7
    assert {each["backend"] for each in said["witnesses"]} == {"cache"}


def pass_over(broker: BrokerProcess, server: RedisServer) -> None:
    """Move both cursors to the end, as if a broker had taken a batch for told."""
    with opened(broker.data_dir) as store:
        value = store.get(BACKENDS, b"cache")
        assert value is not None
        record = decode_backend(unseal(value, "backend"))
        end = 2 * (COUNT + 7)
        record.cursor = (end, record.cursor[1])
        record.told.counted = end
        store.write([(BACKENDS, b"cache", seal(encode_backend(record)))])
        store.sync()
    with server.client() as client:
        client.set("holdfast:cursor:cache", Fence(record.instance, record.cursor).encode())
