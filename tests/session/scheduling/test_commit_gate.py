"""What waits for a commit leaves with it: not earlier, in order, and in one write."""

from mqtt.packets import Puback, Publish
from tests.session.harness import Broker


def test_a_reply_leaves_with_the_commit_of_its_own_batch() -> None:
    broker = Broker()
    broker.durable("s", "t").drop()
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"1", 1, packet_id=1))
    first = broker.engine.written
    publisher.send(Publish("t", b"2", 1, packet_id=2))
    assert broker.engine.written > first
    broker.engine.committed(first, broker.now)
    broker.engine.end_tick(broker.now)
    publisher.expect(Puback(1))
    broker.commit()
    publisher.expect(Puback(2))


def test_what_promises_nothing_does_not_wait() -> None:
    broker = Broker()
    broker.durable("s", "t").drop()
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"1", 1, packet_id=1))
    publisher.ping()
    assert broker.engine.stats()["waiting_replies"] == 1
    broker.commit()
    publisher.expect(Puback(1))
    assert broker.engine.stats()["waiting_replies"] == 0


def test_what_one_tick_has_for_a_connection_is_one_write() -> None:
    broker = Broker()
    reader = broker.clean("r", "t")
    publisher = broker.connect("p")
    before = reader.stream.writes
    publisher.send(*[Publish("t", b"%d" % number) for number in range(50)])
    assert reader.stream.writes == before + 1
    assert len(reader.messages()) == 50


def test_who_is_owed_too_many_replies_is_not_read_from_until_half_of_them_are_gone() -> None:
    broker = Broker(held_bytes_max=1000)
    broker.durable("s", "t").drop()
    publisher = broker.connect("p")
    broker.hold_commits()
    for packet_id in range(1, 40):
        publisher.send(Publish("t", b"x", 1, packet_id=packet_id))
    assert not publisher.stream.is_read
    broker.commit()
    assert publisher.stream.is_read
    publisher.expect(*[Puback(packet_id) for packet_id in range(1, 40)])
