"""A real broker and a real Cassandra: every row arrives, whoever is killed meanwhile."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from broker.backends.message_ids import message_id
from tests.broker.backends.cassandra_server import CassandraServer, needs_cassandra, shared
from tests.broker.process.test_server_backends import (
    NODE,
    command,
    events,
    kill_process_of,
    status,
    until,
)
from tests.durability.load import Publisher
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_cassandra]  # starts processes

PATIENCE_S: Final = 60.0
ACTIONS: Final = (
    ("client.connected", None, "on_client_connected"),
    ("client.disconnected", None, "on_client_disconnected"),
    ("session.subscribed", "#", "on_subscribed"),
    ("session.unsubscribed", "#", "on_unsubscribed"),
    ("message.publish", "#", "on_message_publish"),
    ("message.publish", "#", "on_message_retain"),
    ("message.publish", "#", "on_retain_delete"),
    ("message.acked", "#", "on_message_acked"),
    ("session.unsubscribed", "#", "on_acked_delete"),
)
LAST_TOPIC: Final = "load/last"


@pytest.fixture
def server() -> CassandraServer:
    """The running one, with a keyspace of the test's own."""
    return shared().fresh()


def rule(on: str, topic: str | None, what: str) -> str:
    """Return a rule."""
    filter_line = f'topic = "{topic}"\n' if topic else ""
    return f'[[rules]]\non = "{on}"\nbackend = "cache"\n{filter_line}{what}\n'


def all_rules() -> str:
    """Return a rule for every action."""
    return "".join(rule(on, to, f'action = "{what}"') for on, to, what in ACTIONS)


def feed(broker: BrokerProcess, server: CassandraServer, rules: str) -> None:
    """Configure a broker that is not started yet, and make the tables."""
    path = broker.directory / "holdfast.toml"
    path.write_text(
        f'[backends.cache]\ntype = "cassandra"\nservers = "127.0.0.1:{server.port}"\n'
        f'keyspace = "{server.keyspace}"\nnode = "{NODE}"\ntimeout = "3s"\nretry_max = "1s"\n'
        f"{rules}"
    )
    broker.arguments = ("--config", str(path))
    code, out, err = command(broker, "create")
    assert (code, err) == (0, "") and "holdfast_cursor" in out, (out, err)
    assert command(broker, "create")[:2] == (0, "cache: nothing was missing\n")


def test_what_happens_is_in_cassandra_as_applications_expect_it(
    prepare: Callable[..., BrokerProcess], server: CassandraServer
) -> None:
    broker = prepare()
    feed(broker, server, all_rules())
    code, out, _ = command(broker, "check")
    assert code == 0 and "Cassandra 5.0.4" in out and "without a bound" in out
    broker.start()
    device, shore = RawClient(broker.port, "device"), RawClient(broker.port, "shore")
    device.durable()
    device.subscribe("queue/1", "pubsub/+", qos=1)
    shore.connect()
    for topic in ("queue/1", "pubsub/1", "other"):
        shore.publish(topic, topic.encode(), qos=1)
    shore.publish("kept", b"retained", qos=1, retain=True)
    shore.publish("gone", b"retained", qos=1, retain=True)
    shore.publish("gone", b"", qos=1, retain=True)
    device.take(2)
    device.unsubscribe("queue/1")
    device.disconnect()

    def clients() -> dict[str, int]:
        return {row["clientid"]: row["state"] for row in server.table("client")}

    until(lambda: clients() == {"device": 0, "shore": 1}, broker)
    names = {row["topic"]: row for row in server.table("msg") if row["payload"]}
    assert sorted(names) == ["gone", "kept", "other", "pubsub/1", "queue/1"]
    other = names["other"]
    assert (other["sender"], other["qos"], other["retain"]) == ("shore", 1, 0)
    assert other["payload"] == b"other"
    assert server.table("retain") == [{"topic": "kept", "msgid": names["kept"]["msgid"]}]
    assert server.table("acked") == [
        {"clientid": "device", "topic": "pubsub/1", "msgid": names["pubsub/1"]["msgid"]}
    ]
    assert server.table("sub") == [{"clientid": "device", "topic": "pubsub/+", "qos": 1}]
    shore.drop()


class Mirror:
    """What must be in the store in the end, by what clients were told."""

    def __init__(self, publishers: list[Publisher]) -> None:
        self._publishers: Final = publishers

    def is_exact(self, server: CassandraServer) -> bool:
        """Check every message, the position of each subscriber, and who is there."""
        wanted = {
            f"{topic}:{number}"
            for publisher in self._publishers
            for topic, number in publisher.acknowledged
        }
        rows = server.table("msg")
        last = f"{LAST_TOPIC}:0"
        wanted.add(last)
        found = Counter(f"{row['topic']}:{row['payload'].decode()}" for row in rows)
        sent = Counter(
            {
                f"{topic}:{number}": count if publisher.qos == 1 else 1
                for publisher in self._publishers
                for (topic, number), count in publisher.sent.items()
            }
        )
        sent[last] = 1
        assert found <= sent, f"with too many ids: {found - sent}"
        if found.keys() != wanted:
            return False
        newest: dict[str, str] = {}
        for row in rows:
            newest[row["topic"]] = max(row["msgid"], newest.get(row["topic"], ""))
        positions: list[dict[str, Any]] = server.table("acked")
        return {row["topic"]: row["msgid"] for row in positions} == newest


@pytest.mark.parametrize("qos", [1, 2])
def test_the_mirror_is_exact_whoever_is_killed_or_hangs(
    prepare: Callable[..., BrokerProcess], server: CassandraServer, qos: int
) -> None:
    """A killed Cassandra loses what it had not yet written to its commit log."""
    broker = prepare()
    feed(broker, server, all_rules())
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("load/#", qos=1)
    device.disconnect()
    publishers: list[Publisher] = []

    def stored() -> int:
        return len(server.table("msg"))

    for what in ("kill server", "hang", "kill process", "kill broker", "kill server"):
        seen = stored()
        for _ in range(2):
            name = f"p{len(publishers)}"
            publishers.append(Publisher(broker.port, name, qos=qos, version=5, rate=20, count=80))
            publishers[-1].start()
        until(lambda seen=seen: stored() > seen + 50, broker)  # type: ignore[misc]
        if what == "kill server":
            server.kill()
            server.start()
        elif what == "hang":
            server.freeze()
            until(lambda: status(broker)["state"] == "disconnected", broker)
            server.thaw()
        elif what == "kill process":
            kill_process_of(broker)
        else:
            broker.crash()
    for publisher in publishers:
        publisher.finish()
    for publisher in publishers:
        publisher.join(PATIENCE_S)
        assert publisher.violations == []
        assert not publisher.is_alive()
    device = RawClient(broker.port, "device")
    device.resume()
    device.publish(LAST_TOPIC, b"0", qos=1)  # behind all that was sent, and sent again
    while device.take(1)[0].topic != LAST_TOPIC:
        pass
    device.subscribe("later/+", qos=2)
    until(lambda: Mirror(publishers).is_exact(server), broker)

    def online() -> dict[str, int]:
        return {row["clientid"]: row["state"] for row in server.table("client")}

    until(lambda: online() == {"device": 1, **{each.name: 0 for each in publishers}}, broker)
    subscriptions = {(row["clientid"], row["topic"]): row["qos"] for row in server.table("sub")}
    assert subscriptions == {("device", "later/+"): 2, ("device", "load/#"): 1}
    told = status(broker)
    assert (told["gaps"], told["dead_letters"]) == (0, 0)
    device.drop()


def test_a_row_that_cassandra_refuses_is_a_dead_letter_and_the_rest_flows(
    prepare: Callable[..., BrokerProcess], server: CassandraServer
) -> None:
    broker = prepare()
    stored = rule("message.publish", "load/#", 'action = "on_message_publish"')
    cql = "INSERT INTO own (id, n) VALUES (${topic}, ${payload})"
    feed(broker, server, stored + rule("message.publish", "load/#", f'cql = "{cql}"'))
    server.execute("CREATE TABLE {k}.own (id text PRIMARY KEY, n int)")
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect()
    for payload in (b"1", b"one", b"2"):
        client.publish("load/1", payload, qos=1)
    until(lambda: status(broker)["dead_letters"] == 1, broker)
    until(lambda: len(server.table("msg")) == 3, broker)
    assert server.table("own") == [{"id": "load/1", "n": 2}]
    assert "type int, not 'one'" in str(events(broker)["backend_dead_letter"]["message"])
    client.drop()


FETCHING: Final = (
    ("message.publish", "#", "on_message_publish"),
    ("session.subscribed", "#", "on_message_fetch"),
    ("message.acked", "#", "on_message_acked"),
)


def test_everybody_gets_what_applications_have_put_there_behind_its_position(
    prepare: Callable[..., BrokerProcess], server: CassandraServer
) -> None:
    broker = prepare()
    feed(broker, server, "".join(rule(on, to, f'action = "{what}"') for on, to, what in FETCHING))
    broker.start()
    ids = [message_id(1_600_000_000_000 + number, 7, 0) for number in range(3)]

    def insert(number: int) -> None:
        server.execute(
            "INSERT INTO {k}.msg (topic, msgid, sender, qos, payload) VALUES ('t', %s, 'app', 1, "
            f"textAsBlob('{number}'))",
            ids[number],
        )

    def positions() -> dict[str, str]:
        return {row["clientid"]: row["msgid"] for row in server.table("acked")}

    insert(0)
    insert(1)
    for name in ("first", "second"):
        client = RawClient(broker.port, name)
        client.connect()
        client.subscribe("t", qos=1)
        assert [each.payload for each in client.take(2)] == [b"0", b"1"]
        until(lambda name=name: positions().get(name) == ids[1], broker)  # type: ignore[misc]
        client.disconnect()
    insert(2)
    server.freeze()
    client = RawClient(broker.port, "first")
    client.connect()
    client.subscribe("t", qos=1)
    until(lambda: status(broker)["state"] == "disconnected", broker)
    broker.crash()
    server.thaw()
    client = RawClient(broker.port, "first")
    client.connect()
    client.subscribe("t", qos=1)
    assert [each.payload for each in client.take(1)] == [b"2"]
    client.publish("t", b"live", qos=1)
    assert [each.payload for each in client.take(1)] == [b"live"]
    client.drop()
