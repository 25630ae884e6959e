"""Do clients get the subscriptions that stores have for them, and keep those of their own?"""

import pytest

from mqtt import reasons
from session.delivery.fetching.proxies import LEFT_CHARACTERS_MAX, PAGE
from session.delivery.fetching.requests import FetchRequest
from session.packets.proxy import DONE, LATER, REFUSED, UNCHANGED, UNKNOWN
from session.settings import Asks, Feed, Fetching, Proxying
from storage.tables.feed_rows import SUBSCRIBED, UNSUBSCRIBED, FeedEvent
from storage.tables.fetch_rows import PUBSUB, SUBSCRIPTIONS
from storage.tables.tables import FETCHES
from storage.tables.tables import SUBSCRIPTIONS as SUBSCRIPTION_ROWS
from tests.session.delivery.fetching.test_inbox import ask, asked
from tests.session.feed.backends import EVERYTHING, NAME, take
from tests.session.harness import Broker, Client
from tests.session.messages import retain

OTHER = "other"


def proxying(
    asks: Asks = "always", *, mirrors: bool = False, bypasses: bool = False, **settings: object
) -> Broker:
    """Return a broker that asks a store for subscriptions."""
    rule = Proxying(asks, mirrors=mirrors, bypasses_policy=bypasses)
    fetches = (Fetching(PUBSUB, "p/#"),)
    feed = Feed(NAME, (), EVERYTHING, 60_000, fetches, proxying=rule)
    return Broker(feeds=(feed,), **settings)


def listed(
    broker: Broker,
    request: FetchRequest,
    *rows: tuple[str, int],
    more: bool = False,
    is_refused: bool = False,
) -> list[tuple[str, int]]:
    """Answer a request; return what was refused."""
    broker.engine.handle_timeout(broker.now)
    proxy = broker.engine.proxy
    found = proxy.listed(request.number, rows, more=more, is_refused=is_refused)
    broker.settle()
    return [(each.topic_filter, each.reason_code) for each in found]


def changed(broker: Broker, client_id: str, topic_filter: str, qos: int | None) -> str:
    """Let the store tell of a change."""
    broker.engine.handle_timeout(broker.now)
    outcome = broker.engine.proxy.changed(NAME, client_id, topic_filter, qos)
    broker.settle()
    return outcome


def held(client: Client) -> dict[str, int]:
    """Return the subscriptions of a client."""
    session = client.connection.session
    assert session is not None
    return {each.topic_filter: each.qos for each in session.subscriptions.values()}


def told(broker: Broker) -> list[tuple[int, str, int]]:
    """Return what the store is told of subscriptions."""
    return [
        (row.kind, row.text, row.qos)
        for row in take(broker)
        if isinstance(row, FeedEvent) and row.kind in (SUBSCRIBED, UNSUBSCRIBED)
    ]


@pytest.mark.parametrize("durable", [True, False])
def test_a_connect_gets_the_subscriptions_that_the_store_has(durable: bool) -> None:
    broker = proxying()
    client = (broker.durable if durable else broker.clean)("c")
    request = asked(broker)
    assert (request.kind, request.client_id, request.after) == (SUBSCRIPTIONS, "c", "")
    assert listed(broker, request, ("a/#", 1), ("b", 0), ("$share/g/s", 2)) == []
    assert held(client) == {"a/#": 1, "b": 0, "$share/g/s": 2}
    client.expect_nothing()  # nobody acknowledges it
    for topic, qos in (("a/1", 1), ("b", 0), ("s", 1)):
        broker.publish(topic, topic.encode(), qos=qos)
    assert sorted(client.receive_all()) == [b"a/1", b"b", b"s"]
    assert ask(broker) is None and broker.engine.requests.owed(NAME) == 0
    assert sorted(told(broker)) == [
        (SUBSCRIBED, "$share/g/s", 2),
        *sorted([(SUBSCRIBED, "a/#", 1), (SUBSCRIBED, "b", 0)]),
    ]


def test_they_are_durable_and_get_what_comes_while_the_client_is_away() -> None:
    broker = proxying()
    client = broker.durable("c")
    listed(broker, asked(broker), ("a/#", 1))
    client.disconnect()
    broker.publish("a/1", b"away")
    broker.restart()
    client = broker.durable("c")
    assert client.receive_all() == [b"away"]
    assert held(client) == {"a/#": 1}


def test_each_connect_asks_and_a_list_that_is_held_already_changes_nothing() -> None:
    broker = proxying()
    broker.publish("a/1", b"old", retain=True)
    client = broker.durable("c")
    listed(broker, asked(broker), ("a/#", 1))
    assert client.receive_all() == [b"old"]
    told(broker)
    client.drop()
    client = broker.durable("c")
    listed(broker, asked(broker), ("a/#", 1))
    assert client.receive_all() == []  # not again, as it would for a SUBSCRIBE
    assert told(broker) == []


def test_a_new_qos_in_the_store_is_taken_over() -> None:
    broker = proxying()
    client = broker.durable("c")
    listed(broker, asked(broker), ("a/#", 0))
    client.drop()
    client = broker.durable("c")
    listed(broker, asked(broker), ("a/#", 2))
    assert held(client) == {"a/#": 2}


def test_only_a_new_session_asks_if_the_rule_says_so() -> None:
    broker = proxying("new")
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1))
    assert len(broker.rows(FETCHES)) == 1  # that the store has begun it
    client.drop()
    broker.durable("c")
    assert ask(broker) is None


def test_what_a_new_session_is_owed_outlives_a_crash() -> None:
    broker = proxying("new")
    broker.durable("c")
    asked(broker)
    broker.restart()
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1))
    assert held(client) == {"a": 1}
    broker.restart()
    broker.durable("c")
    assert ask(broker) is None


def test_the_clients_own_subscription_wins() -> None:
    broker = proxying(mirrors=True)
    client = broker.durable("c")
    client.subscribe("a", qos=2)
    listed(broker, asked(broker), ("a", 0))
    assert held(client) == {"a": 2}
    client.drop()
    client = broker.durable("c")
    listed(broker, asked(broker))  # the store has it no more; but it was never the store's
    assert held(client) == {"a": 2}


def test_what_the_client_leaves_while_the_store_is_asked_is_not_begun_again() -> None:
    broker = proxying()
    client = broker.durable("c")
    request = asked(broker)
    client.unsubscribe("a")
    listed(broker, request, ("a", 1), ("b", 1))
    assert held(client) == {"b": 1}
    client.drop()
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1), ("b", 1))  # now it is newer than the UNSUBSCRIBE
    assert held(client) == {"a": 1, "b": 1}


@pytest.mark.parametrize("size", [10, 10_000, 60_000])
def test_a_client_that_leaves_very_much_has_the_list_asked_for_anew(size: int) -> None:
    broker = proxying()
    client = broker.durable("c")
    request = asked(broker)
    session = client.connection.session
    assert session is not None
    state = broker.engine._delivery.proxies.state_of(session)
    assert state is not None
    lookup = state.lookups[NAME]
    for number in range(LEFT_CHARACTERS_MAX // size + 1):
        client.unsubscribe(f"f/{number:0{size}}")
        client.unsubscribe(f"f/{number:0{size}}")
        assert sum(map(len, lookup.left)) <= LEFT_CHARACTERS_MAX
    listed(broker, request, ("a", 1))
    assert held(client) == {}
    listed(broker, asked(broker), ("a", 1))
    assert held(client) == {"a": 1}


def test_the_store_is_asked_once_it_has_what_the_client_did_before() -> None:
    broker = proxying()
    client = broker.durable("c", "own")
    position = broker.engine.feeds.end()
    assert ask(broker, (position[0], 0)) is None
    assert asked(broker).client_id == "c"
    client.expect_nothing()


def test_a_mirrored_list_ends_what_it_has_begun_and_nothing_else() -> None:
    broker = proxying(mirrors=True)
    client = broker.durable("c", "own")
    listed(broker, asked(broker), ("a", 1), ("b", 1), ("c", 1))
    client.subscribe("b", qos=1)  # the client's own from now on
    client.drop()
    told(broker)
    client = broker.durable("c")
    listed(broker, asked(broker), ("c", 1))
    assert held(client) == {"own": 1, "b": 1, "c": 1}
    assert told(broker) == [(UNSUBSCRIBED, "a", 1)]
    broker.restart()
    client = broker.durable("c")
    listed(broker, asked(broker))
    assert held(client) == {"own": 1, "b": 1}
    assert broker.rows(FETCHES) == []


def test_without_mirroring_a_list_ends_nothing() -> None:
    broker = proxying()
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1))
    client.drop()
    client = broker.durable("c")
    listed(broker, asked(broker))
    assert held(client) == {"a": 1}


def test_a_store_that_refuses_the_question_ends_nothing() -> None:
    broker = proxying(mirrors=True)
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1))
    client.drop()
    client = broker.durable("c")
    listed(broker, asked(broker), is_refused=True)
    assert held(client) == {"a": 1} and ask(broker) is None


@pytest.mark.parametrize("mirrors", [True, False])
def test_a_long_list_comes_in_pages_and_ends_in_pages(mirrors: bool) -> None:
    broker = proxying(mirrors=mirrors)
    filters = [f"f/{number:04}" for number in range(2 * PAGE + 10)]
    client = broker.durable("c")
    for start in range(0, len(filters), PAGE):
        request = asked(broker)
        assert request.after == (filters[start - 1] if start else "")
        page = filters[start : start + PAGE]
        listed(broker, request, *[(each, 1) for each in page], more=page[-1] != filters[-1])
    assert list(held(client)) == filters and ask(broker) is None
    client.drop()
    client = broker.durable("c")
    pages = 0
    while (request := ask(broker)) is not None:  # the store has one left
        before = len(held(client))
        rows = [("f/0300", 1)] if request.after < "f/0300" else []
        listed(broker, request, *rows)
        assert before - len(held(client)) <= PAGE
        pages += 1
    assert len(held(client)) == (1 if mirrors else len(filters))
    assert pages == (3 if mirrors else 1)


def test_a_crash_between_two_pages_loses_nothing() -> None:
    broker = proxying("new", mirrors=True)
    broker.durable("c")
    listed(broker, asked(broker), ("a", 1), more=True)
    broker.restart()
    client = broker.durable("c")
    request = asked(broker)
    assert request.after == ""
    listed(broker, request, ("a", 1), ("b", 1))
    assert held(client) == {"a": 1, "b": 1}


def test_what_a_client_may_not_have_is_refused_alone() -> None:
    broker = proxying(subscriptions_per_session_max=2)
    broker.rules.forbid("subscribe", "secret")
    client = broker.durable("c")
    rows = [("a", 1), ("b#", 1), ("secret", 1), ("x", 1), ("y", 1)]
    assert listed(broker, asked(broker), *rows) == [
        ("b#", reasons.TOPIC_FILTER_INVALID),
        ("secret", reasons.NOT_AUTHORIZED),
        ("y", reasons.QUOTA_EXCEEDED),
    ]
    assert held(client) == {"a": 1, "x": 1}
    assert broker.counters.proxy_subscriptions == {
        "begun": 2,
        "ended": 0,
        "refused": 3,
        "unknown_client": 0,
    }


def test_a_store_that_is_trusted_is_not_asked_for_the_rules() -> None:
    broker = proxying(bypasses=True)
    broker.rules.forbid("subscribe", "secret")
    client = broker.durable("c")
    assert listed(broker, asked(broker), ("secret", 1)) == []
    assert held(client) == {"secret": 1}


SECRET = ("secret/a", "secret/b", "shared/a", "own/a")


def without_rights(*, bypasses: bool) -> Broker:
    """Return a broker with a store that is trusted or not, whose clients may receive little."""
    broker = proxying(bypasses=bypasses)
    for topic in SECRET:
        broker.rules.forbid("receive", topic)
    return broker


@pytest.mark.parametrize("bypasses", [True, False])
def test_what_a_trusted_store_subscribes_a_client_to_is_delivered(bypasses: bool) -> None:
    broker = without_rights(bypasses=bypasses)
    broker.publish("secret/b", b"retained", retain=True)
    client = broker.durable("c", "own/#")
    listed(broker, asked(broker), ("secret/+", 1), ("$share/g/shared/+", 1))
    assert client.payloads() == ([b"retained"] if bypasses else [])
    for topic in SECRET:
        broker.publish(topic, topic.encode())
    broker.publish("own/b", b"own/b")
    expected = [b"secret/a", b"secret/b", b"shared/a", b"own/b"] if bypasses else [b"own/b"]
    assert client.payloads() == expected
    assert broker.counters.dropped["not_authorized"] > 0
    client.drop()
    broker.publish("secret/a", b"away")
    broker.restart()
    client = broker.durable("c")
    again = [b"retained", *expected, b"away"] if bypasses else expected
    assert client.receive_all() == again  # what was in flight comes again


def test_a_subscription_of_the_client_itself_has_the_rights_of_the_client() -> None:
    broker = without_rights(bypasses=True)
    client = broker.durable("c")
    listed(broker, asked(broker), ("secret/+", 1))
    broker.publish("secret/a", b"one")
    client.subscribe("secret/+", qos=1)
    broker.publish("secret/a", b"two")
    assert client.receive_all() == [b"one"]


def test_rights_end_with_the_subscription_that_gave_them() -> None:
    broker = without_rights(bypasses=True)
    client = broker.durable("c", "secret/#")
    listed(broker, asked(broker), ("secret/+", 1))
    assert changed(broker, "c", "secret/+", None) == DONE
    broker.publish("secret/a")
    client.expect_nothing()


@pytest.mark.parametrize("bypasses", [True, False])
def test_a_rule_that_trusts_the_store_from_now_on_holds_for_what_it_has_begun(
    bypasses: bool,
) -> None:
    broker = without_rights(bypasses=not bypasses)
    listed(broker, (broker.durable("c"), asked(broker))[1], ("secret/+", 1))
    broker.settings.feeds = proxying(bypasses=bypasses).settings.feeds
    broker.restart()
    client = broker.durable("c")
    listed(broker, asked(broker), ("secret/+", 1))
    broker.publish("secret/a")
    assert len(client.receive_all()) == bypasses


@pytest.mark.parametrize("is_told", [True, False], ids=["by a change", "by the list"])
def test_what_only_a_trusted_store_may_begin_ends_when_it_is_trusted_no_more(
    is_told: bool,
) -> None:
    broker = without_rights(bypasses=True)
    broker.rules.forbid("subscribe", "secret/+")
    broker.durable("c")
    listed(broker, asked(broker), ("secret/+", 1))
    broker.settings.feeds = proxying(bypasses=False).settings.feeds
    broker.restart()
    client = broker.durable("c")
    assert held(client) == {"secret/+": 1}
    if is_told:
        assert changed(broker, "c", "secret/+", 1) == f"{REFUSED}: Not authorized"
    else:
        refused = listed(broker, asked(broker), ("secret/+", 1))
        assert refused == [("secret/+", reasons.NOT_AUTHORIZED)]
    assert held(client) == {}
    broker.publish("secret/a")
    client.expect_nothing()


def test_an_answer_for_another_connection_is_ignored() -> None:
    broker = proxying()
    broker.durable("c")
    late = asked(broker)
    client = broker.durable("c")
    listed(broker, late, ("a", 1))
    assert held(client) == {}
    request = asked(broker)
    listed(broker, request, ("a", 1))
    listed(broker, request, ("b", 1))  # twice
    assert held(client) == {"a": 1}


def test_the_rows_go_with_the_session() -> None:
    broker = proxying("new", mirrors=True)
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1), more=True)
    assert len(broker.rows(FETCHES)) == 2
    client.disconnect(session_expiry_interval=0)
    assert broker.rows(FETCHES) == []
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1))
    client.drop()
    broker.clean("c").drop()
    assert broker.rows(FETCHES) == []


def test_nothing_is_begun_while_the_database_takes_no_writes() -> None:
    broker = proxying()
    client = broker.durable("c")
    request = asked(broker)
    broker.engine.note_disk_space(is_low=True)
    listed(broker, request, ("a", 1))
    assert held(client) == {} and ask(broker) is None
    assert broker.engine.requests.owed(NAME) == 1
    assert changed(broker, "c", "b", 1) == LATER
    broker.engine.note_disk_space(is_low=False)
    listed(broker, asked(broker), ("a", 1))
    assert held(client) == {"a": 1}


def test_a_proxy_subscription_fetches_what_the_store_has_for_it() -> None:
    broker = proxying()
    broker.durable("c")
    listed(broker, asked(broker), ("p/1", 1))
    request = asked(broker)
    assert (request.kind, request.topic) == (PUBSUB, "p/1")


# What a store tells of by itself


def test_a_connected_client_is_subscribed_and_unsubscribed_at_once() -> None:
    broker = proxying("never")
    retain(broker, "a/1")
    client = broker.durable("c")
    assert ask(broker) is None
    assert changed(broker, "c", "a/#", 1) == DONE
    assert client.receive_all() == [b"a/1"]
    assert changed(broker, "c", "a/#", 1) == UNCHANGED
    broker.publish("a/1", b"live")
    assert client.receive_all() == [b"live"]
    assert changed(broker, "c", "a/#", None) == DONE
    assert held(client) == {} and broker.rows(FETCHES) == []
    assert changed(broker, "c", "a/#", None) == UNCHANGED


@pytest.mark.parametrize("topic_filter", ["a/#", "$share/g/a/#"])
def test_a_client_that_is_away_is_subscribed_and_gets_what_comes(topic_filter: str) -> None:
    broker = proxying("never")
    broker.publish("a/0", b"before")
    broker.durable("c").drop()
    assert changed(broker, "c", topic_filter, 1) == DONE
    broker.publish("a/1", b"one")
    broker.restart()
    broker.publish("a/2", b"two")
    client = broker.durable("c")
    assert client.receive_all() == [b"one", b"two"]
    assert held(client) == {topic_filter: 1}


def test_a_client_that_is_away_gets_the_retained_message_too() -> None:
    broker = proxying("never")
    retain(broker, "a/1")
    broker.durable("c").drop()
    assert changed(broker, "c", "a/#", 1) == DONE
    client = broker.durable("c")
    assert client.receive_all() == [b"a/1"]


@pytest.mark.parametrize("topic_filter", ["a/#", "$share/g/a/#"])
def test_a_change_is_newer_than_a_list_that_is_being_read(topic_filter: str) -> None:
    broker = proxying(mirrors=True)
    client = broker.durable("c")
    listed(broker, asked(broker), ("b", 1))
    client.drop()
    client = broker.durable("c")
    request = asked(broker)
    assert changed(broker, "c", topic_filter, 1) == DONE
    assert changed(broker, "c", "b", None) == DONE
    listed(broker, request, ("b", 1))
    assert held(client) == {topic_filter: 1}
    client.drop()
    client = broker.durable("c")
    listed(broker, asked(broker), ("b", 1))  # the list counts again
    assert held(client) == {"b": 1}


def test_a_change_that_finds_nothing_to_end_is_newer_than_a_list_all_the_same() -> None:
    broker = proxying()
    client = broker.durable("c")
    request = asked(broker)
    assert changed(broker, "c", "a", None) == UNCHANGED
    listed(broker, request, ("a", 1), ("b", 1))
    assert held(client) == {"b": 1}


@pytest.mark.parametrize("topic_filter", ["a/#", "$share/g/a/#"])
def test_a_client_that_is_away_is_unsubscribed(topic_filter: str) -> None:
    broker = proxying("never")
    client = broker.durable("c")
    assert changed(broker, "c", topic_filter, 1) == DONE
    client.drop()
    assert changed(broker, "c", topic_filter, None) == DONE
    assert broker.rows(SUBSCRIPTION_ROWS) == [] and broker.rows(FETCHES) == []
    broker.publish("a/1", b"one")
    client = broker.durable("c")
    assert client.receive_all() == [] and held(client) == {}


def test_several_changes_of_one_client_that_is_away_add_up() -> None:
    broker = proxying("never")
    broker.durable("c", "own").drop()
    broker.engine.handle_timeout(broker.now)
    proxy = broker.engine.proxy
    with broker.one_tick():
        assert proxy.changed(NAME, "c", "a", 0) == DONE
        assert proxy.changed(NAME, "c", "b", 1) == DONE
        assert proxy.changed(NAME, "c", "a", 2) == DONE
        assert proxy.changed(NAME, "c", "b", None) == DONE
        assert proxy.changed(NAME, "c", "own", None) == UNCHANGED
        assert proxy.changed(NAME, "c", "own", 2) == UNCHANGED
    client = broker.durable("c")
    assert held(client) == {"own": 1, "a": 2}
    assert broker.engine.stats()["subscriptions_stored"] == 2


def test_a_qos_0_subscription_that_begins_while_the_client_is_away_stores_nothing() -> None:
    broker = proxying("never")
    broker.durable("c").drop()
    assert changed(broker, "c", "a", 0) == DONE
    broker.publish("a", b"away", qos=1)
    client = broker.durable("c")
    assert client.receive_all() == []
    broker.publish("a", b"here", qos=1)
    assert client.receive_all() == [b"here"]


def test_a_change_for_nobody_is_told() -> None:
    broker = proxying("never")
    assert changed(broker, "nobody", "a", 1) == UNKNOWN
    broker.durable("c", expiry=10).drop()
    broker.advance(s=11)
    assert changed(broker, "c", "a", 1) == UNKNOWN
    broker.clean("gone").drop()
    assert changed(broker, "gone", "a", 1) == UNKNOWN


@pytest.mark.parametrize("is_here", [True, False])
def test_a_change_that_the_rules_forbid_is_refused(is_here: bool) -> None:
    broker = proxying("never")
    broker.rules.forbid("subscribe", "secret")
    client = broker.durable("c")
    if not is_here:
        client.drop()
    assert changed(broker, "c", "secret", 1) == f"{REFUSED}: Not authorized"
    assert changed(broker, "c", "a/#/b", 1) == f"{REFUSED}: Topic Filter invalid"
    assert broker.rows(SUBSCRIPTION_ROWS) == []


def test_what_the_client_has_itself_is_not_ended() -> None:
    broker = proxying("never")
    client = broker.durable("c", "own")
    assert changed(broker, "c", "own", None) == UNCHANGED
    assert changed(broker, "c", "a", 1) == DONE
    client.subscribe("a", qos=1)
    assert changed(broker, "c", "a", None) == UNCHANGED
    assert held(client) == {"own": 1, "a": 1}
