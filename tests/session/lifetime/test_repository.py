"""Sessions in the store: found again, subscribed, ended, and what their rows say meanwhile."""

import pytest

from mqtt.packets import Connack, Suback, Subscribe, Subscription
from session.lifetime.repository import INCARNATION_SHIFT, LATE_MAX
from session.state.records import decode_session
from session.state.subscription import decode_subscription
from storage.tables.tables import decode_filter, load_boot, seal, unseal
from tests.session.harness import NEVER, Broker, Client


def holders(broker: Broker) -> dict[str, int]:
    """Return how many durable readers each filter has, by the store."""
    return {key.decode(): decode_filter(value)[1] for key, value in broker.rows("filters")}


def granted(broker: Broker, key: bytes) -> int:
    """Return the QoS of a subscription, by the store."""
    value = broker.store.get("subscriptions", key)
    assert value is not None
    return decode_subscription("", None, "", unseal(value, "subscription")).qos


# Subscriptions


def test_a_subscription_survives_a_restart_with_all_its_options() -> None:
    broker = Broker()
    client = broker.connect("c", expiry=NEVER)
    client.subscribe("t", qos=1, identifier=7, no_local=True, retain_as_published=True)
    broker.restart()
    client = broker.durable("c")
    client.publish("t", b"own", 1)
    broker.publish("t", b"1", 2, retain=True)
    message = client.message()
    assert (message.qos, message.retain, message.subscription_identifiers) == (1, True, (7,))


def test_nothing_published_before_the_subscription_is_delivered() -> None:
    broker = Broker()
    broker.durable("other", "t").drop()
    broker.publish("t", b"before")
    client = broker.durable("c", "t")
    broker.publish("t", b"after")
    client.drop()
    assert broker.durable("c").receive_all() == [b"after"]


def test_an_earlier_backlog_of_one_filter_does_not_bring_back_that_of_a_later_one() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1)
    broker.durable("other", "u").drop()
    client = broker.durable("c", "t")
    for number in range(4):
        broker.publish("t", b"t%d" % number)
        broker.publish("u", b"u%d" % number)
    client.subscribe("u", qos=1)
    broker.publish("u", b"new")
    assert client.receive_all() == [b"t0", b"t1", b"t2", b"t3", b"new"]


@pytest.mark.parametrize("behind", [True, False])
def test_replacing_a_subscription_loses_and_doubles_nothing(behind: bool) -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1 if behind else 100)
    client = broker.durable("c", "t")
    for number in range(5):
        broker.publish("t", b"%d" % number)
    assert client.connection.is_lagging is behind
    assert client.subscribe("t", qos=2) == [2]
    broker.publish("t", b"5")
    assert client.receive_all() == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("behind", [True, False])
def test_a_downgrade_to_qos_0_loses_nothing_that_was_owed(behind: bool) -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1 if behind else 100)
    client = broker.durable("c", "t")
    for payload in (b"1", b"2", b"3", b"4"):
        broker.publish("t", payload)
    assert client.subscribe("t", qos=0) == [0]
    client.drop()
    assert broker.durable("c").receive_all() == [b"1", b"2", b"3", b"4"]


def test_after_a_downgrade_to_qos_0_nothing_is_stored_for_the_session() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    client.subscribe("t", qos=0)
    assert holders(broker) == {}
    broker.publish("t", b"live")
    assert client.payloads() == [b"live"]
    client.drop()
    broker.publish("t", b"missed")
    broker.durable("c").expect_nothing()


def test_an_upgrade_from_qos_0_stores_from_then_on() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=0)
    broker.publish("t", b"before")
    client.subscribe("t", qos=1)
    client.drop()
    broker.publish("t", b"after")
    assert client.payloads() == [b"before"]
    assert broker.durable("c").receive_all() == [b"after"]


def test_unsubscribing_ends_the_flow_at_once() -> None:
    broker = Broker()
    client = broker.durable("c", "a/+", "a/b")
    client.unsubscribe("a/b")
    broker.publish("a/b", b"1")
    assert client.receive_all() == [b"1"]
    client.unsubscribe("a/+")
    broker.publish("a/b", b"2")
    client.expect_nothing()
    client.drop()
    broker.publish("a/b", b"3")
    broker.durable("c").expect_nothing()


def test_a_filter_unsubscribed_and_subscribed_again_begins_anew() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    client.stop_taking()
    broker.publish("t", b"old")
    client.unsubscribe("t")
    client.subscribe("t", qos=1)
    client.drop()
    broker.publish("t", b"new")
    assert broker.durable("c").receive_all() == [b"new"]


# Rows


def test_sessions_with_one_filter_share_one_stream() -> None:
    broker = Broker()
    for name in ("a", "b", "c"):
        broker.durable(name, "t", "u" if name == "a" else "t")
    assert holders(broker) == {"t": 3, "u": 1}
    assert len(broker.rows("holders")) == 4
    broker.durable("b").unsubscribe("t")
    assert holders(broker) == {"t": 2, "u": 1}


def test_a_stream_ends_with_its_last_reader_and_its_number_is_not_used_again() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    first = decode_filter(broker.rows("filters")[0][1])[0]
    client.unsubscribe("t")
    assert broker.rows("filters") == broker.rows("holders") == []
    broker.restart()
    broker.durable("c").subscribe("t", qos=1)
    assert decode_filter(broker.rows("filters")[0][1])[0] > first


def test_sessions_in_memory_write_no_row() -> None:
    broker = Broker()
    client = broker.clean("c", "t", "$share/g/u", qos=2)
    client.start_publish("t", b"", 2, packet_id=5)
    broker.publish("u", b"", 2)
    for family in ("sessions", "subscriptions", "holders", "filters", "incoming", "groups"):
        assert broker.rows(family) == [], family
    assert broker.rows("connections") == []


def test_the_row_of_a_subscription_is_the_granted_one() -> None:
    broker = Broker(maximum_qos=1)
    broker.connect("c", expiry=10).subscribe("a/#", qos=2)
    assert granted(broker, b"c\0a/#") == 1


def test_the_record_follows_what_the_session_does() -> None:
    broker = Broker()

    def record() -> tuple[int, int, int]:
        value = broker.store.get("sessions", b"c")
        assert value is not None
        session = decode_session("c", unseal(value, "session"))
        return session.position, len(session.in_flight), session.disconnected_at_ms

    client = broker.durable("c", "t", qos=2)
    assert record() == (0, 0, 0)
    broker.publish("t", b"1", 2)
    assert record() == (1, 1, 0)
    client.acknowledge(*client.messages())
    broker.advance(ms=250)
    assert record() == (1, 0, 0)
    client.drop()
    assert record() == (1, 0, broker.now)


def test_a_session_that_was_only_watching_moves_its_position_when_it_leaves() -> None:
    broker = Broker()
    broker.durable("other", "u").drop()
    client = broker.durable("c", "t")
    for _ in range(5):
        broker.publish("u")
    client.drop()
    value = broker.store.get("sessions", b"c")
    assert value is not None
    assert decode_session("c", unseal(value, "session")).position == 5


def test_many_subscriptions_are_loaded_page_by_page() -> None:
    broker = Broker()
    names = [f"t/{number}" for number in range(600)]
    broker.durable("c", *names).drop()
    broker.restart()
    client = broker.durable("c")
    assert client.unsubscribe(*names, "one more") == [0] * 600 + [0x11]
    assert broker.rows("subscriptions") == [] and holders(broker) == {}


def test_inbound_ids_are_loaded_with_the_session() -> None:
    broker = Broker()
    client = broker.durable("c")
    for packet_id in (1, 300, 65_535):
        client.start_publish("t", b"", 2, packet_id=packet_id)
    client.drop()
    broker.restart()
    connection = broker.durable("c").connection
    assert connection.session is not None
    assert connection.session.incoming == {1, 300, 65_535}


def test_ending_one_session_leaves_the_others_alone() -> None:
    broker = Broker()
    broker.durable("c", "t", "$share/g/u", qos=2).drop()
    for name in ("b", "c1", "c "):
        client: Client = broker.durable(name, "t", "$share/g/u", qos=2)
        client.start_publish("elsewhere", b"", 2, packet_id=5)
        client.drop()
    broker.publish("t", b"1", 2)
    broker.connect("c", clean_start=True)
    for name in ("b", "c1", "c "):
        client = broker.durable(name)
        assert client.receive_all() == [b"1"]
        assert client.connection.session is not None
        assert client.connection.session.incoming == {5}
    assert holders(broker) == {"t": 3, "u": 1}


@pytest.mark.parametrize("family", ["sessions", "subscriptions"])
def test_a_row_of_a_later_version_is_refused_and_left_alone(family: str) -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    ((key, value),) = broker.rows(family)
    later = seal(b"\x63" + unseal(value, family)[1:])
    broker.store.write([(family, key, later)])
    broker.is_audited = False
    assert broker.refused("c", expiry=100) == 0x88
    assert broker.rows(family) == [(key, later)]


def test_late_progress_of_many_sessions_is_written_in_slices() -> None:
    broker = Broker()
    count = LATE_MAX + 10
    with broker.one_tick():
        clients = [broker.request(f"c{number}", expiry=NEVER) for number in range(count)]
    with broker.one_tick():
        for client in clients:
            client.answer(Connack)
            client.send(Subscribe(1, [Subscription("t", 1)]))
    broker.publish("t", b"1")
    with broker.one_tick():
        for client in clients:
            client.answer(Suback)
            client.acknowledge(client.message())
    late = broker.engine._tick.late
    for left in (10, 0):
        broker.now += broker.settings.progress_delay_ms
        deadline = broker.engine.next_deadline()
        assert deadline is not None and deadline <= broker.now
        broker.engine.end_tick(broker.now)
        assert len(late) == left
    broker.settle()
    broker.restart()
    assert not broker.durable("c0").messages()


# Incarnations


def incarnation(broker: Broker, client_id: str = "c") -> int:
    """Return which session this is, by the store."""
    value = broker.store.get("sessions", client_id.encode())
    assert value is not None
    return decode_session(client_id, unseal(value, "session")).incarnation


def test_a_session_keeps_its_incarnation_as_long_as_it_lives() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    first = incarnation(broker)
    assert first == 1 << INCARNATION_SHIFT | 1
    broker.durable("c")
    broker.restart()
    assert incarnation(broker) == first
    broker.durable("c").drop()
    assert incarnation(broker) == first


def test_every_session_is_another_incarnation_and_so_is_the_next_one_of_a_client() -> None:
    broker = Broker()
    seen = set()
    for client_id in ("a", "b", "clean"):
        client = broker.clean(client_id) if client_id == "clean" else broker.durable(client_id)
        assert client.connection.session is not None
        seen.add(client.connection.session.incarnation)
    broker.connect("a", clean_start=True, expiry=NEVER)
    seen.add(incarnation(broker, "a"))
    broker.restart()
    broker.connect("a", clean_start=True, expiry=NEVER)
    seen.add(incarnation(broker, "a"))
    boots = sorted(number >> INCARNATION_SHIFT for number in seen)
    assert len(seen) == 5 and boots == [1, 1, 1, 1, 2]


def test_the_starts_of_the_broker_are_counted_also_those_that_a_crash_ended() -> None:
    broker = Broker()
    assert load_boot(broker.store)[0] == 1
    broker.restart()
    broker.restart(keep=0)
    assert load_boot(broker.store)[0] == 3


def test_a_session_of_an_earlier_version_gets_an_incarnation_when_its_client_connects() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    value = broker.store.get("sessions", b"c")
    assert value is not None
    body = unseal(value, "session")
    old = b"\x01" + body[1:68] + body[76:]  # version 1: the same without the incarnation
    broker.store.write([("sessions", b"c", seal(old))])
    assert incarnation(broker) == 0
    broker.publish("t", b"1")
    client = broker.durable("c")
    assert incarnation(broker) == 1 << INCARNATION_SHIFT | 3  # the publisher was the second one
    assert client.payloads() == [b"1"]
