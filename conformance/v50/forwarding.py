"""MQTT 5.0, section 3.3.2.3: what of a PUBLISH the broker passes on as it is."""

from collections.abc import Sequence
from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    announced,
    answers,
    come_back,
    expect_only,
    forwarded,
    own_broker,
    packet_size_maximum,
    persistent,
    restart,
    subscribed,
)
from conformance.packets import Puback, Pubcomp, Publish, Pubrec
from conformance.v50.publish import WILDCARD_REFUSALS, check_parting

MALFORMED: Final = 0x81
FORMAT_INVALID: Final = 0x99
NOT_UTF8: Final = (b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"a\x00b", b"\xff")
# Strings a broker could be tempted to change: spaces, case, characters it might normalise.
STRINGS: Final = (
    "",
    "plain",
    " Spaces  around ",
    "e\u0301 \u00e9 \ufeff",
    "\U0001f680/\u4e2d\u6587/$share/x",
    "x" * 3000,
)

Variant = list[wire.Property]


def copies(
    bench: Bench, variants: Sequence[Variant], *, will: bool = False, restarts: bool = False
) -> list[tuple[str, int, Publish]]:
    """Publish one message per variant; return (to whom, number of the variant, delivery).

    To a subscriber that is there, to one that comes back, and to one that finds the message
    retained if the broker has that. `will`: the same messages as wills, too. `restarts`: over a
    restart of the broker of the check's own.
    """
    sender = bench.client("sender")
    retains = announced(sender).properties.number(tables.RETAIN_AVAILABLE) != 0
    live = subscribed(bench, "live", bench.topic("#"), 1)
    away = persistent(bench, "away", bench.topic("p/#"), 1)
    away.disconnect()
    topics = [bench.topic(f"p/{number}") for number in range(len(variants))]
    payload = "payload"
    for topic, variant in zip(topics, variants, strict=True):
        sender.publish(topic, payload, 1, retain=retains, properties=variant)
    found = _collect("there", live, topics)
    if will:
        wills = [bench.topic(f"w/{number}") for number in range(len(variants))]
        for topic, variant in zip(wills, variants, strict=True):
            dying = bench.client("dying", will=wire.Will(topic, payload, 1, properties=variant))
            dying.drop()
            found += _collect("there (will)", live, [topic], of=wills)
    if restarts:
        restart(bench.broker)
    come_back(away)
    found += _collect("back after its absence", away, topics)
    if retains:
        late = subscribed(bench, "late", bench.topic("p/#"), 1)
        found += _collect("new (retained)", late, topics)
    for who, number, packet in found:
        if packet.payload != payload.encode():
            bench.fail(f"subscriber {who}: variant {number}: another payload", packet)
    return found


def _collect(
    who: str, client: Client, topics: Sequence[str], *, of: Sequence[str] = ()
) -> list[tuple[str, int, Publish]]:
    """Take one delivery for each of `topics`."""
    numbers = {topic: number for number, topic in enumerate(of or topics)}
    found = []
    for _ in topics:
        packet = client.expect_publish()
        if packet.topic not in numbers:
            client.fail(f"a second delivery on {packet.topic}", expected="one for each message")
        found.append((who, numbers.pop(packet.topic), packet))
    return found


def expect_unaltered(
    bench: Bench, identifier: int, variants: Sequence[Variant], *, will: bool = False
) -> None:
    """Each subscriber gets the property `identifier` of each message as it was published."""
    for who, number, packet in copies(bench, variants, will=will):
        wanted = [value for key, value in _pairs(variants[number]) if key == identifier]
        got = packet.properties.all(identifier)
        if got != wanted:
            name = tables.PROPERTY_NAMES[identifier]
            bench.fail(
                f"subscriber {who}: {name} {got!r:.200}", packet, expected=f"{wanted!r:.200}"
            )


def one_each(identifier: int, values: Sequence[wire.Value]) -> list[Variant]:
    """Return a variant for each value of a property, and one without it."""
    variants: list[Variant] = [[]]
    for value in values:
        variants.append([(identifier, value)])
    return variants


def _pairs(variant: Variant) -> list[tuple[int, object]]:
    return [item for item in variant if not isinstance(item, bytes)]


def expect_malformed(bench: Bench, identifier: int) -> None:
    """A string property that is not UTF-8 ends the connection, and the message goes nowhere."""
    topic = bench.topic("t")
    observer = subscribed(bench, "observer", topic, 2)
    for bad in NOT_UTF8:
        for qos in (0, 1, 2):
            with bench.case(f"bytes {bad.hex(' ')} at QoS {qos}"):
                sender = bench.client("sender")
                sender.publish(topic, b"bad", qos, properties=[(identifier, bad)], wait=False)
                sender.expect_close(MALFORMED)
    expect_only(bench, bench.client("sender"), observer, [])


@statement("MQTT-3.3.2-4")
def mqtt_3_3_2_4(bench: Bench) -> None:
    """[MQTT-3.3.2-4] Payload Format Indicator reaches all subscribers as it was published."""
    key = tables.PAYLOAD_FORMAT
    expect_unaltered(bench, key, [[], [(key, 0)], [(key, 1)]])


@statement("MQTT-3.3.2-13")
def mqtt_3_3_2_13(bench: Bench) -> None:
    """[MQTT-3.3.2-13] A Response Topic that is not UTF-8 ends the connection."""
    expect_malformed(bench, tables.RESPONSE_TOPIC)


@statement("MQTT-3.3.2-14")
def mqtt_3_3_2_14(bench: Bench) -> None:
    """[MQTT-3.3.2-14] A Response Topic with a wildcard in it is refused."""
    topic = bench.topic("t")
    observer = subscribed(bench, "observer", topic, 2)
    for text in ("a/#", "a/+", "#", "+/a", "a/+/b", "a+b", "a#"):
        for qos in (0, 1, 2):
            with bench.case(f"Response Topic {text!r} at QoS {qos}"):
                sender = bench.client("sender")
                properties: Variant = [(tables.RESPONSE_TOPIC, text)]
                sender.publish(topic, b"bad", qos, properties=properties, wait=False)
                packets, is_open = answers(sender, *((Puback, Pubrec) if qos else ()))
                refused = [p.reason >= 0x80 for p in packets if isinstance(p, Puback | Pubrec)]
                if not is_open:
                    check_parting(bench, packets, WILDCARD_REFUSALS)
                elif refused != [True]:
                    # It was taken. At QoS 0 it may be dropped, but it must not be sent on.
                    bench.barrier(sender, observer)
                    sent_on = [p for p in observer.drain() if isinstance(p, Publish)]
                    if sent_on or qos:
                        packet = (sent_on or packets)[0]
                        bench.fail("it is taken", packet, expected="a refusal, or a close")
    expect_only(bench, bench.client("sender"), observer, [])


@statement("MQTT-3.3.2-15")
def mqtt_3_3_2_15(bench: Bench) -> None:
    """[MQTT-3.3.2-15] Response Topic reaches all subscribers as it was published."""
    key = tables.RESPONSE_TOPIC
    texts = [text for text in STRINGS if text]
    expect_unaltered(bench, key, one_each(key, texts), will=True)


@statement("MQTT-3.3.2-16")
def mqtt_3_3_2_16(bench: Bench) -> None:
    """[MQTT-3.3.2-16] Correlation Data reaches all subscribers as it was published."""
    key = tables.CORRELATION_DATA
    values = [b"", b"\x00", b"a", b"\xff\x00\xc3\x28\x00", bytes(range(256)) * 4]
    if packet_size_maximum(bench.client("sender")) > 66_000:
        values.append(bytes(range(256)) * 255 + bytes(255))
    else:
        bench.note("65535 bytes do not fit into the broker's Maximum Packet Size")
    expect_unaltered(bench, key, one_each(key, values))


USER: Final[Variant] = [
    (tables.USER_PROPERTY, pair)
    for pair in (
        ("b", "1"),
        ("a", "2"),
        ("", ""),
        ("a", "1"),
        ("", "value without a name"),
        ("name without a value", ""),
        ("a", "2"),
        ("A", "2"),
        ("z", "e\u0301"),
        ("\u00e9", " "),
        ("c", "x" * 1000),
        *((f"n{number % 3}", f"{number}") for number in range(9)),
    )
]


@statement("MQTT-3.3.2-17")
def mqtt_3_3_2_17(bench: Bench) -> None:
    """[MQTT-3.3.2-17] Every User Property reaches all subscribers, none altered or left out."""
    variants = [[], USER[:1], USER]
    for who, number, packet in copies(bench, variants):
        wanted = sorted(value for _, value in _pairs(variants[number]))  # type: ignore[type-var]
        if sorted(packet.properties.user()) != wanted:
            bench.fail(f"subscriber {who}: other User Properties", packet, expected=f"{wanted}")


@statement("MQTT-3.3.2-18", wants=("restart",))
def mqtt_3_3_2_18(bench: Bench) -> None:
    """[MQTT-3.3.2-18] User Properties keep their order, over a restart of the broker too."""
    between: Variant = [USER[0], (tables.CONTENT_TYPE, "t"), USER[1], (tables.PAYLOAD_FORMAT, 1)]
    variants: list[Variant] = [USER, USER[::-1], between]
    own = own_broker(bench)
    for who, number, packet in copies(bench, variants, restarts=own is not None):
        wanted = [v for key, v in _pairs(variants[number]) if key == tables.USER_PROPERTY]
        if packet.properties.user() != wanted:
            bench.fail(f"subscriber {who}: not in their order", packet, expected=f"{wanted}")


@statement("MQTT-3.3.2-19")
def mqtt_3_3_2_19(bench: Bench) -> None:
    """[MQTT-3.3.2-19] A Content Type that is not UTF-8 ends the connection."""
    expect_malformed(bench, tables.CONTENT_TYPE)


@statement("MQTT-3.3.2-20")
def mqtt_3_3_2_20(bench: Bench) -> None:
    """[MQTT-3.3.2-20] Content Type reaches all subscribers as it was published."""
    key = tables.CONTENT_TYPE
    expect_unaltered(bench, key, one_each(key, STRINGS))


@statement("X-44")
def x_44(bench: Bench) -> None:
    """[X-44] A payload that is said to be UTF-8 and is not is refused with 0x99 or passed on."""
    properties: Variant = [(tables.PAYLOAD_FORMAT, 1)]
    topic = bench.topic("t")
    choices = set()
    for qos in (0, 1, 2):
        observer = subscribed(bench, "observer", topic, 2)
        sender = bench.client("sender")
        payload = b"at QoS %d: \xc3\x28" % qos
        packet_id = sender.next_id() if qos else None
        sender.publish(topic, payload, qos, packet_id=packet_id, properties=properties, wait=False)
        packets, is_open = answers(sender, *((Puback, Pubrec) if qos else ()))
        reasons = [p.reason for p in packets if isinstance(p, Puback | Pubrec)]
        if not is_open:
            check_parting(bench, packets, (FORMAT_INVALID,))
        elif any(reason not in (0, 0x10, FORMAT_INVALID) for reason in reasons):
            bench.fail("refused for another reason", packets[0], expected="0x99, or no refusal")
        elif qos == 2 and reasons != [FORMAT_INVALID] and packet_id is not None:
            sender.pubrel(packet_id)
            sender.expect(Pubcomp, packet_id=packet_id)
        is_refused = not is_open or FORMAT_INVALID in reasons
        choices.add("refused" if is_refused else "passed on")
        wanted = [] if is_refused else [payload]
        for packet in expect_only(bench, bench.client("other"), observer, wanted):
            if packet.properties.number(tables.PAYLOAD_FORMAT) != 1:
                bench.fail("the indicator is lost", packet, expected="1")
    bench.note(
        f"a payload that is not UTF-8 although it should be is {' or '.join(sorted(choices))}"
    )


@statement("X-45")
def x_45(bench: Bench) -> None:
    """[X-45] Properties stop at receivers of 3.1.1, and publishers of 3.1.1 get none added."""
    topic = bench.topic("t")
    new = subscribed(bench, "new", topic, 2)
    old = bench.client("old", version=4)
    old.subscribe(topic, 2)
    sender = bench.client("sender5")
    old_sender = bench.client("sender4", version=4)
    full: Variant = [
        (tables.PAYLOAD_FORMAT, 1),
        (tables.MESSAGE_EXPIRY, 1000),
        (tables.CONTENT_TYPE, "type"),
        (tables.RESPONSE_TOPIC, "answer"),
        (tables.CORRELATION_DATA, b"data"),
        *USER,
    ]
    for qos in (0, 1, 2):
        payload = b"from 5 at %d" % qos
        sender.publish(topic, payload, qos, properties=full)
        # Everything after the topic (and the id) is payload to a client of 3.1.1.
        old.expect_publish(topic=topic, payload=payload, qos=qos)
        packet = new.expect_publish(payload=payload, qos=qos)
        if len(forwarded(packet.properties)) != len(full):
            bench.fail("properties got lost between clients of 5.0", packet)
        payload = b"from 4 at %d" % qos
        old_sender.publish(topic, payload, qos)
        old.expect_publish(topic=topic, payload=payload, qos=qos)
        packet = new.expect_publish(topic=topic, payload=payload, qos=qos)
        if forwarded(packet.properties):
            bench.fail("properties nobody has sent", packet, expected="none")
