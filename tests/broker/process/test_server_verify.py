"""A real broker and a real store that somebody has changed: is every change named, and no more?"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.backends.message_ids import decimal_id, message_id, message_number, node_number
from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.backends.redis_server import RedisServer, needs_redis
from tests.broker.process import test_server_dynamodb as dynamodb
from tests.broker.process.test_server_backends import (
    NODE,
    all_rules,
    command,
    feed,
    status,
    until,
)
from tests.durability.load import Publisher
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = pytest.mark.full  # starts processes

PATIENCE_S = 60.0


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running Redis."""
    running = RedisServer(tmp_path / "redis").start()
    yield running
    running.kill()


@pytest.fixture
def dynamodb_server(tmp_path: Path) -> Iterator[DynamodbServer]:
    """A running DynamoDB Local."""
    running = DynamodbServer(tmp_path / "dynamodb").start()
    yield running
    running.kill()


def verify(broker: BrokerProcess, *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status of `backend verify` and what it says as JSON."""
    code, out, err = command(broker, "verify", "cache", "--json", *words)
    assert err == "", err
    found = json.loads(out)
    assert isinstance(found, dict)
    return code, found


def named(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return what differs: kind, what, name."""
    return {(each["kind"], each["what"], each["id"]) for each in found["differences"]}


def settle(broker: BrokerProcess) -> None:
    """Wait until the store has everything."""
    until(lambda: status(broker)["rows_behind"] == 0, broker)


def populate(broker: BrokerProcess) -> RawClient:
    """Let clients leave something of everything; one of them stays, with a session in memory."""
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("queue/1", "pubsub/+", qos=1)
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.subscribe("memory/+", qos=1)
    for number in range(10):
        shore.publish(f"load/{number % 3}", b"%d" % number, qos=1)
    shore.publish("queue/1", b"acknowledged", qos=1)
    shore.publish("kept/1", b"\xff\xfe", qos=1, retain=True)
    shore.publish("kept/2", b"two", qos=0, retain=True)
    device.take(1)
    device.disconnect()
    return shore


@needs_redis
def test_every_change_of_a_redis_store_is_named(
    prepare: Callable[..., BrokerProcess], redis_server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, redis_server, all_rules())
    broker.start()
    shore = populate(broker)
    settle(broker)
    code, found = verify(broker)
    assert (code, found["differences"]) == (0, []), found
    assert sum(row["store"]["count"] for row in found["minutes"] if row["kind"] == "message") == 11
    assert {row["kind"]: row["store"]["count"] for row in found["sets"]} == {
        "retained": 2, "subscription": 3, "client": 1,
    }  # fmt: skip
    everything = redis_server.everything()
    ids = [name.decode() for name in everything["mqtt:msg:load/0"]]
    others = [name.decode() for name in everything["mqtt:msg:load/1"]]
    ours = node_number(NODE)
    now_ms = int(redis_server.client().time()[0]) * 1000
    stranger = message_id(now_ms, ours, 1 << 40)
    between = message_id(now_ms, ours, 3)
    foreign_node = message_id(now_ms, ours ^ 1, 5)
    with closing(redis_server.client()) as store:
        store.delete(f"mqtt:msg:{ids[0]}")
        store.zrem("mqtt:msg:load/0", ids[0])
        store.delete(f"mqtt:msg:{ids[1]}")
        store.zrem("mqtt:msg:load/0", ids[2])
        store.hset(f"mqtt:msg:{ids[3]}", "payload", "other")
        store.zadd("mqtt:msg:load/2", {others[0]: 1})
        for name in (stranger, between, foreign_node):
            store.hset(f"mqtt:msg:{name}", mapping={"id": name, "payload": "x", "topic": "load/0"})
        store.zadd("mqtt:msg:load/9", {stranger: 1})
        store.hset("mqtt:msg:application", mapping={"payload": "x"})
        store.hset("mqtt:retain:kept/1", "payload", "other")
        store.delete("mqtt:retain:kept/2")
        store.hdel("mqtt:sub:device", "queue/1")
        store.hset("mqtt:sub:ghost", "a/#", "1")
        store.hset("mqtt:sub:shore", "memory/+", "0")
        store.hset("mqtt:client:shore", "state", "0")
        store.hset(f"mqtt:node:{NODE}", "ghost", "1700000000")
    code, found = verify(broker)
    assert code == 1 and not found["equal"]
    assert named(found) == {
        ("message", "missing", ids[0]),
        ("message", "in the list of its topic only", ids[1]),
        ("message", "not in the list of its topic", ids[2]),
        ("message", "changed", ids[3]),
        ("message", "doubled", others[0]),
        ("message", "foreign", stranger),
        ("message", "foreign", between),
        ("retained", "changed", "kept/1"),
        ("retained", "missing", "kept/2"),
        ("subscription", "missing", "device queue/1"),
        ("subscription", "foreign", "ghost a/#"),
        ("subscription", "changed", "shore memory/+"),
        ("client", "changed", "shore"),
        ("client", "foreign", "ghost"),
    }
    places = {(each["id"], each["what"]): each["place"] for each in found["differences"]}
    assert places[(others[0], "doubled")] == "mqtt:msg:load/2"
    assert places[(ids[0], "missing")] is None
    assert found["not_ours"] == 1
    code, out, err = command(broker, "verify", "cache", "--limit", "2")
    assert (code, err) == (1, "")
    assert "and 13 more: --limit 15 names them" in out, out
    assert out.splitlines()[-1].startswith("cache: 15 differences; messages since ")
    repaired(broker, shore)


def repaired(broker: BrokerProcess, shore: RawClient) -> None:
    """Check that a backfill brings back what can be known, and what it cannot is still named."""
    code, out, err = command(broker, "backfill", "cache")
    assert (code, err) == (0, ""), err
    assert out == "cache: begun; `holdfast backend status` says how far it is\n"
    until(lambda: (status(broker)["backfill"] or {}).get("left") == [], broker)
    settle(broker)
    _, found = verify(broker)
    left = {row for row in named(found) if row[0] != "message"}
    assert left == {("subscription", "foreign", "ghost a/#"), ("client", "foreign", "ghost")}
    shore.drop()


@needs_redis
def test_a_broker_killed_amid_a_backfill_goes_on_with_it(
    prepare: Callable[..., BrokerProcess], redis_server: RedisServer
) -> None:
    """More rows than may be ahead of a store that hangs: so the end cannot have been written."""
    broker = prepare()
    feed(broker, redis_server, all_rules())
    broker.start()
    for number in range(3):
        device = RawClient(broker.port, f"device-{number}")
        device.durable()
        for start in range(0, 1000, 250):
            device.subscribe(*[f"queue/{each}" for each in range(start, start + 250)], qos=1)
        device.disconnect()
    settle(broker)
    with closing(redis_server.client()) as store:
        assert store.delete(*[f"mqtt:sub:device-{number}" for number in range(3)]) == 3
    assert len(verify(broker, "--limit", "5000")[1]["differences"]) == 3000
    redis_server.freeze()
    try:
        assert command(broker, "backfill", "cache", "--subscriptions")[0] == 0
        until(lambda: status(broker)["backfill"]["rows"] > 0, broker)
        assert status(broker)["backfill"]["left"] == ["subscriptions"]
        broker.kill()
    finally:
        redis_server.thaw()
    broker.start()
    until(lambda: status(broker)["backfill"]["left"] == [], broker)
    settle(broker)
    code, found = verify(broker)
    assert (code, found["differences"]) == (0, [])
    assert (status(broker)["gaps"], status(broker)["dead_letters"]) == (0, 0)


@needs_dynamodb
@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_every_change_of_a_dynamodb_store_is_named(
    prepare: Callable[..., BrokerProcess], dynamodb_server: DynamodbServer, layout: str
) -> None:
    broker, server = prepare(), dynamodb_server
    rules = "".join(
        dynamodb.rule(on, to, f'action = "{what}"') for on, to, what in dynamodb.ACTIONS
    )
    dynamodb.feed(broker, server, rules, f'layout = "{layout}"')
    broker.start()
    shore = populate(broker)
    settle(broker)
    code, found = verify(broker)
    assert (code, found["differences"]) == (0, []), found
    assert sum(row["store"]["count"] for row in found["minutes"] if row["kind"] == "message") == 11
    items = {item["payload"]: item for item in server.table("msg") if item["topic"] == "load/0"}
    ids = [items[payload]["msgid"] for payload in ("0", "3", "6", "9")]
    now_ms = max(item["arrived"] for item in items.values()) * 1000 + 999
    stranger = decimal_id(message_number(now_ms, node_number(NODE), 1 << 40))

    def key(name: str) -> dict[str, Any]:
        return {"msgid": {"S": name}}

    with closing(server.client()) as store:
        for name in ids[:2]:
            store.delete_item(TableName=server.prefix + "msg", Key=key(name))
        for name in (ids[0], ids[2]):
            unlist(store, server.prefix, layout, "load/0", name)
        store.update_item(
            TableName=server.prefix + "msg",
            Key=key(ids[3]),
            UpdateExpression="SET payload = :p",
            ExpressionAttributeValues={":p": {"S": "other"}},
        )
        store.delete_item(TableName=server.prefix + "retain", Key={"topic": {"S": "kept/2"}})
        store.delete_item(
            TableName=server.prefix + "sub",
            Key={"clientid": {"S": "device"}, "topic": {"S": "queue/1"}},
        )
    more = {"topic": {"S": "load/0"}, "arrived": {"N": str(now_ms // 1000)}}
    server.put("msg", {**key(stranger), **more})
    server.put("sub", {"clientid": {"S": "ghost"}, "topic": {"S": "a/#"}, "qos": {"N": "1"}})
    server.put(
        "client",
        {
            "clientid": {"S": "ghost"},
            "node": {"S": NODE},
            "connect_state": {"N": "1"},
            "online_at": {"N": "1700000000"},
        },
    )
    code, found = verify(broker)
    assert code == 1
    assert named(found) == {
        ("message", "missing", ids[0]),
        ("message", "in the list of its topic only", ids[1]),
        ("message", "not in the list of its topic", ids[2]),
        ("message", "changed", ids[3]),
        ("message", "foreign", stranger),
        ("retained", "missing", "kept/2"),
        ("subscription", "missing", "device queue/1"),
        ("subscription", "foreign", "ghost a/#"),
        ("client", "foreign", "ghost"),
    }
    repaired(broker, shore)


def unlist(store: Any, prefix: str, layout: str, topic: str, name: str) -> None:
    """Take an id out of the list of a topic."""
    if layout == "v2":
        store.delete_item(
            TableName=prefix + "topic_msg", Key={"topic": {"S": topic}, "msgid": {"S": name}}
        )
        return
    store.update_item(
        TableName=prefix + "topic_msg_map",
        Key={"topic": {"S": topic}},
        UpdateExpression="DELETE MsgId :n",
        ExpressionAttributeValues={":n": {"SS": [name]}},
    )


@needs_redis
def test_a_store_is_equal_while_clients_come_and_go_and_publish(
    prepare: Callable[..., BrokerProcess], redis_server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, redis_server, all_rules())
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("queue/1", qos=1)
    publishers = [
        Publisher(broker.port, f"p{number}", qos=1, version=5, rate=200, count=1_000_000)
        for number in range(2)
    ]
    for publisher in publishers:
        publisher.start()
    until(lambda: status(broker)["rows"] > 500, broker)
    for _ in range(3):
        other = RawClient(broker.port, "other")
        other.connect()
        other.subscribe("x/y", qos=1)
        other.publish("queue/1", b"for one", qos=1)
        device.take(1)
        code, found = verify(broker)
        assert (code, found["differences"]) == (0, []), found
        other.drop()
    assert sum(row["store"]["count"] for row in found["minutes"]) > 500
    for publisher in publishers:
        publisher.finish()
    for publisher in publishers:
        publisher.join(PATIENCE_S)
        assert publisher.violations == []
    device.drop()


@needs_redis
def test_what_waits_is_not_called_missing_and_what_cannot_be_compared_is_said(
    prepare: Callable[..., BrokerProcess], redis_server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, redis_server, all_rules())
    code, out, err = command(broker, "verify", "cache")
    assert (code, out) == (2, "") and "cannot ask the broker" in err
    broker.start()
    shore = populate(broker)
    settle(broker)
    assert command(broker, "pause", "cache")[0] == 0
    shore.publish("load/1", b"waits", qos=1)
    shore.subscribe("late/+", qos=1)
    code, found = verify(broker)
    assert (code, found["differences"]) == (2, [])
    assert found["not_compared"].startswith("rows wait: ")
    assert command(broker, "resume", "cache")[0] == 0
    redis_server.kill()
    code, out, err = command(broker, "verify", "cache")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and "127.0.0.1" in err
    shore.drop()


def test_a_store_that_cannot_be_read_by_ids_is_not_compared(
    prepare: Callable[..., BrokerProcess],
) -> None:
    broker = prepare()
    path = broker.directory / "holdfast.toml"
    path.write_text(
        '[backends.cache]\ntype = "webhook"\nurl = "http://127.0.0.1:9/rows"\n'
        '[[rules]]\non = "client.connected"\nbackend = "cache"\n'
    )
    broker.arguments = ("--config", str(path))
    code, out, err = command(broker, "verify", "cache")
    assert (code, out) == (2, "")
    assert "a backend of the type webhook cannot be compared" in err
    assert len(err.splitlines()) == 1
    code, out, err = command(broker, "verify", "other")
    assert code == 2 and "no such backend" in err
