"""A flood waits for the next tick, everybody else does not."""

import pytest

from mqtt.encoder import encode
from mqtt.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
    Will,
)
from session.live.tick import ATTACH_WORK, CONNECT_WORK, FILTER_WORK, LOSS_WORK
from session.scheduling.work_budget import LARGE_READ, LATER_TURN, SPARED_MAX
from storage.errors import WriteStalled
from tests.session.harness import Broker, Client, connect_packet
from tests.session.messages import numbers

# Topics change from message to message, or the decoder would gather them into runs.
TOPICS = ("a", "b")


def flood(count: int, qos: int = 0, size: int = 0) -> list[Publish]:
    """Return PUBLISH packets with numbered payloads, padded to `size` bytes."""
    return [
        Publish(
            f"t/{TOPICS[number % 2]}",
            payload.ljust(size, b"."),
            qos,
            packet_id=number + 1 if qos else 0,
        )
        for number, payload in enumerate(numbers(count))
    ]


def receive(client: Client, *packets: object) -> None:
    """Hand packets to the engine in one read, without a tick."""
    data = b"".join(encode(packet, client.version) for packet in packets)  # type: ignore[arg-type]
    client.broker.engine.receive(client.connection, data, client.broker.now)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_over_the_budget_waits_and_keeps_its_order(qos: int) -> None:
    broker = Broker(tick_work_max=10)
    reader = broker.durable("r", "t/#", qos=qos)
    publisher = broker.connect("p")
    receive(publisher, *flood(100, qos))
    assert not publisher.stream.is_read
    broker.engine.end_tick(broker.now)
    assert not publisher.stream.is_read
    broker.settle()
    assert publisher.stream.is_read
    assert reader.receive_all() == numbers(100)


def test_one_tick_makes_no_more_deliveries_than_the_budget_and_one_message() -> None:
    broker = Broker(tick_work_max=20)
    readers = [broker.clean(f"r{number}", "t/#") for number in range(7)]
    publisher = broker.connect("p")
    receive(publisher, *flood(300))
    sent = broker.counters.messages_sent[0]
    assert sent <= 20 + 7 * SPARED_MAX
    while not publisher.stream.is_read:
        broker.engine.end_tick(broker.now)
        done, sent = broker.counters.messages_sent[0] - sent, broker.counters.messages_sent[0]
        assert done <= 20 + 7 * SPARED_MAX
    assert sent == 300 * 7
    broker.settle()
    assert all(len(reader.payloads()) == 300 for reader in readers)


def test_who_brings_little_is_served_in_a_tick_whose_budget_is_used_up() -> None:
    broker = Broker(tick_work_max=10)
    broker.clean("r", "t/#")
    publisher, other = broker.connect("p"), broker.connect("o")
    receive(publisher, *flood(100))
    receive(other, Pingreq())
    broker.engine.end_tick(broker.now)
    other.expect(Pingresp())
    assert other.stream.is_read and not publisher.stream.is_read


def test_who_floods_takes_turns() -> None:
    broker = Broker(tick_work_max=10)
    broker.clean("r", "t/#")
    publishers = [broker.connect(f"p{number}") for number in range(3)]
    for publisher in publishers:
        receive(publisher, *flood(100))
    for _ in range(25):
        broker.engine.end_tick(broker.now)
    left = [len(broker.engine._turns.waiting[publisher.connection]) for publisher in publishers]
    assert max(left) - min(left) <= 2 * 11 and 20 < min(left) < 60
    broker.settle()
    assert all(publisher.stream.is_read for publisher in publishers)
    assert broker.counters.messages_sent[0] == 300


def test_a_flood_that_has_waited_is_handled_in_larger_parts_than_a_new_one() -> None:
    broker = Broker(tick_work_max=4096)
    readers = [broker.clean(f"r{number}", f"t{number}/#") for number in range(40)]
    publishers = [broker.connect(f"p{number}") for number in range(40)]
    for number, publisher in enumerate(publishers):
        packets = [Publish(f"t{number}/{TOPICS[at % 2]}", b"", 0) for at in range(2_000)]
        receive(publisher, *packets)
    turns: list[int] = []
    sent = 0
    for _ in range(12):  # the first tick sends what was handled at once
        broker.engine.end_tick(broker.now)
        parts = [len(reader.payloads()) for reader in readers]
        turns.append(max(parts))
        sent += sum(parts)
    assert turns[1] < LATER_TURN // 4 < max(turns[2:]) <= LATER_TURN, turns
    broker.settle()
    assert sent + sum([len(reader.payloads()) for reader in readers]) == 40 * 2_000


def test_a_large_read_beyond_the_budget_is_the_last_one_of_the_tick() -> None:
    broker = Broker(tick_work_max=LARGE_READ // 128 - 1)
    broker.clean("r", "t")
    publisher, other = broker.connect("p"), broker.connect("o")
    receive(publisher, Publish("t", bytes(LARGE_READ)))
    assert not publisher.stream.is_read
    receive(other, Publish("t", b"small"))
    assert other.stream.is_read
    broker.engine.end_tick(broker.now)
    assert publisher.stream.is_read


def test_a_topic_alias_that_stands_for_a_long_topic_counts_by_the_topic() -> None:
    broker = Broker(tick_work_max=1000)
    reader = broker.clean("r", "#")
    publisher = broker.connect("p")
    receive(publisher, Publish("x" * 50_000, b"", 0, topic_alias=1))
    aliased = [Publish("", b"", 0, topic_alias=1) for _ in range(100)]
    receive(publisher, *aliased)
    assert sum(map(len, reader.connection.output)) < 1000 * 128 + 60_000 * SPARED_MAX
    assert not publisher.stream.is_read
    broker.settle()
    assert len(reader.messages()) == 101


def test_bytes_that_come_all_the_same_stay_behind_what_waits() -> None:
    broker = Broker(tick_work_max=5)
    reader = broker.clean("r", "t/#")
    publisher = broker.connect("p")
    packets = flood(60)
    receive(publisher, *packets[:50])
    receive(publisher, *packets[50:], Pingreq())
    broker.settle()
    assert reader.payloads() == numbers(60)
    publisher.expect(Pingresp())


def test_a_broken_packet_behind_what_waits_ends_the_connection_after_it() -> None:
    broker = Broker(tick_work_max=5)
    reader = broker.clean("r", "t/#")
    publisher = broker.connect("p")
    data = b"".join(encode(packet, 5) for packet in flood(60)) + b"\x00\x00"
    broker.engine.receive(publisher.connection, data, broker.now)
    assert not publisher.is_closed
    broker.settle()
    assert publisher.is_closed
    assert reader.payloads() == numbers(60)


def test_what_a_client_sent_before_it_was_gone_is_handled() -> None:
    """Above all its DISCONNECT: without it the will would be published."""
    broker = Broker(tick_work_max=5)
    reader = broker.clean("r", "t/#")
    publisher = broker.connect("p", will=Will("t/will", b"gone", 0, False))
    receive(publisher, *flood(60), Disconnect())
    publisher.drop()
    assert reader.payloads() == numbers(60)
    assert not broker.engine._turns.waiting


def test_a_client_that_waits_for_its_turn_is_not_called_silent() -> None:
    broker = Broker(tick_work_max=1)
    broker.clean("r", "t/#")
    publisher = broker.connect("p", keep_alive=10)
    broker.store.fail_writes = WriteStalled("write stall")
    broker.engine.handle_timeout(broker.now + 2000)  # a heartbeat that the store does not take
    receive(publisher, *flood(60))
    waiting = broker.engine._turns.waiting
    assert publisher.connection in waiting
    broker.engine.handle_timeout(broker.now + 15_000)
    assert not publisher.is_closed


def test_a_subscription_that_waits_behind_a_flood_is_answered() -> None:
    broker = Broker(tick_work_max=5)
    client = broker.clean("c", "t/#")
    receive(client, *flood(60), Subscribe(7, [Subscription("u", 0)]))
    broker.settle()
    assert len(client.messages()) == 60
    assert len(client.take()) == 1


def test_clients_that_come_all_at_once_wait_for_their_turn_and_get_in() -> None:
    broker = Broker(tick_work_max=10 * CONNECT_WORK)
    clients = [broker.open() for _ in range(50)]
    for number, client in enumerate(clients):
        receive(client, connect_packet(f"c{number}", 5, expiry=100))
    live = broker.engine._sessions.live
    assert len(live) == sum(client.stream.is_read for client in clients) == 11
    broker.engine.end_tick(broker.now)
    assert len(live) == sum(client.stream.is_read for client in clients) == 22
    broker.settle()
    assert len(live) == 50 and all(len(client.take()) == 1 for client in clients)
    clients[-1].ping()


def test_a_network_that_is_gone_is_worked_off_in_slices() -> None:
    broker = Broker(tick_work_max=10 * (LOSS_WORK + ATTACH_WORK + FILTER_WORK))
    clients = [broker.clean(f"c{number}", "t") for number in range(50)]
    live = broker.engine._sessions.live
    with broker.one_tick():
        broker.engine._tick.work = 0
        for client in clients:
            client.lose()
        assert len(live) == 39
        broker.engine.end_tick(broker.now)
        assert len(live) == 28
    broker.settle()
    assert not live and not broker.engine._lost


def test_a_client_whose_loss_was_not_dealt_with_may_come_back() -> None:
    broker = Broker(tick_work_max=1)
    session = broker.durable("c", "t")
    with broker.one_tick():
        broker.engine._tick.work = 2
        session.lose()
        assert broker.engine._lost
        again = broker.request("c", expiry=100)
    broker.publish("t", b"1")
    assert again.receive_all() == [b"1"]


def test_retained_rows_are_more_work_than_a_message_nobody_wants() -> None:
    broker = Broker(tick_work_max=100)
    publisher = broker.connect("p")
    broker.engine._tick.work = 0
    receive(publisher, *(Publish(f"t/{number}", b"x", 0, True) for number in range(100)))
    assert 15 <= broker.engine.stats()["retained_messages"] <= 21
    broker.settle()
    assert broker.engine.stats()["retained_messages"] == 100
