"""Encodes a message as a PUBLISH without its packet id.

The bytes are the same for all receivers with the same version, QoS, RETAIN and subscription
identifiers; the two bytes of the packet id go between head and tail. Pure. Read next:
`session.delivery.outgoing`.
"""

from typing import TypeAlias

from mqtt.encoder import encode_publish_parts, encode_publish_run, publish_properties
from mqtt.message import Message

EncodedPublish: TypeAlias = tuple[bytes, bytes]


def encode_delivery(
    version: int,
    message: Message,
    qos: int,
    identifiers: tuple[int, ...],
    now: int,
    *,
    retain: bool,
    dup: bool = False,
    alias: int = 0,
    alias_known: bool = False,
) -> EncodedPublish:
    """Return (head, tail) of the PUBLISH; at QoS > 0 the packet id belongs between them.

    The Message Expiry Interval sent is the time left, in whole seconds rounded up: never larger
    than the interval received, and 0 only when it is over [MQTT-3.3.2-6].
    """
    if version < 5:
        return encode_publish_parts(
            version, message.topic.encode(), message.payload, qos, retain, dup, b""
        )
    properties = message.properties
    if message.expires_at_ms or identifiers or alias:
        left = -1
        if message.expires_at_ms:
            # Broker time may go back a second at a restart, but no message waits for less than 0.
            since = max(now, message.accepted_at_ms)
            left = max(0, (message.expires_at_ms - since + 999) // 1000)
        properties = publish_properties(left, alias, identifiers, properties)
    topic = b"" if alias_known else message.topic.encode()
    return encode_publish_parts(version, topic, message.payload, qos, retain, dup, properties)


class EncodedRun:
    """The encoded packets of a run without their ids."""

    __slots__ = ("_joined", "heads", "payload_bytes", "size_max", "tails")

    def __init__(self, heads: list[bytes], tails: list[bytes], payloads: list[bytes]) -> None:
        self.heads: list[bytes] = heads
        self.tails: list[bytes] = tails
        self.payload_bytes: int = sum([len(payload) for payload in payloads])
        self.size_max: int = (
            2 + max([len(tail) for tail in tails]) + max([len(head) for head in heads])
        )  # at least the size of the largest packet
        self._joined: bytes = b""

    def joined(self) -> bytes:
        """Return all packets of a run at QoS 0: they have no ids."""
        if not self._joined:
            pieces: list[bytes] = []
            for index, head in enumerate(self.heads):
                pieces.append(head)
                pieces.append(self.tails[index])
            self._joined = b"".join(pieces)
        return self._joined


def encode_run(
    version: int, message: Message, payloads: list[bytes], qos: int, identifiers: tuple[int, ...]
) -> EncodedRun:
    """Return the PUBLISHes of `payloads`; `message` has all else, and no properties."""
    properties = publish_properties(-1, 0, identifiers, b"") if version >= 5 else b""
    heads, tails = encode_publish_run(version, message.topic.encode(), payloads, qos, properties)
    return EncodedRun(heads, tails, payloads)
