"""No more is in flight than both sides allow; what waits has its order and its limits."""

import pytest

from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from session.delivery.backlog import PAGE_MAX
from tests.session.harness import Broker
from tests.session.messages import in_flight, numbers, publish


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


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_that_expires_in_the_queue_is_not_sent(durable: bool) -> None:
    broker = Broker(max_inflight=1)
    client = (broker.durable if durable else broker.clean)("c", "t", qos=1)
    publish(broker, [b"1"])
    broker.publish("t", b"short", message_expiry_interval=5)
    broker.publish("t", b"long", message_expiry_interval=50)
    broker.advance(s=10)
    assert client.receive_all() == [b"1", b"long"]


def test_stored_qos_0_waits_its_turn_behind_a_full_window() -> None:
    broker = Broker(store_qos0=True, max_inflight=1)
    client = broker.durable("c", "t")
    publish(broker, [b"1", b"2"])
    publish(broker, [b"zero"], qos=0)
    publish(broker, [b"3"])
    assert client.receive_all() == [b"1", b"2", b"zero", b"3"]
