"""Numbered messages for tests of delivery."""

from tests.session.harness import Broker, Client


def numbers(count: int, start: int = 0) -> list[bytes]:
    """Return numbered payloads."""
    return [b"%04d" % number for number in range(start, start + count)]


def publish(
    broker: Broker,
    payloads: list[bytes],
    qos: int = 1,
    topic: str = "t",
    expiry_s: int = -1,
) -> None:
    """Publish each payload. No packet id is bound ahead to messages with an expiry."""
    publisher = broker.connect("publisher")
    for payload in payloads:
        publisher.publish(topic, payload, qos, message_expiry_interval=expiry_s)
    publisher.disconnect()


def in_flight(client: Client) -> int:
    """Return how many packet ids a client's session has in flight."""
    session = client.connection.session
    assert session is not None
    return len(session.in_flight)


def retain(broker: Broker, *topics: str, qos: int = 1) -> None:
    """Publish a retained message on each topic, with the topic as its payload."""
    publisher = broker.connect("retainer")
    for topic in topics:
        publisher.publish(topic, topic.encode(), qos, retain=True)
    publisher.disconnect()


def topics_of(client: Client) -> list[str]:
    """Take and acknowledge everything; return the payloads as topics, sorted."""
    return sorted(payload.decode() for payload in client.receive_all())
