"""A message of an operator is accepted as a client's is, and the answer says who gets it."""

from typing import Any

import pytest

from mqtt import reasons
from mqtt.encoder import message_properties
from mqtt.message import Message
from session.errands.publishing import Published
from session.settings import Settings
from tests.session.feed.backends import feed, take
from tests.session.harness import Broker
from tests.session.told import told


def publish(
    broker: Broker, topic: str = "t", payload: bytes = b"x", qos: int = 1, **fields: Any
) -> Published:
    """Have an operator publish."""
    administration = broker.engine.administer(broker.now)
    done = administration.publish(topic, payload, qos, "olga", "test", **fields)
    broker.settle()
    return done


def counts(published: Published) -> tuple[int, int, int, bool]:
    """Return who matched, and whether the message is kept."""
    return published.connected, published.groups, published.filters, published.stored


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_whoever_subscribes_gets_it_here_and_later(qos: int) -> None:
    broker = Broker()
    here = broker.durable("here", "t", qos=2)
    broker.durable("away", "t", "+", qos=2).drop()
    published = publish(broker, qos=qos)
    assert counts(published) == (1, 0, 2, qos > 0)
    assert published.reason_code == 0
    (message,) = here.messages()
    assert (message.topic, message.payload, message.qos) == ("t", b"x", qos)
    broker.restart()
    assert broker.durable("away").receive_all() == ([b"x"] if qos else [])


def test_nobody_may_be_there() -> None:
    broker = Broker()
    published = publish(broker)
    assert published.reason_code == reasons.NO_MATCHING_SUBSCRIBERS
    assert counts(published) == (0, 0, 0, False)
    assert broker.counters.unmatched_messages == 1


def test_a_shared_subscription_counts_once_and_one_member_gets_it() -> None:
    broker = Broker()
    members = [broker.durable(name, "$share/g/t") for name in ("a", "b")]
    assert counts(publish(broker)) == (0, 1, 1, True)
    assert sorted(len(member.payloads()) for member in members) == [0, 1]


def test_a_message_is_retained_and_an_empty_one_ends_that() -> None:
    broker = Broker()
    assert counts(publish(broker, retain=True)) == (0, 0, 0, True)
    broker.restart()
    assert broker.clean("c", "t", qos=1).receive_all() == [b"x"]
    publish(broker, payload=b"", retain=True)
    assert broker.clean("d", "t", qos=1).receive_all() == []


def test_properties_and_expiry_are_those_of_the_message() -> None:
    broker = Broker()
    away = broker.durable("away", "t")
    away.drop()
    raw = message_properties("text/plain", (("k", "v"), ("k", "w")))
    publish(broker, properties=raw, expiry_s=10)
    publish(broker, payload=b"gone", expiry_s=1)
    broker.advance(s=4)
    (message,) = broker.durable("away").messages()
    assert message.properties == raw and message.message_expiry_interval == 6


def test_the_rules_are_not_asked_and_those_of_receivers_are() -> None:
    broker = Broker()
    broker.rules.forbid("publish", "t")
    broker.rules.forbid("receive by deaf", "t")
    here, deaf = broker.clean("here", "t"), broker.clean("deaf", "t")
    publish(broker)
    assert here.payloads() == [b"x"] and deaf.payloads() == []


@pytest.mark.parametrize(
    ("settings", "fields", "code"),
    [
        ({"topic_levels_max": 2}, {"topic": "a/b/c"}, reasons.TOPIC_NAME_INVALID),
        ({}, {"topic": "$SYS/x"}, reasons.NOT_AUTHORIZED),
        ({"maximum_qos": 0}, {}, reasons.QOS_NOT_SUPPORTED),
        ({"retain_available": False}, {"retain": True}, reasons.RETAIN_NOT_SUPPORTED),
        ({"maximum_packet_size": 128}, {"payload": bytes(128)}, reasons.PACKET_TOO_LARGE),
        ({"retained_messages_max": 1}, {"retain": True}, reasons.QUOTA_EXCEEDED),
    ],
)
def test_what_no_client_could_publish_changes_nothing(
    settings: dict[str, object], fields: dict[str, Any], code: int
) -> None:
    broker = Broker()
    broker.durable("away", "#").drop()
    publish(broker, "kept", retain=True)
    for name, value in settings.items():
        assert hasattr(Settings(), name)
        setattr(broker.settings, name, value)
    broker.engine.change(broker.settings, broker.now)
    end = broker.engine.stats()["log_end"]
    published = publish(broker, **fields)
    assert published.reason_code == code and counts(published) == (0, 0, 0, False)
    assert broker.engine.stats()["log_end"] == end
    assert len(broker.rows("retained")) == 1


def test_a_disk_that_is_nearly_full_takes_no_message() -> None:
    broker = Broker()
    broker.durable("away", "t").drop()
    broker.engine.note_disk_space(is_low=True)
    assert publish(broker).reason_code == reasons.QUOTA_EXCEEDED
    assert publish(broker, qos=0).reason_code == 0


def test_stores_are_told_as_of_a_client_without_a_name() -> None:
    broker = Broker(feeds=feed("t"))
    assert counts(publish(broker)) == (0, 0, 1, True)
    (message,) = take(broker)
    assert isinstance(message, Message) and (message.payload, message.publisher) == (b"x", "")


@pytest.mark.parametrize("detail", ["sessions", "full"])
def test_the_history_names_the_operator(detail: str) -> None:
    broker = Broker(history_detail=detail)
    broker.durable("away", "t").drop()
    publish(broker)
    publish(broker, "$SYS/x")
    broker.advance(ms=broker.settings.progress_delay_ms)
    (action,) = told(broker, "operator_action")
    assert (action["actor"], action["count"]) == ("admin", 1)
    assert action["detail"] == "publish to t, olga: test"
    accepted = told(broker, "msg_accepted")
    assert [each["topic"] for each in accepted] == (["t"] if detail == "full" else [])


def test_a_message_is_durable_with_the_commit_of_its_batch() -> None:
    broker = Broker()
    broker.durable("away", "t").drop()
    broker.hold_commits()
    publish(broker)
    assert broker.engine.settled_by > broker.engine.durable
    broker.restart(keep=0)
    assert broker.durable("away").receive_all() == []
