"""A real broker and a real store that somebody has changed: is every change named, and no more?"""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from broker.backends.message_ids import decimal_id, message_id, message_number, node_number
from tests.broker.backends import cassandra_server
from tests.broker.backends.cassandra_server import needs_cassandra
from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process import test_server_cassandra as cassandra
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

PATIENCE_S = 180.0
OURS: Final = node_number(NODE)
# A client and a subscription that nobody has told the store of; a backfill leaves them there.
GHOSTS: Final = {("subscription", "foreign", "ghost a/#"), ("client", "foreign", "ghost")}


class Spoilt(Protocol):
    """A store of tests, and what somebody does to it."""

    rate: int  # of messages a second, which it keeps up with on a busy machine
    messages: int  # that it has, with those of `populate`
    not_ours: int  # that were added

    def feed(self, broker: BrokerProcess) -> None:
        """Configure a broker that is not started yet."""
        ...

    def spoil(self) -> set[tuple[str, str, str]]:
        """Change it, and return what differs then."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class SpoiltRedis:
    """A Redis, or Valkey, and what somebody does to it."""

    rate = 400
    messages = 12
    not_ours = 1

    def __init__(self, program: Path, directory: Path) -> None:
        self.server: Final = RedisServer(directory / "redis", program).start()
        self.doubled = ""  # the id of a message

    def feed(self, broker: BrokerProcess) -> None:
        """Configure a broker that is not started yet."""
        feed(broker, self.server, all_rules())

    def spoil(self) -> set[tuple[str, str, str]]:
        """Change it, and return what differs then."""
        everything = self.server.everything()
        ids = [name.decode() for name in everything["mqtt:msg:load/0"]]
        self.doubled = everything["mqtt:msg:load/1"][0].decode()
        now_ms = int(self.server.client().time()[0]) * 1000
        stranger, between = (message_id(now_ms, OURS, offset) for offset in (1 << 40, 3))
        with closing(self.server.client()) as store:
            store.delete(f"mqtt:msg:{ids[0]}")
            store.zrem("mqtt:msg:load/0", ids[0])
            store.delete(f"mqtt:msg:{ids[1]}")
            store.zrem("mqtt:msg:load/0", ids[2])
            store.hset(f"mqtt:msg:{ids[3]}", "payload", "other")
            store.zadd("mqtt:msg:load/2", {self.doubled: 1})
            for name in (stranger, between, message_id(now_ms, OURS ^ 1, 5)):
                told = {"id": name, "payload": "x", "topic": "load/0"}
                store.hset(f"mqtt:msg:{name}", mapping=told)
            store.zadd("mqtt:msg:load/9", {stranger: 1})
            store.hset("mqtt:msg:application", mapping={"payload": "x"})
            store.hset("mqtt:retain:kept/1", "payload", "other")
            store.delete("mqtt:retain:kept/2")
            store.hdel("mqtt:sub:device", "queue/1")
            store.hset("mqtt:sub:ghost", "a/#", "1")
            store.hset("mqtt:sub:shore", "memory/+", "0")
            store.hset("mqtt:client:shore", "state", "0")
            store.hset(f"mqtt:node:{NODE}", "ghost", "1700000000")
        return GHOSTS | {
            ("message", "missing", ids[0]),
            ("message", "in the list of its topic only", ids[1]),
            ("message", "not in the list of its topic", ids[2]),
            ("message", "changed", ids[3]),
            ("message", "doubled", self.doubled),
            ("message", "foreign", stranger),
            ("message", "foreign", between),
            ("retained", "changed", "kept/1"),
            ("retained", "missing", "kept/2"),
            ("subscription", "missing", "device queue/1"),
            ("subscription", "changed", "shore memory/+"),
            ("client", "changed", "shore"),
        }

    def close(self) -> None:
        """End it."""
        self.server.kill()


class SpoiltDynamodb:
    """A DynamoDB, and what somebody does to it."""

    rate = 40
    messages = 12
    not_ours = 0

    def __init__(self, layout: str, directory: Path) -> None:
        self.server: Final = DynamodbServer(directory / "dynamodb").start()
        self._layout: Final = layout

    def feed(self, broker: BrokerProcess) -> None:
        """Configure a broker that is not started yet."""
        rules = "".join(
            dynamodb.rule(on, to, f'action = "{what}"') for on, to, what in dynamodb.ACTIONS
        )
        dynamodb.feed(broker, self.server, rules, f'layout = "{self._layout}"')

    def spoil(self) -> set[tuple[str, str, str]]:
        """Change it, and return what differs then."""
        server, prefix = self.server, self.server.prefix
        rows = server.table("msg")
        items = {item["payload"]: item for item in rows if item["topic"] == "load/0"}
        ids = [items[payload]["msgid"] for payload in ("0", "3", "6", "9")]
        now_ms = max(item["arrived"] for item in items.values()) * 1000 + 999
        stranger = decimal_id(message_number(now_ms, OURS, 1 << 40))
        with closing(server.client()) as store:
            for name in ids[:2]:
                store.delete_item(TableName=prefix + "msg", Key={"msgid": {"S": name}})
            for name in (ids[0], ids[2]):
                unlist(store, prefix, self._layout, "load/0", name)
            store.update_item(
                TableName=prefix + "msg",
                Key={"msgid": {"S": ids[3]}},
                UpdateExpression="SET payload = :p",
                ExpressionAttributeValues={":p": {"S": "other"}},
            )
            store.delete_item(TableName=prefix + "retain", Key={"topic": {"S": "kept/2"}})
            subscription = {"clientid": {"S": "device"}, "topic": {"S": "queue/1"}}
            store.delete_item(TableName=prefix + "sub", Key=subscription)
        arrived = {"N": str(now_ms // 1000)}
        server.put("msg", {"msgid": {"S": stranger}, "topic": {"S": "load/0"}, "arrived": arrived})
        ghost = {"clientid": {"S": "ghost"}}
        server.put("sub", {**ghost, "topic": {"S": "a/#"}, "qos": {"N": "1"}})
        online = {"connect_state": {"N": "1"}, "online_at": {"N": "1700000000"}}
        server.put("client", {**ghost, "node": {"S": NODE}, **online})
        return GHOSTS | {
            ("message", "missing", ids[0]),
            ("message", "in the list of its topic only", ids[1]),
            ("message", "not in the list of its topic", ids[2]),
            ("message", "changed", ids[3]),
            ("message", "foreign", stranger),
            ("retained", "missing", "kept/2"),
            ("subscription", "missing", "device queue/1"),
        }

    def close(self) -> None:
        """End it."""
        self.server.kill()


class SpoiltCassandra:
    """A Cassandra, and what somebody does to it.

    Of the retained messages, which are among the messages there, no rule on messages wants any.
    """

    rate = 40
    messages = 14
    not_ours = 2

    def __init__(self, directory: Path) -> None:
        self.server: Final = cassandra_server.shared().fresh()

    def feed(self, broker: BrokerProcess) -> None:
        """Configure a broker that is not started yet."""
        actions = [each for each in cassandra.ACTIONS if each[2] != "on_message_publish"]
        actions += [
            ("message.publish", f"{to}/#", "on_message_publish") for to in ("load", "queue")
        ]
        rules = "".join(cassandra.rule(on, to, f'action = "{what}"') for on, to, what in actions)
        cassandra.feed(broker, self.server, rules)

    def spoil(self) -> set[tuple[str, str, str]]:
        """Change it, and return what differs then."""
        rows = {(row["topic"], row["payload"]): row["msgid"] for row in self.server.table("msg")}
        ids = [rows[("load/0", payload)] for payload in (b"0", b"3")]
        old, new = (rows[("kept/1", payload)] for payload in (b"old", b"\xff\xfe"))
        (arrived,) = self.server.execute("SELECT toUnixTimestamp(max(arrived)) AS ms FROM {k}.msg")
        now_ms = arrived["ms"]
        stranger, between = (message_id(now_ms, OURS, offset) for offset in (1 << 40, 3))
        with self.server.session() as session:
            session.set_keyspace(self.server.keyspace)
            for topic, name in (("load/0", ids[0]), ("kept/1", old)):
                session.execute("DELETE FROM msg WHERE topic = %s AND msgid = %s", (topic, name))
            for topic, name in (("load/0", ids[1]), ("kept/1", new)):
                session.execute(
                    "UPDATE msg SET payload = %s WHERE topic = %s AND msgid = %s",
                    (b"other", topic, name),
                )
            strangers = (message_id(now_ms, OURS ^ 1, 5), "z of an application")
            for name in (stranger, between, *strangers):
                text = "INSERT INTO msg (topic, msgid, payload) VALUES ('load/9', %s, 0x00)"
                session.execute(text, (name,))
            for text in (
                "DELETE FROM retain WHERE topic = 'kept/2'",
                "DELETE FROM sub WHERE clientid = 'device' AND topic = 'queue/1'",
                "INSERT INTO sub (clientid, topic, qos) VALUES ('ghost', 'a/#', 1)",
                "UPDATE sub SET qos = 0 WHERE clientid = 'shore' AND topic = 'memory/+'",
                "UPDATE client SET state = 0 WHERE clientid = 'shore'",
                "INSERT INTO client (clientid, node, state, connected) "
                f"VALUES ('ghost', '{NODE}', 1, 1700000000000)",
            ):
                session.execute(text)
        return GHOSTS | {
            ("message", "missing", ids[0]),
            ("message", "missing", old),
            ("message", "changed", ids[1]),
            ("message", "changed", new),
            ("message", "foreign", stranger),
            ("message", "foreign", between),
            ("retained", "changed", "kept/1"),
            ("retained", "missing", "kept/2"),
            ("subscription", "missing", "device queue/1"),
            ("subscription", "changed", "shore memory/+"),
            ("client", "missing", "shore"),
        }

    def close(self) -> None:
        """Leave the server to other tests."""


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


REDIS, VALKEY = (
    pytest.param(
        functools.partial(SpoiltRedis, *program.values),
        id=program.id,
        marks=[needs_redis, *program.marks],
    )
    for program in PROGRAMS
)
CASSANDRA: Final = pytest.param(SpoiltCassandra, id="cassandra", marks=needs_cassandra)
STORES: Final = (
    REDIS,
    VALKEY,
    *(
        pytest.param(
            functools.partial(SpoiltDynamodb, layout), id=f"dynamodb-{layout}", marks=needs_dynamodb
        )
        for layout in ("v1", "v2")
    ),
    CASSANDRA,
)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A running store."""
    running: Spoilt = request.param(tmp_path)
    yield running
    running.close()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running Redis."""
    running = RedisServer(tmp_path / "redis").start()
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
    for payload in (b"old", b"\xff\xfe"):
        shore.publish("kept/1", payload, qos=1, retain=True)
    shore.publish("kept/2", b"two", qos=0, retain=True)
    device.take(1)
    device.disconnect()
    return shore


def loaded(prepare: Callable[..., BrokerProcess], store: Spoilt) -> tuple[BrokerProcess, RawClient]:
    """Return a broker whose store has everything, and a client that stays."""
    broker = prepare()
    store.feed(broker)
    broker.start()
    shore = populate(broker)
    settle(broker)
    return broker, shore


def test_every_change_of_a_store_is_named_and_a_backfill_mends_what_it_can(
    prepare: Callable[..., BrokerProcess], store: Spoilt
) -> None:
    broker, shore = loaded(prepare, store)
    code, found = verify(broker)
    assert (code, found["differences"]) == (0, []), found
    messages = [row["store"]["count"] for row in found["minutes"] if row["kind"] == "message"]
    assert sum(messages) == store.messages
    assert {row["kind"]: row["store"]["count"] for row in found["sets"]} == {
        "retained": 2, "subscription": 3, "client": 1,
    }  # fmt: skip
    expected = store.spoil()
    code, found = verify(broker)
    assert code == 1 and not found["equal"]
    assert named(found) == expected
    assert found["not_ours"] == store.not_ours
    code, out, err = command(broker, "backfill", "cache")
    assert (code, err) == (0, ""), err
    assert out == "cache: begun; `holdfast backend status` says how far it is\n"
    until(lambda: (status(broker)["backfill"] or {}).get("left") == [], broker)
    settle(broker)
    _, found = verify(broker)
    assert named(found) == GHOSTS | {row for row in expected if row[0] == "message"}
    shore.drop()


@pytest.mark.parametrize("store", [REDIS], indirect=True)
def test_a_difference_has_a_place_and_is_printed_up_to_the_limit(
    prepare: Callable[..., BrokerProcess], store: SpoiltRedis
) -> None:
    broker, shore = loaded(prepare, store)
    store.spoil()
    _, found = verify(broker)
    places = {each["what"]: each["place"] for each in found["differences"]}
    assert places["doubled"] == "mqtt:msg:load/2"
    assert places["missing"] is None
    code, out, err = command(broker, "verify", "cache", "--limit", "2")
    assert (code, err) == (1, "")
    assert "and 13 more: --limit 15 names them" in out, out
    assert out.splitlines()[-1].startswith("cache: 15 differences; messages since ")
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


@pytest.mark.parametrize("store", [REDIS, VALKEY, CASSANDRA], indirect=True)
def test_a_store_is_equal_while_clients_come_and_go_and_publish(
    prepare: Callable[..., BrokerProcess], store: Spoilt
) -> None:
    broker = prepare()
    store.feed(broker)
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("queue/1", qos=1)
    publishers = [
        Publisher(broker.port, f"p{number}", qos=1, version=5, rate=store.rate // 2, is_paced=True)
        for number in range(2)
    ]
    for publisher in publishers:
        publisher.start()
    until(lambda: status(broker)["rows"] > 2 * store.rate, broker)
    for _ in range(3):
        other = RawClient(broker.port, "other")
        other.connect()
        other.subscribe("x/y", qos=1)
        other.publish("queue/1", b"for one", qos=1)
        other.publish("kept/1", b"retained", qos=1, retain=True)
        device.take(1)
        code, found = verify(broker)
        assert (code, found["differences"]) == (0, []), found
        other.drop()
    assert sum(row["store"]["count"] for row in found["minutes"]) > 2 * store.rate
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
    assert (code, out) == (2, "") and "no broker runs on data directory" in err
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
