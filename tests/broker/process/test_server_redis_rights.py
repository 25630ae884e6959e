"""A real broker that is a user of Redis with the rights that the documents name, and no others."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from broker.backends.actions import ACTIONS
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.test_server_backends import command, feed, status, until
from tests.broker.process.test_server_proxies import LIVE, change
from tests.durability.process import ROOT, BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

USER: Final = f'username = "holdfast"\npassword = "secret"\ndatabase = 3\n{LIVE}\n'
# Every action, of what it is done.
TOPICS: Final = {
    "on_client_connected": None,
    "on_client_disconnected": None,
    "on_subscribe_lookup": None,
    "on_subscribed": "#",
    "on_unsubscribed": "#",
    "on_retain_lookup": "#",
    "on_message_retain": "#",
    "on_retain_delete": "#",
    "on_message_publish": "queue/#",
    "on_message_fetch_for_queue": "queue/#",
    "on_message_acked_for_queue": "queue/#",
    "on_message_store": "pubsub/#",
    "on_message_fetch_for_pubsub": "pubsub/#",
    "on_message_acked_for_pubsub": "pubsub/#",
    "on_message_store_keep_latest": "latest/#",
    "on_message_fetch_for_keep_latest": "latest/#",
    "on_message_acked_for_keep_latest": "latest/#",
}
NAMES: Final = ("queue/1", "pubsub/1", "latest/1")


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis, or Valkey, with the user of the documents."""
    running = RedisServer(tmp_path / "redis", request.param).start(*user())
    yield running
    running.kill()


def user() -> list[str]:
    """Return the option of a server that makes the user of the documents."""
    text = (ROOT / "docs" / "backends.md").read_text()
    found = re.search(r"^    ACL SETUSER (holdfast .*(?:\n      .*)*)", text, re.MULTILINE)
    assert found is not None
    return ["--user", *found[1].split()]


def rules() -> str:
    """Return a rule for each action."""
    assert TOPICS.keys() == ACTIONS["redis"].keys()
    text = ""
    for name, action in ACTIONS["redis"].items():
        text += f'[[rules]]\nbackend = "cache"\non = "{action.hooks[0]}"\naction = "{name}"\n'
        text += f'topic = "{TOPICS[name]}"\n' if TOPICS[name] else ""
    return text


def refused(server: RedisServer) -> list[str]:
    """Return what the user was denied, but for what the client library does without."""
    with server.client() as client:
        denied = [f"{each['reason']} {each['object']}" for each in client.acl_log()]
    return [each for each in denied if each != "command client|setinfo"]


def test_a_user_needs_no_more_rights_than_the_documents_say(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, rules(), USER)
    assert command(broker, "check")[0] == 0, refused(server)
    broker.start()
    device = RawClient(broker.port, "device")
    device.durable()
    device.subscribe(*NAMES, qos=1)
    for name in NAMES:
        device.publish(name, b"kept", qos=1, retain=True)
        device.publish(name, b"", qos=1, retain=True)
    device.take(2 * len(NAMES))
    device.disconnect()
    with server.client() as client:
        client.select(3)
        client.xadd("mqtt_stream", {"change": change("device", "told")})
        client.publish("mqtt_channel", change("device", "heard"))
        until(lambda: client.hexists("mqtt:sub:device", "told"), broker)
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    server.kill()  # it looks what a server has lost, when that is there again
    server.start(*user())
    device = RawClient(broker.port, "device")
    device.durable()
    device.unsubscribe(*NAMES)
    device.disconnect()
    until(lambda: status(broker)["state"] == "connected", broker)
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    assert status(broker)["dead_letters"] == 0, (
        command(broker, "dead", "list", "cache"),
        refused(server),
    )
    code, out, err = command(broker, "verify", "cache")
    assert code == 0, (out, err, refused(server))
    assert refused(server) == []
