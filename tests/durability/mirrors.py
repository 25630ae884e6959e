"""Real stores as mirrors of a broker: configured, killed, and read whole by clients of their own.

What is read is brought into one form, `Found`. Read next: `mirror_books`, which compares it.
"""

import base64
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tests.broker.backends.cassandra_server import CassandraServer, shared
from tests.broker.backends.dynamodb_server import DynamodbServer
from tests.broker.backends.redis_server import RedisServer
from tests.broker.process import test_server_backends as redis_feed
from tests.broker.process import test_server_cassandra as cassandra_feed
from tests.broker.process import test_server_dynamodb as dynamodb_feed
from tests.durability.mirror_books import Found
from tests.durability.process import BrokerProcess
from tests.real_servers import VALKEY

READ_AT_ONCE: Final = 1000  # keys of Redis
POSITIONED: Final = "load/"
CONSUMED: Final = "load/q"
# What is the same for every store. A message of a queue goes with its acknowledgement.
RULES: Final = (
    ("client.connected", None, "on_client_connected"),
    ("client.disconnected", None, "on_client_disconnected"),
    ("session.subscribed", "#", "on_subscribed"),
    ("session.unsubscribed", "#", "on_unsubscribed"),
    ("message.publish", "#", "on_message_publish"),
    ("message.publish", "#", "on_message_retain"),
    ("message.publish", "#", "on_retain_delete"),
)
QUEUES: Final = ("load/q1/#", "load/q2/#")
OTHERS: Final = ("load/p1/#", "load/p2/#", "load/+")


class Server(Protocol):
    """What all servers of stores can do."""

    def start(self) -> Any: ...
    def kill(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


class Mirror:
    """One store: its server, how a broker is told of it, and what it has."""

    def __init__(
        self,
        server: Server,
        feed: Callable[[BrokerProcess], object],
        read: Callable[[], Found],
        *,
        consumed: str,
        rate: int,
    ) -> None:
        self.server: Final = server
        self.feed: Final = feed  # configures a broker that is not started yet
        self.read: Final = read
        self.consumed: Final = consumed
        self.rate: Final = rate  # messages a second of each publisher that it can follow here


def rules(*acknowledged: tuple[str, Sequence[str]]) -> str:
    """Return the rules, with an action for each filter of acknowledged messages."""
    every = [*RULES]
    for action, filters in acknowledged:
        every += [("message.acked", each, action) for each in filters]
    return "".join(cassandra_feed.rule(on, to, f'action = "{action}"') for on, to, action in every)


@contextlib.contextmanager
def redis(directory: Path, program: Path | None = None) -> Iterator[Mirror]:
    """Redis, or Valkey, as most people have it: SIGKILL takes what it wrote last."""
    server = RedisServer(directory, program)
    server.sync = "everysec"
    text = rules(("on_message_acked_for_queue", QUEUES), ("on_message_acked_for_pubsub", OTHERS))
    with contextlib.closing(_Killed(server.start())):
        yield Mirror(
            server,
            lambda broker: redis_feed.feed(broker, server, text),
            lambda: _read_redis(server),
            consumed=CONSUMED,
            rate=60,
        )


@contextlib.contextmanager
def dynamodb(directory: Path) -> Iterator[Mirror]:
    """DynamoDB Local with its tables on disk."""
    server = DynamodbServer(directory, is_durable=True)
    text = rules(("on_message_acked_for_queue", QUEUES), ("on_message_acked", OTHERS))
    with contextlib.closing(_Killed(server.start())):
        yield Mirror(
            server,
            lambda broker: dynamodb_feed.feed(broker, server, text),
            lambda: _read_dynamodb(server),
            consumed=CONSUMED,
            rate=10,
        )


@contextlib.contextmanager
def cassandra(directory: Path) -> Iterator[Mirror]:
    """Cassandra: SIGKILL takes what it wrote last. It has no queues."""
    server = shared().fresh()
    text = rules(("on_message_acked", (*QUEUES, *OTHERS)))
    yield Mirror(
        server,
        lambda broker: cassandra_feed.feed(broker, server, text),
        lambda: _read_cassandra(server),
        consumed="",
        rate=10,
    )


STORES: Final = {
    "redis": redis,
    "valkey": functools.partial(redis, program=VALKEY),
    "dynamodb": dynamodb,
    "cassandra": cassandra,
}


class _Killed:
    """A server that is killed at the end."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def close(self) -> None:
        self._server.kill()


def _read_redis(server: RedisServer) -> Found:
    found = Found()
    assert found.listed is not None
    for key, value in _keys_of_redis(server):
        head, _, rest = key.removeprefix("mqtt:").partition(":")
        if head == "client":
            found.states[rest] = int(value[b"state"])
        elif head == "node":
            assert rest == redis_feed.NODE, f"an unknown node: {key}"
            found.here = {name.decode() for name in value}
        elif head == "sub":
            for topic_filter, qos in value.items():
                found.subscriptions[rest, topic_filter.decode()] = int(qos)
        elif head == "retain":
            found.retained[rest] = value[b"payload"]
        elif head == "acked":
            client, _, topic = rest.partition(":")
            found.positions[client, topic] = value.decode()
        elif head == "msg" and isinstance(value, dict):
            assert value[b"id"].decode() == rest
            found.messages.append((rest, value[b"topic"].decode(), value[b"payload"]))
        elif head == "msg":
            found.listed[rest] = [name.decode() for name in value]
        else:
            raise AssertionError(f"an unknown key: {key}")
    return found


def _keys_of_redis(server: RedisServer) -> Iterator[tuple[str, Any]]:
    """Yield every key that is not Holdfast's own, with its value."""
    with server.client() as client:
        keys = [key for key in client.scan_iter(count=READ_AT_ONCE) if key[:9] != b"holdfast:"]
        for start in range(0, len(keys), READ_AT_ONCE):
            some = keys[start : start + READ_AT_ONCE]
            asked = client.pipeline(transaction=False)
            for key in some:
                asked.type(key)
            kinds = asked.execute()
            readers = {
                b"hash": asked.hgetall,
                b"string": asked.get,
                b"zset": lambda key, asked=asked: asked.zrange(key, 0, -1),
            }
            for key, kind in zip(some, kinds, strict=True):
                readers[kind](key)
            yield from zip(map(bytes.decode, some), asked.execute(), strict=True)


def _read_dynamodb(server: DynamodbServer) -> Found:
    found = Found()
    assert found.listed is not None
    for item in server.table("msg"):
        # A payload that is empty, or a text, is of the type S.
        payload = item["payload"]
        data = payload.encode() if isinstance(payload, str) else payload
        found.messages.append((_number(item["msgid"]), item["topic"], data))
    for item in server.table("topic_msg_map"):
        if "MsgId" in item:
            found.listed[item["topic"]] = [_number(name) for name in item["MsgId"]]
    for item in server.table("retain"):
        found.retained[item["topic"]] = item["payload"].encode()
    for item in server.table("sub"):
        found.subscriptions[item["clientid"], item["topic"]] = item["qos"]
    for item in server.table("client"):
        found.states[item["clientid"]] = item["connect_state"]
    for item in server.table("acked"):
        found.positions[item["clientid"], item["topic"]] = _number(item["msgid"])
    found.here = None
    return found


def _number(name: str) -> str:
    """Return the decimal number that an id is in base64, with zeros, so that it sorts as text."""
    return base64.b64decode(name + "=" * (-len(name) % 4)).decode().zfill(40)


def _read_cassandra(server: CassandraServer) -> Found:
    found = Found()
    found.messages = [(row["msgid"], row["topic"], row["payload"]) for row in server.table("msg")]
    payloads = {name: payload for name, _, payload in found.messages}
    for row in server.table("retain"):
        found.retained[row["topic"]] = payloads.get(row["msgid"], b"nothing: its message is gone")
    for row in server.table("sub"):
        found.subscriptions[row["clientid"], row["topic"]] = row["qos"]
    for row in server.table("client"):
        found.states[row["clientid"]] = row["state"]
    for row in server.table("acked"):
        found.positions[row["clientid"], row["topic"]] = row["msgid"]
    found.listed = found.here = None
    return found
