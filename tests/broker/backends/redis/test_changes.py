"""Does a real Redis bring what applications tell to the broker, each change until it is durable?"""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.backends.told_rows import options

redis_sink = pytest.importorskip("broker.backends.redis.sink")
pytestmark = [pytest.mark.full, needs_redis]  # starts processes

PATIENCE_S = 60.0
CHANGE = '{"type": "subscribe", "clientid": "c", "topic": "a/%d", "qos": 1}'


@pytest.fixture(scope="module", params=PROGRAMS)
def running(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    directory: Path = tmp_path_factory.mktemp("redis")
    server = RedisServer(directory, request.param).start()
    yield server
    server.kill()


class Heard:
    """What a process says, and its listeners."""

    def __init__(self, server: RedisServer, **values: Any) -> None:
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        servers = [f"127.0.0.1:{server.port}"]
        sink = redis_sink.RedisSink(options(servers=servers, timeout_ms=1000, **values))
        self.changes = sink.listen(self.said.put)

    def __enter__(self) -> "Heard":
        self.changes.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.changes.close()

    def next(self, name: str) -> dict[str, Any]:
        """Return the next thing that is said of this name."""
        while True:
            found = self.said.get(timeout=PATIENCE_S)
            if name in found:
                return found


def test_without_a_place_nobody_listens(running: RedisServer) -> None:
    assert Heard(running).changes is None


def test_a_channel_brings_what_is_told_now(running: RedisServer) -> None:
    with Heard(running, channel="told") as heard, running.client() as client:
        assert "told" in heard.next("listening")["listening"]
        client.publish("told", "nonsense")
        client.publish("told", CHANGE % 1)
        assert "expected JSON" in heard.next("unreadable")["unreadable"]
        found = heard.next("change")
        assert (found["client_id"], found["topic"], found["qos"]) == ("c", "a/1", 1)


def test_a_stream_brings_again_what_is_not_answered(running: RedisServer) -> None:
    with running.client() as client:
        client.delete("log")
        for number in range(3):
            client.xadd("log", {"change": CHANGE % number})
        with Heard(running, stream="log") as first:
            told = [first.next("change") for _ in range(3)]
            assert [each["topic"] for each in told] == ["a/0", "a/1", "a/2"]
            first.changes.answered([told[0]["change"], told[2]["change"]])
            while client.xpending("log", "holdfast:cache")["pending"] != 1:
                pass
        with Heard(running, stream="log") as again:  # the next process
            assert again.next("change")["topic"] == "a/1"


def test_listening_begins_again_when_the_server_is_back(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        with Heard(server, channel="told", stream="log") as heard:
            for _ in range(2):
                heard.next("listening")
            server.kill()
            for _ in range(2):
                heard.next("unheard")
            server.start()
            for _ in range(2):
                heard.next("listening")
            with server.client() as client:
                client.publish("told", CHANGE % 1)
                client.xadd("log", {"change": CHANGE % 2})
            assert {heard.next("change")["topic"] for _ in range(2)} == {"a/1", "a/2"}
    finally:
        server.kill()
