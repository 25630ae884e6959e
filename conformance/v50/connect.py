"""MQTT 5.0, sections 3.1.0, 3.1.2.1 to 3.1.2.9 and 3.1.4: the form of CONNECT, and its refusal."""

import time
from typing import Any

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.deliveries import expect_only
from conformance.packets import Connack, Disconnect

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
UNSUPPORTED_VERSION = 0x84
USER_NAME, PASSWORD, WILL_RETAIN, WILL, CLEAN_START, RESERVED = 0x80, 0x40, 0x20, 0x04, 0x02, 0x01


def refused(bench: Bench, data: bytes, *codes: int) -> None:
    """Send `data` on a new connection: CONNECT is refused with one of `codes`."""
    client = bench.client("raw", connect=False)
    client.send(data)
    client.expect_refused(*codes)


@statement("MQTT-3.1.0-1")
def mqtt_3_1_0_1(bench: Bench) -> None:
    """[MQTT-3.1.0-1] A connection that begins with anything but CONNECT is closed unanswered."""
    topic = bench.topic("t")
    watcher = bench.client("watcher")
    watcher.subscribe(bench.topic("#"))
    later = wire.connect(bench.id("raw"), version=5)
    for what, data in (
        ("PINGREQ", wire.pingreq()),
        ("PUBLISH at QoS 0", wire.publish(topic, b"no", version=5, retain=True)),
        ("PUBLISH at QoS 1", wire.publish(topic, b"no", version=5, qos=1, packet_id=1)),
        ("SUBSCRIBE", wire.subscribe(1, [(topic, 0)], version=5)),
        ("UNSUBSCRIBE", wire.unsubscribe(1, [topic], version=5)),
        ("PUBACK", wire.puback(1)),
        ("PUBREL", wire.pubrel(1)),
        ("AUTH", wire.auth(0x18, [(tables.AUTH_METHOD, "any")])),
        ("DISCONNECT", wire.disconnect()),
        ("CONNACK", b"\x20\x03\x00\x00\x00"),
        ("type 0", b"\x00\x00"),
        ("PINGREQ, then CONNECT", wire.pingreq() + later),
    ):
        with bench.case(f"{what} first"):
            client = bench.client("raw", connect=False)
            client.send(data)
            client.expect_silent_close()
    expect_only(bench, bench.client("sender"), watcher, [])
    late = bench.client("late")
    late.subscribe(topic)
    late.expect_nothing()


@statement("MQTT-3.1.0-2")
def mqtt_3_1_0_2(bench: Bench) -> None:
    """[MQTT-3.1.0-2] A second CONNECT on a connection is a protocol error that ends it."""
    for what, name in (("the same identifier", "twice"), ("another identifier", "other")):
        with bench.case(f"a second CONNECT with {what}"):
            client = bench.client("twice")
            client.send(wire.connect(bench.id(name), version=5))
            client.expect_close(PROTOCOL_ERROR)


# How a server of 3.1 or 3.1.1 refuses a protocol it does not know. A broker that serves several
# versions cannot tell which of them a client would understand.
OLD_REFUSAL = b"\x20\x02\x00\x01"


def _expect_other_protocol(
    bench: Bench, data: bytes, *more: int, may_be_silent: bool = False
) -> None:
    """The CONNECT is refused as another protocol, in the form of 5.0 or an older one."""
    client = bench.client("raw", connect=False)
    client.send(data)
    answer = client.bytes_to_end()
    codes = {UNSUPPORTED_VERSION, *more} if bench.strict else set(range(0x80, 0xA0))
    is_connack = len(answer) >= 5 and answer[0] == 0x20 and answer[2] == 0 and answer[3] in codes
    if answer and answer != OLD_REFUSAL and not is_connack:
        bench.fail("the refusal", answer, expected="CONNACK 0x84, or only a close")
    if not answer and bench.strict and not may_be_silent:
        bench.fail("closed without a reason code", expected="CONNACK 0x84")


@statement("MQTT-3.1.2-1")
def mqtt_3_1_2_1(bench: Bench) -> None:
    """[MQTT-3.1.2-1] A CONNECT with another protocol name than MQTT is refused."""
    for name in ("mqtt", "MQTX", "MQIsdp", "MQTTX", "MQT", "", "Mqtt"):
        with bench.case(f"protocol name {name!r}"):
            data = wire.connect(bench.id("raw"), version=5, name=name)
            _expect_other_protocol(bench, data, MALFORMED)


@statement("MQTT-3.1.2-2")
def mqtt_3_1_2_2(bench: Bench) -> None:
    """[MQTT-3.1.2-2] A protocol version the broker does not serve is refused."""
    for level in (0, 1, 2, 6, 7, 127, 255):
        with bench.case(f"protocol version {level}"):
            data = wire.connect(bench.id("raw"), version=5, level=level)
            _expect_other_protocol(bench, data)


@statement("MQTT-3.1.2-3")
def mqtt_3_1_2_3(bench: Bench) -> None:
    """[MQTT-3.1.2-3] The reserved bit of the connect flags has to be 0."""
    for flags in (CLEAN_START | RESERVED, RESERVED):
        with bench.case(f"connect flags 0x{flags:02X}"):
            refused(bench, wire.connect(bench.id("raw"), version=5, flags=flags), MALFORMED)
    with bench.case("user name, password and the reserved bit"):
        flags = USER_NAME | PASSWORD | CLEAN_START | RESERVED
        data = wire.connect(bench.id("raw"), version=5, username="u", password="p", flags=flags)
        refused(bench, data, MALFORMED)


@statement("MQTT-3.1.2-11")
def mqtt_3_1_2_11(bench: Bench) -> None:
    """[MQTT-3.1.2-11] Without the will flag the will QoS is 0."""
    for qos in (1, 2):
        with bench.case(f"no will flag, will QoS {qos}"):
            data = wire.connect(bench.id("raw"), version=5, flags=CLEAN_START | qos << 3)
            refused(bench, data, MALFORMED, PROTOCOL_ERROR)


@statement("MQTT-3.1.2-12")
def mqtt_3_1_2_12(bench: Bench) -> None:
    """[MQTT-3.1.2-12] With a will its QoS is 0, 1 or 2, and 3 is malformed."""
    topic = bench.topic("will")
    for retain in (0, WILL_RETAIN):
        with bench.case(f"will QoS 3, flags 0x{WILL | CLEAN_START | 3 << 3 | retain:02X}"):
            data = wire.connect(
                bench.id("raw"),
                version=5,
                will=wire.Will(topic),
                flags=WILL | CLEAN_START | 3 << 3 | retain,
            )
            refused(bench, data, MALFORMED)
    for qos in (0, 1, 2):
        with bench.case(f"will QoS {qos}"):
            bench.client(f"w{qos}", will=wire.Will(topic, qos=qos)).disconnect()


@statement("MQTT-3.1.2-13")
def mqtt_3_1_2_13(bench: Bench) -> None:
    """[MQTT-3.1.2-13] Without the will flag the will retain bit is 0."""
    data = wire.connect(bench.id("raw"), version=5, flags=CLEAN_START | WILL_RETAIN)
    refused(bench, data, MALFORMED, PROTOCOL_ERROR)


@statement("MQTT-3.1.2-16")
def mqtt_3_1_2_16(bench: Bench) -> None:
    """[MQTT-3.1.2-16] Without the user name flag the payload has no user name."""
    extra = wire.string("user")
    with bench.case("no flags, a user name in the payload"):
        refused(bench, wire.connect(bench.id("raw"), version=5, trailing=extra), MALFORMED)
    with bench.case("password flag only, a user name and a password in the payload"):
        data = wire.connect(
            bench.id("raw"),
            version=5,
            username="user",
            password="word",
            flags=CLEAN_START | PASSWORD,
        )
        refused(bench, data, MALFORMED)


@statement("MQTT-3.1.2-17")
def mqtt_3_1_2_17(bench: Bench) -> None:
    """[MQTT-3.1.2-17] With the user name flag the payload has a user name."""
    with bench.case("user name flag, nothing after the client identifier"):
        data = wire.connect(bench.id("raw"), version=5, flags=CLEAN_START | USER_NAME)
        refused(bench, data, MALFORMED)
    with bench.case("both flags, one field"):
        data = wire.connect(
            bench.id("raw"), version=5, password="word", flags=CLEAN_START | USER_NAME | PASSWORD
        )
        refused(bench, data, MALFORMED)


@statement("MQTT-3.1.2-18")
def mqtt_3_1_2_18(bench: Bench) -> None:
    """[MQTT-3.1.2-18] Without the password flag the payload has no password."""
    with bench.case("user name flag only, a user name and a password in the payload"):
        data = wire.connect(
            bench.id("raw"),
            version=5,
            username="user",
            password="word",
            flags=CLEAN_START | USER_NAME,
        )
        refused(bench, data, MALFORMED)
    with bench.case("no flags, a password in the payload"):
        extra = wire.binary(b"\xff\x00")
        refused(bench, wire.connect(bench.id("raw"), version=5, trailing=extra), MALFORMED)


@statement("MQTT-3.1.2-19")
def mqtt_3_1_2_19(bench: Bench) -> None:
    """[MQTT-3.1.2-19] With the password flag the payload has a password, a user name need not."""
    with bench.case("password flag, nothing after the client identifier"):
        data = wire.connect(bench.id("raw"), version=5, flags=CLEAN_START | PASSWORD)
        refused(bench, data, MALFORMED)
    with bench.case("both flags, one field"):
        data = wire.connect(
            bench.id("raw"), version=5, username="user", flags=CLEAN_START | USER_NAME | PASSWORD
        )
        refused(bench, data, MALFORMED)
    with bench.case("a password without a user name"):
        # Legal by form. A broker may still find that this is not enough to let somebody in.
        client = bench.client("raw", connect=False)
        client.send(wire.connect(client.client_id, version=5, password="word"))
        answer = client.expect(Connack)
        if answer.code not in (0, 0x86, 0x87):
            bench.fail("refused for its form", answer, expected="0x00, 0x86 or 0x87")


def _whole(bench: Bench) -> bytes:
    """Return a CONNECT with every field there is."""
    return wire.connect(
        bench.id("raw"),
        version=5,
        will=wire.Will(bench.topic("w"), b"will", properties=[(tables.CONTENT_TYPE, "text")]),
        username="user",
        password="word",
        properties=[(tables.RECEIVE_MAXIMUM, 10), (tables.USER_PROPERTY, ("k", "v"))],
    )


@statement("MQTT-3.1.4-1")
def mqtt_3_1_4_1(bench: Bench) -> None:
    """[MQTT-3.1.4-1] A CONNECT that is not built as section 3.1 says is refused."""
    whole = _whole(bench)
    assert whole[1] < 0x80  # one byte of length, so that the body begins at 2
    body = whole[2:]
    for cut in range(len(body)):
        with bench.case(f"CONNECT cut to {cut} of {len(body)} bytes"):
            data = wire.packet(0x10, body[:cut])
            if cut < len(wire.string("MQTT")) + 1:
                _expect_other_protocol(bench, data, MALFORMED, may_be_silent=True)
            else:
                refused(bench, data, MALFORMED, PROTOCOL_ERROR)
    for extra in (b"\x00", b"\x00\x00", wire.string("more"), bytes(100)):
        with bench.case(f"CONNECT with {len(extra)} bytes after its end"):
            refused(bench, wire.packet(0x10, body + extra), MALFORMED, PROTOCOL_ERROR)
    own = bench.id("raw")
    longer = (len(own) + 1).to_bytes(2, "big") + own.encode()
    shorter = (len(own) - 1).to_bytes(2, "big") + own.encode()
    limit = wire.varint(tables.RECEIVE_MAXIMUM) + b"\x00\x0a"
    blocks: tuple[tuple[str, wire.Block], ...] = (
        ("property length that is too large", b"\x7f" + limit),
        ("property length that ends in a property", b"\x02" + limit),
        ("property without a value", [b"\x11"]),
        ("unknown property", [b"\x7f\x00"]),
        ("property of another packet", [(tables.TOPIC_ALIAS, 1)]),
        ("repeated property", [(tables.RECEIVE_MAXIMUM, 9)] * 2),
    )
    cases = [(what, wire.connect(own, version=5, properties=block)) for what, block in blocks]
    cases.append(("identifier that runs past the end", wire.connect(version=5, payload=longer)))
    cases.append(("identifier that ends early", wire.connect(version=5, payload=shorter)))
    for what, data in cases:
        with bench.case(f"CONNECT with {what}"):
            refused(bench, data, MALFORMED, PROTOCOL_ERROR)


@statement("MQTT-3.1.4-5")
def mqtt_3_1_4_5(bench: Bench) -> None:
    """[MQTT-3.1.4-5] A good CONNECT is answered by one CONNACK with reason 0x00."""
    will = wire.Will(bench.topic("will"))
    block: list[wire.Property] = [
        (tables.SESSION_EXPIRY, 0),
        (tables.RECEIVE_MAXIMUM, 1),
        (tables.MAXIMUM_PACKET_SIZE, 0xFFFFFFFF),
        (tables.TOPIC_ALIAS_MAXIMUM, 65_535),
        (tables.REQUEST_RESPONSE_INFO, 1),
        (tables.REQUEST_PROBLEM_INFO, 0),
        (tables.USER_PROPERTY, ("", "")),
        (tables.USER_PROPERTY, ("k", "v")),
        (tables.USER_PROPERTY, ("k", "v")),
    ]
    variants: tuple[tuple[str, dict[str, Any]], ...] = (
        ("nothing but an identifier", {}),
        ("Clean Start 0", {"clean": False}),
        ("keep alive 0", {"keep_alive": 0}),
        ("keep alive 65535", {"keep_alive": 65_535}),
        ("a will", {"will": will}),
        ("every property", {"properties": block}),
        ("every property in another order", {"properties": block[::-1]}),
    )
    for what, fields in variants:
        with bench.case(f"CONNECT with {what}"):
            client = bench.client("a", connect=False)
            client.send(wire.connect(client.client_id, version=5, **fields))
            client.expect_connack()
            rest = client.drain()
            if rest:
                bench.fail("more than a CONNACK", rest[0], expected="nothing more")
            client.disconnect()
    with bench.case("CONNECT that comes byte by byte"):
        client = bench.client("a", connect=False)
        for byte in wire.connect(bench.id("a"), version=5, properties=block):
            client.send(bytes([byte]))
            time.sleep(0.001)
        client.expect_connack()


@statement("MQTT-3.1.4-6")
def mqtt_3_1_4_6(bench: Bench) -> None:
    """[MQTT-3.1.4-6] What follows a refused CONNECT has no effect."""
    topic = bench.topic("t")
    watcher = bench.client("watcher")
    watcher.subscribe(bench.topic("#"))
    own = bench.id("raw")
    rest = (
        wire.publish(topic, b"0", version=5, retain=True)
        + wire.publish(topic, b"1", version=5, qos=1, packet_id=1, retain=True)
        + wire.subscribe(2, [(topic, 0)], version=5)
        + wire.pingreq()
    )
    for what, connect in (
        ("of version 6", wire.connect(own, version=5, level=6)),
        ("with the reserved flag", wire.connect(own, version=5, flags=0x03)),
        ("with Receive Maximum 0", wire.connect(own, version=5, properties=[(0x21, 0)])),
        ("with Receive Maximum twice", wire.connect(own, version=5, properties=[(0x21, 9)] * 2)),
        ("cut short", wire.packet(0x10, wire.connect(own, version=5)[2:-1])),
        ("with an unknown method", wire.connect(own, version=5, properties=[(0x15, "none")])),
    ):
        with bench.case(f"CONNECT {what}, and more behind it"):
            client = bench.client("raw", connect=False)
            client.send(connect + rest)
            client.expect_refused()
    expect_only(bench, bench.client("sender"), watcher, [])
    late = bench.client("late")
    late.subscribe(topic)
    late.expect_nothing()


@statement("X-01", needs=("configure",))
def x_01(bench: Bench) -> None:
    """[X-01] A connection that brings no CONNECT in reasonable time is closed."""
    bench.start(connect_timeout=1)
    for what, data in (
        ("nothing", b""),
        ("half a CONNECT", wire.connect(bench.id("raw"), version=5)[:9]),
    ):
        with bench.case(f"{what} is sent"):
            client = bench.client("raw", connect=False)
            client.send(data)
            began = time.monotonic()
            packet = client.expect_close(timeout=6.0)
            if packet is not None and isinstance(packet, Disconnect):
                bench.fail("DISCONNECT before CONNACK", packet, expected="a close")
            if time.monotonic() - began < 0.5:
                bench.fail("closed before the time was over", expected="a close after 1 s")
