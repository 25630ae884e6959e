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


def closed(broker: Broker, *payloads: bytes, topic: str = "t") -> None:
    """Publish messages, and let the generation with them be closed and looked at."""
    publish(broker, *payloads, topic=topic)
    broker.engine.rotate(broker.now)
    broker.advance(s=12)


def with_a_gap(name: str = "boat", topic: str = "t", **settings: object) -> Broker:
    """Return a broker of whose six generations a session that is away needs the first and last.

    It keeps messages 1, 2 and 7 of "0" to "7", and the gap from 3 to 6 has freed its generations.
    """
    broker = Broker(on_limit="drop_new", max_offline_messages=2, **settings)
    broker.durable(name, topic).drop()
    closed(broker, b"0", b"1", topic=topic)
    closed(broker, b"2", topic=topic)
    closed(broker, b"3", b"4", topic=topic)
    closed(broker, b"5", topic=topic)
    broker.settings.max_offline_messages = 3
    closed(broker, b"6", topic=topic)
    publish(broker, b"7", topic=topic)
    broker.advance(s=12)
    return broker
