"""What connected sessions get of an accepted message: QoS, flags, properties, aliases."""

import pytest

from mqtt.packets import Publish
from tests.session.harness import Broker, with_reader
from tests.session.messages import numbers, publish

# QoS


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_message_is_delivered_at_the_lower_of_both_qos(
    version: int, durable: bool, published: int, granted: int
) -> None:
    broker = Broker()
    join = broker.durable if durable else broker.clean
    client = join("c", "t", qos=granted, version=version)
    broker.publish("t", b"1", published)
    qos = min(published, granted)
    assert client.message() == Publish("t", b"1", qos, packet_id=1 if qos else 0)


def test_a_message_that_matches_several_filters_comes_once_at_the_highest_qos() -> None:
    broker = Broker()
    client = broker.connect("c")
    for qos, topic_filter in ((0, "a/#"), (2, "a/+"), (1, "a/b")):
        client.subscribe(topic_filter, qos=qos)
    publish(broker, [b"1"], qos=2, topic="a/b")
    assert client.message().qos == 2


@pytest.mark.parametrize("offline", [True, False])
def test_every_matching_identifier_comes_with_the_one_copy(offline: bool) -> None:
    broker = Broker()
    client = broker.connect("c", expiry=100)
    client.subscribe("a/#", qos=1, identifier=7)
    client.subscribe("a/+", qos=1, identifier=7)
    client.subscribe("a/b", qos=1, identifier=268_435_455)
    client.subscribe("+/b", qos=1)
    if offline:
        client.drop()
    publish(broker, [b"1"], topic="a/b")
    if offline:
        client = broker.durable("c")
    assert sorted(client.message().subscription_identifiers) == [7, 7, 268_435_455]


def test_the_identifier_goes_when_a_subscription_is_replaced_without_one() -> None:
    broker = Broker()
    client = broker.connect("c", expiry=100)
    client.subscribe("t", qos=1, identifier=7)
    client.subscribe("t", qos=1)
    publish(broker, [b"1"])
    assert client.message().subscription_identifiers == ()
    client.drop()
    assert broker.durable("c").message().subscription_identifiers == ()


@pytest.mark.parametrize("offline", [True, False])
def test_no_local_keeps_the_own_messages_away(offline: bool) -> None:
    broker = Broker()
    client = broker.connect("c", expiry=100)
    client.subscribe("t", qos=1, no_local=True)
    if offline:
        client.stop_taking()  # what comes now is read from the store after the resume
    client.publish("t", b"own", 1)
    publish(broker, [b"others"])
    if offline:
        client.drop()
        client = broker.durable("c")
    assert client.receive_all() == [b"others"]


def test_no_local_takes_only_its_own_subscription_out() -> None:
    broker = Broker()
    client = broker.connect("c")
    client.subscribe("a/+", qos=2, no_local=True, identifier=1)
    client.subscribe("a/b", qos=1, identifier=2)
    client.publish("a/b", b"own", 2)
    message = client.message()
    assert (message.qos, message.subscription_identifiers) == (1, (2,))


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("retain", [True, False])
def test_retain_as_published_keeps_the_publishers_flag(offline: bool, retain: bool) -> None:
    broker = Broker()
    keeps = broker.connect("keeps", expiry=100)
    keeps.subscribe("t", qos=1, retain_as_published=True)
    drops = broker.connect("drops", expiry=100)
    drops.subscribe("t", qos=1)
    if offline:
        keeps.drop(), drops.drop()
    broker.publish("t", b"1", retain=retain)
    if offline:
        keeps, drops = broker.durable("keeps"), broker.durable("drops")
    assert keeps.message().retain is retain
    assert drops.message().retain is False


def test_v5_to_v4_drops_properties_and_v4_to_v5_adds_none() -> None:
    properties = b"\x01\x01\x03\x00\x01t\x26\x00\x01k\x00\x01v"
    broker = Broker()
    four = broker.clean("four", "t", version=4)
    five = broker.clean("five", "t")
    broker.connect("p5").publish("t", b"1", properties=properties)
    assert four.message() == Publish("t", b"1")
    assert five.message() == Publish("t", b"1", properties=properties)
    broker.connect("p4", version=4).publish("t", b"2")
    assert five.message() == Publish("t", b"2")


# Message expiry


def test_the_interval_shrinks_by_the_time_a_message_waited() -> None:
    broker = Broker()
    live = broker.durable("live", "t")
    broker.durable("later", "t").drop()
    broker.publish("t", b"1", message_expiry_interval=60)
    assert live.message().message_expiry_interval == 60
    broker.advance(ms=20_500)
    assert broker.durable("later").message().message_expiry_interval == 40


def test_an_interval_of_0_is_good_for_those_who_are_there() -> None:
    broker = Broker()
    live = broker.clean("live", "t", qos=1)
    broker.durable("later", "t").drop()
    broker.publish("t", b"1", message_expiry_interval=0)
    assert live.message().message_expiry_interval == 0
    broker.durable("later").expect_nothing()


def test_without_an_interval_a_message_never_expires() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    publish(broker, [b"1"])
    broker.now += 10 * 365 * 86_400_000
    assert broker.durable("c").message() == Publish("t", b"1", 1, packet_id=1)


# Topic aliases towards clients


def test_a_topic_is_sent_once_to_a_client_that_takes_aliases() -> None:
    broker = Broker()
    client = broker.clean("c", "#", qos=1, topic_alias_maximum=2)
    for topic in ("a", "a", "b", "c", "b", "c"):
        broker.publish(topic, b"1", 0)
    assert [(m.topic, m.topic_alias) for m in client.messages()] == [
        ("a", 1),
        ("", 1),
        ("b", 2),
        ("c", 0),
        ("", 2),
        ("c", 0),
    ]


def test_the_broker_uses_no_more_aliases_than_it_was_told_to() -> None:
    broker = Broker(outbound_topic_alias_maximum=1)
    client = broker.clean("c", "#", topic_alias_maximum=100)
    for topic in ("a", "b", "b"):
        broker.publish(topic, b"1", 0)
    assert [(m.topic, m.topic_alias) for m in client.messages()] == [("a", 1), ("b", 0), ("b", 0)]


@pytest.mark.parametrize("fields", [{}, {"version": 4}])
def test_without_an_alias_maximum_no_alias_is_used(fields: dict[str, int]) -> None:
    broker = Broker()
    client = broker.clean("c", "t", **fields)
    publish(broker, [b"1", b"2"], qos=0)
    assert client.messages() == [Publish("t", b"1"), Publish("t", b"2")]


def test_a_packet_too_large_with_an_alias_is_sent_without() -> None:
    broker = Broker()
    client = broker.clean("c", "t", topic_alias_maximum=5, maximum_packet_size=50)
    publish(broker, [b"x" * 44], qos=0)  # 50 bytes, 53 with an alias
    assert client.message() == Publish("t", b"x" * 44)
    publish(broker, [b"1", b"2"], qos=0)
    assert [(m.topic, m.topic_alias) for m in client.messages()] == [("t", 1), ("", 1)]


def test_aliases_end_with_their_connection() -> None:
    broker = Broker()
    client = broker.durable("c", "t", topic_alias_maximum=5)
    publish(broker, [b"1"])
    assert client.message().topic_alias == 1
    client.drop()
    client = broker.durable("c", topic_alias_maximum=5)
    assert client.message() == Publish("t", b"1", 1, dup=True, packet_id=1)
    publish(broker, [b"2"])
    assert (client.message().topic, client.connection.aliases_out) == ("t", {"t": 1})


# Where the ways meet


def test_a_durable_session_gets_nothing_that_a_limit_kept_out_of_the_store() -> None:
    broker = Broker(total_bytes_max=100, on_limit="drop_new")
    durable = broker.durable("durable", "t")
    clean = broker.clean("clean", "t", qos=1)
    publish(broker, numbers(5))
    assert clean.receive_all() == numbers(5)
    kept = durable.receive_all()
    assert kept == numbers(len(kept)) and len(kept) < 5
    assert broker.counters.dropped["total_limit"] >= 5 - len(kept)


def test_a_message_does_not_wait_behind_the_answers_to_its_receiver() -> None:
    broker, publisher = with_reader()
    broker.commit()
    client = broker.clean("c", "u", qos=1)
    broker.hold_commits()
    client.send(Publish("t", b"stored", 1, packet_id=1))  # the PUBACK waits for the commit
    publisher.send(Publish("u", b"live", 1, packet_id=1))
    assert client.payloads() == [b"live"]
    assert broker.engine.durable < broker.engine.written
