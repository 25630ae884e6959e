"""A real broker and a real Redis: of a topic the newest message is kept, and found once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.backends.message_ids import message_id
from tests.broker.backends.redis_cluster import ClusterServers
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.test_server_backends import feed, status, until
from tests.broker.process.test_server_verify import settle, verify
from tests.durability.load import Publisher
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

PATIENCE_S = 60.0
RULES = "".join(
    f'[[rules]]\non = "{on}"\ntopic = "{topic}"\nbackend = "cache"\naction = "{action}"\n'
    for on, topic, action in (
        ("message.publish", "state/#", "on_message_store_keep_latest"),
        ("message.publish", "load/#", "on_message_store_keep_latest"),
        ("session.subscribed", "state/#", "on_message_fetch_for_keep_latest"),
        ("message.acked", "state/#", "on_message_acked_for_keep_latest"),
        ("message.publish", "queue/#", "on_message_publish"),
    )
)


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    running = RedisServer(tmp_path / "redis", request.param).start()
    yield running
    running.kill()


def insert(server: RedisServer, topic: str, number: int, qos: int = 1) -> str:
    """Put the newest message of a topic into the store as an application does."""
    name = message_id(1_600_000_000_000 + number, 7, 0)
    fields = {"id": name, "from": "app", "qos": qos, "topic": topic, "ts": 1_600_000_000}
    with server.client() as client:
        client.hset(f"mqtt:msg:{topic}", mapping={**fields, "payload": f"inserted {number}"})
    return name


def payloads(taken: Any) -> list[tuple[bytes, int]]:
    """Return what a client got, with its QoS."""
    return [(each.payload, each.qos) for each in taken]


def test_the_newest_message_is_found_once_by_everybody(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, RULES)
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    for number in range(5):
        shore.publish("state/1", b"%d" % number, qos=1 + number % 2)
    shore.publish("queue/1", b"listed", qos=1)
    settle(broker)
    found = server.everything()["mqtt:msg:state/1"]
    assert (found[b"payload"], found[b"qos"], found[b"from"]) == (b"4", b"1", b"shore")
    for name in ("first", "second"):
        client = RawClient(broker.port, name)
        client.connect()
        client.subscribe("state/1", qos=2)
        assert payloads(client.take(1)) == [(b"4", 1)]
        key = f"mqtt:acked:{name}:state/1"
        until(lambda key=key: server.everything().get(key) == found[b"id"], broker)
        client.disconnect()
    shore.publish("state/1", b"5", qos=2)
    settle(broker)
    first = RawClient(broker.port, "first")
    first.durable()
    first.subscribe("state/1", qos=2)
    assert payloads(first.take(1)) == [(b"5", 2)]
    shore.publish("state/1", b"6", qos=2)  # from the broker itself, once
    assert payloads(first.take(1)) == [(b"6", 2)]
    newest = server.everything
    until(
        lambda: newest()["mqtt:acked:first:state/1"] == newest()["mqtt:msg:state/1"][b"id"], broker
    )
    first.subscribe("state/1", qos=2)
    shore.publish("state/1", b"end", qos=1)
    assert payloads(first.take(1)) == [(b"end", 1)]
    code, compared = verify(broker)
    assert (code, compared["differences"]) == (0, []), compared
    for each in (shore, first):
        each.drop()


def test_what_an_application_keeps_is_found_when_the_store_is_back(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, RULES)
    name = insert(server, "state/1", 1, qos=2)
    server.kill()
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("state/1", qos=2)  # SUBACK does not wait
    broker.kill()
    broker.start()
    server.start()
    device = RawClient(broker.port, "device")
    device.durable()
    assert payloads(device.take(1)) == [(b"inserted 1", 2)]
    until(lambda: server.everything().get("mqtt:acked:device:state/1") == name.encode(), broker)
    insert(server, "state/1", 2)
    device.subscribe("state/1", qos=2)
    assert payloads(device.take(1)) == [(b"inserted 2", 1)]
    device.drop()


@pytest.mark.parametrize("is_cluster", [False, True], ids=["one", "cluster"])
def test_the_newest_of_all_is_there_in_the_end_whoever_is_killed(
    prepare: Callable[..., BrokerProcess], tmp_path: Path, is_cluster: bool
) -> None:
    if is_cluster:
        cluster = ClusterServers(tmp_path / "cluster")
        victims = cluster.servers
    else:
        victims = [RedisServer(tmp_path / "one")]
        victims[0].sync = "everysec"
    store = cluster if is_cluster else victims[0]
    try:
        store.start()
        broker = prepare()
        feed(broker, store, RULES, 'mode = "cluster"\n' if is_cluster else "")
        broker.start()
        publishers = [
            Publisher(broker.port, f"p{number}", qos=number, version=5, rate=500)
            for number in (1, 2)
        ]
        for publisher in publishers:
            publisher.start()
        for number in range(3):
            seen = status(broker)["rows"]
            until(lambda seen=seen: status(broker)["rows"] > seen + 200, broker)  # type: ignore[misc]
            victim = victims[number % len(victims)]
            victim.kill()
            if number == 1:
                broker.crash()
            until(lambda: status(broker)["state"] == "disconnected", broker)
            cluster.start_one(number) if is_cluster else victim.start()
        for publisher in publishers:
            publisher.finish()
        for publisher in publishers:
            publisher.join(PATIENCE_S)
            assert publisher.violations == []
        settle(broker)
        found = store.everything()
        for publisher in publishers:
            newest = {topic: b"%d" % number for topic, number in publisher.acknowledged}
            assert {topic: found[f"mqtt:msg:{topic}"][b"payload"] for topic in newest} == newest
        assert len(found) == 4
    finally:
        store.kill()
