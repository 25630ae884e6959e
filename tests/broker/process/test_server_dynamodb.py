"""A real broker and a real DynamoDB: every row arrives, once, whoever is killed meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker.backends.dynamodb_server import REGION, DynamodbServer, needs_dynamodb
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

pytestmark = [pytest.mark.full, needs_dynamodb]  # starts processes

PATIENCE_S: Final = 60.0
ACTIONS: Final = (
    ("client.connected", None, "on_client_connected"),
    ("client.disconnected", None, "on_client_disconnected"),
    ("session.subscribed", "#", "on_subscribed"),
    ("session.unsubscribed", "#", "on_unsubscribed"),
    ("message.publish", "#", "on_message_publish"),
    ("message.publish", "#", "on_message_retain"),
    ("message.publish", "#", "on_retain_delete"),
    ("message.acked", "queue/#", "on_message_acked_for_queue"),
    ("message.acked", "pubsub/#", "on_message_acked"),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DynamodbServer]:
    """A running DynamoDB Local that keeps its tables on disk."""
    running = DynamodbServer(tmp_path / "dynamodb", is_durable=True).start()
    yield running
    running.kill()


def feed(
    broker: BrokerProcess,
    server: DynamodbServer,
    rules: str,
    options: str = "",
    endpoint: str | None = None,
) -> None:
    """Configure a broker that is not started yet, and make the tables; at the server's endpoint."""
    path = broker.directory / "holdfast.toml"
    path.write_text(
        f'[backends.cache]\ntype = "dynamodb"\nendpoint = "{endpoint or server.endpoint}"\n'
        f'region = "{REGION}"\naccess_key_id = "test"\nsecret_access_key = "test"\n'
        f'table_prefix = "{server.prefix}"\nnode = "{NODE}"\ntimeout = "3s"\n{options}\n{rules}'
    )
    broker.arguments = ("--config", str(path))
    code, out, err = command(broker, "create")
    assert (code, err) == (0, "") and "cache: made holdfast_cursor" in out, (out, err)
    assert command(broker, "create")[:2] == (0, "cache: nothing was missing\n")


def rule(on: str, topic: str | None, what: str) -> str:
    """Return a rule."""
    filter_line = f'topic = "{topic}"\n' if topic else ""
    return f'[[rules]]\non = "{on}"\nbackend = "cache"\n{filter_line}{what}\n'


def stored() -> str:
    """Return a rule that stores messages."""
    return rule("message.publish", "load/#", 'action = "on_message_publish"')


def test_what_happens_is_in_dynamodb_as_applications_expect_it(
    prepare: Callable[..., BrokerProcess], server: DynamodbServer
) -> None:
    broker = prepare()
    feed(broker, server, "".join(rule(on, to, f'action = "{what}"') for on, to, what in ACTIONS))
    code, out, _ = command(broker, "check")
    assert code == 0 and "DynamoDB at http://127.0.0.1" in out and "v1 keeps all ids" in out
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
        return {item["clientid"]: item["connect_state"] for item in server.table("client")}

    until(lambda: clients() == {"device": 0, "shore": 1}, broker)
    names = {item["topic"]: item for item in server.table("msg") if item["payload"]}
    assert sorted(names) == ["gone", "kept", "other", "pubsub/1"]
    other = names["other"]
    assert (other["sender"], other["qos"], other["payload"]) == ("shore", 1, "other")
    listed = {item["topic"]: item.get("MsgId") for item in server.table("topic_msg_map")}
    assert listed["other"] == [other["msgid"]]
    assert not listed.get("queue/1"), "it was acknowledged"
    assert [(item["topic"], item["payload"]) for item in server.table("retain")] == [
        ("kept", "retained")
    ]
    assert server.table("acked") == [
        {"topic": "pubsub/1", "clientid": "device", "msgid": names["pubsub/1"]["msgid"]}
    ]
    assert server.table("sub") == [{"clientid": "device", "topic": "pubsub/+", "qos": 1}]
    shore.drop()


def is_exact(server: DynamodbServer, publishers: list[Publisher]) -> bool:
    """Check that each acknowledged message was counted once."""
    wanted = {
        f"{topic}:{number}" for publisher in publishers for topic, number in publisher.acknowledged
    }
    rows = server.table("msg")
    found = {f"{item['topic']}:{item['payload']}": item["msgid"] for item in rows}
    assert len(rows) == len(found), "a message has two ids"
    if found.keys() != wanted:
        return False
    listed = [name for item in server.table("topic_msg_map") for name in item.get("MsgId", ())]
    return sorted(listed) == sorted(found.values())


def test_every_row_is_there_once_whoever_is_killed_or_hangs(
    prepare: Callable[..., BrokerProcess], server: DynamodbServer
) -> None:
    """The counter is not idempotent: a row that was lost or applied twice is seen."""
    broker = prepare()
    server.make_table("own", "id")
    server.put("own", {"id": {"S": "all"}, "n": {"N": "0"}})
    text = f"UPDATE \"{server.prefix}own\" SET n = n + 1 WHERE id = 'all' "
    count = f"statements = '''{text}'''"
    feed(broker, server, stored() + rule("message.publish", "load/#", count))
    broker.start()
    publishers = [
        Publisher(broker.port, f"p{number}", qos=2, version=5, rate=20, count=400)
        for number in range(2)
    ]
    for publisher in publishers:
        publisher.start()

    def counted() -> int:
        (item,) = server.table("own")
        assert isinstance(item["n"], int)
        return item["n"]

    for what in ("kill server", "hang", "kill process", "kill broker", "kill server"):
        seen = counted()
        until(lambda seen=seen: counted() > seen + 10, broker)  # type: ignore[misc]
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
    until(lambda: is_exact(server, publishers), broker)
    until(lambda: counted() == len(server.table("msg")), broker)
    told = status(broker)
    assert (told["gaps"], told["dead_letters"]) == (0, 0)


def test_a_row_that_dynamodb_refuses_is_a_dead_letter_and_the_rest_flows(
    prepare: Callable[..., BrokerProcess], server: DynamodbServer
) -> None:
    broker = prepare()
    feed(broker, server, stored(), 'layout = "v2"')
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect()
    for payload in (b"a", bytes(500_000), b"b"):
        client.publish("load/1", payload, qos=1)
    until(lambda: status(broker)["dead_letters"] == 1, broker)
    until(lambda: len(server.table("msg")) == 2, broker)
    assert "size" in str(events(broker)["backend_dead_letter"]["message"])
    client.drop()
