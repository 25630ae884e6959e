"""Retained messages: one per topic, found by seeking, sent in slices to new subscriptions."""

import random

import pytest

from mqtt.message import NEVER, Message
from mqtt.packets import Puback, Publish, Subscribe, Subscription, Will
from mqtt.topics import matches
from session.counters import Counters
from session.live.core import Core, Database
from session.live.tick import Tick
from session.routing.retained import EXAMINE_MAX, FOUND_BYTES_MAX, PAGE_MAX, Retained
from session.settings import Settings
from storage.local.memory import MemoryStore
from storage.log.message_log import MessageLog
from storage.tables.tables import FAMILIES, Totals
from storage.tables.timers import Due
from tests.session.harness import Broker, idle_gate, untold_history
from tests.session.messages import retain, topics_of

# Keeping them


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_the_last_one_is_kept_with_qos_payload_and_flag(qos: int, version: int) -> None:
    broker = Broker()
    publisher = broker.connect("p", version=version)
    publisher.publish("t", b"first", 1, retain=True)
    publisher.publish("t", b"last", qos, retain=True)
    broker.restart()
    client = broker.clean("c", "t", qos=2, version=version)
    assert client.message() == Publish("t", b"last", qos, retain=True, packet_id=1 if qos else 0)


def test_it_is_kept_with_its_properties() -> None:
    properties = b"\x26\x00\x01k\x00\x01v\x01\x01"
    broker = Broker()
    broker.publish("t", b"R", retain=True, properties=properties)
    assert broker.clean("c", "t").message().properties == properties


def test_a_message_without_the_flag_leaves_the_kept_one_alone() -> None:
    broker = Broker()
    retain(broker, "t")
    broker.publish("t", b"passing")
    assert topics_of(broker.clean("c", "t")) == ["t"]


def test_an_empty_payload_clears_and_is_delivered_itself() -> None:
    broker = Broker()
    retain(broker, "t")
    watcher = broker.connect("w")
    watcher.subscribe("t", retain_handling=2)
    broker.publish("t", b"", retain=True)
    assert watcher.message() == Publish("t", b"")
    broker.clean("c", "t").expect_nothing()
    assert broker.rows("retained") == []
    assert broker.engine.stats()["retained_messages"] == 0


def test_an_empty_retained_message_is_not_kept() -> None:
    broker = Broker()
    broker.publish("t", b"", retain=True)
    assert broker.rows("retained") == []


def test_clearing_again_waits_until_the_first_clearing_is_durable() -> None:
    broker = Broker()
    retain(broker, "t")
    one, two = broker.connect("one"), broker.connect("two")
    broker.hold_commits()
    one.send(Publish("t", b"", 1, True, packet_id=1))
    two.send(Publish("t", b"", 1, True, packet_id=1))
    two.expect_nothing()
    broker.commit()
    assert isinstance(one.answer(Puback), Puback)
    assert isinstance(two.answer(Puback), Puback)


def test_retained_messages_outlive_the_session_of_their_publisher() -> None:
    broker = Broker()
    publisher = broker.durable("p")
    publisher.publish("t", b"t", 1, retain=True)
    publisher.disconnect(session_expiry_interval=0)
    assert topics_of(broker.clean("c", "t")) == ["t"]


# Sending them


@pytest.mark.parametrize(
    ("handling", "first", "second"), [(0, True, True), (1, True, False), (2, False, False)]
)
@pytest.mark.parametrize("durable", [True, False])
def test_retain_handling_decides(handling: int, first: bool, second: bool, durable: bool) -> None:
    broker = Broker()
    retain(broker, "t")
    client = broker.connect("c", expiry=100 if durable else 0)
    client.subscribe("t", retain_handling=handling)
    assert bool(client.payloads()) is first
    client.subscribe("t", retain_handling=handling)
    assert bool(client.payloads()) is second


def test_retain_handling_1_looks_at_the_session_and_not_at_the_connection() -> None:
    broker = Broker()
    retain(broker, "t")
    broker.durable("c", "t", qos=0).drop()
    client = broker.durable("c")
    client.expect_nothing()
    client.subscribe("t", retain_handling=1)
    client.expect_nothing()
    client.unsubscribe("t")
    client.subscribe("t", retain_handling=1)
    assert client.payloads() == [b"t"]


def test_a_v4_client_gets_them_with_every_subscribe() -> None:
    broker = Broker()
    retain(broker, "t")
    client = broker.connect("c", version=4)
    for _ in range(2):
        client.subscribe("t")
        assert client.payloads() == [b"t"]


def test_resuming_a_session_is_not_subscribing() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    retain(broker, "t")
    client = broker.durable("c")
    message = client.message()
    assert not message.retain  # it was published while the session was away
    client.acknowledge(message)
    client.drop()
    broker.durable("c").expect_nothing()


def test_every_filter_of_a_subscribe_gets_its_own() -> None:
    broker = Broker()
    retain(broker, "a/1", "b/1")
    client = broker.connect("c")
    client.send(Subscribe(1, [Subscription("a/+", 1), Subscription("+/1", 0)], 7))
    messages = client.messages()
    assert sorted(message.payload for message in messages) == [b"a/1", b"a/1", b"b/1"]
    assert {message.subscription_identifiers for message in messages} == {(7,)}


def test_a_refused_filter_gets_none() -> None:
    broker = Broker()
    retain(broker, "t")
    broker.rules.forbid("subscribe", "t")
    client = broker.connect("c")
    assert client.subscribe("t") == [0x87]
    client.expect_nothing()


def test_a_topic_that_may_not_be_received_is_left_out() -> None:
    broker = Broker()
    retain(broker, "open", "secret")
    broker.rules.forbid("receive", "secret")
    assert topics_of(broker.clean("c", "#", qos=1)) == ["open"]
    assert broker.counters.dropped["not_authorized"] == 1


def test_no_local_does_not_hide_the_own_retained_messages() -> None:
    broker = Broker()
    client = broker.connect("c")
    client.publish("t", b"own", 1, retain=True)
    client.subscribe("t", no_local=True)
    assert client.payloads() == [b"own"]


# In slices


def test_a_slice_looks_at_a_bounded_number_of_rows() -> None:
    broker = Broker()
    retain(broker, *(f"a/{number:05}/b" for number in range(3 * EXAMINE_MAX)))
    calls = broker.store.io_calls
    found, start, _ = broker.engine._retained.read("+/+/z", b"", 10)
    assert found == [] and start
    assert broker.store.io_calls - calls <= EXAMINE_MAX


def test_a_lookup_seeks_over_what_cannot_match() -> None:
    broker = Broker()
    retain(broker, *(f"a/{number:05}" for number in range(500)), "b/x", "c/x")
    calls = broker.store.io_calls
    found, start, _ = broker.engine._retained.read("+/x", b"", 10)
    assert [message.topic for message in found] == ["b/x", "c/x"] and not start
    assert broker.store.io_calls - calls < 10


# Expiry


def test_an_expired_one_is_not_sent_and_then_removed() -> None:
    broker = Broker()
    broker.publish("t", b"R", retain=True, message_expiry_interval=10)
    broker.advance(s=4)
    client = broker.clean("early", "t")
    assert client.message().message_expiry_interval == 6
    broker.now += 6_000  # no timer has fired
    broker.clean("late", "t").expect_nothing()
    broker.advance()
    assert broker.rows("retained") == []
    assert broker.counters.expired_messages == 1


def test_expiry_holds_over_a_restart() -> None:
    broker = Broker()
    broker.publish("t", b"R", retain=True, message_expiry_interval=10)
    broker.restart(after_ms=11_000)
    broker.advance()
    assert broker.rows("retained") == [] and broker.rows("due") == []


def test_a_newer_message_survives_the_expiry_of_the_older() -> None:
    broker = Broker()
    broker.publish("t", b"old", retain=True, message_expiry_interval=10)
    broker.advance(s=5)
    broker.publish("t", b"new", retain=True, message_expiry_interval=10)
    broker.advance(s=6)
    assert broker.clean("c", "t").payloads() == [b"new"]
    broker.advance(s=5)
    assert broker.rows("retained") == []


def test_a_retained_will_outlives_the_expiring_message_that_it_replaces() -> None:
    """Both come due in one slice after downtime: the will is newer than what expires."""
    broker = Broker()
    broker.publish("state", b"online", retain=True, message_expiry_interval=10)
    will = Will("state", b"offline", 1, retain=True, delay_interval=5)
    broker.connect("c", expiry=60, will=will).drop()
    broker.restart(after_ms=30_000)
    broker.advance()
    assert broker.clean("late", "state").payloads() == [b"offline"]


# $SYS


def test_system_messages_are_retained_in_memory_and_never_stored() -> None:
    broker = Broker()
    broker.engine.publish_system("$SYS/broker/uptime", b"1", broker.now)
    live = broker.clean("live", "$SYS/#")
    assert live.message() == Publish("$SYS/broker/uptime", b"1", retain=True)
    broker.engine.publish_system("$SYS/broker/uptime", b"2", broker.now)
    broker.settle()
    assert live.message() == Publish("$SYS/broker/uptime", b"2")
    broker.clean("hash", "#").expect_nothing()
    broker.clean("plus", "+/broker/uptime").expect_nothing()
    assert broker.rows("retained") == []


# Seeking agrees with matching


LEVELS = ("", "a", "b", "ab", "a b", "\x01", "$a", "\U0001f600", "!", "0")
PATTERNS = (*LEVELS, "+", "+", "+")


def full_store(topics: list[str]) -> Retained:
    """Return retained messages on all these topics."""
    store = MemoryStore(FAMILIES)
    tick, settings, counters = Tick(200), Settings(), Counters()
    log = MessageLog(store)
    retained = Retained(
        Core(tick, idle_gate(settings, counters), settings, counters),
        Database(store, log, Due(store), Totals(), 1),
        untold_history(tick, log, settings, counters),
    )
    for topic in topics:
        retained.keep(Message(topic, topic.encode(), 0, True, b"", "p", 1, NEVER))
    store.write(tick.batch)
    return retained


@pytest.mark.parametrize("seed", range(20))
def test_a_lookup_finds_exactly_the_topics_that_match(seed: int) -> None:
    source = random.Random(seed)
    topics = {
        "/".join(source.choice(LEVELS) for _ in range(source.randint(1, 4))) for _ in range(200)
    } - {""}
    retained = full_store(sorted(topics))
    for _ in range(60):
        levels = [source.choice(PATTERNS) for _ in range(source.randint(1, 4))]
        if source.random() < 0.4:
            levels[-1] = "#"
        topic_filter = "/".join(levels)
        if not topic_filter:
            continue
        found: list[str] = []
        start = b""
        while True:
            page, start, examined = retained.read(topic_filter, start, source.randint(1, 5))
            assert examined <= EXAMINE_MAX + PAGE_MAX
            found += [message.topic for message in page]
            if not start:
                break
        expected = sorted(t for t in topics if matches(topic_filter, t))
        assert sorted(found) == expected, topic_filter


def test_large_retained_messages_are_read_by_bytes_not_only_by_number() -> None:
    broker = Broker()
    payload = bytes(FOUND_BYTES_MAX // 2)
    for number in range(10):
        broker.publish(f"t/{number}", payload, retain=True)
    retained = broker.engine._retained
    found, start, _ = retained.read("#", b"", 64)
    assert [message.topic for message in found] == ["t/0", "t/1"]
    following, _, _ = retained.read("#", start, 64)
    assert [message.topic for message in following] == ["t/2", "t/3"]
    assert len(broker.clean("c", "#").messages()) == 10
