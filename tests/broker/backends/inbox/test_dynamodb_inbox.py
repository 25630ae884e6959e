"""Does a real DynamoDB give each message to the right session, and only what it should?"""

import base64
import time
from typing import Any

import pytest

from broker.backends.dynamodb_tables import ordered_id
from broker.backends.inbox.questions import Page, Question
from broker.backends.message_ids import decimal_id, message_number, node_number
from broker.backends.sink import Fence, FenceRefused, Refused, Unavailable
from storage.tables.feed_rows import ACKED, DELIVERED, RETURNED
from storage.tables.fetch_rows import PUBSUB, QUEUE, RETAIN, SUBSCRIPTIONS
from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.backends.dynamodb_sinks import opened
from tests.broker.backends.told_rows import INSTANCE, NODE, NOW_MS, batch, event, rule

pytestmark = [pytest.mark.full, needs_dynamodb]  # starts processes

RULES = (
    rule("session.subscribed", "#", action="on_message_fetch_for_queue"),
    rule("message.acked", "q/#", number=2, action="on_message_acked_for_queue"),
    rule("session.subscribed", "#", number=3, action="on_message_fetch"),
    rule("message.acked", "p/#", number=4, action="on_message_acked"),
    rule("session.subscribed", "#", number=5, action="on_retain_lookup"),
    rule("client.connected", number=6, action="on_subscribe_lookup"),
)
OURS = node_number(NODE)
FENCE = Fence(INSTANCE, (0, 0))
TOPICS = {QUEUE: "q/t", PUBSUB: "p/t", RETAIN: "r/t", SUBSCRIPTIONS: ""}
LAYOUTS = pytest.mark.parametrize("layout", ["v1", "v2"], indirect=True)


def theirs(rest: int, at_ms: int = NOW_MS, node: int = OURS ^ 1) -> int:
    """Return the number of an id that an application makes."""
    return message_number(at_ms, node, rest)


class Asked:
    """A DynamoDB with a sink that is asked."""

    def __init__(self, server: DynamodbServer, layout: str) -> None:
        self.server = server
        self.layout = layout
        self.sink = opened(server, *RULES, layout=layout)
        self.fence = FENCE

    def insert(self, *names: str, kind: int = QUEUE, **attributes: dict[str, Any]) -> None:
        """Put messages into the tables as an application does."""
        topic = {"topic": {"S": TOPICS[kind]}}
        lists = self.server.table("topic_msg_map") if self.layout == "v1" else []
        known = [each for item in lists if item["topic"] == TOPICS[kind] for each in item["MsgId"]]
        for name in names:
            item = {
                **topic,
                **{"msgid": {"S": name}, "sender": {"S": "app"}, "qos": {"N": "1"}},
                **{"payload": {"S": name}, "arrived": {"N": str(NOW_MS // 1000)}},
            }
            self.server.put("msg", {**item, **attributes})
            if self.layout == "v2":
                self.server.put("topic_msg", {**topic, "msgid": {"S": name}})
        if self.layout == "v1":
            self.server.put("topic_msg_map", {**topic, "MsgId": {"SS": sorted({*known, *names})}})

    def page(self, kind: int = QUEUE, client_id: str = "c", **told: Any) -> Page:
        """Ask for a page."""
        given = {
            **{"fetch": 1, "run": 1, "kind": kind, "client_id": client_id, "topic": TOPICS[kind]},
            **{"after": "", "count": 10, "since": 0, "began_ms": 0, "not_before_ms": 0},
        }
        page: Page = self.sink.fetch(Question({**given, **told}), self.fence)
        return page

    def ids(self, kind: int = QUEUE, client_id: str = "c", **told: Any) -> list[str]:
        """Ask for a page; return the ids."""
        return [each["id"] for each in self.page(kind, client_id, **told).messages]

    def tell(self, kind: int, name: str, client_id: str = "c", topic: str = "q/t") -> None:
        """Tell the store what became of a message of its own."""
        seq = self.fence.cursor[1] + 1
        row = event(kind, client_id, topic, seq=seq, username="cache", body=name.encode())
        assert self.sink.apply(batch(self.fence.cursor, (0, seq), row), INSTANCE) == []
        self.fence = Fence(INSTANCE, (0, seq))

    def lease_ends(self, name: str) -> None:
        """Let the time of a claim pass."""
        item = {each["msgid"]: each for each in self.server.table("msg")}[name]
        assert item["holdfast_until"] > time.time() * 1000
        with_past = {"holdfast_claim": {"S": item["holdfast_claim"]}, "holdfast_until": {"N": "1"}}
        self.server.put("msg", {"msgid": {"S": name}, "payload": {"S": name}, **with_past})


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> str:
    """The layout of the list of ids."""
    return str(getattr(request, "param", "v1"))


@pytest.fixture
def asked(running_dynamodb: DynamodbServer, layout: str) -> Asked:
    """Empty tables that are asked."""
    return Asked(running_dynamodb.fresh(), layout)


@LAYOUTS
def test_two_clients_never_get_the_same_message_of_a_queue(asked: Asked) -> None:
    names = [decimal_id(theirs(number)) for number in range(5)]
    asked.insert(*reversed(names))
    page = asked.page(client_id="a", count=2)
    first, second = [each["id"] for each in page.messages], asked.ids(client_id="b")
    assert page.more and first + second == names
    assert asked.ids(client_id="b") == second  # its own leases, if an answer was lost
    assert asked.ids(client_id="x") == []


def test_a_lease_ends(asked: Asked) -> None:
    asked.insert("m")
    assert asked.ids(client_id="a") == ["m"]
    assert asked.ids(client_id="b") == []
    asked.lease_ends("m")
    assert asked.ids(client_id="b") == ["m"] and asked.ids(client_id="a") == []


def test_a_claim_that_somebody_else_was_quicker_with_is_not_taken(asked: Asked) -> None:
    asked.insert("m", "n")
    call, other = asked.sink.call, opened(asked.server, *RULES)
    question = Question(
        {
            **{"fetch": 1, "run": 1, "kind": QUEUE, "client_id": "b", "topic": "q/t", "after": ""},
            **{"count": 1, "since": 0, "began_ms": 0, "not_before_ms": 0},
        }
    )

    def slower(method: str, **arguments: Any) -> Any:
        if method == "update_item":
            asked.sink.call = call
            assert [each["id"] for each in other.fetch(question, asked.fence).messages] == ["m"]
        return call(method, **arguments)

    asked.sink.call = slower  # after it has seen that the message is free
    assert asked.ids(client_id="a") == ["n"]


@LAYOUTS
def test_what_a_client_keeps_is_its_own_until_it_acknowledges(asked: Asked, layout: str) -> None:
    asked.insert("m", "n")
    assert asked.ids(client_id="a", count=1) == ["m"]
    asked.tell(DELIVERED, "m", "a")
    assert asked.ids(client_id="a") == ["n"] and asked.ids(client_id="b") == []
    asked.tell(ACKED, "m", "a")
    assert [each["msgid"] for each in asked.server.table("msg")] == ["n"]
    if layout == "v1":
        assert [each["MsgId"] for each in asked.server.table("topic_msg_map")] == [["n"]]
    else:
        assert [each["msgid"] for each in asked.server.table("topic_msg")] == ["n"]


def test_what_a_client_gives_back_is_for_others(asked: Asked) -> None:
    asked.insert("m")
    asked.ids(client_id="a")
    asked.tell(DELIVERED, "m", "a")
    asked.tell(RETURNED, "m", "b")  # it has nothing to give back
    assert asked.ids(client_id="b") == []
    asked.tell(RETURNED, "m", "a")
    assert asked.ids(client_id="b") == ["m"]


@LAYOUTS
def test_a_position_goes_through_all_pages_in_the_order_of_ids(asked: Asked) -> None:
    numbers = [theirs(number, NOW_MS + number) for number in range(7)]
    asked.insert(*(decimal_id(each) for each in numbers), kind=PUBSUB)
    found: list[str] = []
    after, more = "", True
    while more:
        page = asked.page(PUBSUB, after=after, count=2)
        found += [each["id"] for each in page.messages]
        after, more = page.upto, page.more
    assert found == list(map(ordered_id, numbers))


def test_a_position_is_where_the_client_has_acknowledged(asked: Asked) -> None:
    numbers = [theirs(number) for number in range(3)]
    asked.insert(*map(decimal_id, numbers), kind=PUBSUB)
    asked.tell(ACKED, ordered_id(numbers[1]), topic="p/t")
    assert asked.server.table("acked") == [
        {"topic": "p/t", "clientid": "c", "msgid": decimal_id(numbers[1])}
    ]
    assert asked.ids(PUBSUB) == [ordered_id(numbers[2])]
    assert asked.ids(PUBSUB, "other") == list(map(ordered_id, numbers))


def test_an_id_that_is_no_number_has_no_place_behind_a_position(asked: Asked) -> None:
    number = theirs(1)
    asked.insert("m", decimal_id(number), kind=PUBSUB)
    assert asked.ids(PUBSUB) == [ordered_id(number)]


@LAYOUTS
def test_large_lists_are_read_in_parts(asked: Asked, layout: str) -> None:
    names = [decimal_id(theirs(number)) for number in range(230)]
    asked.insert(*names)
    assert asked.ids(count=1000) == names[:100]  # no more claims for one question
    assert asked.page(client_id="b", count=1000).more
    assert asked.ids(client_id="d", count=1000) == names[200:]


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB])
def test_messages_of_ours_after_the_subscription_are_left_out(asked: Asked, kind: int) -> None:
    before, after = theirs(5, node=OURS), theirs(6, node=OURS)
    earlier = theirs(900, NOW_MS - 1, OURS)  # of a database that is gone
    asked.insert(*map(decimal_id, (earlier, before, after)), kind=kind)
    shown = decimal_id if kind == QUEUE else ordered_id
    assert asked.ids(kind, since=5, began_ms=NOW_MS) == [shown(earlier), shown(before)]
    if kind == PUBSUB:
        page = asked.page(PUBSUB, after=ordered_id(before), since=5, began_ms=NOW_MS)
        assert page.messages == [] and page.upto == ordered_id(after)


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB])
def test_old_messages_are_left_out(asked: Asked, kind: int) -> None:
    old, new = theirs(1, NOW_MS - 1), theirs(2)
    asked.insert(decimal_id(old), decimal_id(new), kind=kind)
    shown = decimal_id if kind == QUEUE else ordered_id
    assert asked.ids(kind, not_before_ms=NOW_MS) == [shown(new)]


def test_an_old_message_with_another_id_is_known_by_its_arrival(asked: Asked) -> None:
    asked.insert("m")
    assert asked.ids(not_before_ms=NOW_MS + 1000) == []
    assert asked.ids(not_before_ms=NOW_MS - 1000) == ["m"]


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB])
def test_what_is_no_message_is_passed_over(asked: Asked, kind: int) -> None:
    good, bad, gone = (decimal_id(theirs(number)) for number in range(3))
    asked.insert(good, bad, gone, "x" * 2000, kind=kind)
    asked.server.put("msg", {"msgid": {"S": bad}, "payload": {"BOOL": True}})
    asked.server.put(
        "msg", {"msgid": {"S": gone}, "payload": {"S": "x"}, "expires_at": {"N": "1000"}}
    )
    assert [each["payload"] for each in asked.page(kind).messages] == [
        base64.b64encode(good.encode()).decode()
    ]


def test_answers_have_a_size(asked: Asked) -> None:
    names = [decimal_id(theirs(number)) for number in range(4)]
    asked.insert(*names, payload={"B": bytes(200_000)})
    page = asked.page()
    assert len(page.messages) == 2 and page.more
    asked.insert(*names, kind=PUBSUB, payload={"B": bytes(200_000)})
    page = asked.page(PUBSUB)
    assert len(page.messages) == 2 and page.more
    assert asked.page(PUBSUB, after=page.upto).more is False


def retained(asked: Asked, name: str = "m", **attributes: dict[str, Any]) -> None:
    """Put a retained message into the table as an application does."""
    item = {
        **{"topic": {"S": "r/t"}, "msgid": {"S": name}, "sender": {"S": "app"}},
        **{"qos": {"N": "1"}, "payload": {"S": "on"}, "arrived": {"N": "5"}},
    }
    asked.server.put("retain", {**item, **attributes})


def test_a_retained_message_is_found(asked: Asked) -> None:
    assert asked.page(RETAIN).messages == []
    retained(asked)
    (message,) = asked.page(RETAIN).messages
    assert (message["id"], message["from"], message["qos"]) == ("m", "app", 1)
    assert (message["payload"], message["at_ms"], message["expires_ms"]) == ("b24=", 5000, 0)


def test_a_retained_message_has_the_time_of_its_id(asked: Asked) -> None:
    retained(asked, decimal_id(theirs(1, 5678)))
    assert [each["at_ms"] for each in asked.page(RETAIN).messages] == [5678]


def test_a_retained_message_that_this_broker_has_written_is_none(asked: Asked) -> None:
    retained(asked, decimal_id(theirs(1, node=OURS)))
    assert asked.page(RETAIN).messages == []


def test_a_retained_message_says_when_it_expires(asked: Asked) -> None:
    soon = int(time.time()) + 60
    retained(asked, expires_at={"N": str(soon)})
    (message,) = asked.page(RETAIN).messages
    assert 0 < message["expires_ms"] <= 60_000
    retained(asked, expires_at={"N": "1000"})  # the service deletes it later
    assert asked.page(RETAIN).messages == []


def test_a_list_of_subscriptions_comes_in_pages_and_in_order(asked: Asked) -> None:
    for number in range(10):
        key = {"clientid": {"S": "c"}, "topic": {"S": f"f/{number}"}}
        asked.server.put("sub", {**key, "qos": {"N": str(number % 3)}})
    asked.server.put("sub", {"clientid": {"S": "c"}, "topic": {"S": "f/45"}, "qos": {"N": "7"}})
    page = asked.page(SUBSCRIPTIONS, count=6)
    assert [each for each, _ in page.subscriptions] == [f"f/{number}" for number in range(6)]
    assert [qos for _, qos in page.subscriptions] == [0, 1, 2, 0, 1, 2]
    assert page.more and page.unusable == 1 and not page.why
    page = asked.page(SUBSCRIPTIONS, count=6, after="f/5")
    assert [each for each, _ in page.subscriptions] == ["f/6", "f/7", "f/8", "f/9"]
    assert not page.more
    assert asked.page(SUBSCRIPTIONS, "nobody").subscriptions == []


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB, RETAIN, SUBSCRIPTIONS])
def test_a_store_that_went_back_is_not_asked(asked: Asked, kind: int) -> None:
    if kind != SUBSCRIPTIONS:
        asked.insert("m", kind=kind)
    asked.sink.start(Fence("other", (0, 0)), is_rewind=False)
    with pytest.raises(FenceRefused):
        asked.page(kind)


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB, RETAIN])
def test_a_topic_that_is_no_key_is_refused(asked: Asked, kind: int) -> None:
    with pytest.raises(Refused, match="xxx: "):
        asked.page(kind, topic="x" * 3000)


def test_a_store_that_is_away_is_told(asked: Asked) -> None:
    asked.sink.close()
    with pytest.raises(Unavailable):
        asked.page()


@pytest.mark.parametrize("kind", [QUEUE, PUBSUB, RETAIN])
def test_a_store_that_is_too_busy_is_away(asked: Asked, kind: int) -> None:
    asked.insert("m", kind=kind)
    client = asked.sink._client

    def busy(**arguments: Any) -> None:
        raise client.exceptions.ProvisionedThroughputExceededException(
            {"Error": {"Code": "ProvisionedThroughputExceededException", "Message": "busy"}}, "x"
        )

    fence, asked.sink.look = asked.fence, lambda: FENCE
    client.get_item = busy
    with pytest.raises(Unavailable, match="busy"):
        asked.page(kind)
    assert asked.fence is fence and asked.sink._client is None  # it connects again
