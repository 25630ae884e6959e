"""A real broker and a real Cassandra: what applications put there is found, whatever fails."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from broker.backends.message_ids import message_id
from tests.broker.backends.cassandra_server import CassandraServer, needs_cassandra, shared
from tests.broker.process.test_server_backends import events, status, until
from tests.broker.process.test_server_cassandra import feed, rule
from tests.broker.process.walk_through import block
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_cassandra]  # starts processes

ACTIONS: Final = (
    ("client.connected", None, "on_subscription_lookup"),
    ("message.publish", "topic/#", "on_message_publish"),
    ("session.subscribed", "topic/#", "on_message_fetch"),
    ("message.acked", "topic/#", "on_message_acked"),
    ("session.subscribed", "state/#", "on_retain_lookup"),
    ("message.publish", "state/#", "on_message_retain"),
    ("message.publish", "state/#", "on_retain_delete"),
)
# As an operator of the other broker has written it, with tables of his own.
OWN: Final = (
    ("client.connected", None, "insert into conn(clientid) values(${clientid})"),
    ("session.subscribed", "#",
     "insert into taken(clientid, topic, qos) values(${clientid}, ${topic}, ${qos})"),
    ("session.unsubscribed", "#",
     "delete from acked where clientid = ${clientid} and topic = ${topic}"),
    ("message.delivered", "#",
     "insert into delivered(msgid, topic, clientid) values(${msgid}, ${topic}, ${clientid})"),
    ("message.acked", "#",
     "insert into ack(msgid, topic, clientid) values(${msgid}, ${topic}, ${clientid})"),
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[CassandraServer]:
    """The running one, with a keyspace of the test's own; it runs again afterwards."""
    running = shared().fresh()
    yield running
    if not running.is_running:
        running.start()


@pytest.fixture
def broker(prepare: Callable[..., BrokerProcess], server: CassandraServer) -> BrokerProcess:
    """A broker that is not started, with all lookups; the tables are there."""
    made = prepare()
    feed(made, server, "".join(rule(on, to, f'action = "{what}"') for on, to, what in ACTIONS))
    return made


def insert(server: CassandraServer, topic: str, name: str, payload: str, retain: int = 0) -> None:
    """Put a message into the store as an application does."""
    server.execute(
        "INSERT INTO {k}.msg (topic, msgid, sender, qos, retain, payload, arrived) VALUES "
        f"(%s, %s, 'app', 1, {retain}, textAsBlob('{payload}'), 1600000000000)",
        *(topic, name),
    )
    if retain:
        server.execute("INSERT INTO {k}.retain (topic, msgid) VALUES (%s, %s)", topic, name)


def subscribe(server: CassandraServer, client_id: str, topic: str, qos: int | None) -> None:
    """Subscribe a client as an application does."""
    server.execute(
        "INSERT INTO {k}.sub (clientid, topic, qos) VALUES (%s, %s, %s)", client_id, topic, qos
    )


def payloads(taken: Any) -> list[bytes]:
    """Return what a client got."""
    return [each.payload for each in taken]


def name_of(number: int) -> str:
    """Return an id of an application."""
    return message_id(1_600_000_000_000 + number, 7, 0)


def test_a_client_is_subscribed_at_connect_to_what_the_store_lists_for_it(
    broker: BrokerProcess, server: CassandraServer
) -> None:
    broker.start()
    subscribe(server, "c", "alarm/#", 1)
    subscribe(server, "c", "alarm#", 1)  # no topic filter
    subscribe(server, "c", "x", None)
    shore, client = RawClient(broker.port, "shore"), RawClient(broker.port, "c")
    shore.connect()
    shore.publish("alarm/1", b"fire", qos=1, retain=True)
    client.durable()
    (message,) = client.take(1)
    assert (message.payload, message.retain, message.qos) == (b"fire", True, 1)
    until(lambda: "backend_subscription_refused" in broker.log(), broker)
    assert "'alarm#': " in str(events(broker)["backend_subscription_refused"]["message"])
    assert "1 rows of a client" in str(events(broker)["backend_fetch_refused"]["message"])
    client.disconnect()
    shore.publish("alarm/2", b"flood", qos=1)
    client = RawClient(broker.port, "c")
    client.durable()
    assert payloads(client.take(1)) == [b"flood"]
    for each in (shore, client):
        each.drop()


def test_what_a_list_has_no_more_ends_at_the_next_connect_with_a_mirror(
    prepare: Callable[..., BrokerProcess], server: CassandraServer
) -> None:
    broker = prepare()
    lookup = 'action = "on_subscribe_lookup"\nsync = "mirror"'
    feed(broker, server, rule("client.connected", None, lookup))
    broker.start()
    subscribe(server, "c", "alarm/#", 1)
    subscribe(server, "c", "gone/#", 1)
    shore, client = RawClient(broker.port, "shore"), RawClient(broker.port, "c")
    shore.connect()
    client.durable()
    until(lambda: status(broker)["fetches_owed"] == 0, broker)
    client.subscribe("own/#", qos=1)  # the list never has it
    shore.publish("gone/1", b"listed", qos=1)
    assert payloads(client.take(1)) == [b"listed"]
    client.disconnect()
    server.execute("DELETE FROM {k}.sub WHERE clientid = 'c' AND topic = 'gone/#'")
    client.resume()
    until(lambda: status(broker)["fetches_owed"] == 0, broker)
    for topic in ("gone/2", "alarm/1", "own/1"):
        shore.publish(topic, topic.encode(), qos=1)
    assert payloads(client.take(2)) == [b"alarm/1", b"own/1"]
    for each in (shore, client):
        each.drop()


def test_a_retained_message_of_the_store_follows_an_older_one_of_the_broker(
    broker: BrokerProcess, server: CassandraServer
) -> None:
    broker.start()
    insert(server, "state/2", "m", "from the store", retain=1)
    server.execute("INSERT INTO {k}.retain (topic, msgid) VALUES ('state/3', 'gone')")
    shore, device = RawClient(broker.port, "shore"), RawClient(broker.port, "device")
    shore.connect()
    shore.publish("state/1", b"first", qos=1, retain=True)
    until(lambda: "state/1" in {row["topic"] for row in server.table("retain")}, broker)
    device.durable()
    device.subscribe("state/1", "state/2", "state/3", qos=1)
    found = device.take(2)
    assert sorted(payloads(found)) == [b"first", b"from the store"]
    assert all(each.retain for each in found)
    # In the same second, perhaps.
    server.execute(
        "UPDATE {k}.msg SET sender = 'app', payload = textAsBlob('second'), qos = 1, arrived = %s "
        "WHERE topic = 'state/1' AND msgid = 'n'",
        time.time_ns() // 1_000_000,
    )
    server.execute("INSERT INTO {k}.retain (topic, msgid) VALUES ('state/1', 'n')")
    device.subscribe("state/1", qos=1)
    assert payloads(device.take(2)) == [b"first", b"second"]
    shore.publish("state/4", b"behind it", qos=1, retain=True)
    until(lambda: "state/4" in {row["topic"] for row in server.table("retain")}, broker)
    names = {row["topic"]: row["msgid"] for row in server.table("retain")}
    assert (names["state/1"], names["state/2"]) == ("n", "m"), "it was written back"
    for each in (shore, device):
        each.drop()


def test_what_is_owed_survives_a_store_that_is_away_and_a_crash_of_the_broker(
    broker: BrokerProcess, server: CassandraServer
) -> None:
    insert(server, "topic/1", name_of(1), "inserted")
    insert(server, "state/1", "m", "open", retain=1)
    server.stop()
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("topic/1", "state/1", qos=1)  # SUBACK does not wait
    broker.kill()
    broker.start()
    server.start()
    device = RawClient(broker.port, "device")
    device.durable()  # and does not subscribe again
    found = {each.payload: each.retain for each in device.take(2, timeout=60.0)}
    assert found == {b"inserted": False, b"open": True}
    until(lambda: [row["msgid"] for row in server.table("acked")] == [name_of(1)], broker)
    until(lambda: status(broker)["fetches_owed"] == 0, broker)
    device.drop()


def test_the_walk_through_of_the_documents_works_as_it_is(
    prepare: Callable[..., BrokerProcess], server: CassandraServer
) -> None:
    broker = prepare()
    feed(broker, server, block("cassandra, rules").replace('"wide"', '"cache"'))
    use, *statements, _ = block("cassandra, rows").split(";")
    assert use == "USE mqtt"
    for each in statements:
        server.execute(each.replace("INSERT INTO ", "INSERT INTO {k}."))
    broker.start()
    shore, lamp = RawClient(broker.port, "shore"), RawClient(broker.port, "lamp-1")
    shore.connect()
    shore.publish("alarm/1", b"fire", qos=1, retain=True)
    lamp.connect()
    lamp.subscribe("state/lamp", qos=1)
    assert payloads(lamp.take(1)) == [b"on"]
    other, reader = RawClient(broker.port, "lamp-2"), RawClient(broker.port, "reader-1")
    other.connect()
    assert payloads(other.take(1)) == [b"fire"]
    reader.connect()
    reader.subscribe("pubsub/news", qos=1)
    assert payloads(reader.take(1)) == [b"hello"]
    position = {"clientid": "reader-1", "topic": "pubsub/news", "msgid": "0002"}
    until(lambda: server.table("acked") == [position], broker)
    for each in (shore, lamp, other, reader):
        each.drop()


def test_own_statements_run_on_every_hook_as_another_broker_had_them(
    prepare: Callable[..., BrokerProcess], server: CassandraServer
) -> None:
    broker = prepare()
    kept = rule("message.acked", "#", 'action = "on_message_acked"')
    feed(broker, server, kept + "".join(rule(on, to, f'cql = "{cql}"') for on, to, cql in OWN))
    for table, columns in (
        ("conn", "clientid text PRIMARY KEY"),
        ("taken", "clientid text, topic text, qos int, PRIMARY KEY (clientid, topic)"),
        ("delivered", "msgid text, topic text, clientid text, PRIMARY KEY (msgid, clientid)"),
        ("ack", "msgid text, topic text, clientid text, PRIMARY KEY (msgid, clientid)"),
    ):
        server.execute(f"CREATE TABLE {{k}}.{table} ({columns})")
    broker.start()
    device, shore = RawClient(broker.port, "device"), RawClient(broker.port, "shore")
    device.durable()
    device.subscribe("a", "b", qos=1)
    shore.connect()
    shore.publish("a", b"1", qos=1)
    shore.publish("b", b"2", qos=2)
    assert sorted(payloads(device.take(2))) == [b"1", b"2"]
    until(lambda: len(server.table("ack")) == 2, broker)
    until(lambda: len(server.table("acked")) == 2, broker)
    assert server.table("conn") == [{"clientid": "device"}, {"clientid": "shore"}]
    assert server.table("taken") == [
        {"clientid": "device", "topic": topic, "qos": 1} for topic in ("a", "b")
    ]
    positions = {row["topic"]: row["msgid"] for row in server.table("acked")}
    told = [
        {"clientid": "device", "topic": topic, "msgid": positions[topic]} for topic in ("a", "b")
    ]
    until(lambda: server.table("delivered") == told, broker)
    assert server.table("ack") == told
    device.unsubscribe("a")
    until(lambda: server.table("acked") == told[1:], broker)
    assert status(broker)["dead_letters"] == 0
    for each in (device, shore):
        each.drop()
