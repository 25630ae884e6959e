"""Retained messages that an operator wants gone are gone, in slices, and no other one."""

from typing import Final

import pytest

from session.errands.clearing import CLEAR_PAGE, CLEARINGS_MAX, Clearing
from storage.errors import Recoverable
from storage.tables.feed_rows import RETAIN_DELETED, FeedEvent
from storage.tables.tables import RETAINED, retained_key
from tests.session.feed.backends import feed, take
from tests.session.harness import Broker
from tests.session.told import told

MANY: Final = 2 * CLEAR_PAGE + 1


def begin(broker: Broker, topic_filter: str) -> Clearing:
    """Have an operator ask."""
    return broker.engine.administer(broker.now).clear_retained(topic_filter, "olga", "wrong")


def one_step(broker: Broker) -> None:
    """Let one step happen and no further one."""
    broker.engine.handle_timeout(broker.now)
    broker.settle()


def keep(broker: Broker, *topics: str) -> None:
    """Retain a message on each of these topics."""
    client = broker.connect("keeper")
    for topic in topics:
        client.publish(topic, b"kept", 1, retain=True)
    client.disconnect()


def topics(broker: Broker) -> set[str]:
    """Return the topics with a retained message, as a new subscriber finds them."""
    client = broker.connect("finder")
    client.subscribe("#", qos=0)
    found = {message.topic for message in client.messages()}
    client.disconnect()
    assert broker.engine.stats()["retained_messages"] == len(found)
    return found


def test_the_message_of_one_topic_goes_and_stays_away() -> None:
    broker = Broker()
    keep(broker, "a", "a/b", "b")
    clearing = begin(broker, "a")
    assert not clearing.is_over
    one_step(broker)
    assert clearing.is_over and clearing.deleted == 1
    broker.restart()
    assert topics(broker) == {"a/b", "b"}


@pytest.mark.parametrize(
    ("topic_filter", "left"),
    [("a/#", {"b", "b/c"}), ("+", {"a/b", "b/c", "a/b/c"}), ("#", set()), ("x/#", None)],
)
def test_what_a_filter_matches_goes(topic_filter: str, left: set[str] | None) -> None:
    broker = Broker()
    there = {"a", "a/b", "a/b/c", "b", "b/c"}
    keep(broker, *there)
    begin(broker, topic_filter)
    broker.advance(ms=1)
    assert topics(broker) == (there if left is None else left)


def test_nobody_is_sent_anything() -> None:
    broker = Broker()
    keep(broker, "a")
    watcher = broker.clean("watcher", "#")
    watcher.take()
    begin(broker, "#")
    broker.advance(ms=1)
    watcher.expect_nothing()


def test_many_go_in_slices_and_a_crash_keeps_the_rest() -> None:
    broker = Broker()
    keep(broker, *(f"t/{number:04}" for number in range(MANY)))
    clearing = begin(broker, "t/+")
    one_step(broker)
    assert not clearing.is_over and clearing.deleted == CLEAR_PAGE
    broker.restart()
    assert len(topics(broker)) == MANY - CLEAR_PAGE
    again = begin(broker, "t/+")
    broker.advance(ms=1)
    assert again.is_over and again.deleted == MANY - CLEAR_PAGE


def test_a_message_that_is_set_meanwhile_stays() -> None:
    broker = Broker()
    keep(broker, *(f"t/{number:04}" for number in range(MANY)))
    clearing = begin(broker, "t/+")
    one_step(broker)
    broker.now += 1
    keep(broker, "t/0000", "t/9999", f"t/{MANY - 1:04}")
    broker.advance(ms=1)
    assert clearing.deleted == MANY - 1
    assert topics(broker) == {"t/0000", "t/9999", f"t/{MANY - 1:04}"}


def test_one_that_is_not_there_is_not_counted() -> None:
    broker = Broker()
    clearing = begin(broker, "a")
    one_step(broker)
    assert clearing.is_over and clearing.deleted == 0
    broker.advance(ms=broker.settings.progress_delay_ms)
    assert told(broker, "operator_action", "retained_cleared") == []


def test_one_that_cannot_be_read_goes_by_its_topic() -> None:
    broker = Broker()
    keep(broker, "a", "b")
    broker.store.write([(RETAINED, retained_key("a"), b"torn")])
    clearing = begin(broker, "+")
    one_step(broker)
    assert clearing.deleted == 1 and [key for key, _ in broker.rows(RETAINED)] == [b"a"]
    clearing = begin(broker, "a")
    one_step(broker)
    assert clearing.deleted == 1 and broker.rows(RETAINED) == []


def test_stores_are_told() -> None:
    broker = Broker(feeds=feed("t", kinds=1 << RETAIN_DELETED))
    keep(broker, "a")
    begin(broker, "a")
    broker.advance(ms=broker.settings.progress_delay_ms)
    (event,) = take(broker)
    assert isinstance(event, FeedEvent) and (event.kind, event.text) == (RETAIN_DELETED, "a")


def test_room_is_made_on_a_disk_that_is_nearly_full() -> None:
    broker = Broker()
    keep(broker, "a")
    broker.engine.note_disk_space(is_low=True)
    clearing = begin(broker, "a")
    broker.advance(ms=1)
    assert clearing.deleted == 1


def test_the_history_names_the_operator() -> None:
    broker = Broker()
    keep(broker, "a", "b")
    begin(broker, "+")
    broker.advance(ms=1 + broker.settings.progress_delay_ms)
    cleared = told(broker, "retained_cleared")
    assert [(each["topic"], each["actor"]) for each in cleared] == [("a", "admin"), ("b", "admin")]
    (action,) = told(broker, "operator_action")
    assert (action["count"], action["detail"]) == (2, "retained delete +, olga: wrong")
    keep(broker, "a")
    client = broker.connect("c")
    client.publish("a", b"", 1, retain=True)
    broker.advance(ms=broker.settings.progress_delay_ms)
    assert told(broker, "retained_cleared")[-1]["actor"] == "broker"


def test_whoever_waits_is_told_the_end_once() -> None:
    broker = Broker()
    ends: list[int] = []
    clearing = begin(broker, "a")
    clearing.ended = lambda: ends.append(clearing.deleted)
    one_step(broker)
    one_step(broker)
    assert ends == [0]


def test_only_so_many_wait() -> None:
    broker = Broker()
    for _ in range(CLEARINGS_MAX):
        begin(broker, "a")
    with pytest.raises(Recoverable, match="deletions wait already"):
        begin(broker, "a")
    broker.advance(ms=1)
    begin(broker, "a")


def test_a_store_that_takes_no_writes_is_waited_for() -> None:
    broker = Broker()
    keep(broker, "a")
    broker.store.full = True
    broker.request("c", expiry=60)
    clearing = begin(broker, "a")
    one_step(broker)
    assert not clearing.is_over
    broker.store.full = False
    broker.advance(s=5)
    assert clearing.is_over and clearing.deleted == 1


def test_a_broker_that_ends_leaves_the_rest() -> None:
    broker = Broker()
    keep(broker, *(f"t/{number:04}" for number in range(MANY)))
    clearing = begin(broker, "t/+")
    one_step(broker)
    broker.engine.drain(broker.now)
    broker.settle()
    assert clearing.is_over and clearing.why == "the broker ends"
    assert clearing.deleted == CLEAR_PAGE
