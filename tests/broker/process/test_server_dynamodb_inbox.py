"""A real broker and a real DynamoDB: what applications put there arrives once, whatever fails."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.backends.message_ids import decimal_id, message_number
from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.process.test_server_backends import until
from tests.broker.process.test_server_dynamodb import feed, rule
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_dynamodb]  # starts processes

AT_S: Final = 1_600_000_000
ACTIONS: Final = (
    ("message.publish", "queue/#", "on_message_publish"),
    ("session.subscribed", "queue/#", "on_message_fetch_for_queue"),
    ("message.acked", "queue/#", "on_message_acked_for_queue"),
    ("message.publish", "topic/#", "on_message_publish"),
    ("session.subscribed", "topic/#", "on_message_fetch"),
    ("message.acked", "topic/#", "on_message_acked"),
    ("session.subscribed", "state/#", "on_retain_lookup"),
    ("message.publish", "state/#", "on_message_retain"),
    ("message.publish", "state/#", "on_retain_delete"),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DynamodbServer]:
    """A running DynamoDB Local that keeps its tables on disk."""
    running = DynamodbServer(tmp_path / "dynamodb", is_durable=True).start()
    yield running
    running.kill()


@pytest.fixture
def broker(
    prepare: Callable[..., BrokerProcess], server: DynamodbServer, request: pytest.FixtureRequest
) -> BrokerProcess:
    """A broker that is not started, with all rules."""
    made = prepare()
    rules = "".join(rule(on, topic, f'action = "{what}"') for on, topic, what in ACTIONS)
    feed(made, server, rules, f'layout = "{getattr(request, "param", "v1")}"')
    return made


def message(topic: str, name: str, payload: str) -> dict[str, Any]:
    """Return the item of a message as an application has it."""
    return {
        **{"topic": {"S": topic}, "msgid": {"S": name}, "sender": {"S": "app"}},
        **{"qos": {"N": "1"}, "payload": {"S": payload}, "arrived": {"N": str(AT_S)}},
    }


def insert(server: DynamodbServer, topic: str, *numbers: int, layout: str = "v1") -> list[str]:
    """Put messages into the tables as an application does; return their ids."""
    names = [decimal_id(message_number(AT_S * 1000 + number, 7, 0)) for number in numbers]
    for number, name in zip(numbers, names, strict=True):
        server.put("msg", message(topic, name, f"inserted {number}"))
        if layout == "v2":
            server.put("topic_msg", {"topic": {"S": topic}, "msgid": {"S": name}})
    if layout == "v1":
        with_list = {"topic": {"S": topic}, "MsgId": {"SS": names}}
        server.put("topic_msg_map", with_list)
    return names


def subscription(client_id: str, topic: str) -> dict[str, Any]:
    """Return the item of a subscription as an application has it."""
    return {"clientid": {"S": client_id}, "topic": {"S": topic}, "qos": {"N": "1"}}


def payloads(taken: Any) -> list[bytes]:
    """Return what a client got."""
    return [each.payload for each in taken]


@pytest.mark.parametrize("broker, layout", [("v1", "v1"), ("v2", "v2")], indirect=["broker"])
def test_a_queue_is_shared_and_what_is_acknowledged_goes(
    broker: BrokerProcess, server: DynamodbServer, layout: str
) -> None:
    broker.start()
    insert(server, "queue/1", 1, 2, layout=layout)
    first, second = RawClient(broker.port, "first"), RawClient(broker.port, "second")
    first.durable(receive_maximum=1)
    first.subscribe("queue/1", qos=1)
    one = first.expect_publish(acknowledge=False)
    second.durable()
    second.subscribe("queue/1", qos=1)
    (other,) = second.take(1)
    assert sorted([one.payload, other.payload]) == [b"inserted 1", b"inserted 2"]
    first.acknowledge(one)
    until(lambda: not server.table("msg"), broker)
    insert(server, "queue/1", 3, layout=layout)
    second.subscribe("queue/1", qos=1)
    assert payloads(second.take(1)) == [b"inserted 3"]
    until(lambda: not server.table("msg"), broker)
    for each in (first, second):
        each.drop()


def test_everybody_gets_what_is_after_its_position(
    broker: BrokerProcess, server: DynamodbServer
) -> None:
    broker.start()
    ids = insert(server, "topic/1", 1, 2)
    for name in ("first", "second"):
        client = RawClient(broker.port, name)
        client.connect()
        client.subscribe("topic/1", qos=1)
        assert payloads(client.take(2)) == [b"inserted 1", b"inserted 2"]
        place = {"topic": "topic/1", "clientid": name, "msgid": ids[1]}
        until(lambda place=place: place in server.table("acked"), broker)
        client.disconnect()
    insert(server, "topic/1", 1, 2, 3)
    client = RawClient(broker.port, "first")
    client.connect()
    client.subscribe("topic/1", qos=1)
    assert payloads(client.take(1)) == [b"inserted 3"]
    client.drop()


def test_what_is_owed_survives_a_store_that_is_away_and_a_crash_of_the_broker(
    broker: BrokerProcess, server: DynamodbServer
) -> None:
    insert(server, "queue/1", 1)
    server.put("retain", message("state/1", "m", "open"))
    server.kill()
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("queue/1", "state/1", qos=1)  # SUBACK does not wait
    broker.kill()
    broker.start()
    server.start()
    device = RawClient(broker.port, "device")
    device.durable()
    found = {each.payload: each.retain for each in device.take(2)}
    assert found == {b"inserted 1": False, b"open": True}
    until(lambda: not server.table("msg"), broker)
    device.drop()


def test_a_retained_message_of_the_store_follows_an_older_one_of_the_broker(
    broker: BrokerProcess, server: DynamodbServer
) -> None:
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish("state/1", b"first", qos=1, retain=True)
    until(lambda: [each["payload"] for each in server.table("retain")] == ["first"], broker)
    at_s = server.table("retain")[0]["arrived"] + 5
    newer = {**message("state/1", "m", "second"), "arrived": {"N": str(at_s)}}
    server.put("retain", newer)
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("state/1", qos=1)
    assert payloads(device.take(2)) == [b"first", b"second"]
    shore.publish("state/2", b"behind it", qos=1, retain=True)
    until(lambda: len(server.table("retain")) == 2, broker)
    assert {each["payload"] for each in server.table("retain")} == {"second", "behind it"}
    assert {each["msgid"] for each in server.table("retain")} >= {"m"}
    for each in (shore, device):
        each.drop()


def test_a_client_is_subscribed_to_its_list_whatever_fails(
    prepare: Callable[..., BrokerProcess], server: DynamodbServer
) -> None:
    broker = prepare()
    lookup = rule("client.connected", None, 'action = "on_subscribe_lookup"\nsync = "mirror"')
    feed(broker, server, lookup)
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish("a/1", b"kept", qos=1, retain=True)
    for topic in ("a/#", "b"):
        server.put("sub", subscription("c", topic))
    client = RawClient(broker.port, "c")
    client.durable()
    assert payloads(client.take(1)) == [b"kept"]
    client.drop()
    broker.kill()
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish("b", b"away", qos=1)
    server.put("sub", subscription("c", "d"))
    key = {"clientid": {"S": "c"}, "topic": {"S": "b"}}
    with contextlib.closing(server.client()) as store:
        store.delete_item(TableName=server.prefix + "sub", Key=key)
    shore.publish("d", b"listed", qos=1, retain=True)
    client = RawClient(broker.port, "c")
    client.resume()
    found: list[bytes] = []
    while set(found) - {b"kept"} != {b"away", b"listed"}:  # kept: sent again, it was in flight
        found += payloads(client.take(1))
    shore.publish("b", b"over", qos=1)
    shore.publish("a/2", b"still", qos=1)
    assert payloads(client.take(1)) == [b"still"]
