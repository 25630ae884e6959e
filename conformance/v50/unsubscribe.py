"""MQTT 5.0, sections 3.10 and 3.11: UNSUBSCRIBE and UNSUBACK."""

from collections.abc import Sequence
from typing import Final

from conformance import scenes, tables, wire
from conformance.check import Bench, statement
from conformance.packets import Disconnect, Unsuback

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
REMOVED: Final = 0x00
NONE_EXISTED: Final = 0x11
RESUMABLE_S: Final = 300


def expect_codes(bench: Bench, unsuback: Unsuback, codes: Sequence[int]) -> None:
    """The codes of UNSUBACK have to be these."""
    if list(unsuback.codes) != list(codes):
        expected = "codes " + " ".join(f"{code:02X}" for code in codes)
        bench.fail("UNSUBACK has other codes", unsuback, expected=expected)


@statement("MQTT-3.10.1-1")
def mqtt_3_10_1_1(bench: Bench) -> None:
    """[MQTT-3.10.1-1] UNSUBSCRIBE with header flags other than 0010 ends the connection."""
    topic = bench.topic("t")
    wrong = [
        (f"first byte 0x{first:02X}", wire.unsubscribe(7, [topic], version=5, first_byte=first))
        for first in range(0xA0, 0xB0)
        if first != 0xA2
    ]
    scenes.expect_each_closes(bench, wrong, MALFORMED)


@statement("MQTT-3.10.3-1")
def mqtt_3_10_3_1(bench: Bench) -> None:
    """[MQTT-3.10.3-1] An UNSUBSCRIBE with a filter that is not UTF-8 ends the connection."""
    good = bench.topic("t")
    for raw in (b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"a/\xff", b"\xe2\x82"):
        for filters in ([raw], [good, raw], [raw, good]):
            what = f"bytes {raw.hex(' ')}, {len(filters)} filters"
            data = wire.unsubscribe(7, filters, version=5)
            scenes.expect_each_closes(bench, [(what, data)], MALFORMED)


@statement("MQTT-3.10.3-2")
def mqtt_3_10_3_2(bench: Bench) -> None:
    """[MQTT-3.10.3-2] An UNSUBSCRIBE without any filter ends the connection."""
    user: list[wire.Property] = [(tables.USER_PROPERTY, ("a", "b"))]
    packets = [
        ("no payload", wire.unsubscribe(7, [], version=5)),
        ("properties and no payload", wire.unsubscribe(7, [], version=5, properties=user)),
    ]
    scenes.expect_each_closes(bench, packets, PROTOCOL_ERROR)


@statement("MQTT-3.10.4-1")
def mqtt_3_10_4_1(bench: Bench) -> None:
    """[MQTT-3.10.4-1] Only the very filter that was subscribed ends a subscription."""
    held_plus, held = bench.topic("a/+"), bench.topic("a/b")
    client = bench.client("subscriber")
    publisher = bench.client("publisher")
    client.subscribe([(held_plus, 1), (held, 1)])
    others = ("a/#", "A/b", "a/B", "a/b/", "/a/b", "a", "a/b/c", "a/bb", "+/b", "a/+/", "#")
    for other in others:
        with bench.case(f"UNSUBSCRIBE {other}"):
            expect_codes(bench, client.unsubscribe(bench.topic(other)), [NONE_EXISTED])
    publisher.publish(bench.topic("a/c"), "by the wildcard", 1)
    client.expect_publish(bench.topic("a/c"), "by the wildcard")
    three = [bench.topic("a/#"), bench.topic("A/b"), held_plus]
    expect_codes(bench, client.unsubscribe(three), [NONE_EXISTED, NONE_EXISTED, REMOVED])
    publisher.publish(bench.topic("a/c"), "no longer wanted", 1)
    publisher.publish(held, "still wanted", 1)
    client.expect_publish(held, "still wanted")
    bench.barrier(publisher, client)
    client.expect_nothing()
    expect_codes(bench, client.unsubscribe([held]), [REMOVED])
    expect_codes(bench, client.unsubscribe([held]), [NONE_EXISTED])


@statement("MQTT-3.10.4-2")
def mqtt_3_10_4_2(bench: Bench) -> None:
    """[MQTT-3.10.4-2] After UNSUBSCRIBE no further message is added for the client."""
    topic, wider = bench.topic("a/b"), bench.topic("a/+")
    client = bench.client("subscriber", session_expiry=RESUMABLE_S)
    publisher = bench.client("publisher")
    client.subscribe([(topic, 2)])
    publisher.publish(topic, "before", 1)
    client.expect_publish(topic, "before")
    client.unsubscribe(topic)
    for number in range(33):
        for qos in range(3):
            publisher.publish(topic, f"{number} at {qos}", qos)
    publisher.publish(topic, "the hundredth", 2)
    bench.barrier(publisher, client)
    client.expect_nothing()
    with bench.case("nor while it is away"):
        client.drop()
        publisher.publish(topic, "while away", 1)
        publisher.publish(topic, "while away", 2)
        scenes.resume(client, session_expiry=RESUMABLE_S)
        bench.barrier(publisher, client)
        client.expect_nothing()
    with bench.case("another filter goes on as it was"):
        client.subscribe([(wider, 1), (topic, 2)])
        client.unsubscribe(topic)
        publisher.publish(topic, "by the wildcard", 2)
        client.expect_publish(topic, "by the wildcard", 1)
        bench.barrier(publisher, client)
        client.expect_nothing()


@statement("MQTT-3.10.4-3")
def mqtt_3_10_4_3(bench: Bench) -> None:
    """[MQTT-3.10.4-3] Deliveries that have begun are completed after UNSUBSCRIBE."""
    topic = bench.topic("t")
    publisher = bench.client("publisher")
    client = bench.client("subscriber", session_expiry=RESUMABLE_S)

    def begin() -> dict[str, int]:
        """Let three deliveries begin, the third one up to PUBREL; return their ids."""
        client.subscribe(topic, 2)
        ids = {}
        for text, qos in (("one", 1), ("two", 2), ("three", 2)):
            publisher.publish(topic, text, qos)
            delivery = client.expect_publish(topic, text, qos, acknowledge=False)
            assert delivery.packet_id is not None
            ids[text] = delivery.packet_id
        client.pubrec(ids["three"])
        client.expect_pubrel(ids["three"])
        client.unsubscribe(topic)
        return ids

    with bench.case("on the same connection"):
        ids = begin()
        client.pubrec(ids["two"])
        client.expect_pubrel(ids["two"])
        for text in ("two", "three"):
            client.pubcomp(ids[text])
        client.puback(ids["one"])
        client.expect_nothing()
    with bench.case("after a resume"):
        ids = begin()
        scenes.resume(client, session_expiry=RESUMABLE_S)
        for text, qos in (("one", 1), ("two", 2)):
            again = client.expect_publish(topic, text, qos, dup=True, acknowledge=False)
            if again.packet_id != ids[text]:
                bench.fail("re-sent with another id", again, expected=f"id {ids[text]}")
            client.acknowledge(again)
        client.expect_pubrel(ids["three"])
        client.pubcomp(ids["three"])
        client.expect_nothing()


@statement("MQTT-3.10.4-4")
def mqtt_3_10_4_4(bench: Bench) -> None:
    """[MQTT-3.10.4-4] Every UNSUBSCRIBE is answered by one UNSUBACK."""
    client = bench.client()
    held, never = bench.topic("held"), bench.topic("never")
    client.subscribe(held)
    for filters in ([held], [held], [never], [held, never], [bench.topic("#")], [held] * 50):
        with bench.case(f"UNSUBSCRIBE {len(filters)} filters"):
            client.unsubscribe(filters)
            client.expect_nothing(Unsuback)
    with bench.case("three in one write"):
        packets = [wire.unsubscribe(number, [held], version=5) for number in (501, 502, 503)]
        client.send(b"".join(packets))
        found = sorted(client.expect(Unsuback).packet_id for _ in packets)
        if found != [501, 502, 503]:
            bench.fail(f"UNSUBACK for {found}", client.last, expected="one for each request")
        client.expect_nothing(Unsuback)


@statement("MQTT-3.10.4-5")
def mqtt_3_10_4_5(bench: Bench) -> None:
    """[MQTT-3.10.4-5] UNSUBACK has the packet identifier of its request, found or not."""
    client = bench.client()
    held, never = bench.topic("held"), bench.topic("never")
    for packet_id in (0xBEEF, 1, 0xFFFF, 0x0100):
        with bench.case(f"id 0x{packet_id:04X}"):
            unknown = client.unsubscribe(never, packet_id=packet_id)
            expect_codes(bench, unknown, [NONE_EXISTED])
            client.subscribe(held)
            expect_codes(bench, client.unsubscribe(held, packet_id=packet_id), [REMOVED])


@statement("MQTT-3.10.4-6")
def mqtt_3_10_4_6(bench: Bench) -> None:
    """[MQTT-3.10.4-6] Filters of one UNSUBSCRIBE are taken in turn, with one UNSUBACK for all."""
    one, two, never = (bench.topic(level) for level in ("one", "two", "never"))
    publisher = bench.client("publisher")
    client = bench.client("subscriber")
    client.subscribe([(one, 1), (two, 1)])
    unsuback = client.unsubscribe([one, never, two, one])
    expect_codes(bench, unsuback, [REMOVED, NONE_EXISTED, REMOVED, NONE_EXISTED])
    client.expect_nothing(Unsuback)
    for topic in (one, two):
        publisher.publish(topic, "no longer wanted", 1)
    bench.barrier(publisher, client)
    client.expect_nothing()


def answers_within(bench: Bench, property_id: int) -> None:
    """Every UNSUBACK (and DISCONNECT) to a client that takes little is small enough for it."""
    topic = bench.topic("t")
    requests = [[topic], [f"$share/g/{topic}"], [f"{topic}{number}" for number in range(13)]]
    requests += [["#/a"], ["a#"], ["$share//t"], ["$share/g"]]
    for filters in requests:
        client, limit = scenes.connect_with_small_packets(bench, "small", 20)
        client.send(wire.unsubscribe(7, filters, version=5))
        answer = scenes.answer_or_end(client)
        if answer is not None and not isinstance(answer, Unsuback | Disconnect):
            bench.fail("UNSUBSCRIBE is not answered", answer, expected="UNSUBACK")
        if answer is not None and len(answer.raw) > limit:
            what = tables.PROPERTY_NAMES[property_id] if property_id in answer.properties else ""
            bench.fail(f"{len(answer.raw)} bytes {what}", answer, expected=f"at most {limit}")
        client.drop()


@statement("MQTT-3.11.2-1")
def mqtt_3_11_2_1(bench: Bench) -> None:
    """[MQTT-3.11.2-1] No Reason String makes an UNSUBACK larger than the client takes."""
    answers_within(bench, tables.REASON_STRING)


@statement("MQTT-3.11.2-2")
def mqtt_3_11_2_2(bench: Bench) -> None:
    """[MQTT-3.11.2-2] No User Property makes an UNSUBACK larger than the client takes."""
    answers_within(bench, tables.USER_PROPERTY)


@statement("MQTT-3.11.3-1")
def mqtt_3_11_3_1(bench: Bench) -> None:
    """[MQTT-3.11.3-1] The reason codes of UNSUBACK are in the order of the filters."""
    one, two, never = (bench.topic(level) for level in ("one", "two", "never"))
    client = bench.client()
    for filters, codes in (
        ([one, never, two], [REMOVED, NONE_EXISTED, REMOVED]),
        ([never, one, two], [NONE_EXISTED, REMOVED, REMOVED]),
        ([two, one, never], [REMOVED, REMOVED, NONE_EXISTED]),
    ):
        client.subscribe([(one, 0), (two, 2)])
        expect_codes(bench, client.unsubscribe(filters), codes)


@statement("MQTT-3.11.3-2")
def mqtt_3_11_3_2(bench: Bench) -> None:
    """[MQTT-3.11.3-2] UNSUBACK has one reason code of its table for each filter."""
    client = bench.client()
    held = [bench.topic(f"{number}") for number in range(200)]
    for count in (1, 5, 200):
        client.subscribe([(topic_filter, 1) for topic_filter in held[:count]])
        for when in ("held", "not held"):
            with bench.case(f"{count} filters that are {when}"):
                unsuback = client.unsubscribe(held[:count])
                if len(unsuback.codes) != count:
                    expected = f"{count} of them"
                    bench.fail(f"{len(unsuback.codes)} reason codes", unsuback, expected=expected)
                if set(unsuback.codes) != {REMOVED if when == "held" else NONE_EXISTED}:
                    bench.fail("reason codes of UNSUBACK", unsuback, expected="00, then 11")
    for topic_filter in ("$share/g/" + held[0], "$SYS/#", "#/a", "a#", "$share//t", "$share/g"):
        with bench.case(f"UNSUBSCRIBE {topic_filter}"):
            client.send(wire.unsubscribe(client.next_id(), [topic_filter], version=5))
            answer = scenes.answer_or_end(client)
            if isinstance(answer, Unsuback):
                if len(answer.codes) != 1 or answer.codes[0] == REMOVED:
                    bench.fail("reason codes of UNSUBACK", answer, expected="one, not 00")
            elif client.eof or isinstance(answer, Disconnect):
                client.drop()
                client.connect()
            else:
                bench.fail("UNSUBSCRIBE is not answered", answer, expected="UNSUBACK")
