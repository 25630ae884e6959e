"""MQTT 5.0, section 4.13: what ends a connection, and what it does to everybody else."""

import random
from typing import Any, Final

from conformance import scenes, tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.packets import Connack, Disconnect
from conformance.wire import Will

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
EITHER: Final = (MALFORMED, PROTOCOL_ERROR)
ALIAS_INVALID: Final = 0x94
CLIENT_REASONS: Final = (0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A))

Case = tuple[str, bytes, tuple[int, ...]]


def malformed_packets(topic: str) -> list[Case]:
    """Return (what, packet, reasons) of packets that cannot be parsed."""

    def publish(**wrong: Any) -> bytes:
        return wire.publish(topic, b"x", version=5, **wrong)

    def subscribe(**wrong: Any) -> bytes:
        return wire.subscribe(7, [(topic, 0)], version=5, **wrong)

    cases = {
        "packet type 0": b"\x00\x00",
        "PUBACK with flags": b"\x41\x02\x00\x01",
        "PUBREC with flags": b"\x58\x02\x00\x01",
        "PUBREL without its flags": b"\x60\x02\x00\x01",
        "PUBCOMP with flags": b"\x72\x02\x00\x01",
        "SUBSCRIBE without its flags": subscribe(first_byte=0x80),
        "UNSUBSCRIBE without its flags": wire.unsubscribe(7, [topic], version=5, first_byte=0xA0),
        "PINGREQ with flags": b"\xc1\x00",
        "DISCONNECT with flags": b"\xe2\x00",
        "Remaining Length of five bytes": b"\x30\xff\xff\xff\xff\x01",
        "PUBLISH of QoS 3": publish(first_byte=0x36, packet_id=7),
        "PUBLISH without a topic": b"\x30\x00",
        "PUBLISH whose topic runs past the end": b"\x30\x05\x00\x10abc",
        "PUBLISH that ends in its packet identifier": b"\x32\x04\x00\x01a\x00",
        "PUBLISH without a property length": b"\x30\x03\x00\x01a",
        "properties that run past the end": publish(properties=b"\x7f"),
        "Property Length of five bytes": publish(properties=b"\xff\xff\xff\xff\x01"),
        "a property that runs past its block": publish(properties=b"\x02\x02\x00"),
        "an unknown property": publish(properties=b"\x02\x7e\x00"),
        "a property of another packet": publish(properties=[(tables.SESSION_EXPIRY, 1)]),
        "a topic that is not UTF-8": wire.publish(b"\xc3\x28", version=5),
        "a topic with U+0000": wire.publish(b"a\0b", version=5),
        "a User Property that is not UTF-8": publish(
            properties=[(tables.USER_PROPERTY, (b"\xff", "v"))]
        ),
        "PUBACK of one byte": b"\x40\x01\x00",
        "PUBREL without a packet identifier": b"\x62\x00",
        "SUBSCRIBE with reserved options": wire.subscribe(7, [(topic, 0x80)], version=5),
        "SUBSCRIBE without options": wire.packet(0x82, b"\x00\x07\x00" + wire.string(topic)),
        "SUBSCRIBE of one byte": b"\x82\x01\x00",
        "a filter that is not UTF-8": wire.subscribe(7, [(b"\xc3\x28", 0)], version=5),
        "UNSUBSCRIBE whose filter runs past the end": b"\xa2\x06\x00\x07\x00\x00\x10a",
        "PINGREQ with a body": b"\xc0\x01\x00",
        "DISCONNECT with bytes left over": b"\xe0\x03\x00\x00\x00",
        "DISCONNECT with an unknown property": wire.disconnect(0, b"\x02\x7e\x00"),
    }
    return [(what, data, (MALFORMED,)) for what, data in cases.items()]


def protocol_errors(client_id: str, topic: str) -> list[Case]:
    """Return (what, packet, reasons) of packets that can be parsed but must not come."""

    def publish(*properties: wire.Property, **wrong: Any) -> bytes:
        return wire.publish(topic, b"x", version=5, properties=properties, **wrong)

    def subscribe(options: int, *properties: wire.Property, packet_id: int = 7) -> bytes:
        return wire.subscribe(packet_id, [(topic, options)], version=5, properties=properties)

    method = (tables.AUTH_METHOD, "NOPE")
    one = (PROTOCOL_ERROR,)
    return [
        ("a second CONNECT", wire.connect(client_id, version=5), one),
        ("CONNACK", b"\x20\x03\x00\x00\x00", one),
        ("SUBACK", b"\x90\x04\x00\x01\x00\x00", one),
        ("UNSUBACK", b"\xb0\x04\x00\x01\x00\x00", one),
        ("PINGRESP", b"\xd0\x00", one),
        ("a property twice", publish(*[(tables.CONTENT_TYPE, "x")] * 2), one),
        ("a topic alias twice", publish(*[(tables.TOPIC_ALIAS, 1)] * 2), (0x82, ALIAS_INVALID)),
        ("no topic and no alias", wire.publish("", b"x", version=5), one),
        ("topic alias 0", publish((tables.TOPIC_ALIAS, 0)), (ALIAS_INVALID,)),
        ("a subscription identifier", publish((tables.SUBSCRIPTION_ID, 1)), EITHER),
        ("a topic with a wildcard", wire.publish(topic + "/#", version=5), (0x90, *EITHER)),
        ("packet identifier 0", publish(qos=1, packet_id=0), EITHER),
        ("SUBSCRIBE with identifier 0", subscribe(0, packet_id=0), EITHER),
        ("SUBSCRIBE without a filter", wire.subscribe(7, [], version=5), one),
        ("SUBSCRIBE at QoS 3", subscribe(3), one),
        ("Retain Handling 3", subscribe(0x30), one),
        ("subscription identifier 0", subscribe(0, (tables.SUBSCRIPTION_ID, 0)), (0x82, 0xA1)),
        ("UNSUBSCRIBE without a filter", wire.unsubscribe(7, [], version=5), one),
        ("UNSUBSCRIBE with identifier 0", wire.unsubscribe(0, [topic], version=5), EITHER),
        ("PUBACK with a reason of no kind", wire.puback(1, 0x7F), EITHER),
        ("DISCONNECT with a server's reason", wire.disconnect(0x8B), EITHER),
        ("an expiry raised from 0", wire.disconnect(0, [(tables.SESSION_EXPIRY, 5)]), one),
        ("AUTH without a method", wire.auth(0x19, []), one),
        ("AUTH on a plain connection", wire.auth(0x19, [method]), one),
    ]


def refused_connects(client_id: str, topic: str) -> list[Case]:
    """Return (what, CONNECT, codes) of CONNECTs a server must not accept."""

    def connect(*properties: wire.Property, **wrong: Any) -> bytes:
        return wire.connect(client_id, version=5, properties=properties, **wrong)

    one = (PROTOCOL_ERROR,)
    return [
        ("header flags", connect(first_byte=0x11), (MALFORMED,)),
        ("reserved flag", connect(flags=0x03), (MALFORMED,)),
        ("will QoS 3", connect(will=Will(topic), flags=0x1E), (MALFORMED,)),
        ("no payload", connect(payload=b""), (MALFORMED,)),
        ("bytes left over", connect(trailing=b"x"), (MALFORMED,)),
        ("client identifier not UTF-8", wire.connect(b"\xff", version=5), (MALFORMED, 0x85)),
        ("user name not UTF-8", connect(username=b"\xc3\x28", password=""), (MALFORMED,)),
        ("an unknown property", wire.connect(client_id, version=5, properties=b"\2\x7e\0"), EITHER),
        ("a property of PUBLISH", connect((tables.CONTENT_TYPE, "x")), (MALFORMED,)),
        ("a property twice", connect(*[(tables.SESSION_EXPIRY, 1)] * 2), one),
        ("Receive Maximum 0", connect((tables.RECEIVE_MAXIMUM, 0)), one),
        ("Maximum Packet Size 0", connect((tables.MAXIMUM_PACKET_SIZE, 0)), one),
        ("Request Problem Information 2", connect((tables.REQUEST_PROBLEM_INFO, 2)), one),
        ("data without a method", connect((tables.AUTH_DATA, b"x")), one),
        ("unknown method", connect((tables.AUTH_METHOD, "NOPE")), (0x8C, 0x87)),
    ]


class Bystander:
    """A client that must notice nothing, and one that publishes to it."""

    def __init__(self, bench: Bench) -> None:
        self.topic = bench.topic("bystander")
        self.client = bench.client("bystander", session_expiry=300)
        self.client.subscribe(self.topic, 2)
        self.publisher = bench.client("publisher")
        self._count = 0

    def expect_unharmed(self) -> None:
        """A message at each QoS still comes, once, and nothing else does."""
        for qos in range(3):
            self._count += 1
            self.publisher.publish(self.topic, str(self._count), qos)
            self.client.expect_publish(self.topic, str(self._count), qos, dup=False)
        self.client.expect_nothing()


@statement("MQTT-4.13.1-1", seconds=3)
def mqtt_4_13_1_1(bench: Bench) -> None:
    """[MQTT-4.13.1-1] A Malformed Packet or Protocol Error ends the connection, and no other."""
    bystander = Bystander(bench)
    topic = bench.topic("t")
    for what, data, reasons in [
        *malformed_packets(topic),
        *protocol_errors(bench.id("bad"), topic),
    ]:
        with bench.case(what):
            client = bench.client("bad")
            client.send(data)
            client.expect_close(*reasons)
            client.drop()
            bystander.expect_unharmed()
    for what, data, codes in refused_connects(bench.id("bad"), topic):
        with bench.case(f"CONNECT with {what}"):
            client = bench.open("bad")
            client.send(data)
            client.expect_refused(*codes)
            client.drop()
    bystander.expect_unharmed()


def expect_end_if_error(client: Client, data: bytes) -> bool:
    """Send a packet and requests behind it; if it is an error to the broker, only the end follows.

    Return whether it was one: a broker that goes on is judged by other checks.
    """
    client.send(data + wire.pingreq() + wire.subscribe(7, [("never/asked/for", 0)], version=5))
    first = scenes.answer_or_end(client)
    if first is None:
        return True
    code = first.reason if isinstance(first, Disconnect) else 0
    if isinstance(first, Connack):
        code = first.code
    elif isinstance(first, Disconnect) and code < 0x80:
        client.fail("an error that is none", expected="a reason of 0x80 or above")
    if code >= 0x80:
        client.expect_silent_close()
    return code >= 0x80


@statement("MQTT-4.13.2-1")
def mqtt_4_13_2_1(bench: Bench) -> None:
    """[MQTT-4.13.2-1] A connection ends with a reason of 0x80 or above, told or not."""
    topic = bench.topic("t")
    errors = 0
    for what, data, _ in refused_connects(bench.id("bad"), topic):
        with bench.case(f"CONNECT with {what}"):
            client = bench.open("bad")
            errors += expect_end_if_error(client, data)
            client.drop()
    for what, data, _ in protocol_errors(bench.id("bad"), topic):
        with bench.case(what):
            client = bench.client("bad")
            errors += expect_end_if_error(client, data)
            client.drop()
    if not errors:
        bench.fail("nothing is an error to this broker", expected="an end of the connection")
    with bench.case("taken over"):
        old = bench.client("twice")
        bench.client("twice")
        old.expect_close(0x8E)
    for reason in CLIENT_REASONS:
        with bench.case(f"the client sends DISCONNECT 0x{reason:02X}"):
            client = bench.client("leaving")
            client.send(wire.disconnect(reason) + wire.pingreq())
            client.expect_silent_close()


# Rules of the text without a number.


def fuzzed(chance: random.Random, topic: str) -> bytes:
    """Return a proper packet or two of a client, with some of the bytes changed."""
    user = (tables.USER_PROPERTY, ("key", "value"))
    packets = [
        wire.publish(topic, b"fuzz", version=5, properties=[user]),
        wire.publish(topic, b"fuzz", version=5, qos=1, packet_id=chance.randrange(1, 9)),
        wire.publish(topic, b"fuzz", version=5, qos=2, packet_id=chance.randrange(1, 9)),
        wire.subscribe(3, [(topic, chance.randrange(3))], version=5),
        wire.unsubscribe(4, [topic], version=5),
        wire.puback(1),
        wire.pubrec(2),
        wire.pubrel(2),
        wire.pubcomp(2),
        wire.pingreq(),
        wire.auth(0x19, [(tables.AUTH_METHOD, "x")]),
        wire.disconnect(0x04, [user]),
    ]
    data = bytearray(b"".join(chance.choices(packets, k=chance.randrange(1, 4))))
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(data))
        how = chance.randrange(4)
        if how == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            data[at] = chance.choice((0x00, 0x01, 0x7F, 0x80, 0xFF))
        elif how == 2:
            del data[at : at + chance.randrange(1, 4)]
        else:
            data[at:at] = chance.randbytes(chance.randrange(1, 4))
        if not data:
            data += b"\xc0"
    # Nothing may be retained for other checks to find, and nobody's session be taken.
    return bytes(data) if data[0] & 0xF1 not in (0x31, 0x10) else b"\xc0\x00"


def send_fuzz(bench: Bench, chance: random.Random, topic: str) -> None:
    """Send garbage on a connection of its own, before or after CONNECT; end it in some way."""
    how = chance.randrange(4)
    client: Client = bench.open("fuzz") if how == 0 else bench.client("fuzz", session_expiry=1)
    client.send(fuzzed(chance, topic))
    if how == 1:
        client.close()
    else:
        client.drop()


@statement("X-38", seconds=3)
def x_38(bench: Bench) -> None:
    """[X-38] What one client does wrong has no effect on the session of another."""
    bystander = Bystander(bench)
    chance = random.Random(38)
    topic = bench.topic("fuzz")
    for turn in range(300):
        send_fuzz(bench, chance, topic)
        if turn % 10 == 0:
            with bench.case(f"after {turn + 1} connections of garbage"):
                bystander.expect_unharmed()
    with bench.case("the session is as it was"):
        scenes.resume(bystander.client, session_expiry=300)
        bystander.expect_unharmed()
