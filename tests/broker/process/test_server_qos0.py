"""A real broker and a real Redis: messages with QoS 0 reach who asks for them, once, in order."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.backends.message_ids import UNSTORED, decode_id, unstored_id
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.test_server_backends import feed, status, until
from tests.broker.process.test_server_verify import named, settle, verify
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

BOTH = (("#", "on_message_publish"), ("a/#", "on_message_store"))
ON: dict[str, str] = {
    "on_message_fetch_for_pubsub": "session.subscribed",
    "on_message_fetch_for_queue": "session.subscribed",
    "on_message_acked_for_pubsub": "message.acked",
    "on_message_acked_for_queue": "message.acked",
}


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    running = RedisServer(tmp_path / "redis", request.param).start()
    yield running
    running.kill()


def rules(*given: tuple[str, str]) -> str:
    """Return rules of a topic filter and an action each."""
    return "".join(
        f'[[rules]]\non = "{ON.get(action, "message.publish")}"\ntopic = "{topic}"\n'
        f'action = "{action}"\nbackend = "cache"\n'
        for topic, action in given
    )


def stored(server: RedisServer) -> list[tuple[bytes, bytes, bytes]]:
    """Return (topic, QoS, payload) of the messages that the store has, in the order of ids."""
    found: dict[str, Any] = server.everything()
    rows = {
        key: value
        for key, value in found.items()
        if key.startswith("mqtt:msg:") and isinstance(value, dict)
    }
    return [(rows[key][b"topic"], rows[key][b"qos"], rows[key][b"payload"]) for key in sorted(rows)]


def listed(server: RedisServer) -> int:
    """Return how many messages the lists of all topics have."""
    return sum(len(value) for value in server.everything().values() if isinstance(value, list))


def payloads(taken: Any) -> list[bytes]:
    """Return what a client got."""
    return [each.payload for each in taken]


@pytest.mark.parametrize("store_qos0", [False, True])
def test_each_message_is_one_row_and_only_those_asked_for_have_qos_0(
    prepare: Callable[..., BrokerProcess], server: RedisServer, store_qos0: bool
) -> None:
    broker = prepare()
    options = "[session]\nstore_qos0 = true\n" if store_qos0 else ""
    feed(broker, server, rules(*BOTH) + options)
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    expected = set()
    for topic in ("a/1", "b/1"):
        for qos in (0, 1, 2, 0):
            payload = b"%s %d %d" % (topic.encode(), qos, len(expected))
            shore.publish(topic, payload, qos=qos)
            if qos or topic == "a/1":
                expected.add((topic.encode(), b"%d" % qos, payload))
    settle(broker)
    until(lambda: len(stored(server)) >= len(expected), broker)
    found = stored(server)
    assert len(found) == len(expected) and set(found) == expected
    until(lambda: listed(server) == len(expected), broker)
    code, told = verify(broker)
    assert (code, told["differences"]) == (0, []), told
    broker.kill()
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish("a/1", b"last", qos=0)
    until(lambda: (b"a/1", b"0", b"last") in stored(server), broker)
    until(lambda: listed(server) == len(expected) + 1, broker)
    assert len(stored(server)) == len(expected) + 1


def test_a_message_with_qos_0_that_somebody_deletes_or_makes_up_is_named(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, rules(*BOTH))
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    for number in range(5):
        shore.publish("a/1", b"%d" % number, qos=0)
    until(lambda: listed(server) == 5 == len(stored(server)), broker)
    settle(broker)
    ids = sorted(name.decode() for name in server.everything()["mqtt:msg:a/1"])
    with server.client() as client:
        client.delete(f"mqtt:msg:{ids[1]}")
        client.zrem("mqtt:msg:a/1", ids[1])
        client.hset(f"mqtt:msg:{ids[2]}", "payload", "changed")
        client.delete(f"mqtt:msg:{ids[4]}")
        us, node, _ = decode_id(ids[0])
        stranger = unstored_id(us // 1000, node, 1 << 40)
        client.hset(f"mqtt:msg:{stranger}", "payload", "x")
    code, told = verify(broker)
    assert code == 1
    assert named(told) == {
        ("message", "missing", ids[1]),
        ("message", "changed", ids[2]),
        ("message", "in the list of its topic only", ids[4]),
        ("message", "foreign", stranger),
    }
    assert all(decode_id(each)[2] & UNSTORED for each in ids)
    (gone,) = [each for each in told["differences"] if each["id"] == ids[1]]
    assert gone["message"] == "a/1 from shore"


@pytest.mark.parametrize("kind", ["pubsub", "queue"])
def test_what_was_sent_at_once_is_not_fetched_and_what_was_before_is(
    prepare: Callable[..., BrokerProcess], server: RedisServer, kind: str
) -> None:
    broker = prepare()
    fetching = (("#", f"on_message_fetch_for_{kind}"), ("#", f"on_message_acked_for_{kind}"))
    feed(broker, server, rules(("#", "on_message_store"), *fetching))
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish("a/1", b"before", qos=0)
    until(lambda: len(stored(server)) == 1, broker)
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe("a/1", qos=1)
    assert payloads(device.take(1)) == [b"before"]
    shore.publish("a/1", b"live", qos=0)
    assert payloads(device.take(1)) == [b"live"]
    until(lambda: any(row[2] == b"live" for row in stored(server)), broker)
    device.subscribe("a/1", qos=1)  # it asks the store again
    shore.publish("a/1", b"end", qos=1)
    assert payloads(device.take(1)) == [b"end"]
    device.disconnect()
    shore.publish("a/1", b"away", qos=0)
    shore.publish("a/1", b"owed", qos=1)
    until(lambda: any(row[2] == b"owed" for row in stored(server)), broker)
    device = RawClient(broker.port, "device")
    device.durable()
    assert payloads(device.take(1)) == [b"owed"]
    shore.publish("a/1", b"again", qos=1)
    assert payloads(device.take(1)) == [b"again"]
    until(lambda: status(broker)["rows_behind"] == 0, broker)


def test_own_commands_get_messages_with_qos_0_and_user_names(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    own = '[[rules]]\nbackend = "cache"\n'
    feed(
        broker,
        server,
        f'{own}on = "message.publish"\ntopic = "#"\ncommands = "RPUSH some ${{payload}}"\n'
        f'{own}on = "message.publish"\ntopic = "a/#"\nqos0 = true\n'
        'commands = "RPUSH all ${payload} ${qos} ${username}"\n'
        f'{own}on = "session.subscribed"\ntopic = "#"\n'
        'commands = "RPUSH who ${clientid} [${username}]"\n',
    )
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect(username="ann")
    shore.subscribe("x", qos=1)
    shore.publish("a/1", b"0", qos=0)
    shore.publish("a/1", b"1", qos=1)
    shore.publish("b", b"2", qos=0)
    until(lambda: len(server.list("all")) == 6, broker)
    assert server.list("all") == [b"0", b"0", b"ann", b"1", b"1", b"ann"]
    assert server.list("some") == [b"1"]
    assert server.list("who") == [b"shore", b"[ann]"]
