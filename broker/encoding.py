"""A message as PUBLISH bytes for one kind of receiver, without the packet id.

Encoded once per (version, QoS, RETAIN, identifiers) and shared by all receivers of that kind; the
two bytes of the packet id go between head and tail. Pure. Read next: `broker.delivery`.
"""

from typing import TypeAlias

from mqtt.encoder import encode_publish_parts, publish_properties
from mqtt.message import Message

Parts: TypeAlias = tuple[bytes, bytes]


def encode_delivery(
    version: int,
    message: Message,
    qos: int,
    retain: bool,
    dup: bool,
    identifiers: tuple[int, ...],
    now: int,
    alias: int = 0,
    alias_known: bool = False,
) -> Parts:
    """Return (head, tail) of the PUBLISH; at QoS > 0 the packet id belongs between them.

    The Message Expiry Interval sent is what is left of it, in whole seconds rounded up, so that it
    is never larger than what was received and 0 only when it is over [MQTT-3.3.2-6].
    """
    if version < 5:
        return encode_publish_parts(
            version, message.topic.encode(), message.payload, qos, retain, dup, b""
        )
    properties = message.properties
    if message.expires_at_ms or identifiers or alias:
        left = -1
        if message.expires_at_ms:
            # Broker time may repeat a second at a restart: nothing has waited less than not at all.
            since = max(now, message.accepted_at_ms)
            left = max(0, (message.expires_at_ms - since + 999) // 1000)
        properties = publish_properties(left, alias, identifiers, properties)
    topic = b"" if alias_known else message.topic.encode()
    return encode_publish_parts(version, topic, message.payload, qos, retain, dup, properties)
