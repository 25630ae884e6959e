"""A real broker and a real DynamoDB: rows arrive, and what is refused is told."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker.backends.dynamodb_server import REGION, DynamodbServer, needs_dynamodb
from tests.broker.process.test_server_backends import (
    NODE,
    command,
    events,
    status,
    until,
)
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_dynamodb]  # starts processes

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


def feed(broker: BrokerProcess, server: DynamodbServer, rules: str, options: str = "") -> None:
    """Configure a broker that is not started yet, and make the tables."""
    path = broker.directory / "holdfast.toml"
    path.write_text(
        f'[backends.cache]\ntype = "dynamodb"\nendpoint = "{server.endpoint}"\n'
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
