"""One member of a group gets each message, and none of them is lost [MQTT-4.8.2]."""

import pytest

from mqtt.packets import Puback, Publish, Pubrec, Pubrel
from tests.session.harness import Broker
from tests.session.shared_subscriptions import SHARED, numbers, publish, received

# Who gets what


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_in_turn(durable: bool, qos: int) -> None:
    broker = Broker()
    join = broker.durable if durable else broker.clean
    members = [join(name, SHARED, qos=2) for name in ("a", "b", "c")]
    publish(broker, *numbers(9), qos=qos)
    shares = [member.receive_all() for member in members]
    assert [len(share) for share in shares] == [3, 3, 3]
    assert sorted(payload for share in shares for payload in share) == numbers(9)


def test_groups_and_plain_subscriptions_each_get_their_copy() -> None:
    broker = Broker()
    one = broker.durable("one", "$share/g/t")
    two = broker.durable("two", "$share/h/t")
    plain = broker.durable("plain", "t")
    publish(broker, b"1")
    for client in (one, two, plain):
        assert client.receive_all() == [b"1"]


def test_a_member_with_a_plain_subscription_gets_both_copies() -> None:
    broker = Broker()
    client = broker.connect("c", expiry=100)
    client.subscribe(SHARED, qos=1, identifier=5)
    client.subscribe("t", qos=1, identifier=6)
    publish(broker, b"1")
    copies = client.messages()
    assert sorted(copy.subscription_identifiers for copy in copies) == [(5,), (6,)]
    client.acknowledge(*copies)


def test_a_wildcard_in_the_shared_filter_matches_no_system_topic() -> None:
    broker = Broker()
    client = broker.clean("c", "$share/g/#")
    broker.engine.publish_system("$SYS/x", b"1", broker.now)
    broker.settle()
    client.expect_nothing()


def test_v4_clients_may_share_a_subscription() -> None:
    broker = Broker()
    four = broker.durable("four", SHARED, version=4)
    five = broker.durable("five", SHARED)
    publish(broker, *numbers(4))
    assert len(four.receive_all()) == len(five.receive_all()) == 2


def test_no_retained_message_is_sent_for_a_shared_subscription() -> None:
    broker = Broker()
    broker.publish("t", b"R", retain=True)
    client = broker.connect("c")
    for handling in (0, 1):
        client.subscribe(SHARED, qos=1, retain_handling=handling)
    client.expect_nothing()


def test_each_member_gets_the_qos_it_was_granted() -> None:
    broker = Broker()
    low = broker.durable("low", SHARED, qos=0)
    high = broker.durable("high", SHARED, qos=2)
    publish(broker, *numbers(4), qos=2)
    assert {message.qos for message in low.messages()} == {0}
    assert {message.qos for message in high.messages()} == {2}


def test_retain_as_published_is_the_members_own() -> None:
    broker = Broker()
    one = broker.connect("one")
    one.subscribe(SHARED, qos=1, retain_as_published=True)
    two = broker.connect("two")
    two.subscribe(SHARED, qos=1)
    for number in range(4):
        broker.publish("t", b"%d" % number, retain=True)
    assert {message.retain for message in one.messages()} == {True}
    assert {message.retain for message in two.messages()} == {False}


# Joining and leaving


def test_what_waits_when_a_stored_member_joins_still_goes_to_those_in_memory() -> None:
    broker = Broker(max_inflight=1)
    passing = broker.clean("passing", SHARED, qos=1)
    publish(broker, *numbers(4))
    staying = broker.durable("staying", SHARED)
    publish(broker, b"99")
    assert received(staying, passing) == [*numbers(4), b"99"]


def test_what_waits_in_memory_is_dropped_and_counted_when_only_stored_members_are_left() -> None:
    broker = Broker(max_inflight=1)
    passing = broker.clean("passing", SHARED, qos=1)
    publish(broker, *numbers(4))
    staying = broker.durable("staying", SHARED)
    passing.drop()
    publish(broker, b"99")
    assert staying.receive_all() == [b"99"]
    assert broker.counters.dropped["storage_refused"] == 4


# Members without room, offline members


@pytest.mark.parametrize("durable", [True, False])
def test_messages_wait_with_the_group_until_a_member_has_room(durable: bool) -> None:
    broker = Broker(max_inflight=1)
    join = broker.durable if durable else broker.clean
    one, two = (join(name, SHARED, qos=1) for name in ("one", "two"))
    publish(broker, *numbers(10))
    assert len(one.messages()) == 1
    assert len(two.receive_all()) == 9


def test_a_member_that_does_not_take_its_bytes_is_passed_over() -> None:
    broker = Broker()
    one = broker.durable("one", SHARED)
    two = broker.durable("two", SHARED)
    one.stop_taking()
    publish(broker, *numbers(4), qos=1)
    publish(broker, *numbers(4), qos=0)
    assert len(two.receive_all()) == 8


def test_an_offline_member_leaves_the_messages_to_the_others() -> None:
    broker = Broker()
    broker.durable("off", SHARED).drop()
    on = broker.durable("on", SHARED)
    publish(broker, *numbers(4))
    assert on.receive_all() == numbers(4)


def test_messages_wait_for_the_first_member_when_all_are_offline() -> None:
    broker = Broker()
    for name in ("one", "two"):
        broker.durable(name, SHARED).drop()
    publish(broker, *numbers(150))
    one = broker.durable("one")
    assert one.receive_all() == numbers(100) + [b"%d" % n for n in range(100, 150)]
    publish(broker, b"live")
    assert received(one) == [b"live"]


def test_a_full_queue_in_memory_drops_by_the_limit() -> None:
    for on_limit, kept in (("drop_new", [b"00", b"01", b"02"]), ("drop_oldest", None)):
        broker = Broker(max_inflight=1, clean_queue_messages_max=2, on_limit=on_limit)
        client = broker.clean("c", SHARED, qos=1)
        publish(broker, *numbers(6))
        assert client.receive_all() == (kept or [b"00", b"04", b"05"])
        assert broker.counters.dropped["queue_full"] == 3


# Redistribution


@pytest.mark.parametrize("stored", [True, False])
def test_what_an_ended_session_held_at_qos_1_goes_to_another_member(stored: bool) -> None:
    broker = Broker()
    one = broker.connect("one", expiry=10 if stored else 0)
    one.subscribe(SHARED, qos=1)
    two = broker.durable("two", SHARED)
    publish(broker, *numbers(4))
    assert len(one.messages()) == 2
    one.drop()
    assert len(two.receive_all()) == (2 if stored else 4)
    broker.advance(s=11)
    assert two.receive_all() == ([b"00", b"02"] if stored else [])
    assert broker.counters.dropped["max_age"] == 0


def test_what_a_group_in_memory_takes_back_goes_to_another_member() -> None:
    broker = Broker()
    broker.durable("other", "t")  # the messages are stored, but not for the group
    one = broker.clean("one", SHARED, qos=1)
    two = broker.clean("two", SHARED, qos=1)
    publish(broker, *numbers(4))
    one.drop()
    assert two.receive_all() == [b"01", b"03", b"00", b"02"] or received(two) == numbers(4)


def test_a_qos_2_message_stays_with_the_member_it_was_sent_to() -> None:
    broker = Broker()
    one = broker.durable("one", SHARED, qos=2)
    two = broker.durable("two", SHARED, qos=2)
    publish(broker, b"1", qos=2)
    sent = one.message()
    one.drop()
    two.expect_nothing()
    one = broker.durable("one")
    again = one.message()
    assert again == Publish("t", b"1", 2, dup=True, packet_id=sent.packet_id)
    one.acknowledge(again)
    two.expect_nothing()


@pytest.mark.parametrize("phase", ["sent", "released"])
def test_a_qos_2_message_is_dropped_with_the_session_it_was_sent_to(phase: str) -> None:
    broker = Broker()
    one = broker.connect("one", expiry=10)
    one.subscribe(SHARED, qos=2)
    two = broker.durable("two", SHARED, qos=2)
    publish(broker, b"1", qos=2)
    message = one.message()
    if phase == "released":
        one.send(Pubrec(message.packet_id))
        one.expect(Pubrel(message.packet_id))
    one.drop()
    broker.advance(s=11)
    two.expect_nothing()
    assert broker.rows("sessions")[0][0] == b"two"


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_a_member_refuses_goes_to_nobody_else(qos: int) -> None:
    broker = Broker()
    one = broker.durable("one", SHARED, qos=2)
    two = broker.durable("two", SHARED, qos=2)
    publish(broker, b"1", qos=qos)
    message = one.message()
    one.send((Puback if qos == 1 else Pubrec)(message.packet_id, 0x87))
    one.drop()
    two.expect_nothing()
    broker.durable("one").expect_nothing()
    two.expect_nothing()


def test_a_message_too_large_for_the_chosen_member_counts_as_delivered() -> None:
    broker = Broker()
    broker.durable("small", SHARED, maximum_packet_size=60)
    publish(broker, b"x" * 100, b"1")
    assert broker.counters.dropped["too_large"] == 1


# Sending again


def test_a_member_is_sent_again_what_it_had_with_its_own_identifier() -> None:
    broker = Broker()
    one = broker.connect("one", expiry=100)
    one.subscribe(SHARED, qos=1, identifier=5, retain_as_published=True)
    one.subscribe("t", qos=0, identifier=6)
    broker.publish("t", b"1", retain=True)
    shared = [message for message in one.messages() if message.qos == 1]
    one.drop()
    again = broker.connect("one", expiry=100).message()
    assert again.packet_id == shared[0].packet_id
    assert again.dup and again.retain and again.subscription_identifiers == (5,)


def test_a_member_that_left_the_group_completes_what_it_had() -> None:
    broker = Broker()
    one = broker.durable("one", SHARED)
    broker.durable("two", SHARED)
    publish(broker, b"1")
    message = one.message()
    one.unsubscribe(SHARED)
    one.drop()
    one = broker.durable("one")
    assert one.message() == Publish("t", b"1", 1, dup=True, packet_id=message.packet_id)
    one.send(Puback(message.packet_id))
    one.drop()
    broker.durable("one").expect_nothing()


# Rules


def test_a_member_that_may_not_receive_leaves_the_message_to_one_that_may() -> None:
    broker = Broker()
    for name in ("one", "two"):
        broker.durable(name, SHARED).drop()
    publish(broker, *numbers(4))
    broker.rules.forbid("receive by one", "t")
    with broker.one_tick():
        one = broker.request("one", expiry=100)
        two = broker.request("two", expiry=100, receive_maximum=1)
    assert one.messages() == []
    assert two.receive_all() == numbers(4)
    assert broker.counters.dropped["not_authorized"] == 0


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_live_message_goes_to_a_member_that_may_receive_it(durable: bool, qos: int) -> None:
    broker = Broker()
    join = broker.durable if durable else broker.clean
    one, two = join("one", SHARED, qos=2), join("two", SHARED, qos=2)
    broker.rules.forbid("receive by one", "t")
    for payload in numbers(3):
        broker.publish("t", payload, qos)
    assert one.messages() == []
    assert two.receive_all() == numbers(3)


def test_a_waiting_message_that_nobody_may_receive_does_not_hold_up_the_others() -> None:
    broker = Broker()
    member = broker.clean("one", "$share/g/#", qos=1, receive_maximum=1)
    broker.publish("open", b"1")
    broker.publish("secret", b"2")
    broker.publish("open", b"3")
    broker.rules.forbid("receive", "secret")
    assert member.receive_all() == [b"1", b"3"]
    assert broker.counters.dropped["not_authorized"] == 1


def test_a_message_that_no_connected_member_may_receive_is_dropped_and_counted() -> None:
    broker = Broker()
    broker.durable("one", SHARED).drop()
    publish(broker, *numbers(4))
    broker.rules.forbid("receive", "t")
    broker.durable("one").expect_nothing()
    assert broker.counters.dropped["not_authorized"] == 4


def test_a_message_that_is_too_old_is_handed_to_nobody() -> None:
    broker = Broker(max_age_s=5)
    broker.durable("one", SHARED).drop()
    broker.publish("t", b"old")
    broker.advance(s=6)
    broker.publish("t", b"new")
    assert broker.durable("one").receive_all() == [b"new"]
    assert broker.counters.dropped["max_age"] == 1


def test_an_expired_message_is_handed_to_nobody() -> None:
    broker = Broker()
    broker.durable("one", SHARED).drop()
    broker.publish("t", b"short", message_expiry_interval=5)
    broker.publish("t", b"long", message_expiry_interval=50)
    broker.advance(s=10)
    one = broker.durable("one")
    assert one.message() == Publish("t", b"long", 1, packet_id=1, message_expiry_interval=40)
    assert broker.counters.expired_messages == 1


@pytest.mark.parametrize("limit", ["drop_new", "reject"])
def test_a_full_store_is_no_reason_to_stop_sharing_what_is_there(limit: str) -> None:
    broker = Broker(total_bytes_max=120, on_limit=limit)
    broker.durable("one", SHARED).drop()
    publisher = broker.connect("p")
    for payload in numbers(6):
        publisher.publish("t", payload, 1)
    kept = broker.durable("one").receive_all()
    assert 0 < len(kept) < 6 and kept == numbers(len(kept))


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_groups_read_over_generations_of_every_layout(layout: str) -> None:
    broker = Broker(layout=layout)
    broker.durable("one", SHARED).drop()
    for payload in numbers(6):
        publish(broker, payload)
        publish(broker, b"other", topic="u")
        broker.engine.rotate(broker.now)
        broker.settle()
    assert broker.durable("one").receive_all() == numbers(6)
    broker.advance(s=60)
    assert broker.engine.stats()["generations"] == 1


def test_what_expires_while_it_waits_in_memory_is_not_handed_out() -> None:
    broker = Broker(max_inflight=1)
    client = broker.clean("c", SHARED, qos=1)
    publish(broker, b"1")
    broker.publish("t", b"short", message_expiry_interval=5)
    publish(broker, b"2")
    broker.advance(s=10)
    assert client.receive_all() == [b"1", b"2"]
    assert broker.counters.expired_messages == 1


def test_what_was_taken_back_and_then_dropped_with_its_generation_is_counted() -> None:
    broker = Broker(max_age_s=60, generation_age_s=10)
    one = broker.connect("one", expiry=1)
    one.subscribe(SHARED, qos=1)
    broker.durable("two", SHARED).drop()
    publish(broker, b"old")
    one.drop()
    broker.advance(s=11)
    broker.advance(s=61)
    publish(broker, b"young")
    assert broker.durable("two").receive_all() == [b"young"]
    assert broker.counters.dropped["max_age"] >= 1


def test_a_group_goes_on_when_what_waited_for_a_member_is_released() -> None:
    """The member gets QoS 0 behind its CONNACK, and acknowledges nothing that would wake it."""
    broker = Broker(out_buffer_bytes_max=1000)
    broker.durable("m", "$share/g/t", qos=0, expiry=100).drop()
    other = broker.durable("o", "$share/g/t", qos=1)
    other.drop()
    for number in range(50):
        broker.publish("t", b"%d" % number + bytes(100), 1)
    broker.hold_commits()
    member = broker.request("m", expiry=100)
    broker.settle()
    assert 0 < member.connection.waiting_size() < 2000
    broker.commit()
    assert len(member.messages()) == 50
