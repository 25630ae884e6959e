"""A real broker and a real Redis: what applications put there arrives once, whatever fails."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.backends.message_ids import message_id
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.test_server_backends import feed, until
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

RULES = (
    ("message.publish", "#", "on_message_publish"),
    ("session.subscribed", "queue/#", "on_message_fetch_for_queue"),
    ("message.acked", "queue/#", "on_message_acked_for_queue"),
    ("session.subscribed", "pubsub/#", "on_message_fetch_for_pubsub"),
    ("message.acked", "pubsub/#", "on_message_acked_for_pubsub"),
)


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    running = RedisServer(tmp_path / "redis", request.param).start()
    yield running
    running.kill()


def rules() -> str:
    """Return the rules of queues and of topics with positions."""
    return "".join(
        f'[[rules]]\non = "{on}"\ntopic = "{topic}"\naction = "{action}"\nbackend = "cache"\n'
        for on, topic, action in RULES
    )


def insert(server: RedisServer, topic: str, *numbers: int) -> list[str]:
    """Put messages into the store as an application does; return their ids."""
    ids = [message_id(1_600_000_000_000 + number, 7, 0) for number in numbers]
    with server.client() as client:
        for number, name in zip(numbers, ids, strict=True):
            fields = {"id": name, "from": "app", "qos": 1, "topic": topic, "ts": 1_600_000_000}
            client.hset(f"mqtt:msg:{name}", mapping={**fields, "payload": f"inserted {number}"})
            client.zadd(f"mqtt:msg:{topic}", {name: 1})
    return ids


def payloads(taken: Any) -> list[bytes]:
    """Return what a client got."""
    return [each.payload for each in taken]


def test_a_queue_is_shared_and_what_is_acknowledged_goes(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, rules())
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish("queue/1", b"before", qos=1)
    insert(server, "queue/1", 1, 2)
    first, second = RawClient(broker.port, "first"), RawClient(broker.port, "second")
    first.durable()
    first.subscribe("queue/1", qos=1)
    found = payloads(first.take(3))
    assert sorted(found) == [b"before", b"inserted 1", b"inserted 2"]
    second.durable()
    second.subscribe("queue/1", qos=1)
    until(lambda: "mqtt:msg:queue/1" not in server.everything(), broker)
    insert(server, "queue/1", 3)
    second.subscribe("queue/1", qos=1)
    assert payloads(second.take(1)) == [b"inserted 3"]
    until(lambda: not server.everything(), broker)


def test_everybody_gets_what_is_after_its_position(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, rules())
    broker.start()
    ids = insert(server, "pubsub/1", 1, 2)
    for name in ("first", "second"):
        client = RawClient(broker.port, name)
        client.connect()
        client.subscribe("pubsub/1", qos=1)
        assert payloads(client.take(2)) == [b"inserted 1", b"inserted 2"]
        key = f"mqtt:acked:{name}:pubsub/1"
        until(lambda key=key: server.everything().get(key) == ids[1].encode(), broker)
        client.disconnect()
    insert(server, "pubsub/1", 3)
    client = RawClient(broker.port, "first")
    client.connect()
    client.subscribe("pubsub/1", qos=1)
    assert payloads(client.take(1)) == [b"inserted 3"]
    client.drop()


def test_what_is_owed_survives_a_store_that_is_away_and_a_crash_of_the_broker(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, rules())
    insert(server, "queue/1", 1)
    server.kill()
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("queue/1", qos=1)  # SUBACK does not wait
    broker.kill()
    broker.start()
    server.start()
    device = RawClient(broker.port, "device")
    device.durable()
    assert payloads(device.take(1)) == [b"inserted 1"]
    until(lambda: not server.everything(), broker)
    device.drop()
