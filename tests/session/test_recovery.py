"""A start on what a crash left: at any moment, with anything, and again and again."""

import pytest

from mqtt.packets import (
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from tests.session.harness import Broker, will
from tests.session.store_audit import audit


def conversation(broker: Broker) -> None:
    """Do a bit of everything; commits may be held."""
    one = broker.request("one", expiry=100, will=will("w/one", delay=10))
    one.send(Subscribe(1, [Subscription("a/#", 2), Subscription("$share/g/b", 1)], 7))
    two = broker.request("two", version=4, durable=True)
    two.send(Subscribe(1, [Subscription("a/+", 1), Subscription("$share/g/b", 2)]))
    publisher = broker.request("p", expiry=50)
    for number in range(1, 7):
        topic = ("a/1", "b", "c")[number % 3]
        publisher.send(Publish(topic, b"%d" % number, number % 3, number > 4, packet_id=number % 3))
    one.send(*[Puback(number) for number in range(1, 4)])
    one.send(*[Pubrec(number) for number in range(1, 4)])
    publisher.send(Pubrel(2))
    if not one.stream.is_lost:
        one.drop()
    broker.request("one", expiry=100, clean_start=False).send(Unsubscribe(2, ["a/#"]))
    two.send(Disconnect())
    broker.request("two", version=4)
    broker.advance(s=12)


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_every_prefix_of_the_batches_is_a_sound_broker(layout: str) -> None:
    probe = Broker(layout=layout)
    probe.hold_commits()
    conversation(probe)
    unsynced = probe.store.unsynced
    assert unsynced > 10
    for keep in range(unsynced + 1):
        broker = Broker(layout=layout)
        broker.hold_commits()
        conversation(broker)
        broker.crash(keep)
        assert [p for p in audit(broker.store, all_connected(broker))] == []
        broker.start()
        for name in ("one", "two", "p"):
            broker.durable(name).receive_all()
        broker.advance(s=200)


def all_connected(broker: Broker) -> set[str]:
    """Return the clients that were connected when the store was written."""
    return {key.decode() for key, _ in broker.rows("connections")}


def test_a_restart_reports_what_it_found() -> None:
    broker = Broker()
    broker.durable("on", "t", "u")
    broker.durable("off", "t").drop()
    broker.connect("will", will=will("w"))
    broker.publish("t", b"R", retain=True)
    broker.crash()
    recovery = broker.start()
    assert (recovery.sessions, recovery.filters) == (2, 2)
    assert (recovery.retained, recovery.were_connected) == (1, 2)


def test_restarting_again_and_again_changes_nothing() -> None:
    broker = Broker(history_detail="off")
    broker.durable("c", "t", "$share/g/u", qos=2).drop()
    broker.publish("t", b"1", 2)
    broker.publish("u", b"2", 2)
    for _ in range(3):
        before = {family: broker.rows(family) for family in broker.store.families()}
        broker.restart()
        after = {family: broker.rows(family) for family in broker.store.families()}
        assert {f: r for f, r in before.items() if f != "meta"} == {
            f: r for f, r in after.items() if f != "meta"
        }
    assert sorted(broker.durable("c").receive_all()) == [b"1", b"2"]


def test_a_crash_with_very_many_connections_is_settled_in_several_batches() -> None:
    broker = Broker()
    broker.is_audited = False
    with broker.one_tick():
        for number in range(2100):
            broker.request(f"c{number}", expiry=100)
    broker.crash()
    recovery = broker.start()
    assert recovery.were_connected == recovery.sessions == 2100
    assert broker.engine.written >= 3
    assert broker.rows("connections") == []


def test_a_group_that_lived_on_a_session_in_memory_is_gone_after_a_crash() -> None:
    broker = Broker()
    stored = broker.durable("stored", "$share/g/t")
    broker.clean("passing", "$share/g/t", qos=1)
    stored.unsubscribe("$share/g/t")
    assert len(broker.rows("groups")) == 1
    broker.restart()
    assert broker.rows("groups") == broker.rows("holders") == broker.rows("filters") == []
