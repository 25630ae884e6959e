"""Whose session it is and what may leave it: C5, C6 and C13 of docs/security.md."""

import pytest

from mqtt import reasons
from mqtt.packets import Publish, Unsubscribe
from tests.session.harness import Broker, will

# C5: somebody else with the same client id


@pytest.mark.parametrize("clean_start", [True, False])
@pytest.mark.parametrize("online", [True, False])
def test_c05_nobody_takes_the_session_of_another_user(clean_start: bool, online: bool) -> None:
    """CVE-2026-33215, mosquitto #3551 and #3553: not even to end it."""
    broker = Broker()
    watcher = broker.clean("watcher", "w")
    ann = broker.durable("c", "t", username="ann", will=will("w"))
    if not online:
        ann.disconnect()
    broker.publish("t", b"1")
    code = broker.refused("c", username="bob", clean_start=clean_start)
    assert code == reasons.NOT_AUTHORIZED
    assert broker.refused("c", username="bob", version=4, clean_start=clean_start) == 5
    assert broker.refused("c", clean_start=clean_start) == reasons.NOT_AUTHORIZED
    watcher.expect_nothing()
    if online:
        ann.ping()
    else:
        ann = broker.durable("c", username="ann")
        assert ann.connack is not None and ann.connack.session_present
    assert ann.receive_all() == [b"1"]


def test_c05_a_session_that_was_nobodys_belongs_to_whom_takes_it() -> None:
    """It protected nobody; a device that gets a user name keeps what it was owed."""
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.publish("t", b"1")
    ann = broker.durable("c", username="ann")
    assert ann.connack is not None and ann.connack.session_present
    assert ann.receive_all() == [b"1"]
    ann.drop()
    broker.crash()
    broker.start()
    assert broker.refused("c") == reasons.NOT_AUTHORIZED
    assert broker.refused("c", username="bob") == reasons.NOT_AUTHORIZED


def test_c05_the_owner_is_known_after_a_crash() -> None:
    broker = Broker()
    broker.durable("c", "t", username="ann")
    broker.crash()
    broker.start()
    assert broker.refused("c", username="bob", clean_start=True) == reasons.NOT_AUTHORIZED


def test_c05_an_assigned_client_id_is_used_as_it_is_and_never_twice() -> None:
    broker = Broker()
    names = set()
    for _ in range(50):
        client = broker.connect("")
        assert client.connack is not None and client.connack.assigned_client_id
        names.add(client.connack.assigned_client_id)
    assert len(names) == 50


# C6: rights that were taken away


@pytest.mark.parametrize("crash", [False, True])
def test_c06_a_stored_subscription_gives_no_right(crash: bool) -> None:
    """CVE-2021-34434: the queue of an offline session, and what comes live later."""
    broker = Broker()
    broker.durable("c", "#").drop()
    broker.publish("secret", b"queued")
    broker.rules.forbid("receive", "secret")
    if crash:
        broker.crash()
        broker.start()
    client = broker.durable("c")
    assert client.receive_all() == []
    broker.publish("secret", b"live")
    broker.publish("open", b"1")
    assert client.receive_all() == [b"1"]


@pytest.mark.parametrize("qos", [1, 2])
def test_c06_what_is_in_flight_is_not_sent_again(qos: int) -> None:
    """mosquitto 2.0.12: QoS 2 was not checked at reconnect."""
    broker = Broker()
    client = broker.durable("c", "secret", qos=2)
    broker.publish("secret", b"1", qos)
    client.message()
    client.drop()
    broker.rules.forbid("receive", "secret")
    assert broker.durable("c").receive_all() == []


def test_c06_a_retained_message_is_judged_when_somebody_asks_for_it() -> None:
    """CVE-2018-12546"""
    broker = Broker()
    broker.publish("secret", b"1", retain=True)
    broker.publish("open", b"2", retain=True)
    broker.rules.forbid("receive", "secret")
    assert broker.durable("c", "#").receive_all() == [b"2"]


@pytest.mark.parametrize("crash", [False, True])
def test_c06_a_will_that_waits_is_judged_when_it_fires(crash: bool) -> None:
    """Burglars' IoT Paradise (S&P 2020): a will of somebody who has no right any more."""
    broker = Broker()
    broker.durable("c", will=will("w", delay=10)).drop()
    broker.rules.forbid("publish", "w")
    if crash:
        broker.crash()
        broker.start()
    watcher = broker.clean("watcher", "w")
    broker.advance(s=20)
    watcher.expect_nothing()
    assert broker.counters.wills["refused"] == 1


def test_c06_a_shared_subscription_gives_no_right_either() -> None:
    broker = Broker()
    client = broker.durable("c", "$share/g/#")
    broker.rules.forbid("receive", "secret")
    broker.publish("secret", b"1")
    broker.publish("open", b"2")
    assert client.receive_all() == [b"2"]


def test_c06_a_publisher_is_judged_with_every_message() -> None:
    broker = Broker()
    client = broker.connect("c")
    watcher = broker.clean("watcher", "t")
    client.publish("t", b"1", 1)
    broker.rules.forbid("publish", "t")
    answer = client.publish("t", b"2", 1)
    assert getattr(answer, "reason_code", 0) == reasons.NOT_AUTHORIZED
    assert watcher.payloads() == [b"1"]


# C13: the same session from several sides at once; the simulation has 50,000 worlds of it


@pytest.mark.parametrize("version", [4, 5])
def test_c13_takeover_publish_and_unsubscribe_in_one_tick(version: int) -> None:
    """CVE-2025-59946, CVE-2026-22040: use after free there; here the state must be one."""
    broker = Broker()
    old = broker.durable("c", "t", "u", version=version)
    lasting = {"expiry": 100} if version == 5 else {"durable": True}
    publisher = broker.connect("p")
    with broker.one_tick():
        publisher.send(Publish("t", b"0", 1, packet_id=1))
        new = broker.request("c", version=version, **lasting)
        publisher.send(Publish("t", b"1", 1, packet_id=2))
        new.send(Unsubscribe(9, ["t"]))
        publisher.send(Publish("t", b"2", 1, packet_id=3), Publish("u", b"3", 1, packet_id=4))
    assert old.is_closed and not new.is_closed
    received = new.receive_all()
    assert received[-1] == b"3" and b"2" not in received
    assert [payload for payload in received if payload in (b"0", b"1")] in (
        [],
        [b"0"],
        [b"0", b"1"],
    )  # what UNSUBSCRIBE overtook may be dropped, in order
