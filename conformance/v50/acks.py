"""MQTT 5.0, sections 3.4 to 3.7: PUBACK, PUBREC, PUBREL, PUBCOMP."""

from collections.abc import Iterator
from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import expect_only, require, subscribed
from conformance.failure import NotRun
from conformance.packets import Puback, Pubcomp, Pubrec, Pubrel
from conformance.scenes import connect_with_small_packets
from conformance.wire import Will

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
NOT_FOUND: Final = 0x92
WITH_WILL: Final = 0x04
TAKEN: Final = (0x00, 0x10)
SIZES: Final = (20, 26, 40)  # Maximum Packet Size of clients, bytes
UNKNOWN_IDS: Final = (77, 500, 65_535)
# One name for all checks, so that their brokers have equal options; long, so that a text that
# quotes it fits into none of the sizes above.
DENIED_TOPIC: Final = "denied/" + "a-name-too-long-to-be-quoted-in-a-small-packet" * 2

Answer = Puback | Pubrec | Pubrel | Pubcomp


def with_denied_topic(bench: Bench) -> bool:
    """Move the check to a broker that refuses publications to `DENIED_TOPIC`, if there is one."""
    try:
        bench.start(deny_publish=[DENIED_TOPIC])
    except NotRun as why:
        bench.note(f"no denied topic was tried: {why}")
        return False
    return True


def expect_reason(bench: Bench, packet: Answer, *reasons: int) -> None:
    """The packet has one of these reason codes."""
    if packet.reason not in reasons:
        names = " or ".join(tables.reason_name(reason) for reason in reasons)
        bench.fail(f"reason code 0x{packet.reason:02X}", packet, expected=names)


def expect_not_found(bench: Bench, packet: Pubrel | Pubcomp) -> None:
    """The strict profile wants 0x92; the table of the packet would allow 0x00 as well."""
    expect_reason(bench, packet, *([NOT_FOUND] if bench.strict else [0x00, NOT_FOUND]))
    if not packet.reason:
        bench.note("an id that is not in use is answered with reason code 0x00")


def publish_for_answer(client: Client, topic: str, qos: int, payload: bytes = b"x") -> Answer:
    """Publish and return PUBACK or PUBREC; the handshake of QoS 2 is completed."""
    packet_id = client.next_id()
    client.publish(topic, payload, qos, packet_id=packet_id, wait=False)
    if qos == 1:
        return client.expect(Puback, packet_id=packet_id)
    pubrec = client.expect(Pubrec, packet_id=packet_id)
    if pubrec.reason < 0x80:
        client.pubrel(packet_id)
        client.expect(Pubcomp, packet_id=packet_id)
    return pubrec


def expect_answers_of_the_table(bench: Bench, qos: int) -> None:
    """Publish in every way a broker could have something to say about.

    The reader of packets fails on every reason code that is not in the table of the packet.
    """
    denied = with_denied_topic(bench)
    sender = bench.client("sender")
    require(bench, sender, qos=qos)
    heard, unheard = bench.topic("heard"), bench.topic("unheard")
    subscribed(bench, "subscriber", heard, 2)
    expect_reason(bench, publish_for_answer(sender, heard, qos), 0x00)
    for payload in (b"x", b""):
        expect_reason(bench, publish_for_answer(sender, unheard, qos, payload), *TAKEN)
    if denied:
        publish_for_answer(sender, DENIED_TOPIC, qos)
    sender.ping()


def small_packets(bench: Bench) -> Iterator[tuple[Client, int]]:
    """Yield clients with small Maximum Packet Sizes, and these sizes in bytes."""
    for size in SIZES:
        client, limit = connect_with_small_packets(bench, f"size{size}", size)
        with bench.case(f"Maximum Packet Size {limit}"):
            yield client, limit
        client.disconnect()


def expect_fits(bench: Bench, packet: Answer, limit: int, identifier: int) -> None:
    """The packet is not larger than the client takes, whatever is in it."""
    if len(packet.raw) > limit:
        what = tables.PROPERTY_NAMES[identifier] if identifier in packet.properties else "packet"
        bench.fail(f"{what} too long: {len(packet.raw)} bytes", packet, expected=f"{limit} bytes")


def expect_small_answers(bench: Bench, qos: int, identifier: int) -> None:
    """What answers a PUBLISH, refused or taken, fits into the client's Maximum Packet Size."""
    if not with_denied_topic(bench):
        bench.not_run("without a denied topic there is nothing to give a reason for")
    for client, limit in small_packets(bench):
        require(bench, client, qos=qos)
        for topic in (DENIED_TOPIC, bench.topic("unheard")):
            expect_fits(bench, publish_for_answer(client, topic, qos), limit, identifier)


def expect_small_pubrel(bench: Bench, identifier: int) -> None:
    """PUBREL fits into the client's Maximum Packet Size, for known and for unknown ids."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    for client, limit in small_packets(bench):
        client.subscribe(bench.unique, 2)  # short: the delivery has to fit, too
        sender.publish(bench.unique, b"x", 2)
        delivery = client.expect_publish(acknowledge=False)
        assert delivery.packet_id is not None
        client.pubrec(delivery.packet_id)
        expect_fits(bench, client.expect_pubrel(delivery.packet_id), limit, identifier)
        client.pubcomp(delivery.packet_id)
        for packet_id in UNKNOWN_IDS:
            client.pubrec(packet_id)
            expect_fits(bench, client.expect_pubrel(packet_id), limit, identifier)


def expect_small_pubcomp(bench: Bench, identifier: int) -> None:
    """PUBCOMP fits into the client's Maximum Packet Size, for known and for unknown ids."""
    for client, limit in small_packets(bench):
        require(bench, client, qos=2)
        for packet_id in UNKNOWN_IDS:
            client.pubrel(packet_id)
            expect_fits(bench, client.expect(Pubcomp, packet_id=packet_id), limit, identifier)
        packet_id = client.next_id()
        client.publish(bench.unique, b"x", 2, packet_id=packet_id, wait=False)
        client.expect(Pubrec, packet_id=packet_id)
        client.pubrel(packet_id)
        expect_fits(bench, client.expect(Pubcomp, packet_id=packet_id), limit, identifier)


@statement("MQTT-3.4.2-1", wants=("configure",))
def mqtt_3_4_2_1(bench: Bench) -> None:
    """[MQTT-3.4.2-1] PUBACK has a reason code of its table, from either side."""
    expect_answers_of_the_table(bench, 1)
    topic = bench.topic("t")
    for reason in (0x03, NOT_FOUND, 0xFF):
        with bench.case(f"PUBACK of the client with reason code 0x{reason:02X}"):
            client = subscribed(bench, "client", topic, 1)
            bench.client("sender").publish(topic, b"x", 1)
            delivery = client.expect_publish(qos=1, acknowledge=False)
            assert delivery.packet_id is not None
            client.puback(delivery.packet_id, reason)
            client.expect_close(MALFORMED, PROTOCOL_ERROR)


@statement("MQTT-3.4.2-2", needs=("configure",))
def mqtt_3_4_2_2(bench: Bench) -> None:
    """[MQTT-3.4.2-2] A PUBACK does not get too large for its receiver by a Reason String."""
    expect_small_answers(bench, 1, tables.REASON_STRING)


@statement("MQTT-3.4.2-3", needs=("configure",))
def mqtt_3_4_2_3(bench: Bench) -> None:
    """[MQTT-3.4.2-3] A PUBACK does not get too large for its receiver by User Properties."""
    expect_small_answers(bench, 1, tables.USER_PROPERTY)


@statement("MQTT-3.5.2-1", wants=("configure",))
def mqtt_3_5_2_1(bench: Bench) -> None:
    """[MQTT-3.5.2-1] PUBREC has a reason code of its table."""
    expect_answers_of_the_table(bench, 2)
    client = bench.client("sender")
    for dup in (False, True):  # the same one again, while its flow is open
        client.publish(bench.topic("heard"), b"x", 2, packet_id=9, dup=dup, wait=False)
        expect_reason(bench, client.expect(Pubrec, packet_id=9), *TAKEN)
    client.pubrel(9)
    client.expect(Pubcomp, packet_id=9)


@statement("MQTT-3.5.2-2", needs=("configure",))
def mqtt_3_5_2_2(bench: Bench) -> None:
    """[MQTT-3.5.2-2] A PUBREC does not get too large for its receiver by a Reason String."""
    expect_small_answers(bench, 2, tables.REASON_STRING)


@statement("MQTT-3.5.2-3", needs=("configure",))
def mqtt_3_5_2_3(bench: Bench) -> None:
    """[MQTT-3.5.2-3] A PUBREC does not get too large for its receiver by User Properties."""
    expect_small_answers(bench, 2, tables.USER_PROPERTY)


@statement("MQTT-3.6.1-1")
def mqtt_3_6_1_1(bench: Bench) -> None:
    """[MQTT-3.6.1-1] PUBREL with fixed header flags other than 0010 is malformed."""
    topic = bench.topic("t")
    for first_byte in (0x60, 0x61, 0x63, 0x66, 0x6A, 0x6F):
        with bench.case(f"PUBREL with first byte 0x{first_byte:02X}"):
            client = bench.client("client")
            require(bench, client, qos=2)
            client.publish(topic, b"x", 2, packet_id=9, wait=False)
            client.expect(Pubrec, packet_id=9)
            client.send(wire.acknowledgement(first_byte, 9))
            client.expect_close(MALFORMED)


@statement("MQTT-3.6.2-1")
def mqtt_3_6_2_1(bench: Bench) -> None:
    """[MQTT-3.6.2-1] PUBREL has reason code 0x00, or 0x92 for an id that is not in use."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    client = subscribed(bench, "client", topic, 2)
    for reason in (None, 0x00):
        sender.publish(topic, b"x", 2)
        delivery = client.expect_publish(qos=2, acknowledge=False)
        assert delivery.packet_id is not None
        client.pubrec(delivery.packet_id, reason)
        expect_reason(bench, client.expect_pubrel(delivery.packet_id), 0x00)
        client.pubcomp(delivery.packet_id)
    for packet_id in UNKNOWN_IDS:
        client.pubrec(packet_id)
        expect_not_found(bench, client.expect_pubrel(packet_id))


@statement("MQTT-3.6.2-2")
def mqtt_3_6_2_2(bench: Bench) -> None:
    """[MQTT-3.6.2-2] A PUBREL does not get too large for its receiver by a Reason String."""
    expect_small_pubrel(bench, tables.REASON_STRING)


@statement("MQTT-3.6.2-3")
def mqtt_3_6_2_3(bench: Bench) -> None:
    """[MQTT-3.6.2-3] A PUBREL does not get too large for its receiver by User Properties."""
    expect_small_pubrel(bench, tables.USER_PROPERTY)


@statement("MQTT-3.7.2-1")
def mqtt_3_7_2_1(bench: Bench) -> None:
    """[MQTT-3.7.2-1] PUBCOMP has reason code 0x00, or 0x92 for an id that is not in use."""
    client = bench.client("client")
    require(bench, client, qos=2)
    topic = bench.topic("t")
    for packet_id in UNKNOWN_IDS:
        client.pubrel(packet_id)
        expect_not_found(bench, client.expect(Pubcomp, packet_id=packet_id))
    for packet_id in UNKNOWN_IDS:
        for reason in (None, 0x00):
            client.publish(topic, b"x", 2, packet_id=packet_id, wait=False)
            client.expect(Pubrec, packet_id=packet_id)
            client.pubrel(packet_id, reason)
            expect_reason(bench, client.expect(Pubcomp, packet_id=packet_id), 0x00)


@statement("MQTT-3.7.2-2")
def mqtt_3_7_2_2(bench: Bench) -> None:
    """[MQTT-3.7.2-2] A PUBCOMP does not get too large for its receiver by a Reason String."""
    expect_small_pubcomp(bench, tables.REASON_STRING)


@statement("MQTT-3.7.2-3")
def mqtt_3_7_2_3(bench: Bench) -> None:
    """[MQTT-3.7.2-3] A PUBCOMP does not get too large for its receiver by User Properties."""
    expect_small_pubcomp(bench, tables.USER_PROPERTY)


@statement("X-34", needs=("configure",))
def x_34(bench: Bench) -> None:
    """[X-34] A PUBACK or PUBREC with an error is about one message: the connection goes on."""
    if not with_denied_topic(bench):
        bench.not_run("without a denied topic no PUBLISH is refused")
    topic = bench.topic("t")
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    observer = subscribed(bench, "observer", topic, 2)
    wanted: list[bytes] = []
    for qos in (1, 2, 1, 2):
        answer = publish_for_answer(sender, DENIED_TOPIC, qos)
        if answer.reason < 0x80:
            bench.not_run("the broker does not say that it refused a PUBLISH")
        sender.ping()
        payload = b"number %d" % len(wanted)
        expect_reason(bench, publish_for_answer(sender, topic, qos, payload), 0x00)
        wanted.append(payload)
    sender.subscribe(bench.topic("other"), 1)
    expect_only(bench, sender, observer, wanted)


@statement("X-35")
def x_35(bench: Bench) -> None:
    """[X-35] PUBREC and PUBREL for an unknown id are answered with 0x92 and do no harm."""
    client = bench.client("client")
    require(bench, client, qos=2)
    topic = bench.topic("t")
    client.subscribe(topic, 2)
    for packet_id in UNKNOWN_IDS:
        client.pubrec(packet_id)
        expect_not_found(bench, client.expect_pubrel(packet_id))
        client.pubcomp(packet_id, NOT_FOUND)
        client.pubrel(packet_id)
        expect_not_found(bench, client.expect(Pubcomp, packet_id=packet_id))
        client.puback(packet_id)  # nothing answers these two
        client.pubcomp(packet_id)
        client.ping()
        client.publish(topic, f"{packet_id}", 2, packet_id=packet_id)
        client.expect_publish(topic=topic, payload=f"{packet_id}", qos=2)
    for packet in client.drain():
        bench.fail("an answer to an answer", packet, expected="nothing more")


# Reason code and properties of an acknowledgement; None: not written.
Forms = list[tuple[int | None, list[wire.Property] | None]]


@statement("X-36")
def x_36(bench: Bench) -> None:
    """[X-36] Acknowledgements and DISCONNECT may leave out what is zero and empty."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    client = subscribed(bench, "client", topic, 2)
    text: list[wire.Property] = [(tables.REASON_STRING, "why"), (tables.USER_PROPERTY, ("a", "b"))]
    forms: Forms = [(None, None), (0, None), (0, []), (0, text)]
    for number, (reason, properties) in enumerate(forms):
        with bench.case(f"reason code {reason}, properties {properties!r}"):
            for qos in (1, 2):
                sender.publish(topic, f"{number}", qos)
                packet = client.expect_publish(payload=f"{number}", qos=qos, acknowledge=False)
                assert packet.packet_id is not None
                if qos == 1:
                    client.send(wire.puback(packet.packet_id, reason, properties))
                    continue
                client.send(wire.pubrec(packet.packet_id, reason, properties))
                client.expect_pubrel(packet.packet_id)
                client.send(wire.pubcomp(packet.packet_id, reason, properties))
            packet_id = client.next_id()
            client.publish(bench.topic("u"), b"x", 2, packet_id=packet_id, wait=False)
            client.expect(Pubrec, packet_id=packet_id)
            client.send(wire.pubrel(packet_id, reason, properties))
            expect_reason(bench, client.expect(Pubcomp, packet_id=packet_id), 0x00)
            client.ping()
    watcher = subscribed(bench, "watcher", bench.topic("will"), 1)
    will = Will(bench.topic("will"), b"will", 1)
    ends: Forms = [(WITH_WILL, None), (WITH_WILL, []), (WITH_WILL, text)]
    for reason, properties in forms + ends:
        with bench.case(f"DISCONNECT with reason code {reason}, properties {properties!r}"):
            leaving = bench.client("leaving", will=will)
            leaving.send(wire.disconnect(reason, properties))
            leaving.expect_close()
            expect_only(bench, sender, watcher, [b"will"] if reason == WITH_WILL else [])
