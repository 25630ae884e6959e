"""Is it remembered which subscriptions a store has begun, whatever is damaged?"""

import pytest

from storage.tables.fetch_rows import PROXIED, SUBSCRIPTIONS, encode_fetch, fetch_key
from storage.tables.tables import FETCHES
from tests.session.delivery.fetching.test_inbox import ask, asked
from tests.session.feed.backends import NAME
from tests.session.harness import Broker
from tests.session.packets.test_proxy import held, listed, proxying


def damage(broker: Broker, kind: int, topic_filter: str) -> None:
    """Flip a bit in a row."""
    broker.is_audited = False
    value = bytearray(encode_fetch(0, ""))
    value[1] ^= 1
    broker.store.write([(FETCHES, fetch_key("c", NAME, kind, topic_filter), bytes(value))])
    broker.store.sync()


def test_a_damaged_row_makes_a_subscription_the_clients_own() -> None:
    broker = proxying(mirrors=True)
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1), ("b", 1))
    client.drop()
    damage(broker, PROXIED, "a")
    client = broker.durable("c")
    listed(broker, asked(broker))
    assert held(client) == {"a": 1}
    assert broker.rows(FETCHES) == []


def test_what_is_owed_is_still_owed_if_its_row_is_damaged() -> None:
    broker = proxying("new")
    broker.durable("c").drop()
    damage(broker, SUBSCRIPTIONS, "")
    broker.durable("c")
    assert asked(broker).kind == SUBSCRIPTIONS


def test_rows_of_a_store_that_is_not_configured_any_more_go() -> None:
    broker = proxying(mirrors=True)
    client = broker.durable("c")
    listed(broker, asked(broker), ("a", 1))
    client.drop()
    key = fetch_key("c", "earlier", PROXIED, "a")
    broker.store.write([(FETCHES, key, encode_fetch(0, ""))])
    client = broker.durable("c")
    assert [row[0] for row in broker.rows(FETCHES)] == [fetch_key("c", NAME, PROXIED, "a")]
    assert held(client) == {"a": 1}


@pytest.mark.parametrize("kind", [PROXIED, SUBSCRIPTIONS])
def test_rows_of_a_session_that_expires_while_it_is_away_go(kind: int) -> None:
    broker = proxying("new", mirrors=True)
    client = broker.connect("c", expiry=10)
    if kind == PROXIED:
        listed(broker, asked(broker), ("a", 1))
    client.drop()
    assert len(broker.rows(FETCHES)) == 1
    broker.advance(s=60)
    assert broker.rows(FETCHES) == []


def test_a_takeover_asks_again_and_keeps_what_was_begun() -> None:
    broker = proxying(mirrors=True)
    broker.durable("c")
    listed(broker, asked(broker), ("a", 1), ("b", 1))
    client = broker.durable("c")
    listed(broker, asked(broker), ("b", 1))
    assert held(client) == {"b": 1} and ask(broker) is None
