"""Does a session get what is in a store once, whatever fails when, and wait for nothing?"""

import pytest

from mqtt.message import Message
from mqtt.packets import Subscribe, Subscription
from session.delivery.fetching.inbox import (
    ACKED_MAX,
    FETCHES_MAX,
    LEASE_MS,
    FetchedMessage,
    FetchRequest,
)
from session.settings import Feed, Fetching
from storage.tables.feed_rows import ACKED, DELIVERED, FOREIGN, RETURNED, SENT, FeedEvent
from storage.tables.fetch_rows import PUBSUB, QUEUE
from storage.tables.tables import FETCHES, MAILBOX
from tests.session.feed.backends import NAME, take
from tests.session.harness import Broker, Client

KINDS = sum(1 << kind for kind in FOREIGN)
FEEDS = (
    Feed(
        NAME,
        (),
        KINDS,
        60_000,
        (Fetching(QUEUE, "queue/#", 3), Fetching(PUBSUB, "pubsub/#", 3, 3_600_000)),
    ),
)
SOON = (1 << 62, 1 << 62)  # a store that has everything


def ask(broker: Broker, reached: tuple[int, int] = SOON) -> FetchRequest | None:
    """Return the next request of the broker to its store."""
    broker.engine.handle_timeout(broker.now)
    broker.advance(250)  # what the store is told is in a batch
    return broker.engine.requests.next(NAME, reached)


def asked(broker: Broker) -> FetchRequest:
    """Return the next request, which is there."""
    request = ask(broker)
    assert request is not None
    return request


def answer(
    broker: Broker,
    request: FetchRequest,
    *ids: str,
    qos: int = 1,
    more: bool = False,
    upto: str = "",
    publisher: str = "app",
) -> None:
    """Answer a request with messages."""
    broker.engine.handle_timeout(broker.now)
    rows = [
        FetchedMessage(
            each, Message(request.topic, each.encode(), qos, False, b"", publisher, 1, 0, 0)
        )
        for each in ids
    ]
    broker.engine.inbox.fetched(
        request.number, rows, upto or (ids[-1] if ids else request.after), more=more
    )
    broker.settle()


def events(broker: Broker) -> list[tuple[int, str, str, bytes]]:
    """Return what the store is told of its own messages."""
    broker.advance(s=1)
    return [
        (row.kind, row.client_id, row.text, row.body)
        for row in take(broker)
        if isinstance(row, FeedEvent) and row.kind in FOREIGN
    ]


def fetching() -> Broker:
    """Return a broker that fetches from queues and topics."""
    return Broker(feeds=FEEDS)


@pytest.mark.parametrize("topic, kind", [("queue/a", QUEUE), ("pubsub/a", PUBSUB)])
def test_a_subscription_asks_and_gets(topic: str, kind: int) -> None:
    broker = fetching()
    client = broker.durable("c", topic)
    request = asked(broker)
    assert (request.kind, request.client_id, request.topic) == (kind, "c", topic)
    assert (request.after, request.count) == ("", 3)
    assert (request.not_before_ms > 0) is (kind == PUBSUB)
    assert ask(broker) is None
    answer(broker, request, "m1", "m2")
    first, second = client.messages()
    assert (first.payload, first.qos, first.dup, first.retain) == (b"m1", 1, False, False)
    client.acknowledge(first, second)
    told = [each for each in events(broker) if each[0] == ACKED]
    assert told == [(ACKED, "c", topic, b"m1"), (ACKED, "c", topic, b"m2")]
    assert broker.rows(MAILBOX) == [] and len(broker.rows(FETCHES)) == 1
    assert ask(broker) is None


@pytest.mark.parametrize("qos", [0, 1])
def test_every_store_is_told_of_the_delivery_with_the_id_of_the_message(qos: int) -> None:
    broker = Broker(feeds=(*FEEDS, Feed("other", (), 1 << SENT)), history_detail="off")
    client = broker.durable("c", "queue/a")
    answer(broker, asked(broker), "m1", qos=qos)
    assert client.message().payload == b"m1"
    broker.advance(s=1)
    (row,) = take(broker, "other")
    assert isinstance(row, FeedEvent)
    assert (row.client_id, row.text, row.qos, row.body) == ("c", "queue/a", qos, b"m1")


@pytest.mark.parametrize("topic", ["other", "queue/+", "queue/#", "$share/g/queue/a"])
def test_other_subscriptions_ask_nothing(topic: str) -> None:
    broker = fetching()
    broker.durable("c", topic)
    assert ask(broker) is None and broker.rows(FETCHES) == []


def test_a_subscription_with_qos_0_asks_nothing() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a", qos=0)
    assert ask(broker) is None
    client.subscribe("pubsub/a", qos=1)
    answer(broker, asked(broker), "m1", more=True)
    client.subscribe("pubsub/a", qos=0)
    assert ask(broker) is None
    client.subscribe("pubsub/a", qos=1)
    assert asked(broker).after == "m1"


def test_answers_wait_for_no_store() -> None:
    broker = fetching()
    client = broker.durable("c")
    assert client.subscribe("queue/a", qos=1) == [1]
    assert broker.engine.requests.owed(NAME) == 1


def test_a_page_goes_on_where_the_one_before_it_ended() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "m1", "m2", "m3", more=True)
    request = asked(broker)
    assert request.after == "m3"
    answer(broker, request, "m4")
    assert client.payloads() == [b"m1", b"m2", b"m3", b"m4"]
    assert ask(broker) is None


def test_a_page_without_messages_moves_the_position() -> None:
    broker = fetching()
    broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), more=True, upto="m7")
    request = asked(broker)
    assert request.after == "m7"
    answer(broker, request, more=True, upto="m7")  # it does not get on
    assert ask(broker) is None


def test_a_store_is_asked_once_it_has_everything_before() -> None:
    broker = fetching()
    broker.publish("pubsub/a")
    broker.durable("keep", "pubsub/+")
    broker.publish("pubsub/a")
    broker.durable("c", "pubsub/a")
    end = broker.engine.feeds.end()
    assert end[0] > 0
    assert ask(broker, (end[0] - 1, end[1])) is None
    assert ask(broker, end) is not None


def test_a_store_is_asked_once_it_knows_what_it_is_told_in_this_tick() -> None:
    broker = fetching()
    client = broker.durable("c", "queue/a")
    answer(broker, asked(broker), "m1", "m2", "m3", more=True)
    assert broker.engine.feeds.end()[1] == 3
    assert ask(broker, (0, 2)) is None
    assert ask(broker, broker.engine.feeds.end()) is not None
    assert len(client.messages()) == 3


def test_repeated_and_late_answers_are_harmless() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a", "queue/a")
    first, second = asked(broker), asked(broker)
    for request in (first, second, first, second):
        answer(broker, request, "m1", "m2")
    assert sorted(client.payloads()) == [b"m1", b"m1", b"m2", b"m2"]
    client.unsubscribe("pubsub/a", "queue/a")
    client.subscribe("queue/a", qos=1)
    late = asked(broker)
    client.drop()
    answer(broker, late, "m3")
    client = broker.durable("c")
    answer(broker, late, "m3")
    assert all(message.dup for message in client.messages())


def test_ids_that_were_had_before_are_passed_over() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "m2", "m1", "m2", "m3")
    assert client.payloads() == [b"m2"]  # a page is no longer than what was asked for
    client.subscribe("pubsub/a", qos=1)
    answer(broker, asked(broker), "m1", "m2", "m3")
    assert client.payloads() == [b"m3"]


def test_a_message_of_another_topic_is_refused() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    request = asked(broker)
    message = Message("secret", b"x", 1, False, b"", "app", 1, 0, 0)
    broker.engine.inbox.fetched(request.number, [FetchedMessage("m", message)], "m", more=False)
    broker.settle()
    client.expect_nothing()


def test_an_id_that_is_too_long_is_passed_over() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "a" * 256, "b")
    assert client.payloads() == [b"b"]


@pytest.mark.parametrize("topic", ["queue/a", "pubsub/a"])
def test_a_message_that_has_no_room_is_asked_for_again(topic: str) -> None:
    broker = fetching()
    client = broker.connect("c", clean_start=False, session_expiry_interval=100, receive_maximum=2)
    client.subscribe(topic, qos=1)
    request = asked(broker)
    assert request.count == 2
    answer(broker, request, "m1", "m2", "m3")
    messages = client.messages()
    assert [each.payload for each in messages] == [b"m1", b"m2"]
    assert ask(broker) is None and broker.engine.requests.owed(NAME) == 1
    client.acknowledge(*messages)
    answer(broker, asked(broker), "m3")
    assert client.payloads() == [b"m3"]


@pytest.mark.parametrize("keep", [99, 0])
@pytest.mark.parametrize("topic", ["queue/a", "pubsub/a"])
def test_a_crash_loses_nothing_and_doubles_nothing(topic: str, keep: int) -> None:
    broker = fetching()
    client = broker.durable("c", topic)
    broker.hold_commits()
    answer(broker, asked(broker), "m1", "m2")
    assert client.messages() == []  # a PUBLISH waits for its commit
    broker.restart(keep=keep)
    client = broker.durable("c")
    found = client.payloads()
    request = asked(broker)
    answer(broker, request, "m1", "m2") if not found else answer(broker, request)
    assert found + client.payloads() == [b"m1", b"m2"]
    if keep and topic == "pubsub/a":
        assert request.after == "m2"


def test_a_restarted_session_asks_again_and_acknowledges_what_it_had() -> None:
    broker = fetching()
    client = broker.durable("c", "queue/a")
    answer(broker, asked(broker), "m1")
    assert [each[0] for each in events(broker)] == [DELIVERED]
    broker.restart()
    client = broker.durable("c")
    message = client.message()
    assert message.dup and not message.retain
    assert asked(broker).topic == "queue/a"
    client.acknowledge(message)
    assert (ACKED, "c", "queue/a", b"m1") in events(broker)


@pytest.mark.parametrize("qos, told", [(1, ACKED), (2, ACKED)])
def test_an_exchange_ends_once(qos: int, told: int) -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a", qos=2)
    answer(broker, asked(broker), "m1", qos=qos)
    client.receive_all()
    assert [each[0] for each in events(broker)] == [told]


def test_a_message_with_qos_0_is_acknowledged_when_it_is_sent() -> None:
    broker = fetching()
    client = broker.durable("c", "queue/a")
    answer(broker, asked(broker), "m1", qos=0)
    assert client.message().qos == 0
    assert [each[0] for each in events(broker)] == [ACKED]


def test_two_sessions_never_get_the_same_message_of_a_queue() -> None:
    broker = fetching()
    first = broker.durable("a", "queue/a")
    second = broker.durable("b", "queue/a")
    one, other = asked(broker), asked(broker)
    answer(broker, one, "m1")
    answer(broker, other, "m1")  # the store forgot the claim
    assert first.payloads() + second.payloads() == [b"m1"]


def test_messages_that_others_have_do_not_hide_those_behind_them() -> None:
    broker = fetching()
    broker.durable("a", "queue/a")
    answer(broker, asked(broker), "m1", "m2", "m3")
    client = broker.durable("b", "queue/a")
    answer(broker, asked(broker), "m1", "m2", "m3", more=True)
    request = asked(broker)
    assert request.count == 6
    answer(broker, request, "m1", "m2", "m3", "m4", more=True)
    assert client.payloads() == [b"m4"]
    answer(broker, asked(broker), "m1", "m2", "m3", more=True)
    assert ask(broker) is None  # it does not get on


def test_what_a_session_leaves_is_for_others() -> None:
    broker = fetching()
    client = broker.durable("a", "queue/a")
    answer(broker, asked(broker), "m1")
    client.disconnect(session_expiry_interval=0)
    assert [each[0] for each in events(broker)] == [DELIVERED, RETURNED]
    assert broker.rows(FETCHES) == [] and broker.rows(MAILBOX) == []
    other = broker.durable("b", "queue/a")
    answer(broker, asked(broker), "m1")
    assert other.payloads() == [b"m1"]


def test_what_an_offline_session_leaves_is_for_others() -> None:
    broker = fetching()
    client = broker.durable("a", "queue/a")
    answer(broker, asked(broker), "m1")
    client.drop()
    broker.connect("a", clean_start=True)
    assert [each[0] for each in events(broker)] == [DELIVERED, RETURNED]
    assert broker.rows(FETCHES) == [] and broker.rows(MAILBOX) == []


def test_an_answer_that_came_after_half_the_lease_is_not_used() -> None:
    broker = fetching()
    client = broker.durable("c", "queue/a")
    request = asked(broker)
    broker.advance(LEASE_MS // 2 + 1)
    answer(broker, request, "m1")
    client.expect_nothing()
    answer(broker, asked(broker), "m1")
    assert client.payloads() == [b"m1"]


def test_a_session_in_memory_gets_each_message_once() -> None:
    broker = fetching()
    client = broker.clean("c", "queue/a", qos=1)
    answer(broker, asked(broker), "m1")
    client.acknowledge(client.message())
    client.subscribe("queue/a", qos=1)
    answer(broker, asked(broker), "m2")
    assert client.payloads() == [b"m2"]
    client.drop()
    assert [each[::3] for each in events(broker)] == [(ACKED, b"m1"), (RETURNED, b"m2")]
    assert broker.rows(FETCHES) == []


def test_a_position_is_told_in_order() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "m1", "m2", "m3")
    first, second, third = client.messages()
    client.acknowledge(third, second)
    assert events(broker) == []
    client.acknowledge(first)
    assert [each[3] for each in events(broker)] == [b"m1", b"m2", b"m3"]


def test_with_many_acknowledgements_that_wait_nothing_is_asked_for() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "m", more=True)
    first = client.message()
    for number in range(ACKED_MAX // 3 + 1):
        ids = [f"n{number * 3 + each:04}" for each in range(3)]
        answer(broker, asked(broker), *ids, more=True)
        client.receive_all()
    assert ask(broker) is None
    client.acknowledge(first)
    assert len(events(broker)) > ACKED_MAX
    assert asked(broker).topic == "pubsub/a"


def test_what_is_in_flight_is_not_sent_again_to_a_new_subscription() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "m1")
    client.unsubscribe("pubsub/a")
    client.subscribe("pubsub/a", qos=1)
    answer(broker, asked(broker), "m1", "m2")
    assert client.payloads() == [b"m1", b"m2"]


def test_the_rules_are_asked_for_each_message() -> None:
    broker = fetching()
    client = broker.durable("c", "queue/a")
    broker.rules.forbid("receive", "queue/a")
    answer(broker, asked(broker), "m1", more=True)
    client.expect_nothing()
    assert [each[0] for each in events(broker)] == [RETURNED]
    assert ask(broker) is None


def test_a_client_does_not_get_its_own_messages_if_it_says_so() -> None:
    broker = fetching()
    client = broker.durable("c")
    client.send(Subscribe(1, [Subscription("pubsub/a", 1, no_local=True)]))
    answer(broker, asked(broker), "m1", publisher="c")
    answer(broker, asked(broker), "m2") if ask(broker) else None
    assert client.messages() == []


def test_a_message_that_is_too_large_goes_back() -> None:
    broker = fetching()
    client = broker.connect(
        "c", clean_start=False, session_expiry_interval=100, maximum_packet_size=40
    )
    client.subscribe("queue/a", qos=1)
    answer(broker, asked(broker), "m" * 50)
    answer_qos0 = [each[0] for each in events(broker)]
    client.expect_nothing()
    assert answer_qos0 == [RETURNED]


def test_what_is_under_way_is_asked_again_when_the_way_is_lost() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    lost = asked(broker)
    broker.engine.requests.ask_again(NAME)
    again = asked(broker)
    assert again.number != lost.number
    answer(broker, lost, "m1")
    client.expect_nothing()
    answer(broker, again, "m1")
    assert client.payloads() == [b"m1"]


def test_a_subscribe_while_a_request_is_under_way_asks_once_more() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a")
    request = asked(broker)
    client.subscribe("pubsub/a", qos=1)
    assert ask(broker) is None
    answer(broker, request, "m1")
    assert asked(broker).after == "m1"


def test_a_takeover_asks_again_from_where_it_was() -> None:
    broker = fetching()
    broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "m1")
    broker.durable("c")
    assert asked(broker).after == "m1"


def test_an_unsubscribed_topic_is_forgotten() -> None:
    broker = fetching()
    client = broker.durable("c", "pubsub/a", "pubsub/b")
    client.unsubscribe("pubsub/a")
    assert asked(broker).topic == "pubsub/b"
    assert ask(broker) is None and len(broker.rows(FETCHES)) == 1


def test_a_session_asks_for_a_limited_number_of_topics() -> None:
    broker = fetching()
    client = broker.durable("c")
    topics = [f"queue/{number}" for number in range(FETCHES_MAX + 1)]
    client.send(Subscribe(1, [Subscription(topic, 1) for topic in topics]))
    assert broker.engine.requests.owed(NAME) == FETCHES_MAX


def test_without_the_rule_the_rows_go() -> None:
    broker = fetching()
    broker.durable("c", "pubsub/a", "queue/a")
    broker.settings.feeds = (Feed(NAME, (), KINDS, 0, (Fetching(QUEUE, "queue/#"),)),)
    broker.restart()
    broker.durable("c")
    assert len(broker.rows(FETCHES)) == 1
    broker.settings.feeds = ()
    broker.restart()
    assert broker.rows(FETCHES) == []


def test_a_rule_that_is_new_holds_for_subscriptions_that_were_there() -> None:
    broker = Broker()
    broker.durable("c", "pubsub/a")
    broker.settings.feeds = FEEDS
    broker.restart()
    broker.durable("c")
    assert asked(broker).began_ms == 0


def test_a_damaged_row_is_told_and_the_topic_is_fetched_anew() -> None:
    broker = fetching()
    broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "m1")
    key, value = broker.rows(FETCHES)[0]
    broker.store.write([(FETCHES, key, value[:-1] + b"?")])
    broker.store.sync()
    broker.is_audited = False
    broker.restart()
    broker.durable("c")
    assert asked(broker).after == ""


def test_the_subscription_identifier_is_sent_also_again() -> None:
    broker = fetching()
    client = broker.durable("c")
    client.subscribe("pubsub/a", qos=1, identifier=7)
    answer(broker, asked(broker), "m1")
    assert client.message().subscription_identifiers == (7,)
    broker.restart()
    assert broker.durable("c").message().subscription_identifiers == (7,)


def test_a_page_that_was_cut_is_no_reason_to_skip_what_it_had() -> None:
    broker = fetching()
    client: Client = broker.durable("c", "pubsub/a")
    answer(broker, asked(broker), "m1", "m2", "m3", "m4", upto="m4", more=True)
    assert client.payloads() == [b"m1", b"m2", b"m3"]
    assert asked(broker).after == "m3"
