"""Does a real Redis do what it has no command for, and tell what it cannot?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.backends.redis import scripts
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis

pytestmark = [pytest.mark.full, needs_redis]  # starts processes
redis: Any = pytest.importorskip("redis")


@pytest.fixture(scope="module", params=PROGRAMS)
def running(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    directory: Path = tmp_path_factory.mktemp("redis")
    server = RedisServer(directory, request.param).start()
    yield server
    server.kill()


@pytest.fixture
def store(running: RedisServer) -> Iterator[Any]:
    """A client of an empty store."""
    with running.client() as client:
        client.flushall()
        yield client


def run(store: Any, *command: Any) -> Any:
    """Carry out one of our commands."""
    name, key, *others = command
    return store.eval(scripts.ONE, 1, key, name, *others)


def newest(store: Any, name: str, payload: str, seconds: int = 0) -> Any:
    """Offer a message as the newest one of the topic `t`."""
    return run(store, "NEWEST", "t", name, seconds, "id", name, "payload", payload)


def test_a_key_keeps_its_greatest_value_by_bytes(store: Any) -> None:
    for value, kept in (("b", b"b"), ("B", b"b"), ("b1", b"b1"), ("b", b"b1"), ("\x7f", b"\x7f")):
        run(store, "SETMAX", "k", value)
        assert store.get("k") == kept


def test_a_key_is_deleted_if_it_has_one_of_two_values(store: Any) -> None:
    for value, is_there in (("one", False), ("other", False), ("third", True)):
        store.set("k", value)
        run(store, "DELIF", "k", "one", "other")
        assert bool(store.exists("k")) is is_there


def test_the_newest_message_stays_whatever_comes_later(store: Any) -> None:
    store.hset("t", mapping={"id": "0", "retain": "true", "payload": "before"})
    for name, payload, kept in (("2", "two", b"two"), ("1", "one", b"two"), ("2", "x", b"two")):
        newest(store, name, payload)
        assert store.hgetall("t") == {b"id": b"2", b"payload": kept}
    newest(store, "3", "three", 60)
    assert store.hget("t", "payload") == b"three" and 0 < store.ttl("t") <= 60
    newest(store, "4", "four")
    assert store.ttl("t") == -1


@pytest.mark.parametrize(
    "command",
    [("SETMAX", "k", "v"), ("DELIF", "k", "v", "w"), ("NEWEST", "k", "1", "0", "id", "1")],
)
def test_a_key_of_another_type_is_told_and_left_alone(store: Any, command: tuple[str, ...]) -> None:
    store.rpush("k", "x")
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        run(store, *command)
    assert store.lrange("k", 0, -1) == [b"x"]
