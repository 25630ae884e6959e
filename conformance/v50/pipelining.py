"""Rules of MQTT 5.0 without a number: packets that come early, often, or are too large."""

from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.deliveries import (
    expect_only,
    keeps_session,
    packet_size_maximum,
    persistent,
    require,
    subscribed,
)
from conformance.failure import NotRun
from conformance.packets import Packet, Pingresp, Puback, Pubcomp, Pubrec, Suback, Unsuback

TOO_LARGE: Final = 0x95
SIZE_MAX: Final = 2000  # bytes
TRIED_MAX: Final = 1 << 22  # a broker that takes more has to be configured
PINGS: Final = 500


@statement("X-33", wants=("configure",))
def x_33(bench: Bench) -> None:
    """[X-33] A packet above the broker's Maximum Packet Size ends the connection with 0x95."""
    if bench.has("configure"):
        try:
            bench.start(maximum_packet_size=SIZE_MAX)
        except NotRun as why:
            bench.note(f"with the broker's own Maximum Packet Size: {why}")
    topic = bench.topic("t")
    observer = subscribed(bench, "observer", topic, 2)
    limit = packet_size_maximum(observer)
    if limit > TRIED_MAX:
        bench.not_run(f"the broker's Maximum Packet Size is {limit}: too large to try")
    sender = bench.client("sender")
    for qos in (0, 1):
        fits = _publish_of(limit, topic, qos)
        with bench.case(f"PUBLISH of just {limit} bytes at QoS {qos}"):
            sender.send(fits)
            observer.expect_publish(topic=topic)
            if qos:
                sender.expect(Puback, packet_id=7)
    for what, data in (
        ("PUBLISH at QoS 0", _publish_of(limit + 1, topic, 0)),
        ("PUBLISH at QoS 1", _publish_of(limit + 1, topic, 1)),
        ("PUBLISH of twice the size", _publish_of(limit * 2, topic, 1)),
        ("SUBSCRIBE", wire.subscribe(3, [(topic, 0)], version=5, properties=_filler(limit))),
        ("UNSUBSCRIBE", wire.unsubscribe(3, [topic], version=5, properties=_filler(limit))),
    ):
        with bench.case(f"{what}, {len(data)} bytes, the limit is {limit}"):
            client = bench.client("sender")
            client.send(data)
            client.expect_close(TOO_LARGE)
    with bench.case(f"CONNECT, the limit is {limit}"):
        client = bench.open("large")
        client.send(wire.connect(client.client_id, version=5, properties=_filler(limit)))
        client.expect_refused(TOO_LARGE)
    expect_only(bench, bench.client("sender"), observer, [])


def _filler(size: int) -> list[wire.Property]:
    """Return User Properties of about `size` bytes or more."""
    piece = 30_000
    return [(tables.USER_PROPERTY, ("k", "v" * min(size, piece)))] * (1 + size // piece)


def _publish_of(size: int, topic: str, qos: int) -> bytes:
    """Return a PUBLISH that has `size` bytes altogether."""
    packet_id = 7 if qos else None
    payload = b""
    for _ in range(2):  # the second time the length field has its final width
        empty = wire.publish(topic, payload, version=5, qos=qos, packet_id=packet_id)
        payload = b"x" * (len(payload) + size - len(empty))
    packet = wire.publish(topic, payload, version=5, qos=qos, packet_id=packet_id)
    assert len(packet) == size
    return packet


@statement("X-42")
def x_42(bench: Bench) -> None:
    """[X-42] What a client sends before CONNACK is served once the connection is accepted."""
    topic, own = bench.topic("t"), bench.topic("own")
    observer = subscribed(bench, "observer", topic, 2)
    require(bench, observer, qos=2)
    other = bench.client("other")
    for name, options in (("clean", {}), ("kept", keeps_session(5))):
        with bench.case(f"a {name} session"):
            client = bench.open(name)
            expiry = options.get("session_expiry")
            properties: list[wire.Property] = []
            if expiry is not None:
                properties = [(tables.SESSION_EXPIRY, expiry)]
            client.send(
                wire.connect(client.client_id, version=5, properties=properties)
                + wire.subscribe(1, [(own, 2)], version=5)
                + wire.publish(topic, f"{name} 0", version=5)
                + wire.publish(topic, f"{name} 1", version=5, qos=1, packet_id=2)
                + wire.publish(topic, f"{name} 2", version=5, qos=2, packet_id=3)
                + wire.unsubscribe(4, [bench.topic("none")], version=5)
                + wire.pingreq()
            )
            client.expect_connack()
            came: list[Packet] = [client.receive() for _ in range(5)]
            wanted = [Suback, Puback, Pubrec, Unsuback, Pingresp]
            kinds = [type(packet) for packet in came]
            if sorted(kind.__name__ for kind in kinds) != sorted(k.__name__ for k in wanted):
                bench.fail(f"answers {[kind.__name__ for kind in kinds]}", came[0])
            if kinds != wanted:
                bench.note("the answers to several kinds of packets come in another order")
            client.pubrel(3)
            client.expect(Pubcomp, packet_id=3)
            expect_only(bench, client, observer, [f"{name} {qos}".encode() for qos in range(3)])
            other.publish(own, name, 2)
            expect_only(bench, other, client, [name.encode()])


@statement("X-43")
def x_43(bench: Bench) -> None:
    """[X-43] PINGREQ is answered at any time and rate, one PINGRESP for each."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    client = persistent(bench, "client", topic, 2)
    client.send(wire.pingreq() * PINGS)
    for _ in range(PINGS):
        client.expect(Pingresp)
    # In the middle of flows, in both directions.
    client.publish(bench.topic("u"), b"x", 2, packet_id=900, wait=False)
    sender.publish(topic, b"y", 2)
    delivery = client.expect_publish(payload=b"y", acknowledge=False)
    assert delivery.packet_id is not None
    client.send(wire.pingreq() + wire.pubrec(delivery.packet_id) + wire.pingreq() * 2)
    client.send(wire.pubrel(900) + wire.pingreq())
    client.expect(Pubrec, packet_id=900)
    client.expect_pubrel(delivery.packet_id)
    client.expect(Pubcomp, packet_id=900)
    client.pubcomp(delivery.packet_id)
    for _ in range(4):
        client.expect(Pingresp)
    for packet in client.drain():
        bench.fail("one answer too many", packet, expected="one PINGRESP for each PINGREQ")
