"""Does a real Cassandra give each session what it should get, in pages, in order?"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from broker.backends.inbox.questions import SUBSCRIPTIONS_MAX, Page, Question
from broker.backends.message_ids import message_id, node_number
from broker.backends.sink import Fence, FenceRefused, Options, Refused, Rule, Unavailable
from storage.tables.feed_rows import ACKED
from storage.tables.fetch_rows import PUBSUB, RETAIN, SUBSCRIPTIONS
from tests.broker.backends.cassandra_server import CassandraServer, needs_cassandra, shared
from tests.broker.backends.told_rows import INSTANCE, NODE, NOW_MS, batch, event, rule

cassandra_sink = pytest.importorskip("broker.backends.cassandra_sink")
pytestmark = [pytest.mark.full, needs_cassandra]  # starts processes

RULES: Final = (
    rule("session.subscribed", "#", action="on_message_fetch"),
    rule("message.acked", "#", number=2, action="on_message_acked"),
    rule("session.subscribed", "#", number=3, action="on_retain_lookup"),
    rule("client.connected", number=4, action="on_subscribe_lookup"),
)
OURS: Final = node_number(NODE)
FENCE: Final = Fence(INSTANCE, (0, 0))


def theirs(number: int, at_ms: int = NOW_MS) -> str:
    """Return an id that an application makes."""
    return message_id(at_ms, OURS ^ 1, number)


class Asked:
    """A Cassandra with a sink that is asked."""

    def __init__(self, server: CassandraServer) -> None:
        self.server: Final = server
        told = [Rule(each) for each in RULES]
        options = Options("cache", "cassandra", NODE, server.options(), told)
        self.sink: Any = cassandra_sink.CassandraSink(options)
        self.sink.create()
        assert self.sink.open() is None
        self.sink.start(FENCE, is_rewind=False)

    def insert(self, *ids: str, topic: str = "t", payload: str = "'x'") -> None:
        """Put messages into the store as an application does."""
        with self.server.session() as session:
            for each in ids:
                session.execute(
                    f"INSERT INTO {self.server.keyspace}.msg (topic, msgid, sender, qos, payload, "
                    f"arrived) VALUES (%s, %s, 'app', 2, textAsBlob({payload}), 1700000000000)",
                    (topic, each),
                )

    def retain(self, name: str | None, payload: str = "'on'", more: str = "") -> None:
        """Put a retained message into the store as an application does."""
        keyspace = self.server.keyspace
        with self.server.session() as session:
            if name is not None:
                session.execute(
                    f"INSERT INTO {keyspace}.msg (topic, msgid, sender, qos, retain, payload, "
                    f"arrived) VALUES ('t', %s, 'app', 2, 1, textAsBlob({payload}), 5900) {more}",
                    (name,),
                )
            session.execute(
                f"INSERT INTO {keyspace}.retain (topic, msgid) VALUES ('t', %s)", (name,)
            )

    def subscribe(self, *rows: tuple[str, int | None]) -> None:
        """Subscribe the client as an application does."""
        with self.server.session() as session:
            insert = session.prepare(
                f"INSERT INTO {self.server.keyspace}.sub (clientid, topic, qos) VALUES ('c', ?, ?)"
            )
            for sent in [session.execute_async(insert, row) for row in rows]:
                sent.result()

    def page(self, client_id: str = "c", **told: Any) -> Page:
        """Ask for a page."""
        given = {
            **{"fetch": 1, "run": 1, "kind": PUBSUB, "client_id": client_id, "topic": "t"},
            **{"after": "", "count": 10, "since": 0, "began_ms": 0, "not_before_ms": 0},
        }
        page: Page = self.sink.fetch(Question({**given, **told}), FENCE)
        return page

    def ids(self, client_id: str = "c", **told: Any) -> list[str]:
        """Ask for a page; return the ids."""
        return [each["id"] for each in self.page(client_id, **told).messages]


@pytest.fixture
def asked() -> Iterator[Asked]:
    """A sink with a keyspace of the test's own."""
    made = Asked(shared().fresh())
    yield made
    made.sink.close()


def test_messages_come_in_order_with_what_the_application_has_written(asked: Asked) -> None:
    asked.insert(theirs(2), theirs(1), "0001")
    page = asked.page()
    assert [each["id"] for each in page.messages] == ["0001", theirs(1), theirs(2)]
    assert page.messages[0] == {
        "id": "0001", "from": "app", "qos": 2, "payload": "eA==",
        "at_ms": 1_700_000_000_000, "expires_ms": 0,
    }  # fmt: skip
    assert (page.more, page.upto) == (False, theirs(2))


def test_a_position_in_the_store_or_of_the_broker_is_where_it_goes_on(asked: Asked) -> None:
    ids = [theirs(number) for number in range(1, 6)]
    asked.insert(*ids)
    row = event(ACKED, "c", "t", seq=1, username="cache", body=ids[1].encode())
    asked.sink.apply(batch((0, 0), (0, 1), row), INSTANCE)
    asked.sink.start(FENCE, is_rewind=True)
    assert asked.ids() == ids[2:]
    assert asked.ids("another") == ids
    assert asked.ids(after=ids[3]) == ids[4:]


def test_all_pages_come_and_none_twice(asked: Asked) -> None:
    ids = [theirs(number) for number in range(1, 26)]
    asked.insert(*ids)
    found: list[str] = []
    after, more = "", True
    while more:
        page = asked.page(after=after)
        found += [each["id"] for each in page.messages]
        after, more = page.upto, page.more
    assert found == ids


def test_what_is_too_old_or_comes_from_our_own_log_is_left_out(asked: Asked) -> None:
    old, new = theirs(1, NOW_MS - 1000), theirs(1)
    ours, before = message_id(NOW_MS, OURS, 9), message_id(NOW_MS, OURS, 3)
    asked.insert(old, new, ours, before)
    assert set(asked.ids(since=5)) == {old, new, before}
    assert set(asked.ids(since=5, not_before_ms=NOW_MS)) == {new, before}
    assert asked.page(since=5).upto == max(new, ours, before), "it is not looked at again"


def test_a_row_without_a_payload_is_passed_over(asked: Asked) -> None:
    asked.insert(theirs(1), payload="null")
    asked.insert(theirs(2), payload="''")
    assert asked.ids() == [theirs(2)]


def test_a_store_that_is_elsewhere_does_not_answer(asked: Asked) -> None:
    asked.sink.start(Fence(INSTANCE, (5, 0)), is_rewind=False)
    with pytest.raises(FenceRefused):
        asked.page()


def test_a_topic_that_can_be_no_key_is_refused_and_a_dropped_table_waits(asked: Asked) -> None:
    with pytest.raises(Refused, match="65535"):
        asked.page(topic="x" * 65_536)
    asked.server.execute("DROP TABLE {k}.msg")
    with pytest.raises(Unavailable, match="does not exist"):
        asked.page()


def test_the_retained_message_of_a_topic_is_the_one_that_the_store_names(asked: Asked) -> None:
    assert asked.page(kind=RETAIN).messages == []
    asked.insert("another")
    asked.retain("m")
    assert asked.page(kind=RETAIN).messages == [
        {"id": "m", "from": "app", "qos": 2, "payload": "b24=", "at_ms": 5900, "expires_ms": 0}
    ]
    assert asked.page(kind=RETAIN, topic="u").messages == []


def test_the_time_of_a_retained_message_is_exact(asked: Asked) -> None:
    asked.retain(theirs(1, 5100))
    assert [each["at_ms"] for each in asked.page(kind=RETAIN).messages] == [5900]
    asked.server.execute(
        "UPDATE {k}.msg SET arrived = null WHERE topic = 't' AND msgid = %s", theirs(1, 5100)
    )
    assert [each["at_ms"] for each in asked.page(kind=RETAIN).messages] == [5100]


def test_a_retained_message_expires_when_its_row_does(asked: Asked) -> None:
    asked.retain("m", more="USING TTL 60")
    (message,) = asked.page(kind=RETAIN).messages
    assert 0 < message["expires_ms"] <= 60_000


def test_a_retained_message_that_this_broker_has_written_is_none(asked: Asked) -> None:
    asked.retain(message_id(NOW_MS, OURS, 1))
    assert asked.page(kind=RETAIN).messages == []


def test_a_retained_message_that_is_gone_is_none(asked: Asked) -> None:
    asked.retain("m")
    asked.server.execute("DELETE FROM {k}.msg WHERE topic = 't'")
    assert asked.page(kind=RETAIN).messages == []
    asked.retain("m", payload="null")
    assert asked.page(kind=RETAIN).messages == []
    asked.retain(None)
    assert asked.page(kind=RETAIN).messages == []


def test_a_list_of_subscriptions_comes_in_pages_and_in_order(asked: Asked) -> None:
    asked.subscribe(*((f"f/{number}", number % 3) for number in range(10)), ("f/45", 7))
    page = asked.page(kind=SUBSCRIPTIONS, count=6)
    assert page.subscriptions == [
        ("f/0", 0), ("f/1", 1), ("f/2", 2), ("f/3", 0), ("f/4", 1)
    ]  # fmt: skip
    assert page.more and page.unusable == 1 and not page.why
    page = asked.page(kind=SUBSCRIPTIONS, count=6, after="f/45")
    assert [each for each, _ in page.subscriptions] == ["f/5", "f/6", "f/7", "f/8", "f/9"]
    assert not page.more
    assert asked.page("nobody", kind=SUBSCRIPTIONS).subscriptions == []


def test_rows_that_are_no_subscriptions_end_no_list(asked: Asked) -> None:
    """A page without any, and with more behind it, would end what the store has begun."""
    asked.subscribe(*((f"a/{number}", None) for number in range(7)), ("b", 1))
    page = asked.page(kind=SUBSCRIPTIONS, count=3)
    assert (page.subscriptions, page.more, page.unusable) == ([("b", 1)], False, 7)


def test_a_list_that_is_too_long_is_refused(asked: Asked) -> None:
    asked.subscribe(*((f"f/{number}", 1) for number in range(SUBSCRIPTIONS_MAX)))
    page = asked.page(kind=SUBSCRIPTIONS, count=256)
    assert len(page.subscriptions) == 256 and page.more and not page.why
    asked.subscribe(("one more", 1))
    page = asked.page(kind=SUBSCRIPTIONS, count=256)
    assert page.subscriptions == [] and "expected at most 10000" in page.why


@pytest.mark.parametrize("kind", [RETAIN, SUBSCRIPTIONS])
def test_what_is_looked_up_in_a_store_that_is_elsewhere_is_no_answer(
    asked: Asked, kind: int
) -> None:
    asked.sink.start(Fence(INSTANCE, (5, 0)), is_rewind=False)
    with pytest.raises(FenceRefused):
        asked.page(kind=kind)


def test_a_retained_topic_that_can_be_no_key_is_refused(asked: Asked) -> None:
    with pytest.raises(Refused, match="65535"):
        asked.page(kind=RETAIN, topic="x" * 65_536)
