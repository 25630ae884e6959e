"""Is a retained message of a store sent once for a SUBSCRIBE, and never after a newer one?"""

import pytest

from mqtt.encoder import encode
from mqtt.message import Message
from mqtt.packets import Puback, Subscribe, Subscription
from session.delivery.fetching.inbox import FETCHES_MAX, FetchedMessage, FetchRequest
from session.delivery.fetching.retain_lookup import AHEAD_MS
from session.delivery.retained_replay import REPLAY_MAX
from session.settings import Feed, Fetching
from storage.tables.feed_rows import ACKED, RETAINED, FeedEvent
from storage.tables.fetch_rows import PUBSUB, RETAIN
from storage.tables.tables import FETCHES, MAILBOX
from tests.session.delivery.fetching.test_inbox import ask, asked
from tests.session.feed.backends import EVERYTHING, NAME, take
from tests.session.harness import START_MS, Broker, Client
from tests.session.messages import retain

OTHER = "other"
LATER = START_MS + 3_600_000


def feed(name: str = NAME) -> Feed:
    """Return a backend that has retained messages below r."""
    return Feed(name, (), EVERYTHING, 60_000, (Fetching(RETAIN, "r/#"),))


def looking(**settings: object) -> Broker:
    """Return a broker that looks retained messages up."""
    return Broker(feeds=(feed(),), **settings)


def answer(
    broker: Broker,
    request: FetchRequest,
    payload: bytes = b"",
    at_ms: int = START_MS - 1000,
    *,
    qos: int = 1,
    topic: str = "",
    publisher: str = "app",
    expires_ms: int = 0,
) -> None:
    """Answer a request with a message, without a payload with nothing."""
    broker.engine.handle_timeout(broker.now)
    message = Message(topic or request.topic, payload, qos, False, b"", publisher, at_ms, 0)
    found = [FetchedMessage("m", message, expires_ms)] if payload else []
    broker.engine.inbox.fetched(request.number, found, "", more=False)
    broker.settle()


def replays_of(client: Client) -> set[str]:
    """Return the filters whose retained messages are not all sent."""
    session = client.connection.session
    assert session is not None
    return set(session.replays)


def retained(broker: Broker, topic: str = "r/a") -> list[bytes]:
    """Return what a new subscriber gets from the broker itself."""
    client = broker.clean(f"auditor-{topic}-{broker.now}")
    client.subscribe(topic, qos=1)
    broker.engine.handle_timeout(broker.now)
    broker.settle()
    found = client.payloads()
    client.drop()
    return found


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("qos, granted", [(0, 0), (0, 2), (1, 0), (1, 1), (2, 1), (2, 2)])
def test_a_subscribe_gets_what_the_store_has(qos: int, granted: int, durable: bool) -> None:
    broker = looking()
    client = (broker.durable if durable else broker.clean)("c")
    assert client.subscribe("r/a", qos=granted) == [granted]  # it waits for no store
    request = asked(broker)
    assert (request.kind, request.client_id, request.topic) == (RETAIN, "c", "r/a")
    assert len(broker.rows(FETCHES)) == durable
    answer(broker, request, b"on", qos=qos)
    message = client.message()
    assert (message.payload, message.qos) == (b"on", min(qos, granted))
    assert message.retain and not message.dup
    client.acknowledge(message)
    assert broker.rows(FETCHES) == [] and broker.rows(MAILBOX) == []
    assert ask(broker) is None and broker.engine.requests.owed(NAME) == 0
    assert not [row for row in take(broker) if isinstance(row, FeedEvent) and row.kind == ACKED]


def test_without_a_message_in_the_store_nothing_is_sent_and_the_row_goes() -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    assert len(broker.rows(FETCHES)) == 1
    answer(broker, asked(broker))
    client.expect_nothing()
    assert broker.rows(FETCHES) == [] and ask(broker) is None


@pytest.mark.parametrize("topic", ["other", "r/+", "r/#", "#", "$share/g/r/a"])
def test_other_subscriptions_look_nothing_up(topic: str) -> None:
    broker = looking()
    broker.durable("c", topic)
    assert ask(broker) is None and broker.rows(FETCHES) == []


def test_retain_handling_says_when_it_is_looked_up() -> None:
    broker = looking()
    client = broker.durable("c")
    for handling, is_asked in ((2, False), (1, False), (0, True)):
        client.subscribe("r/a", qos=1, retain_handling=handling)
        request = ask(broker)
        assert (request is not None) is is_asked
    client.unsubscribe("r/a")
    client.subscribe("r/a", qos=1, retain_handling=1)
    assert asked(broker).topic == "r/a"


@pytest.mark.parametrize("at_ms, expected", [(LATER - 1, [b"ours"]), (LATER, [b"ours"])])
def test_our_own_goes_first_and_one_that_is_not_newer_is_not_sent(
    at_ms: int, expected: list[bytes]
) -> None:
    broker = looking()
    broker.advance(3_600_000)
    broker.publish("r/a", b"ours", retain=True)
    client = broker.durable("c", "r/a")
    assert client.receive_all() == expected
    answer(broker, asked(broker), b"theirs", at_ms)
    assert client.receive_all() == [] and retained(broker) == [b"ours"]


def test_a_newer_one_follows_ours_and_is_ours_from_then_on() -> None:
    broker = looking()
    broker.publish("r/a", b"ours", retain=True)
    client = broker.durable("c", "r/a", qos=2)
    others = broker.clean("live", "r/a", qos=1)
    others.receive_all()
    assert client.receive_all() == [b"ours"]
    broker.advance(5_000)
    answer(broker, asked(broker), b"theirs", broker.now, qos=2)
    assert client.receive_all() == [b"theirs"]
    assert others.messages() == []  # nobody else is sent it
    assert retained(broker) == [b"theirs"]
    broker.restart()
    assert retained(broker) == [b"theirs"]


def test_it_is_told_to_other_stores_only() -> None:
    broker = Broker(feeds=(feed(), Feed(OTHER, (), EVERYTHING, 60_000, ())))
    broker.durable("c", "r/a")
    answer(broker, asked(broker), b"theirs")
    broker.advance(s=1)
    told = {
        name: [
            row.text
            for row in take(broker, name)
            if isinstance(row, FeedEvent) and row.kind == RETAINED
        ]
        for name in (NAME, OTHER)
    }
    assert told == {NAME: [], OTHER: ["r/a"]}


def test_what_was_found_once_is_not_sent_behind_itself() -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    answer(broker, asked(broker), b"theirs")
    assert client.receive_all() == [b"theirs"]
    client.subscribe("r/a", qos=1)
    assert client.receive_all() == [b"theirs"]
    answer(broker, asked(broker), b"theirs")
    assert client.receive_all() == []


def test_two_who_ask_at_once_get_it_once_each() -> None:
    broker = looking()
    broker.publish("r/a", b"ours", retain=True)
    clients = [broker.durable(name, "r/a") for name in ("a", "b")]
    first, second = asked(broker), asked(broker)
    broker.advance(5_000)
    with broker.one_tick():
        answer(broker, first, b"theirs", broker.now)
        answer(broker, second, b"theirs", broker.now)
    assert [client.receive_all() for client in clients] == [[b"ours", b"theirs"]] * 2
    assert len(broker.rows(FETCHES)) == 0


def test_answers_out_of_order_leave_the_newest() -> None:
    broker = looking()
    clients = [broker.durable(name, "r/a") for name in ("a", "b")]
    first, second = asked(broker), asked(broker)
    with broker.one_tick():
        answer(broker, second, b"new", START_MS - 1)
        answer(broker, first, b"old", START_MS - 2)
    assert [client.receive_all() for client in clients] == [[], [b"new"]]
    assert retained(broker) == [b"new"]


def test_repeated_and_late_answers_are_ignored() -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    request = asked(broker)
    answer(broker, request, b"1")
    answer(broker, request, b"2")
    assert client.receive_all() == [b"1"]
    client.subscribe("r/a", qos=1)
    late = asked(broker)
    client.subscribe("r/a", qos=1)  # it is asked anew
    client.receive_all()
    answer(broker, late, b"3", START_MS - 1)
    assert client.receive_all() == []
    again = asked(broker)
    client.unsubscribe("r/a")
    client.drop()
    answer(broker, again, b"4", START_MS)
    answer(broker, late, b"4", START_MS)
    assert client.receive_all() == [] and broker.rows(FETCHES) == []


@pytest.mark.parametrize("payload", [b"new", b""])
@pytest.mark.parametrize("when", ["waiting", "asked"])
def test_a_message_that_is_published_meanwhile_ends_the_look_up(payload: bytes, when: str) -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    request = asked(broker) if when == "asked" else None
    broker.publish("r/a", payload, retain=True, qos=1)
    assert client.receive_all() == [payload]
    assert broker.rows(FETCHES) == [] and ask(broker) is None
    if request is not None:
        answer(broker, request, b"theirs")
    assert client.receive_all() == []
    assert retained(broker) == ([payload] if payload else [])


def test_what_expires_after_it_was_sent_is_not_followed_by_an_older_one() -> None:
    broker = looking()
    broker.publish("r/a", b"ours", retain=True, message_expiry_interval=2)
    client = broker.durable("c", "r/a")
    assert client.receive_all() == [b"ours"]
    request = asked(broker)
    broker.advance(5_000)
    answer(broker, request, b"theirs", START_MS - 1)
    assert client.receive_all() == []
    client.subscribe("r/a", qos=1)
    answer(broker, asked(broker), b"theirs", START_MS - 1)
    assert client.receive_all() == [b"theirs"]


def test_ours_is_not_sent_behind_a_newer_one_for_a_later_subscribe() -> None:
    broker = looking()
    broker.publish("r/a", b"ours", retain=True)
    client = broker.connect("c", clean_start=False, session_expiry_interval=99, receive_maximum=1)
    client.subscribe("r/a", "x", qos=1)
    assert client.receive_all() == [b"ours"]
    request = asked(broker)
    broker.publish("x", qos=1)
    before = client.message()
    client.subscribe("r/+", qos=1)  # what it matches has no room
    with broker.one_tick():
        broker.engine.receive(client.connection, encode(Puback(before.packet_id), 5), broker.now)
        answer(broker, request, b"theirs", broker.now)
    assert client.receive_all() == [b"theirs"]


@pytest.mark.parametrize("at_ms, expected", [(1, b"theirs"), (-1, b"ours")])
def test_ours_is_not_sent_behind_a_newer_one_for_the_same_subscribe(
    at_ms: int, expected: bytes
) -> None:
    broker = looking()
    retain(broker, *(f"a/{number}" for number in range(5 * REPLAY_MAX)))
    broker.publish("r/a", b"ours", retain=True)
    client = broker.durable("c")
    with broker.one_tick():
        client.send(Subscribe(1, [Subscription("a/#", 1), Subscription("r/a", 1)]))
        broker.engine.end_tick(broker.now)  # a slice of those below a
        broker.engine.handle_timeout(broker.now + 250)
        broker.engine.end_tick(broker.now)
        request = broker.engine.requests.next(NAME, (1 << 62, 1 << 62))
        assert request is not None and "r/a" in replays_of(client)
        answer(broker, request, b"theirs", broker.now + at_ms)
    found = client.receive_all()
    assert len(found) == 5 * REPLAY_MAX + 1 and {b"ours", b"theirs"} & set(found) == {expected}


def test_a_crash_before_the_commit_asks_again_and_one_behind_it_does_not() -> None:
    for keep, count in ((0, 1), (99, 0)):
        broker = looking()
        client = broker.durable("c", "r/a")
        request = asked(broker)
        broker.hold_commits()
        answer(broker, request, b"on")
        assert client.messages() == []
        broker.restart(keep=keep)
        client = broker.durable("c")
        found = client.payloads()
        assert len(found) == 1 - count
        request_again = ask(broker)
        assert (request_again is not None) is bool(count)
        if request_again is not None:
            answer(broker, request_again, b"on")
        assert found + client.payloads() == [b"on"]


def test_one_at_qos_0_waits_for_the_commit_too() -> None:
    broker = looking()
    client = broker.durable("c", "r/a", qos=0)
    request = asked(broker)
    broker.hold_commits()
    answer(broker, request, b"on")
    assert client.messages() == []
    broker.commit()
    assert client.payloads() == [b"on"]


def test_what_is_owed_is_asked_at_the_next_connect_and_nothing_new_is() -> None:
    broker = looking()
    broker.durable("c", "r/a", "r/b")
    answer(broker, asked(broker))
    broker.restart()
    client = broker.durable("c")
    request = asked(broker)
    assert request.topic == "r/b" and ask(broker) is None
    answer(broker, request, b"on")
    assert client.receive_all() == [b"on"]
    broker.restart()
    broker.durable("c")
    assert ask(broker) is None


def test_what_ours_has_sent_holds_over_a_crash() -> None:
    broker = looking()
    broker.publish("r/a", b"ours", retain=True, message_expiry_interval=2)
    client = broker.durable("c", "r/a")
    assert client.receive_all() == [b"ours"]
    broker.restart(after_ms=5_000)
    client = broker.durable("c")
    answer(broker, asked(broker), b"theirs", START_MS - 1)
    assert client.receive_all() == []


def test_one_that_has_no_room_is_asked_for_again() -> None:
    broker = looking()
    client = broker.connect("c", clean_start=False, session_expiry_interval=99, receive_maximum=1)
    client.subscribe("r/a", "r/b", qos=1)
    first, second = asked(broker), asked(broker)
    answer(broker, first, b"1")
    answer(broker, second, b"2")
    assert client.receive_all() == [b"1"]
    answer(broker, asked(broker), b"2")
    assert client.receive_all() == [b"2"]


def test_without_a_rule_any_more_the_row_goes() -> None:
    broker = looking()
    broker.durable("c", "r/a")
    broker.settings.feeds = (Feed(NAME, (), EVERYTHING, 0, (Fetching(PUBSUB, "p/#"),)),)
    broker.restart()
    broker.durable("c")
    assert broker.rows(FETCHES) == []


@pytest.mark.parametrize("how", ["end", "clean start"])
def test_the_row_goes_with_its_session(how: str) -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    if how == "end":
        client.disconnect(session_expiry_interval=0)
    else:
        client.drop()
        broker.connect("c", clean_start=True)
    assert broker.rows(FETCHES) == [] and ask(broker) is None


def test_a_damaged_row_is_still_owed() -> None:
    broker = looking()
    broker.durable("c", "r/a")
    key, value = broker.rows(FETCHES)[0]
    broker.store.write([(FETCHES, key, value[:-1] + b"?")])
    broker.store.sync()
    broker.is_audited = False
    broker.restart()
    client = broker.durable("c")
    answer(broker, asked(broker), b"on")
    assert client.receive_all() == [b"on"] and broker.rows(FETCHES) == []


def test_the_rules_are_asked_for_each_message() -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    broker.rules.forbid("receive", "r/a")
    answer(broker, asked(broker), b"on")
    client.expect_nothing()
    assert broker.rows(FETCHES) == []


def test_a_message_of_another_topic_is_refused() -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    answer(broker, asked(broker), b"on", topic="secret")
    client.expect_nothing()
    assert retained(broker, "secret") == []


@pytest.mark.parametrize("refusal", ["limit", "disk"])
def test_where_there_is_no_room_it_is_sent_and_not_kept(refusal: str) -> None:
    broker = looking(retained_messages_max=1 if refusal == "limit" else 0)
    broker.publish("r/z", b"z", retain=True)
    client = broker.durable("c", "r/a")
    if refusal == "disk":
        broker.engine.note_disk_space(is_low=True)
    answer(broker, asked(broker), b"on")
    assert client.receive_all() == [b"on"]
    assert broker.engine.stats()["retained_messages"] == 1


def test_one_that_expires_in_the_store_expires_here() -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    answer(broker, asked(broker), b"on", expires_ms=10_000)
    assert client.message().message_expiry_interval == 10
    assert retained(broker) == [b"on"]
    broker.advance(11_000)
    assert retained(broker) == []


def test_a_time_that_is_not_known_is_older_than_ours() -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    far = broker.now + AHEAD_MS + 60_000
    answer(broker, asked(broker), b"far", far)
    assert client.receive_all() == [b"far"]
    broker.publish("r/a", b"ours", retain=True)
    client.receive_all()
    client.subscribe("r/a", qos=1)
    assert client.receive_all() == [b"ours"]
    for at_ms in (0, far):
        client.subscribe("r/a", qos=1)
        assert client.receive_all() == [b"ours"]
        answer(broker, asked(broker), b"theirs", at_ms)
        assert client.receive_all() == []


def test_of_two_stores_the_newest_is_the_last() -> None:
    broker = Broker(feeds=(feed(), feed(OTHER)), retained_messages_max=1)
    broker.publish("r/z", b"z", retain=True)  # nothing more can be kept
    client = broker.durable("c", "r/a")
    one = asked(broker)
    other = broker.engine.requests.next(OTHER, (1 << 62, 1 << 62))
    assert other is not None
    answer(broker, one, b"new", START_MS - 1)
    answer(broker, other, b"old", START_MS - 2)
    assert client.receive_all() == [b"new"]


def test_the_subscription_identifier_is_sent() -> None:
    broker = looking()
    client = broker.durable("c")
    client.subscribe("r/a", qos=1, identifier=7)
    answer(broker, asked(broker), b"on")
    assert client.message().subscription_identifiers == (7,)


def test_a_session_looks_a_limited_number_of_topics_up() -> None:
    broker = looking()
    client = broker.durable("c")
    topics = [f"r/{number}" for number in range(FETCHES_MAX + 1)]
    client.send(Subscribe(1, [Subscription(topic, 1) for topic in topics]))
    assert broker.engine.requests.owed(NAME) == FETCHES_MAX


def test_a_client_that_subscribes_again_and_again_has_one_question() -> None:
    broker = looking()
    client = broker.durable("c")
    numbers = set()
    for _ in range(20):
        client.subscribe("r/a", qos=1)
        numbers.add(asked(broker).number)
        assert broker.engine.requests.owed(NAME) == 1
    assert len(numbers) == 20 and len(broker.rows(FETCHES)) == 1


def test_what_is_under_way_is_asked_again_when_the_way_is_lost() -> None:
    broker = looking()
    client = broker.durable("c", "r/a")
    lost = asked(broker)
    broker.engine.requests.ask_again(NAME)
    again = asked(broker)
    answer(broker, lost, b"1")
    answer(broker, again, b"2")
    assert client.receive_all() == [b"2"]
