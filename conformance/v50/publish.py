"""MQTT 5.0, section 3.3: flags of PUBLISH, its topic name, and what answers it."""

from collections.abc import Sequence
from typing import Final

from conformance import wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    answers,
    arrived,
    come_back,
    expect_only,
    persistent,
    require,
    subscribed,
    unmatched,
)
from conformance.packets import Disconnect, Packet, Puback, Pubcomp, Publish, Pubrec, Suback
from conformance.scenes import has_shared_subscriptions

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
TOPIC_INVALID: Final = 0x90
WILDCARD_REFUSALS: Final = (TOPIC_INVALID, MALFORMED, PROTOCOL_ERROR)
TAKEN: Final = (0x00, 0x10)  # a PUBLISH was accepted, with and without subscribers


@statement("MQTT-3.3.1-1")
def mqtt_3_3_1_1(bench: Bench) -> None:
    """[MQTT-3.3.1-1] A PUBLISH that is sent again has DUP 1."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    subscriber = persistent(bench, "subscriber", bench.topic("#"))
    first: dict[int | None, Publish] = {}
    for qos in (1, 2):
        sender.publish(bench.topic(f"q{qos}"), f"q{qos}", qos)
        packet = subscriber.expect_publish(qos=qos, dup=False, acknowledge=False)
        first[packet.packet_id] = packet
    subscriber.drop()
    come_back(subscriber)
    for _ in range(2):
        again = subscriber.expect_publish(dup=True, acknowledge=False)
        before = first.pop(again.packet_id, None)
        if before is None or (before.topic, before.qos) != (again.topic, again.qos):
            bench.fail("not a delivery that was open", again, expected="both open deliveries")


@statement("MQTT-3.3.1-2")
def mqtt_3_3_1_2(bench: Bench) -> None:
    """[MQTT-3.3.1-2] A PUBLISH at QoS 0 has DUP 0, whatever its publisher had set."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    low = subscribed(bench, "low", bench.topic("#"), 0)
    high = subscribed(bench, "high", bench.topic("#"), 2)
    for qos in (0, 1, 2):
        sender.publish(bench.topic("live"), f"q{qos}", qos, dup=qos > 0)
        low.expect_publish(payload=f"q{qos}", qos=0, dup=False)
        high.expect_publish(payload=f"q{qos}", qos=qos, dup=False)
    # DUP at QoS 0 is the publisher's fault: the broker may refuse it, but never pass it on.
    wrong = bench.client("wrong")
    wrong.send(wire.publish(bench.topic("wrong"), b"wrong", version=5, first_byte=0x38))
    if answers(wrong)[1]:
        for client in (low, high):
            bench.barrier(wrong, client)
            for packet in arrived(client):
                if packet.dup:
                    bench.fail("DUP was passed on", packet, expected="DUP 0")


@statement("MQTT-3.3.1-3")
def mqtt_3_3_1_3(bench: Bench) -> None:
    """[MQTT-3.3.1-3] DUP of a delivery says only whether this delivery is sent again."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    live = subscribed(bench, "live", bench.topic("#"), 2)
    lower = subscribed(bench, "lower", bench.topic("#"), 1)
    away = persistent(bench, "away", bench.topic("#"))
    away.disconnect()
    for qos in (1, 2):
        sender.publish(bench.topic("t"), f"q{qos}", qos, dup=True)
        live.expect_publish(payload=f"q{qos}", qos=qos, dup=False)
        lower.expect_publish(payload=f"q{qos}", qos=1, dup=False)
    come_back(away)
    for _ in range(2):
        away.expect_publish(dup=False)


@statement("MQTT-3.3.1-4")
def mqtt_3_3_1_4(bench: Bench) -> None:
    """[MQTT-3.3.1-4] A PUBLISH with both QoS bits set is malformed."""
    observer = subscribed(bench, "observer", bench.topic("#"), 2)
    topic = bench.topic("three")
    for first_byte in (0x36, 0x37, 0x3E, 0x3F):
        for packet_id in (7, None):
            sender = bench.client("sender")
            sender.send(
                wire.publish(topic, b"three", version=5, packet_id=packet_id, first_byte=first_byte)
            )
            sender.expect_close(MALFORMED)
    expect_only(bench, bench.client("sender"), observer, [])
    expect_only(bench, bench.client("sender"), subscribed(bench, "late", topic), [])


@statement("MQTT-3.3.2-1")
def mqtt_3_3_2_1(bench: Bench) -> None:
    """[MQTT-3.3.2-1] A PUBLISH begins with a topic name that is all there."""
    observer = subscribed(bench, "observer", bench.topic("#"), 2)
    topic = wire.string(bench.topic("t"))
    for data, reasons in (
        (wire.packet(0x30), (MALFORMED,)),
        (wire.packet(0x30, b"\x00"), (MALFORMED,)),
        (wire.packet(0x30, topic[:-1]), (MALFORMED,)),
        (wire.packet(0x30, b"\xff\xff" + topic[2:] + b"\x00payload"), (MALFORMED,)),
        (wire.packet(0x30, topic), (MALFORMED,)),  # no Property Length
        (wire.packet(0x32, topic), (MALFORMED,)),  # no packet identifier
        (wire.packet(0x32, topic + b"\x00"), (MALFORMED,)),
        (wire.publish("", b"no topic", version=5), (PROTOCOL_ERROR,)),
        (wire.publish("", b"no topic", version=5, qos=1, packet_id=1), (PROTOCOL_ERROR,)),
    ):
        with bench.case(f"PUBLISH {data[:24].hex(' ')}"):
            sender = bench.client("sender")
            sender.send(data)
            sender.expect_close(*reasons)
    expect_only(bench, bench.client("sender"), observer, [])


def expect_wildcard_refused(bench: Bench, client: Client, qos: int) -> None:
    """What the client just sent is answered with PUBACK or PUBREC 0x90, or with a close."""
    if qos == 0:
        client.expect_close(*WILDCARD_REFUSALS)
        return
    packets, is_open = answers(client, Puback, Pubrec)
    if is_open:
        refusals = [p for p in packets if isinstance(p, Puback | Pubrec)]
        if [p.reason for p in refusals] != [TOPIC_INVALID]:
            bench.fail(
                "the PUBLISH is not refused",
                refusals[0] if refusals else None,
                expected="reason code 0x90, or the end of the connection",
            )
        return
    check_parting(bench, packets, WILDCARD_REFUSALS)


def check_parting(bench: Bench, packets: Sequence[Packet], reasons: tuple[int, ...]) -> None:
    """The broker closed: only a DISCONNECT may have come; strict wants it, with its reason."""
    for packet in packets:
        if not isinstance(packet, Disconnect) or packet.reason < 0x80:
            bench.fail("a packet before the end", packet, expected="DISCONNECT")
        if bench.strict and packet.reason not in reasons:
            names = ", ".join(f"0x{reason:02X}" for reason in reasons)
            bench.fail("closed for another reason", packet, expected=f"DISCONNECT {names}")
    if bench.strict and not packets:
        bench.fail("closed without a reason code", expected="DISCONNECT")


@statement("MQTT-3.3.2-2", alone=True)
def mqtt_3_3_2_2(bench: Bench) -> None:
    """[MQTT-3.3.2-2] A PUBLISH to a topic with a wildcard in it is refused."""
    observer = subscribed(bench, "observer", bench.topic("#"), 2)
    payload = bench.topic("wild")
    loose = subscribed(bench, "loose", [("+", 0), ("+/+", 0)])
    for topic in (bench.topic("a/#"), bench.topic("a/+"), bench.topic("+/b"), "+", "#", "+/x"):
        for qos in (0, 1, 2):
            for retain in (False, True):
                with bench.case(f"PUBLISH to {topic!r}, QoS {qos}, retain {int(retain)}"):
                    sender = bench.client("sender")
                    sender.publish(topic, payload, qos, retain=retain, wait=False)
                    expect_wildcard_refused(bench, sender, qos)
    sender = bench.client("sender")
    expect_only(bench, sender, observer, [])
    bench.barrier(sender, loose)
    late = subscribed(bench, "late", [(bench.topic("#"), 0), ("+", 0), ("+/+", 0)])
    bench.barrier(sender, late)
    for client in (loose, late):
        for packet in arrived(client):
            if packet.payload == payload.encode():
                bench.fail("a PUBLISH to a wildcard was taken", packet, expected="nothing")


@statement("MQTT-3.3.2-3")
def mqtt_3_3_2_3(bench: Bench) -> None:
    """[MQTT-3.3.2-3] A delivery has the topic it was published to, and a filter matches it."""
    sender = bench.client("sender")
    filters = [bench.topic(path) for path in ("a/+/c", "b/#", "d", "+/e/f", "/g/", "h//i")]
    topics = [
        bench.topic(path)
        for path in (
            *("a/b/c", "a//c", "a/b", "a/b/c/d", "b", "b/x/y", "b/", "bb", "d", "d/", "D", "dd"),
            *("x/e/f", "/e/f", "x/y/e/f", "/g/", "g/", "/g", "h//i", "h/i", "h///i"),
        )
    ]
    unwanted = set(unmatched(filters, topics))
    wanted = sorted(set(topics) - unwanted)
    clients = [
        subscribed(bench, "plain", [(f, 1) for f in filters]),
        subscribed(bench, "aliases", [(f, 1) for f in filters], properties=[(0x22, 5)]),
    ]
    if has_shared_subscriptions(sender):
        shared = [(f"$share/{bench.unique}/{f}", 1) for f in filters]
        clients.append(subscribed(bench, "shared", shared))
    for _ in range(2):  # the second time a broker may write an alias instead of the topic
        for topic in topics:
            sender.publish(topic, topic, 1)
    for client in clients:
        for packet in expect_only(bench, sender, client, [t.encode() for t in wanted * 2]):
            if packet.topic.encode() != packet.payload:
                bench.fail("delivered on another topic", packet, expected=repr(packet.payload))


@statement("MQTT-3.3.4-1")
def mqtt_3_3_4_1(bench: Bench) -> None:
    """[MQTT-3.3.4-1] PUBLISH is answered by its QoS: not at all, with PUBACK, with PUBREC."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    subscribed(bench, "subscriber", bench.topic("heard"), 2)
    for path in ("heard", "unheard"):
        topic = bench.topic(path)
        sender.publish(topic, b"0")
        expect_no_more(bench, sender)
        for qos in (1, 2):
            packet_id = sender.next_id()
            sender.publish(topic, b"%d" % qos, qos, packet_id=packet_id, wait=False)
            answer: Puback | Pubrec = (
                sender.expect(Puback, packet_id=packet_id)
                if qos == 1
                else sender.expect(Pubrec, packet_id=packet_id)
            )
            if answer.reason not in (TAKEN if path == "unheard" else (0,)):
                bench.fail("another reason code", answer, expected="0x00 (0x10 if nobody listens)")
            if qos == 2:
                sender.pubrel(packet_id)
                sender.expect(Pubcomp, packet_id=packet_id)
            expect_no_more(bench, sender)


def expect_no_more(bench: Bench, client: Client) -> None:
    """Nothing but PINGRESP answers a PINGREQ."""
    for packet in client.drain():
        bench.fail("one answer too many", packet, expected="nothing more")


@statement("MQTT-3.3.4-6")
def mqtt_3_3_4_6(bench: Bench) -> None:
    """[MQTT-3.3.4-6] A client's PUBLISH with a Subscription Identifier ends the connection."""
    topic = bench.topic("t")
    observer = subscribed(bench, "observer", topic, 2)
    for qos in (0, 1, 2):
        for identifier in (1, 200, 268_435_455):
            with bench.case(f"Subscription Identifier {identifier} at QoS {qos}"):
                sender = bench.client("sender")
                sender.publish(topic, b"no", qos, properties=[(0x0B, identifier)], wait=False)
                sender.expect_close(PROTOCOL_ERROR, MALFORMED)
    expect_only(bench, bench.client("sender"), observer, [])


@statement("X-08")
def x_08(bench: Bench) -> None:
    """[X-08] A SUBSCRIBE is acknowledged while matching messages flow, before or after them."""
    topic = bench.topic("t")
    sender = bench.client("sender")
    count = 100
    subscriber = bench.client("subscriber")
    packet_id = subscriber.next_id()
    for number in range(count):
        if number == count // 4:
            subscriber.send(wire.subscribe(packet_id, [(topic, 1)], version=5))
        sender.publish(topic, b"%d" % number, 1)
    seen: list[int] = []
    is_granted = False
    while not is_granted or not seen or seen[-1] != count:
        packet = subscriber.receive()
        if isinstance(packet, Publish):
            subscriber.acknowledge(packet)
            seen.append(int(packet.payload))
        elif isinstance(packet, Suback) and packet.packet_id == packet_id:
            is_granted = True
            sender.publish(topic, b"%d" % count, 1)
        else:
            bench.fail("neither SUBACK nor a delivery", packet)
    if seen != list(range(seen[0], count + 1)):
        bench.fail(f"received {seen}", expected="every message from the first one on, in order")
