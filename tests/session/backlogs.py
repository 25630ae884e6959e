"""Messages for offline sessions, from a publisher of their own."""

from mqtt.packets import Puback
from tests.session.harness import Broker


def publish(broker: Broker, *payloads: bytes, topic: str = "t") -> list[bytes]:
    """Publish at QoS 1; return the accepted payloads."""
    publisher = broker.connect("publisher")
    accepted = []
    for payload in payloads:
        answer = publisher.publish(topic, payload, 1)
        assert isinstance(answer, Puback)
        if answer.reason_code < 0x80:
            accepted.append(payload)
        else:
            assert answer.reason_code == 0x97
    publisher.disconnect()
    return accepted


def numbers(count: int) -> list[bytes]:
    """Return payloads of one byte each."""
    return [b"%d" % number for number in range(count)]
