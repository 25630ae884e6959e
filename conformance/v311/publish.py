"""MQTT 3.1.1, sections 3.3 and 3.6 without RETAIN: PUBLISH, its DUP, QoS and topic; PUBREL."""

from typing import Final

from conformance import wire
from conformance.check import Bench, Client, statement
from conformance.packets import Packet, Puback, Pubcomp, Publish, Pubrec
from conformance.rules import matches
from conformance.scenes import answer_or_end
from conformance.v311 import scenes

ANSWERS: Final[tuple[list[type[Packet]], ...]] = ([], [Puback], [Pubrec])  # by QoS
WATCHER: Final = {"watcher": "secret of the watcher"}
WILDCARDS: Final = ("a/#", "a/+", "a/+/b", "#/a", "a+", "a#", "+/a")


@statement("MQTT-3.3.1-1")
def mqtt_3_3_1_1(bench: Bench) -> None:
    """[MQTT-3.3.1-1] A PUBLISH that is sent again has DUP 1."""
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", clean=False)
    scenes.subscribe(bench, subscriber, (topic, 2))
    publisher = bench.client("publisher")
    for qos in (1, 2):
        publisher.publish(topic, f"at {qos}", qos=qos)
        subscriber.expect_publish(topic, f"at {qos}", qos=qos, dup=False, acknowledge=False)
    for _ in range(2):
        subscriber.drop()
        scenes.resume(bench, subscriber)
        for packet in (again := subscriber.expect_publishes(2, acknowledge=False)):
            if not packet.dup:
                bench.fail(f"{packet.payload!r} comes again", packet, expected="DUP 1")
        if {packet.qos for packet in again} != {1, 2}:
            bench.fail("one message comes twice, one not at all", again[-1], expected="both")


@statement("MQTT-3.3.1-2")
def mqtt_3_3_1_2(bench: Bench) -> None:
    """[MQTT-3.3.1-2] DUP is 0 in every PUBLISH at QoS 0."""
    topic = bench.topic("t")
    at_0 = scenes.watch(bench, "t", qos=0, name="at0")
    publisher = bench.client("publisher")
    publisher.publish(topic, b"0", qos=0)
    for packet_id, qos in ((5, 1), (6, 2)):
        publisher.publish(topic, f"{qos}", qos=qos, dup=True, packet_id=packet_id, retain=True)
    for payload in (b"0", b"1", b"2"):
        at_0.expect_publish(topic, payload, qos=0, dup=False)
    late = bench.client("late")
    scenes.subscribe(bench, late, (topic, 0))
    late.expect_publish(topic, b"2", qos=0, dup=False)


@statement("MQTT-3.3.1-3")
def mqtt_3_3_1_3(bench: Bench) -> None:
    """[MQTT-3.3.1-3] DUP of an outgoing PUBLISH says whether that one is sent again; the DUP of
    the incoming one does not matter.
    """
    topic = bench.topic("t")
    live = scenes.watch(bench, "t", name="live")
    absent = bench.client("absent", clean=False)
    scenes.subscribe(bench, absent, (topic, 2))
    absent.disconnect()
    publisher = bench.client("publisher")
    for packet_id, qos in ((50, 1), (51, 2)):
        publisher.publish(topic, f"{qos}", qos=qos, dup=True, packet_id=packet_id, retain=True)
    scenes.resume(bench, absent)
    for subscriber in (live, absent):
        for _ in range(2):
            subscriber.expect_publish(topic, dup=False)
    late = bench.client("late")
    scenes.subscribe(bench, late, (topic, 2))
    late.expect_publish(topic, b"2", qos=2, dup=False)


@statement("MQTT-3.3.1-4")
def mqtt_3_3_1_4(bench: Bench) -> None:
    """[MQTT-3.3.1-4] A PUBLISH with both QoS bits set ends the connection."""
    topic = bench.topic("t")
    watcher = scenes.watch(bench)
    for first in (0x36, 0x37, 0x3E, 0x3F):
        for packet_id in (7, None):
            data = wire.publish(topic, b"no", version=4, first_byte=first, packet_id=packet_id)
            scenes.is_cut_off(bench, f"PUBLISH with first byte {first:#04x}", data)
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, bench.topic("#"))


@statement("MQTT-3.3.2-1")
def mqtt_3_3_2_1(bench: Bench) -> None:
    """[MQTT-3.3.2-1] The variable header of PUBLISH begins with a topic name."""
    topic = bench.topic("t").encode()
    watcher = scenes.watch(bench)
    long = (len(topic) + 20).to_bytes(2, "big")
    for what, data in (
        ("without a byte of topic", wire.packet(0x30)),
        ("with one byte", wire.packet(0x30, b"\0")),
        ("at QoS 1 with nothing but an id", wire.packet(0x32, b"\0\x07")),
        ("whose topic runs past the end", wire.packet(0x30, long + topic)),
        ("whose topic length is 65535", wire.packet(0x30, b"\xff\xff" + topic)),
        ("at QoS 1 without room for the id", wire.packet(0x32, wire.string(topic) + b"\0")),
        ("at QoS 2 that ends after the topic", wire.packet(0x34, wire.string(topic))),
    ):
        scenes.is_cut_off(bench, f"PUBLISH {what}", data)
    scenes.nothing_comes(bench, watcher)
    publisher = bench.client("publisher")
    for path in ("a", "a/b c/ä", "/", "$"):
        publisher.publish(bench.topic(path), path, qos=1)
        watcher.expect_publish(bench.topic(path), path)


@statement("MQTT-3.3.2-2")
def mqtt_3_3_2_2(bench: Bench) -> None:
    """[MQTT-3.3.2-2] There are no wildcards in the topic name of a PUBLISH."""
    watcher = scenes.watch(bench)
    for path in WILDCARDS:
        for qos, packet_id in ((0, None), (1, 7), (2, 7)):
            data = wire.publish(
                bench.topic(path), b"no", version=4, qos=qos, retain=True, packet_id=packet_id
            )
            scenes.is_cut_off(bench, f"PUBLISH at QoS {qos} to {path!r}", data)
    for topic in ("#", "+", "+/+", "/#", "$SYS/#"):
        data = wire.publish(topic, bench.unique, version=4)
        scenes.is_cut_off(bench, f"PUBLISH to {topic!r}", data)
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, bench.topic("#"))


@statement("MQTT-3.3.2-3")
def mqtt_3_3_2_3(bench: Bench) -> None:
    """[MQTT-3.3.2-3] The topic of every PUBLISH the server sends matches a filter the client has
    subscribed to.
    """
    paths = ("a", "a/b", "a/b/c", "A/b", "b", "b/", "b//c", "b/x/c", "b/x/y/c", "c/x/y", "c", "d")
    wanted: dict[str, tuple[str, ...]] = {
        "exact": ("a/b", "d"),
        "one": ("b/+/c", "+"),
        "many": ("c/#", "a/b/#"),
        "none": ("e", "a/x", "B", "d/+"),
    }
    filters = {name: [bench.topic(path) for path in some] for name, some in wanted.items()}
    subscribers = {name: bench.client(name) for name in filters}
    for name, client in subscribers.items():
        scenes.subscribe(bench, client, *((path, 1) for path in filters[name]))
    publisher = bench.client("publisher")
    for path in paths:
        publisher.publish(bench.topic(path), path, qos=1)
    for name, client in subscribers.items():
        expected = {p for p in paths if any(matches(f, bench.topic(p)) for f in filters[name])}
        found = set()
        for _ in expected:
            got = client.expect_publish()
            if not any(matches(f, got.topic) for f in filters[name]):
                bench.fail(f"{got.topic!r} matches no filter of {name}", got)
            found.add(got.payload.decode())
        if found != expected:
            bench.fail(f"{name} receives {sorted(found)}", expected=f"{sorted(expected)}")
        scenes.nothing_comes(bench, client, publisher)


@statement("MQTT-3.3.4-1")
def mqtt_3_3_4_1(bench: Bench) -> None:
    """[MQTT-3.3.4-1] A PUBLISH is answered as its QoS says: not at all, by PUBACK, or by PUBREC."""
    for what in ("without subscribers", "with a subscriber"):
        with bench.case(what):
            if what == "with a subscriber":
                scenes.watch(bench, "t")
            client = bench.client("publisher")
            for qos, packet_id in ((0, None), (1, 11), (2, 12)):
                data = wire.publish(bench.topic("t"), b"x", version=4, qos=qos, packet_id=packet_id)
                client.send(data)
                wanted = ANSWERS[qos]
                for _ in wanted:
                    # The answer may be waiting for a disk, so it may come after PINGRESP.
                    client.inbox.append(client.receive())
                found = client.drain()
                if [type(packet) for packet in found] != wanted:
                    names = [type(packet).__name__.upper() for packet in found]
                    bench.fail(
                        f"a PUBLISH at QoS {qos} is answered by {names}",
                        found[0] if found else None,
                        expected=f"{[kind.__name__.upper() for kind in wanted]}",
                    )
                for packet in found:
                    if not isinstance(packet, Puback | Pubrec) or packet.packet_id != packet_id:
                        bench.fail("another packet identifier", packet, expected=f"{packet_id}")
            client.pubrel(12)
            client.expect(Pubcomp, packet_id=12)


@statement("MQTT-3.3.5-1")
def mqtt_3_3_5_1(bench: Bench) -> None:
    """[MQTT-3.3.5-1] A message that matches several filters of a client comes at the highest QoS
    any of them has, and further copies at no more than their own.
    """
    filters = {"a/#": 0, "a/+": 2, "a/b": 1}
    for number, order in enumerate((("a/#", "a/+", "a/b"), ("a/b", "a/+", "a/#"))):
        subscriber = bench.client(f"subscriber{number}")
        scenes.subscribe(bench, subscriber, *((bench.topic(f), filters[f]) for f in order))
        publisher = bench.client("publisher")
        for qos in (2, 1, 0):
            with bench.case(f"published at QoS {qos}"):
                publisher.publish(bench.topic("a/b"), f"{qos}", qos=qos)
                subscriber.inbox.append(subscriber.expect_publish(acknowledge=False))
                copies = scenes.deliveries(bench, subscriber, publisher)
                _check_copies(bench, copies, [min(qos, most) for most in filters.values()])
                scenes.acknowledge_all(subscriber, copies)


def _check_copies(bench: Bench, copies: list[Publish], granted: list[int]) -> None:
    found = sorted((copy.qos for copy in copies), reverse=True)
    limits = sorted(granted, reverse=True)
    fits = all(qos <= limit for qos, limit in zip(found, limits, strict=False))
    if not found or found[0] != limits[0] or len(found) > len(limits) or not fits:
        bench.fail(
            f"copies at QoS {found}",
            copies[0] if copies else None,
            expected=f"one at QoS {limits[0]}, others within {limits[1:]}",
        )


@statement("MQTT-3.6.1-1")
def mqtt_3_6_1_1(bench: Bench) -> None:
    """[MQTT-3.6.1-1] The flags of PUBREL are 0010; other ones end the connection."""
    topic = bench.topic("t")
    watcher = scenes.watch(bench, "t")
    client = bench.client("publisher", clean=False)
    for bits in range(16):
        if bits == 2:
            continue
        with bench.case(f"PUBREL with first byte {0x60 | bits:#04x}"):
            payload = f"{bits}".encode()
            client.send(wire.publish(topic, payload, version=4, qos=2, packet_id=77))
            client.expect(Pubrec, packet_id=77)
            client.send(wire.acknowledgement(0x60 | bits, 77))
            client.expect_close()
            # It was no PUBREL: the identifier is still open, and the right one frees it.
            scenes.resume(bench, client)
            client.send(wire.publish(topic, payload, version=4, qos=2, packet_id=77, dup=True))
            client.expect(Pubrec, packet_id=77)
            client.pubrel(77)
            client.expect(Pubcomp, packet_id=77)
            scenes.only(bench, watcher, topic, payload)


def _publish_denied(client: Client, topic: str, qos: int) -> str:
    """Publish; return how the broker took it: "acknowledged" or "closed"."""
    client.publish(topic, b"denied", qos=qos, retain=True, packet_id=40 + qos, wait=False)
    if qos == 0:
        client.send(wire.pingreq())
    answer = answer_or_end(client)
    if answer is None:
        return "closed"
    if isinstance(answer, Pubrec):
        client.pubrel(answer.packet_id)
        answer = client.expect(Pubcomp, packet_id=40 + qos)
    return "acknowledged"


@statement("MQTT-3.3.5-2", needs=("configure",))
def mqtt_3_3_5_2(bench: Bench) -> None:
    """[MQTT-3.3.5-2] A PUBLISH that is not allowed is acknowledged as usual or ends the
    connection, and has no other effect.
    """
    denied = "denied/topic"
    # A client with a user name may read everything: it would see a message that came through.
    bench.start(users=WATCHER, allow_anonymous=True, deny_publish=[denied])
    name, password = next(iter(WATCHER.items()))
    watcher = bench.client("watcher", username=name, password=password)
    scenes.subscribe(bench, watcher, (denied, 2), (bench.topic("#"), 2))
    publisher = bench.client("publisher")
    publisher.publish(bench.topic("t"), b"allowed", qos=2)
    scenes.only(bench, watcher, bench.topic("t"), b"allowed", publisher)
    ways = set()
    for qos in (0, 1, 2):
        with bench.case(f"at QoS {qos}"):
            client = bench.client("offender")
            ways.add(_publish_denied(client, denied, qos))
            client.drop()
            scenes.nothing_comes(bench, watcher, publisher)
    bench.note(f"a PUBLISH that is not allowed is {' or '.join(sorted(ways))}")
    late = bench.client("late", username=name, password=password)
    scenes.subscribe(bench, late, (denied, 2))
    scenes.nothing_comes(bench, late, publisher)
