"""A real broker and a real cluster: every message arrives, whichever server is killed meanwhile."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.backends.redis_cluster import ClusterServers
from tests.broker.backends.redis_server import PROGRAMS, needs_redis, redis
from tests.broker.process.test_server_backends import (
    PATIENCE_S,
    all_rules,
    command,
    feed,
    status,
    until,
)
from tests.broker.process.test_server_inbox import insert, payloads, rules
from tests.broker.process.test_server_verify import named, populate, settle, verify
from tests.durability.load import Publisher, Subscriber
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

CLUSTER = 'mode = "cluster"\n'
STORED = (
    '[[rules]]\non = "message.publish"\ntopic = "load/#"\nbackend = "cache"\n'
    'action = "on_message_publish"\n'
    '[[rules]]\non = "message.acked"\ntopic = "load/#"\nbackend = "cache"\n'
    'action = "on_message_acked_for_pubsub"\n'
)


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Any:
    """The program of a server."""
    return request.param


@pytest.fixture
def cluster(tmp_path: Path, program: Any) -> Iterator[ClusterServers]:
    """Three masters."""
    running = ClusterServers(tmp_path / "cluster", program)
    try:
        yield running.start()
    finally:
        running.kill()


class Positions:
    """What a reader sees of the positions of one client, as long as it looks."""

    def __init__(self, cluster: ClusterServers, *topics: str) -> None:
        self._cluster = cluster
        self.last = dict.fromkeys(topics, b"")

    def look(self) -> None:
        """Look at them: none may be before what it was."""
        with contextlib.suppress(
            redis.exceptions.RedisError, redis.exceptions.RedisClusterException
        ):
            with contextlib.closing(self._cluster.client()) as client:
                for topic, last in self.last.items():
                    now = client.get(f"mqtt:acked:reader:{topic}") or b""
                    assert now >= last, f"{topic} went back from {last!r} to {now!r}"
                    self.last[topic] = now


def mirrored(cluster: ClusterServers) -> tuple[list[tuple[str, int]], dict[str, bytes]]:
    """Return topic and number of every message of the store, and the newest id of each topic."""
    found = cluster.everything()
    newest: dict[str, bytes] = {}
    messages: list[tuple[str, int]] = []
    for key, value in found.items():
        if isinstance(value, list):
            topic = key.removeprefix("mqtt:msg:")
            newest[topic] = max(value)
            for name in value:
                fields = found[f"mqtt:msg:{name.decode()}"]
                assert fields[b"topic"].decode() == topic
                messages.append((topic, int(fields[b"payload"])))
    hashes = sum(1 for value in found.values() if isinstance(value, dict))
    assert hashes == len(messages), "a message is in no list"
    return sorted(messages), newest


def test_every_message_is_mirrored_whichever_server_is_killed(
    prepare: Callable[..., BrokerProcess], cluster: ClusterServers
) -> None:
    broker = prepare()
    feed(broker, cluster, STORED, CLUSTER)
    broker.start()
    reader = Subscriber(broker.port, "reader", qos=1, version=5, seed=1)
    reader.start()
    assert reader.ready.wait(PATIENCE_S)
    publishers = [
        Publisher(broker.port, f"p{number}", qos=2, version=5, rate=500) for number in range(2)
    ]
    for publisher in publishers:
        publisher.start()
    # Nobody has subscribed to topics with wildcards by name: positions are of topics.
    positions = Positions(cluster, *(f"load/p{n}/{letter}" for n in range(2) for letter in "ab"))

    def moved(count: int = 200) -> None:
        seen = status(broker)["rows"]

        def has_moved() -> bool:
            positions.look()
            return int(status(broker)["rows"]) > seen + count

        until(has_moved, broker)

    for number in range(3):
        moved()
        cluster.servers[number].kill()
        if number == 1:
            broker.crash()
        until(lambda: status(broker)["state"] == "disconnected", broker)
        cluster.start_one(number)
    moved()
    cluster.servers[0].freeze()
    until(lambda: status(broker)["state"] == "disconnected", broker)
    cluster.servers[0].thaw()
    moved()
    broker.crash()
    for publisher in publishers:
        publisher.finish()
    for publisher in publishers:
        publisher.join(PATIENCE_S)
        assert publisher.violations == []
        assert not publisher.is_alive()
    accepted = sorted(each for publisher in publishers for each in publisher.acknowledged)
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    messages, newest = mirrored(cluster)
    assert messages == accepted

    def is_read() -> bool:
        positions.look()
        return positions.last == newest

    until(is_read, broker)
    reader.finish()
    reader.join(PATIENCE_S)
    assert reader.violations == []
    told = status(broker)
    assert (told["gaps"], told["dead_letters"]) == (0, 0)


def test_rows_that_a_replica_lacked_are_sent_again_when_it_is_a_master(
    prepare: Callable[..., BrokerProcess], tmp_path: Path, program: Any
) -> None:
    """Also where it has not the cursor: each master has a mark of its own."""
    cluster = ClusterServers(tmp_path / "cluster", program, replicas=1)
    try:
        cluster.start()
        broker = prepare()
        feed(broker, cluster, STORED, CLUSTER)
        broker.start()
        shore = RawClient(broker.port, "shore")
        shore.connect()
        with_cursor = cluster.owner("holdfast:cursor:cache")
        number = (with_cursor + 1) % 3
        publish(shore, 0, 100)
        settle(broker)
        cluster.wait_for_replicas()
        cluster.servers[3 + number].kill()
        publish(shore, 100, 200)
        settle(broker)
        cluster.servers[number].kill()
        cluster.start_one(3 + number)
        cluster.wait()
        publish(shore, 200, 210)
        settle(broker)
        assert len(mirrored(cluster)[0]) == 210
        assert "backend_rewound" in broker.log()
        assert cluster.role(3 + number) == "master"
        assert status(broker)["gaps"] == 0
        shore.drop()
    finally:
        cluster.kill()


def publish(client: RawClient, first: int, end: int) -> None:
    """Publish numbered messages to topics that are in all slots."""
    for number in range(first, end):
        client.publish(f"load/{number}", b"%d" % number, qos=1)


def test_a_cluster_that_is_down_delays_nobody_and_is_named(
    prepare: Callable[..., BrokerProcess], cluster: ClusterServers
) -> None:
    broker = prepare()
    feed(broker, cluster, STORED, CLUSTER)
    cluster.kill()
    code, out, _ = command(broker, "check")
    assert code == 1 and "unusable" in out
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    publish(shore, 0, 20)
    until(lambda: status(broker)["state"] == "disconnected", broker)
    assert f":{cluster.servers[0].port}" in status(broker)["why"]
    for number in range(3):
        cluster.start_one(number)
    settle(broker)
    assert len(mirrored(cluster)[0]) == 20
    code, out, err = command(broker, "check")
    assert (code, err) == (0, "") and "a cluster of 3 masters" in out, out
    shore.drop()


def test_what_is_in_a_cluster_is_compared_and_brought_back(
    prepare: Callable[..., BrokerProcess], cluster: ClusterServers
) -> None:
    broker = prepare()
    feed(broker, cluster, all_rules(), CLUSTER)
    broker.start()
    shore = populate(broker)
    settle(broker)
    code, found = verify(broker)
    assert (code, found["differences"]) == (0, []), found
    assert {row["kind"]: row["store"]["count"] for row in found["sets"]} == {
        "retained": 2, "subscription": 3, "client": 1,
    }  # fmt: skip
    with contextlib.closing(cluster.client()) as store:
        (name, *_) = store.zrange("mqtt:msg:load/0", 0, -1)
        store.delete(b"mqtt:msg:" + name)
        store.delete("mqtt:retain:kept/2")
        store.hset("mqtt:sub:ghost", "a/#", "1")
    code, found = verify(broker)
    assert code == 1
    assert named(found) == {
        ("message", "in the list of its topic only", name.decode()),
        ("retained", "missing", "kept/2"),
        ("subscription", "foreign", "ghost a/#"),
    }
    shore.drop()


def test_what_applications_put_into_a_cluster_arrives_once(
    prepare: Callable[..., BrokerProcess], cluster: ClusterServers
) -> None:
    broker = prepare()
    feed(broker, cluster, rules(), CLUSTER + 'stream = "mqtt_stream"\n')
    broker.start()
    ids = insert(cluster, "queue/1", 1, 2)
    insert(cluster, "pubsub/1", 3, 4)
    with contextlib.closing(cluster.client()) as store:
        fields = {"id": "1", "from": "app", "qos": 1, "topic": "state/1", "ts": 1_600_000_000}
        store.hset("mqtt:retain:state/1", mapping={**fields, "payload": "kept"})
    first, second = RawClient(broker.port, "first"), RawClient(broker.port, "second")
    first.durable()
    first.subscribe("queue/1", qos=1)
    assert payloads(first.take(2)) == [b"inserted 1", b"inserted 2"]
    until(lambda: not any(f"mqtt:msg:{each}" in cluster.everything() for each in ids), broker)
    second.durable()
    second.subscribe("queue/1", "pubsub/1", qos=1)
    assert payloads(second.take(2)) == [b"inserted 3", b"inserted 4"]
    second.subscribe("state/1", qos=1)
    assert payloads(second.take(1)) == [b"kept"]
    with contextlib.closing(cluster.client()) as store:
        change = '{"type": "subscribe", "clientid": "first", "topic": "told/1", "qos": 1}'
        store.xadd("mqtt_stream", {"change": change})

    def is_told() -> bool:
        second.publish("told/1", b"told", qos=1)
        with contextlib.suppress(TimeoutError, AssertionError):
            return bool(first.take(1, timeout=1.0))
        return False

    until(is_told, broker)
    first.drop()
    second.drop()
