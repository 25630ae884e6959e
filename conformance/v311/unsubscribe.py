"""MQTT 3.1.1, section 3.10: UNSUBSCRIBE and UNSUBACK."""

from conformance import wire
from conformance.check import Bench, statement
from conformance.packets import Pubrel, Unsuback
from conformance.v311 import scenes


@statement("MQTT-3.10.1-1")
def mqtt_3_10_1_1(bench: Bench) -> None:
    """[MQTT-3.10.1-1] The flags of UNSUBSCRIBE are 0010; other ones end the connection."""
    for bits in range(16):
        if bits != 2:
            first = 0xA0 | bits
            data = wire.unsubscribe(7, [bench.topic("t")], version=4, first_byte=first)
            scenes.is_cut_off(bench, f"UNSUBSCRIBE with first byte {first:#04x}", data)


@statement("MQTT-3.10.3-1")
def mqtt_3_10_3_1(bench: Bench) -> None:
    """[MQTT-3.10.3-1] The filters of UNSUBSCRIBE are well-formed UTF-8, one after the other."""
    good = bench.topic("t").encode()
    for bad in scenes.NOT_UTF8:
        for filters in ([bad], [good + b"/" + bad], [good, bad]):
            data = wire.unsubscribe(7, filters, version=4)
            what = f"UNSUBSCRIBE, {len(filters)} filters, with bytes {bad.hex(' ')}"
            scenes.is_cut_off(bench, what, data)
    for what, tail in (
        ("a length without its string", b"\0\x05"),
        ("a string that runs past the end", b"\0\x05abc"),
        ("half a length", b"\0"),
    ):
        data = wire.packet(0xA2, b"\0\x07" + wire.string(good) + tail)
        scenes.is_cut_off(bench, f"UNSUBSCRIBE that ends with {what}", data)


@statement("MQTT-3.10.3-2")
def mqtt_3_10_3_2(bench: Bench) -> None:
    """[MQTT-3.10.3-2] UNSUBSCRIBE has at least one filter."""
    for what, body in (
        ("a packet identifier only", b"\0\x07"),
        ("nothing", b""),
        ("half a packet identifier", b"\x07"),
    ):
        scenes.is_cut_off(bench, f"UNSUBSCRIBE with {what}", wire.packet(0xA2, body))


@statement("MQTT-3.10.4-1")
def mqtt_3_10_4_1(bench: Bench) -> None:
    """[MQTT-3.10.4-1] A filter in UNSUBSCRIBE ends the subscription whose filter is the same,
    character by character, and no other one.
    """
    subscriber = bench.client("subscriber")
    publisher = bench.client("publisher")
    scenes.subscribe(bench, subscriber, (bench.topic("a/+"), 1), (bench.topic("a/b"), 1))
    scenes.subscribe(bench, subscriber, (bench.topic("c/#"), 1))

    def gets(path: str) -> bool:
        publisher.publish(bench.topic(path), path, qos=1)
        found = scenes.deliveries(bench, subscriber, publisher)
        scenes.acknowledge_all(subscriber, found)
        return bool(found)

    for other in ("a/#", "A/b", "a/B", "#", "+/b", "a/b/", "a", "c", "c/+", "c/x", "/a/b"):
        subscriber.unsubscribe(bench.topic(other))
        with bench.case(f"after UNSUBSCRIBE from {other!r}"):
            for path in ("a/b", "a/x", "c/x"):
                if not gets(path):
                    bench.fail(f"{path!r} is not delivered any more", expected="PUBLISH")
    subscriber.unsubscribe(bench.topic("a/+"))
    with bench.case("after UNSUBSCRIBE from 'a/+'"):
        if gets("a/x"):
            bench.fail("'a/x' is still delivered", subscriber.last, expected="nothing")
        if not gets("a/b") or not gets("c/x"):
            bench.fail("'a/b' or 'c/x' is not delivered any more", expected="PUBLISH")
    subscriber.unsubscribe([bench.topic("c/#"), bench.topic("a/b")])
    if gets("a/b") or gets("c/x") or gets("c"):
        bench.fail("a message after the last subscription ended", subscriber.last)


@statement("MQTT-3.10.4-2")
def mqtt_3_10_4_2(bench: Bench) -> None:
    """[MQTT-3.10.4-2] Once a subscription is removed no new messages are sent because of it."""
    topic = bench.topic("t")
    live = scenes.watch(bench, "t", name="live")
    wild = scenes.watch(bench, "+", name="wild")
    durable = bench.client("durable", clean=False)
    scenes.subscribe(bench, durable, (topic, 2))
    publisher = bench.client("publisher")
    publisher.publish(topic, b"before", qos=2)
    for client in (live, wild, durable):
        scenes.only(bench, client, topic, b"before", publisher)
    live.unsubscribe(topic)
    durable.unsubscribe(topic)
    wild.unsubscribe(bench.topic("+"))
    durable.disconnect()
    for number in range(100):
        publisher.publish(topic, f"{number}", qos=number % 3, retain=number == 99)
    for client in (live, wild):
        scenes.nothing_comes(bench, client, publisher)
    scenes.resume(bench, durable)
    scenes.nothing_comes(bench, durable, publisher)


@statement("MQTT-3.10.4-3")
def mqtt_3_10_4_3(bench: Bench) -> None:
    """[MQTT-3.10.4-3] Deliveries at QoS 1 and 2 that have begun are completed although the
    subscription is removed.
    """
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", clean=False)
    publisher = bench.client("publisher")
    for cut in (False, True):
        with bench.case("over a new connection" if cut else "on the same connection"):
            scenes.subscribe(bench, subscriber, (topic, 2))
            for qos in (1, 2):
                publisher.publish(topic, f"{qos}", qos=qos)
            begun = subscriber.expect_publishes(2, acknowledge=False)
            ids = {packet.qos: packet.packet_id for packet in begun}
            if set(ids) != {1, 2}:
                bench.fail(f"deliveries at QoS {set(ids)}", begun[0], expected="QoS 1 and 2")
            subscriber.unsubscribe(topic)
            if cut:
                subscriber.drop()
                scenes.resume(bench, subscriber)
                again = subscriber.expect_publishes(2, acknowledge=False)
                for packet in again:
                    if packet.packet_id != ids[packet.qos] or not packet.dup:
                        bench.fail(
                            "not the delivery that had begun",
                            packet,
                            expected=f"DUP 1, id {ids[packet.qos]}",
                        )
            assert ids[1] is not None and ids[2] is not None
            subscriber.puback(ids[1])
            subscriber.pubrec(ids[2])
            subscriber.expect(Pubrel, packet_id=ids[2])
            subscriber.pubcomp(ids[2])
            publisher.publish(topic, b"not wanted", qos=2)
            scenes.nothing_comes(bench, subscriber, publisher)
            subscriber.drop()
            scenes.resume(bench, subscriber)
            scenes.nothing_comes(bench, subscriber, publisher)
            subscriber.expect_nothing(Pubrel)


@statement("MQTT-3.10.4-4")
def mqtt_3_10_4_4(bench: Bench) -> None:
    """[MQTT-3.10.4-4] UNSUBSCRIBE is answered by UNSUBACK with its packet identifier."""
    client = bench.client("a")
    scenes.subscribe(bench, client, *((bench.topic(f"{n}"), 0) for n in range(4)))
    for number, packet_id in enumerate((0xBEEF, 1, 0xFFFF, 0x0100)):
        unsuback = client.unsubscribe(bench.topic(f"{number}"), packet_id=packet_id)
        wanted = b"\xb0\x02" + packet_id.to_bytes(2, "big")
        if unsuback.raw != wanted:
            bench.fail("UNSUBACK is not as it has to be", unsuback, expected=wanted.hex(" "))
    client.expect_nothing(Unsuback)


@statement("MQTT-3.10.4-5")
def mqtt_3_10_4_5(bench: Bench) -> None:
    """[MQTT-3.10.4-5] UNSUBACK comes even if no subscription was removed."""
    client = bench.client("a")
    topic = bench.topic("t")
    client.unsubscribe(topic, packet_id=5)
    client.unsubscribe([topic, bench.topic("u"), bench.topic("#")], packet_id=6)
    scenes.subscribe(bench, client, (topic, 1))
    client.unsubscribe(topic, packet_id=7)
    client.unsubscribe(topic, packet_id=8)
    client.unsubscribe(bench.topic("+"), packet_id=9)
    client.expect_nothing(Unsuback)


@statement("MQTT-3.10.4-6")
def mqtt_3_10_4_6(bench: Bench) -> None:
    """[MQTT-3.10.4-6] Several filters in one UNSUBSCRIBE count like as many UNSUBSCRIBEs, but for
    the one UNSUBACK they get.
    """
    subscriber = bench.client("subscriber")
    publisher = bench.client("publisher")
    paths = ("a", "b", "c/+", "d")
    scenes.subscribe(bench, subscriber, *((bench.topic(path), 1) for path in paths))
    orders = (["a", "unknown", "c/+"], ["unknown", "d", "d"])
    ended: set[str] = set()
    for packet_id, order in enumerate(orders, 20):
        subscriber.unsubscribe([bench.topic(path) for path in order], packet_id=packet_id)
        subscriber.expect_nothing(Unsuback)
        ended.update(order)
        for path in paths:
            publisher.publish(bench.topic(path.replace("+", "x")), path, qos=1)
        found = scenes.deliveries(bench, subscriber, publisher)
        scenes.acknowledge_all(subscriber, found)
        got = [packet.payload.decode() for packet in found]
        wanted = [path for path in paths if path not in ended]
        if sorted(got) != wanted:
            bench.fail(f"after UNSUBSCRIBE from {order} these come: {got}", expected=f"{wanted}")
