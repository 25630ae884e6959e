"""The walk-throughs of docs/backends.md, configuration and commands: do they work as they are?"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.clients.conversation import PATIENCE_SECONDS
from tests.durability.process import POLL_SECONDS, BrokerProcess

ROOT: Final = Path(__file__).resolve().parents[3]
TEXT: Final = (ROOT / "docs" / "backends.md").read_text()
SERVER_LINE: Final = 'servers = "127.0.0.1:6379"'

pytestmark = [
    pytest.mark.full,
    needs_redis,
    pytest.mark.skipif(
        shutil.which("mosquitto_sub") is None or shutil.which("redis-cli") is None,
        reason="Debian's mosquitto-clients or redis-tools is not installed",
    ),
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


def play(name: str, directory: Path, broker: BrokerProcess, server: RedisServer) -> list[str]:
    """Run a walk-through on the ports of this test; return what it prints."""
    programs, defaults = directory / "bin", directory / "options"
    for each in (programs, defaults):
        each.mkdir()
    redis_cli = programs / "redis-cli"
    redis_cli.write_text(
        f'#!/bin/sh\nexec {shutil.which("redis-cli")} -p {server.port} "$@" > /dev/null\n'
    )
    redis_cli.chmod(0o755)
    for each in ("mosquitto_sub", "mosquitto_pub"):
        (defaults / each).write_text(f"-h 127.0.0.1\n-p {broker.port}\n")
    result = subprocess.run(
        ["bash", "-e", "-c", commands(name)],
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(defaults),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def test_one_to_one(tmp_path: Path, broker: BrokerProcess, server: RedisServer) -> None:
    assert play("one to one", tmp_path, broker, server) == ["open"]
    until(lambda: not server.everything())


def test_retained(tmp_path: Path, broker: BrokerProcess, server: RedisServer) -> None:
    assert play("retained", tmp_path, broker, server) == ["on", "off"]
    until(lambda: server.everything()["mqtt:retain:state/lamp"].get(b"payload") == b"off")


def test_proxy_subscription(tmp_path: Path, broker: BrokerProcess, server: RedisServer) -> None:
    assert play("proxy subscription", tmp_path, broker, server) == ["fire", "fire"]


def test_one_to_many(tmp_path: Path, broker: BrokerProcess, server: RedisServer) -> None:
    assert play("one to many", tmp_path, broker, server) == ["hello", "hello", "again"]
    until(lambda: server.everything().get("mqtt:acked:reader-1:pubsub/news") == b"0003")
    until(lambda: server.everything().get("mqtt:acked:reader-2:pubsub/news") == b"0002")
