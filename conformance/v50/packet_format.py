"""MQTT 5.0, section 2: fixed header flags, packet identifiers, the property length."""

from conformance import stages, tables, wire
from conformance.check import Bench, statement
from conformance.deliveries import expect_only, require
from conformance.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Unsuback,
)

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82


@statement("MQTT-2.1.3-1")
def mqtt_2_1_3_1(bench: Bench) -> None:
    """[MQTT-2.1.3-1] The flags of every packet type but PUBLISH have one fixed value."""
    # Each packet a broker sends comes once; the parser of the suite looks at its flags.
    topic = bench.topic("t")
    client = bench.client("all")
    require(bench, client, qos=2)
    client.subscribe(topic, qos=2)
    client.publish(topic, b"1", qos=1)
    client.publish(topic, b"2", qos=2)
    client.expect_publishes(2)
    client.unsubscribe(topic)
    client.ping()
    client.send(wire.packet(0x01))
    client.expect_close(MALFORMED)
    for wrong in (0b0001, 0b0010, 0b0100, 0b1000, 0b1111):
        with bench.case(f"CONNECT with flags {wrong:04b}"):
            raw = bench.client("raw", connect=False)
            raw.send(wire.connect(raw.client_id, version=5, first_byte=0x10 | wrong))
            # Nobody has to look for the version, and so for the form of CONNACK, in such a packet.
            raw.expect_refused(MALFORMED, silent=True)
    for kind in stages.PACKETS:
        if kind == tables.PUBLISH:
            continue  # its flags are not constant
        right = 0b0010 if kind in stages.FLAGS_0010 else 0
        for flipped in (0b0001, 0b0010, 0b0100, 0b1000, 0b1111):
            with bench.case(f"{tables.PACKET_NAMES[kind]} with flags {right ^ flipped:04b}"):
                stages.expect_unfit(bench, kind, MALFORMED, flags=right ^ flipped)


@statement("MQTT-2.2.1-2")
def mqtt_2_2_1_2(bench: Bench) -> None:
    """[MQTT-2.2.1-2] PUBLISH at QoS 0 has no packet identifier, neither sent nor received."""
    topic = bench.topic("t")
    subscriber = bench.client("subscriber")
    subscriber.subscribe(topic, qos=0)
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    # Payloads that look like an identifier, a property length, or nothing at all.
    for payload in (b"\x00\x01", b"\x00\x01\x00rest", b"\x00", b"", b"text"):
        for qos in (0, 1, 2):
            with bench.case(f"payload {payload!r} sent at QoS {qos}"):
                sender.publish(topic, payload, qos=qos)
                subscriber.expect_publish(topic=topic, payload=payload, qos=0)


@statement("MQTT-2.2.1-3")
def mqtt_2_2_1_3(bench: Bench) -> None:
    """[MQTT-2.2.1-3] A client's new SUBSCRIBE, UNSUBSCRIBE or PUBLISH above QoS 0 has a free id."""
    topic = bench.topic("t")
    watcher = bench.client("watcher")
    require(bench, watcher, qos=2)
    watcher.subscribe(bench.topic("#"), qos=2)
    for what, data in (
        ("SUBSCRIBE", wire.subscribe(0, [(topic, 0)], version=5)),
        ("UNSUBSCRIBE", wire.unsubscribe(0, [topic], version=5)),
        ("PUBLISH at QoS 1", wire.publish(topic, version=5, qos=1, packet_id=0)),
        ("PUBLISH at QoS 2", wire.publish(topic, version=5, qos=2, packet_id=0)),
    ):
        with bench.case(f"{what} with packet identifier 0"):
            client = bench.client("sender")
            client.send(data)
            client.expect_close(MALFORMED, PROTOCOL_ERROR)
    expect_only(bench, bench.client("other"), watcher, [])
    with bench.case("SUBSCRIBE with the identifier of a QoS 2 PUBLISH that is not complete"):
        client = bench.client("sender")
        client.publish(topic, b"once", qos=2, packet_id=11, wait=False)
        client.expect(Pubrec, packet_id=11)
        client.send(wire.subscribe(11, [(bench.topic("else"), 0)], version=5))
        answer = client.receive()
        if isinstance(answer, Disconnect):
            client.expect_close()
            return
        if not isinstance(answer, Suback) or answer.packet_id != 11:
            bench.fail("not an answer to SUBSCRIBE", answer, expected="SUBACK with identifier 11")
        client.publish(topic, b"once", qos=2, packet_id=11, dup=True, wait=False)
        client.expect(Pubrec, packet_id=11)
        client.pubrel(11)
        client.expect(Pubcomp, packet_id=11)
        watcher.expect_publish(topic=topic, payload=b"once", qos=2)
        expect_only(bench, client, watcher, [])


@statement("MQTT-2.2.1-4")
def mqtt_2_2_1_4(bench: Bench) -> None:
    """[MQTT-2.2.1-4] Each delivery above QoS 0 gets an identifier that is not 0 and not in use."""
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", properties=[(tables.RECEIVE_MAXIMUM, 65_535)])
    subscriber.subscribe(topic, qos=2)
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    total = 200
    for number in range(total):
        sender.publish(topic, str(number), qos=1 + number % 2)
    waiting: list[Publish] = []
    seen: list[bytes] = []
    while len(seen) < total:
        # A broker may hold back what is above a window of its own; it may not re-use an open id.
        with bench.case(f"after {len(seen)} of {total} deliveries"):
            waiting.append(subscriber.expect_publish(topic=topic, acknowledge=False))
            waiting += [p for p in subscriber.drain() if isinstance(p, Publish)]
            ids = [p.packet_id for p in waiting]
            if len(set(ids)) != len(ids):
                twice = next(p for p in waiting if ids.count(p.packet_id) > 1)
                bench.fail("an identifier that is in use", packet=twice.raw, expected="a free one")
        seen += [p.payload for p in waiting]
        for packet in waiting:
            subscriber.acknowledge(packet)
        waiting.clear()
    if sorted(seen) != sorted(str(number).encode() for number in range(total)):
        bench.fail("not every message came exactly once", expected=f"{total} messages, each once")


@statement("MQTT-2.2.1-5")
def mqtt_2_2_1_5(bench: Bench) -> None:
    """[MQTT-2.2.1-5] PUBACK, PUBREC, PUBREL and PUBCOMP name the identifier of their PUBLISH."""
    topic = bench.topic("t")
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    subscriber = bench.client("subscriber")
    subscriber.subscribe(topic, qos=2)
    # `publish` and `acknowledge` insist on the identifier of every packet of the flow.
    for packet_id in (0x1234, 1, 0xFFFF):
        sender.publish(topic, b"one", qos=1, packet_id=packet_id)
        subscriber.expect_publish(payload=b"one", qos=1)
    for packet_id in (0xFFFE, 1, 0x00FF):
        sender.publish(topic, b"two", qos=2, packet_id=packet_id)
        subscriber.expect_publish(payload=b"two", qos=2)
    with bench.case("four flows at once"):
        for packet_id in (0x0102, 0x0201):
            sender.publish(topic, b"x", qos=1, packet_id=packet_id, wait=False)
            sender.publish(topic, b"y", qos=2, packet_id=packet_id + 5, wait=False)
        for packet_id in (0x0102, 0x0201):
            sender.expect(Puback, packet_id=packet_id)
            sender.expect(Pubrec, packet_id=packet_id + 5)
        for packet_id in (0x0206, 0x0107):
            sender.pubrel(packet_id)
            sender.expect(Pubcomp, packet_id=packet_id)
        deliveries = subscriber.expect_publishes(4, acknowledge=False)
        second = [p.packet_id for p in deliveries if p.qos == 2 and p.packet_id is not None]
        for packet_id in second:
            subscriber.pubrec(packet_id)
        for packet_id in second:
            subscriber.expect_pubrel(packet_id)
            subscriber.pubcomp(packet_id)


@statement("MQTT-2.2.1-6")
def mqtt_2_2_1_6(bench: Bench) -> None:
    """[MQTT-2.2.1-6] SUBACK and UNSUBACK name the identifier of the request they answer."""
    filters = [bench.topic(f"f{number}") for number in range(6)]
    # One, two and three filters, so that an answer to another request would show.
    requests = ((7, filters[:1]), (65_535, filters[1:3]), (1, filters[3:]))
    wanted = {packet_id: len(names) for packet_id, names in requests}
    client = bench.client("a")
    for packet_id, names in requests:
        client.send(wire.subscribe(packet_id, [(name, 0) for name in names], version=5))
    granted = [client.expect(Suback) for _ in requests]
    for packet_id, names in requests:
        client.send(wire.unsubscribe(packet_id, names, version=5))
    for found in (granted, [client.expect(Unsuback) for _ in requests]):
        if {answer.packet_id: len(answer.codes) for answer in found} != wanted:
            bench.fail("not the answers", found[-1], expected=f"identifier: codes {wanted}")


@statement("MQTT-2.2.2-1")
def mqtt_2_2_2_1(bench: Bench) -> None:
    """[MQTT-2.2.2-1] A packet without properties says so with a property length of 0."""
    # The parser of the suite wants a property length in each packet that comes here.
    topic = bench.topic("t")
    client = bench.client("all")
    require(bench, client, qos=2)
    client.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        client.publish(topic, b"", qos=qos)
        client.expect_publish(topic=topic, payload=b"", qos=qos)
    client.unsubscribe(topic)
    own = bench.id("raw")
    missing = b""
    with bench.case("CONNECT without a property length"):
        raw = bench.client("raw", connect=False)
        raw.send(wire.connect(own, version=5, properties=missing))
        raw.expect_refused(MALFORMED)
    for what, data in (
        ("PUBLISH at QoS 0", wire.publish(topic, version=5, properties=missing)),
        (
            "PUBLISH at QoS 1",
            wire.publish(topic, version=5, qos=1, packet_id=1, properties=missing),
        ),
        (
            "PUBLISH at QoS 2",
            wire.publish(topic, version=5, qos=2, packet_id=1, properties=missing),
        ),
        ("SUBSCRIBE", wire.subscribe(1, [(topic, 0)], version=5, properties=missing)),
        ("UNSUBSCRIBE", wire.unsubscribe(1, [topic], version=5, properties=missing)),
    ):
        with bench.case(f"{what} without a property length"):
            sender = bench.client("sender")
            sender.send(data)
            sender.expect_close(MALFORMED, PROTOCOL_ERROR)
