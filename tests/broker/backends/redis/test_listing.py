"""Does a pass over a real Redis find everything of the window, and nothing else?"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.backends.comparing import digests
from broker.backends.comparing.listing import (
    CLIENT,
    INDEX,
    MESSAGE,
    NOT_OURS,
    RETAINED,
    SUBSCRIPTION,
    Window,
)
from broker.backends.message_ids import message_id, message_number
from broker.backends.redis import listing
from broker.backends.redis.listing import RedisListing
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis

pytestmark = needs_redis
NODE = 7
SINCE_MS = 1_700_000_000_000
ALL = frozenset({MESSAGE, INDEX, RETAINED, SUBSCRIPTION, CLIENT})


@pytest.fixture(scope="module", params=PROGRAMS)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    directory: Path = tmp_path_factory.mktemp("redis")
    running = RedisServer(directory, request.param).start()
    yield running
    running.kill()


@pytest.fixture
def store(server: RedisServer) -> Iterator[Any]:
    with closing(server.client()) as client:
        client.flushall()
        yield client


def listed(store: Any, kinds: frozenset[str] = ALL) -> list[tuple[str, object, int]]:
    """Return kind, id or name, and digest of everything, sorted."""
    found = RedisListing(store, Window("me", NODE, SINCE_MS, kinds), [store]).entries()
    return sorted(
        (each.kind, str(each.number or each.text or each.place), each.digest) for each in found
    )


def put(store: Any, name: str, topic: str, **fields: str) -> None:
    told = {"id": name, "from": "p", "qos": "1", "topic": topic, "payload": "x", "ts": "1700000000"}
    store.hset(f"mqtt:msg:{name}", mapping={**told, "retain": "false", **fields})
    store.zadd(f"mqtt:msg:{topic}", {name: 1})


def test_messages_of_the_window_and_of_our_node(store: Any) -> None:
    ours = message_id(SINCE_MS, NODE, 5)
    put(store, ours, "t")
    put(store, message_id(SINCE_MS - 1, NODE, 4), "t")
    put(store, message_id(SINCE_MS, NODE + 1, 4), "t")
    put(store, "application", "t")
    number = message_number(SINCE_MS, NODE, 5)
    body = digests.message_digest(
        number, b"t", b"p", 1, b"x", retain=False, accepted_s=1_700_000_000
    )
    other = f"mqtt:msg:{message_id(SINCE_MS, NODE + 1, 4)}"
    assert listed(store) == [
        (INDEX, str(number), digests.index_digest(number, b"t")),
        (MESSAGE, str(number), body),
        (NOT_OURS, other, 0),
    ]
    store.hset(f"mqtt:msg:{ours}", "id", "another")
    assert (MESSAGE, str(number), 0) in listed(store)
    store.hset(f"mqtt:msg:{ours}", mapping={"id": ours, "qos": "x"})
    assert (MESSAGE, str(number), body) not in listed(store)


def test_the_newest_message_of_a_topic_is_none_of_those_that_are_compared(store: Any) -> None:
    newest = message_id(SINCE_MS, NODE, 5)
    for topic in ("t", message_id(SINCE_MS, NODE, 6)):  # topics may be named like ids
        store.hset(f"mqtt:msg:{topic}", mapping={"id": newest, "topic": topic, "payload": "x"})
    assert listed(store) == []


def test_pages_have_everything_together(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 7)
    monkeypatch.setattr(listing, "GROUP_BYTES", 100)
    for number in range(300):
        put(store, message_id(SINCE_MS, NODE, number + 1), f"t/{number % 2}", payload="x" * 40)
        store.hset("mqtt:sub:c", f"f/{number}", "1")
    found = listed(store)
    for kind in (MESSAGE, INDEX, SUBSCRIPTION):
        assert len({name for each, name, _ in found if each == kind}) == 300, kind


def test_a_key_of_another_type_is_passed_over(store: Any) -> None:
    name = message_id(SINCE_MS, NODE, 5)
    store.set(f"mqtt:msg:{name}", "x")
    store.zadd(f"mqtt:msg:{message_id(SINCE_MS, NODE, 6)}", {"topic like an id": 1})
    store.set("mqtt:msg:topic", "x")
    store.set("mqtt:retain:t", "x")
    store.set("mqtt:sub:c", "x")
    store.set("mqtt:node:me", "x")
    store.set("mqtt:unknown", "x")
    assert listed(store) == []


def test_sets_are_found_with_what_is_said_of_them(store: Any) -> None:
    name = message_id(SINCE_MS, NODE, 5)
    for topic, id_ in (("t", name), ("u", "application")):
        store.hset(f"mqtt:retain:{topic}", mapping={"id": id_, "from": "p", "qos": "1"})
        store.hset(f"mqtt:retain:{topic}", "payload", b"\xff")
    store.hset("mqtt:sub:a:b", "c d/#", "2")
    store.hset("mqtt:node:me", mapping={"on": "5", "half": "6", "stale": "7"})
    store.hset("mqtt:node:other", mapping={"elsewhere": "5"})
    store.hset("mqtt:client:on", mapping={"state": "1", "online_at": "5"})
    store.hset("mqtt:client:stale", mapping={"state": "1", "online_at": "8"})
    number = message_number(SINCE_MS, NODE, 5)
    assert listed(store) == [
        (CLIENT, "half", digests.presence_digest(b"half", -1)),
        (CLIENT, "on", digests.presence_digest(b"on", 5)),
        (CLIENT, "stale", digests.presence_digest(b"stale", -1)),
        (NOT_OURS, "mqtt:retain:u", 0),
        (RETAINED, "t", digests.retained_digest(number, b"t", b"p", 1, b"\xff")),
        (SUBSCRIPTION, "a:b c d/#", digests.subscription_digest(b"a:b", b"c d/#", 2)),
    ]
    assert listed(store, frozenset({MESSAGE})) == []
