"""What every foreign client goes through: be cut off, miss messages, come back and get them."""

from typing import Final

from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

PATIENCE_SECONDS: Final = 20.0
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
