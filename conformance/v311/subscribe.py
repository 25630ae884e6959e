"""MQTT 3.1.1, sections 3.8 and 3.9: SUBSCRIBE and SUBACK."""

from typing import Final

from conformance import wire
from conformance.check import Bench, statement
from conformance.packets import Puback, Suback
from conformance.scenes import DENIED_FILTER, answer_or_end
from conformance.v311 import scenes

FAILURE: Final = 0x80
DENIED: Final = "a filter that is not allowed"


def _can_deny(bench: Bench) -> bool:
    """Start a broker that refuses `DENIED_FILTER`, where that can be done."""
    return scenes.configured(bench, DENIED, deny_subscribe=[DENIED_FILTER])


def _expect_codes(bench: Bench, suback: Suback, *wanted: int) -> None:
    if suback.codes == wanted:
        return
    lower = len(suback.codes) == len(wanted) and all(
        code <= want for code, want in zip(suback.codes, wanted, strict=True)
    )
    if lower and not any(code == 0x80 for code in wanted):
        bench.not_run("the broker grants a lower QoS than is asked for")
    bench.fail(f"codes {bytes(suback.codes).hex(' ')}", suback, expected=bytes(wanted).hex(" "))


@statement("MQTT-3.8.1-1")
def mqtt_3_8_1_1(bench: Bench) -> None:
    """[MQTT-3.8.1-1] The flags of SUBSCRIBE are 0010; other ones end the connection."""
    for bits in range(16):
        if bits != 2:
            data = wire.subscribe(7, [(bench.topic("t"), 0)], version=4, first_byte=0x80 | bits)
            scenes.is_cut_off(bench, f"SUBSCRIBE with first byte {0x80 | bits:#04x}", data)


@statement("MQTT-3.8.3-1")
def mqtt_3_8_3_1(bench: Bench) -> None:
    """[MQTT-3.8.3-1] The filters of SUBSCRIBE are well-formed UTF-8."""
    good: wire.Filter = (bench.topic("t"), 1)
    for bad in scenes.NOT_UTF8:
        for topic_filter in (bad, bench.topic("t").encode() + b"/" + bad):
            for before in ([], [good]):
                data = wire.subscribe(7, [*before, (topic_filter, 1)], version=4)
                what = f"bytes {bad.hex(' ')} after {len(before)} good filters"
                scenes.is_cut_off(bench, what, data)


@statement("MQTT-3.8.3-2", needs=("configure",))
def mqtt_3_8_3_2(bench: Bench) -> None:
    """[MQTT-3.8.3-2] A server that does not support wildcards refuses every subscription that has
    one.
    """
    bench.start(wildcard_subscriptions=False)
    publisher = bench.client("publisher")
    for path in ("a/#", "a/+", "+/b", "#"):
        topic_filter = path if path[0] in "#+" else bench.topic(path)
        with bench.case(f"filter {path!r}"):
            client = bench.client("a")
            client.send(wire.subscribe(7, [(topic_filter, 1)], version=4))
            answer = answer_or_end(client)
            if answer is None:
                continue
            if not isinstance(answer, Suback) or answer.codes != (FAILURE,):
                bench.fail("the subscription is not refused", answer, expected="code 80")
            publisher.publish(bench.topic("a/b"), b"no", qos=1)
            scenes.nothing_comes(bench, client, publisher)
    watcher = scenes.watch(bench, "a/b")
    publisher.publish(bench.topic("a/b"), b"plain", qos=1)
    scenes.only(bench, watcher, bench.topic("a/b"), b"plain", publisher)


@statement("MQTT-3.8.3-3")
def mqtt_3_8_3_3(bench: Bench) -> None:
    """[MQTT-3.8.3-3] SUBSCRIBE has at least one pair of a filter and a QoS."""
    topic = wire.string(bench.topic("t"))
    for what, data in (
        ("a packet identifier only", b"\0\x07"),
        ("a filter without its QoS", b"\0\x07" + topic),
        ("half a length of a filter", b"\0\x07\0"),
        ("a second filter without its QoS", b"\0\x07" + topic + b"\0" + topic),
        ("nothing", b""),
        ("half a packet identifier", b"\x07"),
    ):
        scenes.is_cut_off(bench, f"SUBSCRIBE with {what}", wire.packet(0x82, data))


@statement("MQTT-3.8.3-4")
def mqtt_3_8_3_4(bench: Bench) -> None:
    """[MQTT-3.8.3-4] A requested QoS of 3 or with other bits set makes SUBSCRIBE malformed and
    ends the connection.
    """
    topic = bench.topic("t")
    for options in (0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x83, 0xFC, 0xFF):
        for filters in ([(topic, options)], [(bench.topic("u"), 1), (topic, options)]):
            data = wire.subscribe(7, filters, version=4)
            what = f"requested QoS {options:#04x} for filter {len(filters)}"
            scenes.is_cut_off(bench, what, data)


@statement("MQTT-3.8.4-1", wants=("configure",))
def mqtt_3_8_4_1(bench: Bench) -> None:
    """[MQTT-3.8.4-1] Every SUBSCRIBE is answered by SUBACK."""
    denies = _can_deny(bench)
    client = bench.client("a")
    topic = bench.topic("t")
    requests = [
        [(topic, 0)],
        [(topic, 0)],
        [(topic, 2), (topic, 2)],
        [(bench.topic("#"), 1), (bench.topic("+/b"), 1)],
    ]
    if denies:
        requests += [[(DENIED_FILTER, 1)], [(topic, 1), (DENIED_FILTER, 1)]]
    for number, filters in enumerate(requests, 1):
        with bench.case(f"request {number}, filters {[name for name, _ in filters]}"):
            client.send(wire.subscribe(number, filters, version=4))
            suback = client.expect(Suback)
            if suback.packet_id != number or len(suback.codes) != len(filters):
                bench.fail("SUBACK does not answer this one", suback)
            client.expect_nothing(Suback)
    # Many at once: as many answers.
    data = b"".join(
        wire.subscribe(100 + number, [(bench.topic(f"many/{number}"), number % 3)], version=4)
        for number in range(30)
    )
    client.send(data)
    found = sorted(client.expect(Suback).packet_id for _ in range(30))
    if found != list(range(100, 130)):
        bench.fail(f"30 requests at once are answered by {found}", client.last)
    client.expect_nothing(Suback)


@statement("MQTT-3.8.4-2")
def mqtt_3_8_4_2(bench: Bench) -> None:
    """[MQTT-3.8.4-2] SUBACK has the packet identifier of its SUBSCRIBE."""
    client = bench.client("a")
    asked = {7: 1, 65_535: 2, 1: 3, 256: 4}
    data = b""
    for packet_id, count in asked.items():
        filters = [(bench.topic(f"{packet_id}/{number}"), 0) for number in range(count)]
        data += wire.subscribe(packet_id, filters, version=4)
    client.send(data)
    for _ in range(len(asked)):
        suback = client.expect(Suback)
        # The number of filters tells which request this really answers.
        if asked.pop(suback.packet_id, None) != len(suback.codes):
            bench.fail(
                f"SUBACK for {suback.packet_id} with {len(suback.codes)} codes",
                suback,
                expected="identifiers 7, 65535, 1 and 256, with 1, 2, 3 and 4 codes",
            )
    client.subscribe(bench.topic("t"), packet_id=0x8000)


@statement("MQTT-3.8.4-3")
def mqtt_3_8_4_3(bench: Bench) -> None:
    """[MQTT-3.8.4-3] Subscribing to a filter again replaces the subscription: retained messages
    are sent again, and the flow of messages is not interrupted.
    """
    topic = bench.topic("a/b")
    publisher = bench.client("publisher")
    publisher.publish(topic, b"retained", qos=2, retain=True)
    subscriber = bench.client("subscriber")
    scenes.subscribe(bench, subscriber, (topic, 0))
    subscriber.expect_publish(topic, b"retained", qos=0, retain=True)
    numbers = [f"{number}".encode() for number in range(100)]

    def publish(some: list[bytes]) -> None:
        for number in some:
            publisher.publish(topic, number, qos=1, packet_id=1000 + int(number), wait=False)

    publish(numbers[:40])
    subscriber.send(wire.subscribe(9, [(topic, 2)], version=4))
    publish(numbers[40:])
    for _ in numbers:
        publisher.expect(Puback)
    suback = subscriber.expect(Suback, packet_id=9)
    _expect_codes(bench, suback, 2)
    arrived = subscriber.expect_publishes(len(numbers) + 1)
    kept = [packet for packet in arrived if packet.retain]
    if [packet.payload for packet in kept] != [b"retained"]:
        bench.fail(
            f"{len(kept)} retained messages are sent again", suback, expected="one, RETAIN 1"
        )
    flow = [packet.payload for packet in arrived if not packet.retain]
    if sorted(flow, key=int) != numbers:
        missing = sorted(set(numbers) - set(flow), key=int)
        bench.fail(f"of 100 messages {len(flow)} come, without {missing}", expected="each once")
    publisher.publish(topic, b"later", qos=2)
    subscriber.expect_publish(topic, b"later", qos=2, retain=False)
    scenes.nothing_comes(bench, subscriber, publisher)
    scenes.subscribe(bench, subscriber, (topic, 1))
    subscriber.expect_publish(topic, b"retained", qos=1, retain=True)
    publisher.publish(topic, b"lower", qos=2, packet_id=2)
    subscriber.expect_publish(topic, b"lower", qos=1)
    scenes.nothing_comes(bench, subscriber, publisher)


@statement("MQTT-3.8.4-4")
def mqtt_3_8_4_4(bench: Bench) -> None:
    """[MQTT-3.8.4-4] Several filters in one SUBSCRIBE count like as many SUBSCRIBEs, but for the
    one SUBACK they get.
    """
    a, b = bench.topic("a"), bench.topic("b")
    publisher = bench.client("publisher")
    for topic in (a, b):
        publisher.publish(topic, b"retained", qos=2, retain=True)
    subscriber = bench.client("subscriber")
    suback = subscriber.subscribe([(a, 0), (b, 1), (a, 2)])
    _expect_codes(bench, suback, 0, 1, 2)
    arrived = scenes.deliveries(bench, subscriber, publisher)
    scenes.acknowledge_all(subscriber, arrived)
    counts = {topic: sum(packet.topic == topic for packet in arrived) for topic in (a, b)}
    if counts[b] != 1 or counts[a] not in (1, 2) or not all(p.retain for p in arrived):
        bench.fail(
            f"{counts[a]} and {counts[b]} retained messages",
            arrived[0] if arrived else None,
            expected="one for each time a filter is named",
        )
    subscriber.expect_nothing(Suback)
    for topic, qos in ((a, 2), (b, 1)):
        publisher.publish(topic, b"live", qos=2)
        subscriber.expect_publish(topic, b"live", qos=qos)
    scenes.nothing_comes(bench, subscriber, publisher)


@statement("MQTT-3.8.4-5", wants=("configure",))
def mqtt_3_8_4_5(bench: Bench) -> None:
    """[MQTT-3.8.4-5] SUBACK has a code for every filter: the QoS granted, or failure."""
    denies = _can_deny(bench)
    client = bench.client("a")
    filters = [(bench.topic(f"{number}"), number % 3) for number in range(5)]
    _expect_codes(bench, client.subscribe(filters), 0, 1, 2, 0, 1)
    _expect_codes(bench, client.subscribe(filters[2:3]), 2)
    many = [(bench.topic(f"many/{number}"), number % 3) for number in range(60)]
    _expect_codes(bench, client.subscribe(many), *((0, 1, 2) * 20))
    if denies:
        for place in range(5):
            mixed = [*filters[:place], (DENIED_FILTER, 2), *filters[place:]][:5]
            wanted = [FAILURE if name == DENIED_FILTER else qos for name, qos in mixed]
            _expect_codes(bench, client.subscribe(mixed), *wanted)
    publisher = bench.client("publisher")
    for number in range(5):
        publisher.publish(bench.topic(f"{number}"), f"{number}", qos=2)
        client.expect_publish(bench.topic(f"{number}"), f"{number}", qos=number % 3)


@statement("MQTT-3.8.4-6")
def mqtt_3_8_4_6(bench: Bench) -> None:
    """[MQTT-3.8.4-6] A message comes at the lower one of the QoS it was published at and the QoS
    granted.
    """
    topic = bench.topic("t")
    subscribers = [
        scenes.watch(bench, "t", qos=granted, name=f"at{granted}") for granted in range(3)
    ]
    wild = [scenes.watch(bench, "+", qos=granted, name=f"wild{granted}") for granted in range(3)]
    publisher = bench.client("publisher")
    for qos in range(3):
        publisher.publish(topic, f"{qos}", qos=qos)
        for granted in range(3):
            for client in (subscribers[granted], wild[granted]):
                with bench.case(f"published at QoS {qos}, granted QoS {granted}"):
                    client.expect_publish(topic, f"{qos}", qos=min(qos, granted))
    for client in (*subscribers, *wild):
        scenes.nothing_comes(bench, client, publisher)


@statement("MQTT-3.9.3-1", wants=("configure",))
def mqtt_3_9_3_1(bench: Bench) -> None:
    """[MQTT-3.9.3-1] The codes of SUBACK are in the order of the filters of SUBSCRIBE."""
    denies = _can_deny(bench)
    client = bench.client("a")
    a, b, c = bench.topic("a"), bench.topic("b"), bench.topic("c")
    _expect_codes(bench, client.subscribe([(a, 2), (b, 0), (c, 1)]), 2, 0, 1)
    _expect_codes(bench, client.subscribe([(c, 1), (b, 0), (a, 2)]), 1, 0, 2)
    _expect_codes(bench, client.subscribe([(b, 0), (a, 0), (c, 2), (a, 1)]), 0, 0, 2, 1)
    if denies:
        denied = (DENIED_FILTER, 1)
        suback = client.subscribe([(a, 2), (b, 0), denied, (c, 1)])
        _expect_codes(bench, suback, 2, 0, FAILURE, 1)
        suback = client.subscribe([denied, (c, 2), denied, (a, 0)])
        _expect_codes(bench, suback, FAILURE, 2, FAILURE, 0)


@statement("MQTT-3.9.3-2", wants=("configure",))
def mqtt_3_9_3_2(bench: Bench) -> None:
    """[MQTT-3.9.3-2] SUBACK has no other codes than 0x00, 0x01, 0x02 and 0x80."""
    denies = _can_deny(bench)
    filters = [bench.topic(path) for path in ("a", "+/a", "#", "a#", "a/#/b", "a+", "##", "/")]
    filters += ["$share/g/" + bench.topic("a"), "$share/g", "$share//a", "$share/g+/a", "$share/"]
    filters += ["$queue/" + bench.topic("a"), "$SYS/#", "$" + bench.unique]
    filters += [DENIED_FILTER] * denies
    for topic_filter in filters:
        for qos in (0, 1, 2):
            with bench.case(f"filter {topic_filter!r} at QoS {qos}"):
                client = bench.client("a")
                client.send(wire.subscribe(7, [(topic_filter, qos)], version=4))
                answer = answer_or_end(client)
                while not isinstance(answer, Suback) and answer is not None:
                    answer = answer_or_end(client)
                if answer is None:
                    continue
                codes = set(answer.raw[4:])
                if len(answer.raw) != 5 or not codes <= {0, 1, 2, FAILURE}:
                    bench.fail(
                        f"codes {answer.raw[4:].hex(' ')}", answer, expected="00, 01, 02 or 80"
                    )
                if codes != {FAILURE} and not codes <= set(range(qos + 1)):
                    bench.fail("more is granted than asked for", answer, expected=f"up to {qos}")
                client.drop()
