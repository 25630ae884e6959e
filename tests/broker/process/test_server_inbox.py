"""A real broker and a real Redis: what applications put there arrives once, whatever fails."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.backends.message_ids import message_id
from tests.broker.backends.redis_cluster import ClusterServers
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.test_server_backends import feed, status, until
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

RULES = (
    ("message.publish", "#", "on_message_publish"),
    ("session.subscribed", "queue/#", "on_message_fetch_for_queue"),
    ("message.acked", "queue/#", "on_message_acked_for_queue"),
    ("session.subscribed", "pubsub/#", "on_message_fetch_for_pubsub"),
    ("message.acked", "pubsub/#", "on_message_acked_for_pubsub"),
    ("session.subscribed", "state/#", "on_retain_lookup"),
    ("message.publish", "state/#", "on_message_retain"),
    ("message.publish", "state/#", "on_retain_delete"),
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


def insert(server: RedisServer | ClusterServers, topic: str, *numbers: int) -> list[str]:
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


def answered(broker: BrokerProcess) -> None:
    """Wait until the store has answered all that is asked for clients."""
    until(lambda: status(broker)["fetches_owed"] == 0, broker)


def claims(server: RedisServer) -> list[bytes]:
    """Return the keys that say who has a message of a queue."""
    with server.client() as client:
        found: list[bytes] = client.keys("holdfast:claim:*")
    return found


def expect_no_more(
    broker: BrokerProcess, server: RedisServer, client: RawClient, number: int
) -> None:
    """Check that the store has nothing more for a client.

    It asks once more, with a message for it in the store: all that there is comes with that.
    """
    answered(broker)
    insert(server, "queue/1", number)
    client.subscribe("queue/1", qos=1)
    assert payloads(client.take(1)) == [b"inserted %d" % number]
    client.expect_nothing()


@pytest.mark.parametrize("is_sent_first", [True, False], ids=["sent", "fetched"])
def test_a_message_that_was_sent_may_be_fetched_until_one_of_the_two_acknowledges_it(
    prepare: Callable[..., BrokerProcess], server: RedisServer, is_sent_first: bool
) -> None:
    broker = prepare()
    feed(broker, server, rules())
    broker.start()
    shore, first, second, third = (
        RawClient(broker.port, name) for name in ("shore", "first", "second", "third")
    )
    shore.connect()
    first.durable()
    first.subscribe("queue/1", qos=1)
    shore.publish("queue/1", b"overlap", qos=1)
    sent = first.expect_publish(b"overlap", acknowledge=False, dup=False)
    first.drop()
    first.resume()
    same: dict[str, Any] = {"dup": True, "packet_id": sent.packet_id, "acknowledge": False}
    first.expect_publish(b"overlap", **same)
    expect_no_more(broker, server, first, 1)  # what it has in flight is offered to others only
    second.durable()
    second.subscribe("queue/1", qos=1)
    fetched = second.expect_publish(b"overlap", acknowledge=False, dup=False, retain=False)
    first.drop()
    first.resume()
    sent = first.expect_publish(b"overlap", **same)
    exchanges = [(first, sent), (second, fetched)]
    (one, its), (other, others) = exchanges if is_sent_first else exchanges[::-1]
    one.acknowledge(its)
    until(lambda: "mqtt:msg:queue/1" not in server.everything(), broker)
    third.durable()
    third.subscribe("queue/1", qos=1)
    expect_no_more(broker, server, third, 2)
    broker.crash()
    one.resume()
    expect_no_more(broker, server, one, 3)
    other.resume()
    other.expect_publish(b"overlap", dup=True, packet_id=others.packet_id)
    expect_no_more(broker, server, other, 4)
    until(lambda: not server.everything() and not claims(server), broker)
    for each in (shore, first, second, third):
        each.drop()


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


def retain(server: RedisServer, topic: str, payload: str, at_s: int) -> None:
    """Put a retained message into the store as an application does."""
    fields = {"id": "1", "from": "app", "qos": 1, "topic": topic, "ts": at_s, "retain": "true"}
    with server.client() as client:
        client.hset(f"mqtt:retain:{topic}", mapping={**fields, "payload": payload})


def stored(server: RedisServer, topic: str) -> dict[bytes, bytes]:
    """Return the retained message that the store has."""
    found: dict[bytes, bytes] = server.everything().get(f"mqtt:retain:{topic}", {})
    return found


def test_a_retained_message_of_the_store_is_ours_and_does_not_come_back_to_it(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, rules())
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish("state/1", b"first", qos=1, retain=True)
    until(lambda: stored(server, "state/1").get(b"payload") == b"first", broker)
    retain(server, "state/1", "second", int(time.time()) + 5)
    written = stored(server, "state/1")
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("state/1", qos=1)
    messages = device.take(2)
    assert payloads(messages) == [b"first", b"second"] and all(each.retain for each in messages)
    other = RawClient(broker.port, "other")
    other.connect()
    other.subscribe("state/+", qos=1)  # only the broker's own
    assert payloads(other.take(1)) == [b"second"]
    shore.publish("state/2", b"behind it", qos=1, retain=True)
    until(lambda: stored(server, "state/2").get(b"payload") == b"behind it", broker)
    assert stored(server, "state/1") == written
    shore.publish("state/1", b"", qos=1, retain=True)
    until(lambda: "mqtt:retain:state/1" not in server.everything(), broker)
    device.subscribe("state/1", qos=1)
    device.subscribe("state/2", qos=1)
    assert payloads(device.take(2)) == [b"", b"behind it"]  # the first of them is live
    for each in (shore, device, other):
        each.drop()


def test_a_retained_message_that_is_owed_survives_a_store_that_is_away_and_a_crash(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, rules())
    retain(server, "state/1", "open", 1_600_000_000)
    retain(server, "state/2", "end", 1_600_000_000)
    server.kill()
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("state/1", qos=1)  # SUBACK does not wait
    broker.kill()
    broker.start()
    server.start()
    device = RawClient(broker.port, "device")
    device.durable()
    (message,) = device.take(1)
    assert (message.payload, message.retain, message.dup) == (b"open", True, False)
    broker.kill()
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("state/2", qos=1)
    (message,) = device.take(1)
    if message.dup:  # its PUBACK was lost in the crash
        (message,) = device.take(1)
    assert message.payload == b"end"  # the other one was not looked up again
    device.drop()


def test_a_retained_message_of_another_type_is_told_and_asked_for_once(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, rules())
    broker.start()
    with server.client() as client:
        client.set("mqtt:retain:state/1", "x")
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("state/1", qos=1)
    until(lambda: "backend_fetch_refused" in broker.log(), broker)
    retain(server, "state/2", "fine", 1_600_000_000)
    device.subscribe("state/2", qos=1)
    assert payloads(device.take(1)) == [b"fine"]
    assert broker.log().count("backend_fetch_refused") == 1
    device.drop()
