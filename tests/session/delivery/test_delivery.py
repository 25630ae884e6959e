"""Messages on their way to one session: live, behind, again - in order, once, within the window."""

import pytest

from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe, Subscription
from session.delivery.delivery import PAGE_MAX
from session.live.commit_gate import REPLY_COST
from tests.session.harness import Broker
from tests.session.messages import in_flight, numbers, publish

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


def test_what_no_local_kept_away_behind_a_backlog_stays_away_after_a_crash() -> None:
    broker = Broker()
    client = broker.durable("c", receive_maximum=1)
    client.subscribe("t", qos=1, no_local=True)
    broker.publish("t", b"1")
    broker.publish("t", b"2")  # waits for room
    client.publish("t", b"own", 1)
    assert client.receive_all() == [b"1", b"2"]
    client.subscribe("t", qos=1)
    broker.advance(s=1)
    broker.restart()
    assert broker.durable("c").receive_all() == []


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


def test_properties_keep_their_order_through_the_store() -> None:
    properties = b"\x26\x00\x01k\x00\x01v\x03\x00\x01t\x26\x00\x01k\x00\x01w\x01\x01"
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.publish("t", b"1", properties=properties)
    broker.restart()
    assert broker.durable("c").message().properties == properties


# The window


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(("receive_maximum", "max_inflight"), [(3, 100), (100, 3)])
def test_no_more_is_in_flight_than_either_side_allows(
    durable: bool, qos: int, receive_maximum: int, max_inflight: int
) -> None:
    broker = Broker(max_inflight=max_inflight)
    join = broker.durable if durable else broker.clean
    client = join("c", "t", qos=2, receive_maximum=receive_maximum)
    publish(broker, numbers(10), qos=qos)
    assert len(client.collect()) == 3
    assert client.receive_all() == numbers(10)


def test_v4_clients_have_our_own_window() -> None:
    broker = Broker(max_inflight=3)
    client = broker.durable("c", "t", version=4)
    publish(broker, numbers(10))
    assert len(client.collect()) == 3
    assert client.receive_all() == numbers(10)


def test_qos_0_passes_a_full_window() -> None:
    broker = Broker(max_inflight=1)
    client = broker.durable("c", "t")
    publish(broker, [b"1", b"2"])
    publish(broker, [b"zero"], qos=0)
    assert client.payloads() == [b"1", b"zero"]


@pytest.mark.parametrize("answer", ["puback", "error", "pubrec error", "pubcomp"])
def test_the_window_opens_with_the_end_of_an_exchange(answer: str) -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2, receive_maximum=1)
    publish(broker, [b"1", b"2"], qos=1 if answer in ("puback", "error") else 2)
    packet_id = client.message().packet_id
    if answer == "puback":
        client.send(Puback(packet_id))
    elif answer == "error":
        client.send(Puback(packet_id, 0x80))
    elif answer == "pubrec error":
        client.send(Pubrec(packet_id, 0x80))
    else:
        client.send(Pubrec(packet_id))
        client.expect(Pubrel(packet_id))
        client.send(Pubcomp(packet_id))
    assert client.payloads() == [b"2"]


def test_pubrec_alone_does_not_open_the_window() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2, receive_maximum=1)
    publish(broker, [b"1", b"2"], qos=2)
    packet_id = client.message().packet_id
    client.send(Pubrec(packet_id))
    client.expect(Pubrel(packet_id))


def test_acknowledgements_never_widen_the_window_beyond_its_start() -> None:
    broker = Broker()
    client = broker.durable("c", "t", receive_maximum=2)
    client.send(Puback(1), Puback(2), Pubcomp(3), Pubrec(4, 0x80))
    publish(broker, numbers(5))
    assert len(client.messages()) == 2


def test_a_pubrel_sent_again_takes_no_room_and_gives_none() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2, receive_maximum=2)
    publish(broker, numbers(4), qos=2)
    first, second = client.messages()
    for message in (first, second):
        client.send(Pubrec(message.packet_id))
    client.drop()
    client = broker.durable("c", receive_maximum=2)
    packets = client.take()
    assert packets[:2] == [Pubrel(first.packet_id), Pubrel(second.packet_id)]
    assert [packet.payload for packet in packets[2:] if isinstance(packet, Publish)] == numbers(
        2, start=2
    )
    client.send(Pubcomp(first.packet_id), Pubcomp(second.packet_id))
    publish(broker, numbers(2, start=4), qos=2)
    client.expect_nothing()


def test_a_client_that_never_completes_qos_2_cannot_gather_more_and_more() -> None:
    broker = Broker(max_inflight=4)
    client = broker.durable("c", "t", qos=2)
    publish(broker, numbers(40), qos=2)
    for _ in range(6):
        for message in client.messages():
            client.send(Pubrec(message.packet_id))
        client.drop()
        client = broker.durable("c")
        assert in_flight(client) <= 4
    owed = [packet for packet in client.take() if isinstance(packet, Pubrel)]
    for pubrel in owed:
        client.send(Pubcomp(pubrel.packet_id))
    assert client.receive_all() == numbers(36, start=4)


def test_pubrec_before_the_message_was_sent_again_is_an_answer_too() -> None:
    broker = Broker(max_inflight=3)
    client = broker.durable("c", "t", qos=2)
    publish(broker, numbers(6), qos=2)
    sent = client.messages()
    client.drop()
    client = broker.durable("c", receive_maximum=1)
    assert client.message().packet_id == sent[0].packet_id
    for message in sent:
        client.send(Pubrec(message.packet_id))
        client.expect(Pubrel(message.packet_id))
    for message in sent:
        client.send(Pubcomp(message.packet_id))
    assert client.receive_all() == numbers(3, start=3)


# Order


def test_a_live_message_does_not_overtake_one_that_waited_for_the_window() -> None:
    broker = Broker(max_inflight=1)
    client = broker.durable("c", "t")
    publish(broker, [b"1", b"2"])
    first = client.message()
    broker.hold_commits()
    publisher = broker.connect("p")
    client.send(Puback(first.packet_id))
    publisher.send(Publish("t", b"3", 1, packet_id=1))
    client.expect_nothing()
    broker.commit()
    assert client.receive_all() == [b"2", b"3"]


def test_a_live_message_does_not_overtake_the_backlog() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    publish(broker, numbers(5))
    client = broker.durable("c", receive_maximum=10)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"9", 1, packet_id=1))
    broker.commit()
    assert client.receive_all() == [*numbers(5), b"9"]


def test_a_live_qos_0_message_does_not_overtake_the_retained_one() -> None:
    broker = Broker()
    broker.publish("t", b"old", 0, retain=True)
    client = broker.connect("c", expiry=100)
    publisher = broker.connect("p")
    broker.hold_commits()
    client.send(Subscribe(1, [Subscription("t", 0)]))
    publisher.send(Publish("t", b"new", 0))
    broker.commit()
    assert client.payloads() == [b"old", b"new"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("durable", [True, False])
def test_order_holds_through_window_queue_and_store(qos: int, durable: bool) -> None:
    broker = Broker(pending_messages_max=5, clean_queue_messages_max=1000)
    join = broker.durable if durable else broker.clean
    client = join("c", "t", qos=2, receive_maximum=3)
    publish(broker, numbers(200), qos=qos)
    assert client.receive_all() == numbers(200)


# Behind and live again


def test_a_full_queue_of_a_durable_session_drops_nothing() -> None:
    broker = Broker(pending_messages_max=3, max_inflight=2)
    client = broker.durable("c", "t")
    publish(broker, numbers(5))
    assert not client.connection.is_lagging and len(client.connection.pending) == 3
    publish(broker, numbers(1, start=5))
    assert client.connection.is_lagging and not client.connection.pending
    publish(broker, numbers(3 * PAGE_MAX, start=6))
    assert client.receive_all() == numbers(6 + 3 * PAGE_MAX)
    assert not client.connection.is_lagging
    publish(broker, [b"live"])
    assert client.receive_all() == [b"live"]
    assert sum(broker.counters.dropped.values()) == 0


def test_messages_published_while_a_session_drains_come_in_their_order() -> None:
    broker = Broker(pending_messages_max=2, max_inflight=2)
    client = broker.durable("c", "t")
    publish(broker, numbers(10))
    received: list[bytes] = []
    for number in range(10, 20):
        for message in client.messages():
            received.append(message.payload)
            client.acknowledge(message)
        publish(broker, numbers(1, start=number))
    assert received + client.receive_all() == numbers(20)


def test_a_session_that_is_behind_survives_a_crash() -> None:
    broker = Broker(pending_messages_max=2, max_inflight=2)
    client = broker.durable("c", "t")
    publish(broker, numbers(10))
    done = client.messages()
    client.acknowledge(*done)
    broker.advance(s=1)
    broker.restart()
    assert broker.durable("c").receive_all() == numbers(8, start=2)


def test_a_session_that_is_behind_may_disconnect_and_go_on_later() -> None:
    broker = Broker(pending_messages_max=2, max_inflight=2)
    client = broker.durable("c", "t")
    publish(broker, numbers(10))
    client.acknowledge(*client.messages())
    client.disconnect()
    client = broker.durable("c")
    publish(broker, numbers(5, start=10))
    assert client.receive_all() == numbers(13, start=2)


def test_a_slow_consumer_is_sent_nothing_until_it_has_taken_its_bytes() -> None:
    broker = Broker(pending_messages_max=2)
    client = broker.durable("c", "t")
    client.stop_taking()
    publish(broker, numbers(5))
    publish(broker, [b"zero"], qos=0)
    client.expect_nothing()
    assert broker.counters.dropped["slow_consumer"] == 1
    client.go_on_taking()
    assert client.receive_all() == numbers(5)


@pytest.mark.parametrize(
    ("on_limit", "kept"),
    [("drop_new", [b"0000", b"0001", b"0002"]), ("drop_oldest", [b"0000", b"0004", b"0005"])],
)
def test_a_full_queue_of_a_session_in_memory_drops_by_the_limit(
    on_limit: str, kept: list[bytes]
) -> None:
    broker = Broker(max_inflight=1, clean_queue_messages_max=2, on_limit=on_limit)
    client = broker.clean("c", "t", qos=1)
    publish(broker, numbers(6))
    assert client.receive_all() == kept
    assert broker.counters.dropped["queue_full"] == 3


@pytest.mark.parametrize(
    ("on_limit", "kept"),
    [("drop_new", [b"0000", b"0001", b"0002"]), ("drop_oldest", [b"0000", b"0004", b"0005"])],
)
def test_a_queue_of_a_session_in_memory_is_full_by_bytes_as_well(
    on_limit: str, kept: list[bytes]
) -> None:
    broker = Broker(max_inflight=1, clean_queue_bytes_max=8, on_limit=on_limit)
    client = broker.clean("c", "t", qos=1)
    publish(broker, numbers(6))
    assert client.connection.pending_bytes == 8
    assert client.receive_all() == kept
    assert broker.counters.dropped["queue_full"] == 3
    assert client.connection.pending_bytes == 0


def test_a_large_message_takes_the_place_of_many_small_ones() -> None:
    broker = Broker(max_inflight=1, clean_queue_bytes_max=100)
    client = broker.clean("c", "t", qos=1)
    publish(broker, [b"in flight", *numbers(20), b"L" * 99])
    assert client.receive_all() == [b"in flight", b"L" * 99]
    assert broker.counters.dropped["queue_full"] == 20


def test_a_session_with_too_many_bytes_waiting_reads_them_from_the_store() -> None:
    broker = Broker(max_inflight=1, pending_bytes_max=1000)
    client = broker.durable("c", "t")
    payloads = [bytes([number]) * 400 for number in range(5)]
    publish(broker, payloads[:3])
    assert not client.connection.is_lagging and client.connection.pending_bytes == 800
    publish(broker, payloads[3:])
    assert client.connection.is_lagging and client.connection.pending_bytes == 0
    assert client.receive_all() == payloads


def test_a_message_larger_than_the_queue_may_wait_alone() -> None:
    broker = Broker(max_inflight=1, pending_bytes_max=10, clean_queue_bytes_max=10)
    stored, clean = broker.durable("s", "t"), broker.clean("c", "t", qos=1)
    publish(broker, [b"1", b"2" * 100])
    assert stored.receive_all() == clean.receive_all() == [b"1", b"2" * 100]
    assert broker.counters.dropped["queue_full"] == 0


def test_what_is_sent_again_is_cut_by_bytes_not_only_by_the_window() -> None:
    broker = Broker(out_buffer_bytes_max=2000)
    client = broker.durable("c", "t")
    payloads = [bytes([number]) * 400 for number in range(50)]
    publish(broker, payloads)
    client.drop()
    broker.hold_commits()
    client = broker.request("c", expiry=100)
    assert len(client.connection.resend) > 40
    assert client.connection.waiting_size() < 2000 + 500 + 2 * REPLY_COST * 8
    broker.commit()
    assert [message.payload for message in client.messages()] == payloads


def test_qos_2_messages_held_for_a_commit_are_bounded() -> None:
    broker = Broker(out_buffer_bytes_max=2000)
    client = broker.durable("c", "t", qos=2)
    publisher = broker.connect("p")
    broker.hold_commits()
    payloads = [bytes([number]) * 400 for number in range(50)]
    for number, payload in enumerate(payloads):
        publisher.send(Publish("t", payload, 2, packet_id=number + 1))
    assert client.connection.waiting_size() < 2000 + 500 + REPLY_COST * 8
    broker.commit()
    assert client.receive_all() == payloads


def test_an_offline_session_costs_no_memory_and_gets_everything() -> None:
    broker = Broker()
    broker.durable("c", "t", "u/#").drop()
    assert "c" not in broker.engine._sessions.live
    for payload in numbers(300):
        publish(broker, [payload], topic="t" if int(payload) % 3 else "u/x")
    assert broker.durable("c").receive_all() == numbers(300)


def test_a_deep_backlog_is_read_in_slices() -> None:
    broker = Broker(max_inflight=10_000)
    broker.durable("c", "t").drop()
    publish(broker, numbers(5 * PAGE_MAX))
    steps = []
    with broker.one_tick():
        client = broker.request("c", expiry=100)
        while broker.engine.end_tick(broker.now) or len(steps) < 3:
            steps.append(in_flight(client) - sum(steps))
    assert max(steps) == PAGE_MAX and sum(steps) == 5 * PAGE_MAX


def test_qos_0_is_not_kept_for_offline_sessions() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    publish(broker, [b"zero"], qos=0)
    publish(broker, [b"one"], qos=1)
    assert broker.durable("c").receive_all() == [b"one"]


def test_qos_0_is_kept_if_the_operator_says_so() -> None:
    broker = Broker(store_qos0=True)
    broker.durable("c", "t").drop()
    publish(broker, [b"zero"], qos=0)
    publish(broker, [b"one"], qos=1)
    broker.restart()
    assert broker.durable("c").receive_all() == [b"zero", b"one"]


def test_a_stored_qos_0_message_is_delivered_once() -> None:
    broker = Broker(store_qos0=True, max_inflight=1, pending_messages_max=1)
    client = broker.durable("c", "t")
    for payload in numbers(6):
        publish(broker, [payload], qos=0 if int(payload) % 2 else 1)
    assert sorted(client.receive_all()) == numbers(6)
    client.drop()
    broker.durable("c").expect_nothing()


def test_qos_0_behind_a_commit_that_does_not_come_is_bounded() -> None:
    broker = Broker(held_bytes_max=1000)
    client = broker.durable("c", "t", qos=2)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"", 2, packet_id=1))
    for _ in range(100):
        publisher.send(Publish("t", b"x" * 100, 0))
    assert client.connection.waiting_size() < 1500
    assert broker.counters.dropped["slow_consumer"] > 80
    broker.commit()
    assert client.connection.waiting_size() == 0


def test_a_backlog_behind_a_commit_that_does_not_come_is_bounded() -> None:
    broker = Broker(held_bytes_max=2000, store_qos0=True)
    client = broker.durable("c", "t")
    client.stop_taking()
    for _ in range(600):
        publish(broker, [b"x" * 100], qos=1)
    client.subscribe("t", qos=0)
    client.drop()
    broker.hold_commits()
    client = broker.request("c", expiry=100)
    broker.settle()
    assert client.connection.waiting_size() < 2000 + (PAGE_MAX + 1) * (116 + REPLY_COST)
    broker.commit()
    assert len(client.receive_all()) == 600


# Again


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_everything_in_flight_is_sent_again_in_order_with_its_ids(
    crash: bool, version: int
) -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2, version=version)
    publish(broker, [b"1", b"2"], qos=1)
    publish(broker, [b"3", b"4", b"5"], qos=2)
    ids = [message.packet_id for message in client.messages()]
    client.send(Pubrec(ids[3]))
    client.expect(Pubrel(ids[3]))
    if crash:
        broker.restart()
    else:
        client.drop()
    publish(broker, [b"new"], qos=1)
    client = broker.durable("c", version=version)
    client.expect(
        Publish("t", b"1", 1, dup=True, packet_id=ids[0]),
        Publish("t", b"2", 1, dup=True, packet_id=ids[1]),
        Publish("t", b"3", 2, dup=True, packet_id=ids[2]),
        Pubrel(ids[3]),
        Publish("t", b"5", 2, dup=True, packet_id=ids[4]),
        Publish("t", b"new", 1, packet_id=ids[4] + 1),
    )


def test_nothing_is_sent_again_within_a_connection() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    publish(broker, [b"1"], qos=1)
    publish(broker, [b"2"], qos=2)
    client.messages()
    broker.advance(s=3600)
    client.expect_nothing()


def test_more_in_flight_than_the_new_window_is_sent_again_as_it_opens() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    publish(broker, numbers(5))
    client.drop()
    publish(broker, numbers(2, start=5))
    client = broker.durable("c", receive_maximum=2)
    seen = []
    while messages := client.messages():
        assert len(messages) <= 2
        seen += [(message.payload, message.dup) for message in messages]
        client.acknowledge(*messages)
    assert seen == [(p, True) for p in numbers(5)] + [(p, False) for p in numbers(2, start=5)]


def test_live_messages_wait_behind_what_is_sent_again() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    publish(broker, numbers(3))
    client.drop()
    client = broker.durable("c", receive_maximum=1)
    publish(broker, numbers(1, start=3))
    assert client.receive_all() == numbers(4)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_client_refused_is_not_sent_again(qos: int) -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    publish(broker, [b"1"], qos=qos)
    message = client.message()
    client.send((Puback if qos == 1 else Pubrec)(message.packet_id, 0x97))
    client.drop()
    broker.durable("c").expect_nothing()


def test_a_message_that_was_begun_is_completed_after_unsubscribing() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    publish(broker, [b"1"])
    message = client.message()
    client.unsubscribe("t")
    publish(broker, [b"2"])
    client.drop()
    client = broker.durable("c")
    assert client.message() == Publish("t", b"1", 1, dup=True, packet_id=message.packet_id)
    client.send(Puback(message.packet_id))
    client.expect_nothing()


def test_what_a_session_completed_is_never_repeated() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    publish(broker, numbers(5), qos=1)
    publish(broker, numbers(5, start=5), qos=2)
    assert client.receive_all() == numbers(10)
    broker.advance(s=1)
    broker.restart()
    broker.durable("c").expect_nothing()


def test_packet_ids_go_round_and_pass_over_those_in_flight() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    session = client.connection.session
    assert session is not None
    publish(broker, [b"stays"])
    assert client.message().packet_id == 1
    session.next_packet_id = 65_535
    publish(broker, [b"last", b"first"])
    assert [message.packet_id for message in client.messages()] == [65_535, 2]


# Message expiry


def test_the_interval_shrinks_by_the_time_a_message_waited() -> None:
    broker = Broker()
    live = broker.durable("live", "t")
    broker.durable("later", "t").drop()
    broker.publish("t", b"1", message_expiry_interval=60)
    assert live.message().message_expiry_interval == 60
    broker.advance(ms=20_500)
    assert broker.durable("later").message().message_expiry_interval == 40


@pytest.mark.parametrize("restart", [True, False])
def test_an_expired_message_is_not_delivered(restart: bool) -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.publish("t", b"1", message_expiry_interval=60)
    if restart:
        broker.restart(after_ms=60_000)
    else:
        broker.advance(s=60)
    broker.durable("c").expect_nothing()
    assert broker.counters.expired_messages == 1


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_that_expires_in_the_queue_is_not_sent(durable: bool) -> None:
    broker = Broker(max_inflight=1)
    client = (broker.durable if durable else broker.clean)("c", "t", qos=1)
    publish(broker, [b"1"])
    broker.publish("t", b"short", message_expiry_interval=5)
    broker.publish("t", b"long", message_expiry_interval=50)
    broker.advance(s=10)
    assert client.receive_all() == [b"1", b"long"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_was_sent_does_not_expire_any_more(qos: int) -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", qos, message_expiry_interval=5)
    client.message()
    client.drop()
    broker.advance(s=10)
    again = broker.durable("c").message()
    assert again.dup and again.message_expiry_interval == 0


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


def test_a_message_that_waits_for_its_commit_sets_no_alias() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2, topic_alias_maximum=5)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"2", 2, packet_id=1))
    publisher.send(Publish("t", b"0", 0))
    broker.commit()
    assert [(m.topic, m.topic_alias) for m in client.messages()] == [("t", 0), ("t", 1)]


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


def test_a_message_before_a_subscription_does_not_carry_its_identifier() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1)
    client = broker.connect("c", expiry=100)
    client.subscribe("a/+", qos=1, identifier=1)
    publish(broker, numbers(4), topic="a/b")
    client.subscribe("a/#", qos=1, identifier=2)
    publish(broker, numbers(1, start=4), topic="a/b")
    seen = []
    while messages := client.messages():
        seen += [message.subscription_identifiers for message in messages]
        client.acknowledge(*messages)
    assert seen[:4] == [(1,)] * 4
    assert sorted(seen[4]) == [1, 2]


def test_stored_qos_0_waits_its_turn_behind_a_full_window() -> None:
    broker = Broker(store_qos0=True, max_inflight=1)
    client = broker.durable("c", "t")
    publish(broker, [b"1", b"2"])
    publish(broker, [b"zero"], qos=0)
    publish(broker, [b"3"])
    assert client.receive_all() == [b"1", b"2", b"zero", b"3"]


def test_what_a_dropped_generation_held_is_missing_and_counted() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1, max_age_s=60, generation_age_s=10)
    client = broker.durable("c", "t")
    publish(broker, numbers(5))
    first = client.message()
    broker.advance(s=11)
    broker.advance(s=61)
    publish(broker, [b"young"])
    client.acknowledge(first)
    assert client.receive_all() == [b"young"]
    assert broker.counters.dropped["max_age"] >= 4


def test_own_messages_in_the_backlog_are_passed_over() -> None:
    broker = Broker(max_inflight=1, pending_messages_max=1)
    client = broker.connect("c", expiry=100)
    client.subscribe("t", qos=1, no_local=True)
    publish(broker, numbers(4))
    assert client.connection.is_lagging
    client.publish("t", b"own", 1)
    publish(broker, numbers(1, start=4))
    assert client.receive_all() == numbers(5)


def test_a_retained_copy_that_was_acknowledged_just_before_a_crash_is_not_sent_again() -> None:
    broker = Broker()
    broker.publish("t", b"R", retain=True)
    client = broker.durable("c", "t")
    client.acknowledge(client.message())
    broker.restart()  # the row of the copy is gone, the record still names it
    client = broker.durable("c")
    client.expect_nothing()
    assert in_flight(client) == 0


def test_a_pubrec_with_any_success_code_goes_on() -> None:
    """[MQTT-4.3.3-4] 0x10 is below 0x80, though a client has no use for it."""
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", 2)
    message = client.message()
    client.send_bytes(b"\x50\x03" + message.packet_id.to_bytes(2, "big") + b"\x10")
    client.expect(Pubrel(message.packet_id))


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
def test_a_v4_client_that_goes_on_with_a_v5_session_has_no_v5_options(topic_filter: str) -> None:
    """v3.1.1 [MQTT-3.3.1-9]: RETAIN 0 live. The options are kept for when it comes back as v5."""
    broker = Broker()
    client = broker.durable("c")
    client.subscribe(topic_filter, qos=1, retain_as_published=True)
    client.drop()
    broker.publish("t", b"stored", retain=True)
    client = broker.durable("c", version=4)
    broker.publish("t", b"live", retain=True)
    messages = client.messages()
    assert [(message.payload, message.retain) for message in messages] == [
        (b"stored", False),
        (b"live", False),
    ]
    client.acknowledge(*messages)
    client.drop()
    client = broker.durable("c")
    broker.publish("t", b"5", retain=True)
    assert client.message().retain


def test_a_v4_client_that_goes_on_with_a_v5_session_gets_its_own_messages() -> None:
    broker = Broker()
    client = broker.durable("c")
    client.subscribe("t", qos=1, no_local=True)
    client.publish("t", b"1", 1)
    client.expect_nothing()
    client.drop()
    client = broker.durable("c", version=4)
    client.publish("t", b"2", 1)
    assert client.receive_all() == [b"2"]
