"""MQTT 3.1.1, sections 1.5 and 2: strings, flags of the fixed header, packet identifiers."""

from collections.abc import Callable
from typing import Final

from conformance import packets, wire
from conformance.check import Bench, Will, statement
from conformance.packets import Puback, Pubcomp, Publish, Pubrec, Suback, Unsuback
from conformance.v311 import scenes

BOM: Final = "\ufeff"


def _strings_end_connections(bench: Bench, bad: bytes, label: str) -> None:
    """Put `bad` into every string a client sends: each ends its connection."""
    own = bench.id("offender")
    inside = bench.topic("x").encode() + b"/" + bad + b"y"
    offend = scenes.is_turned_away
    offend(bench, f"client id with {label}", scenes.connect(own.encode()[:10] + bad))
    offend(bench, f"will topic with {label}", scenes.connect(own, will=Will(inside)))
    user = scenes.connect(own, flags=0xC2, fields=(b"u" + bad, "password"))
    offend(bench, f"user name with {label}", user)
    cut_off = scenes.is_cut_off
    for qos, packet_id in ((0, None), (1, 7), (2, 7)):
        data = wire.publish(inside, b"no", version=4, qos=qos, packet_id=packet_id, retain=True)
        cut_off(bench, f"topic of PUBLISH at QoS {qos} with {label}", data)
    good = (bench.topic("y"), 0)
    data = wire.subscribe(7, [(inside, 0)], version=4)
    cut_off(bench, f"filter of SUBSCRIBE with {label}", data)
    data = wire.subscribe(7, [good, (inside, 0)], version=4)
    cut_off(bench, f"second filter of SUBSCRIBE with {label}", data)
    data = wire.unsubscribe(7, [inside], version=4)
    cut_off(bench, f"filter of UNSUBSCRIBE with {label}", data)


@statement("MQTT-1.5.3-1")
def mqtt_1_5_3_1(bench: Bench) -> None:
    """[MQTT-1.5.3-1] A string that is not well-formed UTF-8, surrogates included, ends the
    connection of whoever sent it.
    """
    watcher = scenes.watch(bench)
    for bad in scenes.NOT_UTF8:
        _strings_end_connections(bench, bad, "bytes " + bad.hex(" "))
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, bench.topic("#"))


@statement("MQTT-1.5.3-2")
def mqtt_1_5_3_2(bench: Bench) -> None:
    """[MQTT-1.5.3-2] A string with U+0000 in it ends the connection of whoever sent it."""
    watcher = scenes.watch(bench)
    for bad in (b"\0", b"a\0"):
        _strings_end_connections(bench, bad, "bytes " + bad.hex(" "))
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, bench.topic("#"))


@statement("MQTT-1.5.3-3")
def mqtt_1_5_3_3(bench: Bench) -> None:
    """[MQTT-1.5.3-3] U+FEFF is a character like any other and is neither skipped nor stripped,
    wherever in a string it stands.
    """
    plain = f"a/{bench.unique}"
    places = (BOM + "a", "a" + BOM, "a" + BOM + "b", BOM)
    every = bench.client("every")
    scenes.subscribe(bench, every, (f"+/{bench.unique}", 0))
    exact = bench.client("exact")
    scenes.subscribe(bench, exact, *((f"{place}/{bench.unique}", 0) for place in places))
    without = bench.client("without")
    scenes.subscribe(bench, without, (plain, 0), (f"ab/{bench.unique}", 0), (f"/{bench.unique}", 0))
    publisher = bench.client("publisher")
    for place in places:
        topic = f"{place}/{bench.unique}"
        publisher.publish(topic, place)
        for subscriber in (every, exact):
            subscriber.expect_publish(topic, place)
    publisher.publish(plain, "plain")
    every.expect_publish(plain, "plain")
    without.expect_publish(plain, "plain")
    for subscriber in (every, exact, without):
        scenes.nothing_comes(bench, subscriber, publisher)


@statement("MQTT-2.2.2-1")
def mqtt_2_2_2_1(bench: Bench) -> None:
    """[MQTT-2.2.2-1] The reserved flag bits of every packet have the value its type prescribes."""
    publisher = bench.client("publisher")
    subscriber = bench.client("subscriber")
    connack = subscriber.connack
    assert connack is not None
    seen: list[packets.Packet] = [connack, subscriber.subscribe(bench.topic("t"), 2)]
    puback = publisher.publish(bench.topic("t"), b"1", qos=1, packet_id=1)
    assert puback is not None
    seen.append(puback)
    publisher.publish(bench.topic("t"), b"2", qos=2, packet_id=2, wait=False)
    seen.append(publisher.expect(Pubrec, packet_id=2))
    publisher.pubrel(2)
    seen.append(publisher.expect(Pubcomp, packet_id=2))
    for got in subscriber.expect_publishes(2, acknowledge=False):
        assert got.packet_id is not None
        if got.qos == 1:
            subscriber.puback(got.packet_id)
            continue
        subscriber.pubrec(got.packet_id)
        seen.append(subscriber.expect_pubrel(got.packet_id))
        subscriber.pubcomp(got.packet_id)
    seen.append(subscriber.unsubscribe(bench.topic("t")))
    seen.append(subscriber.ping())
    for packet in seen:
        name = type(packet).__name__.upper()
        wanted = 2 if name == "PUBREL" else 0
        found = packet.raw[0] & 0x0F
        if found != wanted:
            bench.fail(f"{name} has flags {found:04b}", packet, expected=f"{wanted:04b}")


@statement("MQTT-2.2.2-2")
def mqtt_2_2_2_2(bench: Bench) -> None:
    """[MQTT-2.2.2-2] A packet whose reserved flag bits are wrong ends the connection."""
    own = bench.id("offender")
    for bits in (0x01, 0x02, 0x04, 0x08, 0x0F):
        data = wire.connect(own, version=4, first_byte=0x10 | bits)
        scenes.is_turned_away(bench, f"CONNECT with first byte {0x10 | bits:#04x}", data)
    subscription: list[wire.Filter] = [(bench.topic("t"), 0)]
    connected: dict[str, tuple[int, Callable[[int], bytes]]] = {
        "PUBACK": (0x40, lambda first: wire.acknowledgement(first, 7)),
        "PUBREC": (0x50, lambda first: wire.acknowledgement(first, 7)),
        "PUBREL": (0x62, lambda first: wire.acknowledgement(first, 7)),
        "PUBCOMP": (0x70, lambda first: wire.acknowledgement(first, 7)),
        "SUBSCRIBE": (
            0x82,
            lambda first: wire.subscribe(7, subscription, version=4, first_byte=first),
        ),
        "UNSUBSCRIBE": (
            0xA2,
            lambda first: wire.unsubscribe(7, [bench.topic("t")], version=4, first_byte=first),
        ),
        "PINGREQ": (0xC0, wire.packet),
        "DISCONNECT": (0xE0, lambda first: wire.disconnect(first_byte=first)),
    }
    for name, (right, build) in connected.items():
        for bits in (0x01, 0x02, 0x04, 0x08):
            first = right ^ bits
            scenes.is_cut_off(bench, f"{name} with first byte {first:#04x}", build(first))


@statement("MQTT-2.3.1-1")
def mqtt_2_3_1_1(bench: Bench) -> None:
    """[MQTT-2.3.1-1] PUBLISH above QoS 0, SUBSCRIBE and UNSUBSCRIBE carry a packet identifier
    other than 0.
    """
    watcher = scenes.watch(bench, "t")
    publisher = bench.client("publisher")
    for number in range(10):
        for qos in (1, 2):
            publisher.publish(bench.topic("t"), f"{number}", qos=qos)
            got = watcher.expect_publish(qos=qos)
            if not got.packet_id:
                bench.fail("a delivery without packet identifier", got, expected="1 to 65535")
    topic = bench.topic("t")
    for what, data in (
        ("PUBLISH at QoS 1", wire.publish(topic, b"no", version=4, qos=1, packet_id=0)),
        ("PUBLISH at QoS 2", wire.publish(topic, b"no", version=4, qos=2, packet_id=0)),
        ("SUBSCRIBE", wire.subscribe(0, [(topic, 0)], version=4)),
        ("UNSUBSCRIBE", wire.unsubscribe(0, [topic], version=4)),
    ):
        scenes.is_cut_off(bench, f"{what} with packet identifier 0", data)
    scenes.nothing_comes(bench, watcher, publisher)


@statement("MQTT-2.3.1-3")
def mqtt_2_3_1_3(bench: Bench) -> None:
    """[MQTT-2.3.1-3] A packet identifier is free for a new packet once the acknowledgement of the
    old one has been processed.
    """
    watcher = scenes.watch(bench, "t")
    publisher = bench.client("publisher")
    topic = bench.topic("t")
    for number, qos in enumerate((1, 1, 2, 2, 1)):
        publisher.publish(topic, f"{number}", qos=qos, packet_id=1)
        watcher.expect_publish(topic, f"{number}", qos=qos)
    publisher.subscribe(bench.topic("other"), packet_id=1)
    publisher.unsubscribe(bench.topic("other"), packet_id=1)
    publisher.publish(topic, "last", qos=2, packet_id=1)
    scenes.only(bench, watcher, topic, b"last", publisher)


@statement("MQTT-2.3.1-4")
def mqtt_2_3_1_4(bench: Bench) -> None:
    """[MQTT-2.3.1-4] A server's own QoS 1 and 2 PUBLISH packets have identifiers not in use, are
    sent again under the same one, and free it when they are acknowledged.
    """
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", clean=False)
    scenes.subscribe(bench, subscriber, (topic, 2))
    publisher = bench.client("publisher")
    for number in range(20):
        publisher.publish(topic, f"{number}", qos=1 + number % 2)
    first = scenes.collect(subscriber, 20)
    if not first:
        bench.fail("none of 20 messages is delivered", expected="PUBLISH")
    _check_ids(bench, first)
    subscriber.drop()
    scenes.resume(bench, subscriber)
    again = subscriber.expect_publishes(len(first), acknowledge=False)
    before = {packet.payload: packet.packet_id for packet in first}
    for packet in again:
        if before.get(packet.payload) != packet.packet_id:
            bench.fail(
                f"message {packet.payload!r} comes again under another identifier",
                packet,
                expected=f"packet identifier {before.get(packet.payload)}",
            )
    _check_ids(bench, again)
    scenes.acknowledge_all(subscriber, again)
    rest = subscriber.expect_publishes(20 - len(first))
    payloads = sorted(int(packet.payload) for packet in [*again, *rest])
    if payloads != list(range(20)):
        bench.fail(f"after the acknowledgements these have come: {payloads}", expected="0 to 19")
    for number in range(3):
        publisher.publish(topic, f"new {number}", qos=2)
        subscriber.expect_publish(topic, f"new {number}", qos=2, dup=False)


def _check_ids(bench: Bench, deliveries: list[Publish]) -> None:
    used = set()
    for packet in deliveries:
        if packet.packet_id is None or packet.packet_id in used:
            bench.fail(f"packet identifier {packet.packet_id}", packet, expected="one not in use")
        used.add(packet.packet_id)


@statement("MQTT-2.3.1-5")
def mqtt_2_3_1_5(bench: Bench) -> None:
    """[MQTT-2.3.1-5] A PUBLISH at QoS 0 has no packet identifier."""
    topic = bench.topic("t")
    at_0 = scenes.watch(bench, "t", qos=0, name="at0")
    at_2 = scenes.watch(bench, "t", qos=2, name="at2")
    publisher = bench.client("publisher")
    for payload in (b"", b"\0", b"\0\x07", b"payload"):
        for qos in (0, 1, 2):
            publisher.publish(topic, payload, qos=qos)
            for subscriber, granted in ((at_0, 0), (at_2, 2)):
                got = subscriber.expect_publish(topic, payload, qos=min(qos, granted))
                # Counted in bytes as well: fixed header, topic, payload and nothing else.
                size = 2 + 2 + len(topic) + len(payload) + 2 * bool(got.qos)
                if len(got.raw) != size:
                    bench.fail(f"a delivery of {len(got.raw)} bytes", got, expected=f"{size}")


@statement("MQTT-2.3.1-6")
def mqtt_2_3_1_6(bench: Bench) -> None:
    """[MQTT-2.3.1-6] PUBACK, PUBREC and PUBREL carry the packet identifier of their PUBLISH."""
    topic = bench.topic("t")
    subscriber = scenes.watch(bench, "t")
    publisher = bench.client("publisher")
    for qos, packet_id in ((1, 0x1234), (2, 0xFFFE), (1, 0xFFFF), (2, 0x0100), (1, 1)):
        publisher.publish(topic, f"{packet_id}", qos=qos, packet_id=packet_id, wait=False)
        if qos == 1:
            publisher.expect(Puback, packet_id=packet_id)
        else:
            publisher.expect(Pubrec, packet_id=packet_id)
            publisher.pubrel(packet_id)
            publisher.expect(Pubcomp, packet_id=packet_id)
    got = subscriber.expect_publishes(5, acknowledge=False)
    for packet in got:
        assert packet.packet_id is not None
        if packet.qos == 1:
            subscriber.puback(packet.packet_id)
        else:
            subscriber.pubrec(packet.packet_id)
            subscriber.expect_pubrel(packet.packet_id)
            subscriber.pubcomp(packet.packet_id)


@statement("MQTT-2.3.1-7")
def mqtt_2_3_1_7(bench: Bench) -> None:
    """[MQTT-2.3.1-7] SUBACK and UNSUBACK carry the packet identifier of the request."""
    client = bench.client("a")
    client.subscribe(bench.topic("t"), packet_id=0xABCD)
    client.unsubscribe(bench.topic("t"), packet_id=1)
    asked = [7, 300, 65_535]
    data = b""
    for packet_id in asked:
        data += wire.subscribe(packet_id, [(bench.topic(f"{packet_id}"), 0)], version=4)
        data += wire.unsubscribe(packet_id - 1, [bench.topic("none")], version=4)
    client.send(data)
    subacks: list[int] = []
    unsubacks: list[int] = []
    for _ in range(6):
        packet = client.receive()
        if isinstance(packet, Suback):
            subacks.append(packet.packet_id)
        elif isinstance(packet, Unsuback):
            unsubacks.append(packet.packet_id)
        else:
            bench.fail("neither SUBACK nor UNSUBACK", packet)
    if sorted(subacks) != asked:
        bench.fail(f"SUBACKs carry {subacks}", client.last, expected=f"{asked}")
    if sorted(unsubacks) != [packet_id - 1 for packet_id in asked]:
        bench.fail(f"UNSUBACKs carry {unsubacks}", client.last, expected="6, 299, 65534")
