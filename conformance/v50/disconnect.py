"""MQTT 5.0, section 3.14: DISCONNECT, from either side."""

from collections.abc import Iterator
from typing import Any, Final

from conformance import scenes, tables, wire
from conformance.check import Bench, statement
from conformance.client import Client, Silence
from conformance.failure import NotRun, Violation
from conformance.packets import Connack, Disconnect, Packet
from conformance.wire import Will

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
SHUTTING_DOWN: Final = 0x8B
KEEP_ALIVE_TIMEOUT: Final = 0x8D
TAKEN_OVER: Final = 0x8E
RESUMABLE_S: Final = 300
# What a client may say besides "normal disconnection".
CLIENT_REASONS: Final = (4, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A))
# No reasons at all, or a server's. (0x8C and 0x9B are left out: the text is of two minds.)
NOT_CLIENT_REASONS: Final = (
    *(0x01, 0x02, 0x03, 0x05, 0x10, 0x18, 0x7F, 0x84, 0x85, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F),
    *(0x92, 0x9A, 0x9C, 0x9E, 0xA0, 0xA2, 0xA3, 0xFF),
)


def provocations(bench: Bench) -> list[tuple[str, bytes, int]]:
    """Return (what, packet, reason) of packets a server ends the connection for."""
    topic = bench.topic("t")

    def aliased(alias: int) -> bytes:
        return wire.publish(topic, version=5, properties=[(tables.TOPIC_ALIAS, alias)])

    return [
        ("a second CONNECT", wire.connect(bench.id("victim"), version=5), PROTOCOL_ERROR),
        ("SUBSCRIBE without a filter", wire.subscribe(7, [], version=5), PROTOCOL_ERROR),
        ("topic alias 0", aliased(0), 0x94),
        ("topic alias 65535", aliased(65_535), 0x94),
        ("PUBLISH of QoS 3", wire.publish(topic, version=5, first_byte=0x36), MALFORMED),
        ("AUTH", wire.auth(0x19, [(tables.AUTH_METHOD, "NOPE")]), PROTOCOL_ERROR),
    ]


def provoked(bench: Bench, name: str = "victim", **options: Any) -> Iterator[tuple[str, Client]]:
    """Yield a client after each provocation, and one whose session was taken over.

    An alias of 65535 is no provocation to a broker that takes as many.
    """
    for what, data, _ in provocations(bench):
        client = bench.client(name, **options)
        assert client.connack is not None
        aliases = client.connack.properties.number(tables.TOPIC_ALIAS_MAXIMUM)
        if what != "topic alias 65535" or aliases != 65_535:
            client.send(data)
            with bench.case(what):
                yield what, client
        client.drop()
    old = bench.client(name, **options)
    new = bench.client(name, **options)
    with bench.case("taken over"):
        yield "taken over", old
    new.disconnect()


def will_watcher(bench: Bench) -> tuple[Client, Will]:
    """Return a client that sees a will, and the will."""
    will = Will(bench.topic("will"), b"gone")
    watcher = bench.client("watcher")
    watcher.subscribe(bench.topic("will"), 1)
    return watcher, will


@statement("MQTT-3.14.0-1", wants=("configure",))
def mqtt_3_14_0_1(bench: Bench) -> None:
    """[MQTT-3.14.0-1] A server sends no DISCONNECT before it has accepted the connection."""
    topic = bench.topic("t")
    own = bench.id("early")
    method: list[wire.Property] = [(tables.AUTH_METHOD, "NOPE")]

    def connect(**wrong: Any) -> bytes:
        return wire.connect(own, version=5, **wrong)

    attempts = {
        "PINGREQ first": wire.pingreq(),
        "PUBLISH first": wire.publish(topic, version=5, qos=1, packet_id=1),
        "SUBSCRIBE first": wire.subscribe(1, [(topic, 0)], version=5),
        "UNSUBSCRIBE first": wire.unsubscribe(1, [topic], version=5),
        "PUBREL first": wire.pubrel(1),
        "DISCONNECT first": wire.disconnect(),
        "AUTH first": wire.auth(0x18, method),
        "CONNACK first": b"\x20\x03\x00\x00\x00",
        "packet type 0 first": b"\x00\x00",
        "a length of five bytes first": b"\x10\xff\xff\xff\xff\x01",
        "CONNECT with header flags": connect(first_byte=0x11),
        "CONNECT with a reserved flag": connect(flags=0x03),
        "version 6": connect(level=6),
        "protocol name": connect(name="MQTX"),
        "Receive Maximum 0": connect(properties=[(tables.RECEIVE_MAXIMUM, 0)]),
        "Maximum Packet Size 0": connect(properties=[(tables.MAXIMUM_PACKET_SIZE, 0)]),
        "a property for PUBLISH": connect(properties=[(tables.CONTENT_TYPE, "x")]),
        "a property twice": connect(properties=[(tables.SESSION_EXPIRY, 1)] * 2),
        "data without a method": connect(properties=[(tables.AUTH_DATA, b"x")]),
        "unknown method": connect(properties=method),
        "no payload": connect(payload=b""),
        "bytes left over": connect(trailing=b"x"),
        "will QoS 3": connect(will=Will(topic), flags=0x1E),
        "will topic with a wildcard": connect(will=Will(topic + "/#")),
        "client identifier not UTF-8": wire.connect(b"\xff", version=5),
        "a packet that is wrong behind": connect(flags=0x03) + b"\xc1\x00",
        "version 6 and DISCONNECT": connect(level=6) + wire.disconnect(),
    }
    for what, data in attempts.items():
        with bench.case(what):
            client = bench.client("early", connect=False)
            client.send(data)
            expect_no_disconnect(bench, client)
    try:
        bench.start(users={"somebody": "secret"})
    except NotRun as reason:
        bench.note(f"no wrong password was tried: {reason}")
        return
    for password in ("wrong", None):
        with bench.case(f"password {password!r}"):
            client = bench.client("early", connect=False)
            client.send(connect(username="somebody", password=password))
            expect_no_disconnect(bench, client)


def expect_no_disconnect(bench: Bench, client: Client) -> None:
    """No DISCONNECT comes, whether or not the broker is right to accept, refuse or close."""
    try:
        answer = scenes.answer_or_end(client)
        if isinstance(answer, Connack) and answer.code >= 0x80:
            answer = scenes.answer_or_end(client)
    except Silence:
        return
    except Violation as violation:
        # What a broker says to a version nobody knows is not what is judged here.
        if "MQTT-3.14.0-1" in violation.statements:
            raise
        return
    if isinstance(answer, Disconnect):
        bench.fail("DISCONNECT before CONNACK", answer, expected="a refusing CONNACK or a close")


@statement("MQTT-3.14.1-1")
def mqtt_3_14_1_1(bench: Bench) -> None:
    """[MQTT-3.14.1-1] A DISCONNECT with reserved header bits is answered by DISCONNECT 0x81."""
    watcher, will = will_watcher(bench)
    for first in range(0xE1, 0xF0):
        with bench.case(f"first byte 0x{first:02X}"):
            client = bench.client("leaving", will=will)
            client.send(wire.disconnect(0x00, [], first_byte=first))
            packet = client.expect_close(MALFORMED)
            if not isinstance(packet, Disconnect) or packet.reason != MALFORMED:
                bench.fail("no such DISCONNECT", packet, expected="DISCONNECT 0x81")
            watcher.expect_publish(will.topic if isinstance(will.topic, str) else None, "gone")


@statement("MQTT-3.14.2-1")
def mqtt_3_14_2_1(bench: Bench) -> None:
    """[MQTT-3.14.2-1] DISCONNECT has only reason codes of its table and of its sender."""
    for _, client in provoked(bench):
        packet = client.expect_close()
        if isinstance(packet, Disconnect) and packet.reason < 0x80:
            bench.fail("not a server's reason", packet, expected="a reason of 0x80 or above")
    watcher, will = will_watcher(bench)
    for reason in NOT_CLIENT_REASONS:
        with bench.case(f"a client's DISCONNECT 0x{reason:02X}"):
            client = bench.client("leaving", will=will)
            client.send(wire.disconnect(reason))
            client.expect_close(PROTOCOL_ERROR, MALFORMED)
            watcher.expect_publish(payload="gone")


@statement("MQTT-3.14.2-2")
def mqtt_3_14_2_2(bench: Bench) -> None:
    """[MQTT-3.14.2-2] A server's DISCONNECT has no Session Expiry Interval."""
    for _, client in provoked(bench, session_expiry=RESUMABLE_S):
        packet = client.expect_close()
        if isinstance(packet, Disconnect) and tables.SESSION_EXPIRY in packet.properties:
            bench.fail("Session Expiry Interval", packet, expected="no such property")


def ends_within(bench: Bench, property_id: int) -> None:
    """Every DISCONNECT to a client that takes little is small enough for it."""
    _, limit = scenes.connect_with_small_packets(bench, "victim", 20)
    small: list[wire.Property] = [(tables.MAXIMUM_PACKET_SIZE, limit)]
    for _, client in provoked(bench, properties=small):
        packet = client.expect_close()
        if packet is not None and len(packet.raw) > limit:
            properties = packet.properties if isinstance(packet, Disconnect) else ()
            what = tables.PROPERTY_NAMES[property_id] if property_id in properties else ""
            bench.fail(f"{len(packet.raw)} bytes {what}", packet, expected=f"at most {limit}")


@statement("MQTT-3.14.2-3")
def mqtt_3_14_2_3(bench: Bench) -> None:
    """[MQTT-3.14.2-3] No Reason String makes a DISCONNECT larger than the client takes."""
    ends_within(bench, tables.REASON_STRING)


@statement("MQTT-3.14.2-4")
def mqtt_3_14_2_4(bench: Bench) -> None:
    """[MQTT-3.14.2-4] No User Property makes a DISCONNECT larger than the client takes."""
    ends_within(bench, tables.USER_PROPERTY)


@statement("MQTT-3.14.4-1")
def mqtt_3_14_4_1(bench: Bench) -> None:
    """[MQTT-3.14.4-1] Nothing is sent after DISCONNECT, and nothing that comes after it counts."""
    topic = bench.topic("t")
    publisher = bench.client("publisher")
    watcher = bench.client("watcher")
    watcher.subscribe(bench.topic("#"), 1)
    request = (
        wire.publish(topic, "too late", version=5, qos=1, packet_id=91)
        + wire.publish(topic, "too late", version=5, retain=True)
        + wire.subscribe(92, [(bench.topic("late"), 1)], version=5)
        + wire.pingreq()
    )
    for what, data, _ in provocations(bench):
        if what == "topic alias 65535":
            continue
        with bench.case(f"requests right behind {what}"):
            client = bench.client("victim", session_expiry=RESUMABLE_S)
            client.send(data + request)
            client.expect_close()
            client.drop()
    with bench.case("requests right behind the client's DISCONNECT"):
        for goodbye in (b"\xe0\x00", b"\xe0\x01\x00", wire.disconnect(0x04)):
            client = bench.client("victim", session_expiry=RESUMABLE_S)
            client.send(goodbye + request)
            packet = client.expect_close()
            if packet is not None:
                bench.fail("an answer after DISCONNECT", packet, expected="only the close")
            client.drop()
    with bench.case("none of the requests has had an effect"):
        client = bench.client("victim", clean=False)
        publisher.publish(bench.topic("late"), "nobody asked for this", 1)
        watcher.expect_publish(bench.topic("late"), "nobody asked for this")
        bench.barrier(publisher, client)
        client.expect_nothing()
        watcher.expect_nothing()
        client.subscribe(topic, 1)
        client.expect_nothing()
    with bench.case("taken over while messages arrive"):
        old = bench.client("taken", connect=False)
        old.connect()
        old.subscribe(topic, 0)
        for number in range(20):
            publisher.publish(topic, str(number))
            if number == 10:
                bench.client("taken")
        seen: list[Packet] = []
        while (packet := scenes.answer_or_end(old)) is not None:
            if seen and isinstance(seen[-1], Disconnect):
                bench.fail("a packet after DISCONNECT", packet, expected="only the close")
            seen.append(packet)


@statement("MQTT-3.14.4-2")
def mqtt_3_14_4_2(bench: Bench) -> None:
    """[MQTT-3.14.4-2] A server that has sent DISCONNECT closes the connection."""
    told = 0
    for _, client in provoked(bench):
        # Our side stays open: the end that is seen has to be the broker's.
        told += isinstance(client.expect_close(timeout=bench.patience), Disconnect)
    if not told:
        bench.note("the broker closes without DISCONNECT")
    for reason in (None, 0x00, 0x04, 0x80):
        with bench.case(f"a client's DISCONNECT {reason}"):
            client = bench.client("leaving")
            client.send(wire.disconnect(reason))
            packet = client.expect_close()
            if packet is not None:
                bench.fail("an answer to DISCONNECT", packet, expected="only the close")


@statement("MQTT-3.14.4-3", seconds=4)
def mqtt_3_14_4_3(bench: Bench) -> None:
    """[MQTT-3.14.4-3] DISCONNECT 0x00 drops the will; any other reason lets it come."""
    watcher, will = will_watcher(bench)
    delayed = Will(will.topic, b"late", properties=[(tables.WILL_DELAY, 1)])
    for goodbye in (b"\xe0\x00", b"\xe0\x01\x00", b"\xe0\x02\x00\x00"):
        for kind, name in ((will, "now"), (delayed, "late")):
            with bench.case(f"{goodbye.hex(' ')}, will {name}"):
                client = bench.client(name, will=kind, session_expiry=10)
                client.send(goodbye)
                client.expect_close()
                client.drop()
    with bench.case("session that ends before the delay is over"):
        client = bench.client("short", will=delayed)
        client.send(wire.disconnect(0x00))
        client.expect_close()
    bench.settle(2.2)
    watcher.expect_nothing()
    for reason in CLIENT_REASONS:
        with bench.case(f"DISCONNECT 0x{reason:02X}"):
            client = bench.client("leaving", will=will)
            client.send(wire.disconnect(reason, [] if reason % 2 else None))
            client.expect_close()
            watcher.expect_publish(payload="gone")
    with bench.case("DISCONNECT 0x04, will with a delay"):
        client = bench.client("late", will=delayed, session_expiry=10)
        client.send(wire.disconnect(0x04))
        watcher.expect_publish(payload="late", timeout=1 + bench.patience)


# Rules of the text without a number.


@statement("X-37", needs=("restart",), seconds=5)
def x_37(bench: Bench) -> None:
    """[X-37] A server that ends a connection of its own accord says why."""

    def expect_reason(client: Client, reason: int, timeout: float | None = None) -> None:
        packet = client.expect_close(reason, timeout=timeout)
        if isinstance(packet, Connack) or (packet is not None and packet.raw[2] != reason):
            bench.fail("another reason", packet, expected=tables.reason_name(reason))

    broker = bench.start()
    with bench.case("keep alive"):
        expect_reason(bench.client("silent", keep_alive=1), KEEP_ALIVE_TIMEOUT, 12.0)
    with bench.case("taken over"):
        old = bench.client("same")
        bench.client("same")
        expect_reason(old, TAKEN_OVER)
    with bench.case("shut down"):
        clients = [bench.client(f"there{number}") for number in range(3)]
        broker.stop()
        for client in clients:
            expect_reason(client, SHUTTING_DOWN)
