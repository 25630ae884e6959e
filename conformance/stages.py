"""Connections in a state where a given packet type is valid (MQTT 5.0).

To test a single fault, all else must be right: a PUBACK answers an open delivery, a PUBREL follows
a PUBREC. `Stage` sets that up and builds the packet with the flags and properties of the check;
`expect_unfit` sends it and fails unless the broker closes the connection.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from conformance import tables, wire
from conformance.check import Bench
from conformance.client import Client
from conformance.deliveries import require
from conformance.packets import Pubrec
from conformance.wire import Block, Will

# Packets of a connected client with flags or properties that can be wrong.
PACKETS: Final = (
    tables.PUBLISH,
    tables.PUBACK,
    tables.PUBREC,
    tables.PUBREL,
    tables.PUBCOMP,
    tables.SUBSCRIBE,
    tables.UNSUBSCRIBE,
    tables.PINGREQ,
    tables.DISCONNECT,
    tables.AUTH,
)
WITH_PROPERTIES: Final = tuple(kind for kind in PACKETS if kind != tables.PINGREQ)
# A legal value of every property, to send it where the property is not allowed.
SAMPLES: Final[dict[int, wire.Value]] = {
    tables.PAYLOAD_FORMAT: 0,
    tables.MESSAGE_EXPIRY: 60,
    tables.CONTENT_TYPE: "text",
    tables.RESPONSE_TOPIC: "answer",
    tables.CORRELATION_DATA: b"key",
    tables.SUBSCRIPTION_ID: 5,
    tables.SESSION_EXPIRY: 0,
    tables.ASSIGNED_CLIENT_ID: "name",
    tables.SERVER_KEEP_ALIVE: 60,
    tables.AUTH_METHOD: "none of yours",
    tables.AUTH_DATA: b"data",
    tables.REQUEST_PROBLEM_INFO: 1,
    tables.WILL_DELAY: 0,
    tables.REQUEST_RESPONSE_INFO: 1,
    tables.RESPONSE_INFO: "there",
    tables.SERVER_REFERENCE: "server",
    tables.REASON_STRING: "reason",
    tables.RECEIVE_MAXIMUM: 10,
    tables.TOPIC_ALIAS_MAXIMUM: 10,
    tables.TOPIC_ALIAS: 1,
    tables.MAXIMUM_QOS: 1,
    tables.RETAIN_AVAILABLE: 1,
    tables.USER_PROPERTY: ("k", "v"),
    tables.MAXIMUM_PACKET_SIZE: 100_000,
    tables.WILDCARD_AVAILABLE: 1,
    tables.SUBSCRIPTION_ID_AVAILABLE: 1,
    tables.SHARED_AVAILABLE: 1,
}

Make: TypeAlias = Callable[[int, Block | None], bytes]


class Stage:
    """A client that may now send `kind`; its will shows how the connection ended.

    `watcher`, created with the first stage of a bench, subscribes to the will topic.
    """

    def __init__(self, bench: Bench, kind: int) -> None:
        self.kind: int = kind
        self.topic: str = bench.topic("stage/t")
        self.will_topic: str = bench.topic("stage/will")
        will = Will(self.will_topic, b"will") if kind == tables.DISCONNECT else None
        self.client: Client = bench.client("stage", will=will)
        if kind in _PREPARE:
            require(bench, self.client, qos=1 if kind == tables.PUBACK else 2)
        self._packet_id = 1
        if kind in _PREPARE:
            self._packet_id = _PREPARE[kind](self.client, self.topic)

    def packet(self, *, flags: int | None = None, properties: Block | None = None) -> bytes:
        """Return the packet, by default with the right flags."""
        right = 0b0010 if self.kind in FLAGS_0010 else 0
        first_byte = (self.kind << 4) | (right if flags is None else flags)
        if self.kind == tables.PUBLISH:
            return wire.publish(
                self.topic, b"p", version=5, first_byte=first_byte, properties=properties or ()
            )
        if self.kind == tables.SUBSCRIBE:
            return wire.subscribe(
                1000,
                [(self.topic, 0)],
                version=5,
                properties=properties or (),
                first_byte=first_byte,
            )
        if self.kind == tables.UNSUBSCRIBE:
            return wire.unsubscribe(
                1000, [self.topic], version=5, properties=properties or (), first_byte=first_byte
            )
        if self.kind == tables.PINGREQ:
            return wire.packet(first_byte)
        if self.kind == tables.DISCONNECT:
            return wire.disconnect(None, properties, first_byte=first_byte)
        if self.kind == tables.AUTH:
            return wire.auth(0x18, properties or (), first_byte=first_byte)
        return wire.acknowledgement(first_byte, self._packet_id, None, properties)


FLAGS_0010: Final = frozenset({tables.PUBREL, tables.SUBSCRIBE, tables.UNSUBSCRIBE})


def _owe_puback(client: Client, topic: str) -> int:
    return _delivered(client, topic, 1)


def _owe_pubrec(client: Client, topic: str) -> int:
    return _delivered(client, topic, 2)


def _owe_pubcomp(client: Client, topic: str) -> int:
    packet_id = _delivered(client, topic, 2)
    client.pubrec(packet_id)
    client.expect_pubrel(packet_id)
    return packet_id


def _owe_pubrel(client: Client, topic: str) -> int:
    client.publish(topic, b"p", qos=2, packet_id=1001, wait=False)
    client.expect(Pubrec, packet_id=1001)
    return 1001


def _delivered(client: Client, topic: str, qos: int) -> int:
    client.subscribe(topic, qos=qos)
    client.publish(topic, b"p", qos=qos)
    packet = client.expect_publish(qos=qos, acknowledge=False)
    assert packet.packet_id is not None  # checked by the parser: QoS is above 0
    return packet.packet_id


_PREPARE: Final[dict[int, Callable[[Client, str], int]]] = {
    tables.PUBACK: _owe_puback,
    tables.PUBREC: _owe_pubrec,
    tables.PUBREL: _owe_pubrel,
    tables.PUBCOMP: _owe_pubcomp,
}


def expect_unfit(
    bench: Bench,
    kind: int,
    *reasons: int,
    flags: int | None = None,
    properties: Block | None = None,
) -> None:
    """Send a packet whose `flags` or `properties` are wrong; fail unless the broker closes.

    A broker closes after any DISCONNECT. That it has seen the fault shows in its own DISCONNECT or
    in the will, which only a valid DISCONNECT removes.
    """
    watcher = None
    if kind == tables.DISCONNECT:
        watcher = bench.client("watcher")
        watcher.subscribe(bench.topic("stage/will"))
    stage = Stage(bench, kind)
    stage.client.send(stage.packet(flags=flags, properties=properties))
    farewell = stage.client.expect_close(*reasons)
    if watcher is not None and farewell is None:
        watcher.expect_publish(topic=stage.will_topic)
