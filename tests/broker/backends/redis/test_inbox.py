"""Does a real Redis give each message to the right session, and only what it should?"""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.backends.inbox.questions import SUBSCRIPTIONS_MAX, Page, Question
from broker.backends.message_ids import message_id, node_number
from broker.backends.sink import Fence, FenceRefused, Refused, Unavailable
from storage.tables.feed_rows import ACKED, DELIVERED, RETAIN_DELETED, RETURNED
from storage.tables.fetch_rows import PUBSUB, QUEUE, RETAIN, SUBSCRIPTIONS
from tests.broker.backends.redis_cluster import ClusterServers
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.backends.told_rows import INSTANCE, NODE, NOW_MS, batch, event, options, rule

process = pytest.importorskip("broker.backends.process")
pytest.importorskip("broker.backends.redis.sink")
pytestmark = [pytest.mark.full, needs_redis]  # starts processes

RULES = (
    rule("session.subscribed", "#", action="on_message_fetch_for_queue"),
    rule("message.acked", "#", number=2, action="on_message_acked_for_queue"),
    rule("message.acked", "#", number=3, action="on_message_acked_for_pubsub"),
    rule("session.subscribed", "#", number=4, action="on_retain_lookup"),
    rule("message.publish", "#", number=5, action="on_retain_delete"),
)
OURS = node_number(NODE)
FENCE = Fence(INSTANCE, (0, 0))


def theirs(number: int, at_ms: int = NOW_MS) -> str:
    """Return an id that an application makes."""
    return message_id(at_ms, OURS ^ 1, number)


class Asked:
    """A Redis with a sink that is asked."""

    def __init__(self, server: RedisServer | ClusterServers) -> None:
        self.server = server
        self.client = server.client()
        values: dict[str, Any] = {"servers": server.addresses, "timeout_ms": 2000}
        if isinstance(server, ClusterServers):
            values["mode"] = "cluster"
        self.sink = process.make_sink(options(*RULES, **values))
        assert self.sink.open() is None
        self.sink.start(FENCE, is_rewind=False)
        self.fence = FENCE

    def insert(self, *ids: str, topic: str = "t", score: float = 1, **fields: Any) -> None:
        """Put messages into the store as an application does."""
        for each in ids:
            given = {"id": each, "from": "app", "qos": 1, "topic": topic, "payload": each}
            self.client.hset(f"mqtt:msg:{each}", mapping={**given, **fields})
            self.client.zadd(f"mqtt:msg:{topic}", {each: score})

    def page(self, kind: int = QUEUE, client_id: str = "c", **told: Any) -> Page:
        """Ask for a page."""
        given = {
            **{"fetch": 1, "run": 1, "kind": kind, "client_id": client_id, "topic": "t"},
            **{"after": "", "count": 10, "since": 0, "began_ms": 0, "not_before_ms": 0},
        }
        page: Page = self.sink.fetch(Question({**given, **told}), self.fence)
        return page

    def ids(self, kind: int = QUEUE, client_id: str = "c", **told: Any) -> list[str]:
        """Ask for a page; return the ids."""
        return [each["id"] for each in self.page(kind, client_id, **told).messages]

    def tell(self, kind: int, name: str, client_id: str = "c") -> None:
        """Tell the store what became of a message of its own."""
        seq = self.fence.cursor[1] + 1
        row = event(kind, client_id, "t", seq=seq, username="cache", body=name.encode())
        assert self.sink.apply(batch(self.fence.cursor, (0, seq), row), INSTANCE) == []
        self.fence = Fence(INSTANCE, (0, seq))


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Any:
    """The program of a server."""
    return request.param


@pytest.fixture(scope="module", params=[RedisServer, ClusterServers], ids=["one", "cluster"])
def running(
    tmp_path_factory: pytest.TempPathFactory, program: Any, request: pytest.FixtureRequest
) -> Iterator[RedisServer | ClusterServers]:
    """A running Redis, or Valkey; or a cluster."""
    server = request.param(tmp_path_factory.mktemp("redis"), program)
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def asked(running: RedisServer | ClusterServers) -> Iterator[Asked]:
    """An empty Redis that is asked."""
    with running.client() as client:
        client.flushall()
    made = Asked(running)
    yield made
    made.client.close()
    made.sink.close()


def test_two_clients_never_get_the_same_message_of_a_queue(asked: Asked) -> None:
    asked.insert(*map(theirs, range(5)))
    first, second = asked.ids(client_id="a", count=2), asked.ids(client_id="b")
    assert first + second == [theirs(number) for number in range(5)]
    assert asked.ids(client_id="b") == second  # its own leases, if an answer was lost
    assert asked.ids(client_id="x") == []


def test_a_lease_ends(asked: Asked) -> None:
    asked.insert("m")
    asked.ids(client_id="a")
    assert 0 < asked.client.pttl("holdfast:claim:m") <= 60_000
    asked.client.delete("holdfast:claim:m")  # as if the time had passed
    assert asked.ids(client_id="b") == ["m"]


def test_what_a_client_keeps_is_its_own_until_it_acknowledges(asked: Asked) -> None:
    asked.insert("m", "n")
    assert asked.ids(client_id="a", count=1) == ["m"]
    asked.tell(DELIVERED, "m", "a")
    assert asked.client.ttl("holdfast:claim:m") == -1
    assert asked.ids(client_id="a") == ["n"] and asked.ids(client_id="b") == []
    asked.tell(ACKED, "m", "a")
    assert asked.client.keys("*msg:m") == [] and asked.client.exists("holdfast:claim:m") == 0
    assert asked.client.zrange("mqtt:msg:t", 0, -1) == [b"n"]


def test_what_a_client_gives_back_is_for_others(asked: Asked) -> None:
    asked.insert("m")
    asked.ids(client_id="a")
    asked.tell(DELIVERED, "m", "a")
    asked.tell(RETURNED, "m", "b")  # it has nothing to give back
    assert asked.ids(client_id="b") == []
    asked.tell(RETURNED, "m", "a")
    assert asked.ids(client_id="b") == ["m"]


def test_a_position_goes_through_all_pages_in_the_order_of_ids(asked: Asked) -> None:
    inserted = [theirs(number) for number in range(7)]
    asked.insert(*inserted[::2])
    asked.insert(*inserted[1::2], score=NOW_MS)
    found: list[str] = []
    after, more = "", True
    while more:
        page = asked.page(PUBSUB, after=after, count=2)
        found += [each["id"] for each in page.messages]
        after, more = page.upto, page.more
    assert found == inserted


def test_large_sets_are_read_in_parts(asked: Asked) -> None:
    plain = [theirs(number, NOW_MS - 1000) for number in range(700)]
    timed = [theirs(number) for number in range(600)]
    for each, score in ((plain, 1), (timed, NOW_MS)):
        pipe = asked.client.pipeline()
        for name in each:
            pipe.hset(f"mqtt:msg:{name}", mapping={"payload": name})
            pipe.zadd("mqtt:msg:t", {name: score})
        pipe.execute()
    found: list[str] = []
    after, more = "", True
    while more:
        page = asked.page(PUBSUB, after=after, count=1000)
        found += [each["id"] for each in page.messages]
        assert page.upto > after
        after, more = page.upto, page.more
    assert found == plain + timed
    assert asked.ids(count=1000, client_id="q") == (plain + timed)[:1000]


def test_a_position_begins_where_the_client_has_acknowledged(asked: Asked) -> None:
    ids = [theirs(number) for number in range(3)]
    asked.insert(*ids)
    asked.tell(ACKED, ids[1])
    assert asked.client.get("mqtt:acked:c:t") == ids[1].encode()
    asked.insert(*ids)
    assert asked.ids(PUBSUB) == [ids[2]]
    assert asked.ids(PUBSUB, "other") == ids


def test_ids_are_compared_by_bytes(asked: Asked) -> None:
    asked.insert("B", "a", "b", "A")
    assert asked.ids(PUBSUB) == ["A", "B", "a", "b"]
    assert asked.ids(PUBSUB, after="B") == ["a", "b"]


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB])
def test_messages_of_ours_after_the_subscription_are_left_out(asked: Asked, kind: int) -> None:
    before, after = message_id(NOW_MS, OURS, 5), message_id(NOW_MS, OURS, 6)
    earlier = message_id(NOW_MS - 1, OURS, 900)  # of a database that is gone
    asked.insert(earlier, before, after)
    assert asked.ids(kind, since=5, began_ms=NOW_MS) == [earlier, before]
    page = asked.page(PUBSUB, after=before, since=5, began_ms=NOW_MS)
    assert page.messages == [] and page.upto == after


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB])
def test_old_messages_are_left_out(asked: Asked, kind: int) -> None:
    asked.insert(theirs(1, NOW_MS - 1), theirs(2))
    assert asked.ids(kind, not_before_ms=NOW_MS) == [theirs(2)]


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB])
def test_what_is_no_message_is_passed_over(asked: Asked, kind: int) -> None:
    asked.client.zadd("mqtt:msg:t", {b"\xff": 1, "gone": 1, "list": 1, "empty": 1})
    asked.client.hset("mqtt:msg:empty", "qos", 1)
    if kind == QUEUE:
        asked.client.rpush("mqtt:msg:list", 1)
    asked.insert("m")
    assert asked.ids(kind) == ["m"]


def test_fields_that_are_wrong_have_a_default(asked: Asked) -> None:
    asked.insert("m", qos="x", ts="-1", payload=b"\xff\x00")
    (message,) = asked.page().messages
    assert (message["qos"], message["at_ms"], message["payload"]) == (1, 0, "/wA=")


@pytest.mark.parametrize("kind, key", [(QUEUE, "msg"), (PUBSUB, "msg"), (RETAIN, "retain")])
def test_a_key_of_another_type_is_refused(asked: Asked, kind: int, key: str) -> None:
    asked.client.set(f"mqtt:{key}:t", "x")
    with pytest.raises(Refused, match="WRONGTYPE"):
        asked.page(kind)


def test_a_list_of_subscriptions_comes_in_pages_and_in_order(asked: Asked) -> None:
    rows = {f"f/{number}": number % 3 for number in range(10)}
    asked.client.hset("mqtt:sub:c", mapping={**rows, b"\xff": 1, "x": 3, "y": ""})
    page = asked.page(SUBSCRIPTIONS, count=6)
    assert page.subscriptions == [(f"f/{number}", number % 3) for number in range(6)]
    assert page.more and page.unusable == 3 and not page.why
    page = asked.page(SUBSCRIPTIONS, count=6, after="f/5")
    assert [each for each, _ in page.subscriptions] == ["f/6", "f/7", "f/8", "f/9"]
    assert not page.more
    assert asked.page(SUBSCRIPTIONS, "nobody").subscriptions == []


def test_a_list_that_is_too_long_or_none_is_refused(asked: Asked) -> None:
    rows = {f"f/{number}": 1 for number in range(SUBSCRIPTIONS_MAX + 1)}
    asked.client.hset("mqtt:sub:c", mapping=rows)
    page = asked.page(SUBSCRIPTIONS)
    assert page.subscriptions == [] and "10001 topic filters, expected at most" in page.why
    asked.client.set("mqtt:sub:d", "x")
    with pytest.raises(Refused, match="WRONGTYPE"):
        asked.page(SUBSCRIPTIONS, "d")


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB, RETAIN, SUBSCRIPTIONS])
def test_a_store_that_went_back_is_not_asked(asked: Asked, kind: int) -> None:
    asked.insert("m")
    asked.client.set("holdfast:cursor:cache", "other:0:0")
    with pytest.raises(FenceRefused):
        asked.page(kind)


def test_answers_have_a_size(asked: Asked) -> None:
    asked.insert(*map(theirs, range(4)), payload=bytes(200_000))
    for kind in (QUEUE, PUBSUB):
        page = asked.page(kind)
        assert len(page.messages) == 2 and page.more
    assert asked.page(PUBSUB, after=page.upto).more is False


def test_a_store_that_is_away_is_told(asked: Asked) -> None:
    asked.sink.close()
    with pytest.raises(Unavailable):
        asked.page()


def test_of_a_topic_that_keeps_its_newest_message_only_that_is_sent(asked: Asked) -> None:
    before, newest = theirs(1), theirs(2)
    fields = {"id": newest, "from": "app", "qos": 2, "topic": "t", "payload": "x"}
    asked.client.hset("mqtt:msg:t", mapping=fields)
    for _ in range(2):  # until it is acknowledged
        page = asked.page(PUBSUB, after=before)
        assert [(each["id"], each["qos"]) for each in page.messages] == [(newest, 2)]
        assert (page.upto, page.more) == (newest, False)
    assert asked.ids(PUBSUB, not_before_ms=NOW_MS + 1) == []
    assert asked.ids(PUBSUB, after=newest) == []
    asked.client.set("mqtt:acked:c:t", newest)
    assert asked.ids(PUBSUB) == [] and asked.ids(PUBSUB, "other") == [newest]


def test_a_newest_message_of_ours_after_the_subscription_is_left_out(asked: Asked) -> None:
    for offset, count in ((5, 1), (6, 0)):
        fields = {"id": message_id(NOW_MS, OURS, offset), "topic": "t", "payload": "x"}
        asked.client.hset("mqtt:msg:t", mapping=fields)
        assert len(asked.ids(PUBSUB, since=5, began_ms=NOW_MS)) == count


def test_a_topic_that_is_named_like_a_message_does_not_show_it(asked: Asked) -> None:
    """Whoever may subscribe to a name of a message may not read that message."""
    name = theirs(1)
    asked.insert(name, topic="secret")
    assert asked.ids(PUBSUB, topic=name) == []


RETAINED_FIELDS: dict[str, Any] = {
    "id": "m",
    "from": "app",
    "topic": "t",
    "payload": "on",
    "qos": 1,
}


@pytest.mark.parametrize("form", ["hash", "set"])
def test_a_retained_message_is_a_hash_or_the_newest_of_a_set(asked: Asked, form: str) -> None:
    fields = {**RETAINED_FIELDS, "ts": NOW_MS // 1000, "retain": "true"}
    if form == "hash":
        asked.client.hset("mqtt:retain:t", mapping=fields)
    else:
        asked.insert("a", "m", **fields)
        asked.client.zadd("mqtt:retain:t", {"a": 1, "m": 1})
    (message,) = asked.page(RETAIN).messages
    assert (message["id"], message["from"], message["qos"]) == ("m", "app", 1)
    assert (message["at_ms"], message["expires_ms"]) == (NOW_MS // 1000 * 1000, 0)
    assert message["payload"] == "b24="


@pytest.mark.parametrize("form", ["hash", "set"])
def test_a_retained_message_that_this_broker_has_written_is_none(asked: Asked, form: str) -> None:
    for name, count in ((message_id(NOW_MS, OURS, 5), 0), (theirs(5), 1)):
        asked.client.delete("mqtt:retain:t")
        if form == "hash":
            asked.client.hset("mqtt:retain:t", mapping={**RETAINED_FIELDS, "id": name})
        else:
            asked.insert(name)
            asked.client.zadd("mqtt:retain:t", {name: 1})
        assert len(asked.page(RETAIN).messages) == count


def test_a_retained_message_that_is_not_there_is_none(asked: Asked) -> None:
    page = asked.page(RETAIN)
    assert page.messages == [] and not page.more and not page.why
    asked.client.zadd("mqtt:retain:t", {"gone": 1})
    assert asked.page(RETAIN).messages == []
    asked.client.delete("mqtt:retain:t")
    asked.client.hset("mqtt:retain:t", "qos", 1)
    assert asked.page(RETAIN).messages == []


def test_a_retained_message_says_when_it_expires(asked: Asked) -> None:
    asked.client.hset("mqtt:retain:t", mapping=RETAINED_FIELDS)
    asked.client.pexpire("mqtt:retain:t", 60_000)
    (message,) = asked.page(RETAIN).messages
    assert 0 < message["expires_ms"] <= 60_000


def test_a_retained_message_goes_when_it_is_cleared_here(asked: Asked) -> None:
    asked.client.hset("mqtt:retain:t", mapping=RETAINED_FIELDS)
    row = event(RETAIN_DELETED, "", "t", seq=1)
    assert asked.sink.apply(batch((0, 0), (0, 1), row), INSTANCE) == []
    asked.fence = Fence(INSTANCE, (0, 1))
    assert asked.page(RETAIN).messages == []
