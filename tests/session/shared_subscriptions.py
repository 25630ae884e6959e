"""Messages for the members of one shared subscription."""

from tests.session.harness import Broker, Client

SHARED = "$share/g/t"


def publish(broker: Broker, *payloads: bytes, qos: int = 1, topic: str = "t") -> None:
    """Publish each payload."""
    for payload in payloads:
        broker.publish(topic, payload, qos)


def numbers(count: int) -> list[bytes]:
    """Return numbered payloads."""
    return [b"%02d" % number for number in range(count)]


def received(*clients: Client) -> list[bytes]:
    """Take and acknowledge everything the clients get; return the payloads, sorted."""
    found: list[bytes] = []
    while True:
        before = len(found)
        for client in clients:
            found += client.receive_all()
        if len(found) == before:
            return sorted(found)
