"""What was in flight is sent again on the next connection, in order and with its packet ids."""

from collections.abc import Callable

import pytest

from mqtt.encoder import encode
from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from session.live.commit_gate import REPLY_COST
from storage.tables.tables import MAILBOX
from tests.session.harness import NEVER, Broker
from tests.session.messages import in_flight, numbers, publish, retain


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
    assert broker.counters.redeliveries == 5


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


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_sent_again_keeps_the_clients_maximum_packet_size_to_the_byte(qos: int) -> None:
    """[MQTT-3.1.2-24]: one of exactly that size is sent, one of a byte more is dropped."""
    broker = Broker()
    size = len(encode(Publish("t", b"x" * 90, qos, dup=True, packet_id=1), 5))
    given_up = [Pubrel] if qos == 2 else []
    for limit, wanted in ((size, 1), (size - 1, 0)):
        broker.durable("c", "t", qos=qos).drop()
        publish(broker, [b"x" * 90], qos=qos)
        broker.durable("c").messages()
        client = broker.connect("c", expiry=NEVER, clean_start=False, maximum_packet_size=limit)
        packets = client.take()
        assert [type(packet) for packet in packets] == ([Publish] if wanted else given_up)
        assert in_flight(client) == (wanted or len(given_up))
        broker.connect("c").disconnect()
    assert broker.counters.dropped["too_large"] == 1


def test_more_than_a_tick_sends_again_goes_on_without_the_client() -> None:
    broker = Broker(max_inflight=200, out_buffer_bytes_max=1 << 26)
    client = broker.durable("c", "t")
    payloads = [bytes([number]) * (64 << 10) for number in range(40)]
    publish(broker, payloads)
    client.drop()
    client = broker.durable("c", receive_maximum=20)
    first = client.messages()
    assert [message.payload for message in first] == payloads[:20]
    with broker.one_tick():
        client.send(*(Puback(message.packet_id) for message in first))
    assert client.payloads() == payloads[20:]


def deny(broker: Broker) -> None:
    broker.rules.forbid("receive", "t")


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("lose", "version", "maximum"),
    [(None, 5, 150), (deny, 4, 0), (deny, 5, 0)],
    ids=["too large", "denied, 3.1.1", "denied"],
)
def test_a_client_that_holds_a_message_given_up_gets_the_next_one_with_its_id(
    lose: Callable[[Broker], None] | None, version: int, maximum: int, crash: bool
) -> None:
    """Its PUBREC was lost. It knows the id until PUBREL [MQTT-4.3.3-10], so PUBREL must come."""
    broker = Broker()
    client = broker.durable("c", "#", qos=2, version=version)
    publish(broker, [b"x" * 200], qos=2)
    packet_id = client.message().packet_id
    for drops in (1, 0):  # PUBREL comes again until PUBCOMP
        if crash:
            broker.restart()
        else:
            client.drop()
        if lose is not None:
            lose(broker)
        before = sum(broker.counters.dropped.values())
        fields = {"maximum_packet_size": maximum} if maximum else {}
        client = broker.durable("c", version=version, **fields)
        client.expect(Pubrel(packet_id))
        assert in_flight(client) == 1
        assert sum(broker.counters.dropped.values()) - before == drops
    publish(broker, [b"y"], qos=2, topic="other")
    assert client.message().packet_id != packet_id
    client.send(Pubcomp(packet_id, 0x92 if version == 5 else 0))
    client.expect_nothing()
    assert in_flight(client) == 1  # the other one


def test_the_mailbox_copy_of_a_message_given_up_is_deleted_at_once() -> None:
    broker = Broker()
    retain(broker, "t", qos=2)
    client = broker.durable("c", "t", qos=2)
    packet_id = client.message().packet_id
    assert broker.rows(MAILBOX)
    client.drop()
    broker.rules.forbid("receive", "t")
    client = broker.durable("c")
    client.expect(Pubrel(packet_id))
    assert not broker.rows(MAILBOX)
    client.send(Pubcomp(packet_id))
    assert in_flight(client) == 0


def test_what_waits_to_be_sent_again_waits_for_a_client_that_takes_nothing() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    publish(broker, [b"1", b"2", b"3", b"4"])
    client.drop()
    client = broker.durable("c", receive_maximum=2)
    first = client.messages()
    assert len(first) == 2
    client.stop_taking()
    client.acknowledge(*first)
    client.expect_nothing()
    client.go_on_taking()
    assert client.payloads() == [b"3", b"4"]
