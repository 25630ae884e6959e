"""MQTT 5.0, section 1.5: strings and variable byte integers."""

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.deliveries import expect_only
from conformance.packets import Pingresp

MALFORMED = 0x81
# A sequence cut short, a surrogate of each half, an overlong U+0000, one above U+10FFFF, and a
# first byte that has nothing after it.
NOT_UTF8 = (
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xc0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
)
BOM = "\ufeff"


def packets_with_string(bench: Bench, bad: bytes) -> list[tuple[str, bytes]]:
    """Return (what, packet) for each kind of string a connected client may send, with `bad` in it.

    The subscriber of `bench.topic("#")` would see what got through.
    """
    topic = bench.topic("good")
    text = b"x" + bad + b"y"
    inside = topic.encode() + b"/" + text

    def publish(*properties: wire.Property) -> bytes:
        return wire.publish(topic, b"no", version=5, properties=properties)

    user = tables.USER_PROPERTY
    return [
        ("topic of PUBLISH", wire.publish(inside, b"no", version=5)),
        ("Response Topic", publish((tables.RESPONSE_TOPIC, text))),
        ("Content Type", publish((tables.CONTENT_TYPE, text))),
        ("name of a User Property of PUBLISH", publish((user, (text, "v")))),
        ("value of a User Property of PUBLISH", publish((user, ("k", text)))),
        ("filter of SUBSCRIBE", wire.subscribe(7, [(inside, 0)], version=5)),
        ("filter of UNSUBSCRIBE", wire.unsubscribe(7, [inside], version=5)),
    ]


def expect_all_malformed(bench: Bench, label: str, packets: list[tuple[str, bytes]]) -> None:
    """Send each packet on a connection of its own: all are closed, none reaches a subscriber."""
    watcher = bench.client("watcher")
    watcher.subscribe(bench.topic("#"))
    for what, data in packets:
        with bench.case(f"{what} with {label}"):
            client = bench.client("sender")
            client.send(data)
            client.expect_close(MALFORMED)
    expect_only(bench, bench.client("sender"), watcher, [])


@statement("MQTT-1.5.4-1")
def mqtt_1_5_4_1(bench: Bench) -> None:
    """[MQTT-1.5.4-1] A string that is not well-formed UTF-8 makes the packet malformed."""
    for bad in NOT_UTF8:
        label = "bytes " + bad.hex(" ")
        with bench.case(f"client identifier with {label}"):
            client = bench.client("raw", connect=False)
            client.send(wire.connect(b"a" + bad, version=5))
            client.expect_refused(MALFORMED, 0x85)
        with bench.case(f"User Property of CONNECT with {label}"):
            client = bench.client("raw", connect=False)
            pair = (tables.USER_PROPERTY, ("k", b"v" + bad))
            client.send(wire.connect(client.client_id, version=5, properties=[pair]))
            client.expect_refused(MALFORMED)
        expect_all_malformed(bench, label, packets_with_string(bench, bad))


@statement("MQTT-1.5.4-2")
def mqtt_1_5_4_2(bench: Bench) -> None:
    """[MQTT-1.5.4-2] A string with U+0000 in it makes the packet malformed."""
    user = tables.USER_PROPERTY
    own = bench.id("raw")
    for what, connect in (
        ("client identifier", wire.connect(b"a\0b", version=5)),
        ("user name", wire.connect(own, version=5, username="a\0b", password="x")),
        (
            "name of a User Property of CONNECT",
            wire.connect(own, version=5, properties=[(user, ("a\0b", "v"))]),
        ),
        (
            "value of a User Property of CONNECT",
            wire.connect(own, version=5, properties=[(user, ("k", "a\0b"))]),
        ),
        (
            "will topic",
            wire.connect(own, version=5, will=wire.Will(bench.topic("will") + "/a\0b")),
        ),
    ):
        with bench.case(f"{what} with U+0000"):
            client = bench.client("raw", connect=False)
            client.send(connect)
            codes = (MALFORMED, 0x85) if what == "client identifier" else (MALFORMED,)
            client.expect_refused(*codes)
    expect_all_malformed(bench, "U+0000", packets_with_string(bench, b"\0"))


@statement("MQTT-1.5.4-3")
def mqtt_1_5_4_3(bench: Bench) -> None:
    """[MQTT-1.5.4-3] U+FEFF is a character like any other, at the start of a string too."""
    plain = f"x/{bench.unique}"
    marked = BOM + plain
    every = bench.client("every")
    every.subscribe(f"+/{bench.unique}")
    exact = bench.client("exact")
    exact.subscribe(marked)
    without = bench.client("without")
    without.subscribe([(plain, 0), (f"{bench.unique}/a/b", 0)])
    inner = bench.client("inner")
    inner.subscribe(f"{bench.unique}/a{BOM}/b")
    sender = bench.client("sender")
    properties: list[wire.Property] = [
        (tables.CONTENT_TYPE, BOM + "type"),
        (tables.RESPONSE_TOPIC, BOM + "answer"),
        (tables.USER_PROPERTY, (BOM, BOM)),
        (tables.USER_PROPERTY, (BOM + "k", "v" + BOM)),
    ]
    sender.publish(marked, b"1", properties=properties)
    for subscriber in (every, exact):
        got = subscriber.expect_publish(topic=marked, payload=b"1")
        if sorted(got.properties, key=repr) != sorted(properties, key=repr):
            bench.fail("other strings than were sent", got, expected=repr(properties))
    sender.publish(f"{bench.unique}/a{BOM}/b", b"2")
    inner.expect_publish(topic=f"{bench.unique}/a{BOM}/b", payload=b"2")
    expect_only(bench, sender, without, [])


# Remaining Lengths on both sides of every change of width of the length field, but for the last
# one, which would take 256 MiB.
BORDERS = (127, 128, 16_383, 16_384, 2_097_151, 2_097_152)
TOO_WIDE = b"\x80\x80\x80\x80\x01"


def _border_sizes(bench: Bench) -> None:
    """Send PUBLISH of every border size through the broker, and property blocks likewise."""
    topic = bench.topic("t")
    subscriber = bench.client("subscriber")
    subscriber.subscribe(topic)
    sender = bench.client("sender")
    assert sender.connack is not None
    limit = sender.connack.properties.number(tables.MAXIMUM_PACKET_SIZE) or wire.VARINT_MAX
    for remaining in BORDERS:
        if remaining + 5 > limit:
            bench.note(
                f"no packet of {remaining} bytes: the broker's Maximum Packet Size is {limit}"
            )
            continue
        with bench.case(f"PUBLISH with Remaining Length {remaining}"):
            payload = b"x" * (remaining - len(wire.string(topic)) - 1)
            sender.publish(topic, payload)
            subscriber.expect_publish(topic=topic, payload=payload)
    for length in BORDERS[:4]:
        with bench.case(f"PUBLISH with Property Length {length}"):
            value = "v" * (length - 5 - 1)
            user = (tables.USER_PROPERTY, ("k", value))
            sender.publish(topic, b"p", properties=[user])
            got = subscriber.expect_publish(topic=topic, payload=b"p")
            if got.properties.user() != [("k", value)]:
                bench.fail("the User Property is not the one that was sent", packet=got.raw)


def _too_wide(bench: Bench) -> None:
    """A length of five bytes is malformed wherever it stands."""
    topic = bench.topic("t")
    subscription_id = wire.varint(tables.SUBSCRIPTION_ID) + TOO_WIDE
    for what, data in (
        ("Remaining Length of PUBLISH", b"\x30" + TOO_WIDE),
        ("Remaining Length of PINGREQ", b"\xc0\x80\x80\x80\x80\x00"),
        ("Property Length of PUBLISH", wire.publish(topic, version=5, properties=TOO_WIDE)),
        (
            "Property Length of SUBSCRIBE",
            wire.subscribe(7, [(topic, 0)], version=5, properties=TOO_WIDE),
        ),
        (
            "Subscription Identifier",
            wire.subscribe(7, [(topic, 0)], version=5, properties=[subscription_id]),
        ),
    ):
        with bench.case(f"{what} of five bytes"):
            client = bench.client("sender")
            client.send(data)
            client.expect_close(MALFORMED)
    with bench.case("Remaining Length of CONNECT of five bytes"):
        client = bench.client("raw", connect=False)
        client.send(b"\x10" + TOO_WIDE)
        client.expect_refused(MALFORMED, silent=True)  # its version cannot be known
    with bench.case("Property Length of CONNECT of five bytes"):
        client = bench.client("raw", connect=False)
        client.send(wire.connect(client.client_id, version=5, properties=TOO_WIDE))
        client.expect_refused(MALFORMED)


def _padded(bench: Bench) -> None:
    """A length longer than it has to be: either malformed, or understood for what it says."""
    topic = bench.topic("padded")
    subscriber = bench.client("subscriber")
    subscriber.subscribe(topic)
    for width in (2, 3, 4):
        with bench.case(f"PUBLISH with its Remaining Length padded to {width} bytes"):
            body = wire.string(topic) + wire.props() + b"padded"
            data = wire.packet(0x30, body, wire.varint(len(body), width))
            client = bench.client("sender")
            client.send(data + wire.pingreq())
            if isinstance(client.peek(), Pingresp):
                subscriber.expect_publish(topic=topic, payload=b"padded")
            else:
                client.expect_close(MALFORMED)


@statement("MQTT-1.5.5-1")
def mqtt_1_5_5_1(bench: Bench) -> None:
    """[MQTT-1.5.5-1] Variable byte integers take as few bytes as possible, and never five."""
    _border_sizes(bench)
    _too_wide(bench)
    _padded(bench)


@statement("MQTT-1.5.7-1")
def mqtt_1_5_7_1(bench: Bench) -> None:
    """[MQTT-1.5.7-1] Name and value of a string pair obey the rules for strings."""
    topic = bench.topic("good")
    for bad in (*NOT_UTF8, b"\0"):
        for half, pair in (("name", (b"k" + bad, "v")), ("value", ("k", b"v" + bad))):
            block = [(tables.USER_PROPERTY, pair)]
            label = f"the {half} of a User Property having bytes {bad.hex(' ')}"
            will = wire.Will(topic, properties=block)
            for what, connect in (
                ("CONNECT", wire.connect(bench.id("raw"), version=5, properties=block)),
                ("CONNECT (will)", wire.connect(bench.id("raw"), version=5, will=will)),
            ):
                with bench.case(f"{what} with {label}"):
                    client = bench.client("raw", connect=False)
                    client.send(connect)
                    client.expect_refused(MALFORMED)
            packets = [
                ("PUBLISH", wire.publish(topic, version=5, properties=block)),
                ("SUBSCRIBE", wire.subscribe(7, [(topic, 0)], version=5, properties=block)),
                ("UNSUBSCRIBE", wire.unsubscribe(7, [topic], version=5, properties=block)),
            ]
            expect_all_malformed(bench, label, packets)
