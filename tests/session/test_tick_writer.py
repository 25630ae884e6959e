"""One batch per tick, written whole or kept: what is written when, and a store that refuses."""

import pytest

from mqtt.packets import (
    Puback,
    Publish,
)
from storage.errors import Unrecoverable, WriteStalled
from tests.session.harness import Broker, with_reader


def test_one_batch_and_one_write_per_connection_and_tick() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    publishers = [broker.connect(f"p{number}") for number in range(5)]
    written, writes = broker.engine.written, session.stream.writes
    broker.hold_commits()
    with broker.one_tick():
        for publisher in publishers:
            publisher.send(*[Publish("t", b"x", 1, packet_id=n) for n in range(1, 11)])
    assert broker.engine.written == written + 1
    assert session.stream.writes == writes + 1
    assert len(session.messages()) == 50


def test_an_idle_tick_writes_nothing() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    written = broker.engine.written
    client.ping()
    client.send(Publish("nobody", b"", 0))
    broker.settle()
    assert broker.engine.written == written


def test_books_of_messages_at_qos_0_are_written_once_a_second() -> None:
    broker = Broker(history_detail="books")
    client = broker.connect("c")
    broker.advance(ms=5000)
    written = broker.engine.written
    for _ in range(1000):
        client.send(Publish("t", b"", 0))
        broker.advance(ms=1)
    assert broker.engine.written - written <= 3  # a heartbeat, too


def test_rows_that_go_where_no_history_is_recorded_are_written_once() -> None:
    broker = Broker(history_detail="off")
    broker.advance(ms=1000)
    written = broker.engine.written
    broker.engine.outbox.discard(0, [1, 2], 100, count=5, told=0)
    for _ in range(5):
        broker.advance(ms=300)
    assert broker.engine.written - written <= 3  # heartbeats, too


def test_progress_at_qos_1_reaches_the_disk_a_little_later() -> None:
    broker = Broker(progress_delay_ms=200, history_detail="off")
    session = broker.durable("c", "t")
    broker.publish("t", b"1")
    broker.advance(ms=1)  # the heartbeat is written
    session.acknowledge(session.message())
    written = broker.engine.written
    broker.advance(ms=199)
    assert broker.engine.written == written
    broker.advance(ms=1)
    assert broker.engine.written == written + 1
    broker.restart()
    broker.durable("c").expect_nothing()


def test_an_unrecoverable_write_ends_the_process_and_acknowledges_nothing() -> None:
    broker, publisher = with_reader()
    broker.store.fail_writes = Unrecoverable("input/output error")
    with pytest.raises(Unrecoverable):
        publisher.send(Publish("t", b"1", 1, packet_id=1))
    assert publisher.stream.data == b""


def test_a_stalled_store_refuses_nothing_and_catches_up() -> None:
    broker, publisher = with_reader()
    broker.store.fail_writes = WriteStalled("write stall")
    publisher.send(Publish("t", b"1", 1, packet_id=1))
    publisher.send(Publish("t", b"2", 1, packet_id=2))
    publisher.expect_nothing()
    broker.store.fail_writes = None
    broker.advance(ms=100)
    broker.commit()
    publisher.expect(Puback(1), Puback(2))


def test_a_publisher_that_fills_an_unwritten_batch_with_bytes_is_not_read_from() -> None:
    broker, _ = with_reader()
    publisher = broker.connect("q", version=4)
    publisher.take()
    broker.store.fail_writes = WriteStalled("write stall")
    payload = bytes(1 << 20)
    number = 0
    while publisher.stream.is_read:
        number += 1
        assert number <= 9
        publisher.send(Publish("t", payload, 1, packet_id=number))
    assert number == 9
    broker.store.fail_writes = None
    broker.advance(ms=100)
    assert publisher.stream.is_read


def test_a_publisher_that_fills_an_unwritten_batch_is_not_read_from() -> None:
    broker, _ = with_reader()
    publisher = broker.connect("q", version=4)
    publisher.take()
    broker.store.fail_writes = WriteStalled("write stall")
    number = 0
    while publisher.stream.is_read:
        number += 1
        assert number < 10_000
        publisher.send(Publish("t", b"x", 1, packet_id=number))
    broker.store.fail_writes = None
    broker.advance(ms=100)
    broker.commit()
    assert publisher.stream.is_read
    assert len(publisher.take()) == number
