"""The walk-throughs of docs/backends.md with Redis: do they work as they are?"""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.test_server_backends import until
from tests.broker.process.walk_through import TEXT, block, needs_mosquitto, play
from tests.durability.process import BrokerProcess

SERVER_LINE: Final = 'servers = "127.0.0.1:6379"'
REDIS_CLI: Final = shutil.which("redis-cli")

pytestmark = [
    pytest.mark.full,
    needs_redis,
    needs_mosquitto,
    pytest.mark.skipif(REDIS_CLI is None, reason="Debian's redis-tools is not installed"),
]


def configuration(port: int) -> str:
    """Return the backend of the documents, with another port, and the rules of the section."""
    section = TEXT.partition("## Messages from the store\n")[2].partition("\n## ")[0]
    rules = re.findall(r"^    (.*)$", section, flags=re.M)
    assert "[[rules]]" in rules and SERVER_LINE in TEXT
    return "\n".join(["[backends.cache]", SERVER_LINE.replace("6379", str(port)), *rules])


def commands(name: str) -> str:
    """Return the commands of a walk-through."""
    found = re.search(rf"^<!-- walk-through: {name} -->\n```sh\n(.*?)^```$", TEXT, re.M | re.S)
    assert found, f"docs/backends.md has no walk-through {name} any more"
    return found[1]


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    running = RedisServer(tmp_path / "redis", request.param).start()
    yield running
    running.kill()


@pytest.fixture
def broker(prepare: Callable[..., BrokerProcess], server: RedisServer) -> BrokerProcess:
    """A broker with the configuration of the documents."""
    made = prepare()
    path = made.directory / "holdfast.toml"
    path.write_text(configuration(server.port))
    made.arguments = ("--config", str(path))
    made.start()
    return made


def played(name: str, directory: Path, broker: BrokerProcess, server: RedisServer) -> list[str]:
    """Run a walk-through on the ports of this test; return what it prints."""
    redis_cli = f'exec {REDIS_CLI} -p {server.port} "$@" > /dev/null'
    return play(block(name), directory, broker, {"redis-cli": redis_cli})


def test_one_to_one(tmp_path: Path, broker: BrokerProcess, server: RedisServer) -> None:
    assert played("one to one", tmp_path, broker, server) == ["open"]
    until(lambda: not server.everything(), broker)


def test_retained(tmp_path: Path, broker: BrokerProcess, server: RedisServer) -> None:
    assert played("retained", tmp_path, broker, server) == ["on", "off"]
    until(lambda: server.everything()["mqtt:retain:state/lamp"].get(b"payload") == b"off", broker)


def test_proxy_subscription(tmp_path: Path, broker: BrokerProcess, server: RedisServer) -> None:
    assert played("proxy subscription", tmp_path, broker, server) == ["fire", "fire"]


def test_one_to_many(tmp_path: Path, broker: BrokerProcess, server: RedisServer) -> None:
    assert played("one to many", tmp_path, broker, server) == ["hello", "hello", "again"]
    until(lambda: server.everything().get("mqtt:acked:reader-1:pubsub/news") == b"0003", broker)
    until(lambda: server.everything().get("mqtt:acked:reader-2:pubsub/news") == b"0002", broker)
