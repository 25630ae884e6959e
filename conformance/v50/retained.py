"""MQTT 5.0, section 3.3.1.3: what RETAIN stores, removes, and shows to subscribers."""

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    arrived,
    come_back,
    expect_only,
    forwarded,
    persistent,
    require,
    subscribed,
)
from conformance.packets import Publish
from conformance.scenes import RETAIN_AS_PUBLISHED, RETAIN_IF_NEW, RETAIN_NEVER


def sender_of_retained(bench: Bench, qos: int = 2) -> Client:
    """Return a connected publisher; the check is not run if the broker lacks what it needs."""
    sender = bench.client("sender")
    require(bench, sender, qos=qos, retain=True)
    return sender


def expect_retained(
    bench: Bench, sender: Client, topic: str, payload: bytes | None, *, name: str = "late"
) -> Publish | None:
    """Subscribe anew: exactly the retained message `payload` comes, or nothing for None."""
    client = subscribed(bench, name, topic, 2)
    found = expect_only(bench, sender, client, [] if payload is None else [payload])
    client.disconnect()
    for packet in found:
        if not packet.retain or packet.topic != topic:
            bench.fail("not marked as retained", packet, expected=f"RETAIN 1, topic {topic!r}")
        return packet
    return None


@statement("MQTT-3.3.1-5")
def mqtt_3_3_1_5(bench: Bench) -> None:
    """[MQTT-3.3.1-5] A PUBLISH with RETAIN 1 takes the place of the retained message."""
    sender = sender_of_retained(bench)
    topic = bench.topic("t")
    other = bench.topic("t/other")
    sender.publish(other, b"other", 1, retain=True)
    first: list[wire.Property] = [
        (tables.CONTENT_TYPE, "one"),
        (tables.USER_PROPERTY, ("version", "1")),
    ]
    for qos_before in (0, 1, 2):
        for qos in (1, 2):
            before = b"v1 at %d" % qos_before
            after = b"v2 at %d" % qos
            sender.publish(topic, before, qos_before, retain=True, properties=first)
            second: list[wire.Property] = [
                (tables.CONTENT_TYPE, "two"),
                (tables.CORRELATION_DATA, after),
            ]
            sender.publish(topic, after, qos, retain=True, properties=second)
            packet = expect_retained(bench, sender, topic, after)
            assert packet is not None
            if packet.qos != qos:
                bench.fail("another QoS than it was published at", packet, expected=f"QoS {qos}")
            if forwarded(packet.properties) != second:
                bench.fail("not the properties of the second one", packet, expected=str(second))
    # At QoS 0 the new one need not be kept, but the old one has to go.
    sender.publish(topic, b"v3 at 0", 0, retain=True)
    sender.drain()
    client = subscribed(bench, "zero", topic, 2)
    bench.barrier(sender, client)
    for packet in arrived(client):
        if packet.payload != b"v3 at 0":
            bench.fail("an older message is still retained", packet, expected="at most the last")
    expect_retained(bench, sender, other, b"other")


@statement("MQTT-3.3.1-6")
def mqtt_3_3_1_6(bench: Bench) -> None:
    """[MQTT-3.3.1-6] An empty PUBLISH with RETAIN 1 is delivered and ends the retained message."""
    sender = sender_of_retained(bench)
    other = bench.topic("t/kept")
    sender.publish(other, b"kept", 1, retain=True)
    for qos in (0, 1, 2):
        topic = bench.topic(f"t/{qos}")
        sender.publish(topic, b"there", 2, retain=True)
        expect_retained(bench, sender, topic, b"there")
        live = subscribed(bench, "live", [(topic, 2 | RETAIN_NEVER)])
        keeps_flag = subscribed(bench, "flag", [(topic, 2 | RETAIN_NEVER | RETAIN_AS_PUBLISHED)])
        sender.publish(topic, b"", qos, retain=True)
        live.expect_publish(topic=topic, payload=b"", qos=qos, retain=False)
        keeps_flag.expect_publish(topic=topic, payload=b"", qos=qos, retain=True)
        expect_retained(bench, sender, topic, None)
    expect_retained(bench, sender, other, b"kept")


@statement("MQTT-3.3.1-7")
def mqtt_3_3_1_7(bench: Bench) -> None:
    """[MQTT-3.3.1-7] A retained PUBLISH without payload is never stored."""
    sender = sender_of_retained(bench)
    with_properties: list[wire.Property] = [
        (tables.USER_PROPERTY, ("not", "empty")),
        (tables.PAYLOAD_FORMAT, 1),
    ]
    for qos in (0, 1, 2):
        for properties in (with_properties[:0], with_properties):
            topic = bench.topic(f"t/{qos}/{len(properties)}")
            sender.publish(topic, b"", qos, retain=True, properties=properties)
            sender.drain()
            expect_retained(bench, sender, topic, None)
    expect_retained(bench, sender, bench.topic("#"), None)


@statement("MQTT-3.3.1-8")
def mqtt_3_3_1_8(bench: Bench) -> None:
    """[MQTT-3.3.1-8] A PUBLISH with RETAIN 0 leaves retained messages as they are."""
    sender = sender_of_retained(bench)
    topic = bench.topic("t")
    unused = bench.topic("unused")
    sender.publish(topic, b"v1", 1, retain=True)
    for qos in (0, 1, 2):
        for payload in (b"v2", b""):
            sender.publish(topic, payload, qos)
            sender.publish(unused, payload, qos)
            sender.drain()
            expect_retained(bench, sender, topic, b"v1")
            expect_retained(bench, sender, unused, None)


@statement("MQTT-3.3.1-9")
def mqtt_3_3_1_9(bench: Bench) -> None:
    """[MQTT-3.3.1-9] With Retain Handling 0 each SUBSCRIBE brings the retained messages."""
    sender = sender_of_retained(bench)
    wanted = []
    for qos in (1, 2):
        sender.publish(bench.topic(f"t/{qos}"), f"q{qos}", qos, retain=True)
        wanted.append(b"q%d" % qos)
    sender.publish(bench.topic("elsewhere"), b"not this", 1, retain=True)
    client = bench.client("subscriber")
    for granted in (2, 1, 0, 2):
        client.subscribe(bench.topic("t/#"), granted)
        for packet in expect_only(bench, sender, client, wanted):
            qos = min(granted, int(packet.payload[1:]))
            if not packet.retain or packet.qos != qos:
                bench.fail("not as retained", packet, expected=f"RETAIN 1, QoS {qos}")


@statement("MQTT-3.3.1-10")
def mqtt_3_3_1_10(bench: Bench) -> None:
    """[MQTT-3.3.1-10] With Retain Handling 1 only a new subscription brings retained messages."""
    sender = sender_of_retained(bench)
    topic = bench.topic("t/a")
    sender.publish(topic, b"kept", 1, retain=True)
    client = persistent(bench, "subscriber", bench.topic("other"))
    topic_filter = bench.topic("t/+")
    options = 1 | RETAIN_IF_NEW

    def subscribe(times: int) -> None:
        """Subscribe; the retained message has to come so many times."""
        client.subscribe([(topic_filter, options)])
        for packet in expect_only(bench, sender, client, [b"kept"] * times):
            if not packet.retain:
                bench.fail("not marked as retained", packet, expected="RETAIN 1")

    subscribe(1)
    subscribe(0)
    # Another QoS or other options do not make it a new one; another filter is one.
    client.subscribe([(topic_filter, 2 | RETAIN_IF_NEW | RETAIN_AS_PUBLISHED)])
    expect_only(bench, sender, client, [])
    client.subscribe([(topic, options)])
    expect_only(bench, sender, client, [b"kept"])
    client.unsubscribe(topic)
    client.unsubscribe(topic_filter)
    subscribe(1)
    client.disconnect()
    come_back(client)
    expect_only(bench, sender, client, [])
    subscribe(0)
    client.disconnect()
    client.connect(clean=True)
    subscribe(1)


@statement("MQTT-3.3.1-11")
def mqtt_3_3_1_11(bench: Bench) -> None:
    """[MQTT-3.3.1-11] With Retain Handling 2 no SUBSCRIBE brings retained messages."""
    sender = sender_of_retained(bench)
    topic = bench.topic("t/a")
    sender.publish(topic, b"kept", 1, retain=True)
    client = bench.client("subscriber")
    for topic_filter in (topic, bench.topic("t/#")):
        for _ in range(2):
            client.subscribe([(topic_filter, 1 | RETAIN_NEVER)])
            expect_only(bench, sender, client, [])
        sender.publish(topic, b"live", 1)
        client.expect_publish(topic=topic, payload=b"live", retain=False)
        client.unsubscribe(topic_filter)
    expect_retained(bench, sender, topic, b"kept")


@statement("MQTT-3.3.1-12")
def mqtt_3_3_1_12(bench: Bench) -> None:
    """[MQTT-3.3.1-12] Without Retain As Published forwarded messages have RETAIN 0."""
    expect_retain_flags(bench, 0)


@statement("MQTT-3.3.1-13")
def mqtt_3_3_1_13(bench: Bench) -> None:
    """[MQTT-3.3.1-13] With Retain As Published forwarded messages keep their RETAIN flag."""
    expect_retain_flags(bench, RETAIN_AS_PUBLISHED)


def expect_retain_flags(bench: Bench, option: int) -> None:
    """Forward at each QoS with RETAIN 1 and 0, to one who is there and to one who comes back."""
    sender = sender_of_retained(bench)
    topic = bench.topic("t")
    live = subscribed(bench, "live", [(topic, 2 | option)])
    away = persistent(bench, "away", [(topic, 2 | option)])
    away.disconnect()
    for qos in (0, 1, 2):
        for retain in (True, False):
            payload = f"{qos} {int(retain)}"
            sender.publish(topic, payload, qos, retain=retain)
            live.expect_publish(payload=payload, qos=qos, retain=retain and option != 0)
    come_back(away)
    for _ in range(4):  # QoS 0 need not be kept for a client that is away
        packet = away.expect_publish()
        while not packet.qos:
            packet = away.expect_publish()
        if packet.retain != (packet.payload.endswith(b"1") and option != 0):
            bench.fail("RETAIN of a queued message", packet, expected="as for one that is there")
