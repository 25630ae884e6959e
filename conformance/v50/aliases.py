"""MQTT 5.0, section 3.3.2.3.4: topic aliases, in both directions."""

from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    announced,
    come_back,
    expect_only,
    persistent,
    subscribed,
)
from conformance.packets import Publish

PROTOCOL_ERROR: Final = 0x82
ALIAS_INVALID: Final = 0x94
ALIASES_TRIED_MAX: Final = 300  # of those the broker takes; the highest ones are among them


def alias(number: int) -> list[wire.Property]:
    """Return the property block with this topic alias."""
    return [(tables.TOPIC_ALIAS, number)]


def alias_maximum(client: Client) -> int:
    """Return how many aliases the broker lets this client set."""
    return announced(client).properties.number(tables.TOPIC_ALIAS_MAXIMUM) or 0


def sender_with_aliases(bench: Bench, wanted: int = 1) -> Client:
    """Return a connected client that may set aliases; the check is not run if it may not."""
    sender = bench.client("sender")
    if alias_maximum(sender) < wanted:
        bench.not_run(f"the broker's Topic Alias Maximum is {alias_maximum(sender)}")
    return sender


@statement("MQTT-3.3.2-7")
def mqtt_3_3_2_7(bench: Bench) -> None:
    """[MQTT-3.3.2-7] Topic aliases end with the connection they were set on."""
    observer = subscribed(bench, "observer", bench.topic("#"), 1)
    sender = bench.client("sender", session_expiry=60)
    if alias_maximum(sender):
        sender.publish(bench.topic("t"), b"set", 1, properties=alias(1))
        sender.publish("", b"used", 1, properties=alias(1))
        expect_only(bench, sender, observer, [b"set", b"used"])
    else:
        bench.note("the broker takes no aliases from clients: only its own were looked at")
    for leave in (sender.drop, sender.disconnect):
        leave()
        sender.connect(clean=False, session_expiry=60)
        if alias_maximum(sender):
            sender.publish("", b"stale", 1, properties=alias(1), wait=False)
            sender.expect_close(PROTOCOL_ERROR)
            sender.drop()
            sender.connect(clean=False, session_expiry=60)
            sender.publish(bench.topic("t"), b"set", 1, properties=alias(1))
            observer.expect_publish(payload=b"set")
    expect_only(bench, bench.client("other"), observer, [])
    _deliveries_after_resume(bench)


def _deliveries_after_resume(bench: Bench) -> None:
    """What is sent again has a whole topic, or an alias that the new connection knows.

    The client resolves aliases by what it saw on the connection and fails on one it never saw.
    """
    properties = [(tables.TOPIC_ALIAS_MAXIMUM, 10)]
    subscriber = persistent(bench, "subscriber", bench.topic("s/#"), 1, properties=properties)
    sender = bench.client("other")
    topics = [bench.topic(f"s/{number}") for number in range(3)]
    for topic in topics * 3:
        sender.publish(topic, topic, 1)
    for _ in topics * 3:
        subscriber.expect_publish(acknowledge=False)
    subscriber.drop()
    for topic in topics:
        sender.publish(topic, topic, 1)
    for announce in (properties, []):
        come_back(subscriber, properties=announce)
        for _ in range(12):
            packet = subscriber.expect_publish(acknowledge=False)
            if packet.topic.encode() != packet.payload:
                bench.fail("on another topic", packet, expected=repr(packet.payload))


@statement("MQTT-3.3.2-8")
def mqtt_3_3_2_8(bench: Bench) -> None:
    """[MQTT-3.3.2-8] Nobody sends topic alias 0."""
    topic = bench.topic("t")
    observer = subscribed(
        bench, "observer", topic, 1, properties=[(tables.TOPIC_ALIAS_MAXIMUM, 20)]
    )
    for text in (topic, ""):
        for qos in (0, 1):
            with bench.case(f"alias 0 with topic {text!r} at QoS {qos}"):
                sender = bench.client("sender")
                sender.publish(text, b"zero", qos, properties=alias(0), wait=False)
                sender.expect_close(ALIAS_INVALID)
    sender = bench.client("sender")
    for number in range(30):
        sender.publish(topic, b"%d" % number, 1)
    for packet in expect_only(bench, sender, observer, [b"%d" % number for number in range(30)]):
        if packet.properties.number(tables.TOPIC_ALIAS) == 0:
            bench.fail("topic alias 0", packet, expected="1 and above")


@statement("MQTT-3.3.2-9")
def mqtt_3_3_2_9(bench: Bench) -> None:
    """[MQTT-3.3.2-9] An alias above the broker's Topic Alias Maximum ends the connection."""
    topic = bench.topic("t")
    observer = subscribed(bench, "observer", topic, 1)
    maximum = alias_maximum(bench.client("sender"))
    if maximum == 65_535:
        bench.not_run("the broker takes every alias there is")
    for number in {maximum + 1, 65_535}:
        for qos in (0, 1):
            with bench.case(f"alias {number} at QoS {qos}, the maximum is {maximum}"):
                sender = bench.client("sender")
                sender.publish(topic, b"above", qos, properties=alias(number), wait=False)
                sender.expect_close(ALIAS_INVALID)
    sender = bench.client("sender")
    wanted = []
    if maximum:
        sender.publish(topic, b"within", 1, properties=alias(maximum))
        wanted = [b"within"]
    expect_only(bench, sender, observer, wanted)


@statement("MQTT-3.3.2-11")
def mqtt_3_3_2_11(bench: Bench) -> None:
    """[MQTT-3.3.2-11] The broker sets no alias above the client's Topic Alias Maximum."""
    sender = bench.client("sender")
    topics = [bench.topic(f"t/{number}") for number in range(15)]
    for maximum in (None, 0, 1, 10, 65_535):
        with bench.case(f"Topic Alias Maximum {maximum}"):
            announce = [] if maximum is None else [(tables.TOPIC_ALIAS_MAXIMUM, maximum)]
            client = subscribed(bench, "client", bench.topic("t/#"), 1, properties=announce)
            for topic in topics * 2:
                sender.publish(topic, topic, 1)
            for packet in expect_only(bench, sender, client, [t.encode() for t in topics * 2]):
                number = packet.properties.number(tables.TOPIC_ALIAS)
                if number is not None and number > (maximum or 0):
                    bench.fail("alias above the maximum", packet, expected=f"at most {maximum}")
                expect_topic(bench, packet)
            client.disconnect()


def expect_topic(bench: Bench, packet: Publish) -> None:
    """The delivery is on the topic that its payload names."""
    if packet.topic.encode() != packet.payload:
        bench.fail("on another topic", packet, expected=f"topic {packet.payload!r}")


@statement("MQTT-3.3.2-12")
def mqtt_3_3_2_12(bench: Bench) -> None:
    """[MQTT-3.3.2-12] The broker takes every alias from 1 to the maximum it announced."""
    sender = sender_with_aliases(bench)
    maximum = alias_maximum(sender)
    numbers = list(range(1, min(maximum, ALIASES_TRIED_MAX) + 1))
    if numbers[-1] < maximum:
        numbers += range(max(numbers[-1] + 1, maximum - 20), maximum + 1)
        bench.note(f"{len(numbers)} of {maximum} aliases tried")
    topics = {number: bench.topic(f"t/{number}") for number in numbers}
    observer = subscribed(bench, "observer", bench.topic("#"), 1)

    def use(some: list[int], name: str) -> None:
        """Publish by alias only; each message comes on the topic the alias stands for."""
        with bench.case(name):
            for start in range(0, len(some), 50):
                for number in some[start : start + 50]:
                    topic = topics[number]
                    sender.publish("", topic, 1, properties=alias(number))
                    expect_topic(bench, observer.expect_publish(payload=topic))

    for number, topic in topics.items():
        sender.publish(topic, topic, 0, properties=alias(number))
        observer.expect_publish(topic=topic, payload=topic)
    use(numbers, "by alias")
    use(numbers[::-1], "by alias, again")
    for number in numbers[::2]:
        topics[number] = bench.topic(f"changed/{number}")
        sender.publish(topics[number], topics[number], 1, properties=alias(number))
        observer.expect_publish(topic=topics[number])
    use(numbers, "by alias after some were changed")
    expect_only(bench, sender, observer, [])


@statement("X-13")
def x_13(bench: Bench) -> None:
    """[X-13] PUBLISH: no topic or an unknown alias is reason 0x82, an impossible alias is 0x94."""
    topic = bench.topic("t")
    observer = subscribed(bench, "observer", bench.topic("#"), 1)
    maximum = alias_maximum(bench.client("sender"))
    cases: list[tuple[str, str, int | None, int]] = [
        ("no topic and no alias", "", None, PROTOCOL_ERROR),
        ("alias 0", topic, 0, ALIAS_INVALID),
        ("alias 0 and no topic", "", 0, ALIAS_INVALID),
    ]
    if maximum:
        cases.append(("no topic and an alias nobody has set", "", maximum, PROTOCOL_ERROR))
    if maximum < 65_535:
        cases.append(("alias above the maximum", topic, maximum + 1, ALIAS_INVALID))
        cases.append(("alias above the maximum, no topic", "", maximum + 1, ALIAS_INVALID))
    for name, text, number, reason in cases:
        for qos in (0, 1, 2):
            with bench.case(f"{name}, QoS {qos}"):
                sender = bench.client("sender")
                properties = [] if number is None else alias(number)
                sender.publish(text, b"wrong", qos, properties=properties, wait=False)
                sender.expect_close(reason)
    expect_only(bench, bench.client("sender"), observer, [])


@statement("X-14")
def x_14(bench: Bench) -> None:
    """[X-14] A PUBLISH with a topic and an alias in use gives the alias a new meaning."""
    sender = sender_with_aliases(bench)
    observer = subscribed(bench, "observer", bench.topic("#"), 2)
    for path in ("a", "b", "a/b", "a"):
        topic = bench.topic(path)
        sender.publish(topic, topic, 1, properties=alias(1))
        expect_topic(bench, observer.expect_publish())
        for qos in (0, 1, 2):
            sender.publish("", topic, qos, properties=alias(1))
            expect_topic(bench, observer.expect_publish(qos=qos))
    # The mapping holds even if its PUBLISH is one that had been sent before, and is not taken.
    topic = bench.topic("open")
    sender.publish(topic, topic, 2, packet_id=900, wait=False)
    sender.publish(topic, topic, 2, packet_id=900, dup=True, properties=alias(1), wait=False)
    sender.publish("", topic, 1, properties=alias(1))
    sender.pubrel(900)
    for packet in expect_only(bench, sender, observer, [topic.encode()] * 2):
        expect_topic(bench, packet)


@statement("X-15")
def x_15(bench: Bench) -> None:
    """[X-15] Aliases the client sets and aliases the broker sets are two separate lists."""
    sender = bench.client("other")
    both = bench.client("both", properties=[(tables.TOPIC_ALIAS_MAXIMUM, 3)])
    if not alias_maximum(both):
        bench.not_run("the broker's Topic Alias Maximum is 0")
    both.subscribe(bench.topic("in/#"), 1)
    observer = subscribed(bench, "observer", bench.topic("out/#"), 1)
    numbers = range(1, min(3, alias_maximum(both)) + 1)
    used = 0
    for round_ in range(3):
        for number in numbers:
            incoming, outgoing = bench.topic(f"in/{number}"), bench.topic(f"out/{number}")
            both.publish(outgoing if not round_ else "", outgoing, 1, properties=alias(number))
            expect_topic(bench, observer.expect_publish())
            sender.publish(incoming, incoming, 1)
            packet = both.expect_publish()
            expect_topic(bench, packet)
            used += tables.TOPIC_ALIAS in packet.properties
    if not used:
        bench.note("the broker sets no aliases of its own")
