"""A shared subscription lives as long as its sessions, and over a restart."""

import pytest

from tests.session.harness import Broker
from tests.session.shared_subscriptions import SHARED, numbers, publish


def test_the_same_name_with_another_filter_is_another_group() -> None:
    broker = Broker()
    one = broker.durable("one", "$share/g/t")
    two = broker.durable("two", "$share/g/#")
    publish(broker, b"1")
    assert one.receive_all() == two.receive_all() == [b"1"]


def test_the_filter_of_a_group_may_start_with_a_slash_or_a_wildcard() -> None:
    broker = Broker()
    slash = broker.durable("slash", "$share/g//t")
    wild = broker.durable("wild", "$share/g/+/t")
    publish(broker, b"1", topic="/t")
    assert slash.receive_all() == wild.receive_all() == [b"1"]


def test_a_second_subscribe_changes_options_and_adds_no_weight() -> None:
    broker = Broker()
    one = broker.durable("one", SHARED)
    two = broker.durable("two", SHARED)
    one.subscribe(SHARED, qos=1, identifier=9)
    publish(broker, *numbers(6))
    messages = one.messages()
    assert len(messages) == 3 and {m.subscription_identifiers for m in messages} == {(9,)}
    one.acknowledge(*messages)
    assert one.unsubscribe(SHARED) == [0x00]
    publish(broker, *numbers(3))
    one.expect_nothing()
    assert len(two.receive_all()) == 6


def test_unsubscribing_from_a_group_one_is_no_member_of_says_so() -> None:
    broker = Broker()
    broker.durable("one", SHARED)
    assert broker.connect("two").unsubscribe(SHARED) == [0x11]


@pytest.mark.parametrize("durable", [True, False])
def test_a_group_ends_with_its_last_session_and_its_messages_with_it(durable: bool) -> None:
    broker = Broker(max_inflight=1)
    client = (broker.durable if durable else broker.clean)("c", SHARED, qos=1)
    publish(broker, *numbers(5))
    assert client.unsubscribe(SHARED) == [0x00]
    assert broker.rows("groups") == [] and broker.rows("holders") == []
    client.acknowledge(*client.messages())
    client.subscribe(SHARED, qos=1)
    client.expect_nothing()
    publish(broker, b"new")
    assert client.receive_all() == [b"new"]


def test_a_group_ends_when_its_last_session_expires() -> None:
    broker = Broker()
    broker.durable("c", SHARED, expiry=10).drop()
    publish(broker, b"old")
    broker.advance(s=11)
    assert broker.rows("groups") == [] and broker.rows("filters") == []
    broker.durable("c", SHARED).expect_nothing()


def test_a_group_is_stored_from_its_first_stored_member_on() -> None:
    broker = Broker()
    passing = broker.clean("passing", SHARED, qos=1)
    publish(broker, b"1")  # the route of the topic is cached without a stream
    assert passing.receive_all() == [b"1"]
    staying = broker.durable("staying", SHARED)
    passing.disconnect()
    staying.drop()
    publish(broker, b"2")
    broker.restart()
    assert broker.durable("staying").receive_all() == [b"2"]


def test_messages_wait_over_a_restart() -> None:
    broker = Broker()
    broker.durable("one", SHARED).drop()
    publish(broker, *numbers(3))
    broker.restart()
    publish(broker, b"99")
    assert broker.durable("one").receive_all() == [*numbers(3), b"99"]


def test_a_restart_repeats_nothing_that_was_acknowledged() -> None:
    broker = Broker()
    one = broker.durable("one", SHARED)
    publish(broker, *numbers(3))
    assert one.receive_all() == numbers(3)
    broker.advance(s=1)
    broker.restart()
    broker.durable("one").expect_nothing()


def test_what_was_taken_back_waits_for_a_member_over_a_restart() -> None:
    broker = Broker()
    one = broker.connect("one", expiry=10)
    one.subscribe(SHARED, qos=1)
    broker.durable("two", SHARED).drop()
    publish(broker, b"1", b"2")
    one.drop()
    broker.advance(s=11)
    broker.restart()
    assert broker.durable("two").receive_all() == [b"1", b"2"]


def test_what_a_member_in_memory_held_is_owed_again_after_a_crash() -> None:
    broker = Broker()
    broker.durable("stored", SHARED).drop()
    passing = broker.clean("passing", SHARED, qos=1)
    publish(broker, b"1", b"2")
    first, _ = passing.messages()
    passing.acknowledge(first)
    broker.restart()
    assert broker.durable("stored").receive_all() == [b"2"]


def test_ending_a_session_of_a_group_that_is_gone_is_no_trouble() -> None:
    broker = Broker()
    client = broker.durable("c", SHARED, expiry=10)
    publish(broker, b"1")
    client.unsubscribe(SHARED)
    client.drop()
    broker.advance(s=11)
    assert broker.rows("sessions") == broker.rows("groups") == []


def test_messages_taken_back_keep_their_order_while_only_a_full_member_may_have_them() -> None:
    """A member with room that may not receive them must not make the group turn them over."""
    broker = Broker()
    leaving = broker.connect("leaving", expiry=10)
    leaving.subscribe(SHARED, qos=1)
    publish(broker, *numbers(3))
    assert leaving.payloads() == numbers(3)
    leaving.drop()
    full = broker.durable("full", SHARED, receive_maximum=1)
    publish(broker, b"before")
    before = full.message()
    broker.rules.forbid("receive by idle", "t")
    idle = broker.durable("idle", SHARED)
    broker.advance(s=11)  # what the expired session held is owed again
    full.acknowledge(before)
    assert full.receive_all() == numbers(3)
    idle.expect_nothing()
