"""What every foreign client goes through: be cut off, miss messages, come back and get them."""

import queue
from typing import Any, Final

import paho.mqtt.client as paho

from tests.durability.foreign import connect
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

PATIENCE_SECONDS: Final = 60.0
MISSED: Final = [f"missed {number}" for number in range(10)]


def publish_missed(broker: BrokerProcess, other: RawClient, name: str) -> None:
    """Publish what the client misses, first at QoS 1 and then at QoS 2, and kill -9 the broker.

    Not mixed: order holds for each QoS only, and some clients hand out QoS 2 at PUBREL.
    """
    other.resume()
    for number, payload in enumerate(MISSED):
        other.publish(f"{name}/in", payload, qos=1 + (number >= len(MISSED) // 2))
    other.drop()
    broker.crash()


def expect_own(other: RawClient, *payloads: str) -> None:
    """Check what the foreign client itself has published to `<name>/out`, once each."""
    other.resume()
    received = [publish.payload.decode() for publish in other.take(len(payloads))]
    assert received == list(payloads)
    other.expect_nothing()
    other.disconnect()


def paho_resumes(
    client: paho.Client,
    broker: BrokerProcess,
    other: RawClient,
    name: str,
    live: str,
    *,
    port: int,
    host: str = "127.0.0.1",
) -> None:
    """Have a durable paho client publish and receive `live`, miss messages, and come back."""
    events: queue.Queue[Any] = queue.Queue()
    client.on_connect = lambda c, u, flags, reason, p: events.put(
        ("connected", flags.session_present)
    )
    client.on_subscribe = lambda *_: events.put("subscribed")
    client.on_message = lambda c, u, message: events.put(message.payload.decode())

    def expect(*wanted: Any) -> None:
        assert [events.get(timeout=PATIENCE_SECONDS) for _ in wanted] == list(wanted)

    connect(client, port, host=host)
    expect(("connected", False))
    client.subscribe(f"{name}/in", 2)
    expect("subscribed")
    client.publish(f"{name}/in", live, 2).wait_for_publish(PATIENCE_SECONDS)
    client.publish(f"{name}/out", b"first", 2).wait_for_publish(PATIENCE_SECONDS)
    expect(live)

    client.loop_stop()
    broker.crash()
    publish_missed(broker, other, name)

    client.reconnect()
    client.loop_start()
    expect(("connected", True), *MISSED)
    client.publish(f"{name}/out", b"second", 1).wait_for_publish(PATIENCE_SECONDS)
    client.disconnect()
    client.loop_stop()
    assert events.empty()
    expect_own(other, "first", "second")
