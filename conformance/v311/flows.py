"""MQTT 3.1.1, sections 4.3 to 4.5: the QoS flows, what is sent again, what a receipt promises."""

from typing import Final

from conformance import wire
from conformance.check import Bench, Client, statement
from conformance.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from conformance.v311 import scenes

PIPELINED: Final = 40  # QoS 2 messages published without waiting for an answer


@statement("MQTT-4.3.1-1")
def mqtt_4_3_1_1(bench: Bench) -> None:
    """[MQTT-4.3.1-1] What is sent at QoS 0 has QoS 0 and DUP 0 in its first byte."""
    topic = bench.topic("t")
    live = scenes.watch(bench, "t", qos=0)
    lowest = scenes.watch(bench, "t", qos=2, name="lowest")
    publisher = bench.client("publisher")
    for number in range(5):
        publisher.publish(topic, f"{number}", qos=0, retain=number == 4)
        for subscriber in (live, lowest):
            got = subscriber.expect_publish(topic, f"{number}")
            if got.raw[0] != 0x30:
                bench.fail(f"first byte {got.raw[0]:#04x}", got, expected="0x30")
    for qos in (1, 2):
        publisher.publish(topic, f"at {qos}", qos=qos, dup=True, retain=True)
        got = live.expect_publish(topic, f"at {qos}")
        if got.raw[0] != 0x30:
            bench.fail(f"first byte {got.raw[0]:#04x}", got, expected="0x30")
    late = scenes.watch(bench, "t", qos=0, name="late")
    got = late.expect_publish(topic, b"at 2")
    if got.raw[0] != 0x31:
        bench.fail(f"first byte {got.raw[0]:#04x}", got, expected="0x31")


@statement("MQTT-4.3.2-1")
def mqtt_4_3_2_1(bench: Bench) -> None:
    """[MQTT-4.3.2-1] A sender at QoS 1 takes a free packet identifier and DUP 0, and keeps the
    message as unacknowledged until PUBACK has come.
    """
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", clean=False)
    scenes.subscribe(bench, subscriber, (topic, 1))
    publisher = bench.client("publisher")
    for number in range(3):
        publisher.publish(topic, f"{number}", qos=1)
    opened: dict[int, bytes] = {}
    for _ in range(3):
        got = subscriber.expect_publish(topic, qos=1, dup=False, acknowledge=False)
        if got.packet_id is None or got.packet_id in opened:
            bench.fail("a packet identifier that is in use", got, expected="a free one")
        opened[got.packet_id] = got.payload
    for kept in (3, 2, 1):
        subscriber.drop()
        scenes.resume(bench, subscriber)
        again = {
            p.packet_id: p.payload for p in subscriber.expect_publishes(kept, acknowledge=False)
        }
        if again != opened:
            bench.fail(
                f"as (id, payload) these come again: {sorted(again.items())}",
                subscriber.last,
                expected=f"{sorted(opened.items())}",
            )
        done = min(opened)
        subscriber.puback(done)
        subscriber.ping()
        del opened[done]
    subscriber.drop()
    scenes.resume(bench, subscriber)
    scenes.nothing_comes(bench, subscriber, publisher)


@statement("MQTT-4.3.2-2")
def mqtt_4_3_2_2(bench: Bench) -> None:
    """[MQTT-4.3.2-2] A receiver at QoS 1 answers PUBACK with the identifier, and takes the same
    identifier for a new message afterwards, whatever DUP says.
    """
    topic = bench.topic("t")
    subscriber = scenes.watch(bench, "t")
    publisher = bench.client("publisher", clean=False)
    for number, dup in enumerate((False, True, True, False)):
        data = wire.publish(topic, f"{number}", version=4, qos=1, dup=dup, packet_id=5)
        publisher.send(data)
        publisher.expect(Puback, packet_id=5)
        subscriber.expect_publish(topic, f"{number}", dup=False)
    # Without waiting for the answers in between: as many of them, and as many messages.
    for number in (10, 11, 12):
        publisher.send(wire.publish(topic, f"{number}", version=4, qos=1, packet_id=number))
    answered = sorted(publisher.expect(Puback).packet_id for _ in range(3))
    if answered != [10, 11, 12]:
        bench.fail(f"PUBACKs for {answered}", publisher.last, expected="10, 11 and 12")
    for number in (10, 11, 12):
        subscriber.expect_publish(topic, f"{number}")
    publisher.expect_nothing(Puback)
    scenes.nothing_comes(bench, subscriber, publisher)


@statement("MQTT-4.3.3-1")
def mqtt_4_3_3_1(bench: Bench) -> None:
    """[MQTT-4.3.3-1] A sender at QoS 2 repeats PUBLISH until PUBREC has come and PUBREL until
    PUBCOMP has come, under one free packet identifier, and never PUBLISH after PUBREL.
    """
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", clean=False)
    scenes.subscribe(bench, subscriber, (topic, 2))
    publisher = bench.client("publisher")
    for number in range(2):
        publisher.publish(topic, f"{number}", qos=2)
    first, other = (
        subscriber.expect_publish(topic, qos=2, dup=False, acknowledge=False) for _ in range(2)
    )
    if first.packet_id == other.packet_id:
        bench.fail("a packet identifier that is in use", other, expected="a free one")
    assert first.packet_id is not None and other.packet_id is not None
    subscriber.pubrec(other.packet_id)
    subscriber.expect_pubrel(other.packet_id)
    subscriber.pubcomp(other.packet_id)
    with bench.case("cut before PUBREC"):
        for _ in range(2):
            subscriber.drop()
            scenes.resume(bench, subscriber)
            again = subscriber.expect_publish(topic, first.payload, dup=True, acknowledge=False)
            if again.packet_id != first.packet_id:
                bench.fail("another identifier", again, expected=f"{first.packet_id}")
            scenes.nothing_comes(bench, subscriber, publisher)
    subscriber.pubrec(first.packet_id)
    subscriber.expect_pubrel(first.packet_id)
    with bench.case("cut after PUBREC"):
        for _ in range(2):
            subscriber.drop()
            scenes.resume(bench, subscriber)
            subscriber.expect_pubrel(first.packet_id)
            scenes.nothing_comes(bench, subscriber, publisher)
    subscriber.pubcomp(first.packet_id)
    subscriber.ping()
    with bench.case("cut after PUBCOMP"):
        subscriber.drop()
        scenes.resume(bench, subscriber)
        scenes.nothing_comes(bench, subscriber, publisher)
        subscriber.expect_nothing(Pubrel)
    publisher.publish(topic, b"next", qos=2)
    subscriber.expect_publish(topic, b"next", qos=2, dup=False)


def _pubrec(client: Client, data: bytes, packet_id: int) -> None:
    client.send(data)
    client.expect(Pubrec, packet_id=packet_id)


def _release(client: Client, packet_id: int) -> None:
    client.pubrel(packet_id)
    client.expect(Pubcomp, packet_id=packet_id)


@statement("MQTT-4.3.3-2")
def mqtt_4_3_3_2(bench: Bench) -> None:
    """[MQTT-4.3.3-2] A receiver at QoS 2 answers every PUBLISH of an open identifier with PUBREC
    and delivers it once; PUBREL frees the identifier and is answered by PUBCOMP.
    """
    topic = bench.topic("t")
    subscriber = scenes.watch(bench, "t")
    publisher = bench.client("publisher", clean=False)

    def publish(payload: str, dup: bool) -> bytes:
        return wire.publish(topic, payload, version=4, qos=2, dup=dup, packet_id=9)

    _pubrec(publisher, publish("first", False), 9)
    _pubrec(publisher, publish("first", True), 9)
    publisher.drop()
    scenes.resume(bench, publisher)
    _pubrec(publisher, publish("first", True), 9)
    _release(publisher, 9)
    scenes.only(bench, subscriber, topic, b"first")
    # PUBREL again, as after a lost PUBCOMP, on this connection and on the next.
    _release(publisher, 9)
    publisher.drop()
    scenes.resume(bench, publisher)
    _release(publisher, 9)
    for payload, dup in (("second", False), ("third", True)):
        _pubrec(publisher, publish(payload, dup), 9)
        _pubrec(publisher, publish(payload, True), 9)
        _release(publisher, 9)
        scenes.only(bench, subscriber, topic, payload.encode())
    # The end of the connection between PUBREC and PUBREL.
    _pubrec(publisher, publish("fourth", False), 9)
    publisher.drop()
    scenes.resume(bench, publisher)
    _release(publisher, 9)
    scenes.only(bench, subscriber, topic, b"fourth")


@statement("MQTT-4.4.0-1", wants=("restart",), seconds=4)
def mqtt_4_4_0_1(bench: Bench) -> None:
    """[MQTT-4.4.0-1] When a client comes back with CleanSession 0, unacknowledged PUBLISH and
    PUBREL packets are sent again under their old identifiers.
    """
    restarts = scenes.restartable(bench)
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", clean=False)
    scenes.subscribe(bench, subscriber, (topic, 2))
    publisher = bench.client("publisher")
    for number, qos in enumerate((1, 2, 2)):
        publisher.publish(topic, f"{number}", qos=qos)
    opened = sorted(
        subscriber.expect_publishes(3, acknowledge=False), key=lambda packet: packet.payload
    )
    half = opened.pop()
    assert half.packet_id is not None
    subscriber.pubrec(half.packet_id)
    subscriber.expect_pubrel(half.packet_id)
    ways = ["DISCONNECT", "a cut", "takeover", "a restart"]
    for way in ways if restarts else ways[:-1]:
        with bench.case(f"after {way}"):
            if way == "DISCONNECT":
                subscriber.disconnect()
            elif way == "a cut":
                subscriber.drop()
            elif way == "a restart":
                scenes.restart(bench)
                publisher.connect()
            else:
                subscriber = bench.client("subscriber", connect=False)
            scenes.resume(bench, subscriber)
            subscriber.expect_pubrel(half.packet_id)
            _come_again(bench, subscriber, opened)
    scenes.acknowledge_all(subscriber, opened)
    subscriber.pubcomp(half.packet_id)
    subscriber.ping()
    subscriber.drop()
    scenes.resume(bench, subscriber)
    scenes.nothing_comes(bench, subscriber, publisher)
    subscriber.expect_nothing(Pubrel)


def _come_again(bench: Bench, subscriber: Client, opened: list[Publish]) -> None:
    again = subscriber.expect_publishes(len(opened), acknowledge=False)
    found = {(packet.packet_id, packet.qos, packet.payload, packet.dup) for packet in again}
    expected = {(packet.packet_id, packet.qos, packet.payload, True) for packet in opened}
    if found != expected:
        bench.fail(
            f"as (id, QoS, payload, DUP) these come again: {sorted(found, key=repr)}",
            again[0],
            expected=f"{sorted(expected, key=repr)}",
        )


def _takes_over_many(bench: Bench, publisher: Client, subscribers: list[Client]) -> None:
    """Publish without waiting: whatever is answered has been taken over, so it has to come."""
    ids = range(1000, 1000 + PIPELINED)
    publisher.send(
        b"".join(
            wire.publish(bench.topic("t"), f"{number}", version=4, qos=2, packet_id=number)
            for number in ids
        )
    )
    for _ in ids:
        publisher.pubrel(publisher.expect(Pubrec).packet_id)
    for _ in ids:
        publisher.expect(Pubcomp)
    for client in subscribers:
        with bench.case(f"{PIPELINED} messages without waiting, to {client.name}"):
            for _ in ids:
                client.expect_publish(bench.topic("t"), qos=2)
            scenes.nothing_comes(bench, client, publisher)


@statement("MQTT-4.5.0-1", wants=("kill",))
def mqtt_4_5_0_1(bench: Bench) -> None:
    """[MQTT-4.5.0-1] A message the server has taken over belongs to the session of every client
    with a matching subscription.
    """
    crashes = scenes.restartable(bench)
    filters = ("t", "#", "+")
    subscribers = []
    for number, topic_filter in enumerate(filters):
        client = bench.client(f"s{number}", clean=False)
        scenes.subscribe(bench, client, (bench.topic(topic_filter), 2))
        subscribers.append(client)
    other = bench.client("other", clean=False)
    scenes.subscribe(bench, other, (bench.topic("x"), 2))
    publisher = bench.client("publisher", clean=False)
    topic = bench.topic("t")
    _takes_over_many(bench, publisher, subscribers)
    for client in (*subscribers[1:], other):  # one stays connected and acknowledges nothing
        client.disconnect()
    publisher.publish(topic, b"at 1", qos=1)
    publisher.publish(topic, b"at 2", qos=2)
    publisher.publish(topic, b"half", qos=2, packet_id=50, wait=False)
    publisher.expect(Pubrec, packet_id=50)
    if crashes:
        scenes.restart(bench, crash=True)
    scenes.resume(bench, publisher)
    _release(publisher, 50)
    for client in subscribers:
        with bench.case(f"client {client.name}"):
            client.drop()
            scenes.resume(bench, client)
            found = sorted(packet.payload for packet in client.expect_publishes(3))
            if found != [b"at 1", b"at 2", b"half"]:
                bench.fail(f"these come: {found}", client.last, expected="each message once")
            scenes.nothing_comes(bench, client, publisher)
    scenes.resume(bench, other)
    scenes.nothing_comes(bench, other, publisher)
