"""A real broker and a real Redis: applications subscribe clients, whatever fails."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqtt import reasons
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.test_server_backends import feed, until
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient, Silence

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

LISTED = '[[rules]]\non = "client.connected"\naction = "on_subscribe_lookup"\nbackend = "cache"\n'
TOLD = LISTED + 'sync = "mirror"\n'
LIVE = 'channel = "mqtt_channel"\nstream = "mqtt_stream"'


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    running = RedisServer(tmp_path / "redis", request.param).start()
    yield running
    running.kill()


def change(client_id: str, topic: str, qos: int | None = 1) -> str:
    """Return what an application tells."""
    told = {"type": "subscribe", "clientid": client_id, "topic": topic, "qos": qos}
    if qos is None:
        told = {"type": "unsubscribe", "clientid": client_id, "topic": topic}
    return json.dumps(told)


def progress(server: RedisServer) -> tuple[int, int] | None:
    """Return how many entries of the stream were read, and how many wait to be; None = nobody."""
    with server.client() as client:
        if not client.exists("mqtt_stream"):
            return None
        for group in client.xinfo_groups("mqtt_stream"):
            pending = client.xpending("mqtt_stream", group["name"])["pending"]
            read = client.xinfo_stream("mqtt_stream")["length"] - (group.get("lag") or 0)
            return read, pending + (group.get("lag") or 0)
    return None


def publish(broker: BrokerProcess, topic: str, payload: bytes) -> None:
    """Publish a retained message, which a new subscription gets whenever it begins."""
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish(topic, payload, qos=1, retain=True)
    shore.disconnect()


def test_a_list_is_read_when_the_store_is_back_and_outlives_a_crash_of_the_broker(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, LISTED)
    broker.start()
    publish(broker, "a/1", b"one")
    with server.client() as store:
        store.hset("mqtt:sub:c", mapping={"a/#": 1, "b#": 1, "x": "often"})
    server.kill()
    client = RawClient(broker.port, "c")
    client.durable()  # it waits for no store
    server.start()
    assert [each.payload for each in client.take(1)] == [b"one"]
    client.drop()
    broker.kill()
    broker.start()
    publish(broker, "a/2", b"two")
    client = RawClient(broker.port, "c")
    client.durable()
    found = [each.payload for each in client.take(1)]
    if found == [b"one"]:  # sent again: its acknowledgement was not durable yet
        found = [each.payload for each in client.take(1)]
    assert found == [b"two"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_application_subscribes_and_unsubscribes_a_client_at_once(
    prepare: Callable[..., BrokerProcess], server: RedisServer, is_stream: bool
) -> None:
    broker = prepare()
    feed(broker, server, TOLD, LIVE)
    broker.start()
    publish(broker, "a/1", b"one")
    client = RawClient(broker.port, "c")
    client.durable()
    with server.client() as store:

        def tell(text: str) -> None:
            if is_stream:
                store.xadd("mqtt_stream", {"change": text})
            else:
                until(lambda: store.publish("mqtt_channel", text) == 1, broker)

        tell("nonsense")
        tell(change("c", "a/#"))
        assert [each.payload for each in client.take(1)] == [b"one"]
        tell(change("c", "a/#", None))
        tell(change("c", "b"))
        publish(broker, "a/2", b"two")
        publish(broker, "b", b"three")
        found = [each.payload for each in client.take(1)]
        if found == [b"two"]:  # it was published before the client was unsubscribed
            found = [each.payload for each in client.take(1)]
        assert found == [b"three"]
        if is_stream:
            until(lambda: store.xpending("mqtt_stream", "holdfast:cache")["pending"] == 0, broker)


def test_what_a_stream_tells_is_done_also_if_the_broker_dies_and_the_client_is_away(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, "", LIVE)  # without any rule
    broker.start()
    clients = [f"c{number}" for number in range(100)]
    for name in clients:
        client = RawClient(broker.port, name)
        client.durable()
        client.disconnect()
    broker.kill()
    with server.client() as store:
        for name in clients:
            store.xadd("mqtt_stream", {"change": change(name, "a/#")})
        broker.start()
        until(lambda: (progress(server) or (0, 0))[0] > 0, broker)
        broker.kill()  # with some of them durable, and some not
        broker.start()
        until(lambda: progress(server) == (len(clients), 0), broker)
    publish(broker, "a/1", b"one")
    for name in clients:
        client = RawClient(broker.port, name)
        client.durable()
        assert [each.payload for each in client.take(1)] == [b"one"]
        client.drop()


@pytest.mark.parametrize("is_required", [True, False])
def test_a_client_that_waits_has_its_subscriptions_with_its_connack(
    prepare: Callable[..., BrokerProcess], server: RedisServer, is_required: bool
) -> None:
    broker = prepare()
    required = "required = true\n" if is_required else ""
    feed(broker, server, LISTED + 'wait = "2s"\n' + required)
    broker.start()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    with server.client() as store:
        for number in range(20):
            store.hset(f"mqtt:sub:c{number}", f"a/{number}", 1)
    for number in range(20):
        client = RawClient(broker.port, f"c{number}")
        client.durable()
        shore.publish(f"a/{number}", b"right behind it", qos=0)
        assert [each.payload for each in client.take(1)] == [b"right behind it"]
        client.drop()
    server.freeze()  # it is not known to be down
    client = RawClient(broker.port, "c0")
    if is_required:
        client.durable(reason=reasons.SERVER_UNAVAILABLE)
        client.drop()
        server.thaw()
        until(lambda: _is_let_in(RawClient(broker.port, "c0")), broker)
        client = RawClient(broker.port, "c0")
        client.resume()  # the session stayed as it was
    else:
        client.resume()
        new = RawClient(broker.port, "new")
        new.durable()
        with pytest.raises(Silence):
            new.receive(0.2)
        server.thaw()
    shore.publish("a/0", b"later", qos=0)
    assert [each.payload for each in client.take(1)] == [b"later"]


def _is_let_in(client: RawClient) -> bool:
    try:
        client.durable()
    except AssertionError:
        return False
    finally:
        client.drop()
    return True
