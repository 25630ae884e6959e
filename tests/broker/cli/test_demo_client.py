"""The built-in client keeps its side of a session over lost connections."""

import socket
from collections.abc import Callable

import pytest

from broker.cli.demo_client import Client, ClientError
from mqtt.encoder import encode
from mqtt.packets import Publish, Pubrel
from tests.durability.process import BrokerProcess, free_port

Start = Callable[..., BrokerProcess]


def test_what_was_not_acknowledged_is_sent_again_and_arrives_once_at_qos_2(start: Start) -> None:
    broker = start()
    receiver, sender = Client("receiver"), Client("sender")
    receiver.connect(broker.port)
    receiver.subscribe("a/#", 2)
    sender.connect(broker.port)
    for number in range(40):
        sender.publish("a/b", b"%d" % number, 2)
    for _ in range(15):
        sender.step()
    sender.close()
    broker.crash()
    assert sender.unfinished
    sender.connect(broker.port)
    assert sender.session_present
    sender.finish()
    receiver.connect(broker.port)
    assert receiver.session_present
    receiver.receive_all(quiet_s=0.5)
    assert [int(publish.payload) for publish in receiver.received] == list(range(40))
    assert len(sender.acknowledged) == 40
    receiver.disconnect()
    sender.disconnect()


def test_all_qualities_of_service_are_received_and_acknowledged(start: Start) -> None:
    broker = start()
    client = Client("both")
    client.connect(broker.port)
    client.subscribe("a", 2)
    for qos in (1, 2):
        client.publish("a", b"%d" % qos, qos)
    client.finish()
    client.receive_all(quiet_s=0.3)
    assert sorted(publish.payload for publish in client.received) == [b"1", b"2"]
    client.disconnect()


def test_nobody_there_is_said_in_one_line() -> None:
    port = free_port()
    with pytest.raises(ClientError, match=f"cannot connect to 127.0.0.1:{port}: .*refused"):
        Client("c").connect(port)


def test_a_refusal_and_a_closed_connection_are_said(start: Start) -> None:
    broker = start(HOLDFAST__LIMITS__CLIENT_ID_BYTES="23")
    with pytest.raises(ClientError, match="CONNECT was answered by"):
        Client("one character too many!!").connect(broker.port)
    client = Client("good")
    client.connect(broker.port)
    broker.kill()
    with pytest.raises(ClientError):
        client.finish()
        client.step()
    client.close()
    client.close()


def test_a_filter_that_is_refused_is_said(start: Start) -> None:
    broker = start()
    client = Client("c")
    client.connect(broker.port)
    with pytest.raises(ClientError, match="SUBSCRIBE was answered by"):
        client.subscribe("a/#/b", 1)
    client.close()


def test_a_packet_id_that_is_free_again_may_carry_another_message() -> None:
    client = Client("c")
    client._socket, broker = socket.socketpair()
    first, second = (Publish("t", payload, 2, packet_id=7) for payload in (b"1", b"2"))
    for packet in (first, Publish("t", b"1", 2, dup=True, packet_id=7), Pubrel(7), second):
        broker.sendall(encode(packet, 5))
        client.step()
    broker.close()
    client.close()
    assert [publish.payload for publish in client.received] == [b"1", b"2"]
