"""MQTT 3.1.1, section 4.8 and chapter 7: violations, and what a bare client can rely on."""

from conformance import wire
from conformance.check import Bench, Will, statement
from conformance.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Suback, Unsuback
from conformance.v311 import scenes

MEBIBYTE = 1 << 20


def _violations(bench: Bench) -> list[tuple[str, bytes]]:
    """Return (what, bytes) of what no client may send once it is connected."""
    topic = bench.topic("t")
    name = wire.string(topic)
    return [
        ("packet type 0", wire.packet(0x00)),
        ("packet type 0 with a body", wire.packet(0x00, b"\0\x07")),
        ("packet type 15", wire.packet(0xF0)),
        ("packet type 15 with a body", wire.packet(0xF0, b"\x18\0")),
        ("a Remaining Length of five bytes", wire.packet(0xC0, b"", b"\x80\x80\x80\x80\x00")),
        ("a Remaining Length that never ends", wire.packet(0x30, b"", b"\xff\xff\xff\xff\xff\xff")),
        ("CONNACK", wire.packet(0x20, b"\0\0")),
        ("SUBACK", wire.packet(0x90, b"\0\x01\0")),
        ("UNSUBACK", wire.packet(0xB0, b"\0\x01")),
        ("PINGRESP", wire.packet(0xD0)),
        ("a second CONNECT", wire.connect(bench.id("offender"), version=4)),
        ("DUP 1 at QoS 0", wire.publish(topic, b"no", version=4, dup=True)),
        ("QoS 3", wire.publish(topic, b"no", version=4, qos=3, packet_id=7)),
        ("QoS 1 under identifier 0", wire.publish(topic, b"no", version=4, qos=1, packet_id=0)),
        ("PUBLISH to a wildcard", wire.publish(bench.topic("+"), b"no", version=4)),
        ("PUBACK without identifier", wire.packet(0x40)),
        ("PUBACK of three bytes", wire.packet(0x40, b"\0\x07\0")),
        ("PUBREC of one byte", wire.packet(0x50, b"\0")),
        ("PUBREC of three bytes", wire.packet(0x50, b"\0\x07\0")),
        ("PUBREL of one byte", wire.packet(0x62, b"\0")),
        ("PUBREL of three bytes", wire.packet(0x62, b"\0\x07\0")),
        ("PUBCOMP of one byte", wire.packet(0x70, b"\0")),
        ("PUBCOMP of three bytes", wire.packet(0x70, b"\0\x07\0")),
        ("SUBSCRIBE cut short", wire.packet(0x82, b"\0\x07" + name[:-1])),
        ("SUBSCRIBE with bytes left over", wire.packet(0x82, b"\0\x07" + name + b"\0\0")),
        ("UNSUBSCRIBE cut short", wire.packet(0xA2, b"\0\x07" + name[:-1])),
        ("UNSUBSCRIBE with bytes left over", wire.packet(0xA2, b"\0\x07" + name + b"\0")),
        ("PINGREQ with a body", wire.packet(0xC0, b"\0")),
        ("DISCONNECT with a body", wire.packet(0xE0, b"\0")),
    ]


@statement("MQTT-4.8.0-1")
def mqtt_4_8_0_1(bench: Bench) -> None:
    """[MQTT-4.8.0-1] A protocol violation ends the connection it came on, and no other one."""
    watcher = scenes.watch(bench)
    neighbour = bench.client("neighbour", will=Will(bench.topic("will"), b"no"))
    scenes.subscribe(bench, neighbour, (bench.topic("t"), 1))
    offender_will = Will(bench.topic("offender"), b"cut off")
    for what, data in _violations(bench):
        scenes.is_cut_off(bench, what, data, will=offender_will)
        with bench.case(f"{what}: the other clients"):
            watcher.expect_publish(bench.topic("offender"), b"cut off")
            neighbour.publish(bench.topic("t"), what, qos=1)
            neighbour.expect_publish(bench.topic("t"), what)
            watcher.expect_publish(bench.topic("t"), what)
    scenes.nothing_comes(bench, watcher, neighbour)


@statement("MQTT-7.0.0-2")
def mqtt_7_0_0_2(bench: Bench) -> None:
    """[MQTT-7.0.0-2] No extension is needed to work with the server: a bare client can do all that
    the text describes against its defaults.
    """
    topic = bench.topic("t")
    plain = bench.client("plain", connect=False)
    plain.send(wire.connect(plain.client_id, version=4, keep_alive=0))
    plain.expect_connack()
    plain.disconnect()
    keeper = bench.client("keeper", clean=False)
    scenes.subscribe(bench, keeper, (topic, 2), (bench.topic("will"), 1), (bench.topic("w/#"), 0))
    mortal = bench.client("mortal", will=Will(bench.topic("will"), b"will", qos=1, retain=True))
    for qos in (0, 1, 2):
        mortal.publish(topic, f"live {qos}", qos=qos)
        keeper.expect_publish(topic, f"live {qos}", qos=qos, retain=False)
    mortal.ping()
    keeper.disconnect()
    for qos in (1, 2):
        mortal.publish(topic, f"queued {qos}", qos=qos, retain=True)
    mortal.drop()
    scenes.resume(bench, keeper)
    queued = sorted((packet.topic, packet.payload) for packet in keeper.expect_publishes(3))
    wanted = [(topic, b"queued 1"), (topic, b"queued 2"), (bench.topic("will"), b"will")]
    if queued != wanted:
        bench.fail(f"after coming back these come: {queued}", expected=f"{wanted}")
    found = {packet.topic: packet.payload for packet in scenes.retained(bench, bench.topic("#"))}
    if found != {topic: b"queued 2", bench.topic("will"): b"will"}:
        bench.fail(f"retained: {found}", expected="the last message and the will")
    keeper.unsubscribe(topic)
    bench.client("mortal").publish(topic, b"not wanted", qos=1)
    scenes.nothing_comes(bench, keeper)


@statement("MQTT-7.1.1-1")
def mqtt_7_1_1_1(bench: Bench) -> None:
    """[MQTT-7.1.1-1] The server is reached over a transport that keeps order and loses nothing:
    how the bytes are cut makes no difference.
    """
    topic = bench.topic("t")
    packets = [
        wire.connect(bench.id("a"), version=4),
        wire.subscribe(1, [(topic, 2)], version=4),
        wire.publish(topic, b"0", version=4),
        wire.publish(topic, b"1", version=4, qos=1, packet_id=2),
        wire.publish(topic, b"2", version=4, qos=2, packet_id=3),
        wire.unsubscribe(4, [bench.topic("u")], version=4),
        wire.pingreq(),
    ]
    whole = b"".join(packets)
    ways = {
        "packet by packet": packets,
        "byte by byte": [whole[index : index + 1] for index in range(len(whole))],
        "in one write": [whole],
        "cut inside every packet": [
            whole[start : start + 11] for start in range(0, len(whole), 11)
        ],
    }
    for way, pieces in ways.items():
        with bench.case(way):
            client = bench.client("a", connect=False)
            for piece in pieces:
                client.send(piece)
            client.connack = client.expect(Connack)
            client.expect(Suback, packet_id=1)
            client.expect(Puback, packet_id=2)
            client.expect(Pubrec, packet_id=3)
            client.pubrel(3)
            client.expect(Pubcomp, packet_id=3)
            client.expect(Unsuback, packet_id=4)
            client.ping()
            for qos in (0, 1, 2):
                client.expect_publish(topic, f"{qos}", qos=qos)
            client.disconnect()
    _burst(bench, topic)


def _burst(bench: Bench, topic: str) -> None:
    """A mebibyte in one write, as one message and as a thousand."""
    subscriber = scenes.watch(bench, "t", name="subscriber")
    publisher = bench.client("publisher")
    payload = bytes(range(256)) * (MEBIBYTE // 256)
    with bench.case("one message of a mebibyte"):
        publisher.publish(topic, payload, qos=1)
        subscriber.expect_publish(topic, payload)
    size = MEBIBYTE // 1024
    with bench.case("a mebibyte of small messages"):
        data = b"".join(
            wire.publish(topic, number.to_bytes(4, "big") * (size // 4), version=4, qos=1,
                         packet_id=1 + number)
            for number in range(1024)
        )  # fmt: skip
        publisher.send(data)
        for number in range(1024):
            publisher.expect(Puback)
            got = subscriber.expect_publish(topic)
            if got.payload != number.to_bytes(4, "big") * (size // 4):
                bench.fail(f"message {number} is another one", got)
    for packet in scenes.deliveries(bench, subscriber, publisher):
        assert isinstance(packet, Publish)
        bench.fail("more messages than were sent", packet)
