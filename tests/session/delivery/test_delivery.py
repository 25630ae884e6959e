"""Where live, waiting, stored and repeated messages meet in one session."""

import pytest

from mqtt.packets import Pubrel
from tests.session.harness import Broker


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
