"""Who is not read from, and that the last reason has to go before anybody is read from again."""

from mqtt.encoder import encode
from mqtt.packets import Connack, Publish
from session.live.commit_gate import REPLY_COST
from storage.errors import WriteStalled
from tests.session.harness import Broker, Client, SlowAuthenticator, connect_packet, with_reader


def test_acknowledgements_that_wait_for_a_slow_disk_count_by_what_they_cost() -> None:
    """v3.1.1 knows no Receive Maximum: nothing else ends what a publisher may have open."""
    broker, _ = with_reader(held_bytes_max=100_000)
    publisher = broker.connect("q", version=4)
    publisher.take()
    broker.hold_commits()
    number = 0
    while publisher.stream.is_read:
        number += 1
        publisher.send(Publish("t", b"x", 1, packet_id=number % 65535 + 1))
        assert number <= 100_000 // (REPLY_COST + 4) + 1
    broker.commit()
    assert publisher.stream.is_read
    assert len(publisher.take()) == number


def test_a_connection_with_too_much_waiting_for_commits_is_not_read_from() -> None:
    broker, publisher = with_reader(held_bytes_max=100)
    for number in range(1, 40):
        publisher.send(Publish("t", b"x", 1, packet_id=number))
    assert not publisher.stream.is_read
    broker.commit()
    assert publisher.stream.is_read
    assert len(publisher.take()) == 39


def test_a_client_is_read_from_only_when_the_last_reason_is_gone() -> None:
    broker, _ = with_reader(publish_rate=1, held_bytes_max=100)
    client = broker.connect("c")
    for number in range(1, 9):
        client.send(Publish("t", b"x" * 20, 1, packet_id=number))
    assert client.connection.throttled_until_ms and client.connection.reading_paused
    broker.commit()
    assert not client.stream.is_read  # it still sends too fast
    broker.advance(s=20)
    assert client.stream.is_read


def test_a_client_that_goes_while_the_store_refuses_is_not_read_from_again() -> None:
    broker, _ = with_reader()
    client = broker.connect("c", version=4)
    broker.store.fail_writes = WriteStalled("write stall")
    for number in range(1, 10):
        client.send(Publish("t", bytes(1 << 20), 1, packet_id=number))
    assert not client.stream.is_read
    client.drop()
    broker.store.fail_writes = None
    broker.advance(ms=100)
    assert not client.stream.is_read


# A CONNECT that is not complete: nothing is answered before the rest of it is read.

CONNECT = encode(connect_packet("c" * 300, 5), 5)


def finish(broker: Broker, client: Client, left: bytes) -> None:
    """Send the rest of a CONNECT, as a transport does that is read from; it is accepted."""
    assert client.stream.is_read
    client.send_bytes(left)
    broker.settle()
    (answer,) = client.take()
    assert isinstance(answer, Connack) and answer.reason_code == 0
    client.ping()


def test_the_rest_of_a_connect_is_read_when_the_store_takes_writes_again() -> None:
    broker, _ = with_reader()
    publisher, client = broker.connect("p", version=4), broker.open()
    broker.store.fail_writes = WriteStalled("write stall")
    for number in range(1, 10):
        publisher.send(Publish("t", bytes(1 << 20), 1, packet_id=number))
    client.send_bytes(CONNECT[:100])
    assert not client.stream.is_read
    broker.store.fail_writes = None
    broker.advance(ms=100)
    finish(broker, client, CONNECT[100:])


def test_the_rest_of_a_connect_is_read_after_the_pause_of_a_client_that_sends_too_fast() -> None:
    broker = Broker(receive_rate_bytes=100)
    client = broker.open()
    client.send_bytes(CONNECT[:290])
    assert not client.stream.is_read
    broker.advance(s=5)
    finish(broker, client, CONNECT[290:])


def test_a_client_whose_password_is_being_checked_is_not_read_from_after_a_pause() -> None:
    authenticator = SlowAuthenticator()
    broker = Broker(authenticator=authenticator, receive_rate_bytes=100)
    client = broker.open()
    client.send_bytes(CONNECT)
    broker.advance(s=9)
    assert not client.stream.is_read
    authenticator.answer("c" * 300)
    broker.settle()
    assert client.stream.is_read and len(client.take()) == 1
