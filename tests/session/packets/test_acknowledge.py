"""PUBACK, PUBREC and PUBCOMP of a client: unknown ids, and answers of the wrong kind."""

import pytest

from mqtt import reasons
from mqtt.packets import (
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from tests.session.harness import Broker

PROTOCOL = reasons.PROTOCOL_ERROR


@pytest.mark.parametrize("version", [4, 5])
def test_answers_to_unknown_ids_are_no_errors(version: int) -> None:
    client = Broker().durable("c", version=version)
    client.send(Puback(9), Pubcomp(9))
    client.expect_nothing()
    client.send(Pubrec(9))
    client.expect(Pubrel(9, 0x92 if version == 5 else 0))
    client.ping()


@pytest.mark.parametrize("kind", [Puback, Pubcomp])
def test_the_wrong_answer_to_a_qos_2_message_is_a_protocol_error(kind: type) -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", 2)
    client.send(kind(client.message().packet_id))
    client.expect_closed(PROTOCOL)
    assert broker.durable("c").message().dup


def test_pubrec_for_a_qos_1_message_is_a_protocol_error() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=1)
    broker.publish("t", b"1", 1)
    client.send(Pubrec(client.message().packet_id))
    client.expect_closed(PROTOCOL)


def test_short_and_long_forms_of_acknowledgements_are_legal() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    for form in (b"\x40\x02\x00\x01", b"\x40\x03\x00\x02\x00", b"\x40\x04\x00\x03\x80\x00"):
        broker.publish("t", b"1")
        client.message()
        client.send_bytes(form)
    client.ping()
    client.send_bytes(b"\xe0\x00")
    client.expect_closed()
    client = broker.durable("c")
    client.expect_nothing()
    client.send_bytes(b"\xe0\x01\x00")
    client.expect_closed()
