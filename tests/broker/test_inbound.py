"""What clients send on an accepted connection, and what each packet is answered."""

import pytest

from mqtt import reasons
from mqtt.packets import Publish, Subscribe, Subscription, Unsubscribe
from tests.broker.harness import Broker


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_a_request_whose_answer_the_client_cannot_take_is_refused(kind: str) -> None:
    broker = Broker()
    client = broker.connect("c", maximum_packet_size=30)
    filters = [f"t/{number}" for number in range(40)]
    if kind == "subscribe":
        client.send(Subscribe(1, [Subscription(name, 0) for name in filters]))
    else:
        client.send(Unsubscribe(1, filters))
    client.expect_closed(reasons.PACKET_TOO_LARGE)


def test_nothing_follows_our_disconnect() -> None:
    broker = Broker(linger=True)
    broker.durable("other", "t")
    client = broker.connect("c")
    broker.hold_commits()
    client.send(Publish("t", b"1", 1, packet_id=1))
    with broker.one_tick():
        client.send_bytes(b"\x00\x00")
        broker.store.sync()
        broker.engine.committed(broker.engine.written, broker.now)
    client.expect_closed(reasons.MALFORMED_PACKET)
