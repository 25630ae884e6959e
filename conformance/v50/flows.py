"""MQTT 5.0, section 4.3: the flows of QoS 0, 1 and 2."""

from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    arrived,
    come_back,
    crash,
    expect_only,
    own_broker,
    persistent,
    require,
    restart,
    settled,
    subscribed,
)
from conformance.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from conformance.v50.acks import (
    DENIED_TOPIC,
    expect_not_found,
    expect_reason,
    with_denied_topic,
)

TAKEN: Final = (0x00, 0x10)
MANY: Final = 50


def packet_id_of(packet: Publish) -> int:
    """Return the packet identifier of a delivery at QoS 1 or 2."""
    assert packet.packet_id is not None
    return packet.packet_id


def publish_step(
    client: Client, topic: str, payload: bytes, packet_id: int, *, dup: bool = False
) -> Pubrec:
    """Send a PUBLISH at QoS 2 and return its PUBREC: the first half of the flow."""
    client.publish(topic, payload, 2, packet_id=packet_id, dup=dup, wait=False)
    return client.expect(Pubrec, packet_id=packet_id)


def release_step(client: Client, packet_id: int) -> Pubcomp:
    """Send PUBREL and return PUBCOMP: the second half of the flow."""
    client.pubrel(packet_id)
    return client.expect(Pubcomp, packet_id=packet_id)


def expect_same_again(bench: Bench, packet: Publish, before: Publish) -> None:
    """The packet is `before` sent again: same id, topic and payload, DUP 1."""
    same = (before.packet_id, before.topic, before.payload, before.qos)
    if (packet.packet_id, packet.topic, packet.payload, packet.qos) != same or not packet.dup:
        bench.fail("not the open delivery, sent again", packet, expected=f"id {same[0]}, DUP 1")


def expect_nothing_open(bench: Bench, client: Client, why: str) -> None:
    """Resume: neither PUBLISH nor PUBREL may be sent again."""
    if client.is_open:
        client.ping()  # cutting the connection may lose what the broker has not read yet
    come_back(client)
    bench.settle()
    for packet in client.drain():
        bench.fail(f"sent again {why}", packet, expected="nothing")


# QoS 0


@statement("MQTT-4.3.1-1")
def mqtt_4_3_1_1(bench: Bench) -> None:
    """[MQTT-4.3.1-1] Deliveries at QoS 0 have QoS 0 and DUP 0 in their first byte."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    zero = subscribed(bench, "zero", [(bench.topic("#"), 0x08)])
    two = subscribed(bench, "two", [(bench.topic("zero"), 2 | 0x08)])
    for qos in (0, 1, 2):
        for retain in (False, True):
            topic = bench.topic("zero" if qos == 0 else "other")
            sender.publish(topic, f"{qos} {int(retain)}", qos, retain=retain)
            for client in (zero, two) if qos == 0 else (zero,):
                packet = client.expect_publish(topic=topic, payload=f"{qos} {int(retain)}")
                if packet.raw[0] not in (0x30, 0x31):
                    bench.fail(f"first byte 0x{packet.raw[0]:02X}", packet, expected="0x30 or 0x31")
    late = subscribed(bench, "late", bench.topic("other"), 0)
    packet = late.expect_publish(payload="2 1")
    if packet.raw[0] != 0x31:
        bench.fail("a retained message at QoS 0", packet, expected="first byte 0x31")


# QoS 1 and 2: identifiers and first transmissions


def expect_free_ids(bench: Bench, sender: Client, subscriber: Client, qos_of: list[int]) -> None:
    """Publish at these QoS: no delivery has the id of another one that is still open.

    Nothing is acknowledged until nothing more comes, for brokers with a window of their own; then
    every other delivery is, so that ids become free in between.
    """
    for number, qos in enumerate(qos_of):
        sender.publish(bench.topic("t"), f"{number}", qos)
    open_: dict[int, Publish] = {}
    seen: set[bytes] = set()
    while len(seen) < len(qos_of):
        fresh = arrived(subscriber) or [subscriber.expect_publish(acknowledge=False)]
        for packet in fresh:
            packet_id = packet_id_of(packet)
            if packet_id in open_:
                bench.fail(f"id {packet_id} is in use", packet, expected="a free one")
            open_[packet_id] = packet
            seen.add(packet.payload)
        if len(seen) < len(qos_of) and not settled_into(bench, subscriber):
            for packet_id in list(open_)[::2]:
                subscriber.acknowledge(open_.pop(packet_id))
    for packet in open_.values():
        subscriber.acknowledge(packet)


def settled_into(bench: Bench, client: Client) -> bool:
    """Return whether more deliveries come after a while; they stay in the inbox."""
    found = settled(bench, client)
    client.inbox.extend(found)
    return bool(found)


@statement("MQTT-4.3.2-1")
def mqtt_4_3_2_1(bench: Bench) -> None:
    """[MQTT-4.3.2-1] Each new QoS 1 delivery takes a packet identifier that is free."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    subscriber = persistent(bench, "subscriber", bench.topic("t"))
    expect_free_ids(bench, sender, subscriber, [1] * MANY)
    expect_free_ids(bench, sender, subscriber, [1, 2, 1, 1] * (MANY // 4))
    # A QoS 2 delivery that waits for PUBCOMP holds its id as well, over a resumption too.
    sender.publish(bench.topic("t"), b"held", 2)
    held = subscriber.expect_publish(payload=b"held", acknowledge=False)
    subscriber.pubrec(packet_id_of(held))
    subscriber.expect_pubrel(packet_id_of(held))
    for _ in range(2):
        for number in range(MANY):
            sender.publish(bench.topic("t"), f"{number}", 1)
            packet = subscriber.expect_publish(payload=f"{number}", acknowledge=False)
            if packet.packet_id == held.packet_id:
                bench.fail("the id of an open QoS 2 flow", packet, expected="a free one")
            subscriber.acknowledge(packet)
        come_back(subscriber)
        subscriber.expect_pubrel(packet_id_of(held))


@statement("MQTT-4.3.3-1")
def mqtt_4_3_3_1(bench: Bench) -> None:
    """[MQTT-4.3.3-1] Each new QoS 2 delivery takes a packet identifier that is free."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    subscriber = subscribed(bench, "subscriber", bench.topic("t"), 2)
    expect_free_ids(bench, sender, subscriber, [2] * MANY)
    expect_free_ids(bench, sender, subscriber, [2, 1, 2, 2] * (MANY // 4))


def expect_first_transmissions(bench: Bench, qos: int) -> None:
    """First deliveries at this QoS: live, queued and retained, each by its first byte."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    retains = tables.RETAIN_AVAILABLE not in (sender.connack.properties if sender.connack else ())
    base = 0x30 | qos << 1
    live = subscribed(bench, "live", [(bench.topic("#"), qos | 0x08)])
    away = persistent(bench, "away", [(bench.topic("#"), qos)])
    away.disconnect()
    for published in range(qos, 3):
        for retain in (False, True) if retains else (False,):
            sender.publish(bench.topic("t"), b"x", published, retain=retain, dup=published == 2)
            packet = live.expect_publish(payload=b"x")
            check_first_byte(bench, packet, base | retain)
    come_back(away)
    for _ in range((3 - qos) * (1 + retains)):
        check_first_byte(bench, away.expect_publish(payload=b"x"), base)
    if retains:
        late = subscribed(bench, "late", bench.topic("t"), qos)
        check_first_byte(bench, late.expect_publish(payload=b"x"), base | 1)


def check_first_byte(bench: Bench, packet: Publish, wanted: int) -> None:
    """The packet has this first byte, and a packet identifier."""
    if packet.raw[0] != wanted or not packet.packet_id:
        bench.fail(f"first byte 0x{packet.raw[0]:02X}", packet, expected=f"0x{wanted:02X}")


@statement("MQTT-4.3.2-2")
def mqtt_4_3_2_2(bench: Bench) -> None:
    """[MQTT-4.3.2-2] A QoS 1 delivery is first sent with an id, QoS 1 and DUP 0."""
    expect_first_transmissions(bench, 1)


@statement("MQTT-4.3.3-2")
def mqtt_4_3_3_2(bench: Bench) -> None:
    """[MQTT-4.3.3-2] A QoS 2 delivery is first sent with an id, QoS 2 and DUP 0."""
    expect_first_transmissions(bench, 2)


# QoS 1: what is open, what is taken


@statement("MQTT-4.3.2-3", wants=("restart",))
def mqtt_4_3_2_3(bench: Bench) -> None:
    """[MQTT-4.3.2-3] A QoS 1 delivery is open until its PUBACK, and never comes after it."""
    own = own_broker(bench)
    sender = bench.client("sender")
    topic = bench.topic("t")
    subscriber = persistent(bench, "subscriber", topic, 1)
    for payload in (b"open", b"settled"):
        sender.publish(topic, payload, 1)
    first = subscriber.expect_publish(payload=b"open", acknowledge=False)
    settled_one = subscriber.expect_publish(payload=b"settled", acknowledge=False)
    subscriber.puback(packet_id_of(settled_one))
    subscriber.ping()
    for leave in (subscriber.drop, subscriber.disconnect):
        leave()
        come_back(subscriber)
        expect_same_again(bench, subscriber.expect_publish(acknowledge=False), first)
        subscriber.expect_nothing()
    if own is not None:
        bench.settle(1.0)  # how far it got may be written a moment later
        subscriber.drop()
        restart(own)
        come_back(subscriber)
        again = subscriber.expect_publish(payload=b"open", acknowledge=False)
        expect_same_again(bench, again, first)
        subscriber.expect_nothing()
    subscriber.puback(packet_id_of(first))
    subscriber.ping()
    expect_nothing_open(bench, subscriber, "after PUBACK")
    if own is not None:
        bench.settle(1.0)
        subscriber.disconnect()
        restart(own)
        expect_nothing_open(bench, subscriber, "after PUBACK and a restart")


def expect_to_survive(bench: Bench, qos: int) -> None:
    """As soon as PUBACK or PUBREC is there, the messages are safe from a crash of the broker."""
    own = own_broker(bench, "kill")
    sender = persistent(bench, "sender", bench.topic("own"))
    require(bench, sender, qos=qos)
    here = persistent(bench, "here", bench.topic("t/#"), qos)
    away = persistent(bench, "away", bench.topic("t/#"), qos)
    away.disconnect()
    wanted = {packet_id: b"number %d" % packet_id for packet_id in (1, 40_000, 65_535)}
    for packet_id, payload in wanted.items():
        with bench.case(f"packet identifier {packet_id}"):
            if qos == 1:
                answer = sender.publish(bench.topic("t/1"), payload, 1, packet_id=packet_id)
                assert isinstance(answer, Puback)
            else:
                answer = publish_step(sender, bench.topic("t/2"), payload, packet_id)
            expect_reason(bench, answer, 0x00)
    if own is not None:
        crash(own)
        come_back(sender)
        come_back(here)
    if qos == 2:
        for packet_id in wanted:
            expect_reason(bench, release_step(sender, packet_id), 0x00)
    come_back(away)
    for client in (here, away):
        with bench.case(f"subscriber {client.name!r}"):
            expect_only(bench, sender, client, list(wanted.values()))


@statement("MQTT-4.3.2-4", wants=("kill",))
def mqtt_4_3_2_4(bench: Bench) -> None:
    """[MQTT-4.3.2-4] A QoS 1 PUBLISH is answered by PUBACK with its id once the broker has it."""
    expect_to_survive(bench, 1)


@statement("MQTT-4.3.2-5")
def mqtt_4_3_2_5(bench: Bench) -> None:
    """[MQTT-4.3.2-5] After PUBACK a PUBLISH with the same id is a new message, DUP or not."""
    topic = bench.topic("t")
    subscriber = subscribed(bench, "subscriber", topic, 1)
    sender = bench.client("sender", session_expiry=60)
    wanted = []
    for payload in (b"first", b"second", b"second"):
        for dup in (True, False):
            sender.publish(topic, payload, 1, packet_id=5, dup=dup)
            wanted.append(payload)
    sender.drop()
    sender.connect(clean=False, session_expiry=60)
    sender.publish(topic, b"second", 1, packet_id=5, dup=True)
    expect_only(bench, sender, subscriber, [*wanted, b"second"])


# QoS 2, deliveries


def half_done(bench: Bench, payload: bytes = b"half") -> tuple[Client, Client, Publish]:
    """Return a publisher, and a persistent subscriber that has sent PUBREC and got PUBREL."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    subscriber = persistent(bench, "subscriber", topic)
    sender.publish(topic, payload, 2)
    delivery = subscriber.expect_publish(payload=payload, qos=2, acknowledge=False)
    subscriber.pubrec(packet_id_of(delivery))
    expect_reason(bench, subscriber.expect_pubrel(packet_id_of(delivery)), 0x00)
    return sender, subscriber, delivery


@statement("MQTT-4.3.3-3")
def mqtt_4_3_3_3(bench: Bench) -> None:
    """[MQTT-4.3.3-3] A QoS 2 delivery is open until its PUBREC."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    subscriber = persistent(bench, "subscriber", topic)
    sender.publish(topic, b"open", 2)
    first = subscriber.expect_publish(payload=b"open", qos=2, acknowledge=False)
    for leave in (subscriber.drop, subscriber.disconnect, subscriber.drop):
        leave()
        come_back(subscriber)
        expect_same_again(bench, subscriber.expect_publish(acknowledge=False), first)
        subscriber.expect_nothing(Publish, Pubrel)
    subscriber.acknowledge(first)
    expect_nothing_open(bench, subscriber, "although the flow is complete")


@statement("MQTT-4.3.3-4")
def mqtt_4_3_3_4(bench: Bench) -> None:
    """[MQTT-4.3.3-4] PUBREC below 0x80 is answered by PUBREL, above it ends the flow."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    # With a Receive Maximum of 1 the next delivery shows that the flow before has ended.
    subscriber = persistent(bench, "subscriber", topic, properties=[(tables.RECEIVE_MAXIMUM, 1)])
    for reason in (None, 0x00, 0x10):
        with bench.case(f"PUBREC with reason code {reason}"):
            sender.publish(topic, b"good", 2)
            delivery = subscriber.expect_publish(payload=b"good", qos=2, acknowledge=False)
            subscriber.pubrec(packet_id_of(delivery), reason)
            pubrel = subscriber.expect_pubrel(packet_id_of(delivery))
            expect_reason(bench, pubrel, 0x00)
            subscriber.pubcomp(packet_id_of(delivery))
    for reason in (0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99):
        with bench.case(f"PUBREC with reason code 0x{reason:02X}"):
            sender.publish(topic, b"refused", 2)
            delivery = subscriber.expect_publish(payload=b"refused", qos=2, acknowledge=False)
            subscriber.pubrec(packet_id_of(delivery), reason)
            subscriber.expect_nothing(Publish, Pubrel)
    sender.publish(topic, b"last", 2)
    subscriber.expect_publish(payload=b"last", qos=2)
    expect_nothing_open(bench, subscriber, "although every flow has ended")


@statement("MQTT-4.3.3-5")
def mqtt_4_3_3_5(bench: Bench) -> None:
    """[MQTT-4.3.3-5] A PUBREL is open until its PUBCOMP, and sent again on resumption."""
    _, subscriber, delivery = half_done(bench)
    for leave in (subscriber.drop, subscriber.disconnect):
        leave()
        come_back(subscriber)
        subscriber.expect_pubrel(packet_id_of(delivery))
        subscriber.expect_nothing(Publish, Pubrel)
    subscriber.pubcomp(packet_id_of(delivery))
    subscriber.ping()
    expect_nothing_open(bench, subscriber, "after PUBCOMP")


@statement("MQTT-4.3.3-6", wants=("restart",))
def mqtt_4_3_3_6(bench: Bench) -> None:
    """[MQTT-4.3.3-6] Once PUBREL has been sent its PUBLISH is never sent again."""
    own = own_broker(bench)
    sender, subscriber, delivery = half_done(bench)
    for round_ in range(2):
        subscriber.drop()
        if round_ and own is not None:
            restart(own)
            sender = bench.client("sender")
        come_back(subscriber)
        pubrel = subscriber.expect_pubrel(packet_id_of(delivery))
        expect_reason(bench, pubrel, 0x00)
        bench.barrier(sender, subscriber)
        subscriber.expect_nothing()
    subscriber.pubcomp(packet_id_of(delivery))
    sender.publish(bench.topic("t"), b"next", 2)
    subscriber.expect_publish(payload=b"next", dup=False)
    expect_nothing_open(bench, subscriber, "after PUBCOMP")


@statement("MQTT-4.3.3-7", seconds=4)
def mqtt_4_3_3_7(bench: Bench) -> None:
    """[MQTT-4.3.3-7] A QoS 2 message no longer expires once its PUBLISH has been sent."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    subscriber = persistent(bench, "subscriber", topic)
    short = [(tables.MESSAGE_EXPIRY, 1)]
    deliveries = {}
    for payload in (b"published", b"released", b"while away"):
        sender.publish(topic, payload, 2, properties=short)
        packet = subscriber.expect_publish(payload=payload, qos=2, acknowledge=False)
        deliveries[payload] = packet
    released = packet_id_of(deliveries.pop(b"released"))
    subscriber.pubrec(released)
    subscriber.expect_pubrel(released)
    bench.settle(1.0)
    subscriber.drop()
    bench.settle(2.0)
    come_back(subscriber)
    for _ in deliveries:
        again = subscriber.expect_publish(qos=2, acknowledge=False)
        expect_same_again(bench, again, deliveries[again.payload])
        subscriber.acknowledge(again)
    subscriber.expect_pubrel(released)
    subscriber.pubcomp(released)
    expect_nothing_open(bench, subscriber, "although every flow is complete")


# QoS 2, publications


@statement("MQTT-4.3.3-8", wants=("kill",))
def mqtt_4_3_3_8(bench: Bench) -> None:
    """[MQTT-4.3.3-8] A QoS 2 PUBLISH is answered by PUBREC with its id once the broker has it."""
    expect_to_survive(bench, 2)


@statement("MQTT-4.3.3-9", needs=("configure",))
def mqtt_4_3_3_9(bench: Bench) -> None:
    """[MQTT-4.3.3-9] After a PUBREC of 0x80 and above the same id is a new message."""
    if not with_denied_topic(bench):
        bench.not_run("without a denied topic no PUBLISH is refused")
    topic = bench.topic("t")
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    subscriber = subscribed(bench, "subscriber", topic, 2)
    wanted = []
    for dup in (False, True):
        refused = publish_step(sender, DENIED_TOPIC, b"refused", 9)
        if refused.reason < 0x80:
            bench.not_run("the broker does not say that it refused a PUBLISH")
        payload = b"taken %d" % dup
        expect_reason(bench, publish_step(sender, topic, payload, 9, dup=dup), 0x00)
        expect_reason(bench, release_step(sender, 9), 0x00)
        wanted.append(payload)
    expect_only(bench, sender, subscriber, wanted)


@statement("MQTT-4.3.3-10", wants=("restart",))
def mqtt_4_3_3_10(bench: Bench) -> None:
    """[MQTT-4.3.3-10] Until PUBREL a PUBLISH with the same id is answered, not delivered again."""
    own = own_broker(bench)
    topic = bench.topic("t")
    subscriber = persistent(bench, "subscriber", topic)
    sender = persistent(bench, "sender", bench.topic("own"))
    require(bench, sender, qos=2)

    def again(where: str) -> None:
        with bench.case(f"PUBLISH sent again {where}"):
            expect_reason(bench, publish_step(sender, topic, b"once", 9, dup=True), *TAKEN)

    expect_reason(bench, publish_step(sender, topic, b"once", 9), 0x00)
    again("on the same connection")
    sender.drop()
    come_back(sender)
    again("over a reconnect")
    sender.disconnect()
    come_back(sender)
    again("after DISCONNECT")
    if own is not None:
        restart(own)
        come_back(sender)
        come_back(subscriber)
        again("over a restart")
    expect_reason(bench, release_step(sender, 9), 0x00)
    expect_only(bench, sender, subscriber, [b"once"])


@statement("MQTT-4.3.3-11")
def mqtt_4_3_3_11(bench: Bench) -> None:
    """[MQTT-4.3.3-11] A PUBREL is answered by PUBCOMP with its id."""
    sender = persistent(bench, "sender", bench.topic("own"))
    require(bench, sender, qos=2)
    for packet_id in (9, 65_535):
        publish_step(sender, bench.topic("t"), b"x", packet_id)
        expect_reason(bench, release_step(sender, packet_id), 0x00)
        expect_not_found(bench, release_step(sender, packet_id))
    for packet_id in (9, 65_535):
        publish_step(sender, bench.topic("t"), b"x", packet_id)
    come_back(sender)
    for packet_id in (65_535, 9):
        expect_reason(bench, release_step(sender, packet_id), 0x00)
        expect_not_found(bench, release_step(sender, packet_id))


@statement("MQTT-4.3.3-12")
def mqtt_4_3_3_12(bench: Bench) -> None:
    """[MQTT-4.3.3-12] After PUBCOMP a PUBLISH with the same id is a new message."""
    topic = bench.topic("t")
    subscriber = subscribed(bench, "subscriber", topic, 2)
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    wanted = []
    for payload in (b"first", b"second", b"second"):
        for dup in (False, True):
            expect_reason(bench, publish_step(sender, topic, payload, 9, dup=dup), 0x00)
            expect_reason(bench, release_step(sender, 9), 0x00)
            wanted.append(payload)
    expect_only(bench, sender, subscriber, wanted)


@statement("MQTT-4.3.3-13", seconds=3)
def mqtt_4_3_3_13(bench: Bench) -> None:
    """[MQTT-4.3.3-13] The flow of a QoS 2 PUBLISH goes on when its message has expired."""
    sender = persistent(bench, "sender", bench.topic("own"))
    require(bench, sender, qos=2)
    subscribed(bench, "subscriber", bench.topic("heard"), 2)
    away = persistent(bench, "away", bench.topic("away"))
    away.disconnect()
    ids = {1: "heard", 2: "away", 3: "unheard", 4: "away"}
    for packet_id, path in ids.items():
        packet = wire.publish(
            bench.topic(path),
            b"short",
            version=5,
            qos=2,
            packet_id=packet_id,
            properties=[(tables.MESSAGE_EXPIRY, 1)],
        )
        sender.send(packet)
        expect_reason(bench, sender.expect(Pubrec, packet_id=packet_id), *TAKEN)
    bench.settle(3.0)
    for packet_id in ids:
        if packet_id == 4:
            come_back(sender)
        with bench.case(f"published to {ids[packet_id]!r}"):
            expect_reason(bench, release_step(sender, packet_id), 0x00)
