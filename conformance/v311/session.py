"""MQTT 3.1.1, sections 3.1.2.4 and 4.1: CleanSession and how long a session is kept."""

import time
from typing import Final

from conformance import wire
from conformance.check import Bench, Client, statement
from conformance.packets import Pubcomp, Publish, Pubrec, Pubrel
from conformance.v311 import scenes

IDLE_S: Final = 6.0  # three times the keep alive of the idle connection


@statement("MQTT-3.1.2-4", wants=("restart",), seconds=4)
def mqtt_3_1_2_4(bench: Bench) -> None:
    """[MQTT-3.1.2-4] With CleanSession 0 the server goes on with the stored session of the client
    id, or makes one, and keeps it when the connection ends.
    """
    restarts = scenes.restartable(bench)
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", clean=False)
    scenes.subscribe(bench, subscriber, (topic, 1))
    publisher = bench.client("publisher")
    for number, leave in enumerate((subscriber.disconnect, subscriber.close, subscriber.drop)):
        leave()
        publisher.publish(topic, f"{number}", qos=1)
        scenes.resume(bench, subscriber)
        scenes.only(bench, subscriber, topic, f"{number}".encode(), publisher)
    if not restarts:
        return
    subscriber.disconnect()
    publisher.publish(topic, "before the restart", qos=1)
    scenes.restart(bench)
    publisher.connect()
    publisher.publish(topic, "after the restart", qos=1)
    scenes.resume(bench, subscriber)
    subscriber.expect_publish(topic, "before the restart", qos=1)
    scenes.only(bench, subscriber, topic, b"after the restart", publisher)
    publisher.publish(topic, "live", qos=1)
    scenes.only(bench, subscriber, topic, b"live", publisher)


@statement("MQTT-3.1.2-5")
def mqtt_3_1_2_5(bench: Bench) -> None:
    """[MQTT-3.1.2-5] Messages of QoS 1 and 2 that match a subscription of an absent client with
    CleanSession 0 are kept for it.
    """
    topic = bench.topic("t")
    subscriber = bench.client("subscriber", clean=False)
    scenes.subscribe(bench, subscriber, (topic, 2), (bench.topic("other/+"), 2))
    subscriber.disconnect()
    publisher = bench.client("publisher")
    sent = []
    for number in range(10):
        for qos in (1, 2):
            publisher.publish(topic, f"{number}", qos=qos)
            sent.append((qos, number))
    publisher.publish(bench.topic("unrelated"), b"no", qos=2)
    publisher.disconnect()
    scenes.resume(bench, subscriber)
    found = [(got.qos, int(got.payload)) for got in subscriber.expect_publishes(20)]
    if sorted(found) != sorted(sent):
        bench.fail(
            f"as (QoS, number) these come: {sorted(found)}",
            subscriber.last,
            expected="0 to 9 at QoS 1 and at QoS 2",
        )
    scenes.nothing_comes(bench, subscriber)
    subscriber.disconnect()
    scenes.resume(bench, subscriber)
    scenes.nothing_comes(bench, subscriber)


@statement("MQTT-3.1.2-6")
def mqtt_3_1_2_6(bench: Bench) -> None:
    """[MQTT-3.1.2-6] With CleanSession 1 an older session is dropped and the new one lives as long
    as its connection, leaving nothing to a later session.
    """
    topic = bench.topic("t")
    publisher = bench.client("publisher")

    def comes_back_empty(client: Client, *, clean: bool) -> None:
        connack = client.connect(clean=clean)
        if connack.session_present:
            bench.fail("an old session is there", connack, expected="session present 0")
        publisher.publish(topic, b"live", qos=2)
        scenes.nothing_comes(bench, client, publisher)

    client = bench.client("a", clean=False)
    scenes.subscribe(bench, client, (topic, 2))
    client.disconnect()
    publisher.publish(topic, b"queued", qos=2)
    comes_back_empty(client, clean=True)
    client.disconnect()
    comes_back_empty(client, clean=False)
    client.disconnect()
    for number, name in enumerate(("disconnect", "close", "drop")):
        with bench.case(f"CleanSession 1, ended by {name}"):
            client = bench.client(f"b{number}")
            scenes.subscribe(bench, client, (topic, 2))
            publisher.publish(topic, b"unacknowledged", qos=1)
            client.expect_publish(topic, b"unacknowledged", acknowledge=False)
            {"disconnect": client.disconnect, "close": client.close, "drop": client.drop}[name]()
            bench.settle()
            publisher.publish(topic, b"queued", qos=2)
            comes_back_empty(client, clean=False)


@statement("MQTT-3.1.2-7")
def mqtt_3_1_2_7(bench: Bench) -> None:
    """[MQTT-3.1.2-7] Retained messages are no part of a session and stay when it ends."""
    publisher = bench.client("publisher")
    for qos in (0, 1, 2):
        publisher.publish(bench.topic(f"r/{qos}"), f"kept {qos}", qos=qos, retain=True)
    publisher.disconnect()
    publisher.connect(clean=True)
    publisher.disconnect()
    publisher.connect(clean=False)
    publisher.disconnect()
    found = {got.topic: got.payload for got in scenes.retained(bench, bench.topic("r/#"))}
    for qos in (1, 2):
        payload = found.get(bench.topic(f"r/{qos}"))
        if payload != f"kept {qos}".encode():
            bench.fail(f"retained at QoS {qos}: {payload!r}", expected=f"'kept {qos}'")
    if bench.topic("r/0") not in found:
        bench.note("retained messages of QoS 0 are not kept")


def _half_done(bench: Bench, subscriber: Client, publisher: Client) -> list[Publish]:
    """Leave a QoS 1 delivery, a QoS 2 delivery and a PUBREL of the subscriber unanswered."""
    for number, qos in enumerate((1, 2, 2)):
        publisher.publish(bench.topic("t"), f"open {number}", qos=qos)
    opened = subscriber.expect_publishes(3, acknowledge=False)
    opened.sort(key=lambda got: got.payload)
    assert opened[2].packet_id is not None
    subscriber.pubrec(opened[2].packet_id)
    subscriber.expect_pubrel(opened[2].packet_id)
    return opened


def _is_all_there(
    bench: Bench, subscriber: Client, opened: list[Publish], queued: list[str]
) -> None:
    """What was open comes again in its state under its id; what was queued comes."""
    released = subscriber.expect(Pubrel, packet_id=opened[2].packet_id)
    expected = {(got.payload, got.packet_id, True) for got in opened[:2]}
    again = subscriber.expect_publishes(2, acknowledge=False)
    found = {(got.payload, got.packet_id, got.dup) for got in again}
    if found != expected:
        bench.fail(
            f"as (payload, id, DUP) these come again: {sorted(found)}",
            again[0],
            expected=f"{sorted(expected)}",
        )
    scenes.acknowledge_all(subscriber, again)
    subscriber.pubcomp(released.packet_id)
    for payload in queued:
        subscriber.expect_publish(bench.topic("t"), payload)


@statement("MQTT-4.1.0-1", wants=("kill",))
def mqtt_4_1_0_1(bench: Bench) -> None:
    """[MQTT-4.1.0-1] Session state is kept as long as the session lasts: subscriptions, unfinished
    deliveries, queued messages and half-received QoS 2 messages.
    """
    restarts = scenes.restartable(bench)
    topic = bench.topic("t")
    other = bench.topic("other")
    for crash in (False, True) if restarts else (False,):
        with bench.case("after a crash of the broker" if crash else "after the connection ended"):
            subscriber = bench.client("subscriber", clean=True)
            subscriber.disconnect()
            subscriber.connect(clean=False)
            scenes.subscribe(bench, subscriber, (topic, 2), (other, 1))
            sender = bench.client("sender", clean=False)
            publisher = bench.client("publisher")
            opened = _half_done(bench, subscriber, publisher)
            subscriber.drop()
            for number in range(4):
                publisher.publish(topic, f"queued {number}", qos=1 + number // 2)
            half = wire.publish(topic, b"half", version=4, qos=2, packet_id=77)
            sender.send(half)
            sender.expect(Pubrec, packet_id=77)
            sender.drop()
            if crash:
                scenes.restart(bench, crash=True)
                publisher.connect()
            scenes.resume(bench, subscriber)
            queued = [f"queued {number}" for number in range(4)]
            _is_all_there(bench, subscriber, opened, queued)
            scenes.resume(bench, sender)
            sender.send(wire.publish(topic, b"half", version=4, qos=2, packet_id=77, dup=True))
            sender.expect(Pubrec, packet_id=77)
            sender.pubrel(77)
            sender.expect(Pubcomp, packet_id=77)
            scenes.only(bench, subscriber, topic, b"half", publisher)
            publisher.publish(other, b"live", qos=2)
            subscriber.expect_publish(other, b"live", qos=1)
            sender.disconnect()
            subscriber.disconnect()


@statement("MQTT-4.1.0-2", seconds=6)
def mqtt_4_1_0_2(bench: Bench) -> None:
    """[MQTT-4.1.0-2] A session lasts at least as long as its connection."""
    watcher = scenes.watch(bench, "out")
    publisher = bench.client("publisher")
    clients = []
    for name, clean in (("clean", True), ("kept", False)):
        client = bench.client(name, clean=clean, keep_alive=2)
        scenes.subscribe(bench, client, (bench.topic(name), 2))
        client.publish(bench.topic("out"), name, qos=2, packet_id=9, wait=False)
        client.expect(Pubrec, packet_id=9)
        publisher.publish(bench.topic(name), b"open", qos=1)
        client.expect_publish(bench.topic(name), b"open", acknowledge=False)
        clients.append(client)
    end = time.monotonic() + IDLE_S
    while time.monotonic() < end:
        bench.settle(1.0)
        for client in (*clients, watcher, publisher):
            client.ping()
    for client in clients:
        with bench.case(f"the session of {client.name!r}"):
            # The id is still open: the same PUBLISH again is a repetition.
            client.publish(bench.topic("out"), client.name, 2, dup=True, packet_id=9, wait=False)
            client.expect(Pubrec, packet_id=9)
            client.pubrel(9)
            client.expect(Pubcomp, packet_id=9)
            publisher.publish(bench.topic(client.name), b"live", qos=2)
            client.expect_publish(bench.topic(client.name), b"live", qos=2)
    got = sorted(packet.payload for packet in watcher.expect_publishes(2))
    if got != [b"clean", b"kept"]:
        bench.fail(f"the QoS 2 messages come as {got}", expected="each once")
    scenes.nothing_comes(bench, watcher, publisher)
