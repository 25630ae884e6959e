"""A real broker and a real Redis: applications subscribe clients, whatever fails."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqtt import reasons
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.test_server_backends import events, feed, until
from tests.broker.process.test_server_inbox import answered, payloads
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient, Silence

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

LISTED = '[[rules]]\non = "client.connected"\naction = "on_subscribe_lookup"\nbackend = "cache"\n'
TOLD = LISTED + 'sync = "mirror"\n'
NEW = LISTED.replace("client.connected", "session.created")
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


def test_a_list_for_new_sessions_is_read_once_for_each_whatever_fails(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, NEW)
    broker.start()
    publish(broker, "a/1", b"one")
    with server.client() as store:
        store.hset("mqtt:sub:c", "a/#", 1)
    server.kill()
    client = RawClient(broker.port, "c")
    client.durable()
    broker.kill()  # while the list is owed
    broker.start()
    server.start()
    client.resume()
    assert payloads(client.take(1)) == [b"one"]
    client.disconnect()
    with server.client() as store:
        store.hset("mqtt:sub:c", "b/#", 1)
    client.resume()
    answered(broker)
    publish(broker, "b/1", b"not for this session")
    publish(broker, "a/2", b"two")
    assert payloads(client.take(1)) == [b"two"]
    client.connect(clean_start=True)
    found = {each.payload for each in client.take(3)}
    assert found == {b"one", b"two", b"not for this session"}
    client.drop()


@pytest.mark.parametrize("bypasses", [True, False], ids=["bypasses", "holds"])
def test_a_list_is_judged_by_the_rules_of_its_client_unless_the_rule_says_otherwise(
    prepare: Callable[..., BrokerProcess], server: RedisServer, tmp_path: Path, bypasses: bool
) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite #\nuser device\ntopic read a/#\n")
    broker = prepare(HOLDFAST__AUTH__ACL_FILE=str(acl))
    feed(broker, server, LISTED + f"bypass_acl = {str(bypasses).lower()}\n")
    broker.start()
    with server.client() as store:
        store.hset("mqtt:sub:c", mapping={"a/#": 1, "b/#": 1})
    client = RawClient(broker.port, "c")
    client.durable(username="device")
    answered(broker)
    publish(broker, "a/1", b"may be read")
    assert payloads(client.take(1)) == [b"may be read"]
    if not bypasses:
        broker.wait_for_event("backend_subscription_refused")
        assert events(broker)["backend_subscription_refused"]["message"] == "'b/#': Not authorized"
    publish(broker, "b/1", b"may not be read")
    if bypasses:
        assert payloads(client.take(1)) == [b"may not be read"]
    client.disconnect()
    broker.crash()
    publish(broker, "b/2", b"nor after a crash")
    publish(broker, "a/2", b"end")
    client.resume(username="device")
    answered(broker)
    expected = [b"nor after a crash", b"end"] if bypasses else [b"end"]
    assert payloads(client.take(len(expected))) == expected
    acl.write_text("topic readwrite #\nuser device\ntopic read #\n")
    broker.reload()  # each delivery is judged, too: what may be read now comes if it is subscribed
    publish(broker, "b/3", b"may be read now")
    publish(broker, "a/3", b"end")
    expected = [b"may be read now", b"end"] if bypasses else [b"end"]
    assert payloads(client.take(len(expected))) == expected
    assert not bypasses or "backend_subscription_refused" not in events(broker)
    client.drop()


def test_what_a_list_has_no_more_ends_at_the_next_connect_with_a_mirror(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, TOLD)
    broker.start()
    publish(broker, "b/1", b"kept")
    with server.client() as store:
        store.hset("mqtt:sub:c", mapping={"a/#": 1, "b/#": 0})
    client = RawClient(broker.port, "c")
    client.durable()
    client.expect_publish(b"kept", qos=0)
    client.subscribe("own/#", qos=1)  # the list never has it
    client.disconnect()
    with server.client() as store:
        store.hdel("mqtt:sub:c", "b/#")
        store.hset("mqtt:sub:c", "d/#", 1)
    broker.crash()  # what the store has begun is remembered
    publish(broker, "d/1", b"listed")
    client.resume()
    while payloads(client.take(1)) != [b"listed"]:
        pass  # what was sent just before a crash may come again
    answered(broker)
    for topic in ("b/2", "a/1", "own/1", "d/2"):
        publish(broker, topic, topic.encode())
    assert payloads(client.take(3)) == [b"a/1", b"own/1", b"d/2"]
    with server.client() as store:
        store.delete("mqtt:sub:c")
    client.disconnect()
    client.resume()
    answered(broker)
    for topic in ("a/2", "d/3", "own/2"):
        publish(broker, topic, topic.encode())
    assert payloads(client.take(1)) == [b"own/2"]
    client.drop()


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
