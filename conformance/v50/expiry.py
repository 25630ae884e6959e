"""MQTT 5.0, section 3.3.2.3.3: messages that expire, and how long they still have."""

import math
import time
from typing import Final

from conformance import tables
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    come_back,
    expect_only,
    own_broker,
    persistent,
    require,
    restart,
    settled,
    subscribed,
)
from conformance.packets import Publish

SHORT: Final = [(tables.MESSAGE_EXPIRY, 1)]
WAIT_S: Final = 3.0
LONG_S: Final = 100
LONG: Final = [(tables.MESSAGE_EXPIRY, LONG_S)]


def publish_both(sender: Client, topic: str, *, retain: bool = False) -> None:
    """Publish at QoS 1 and 2 what expires at once and what does not."""
    for qos in (1, 2):
        sender.publish(f"{topic}/{qos}/short", f"short {qos}", qos, retain, properties=SHORT)
        sender.publish(f"{topic}/{qos}/kept", f"kept {qos}", qos, retain)
        sender.publish(f"{topic}/{qos}/long", f"long {qos}", qos, retain, properties=LONG)


KEPT: Final = [b"kept 1", b"long 1", b"kept 2", b"long 2"]


@statement("MQTT-3.3.2-5", wants=("restart",), seconds=8)
def mqtt_3_3_2_5(bench: Bench) -> None:
    """[MQTT-3.3.2-5] A copy that has expired before its delivery began is deleted."""
    own = own_broker(bench)
    sender = bench.client("sender")
    require(bench, sender, qos=2, retain=True)
    away = persistent(bench, "away", bench.topic("queue/#"))
    later = persistent(bench, "later", bench.topic("queue/#"))
    busy = subscribed(
        bench,
        "busy",
        [(bench.topic("busy"), 2), (bench.topic("queue/#"), 2)],
        properties=[(tables.RECEIVE_MAXIMUM, 1)],
    )
    sender.publish(bench.topic("busy"), b"first", 1)
    first = busy.expect_publish(payload=b"first", acknowledge=False)
    away.disconnect()
    later.disconnect()
    publish_both(sender, bench.topic("queue"))
    publish_both(sender, bench.topic("retained"), retain=True)
    bench.settle(WAIT_S)
    come_back(away)
    busy.acknowledge(first)
    late = subscribed(bench, "late", bench.topic("retained/#"), 2)
    for client in (away, late):
        with bench.case(f"subscriber {client.name!r}"):
            expect_only(bench, sender, client, KEPT)
    expect_none_expired(bench, busy)
    if own is None:
        return
    # What expires while the broker is down; `later` has not been back since.
    publish_both(sender, bench.topic("queue"))
    publish_both(sender, bench.topic("retained"), retain=True)
    own.stop()
    bench.settle(WAIT_S)
    own.start()
    sender = bench.client("sender")
    come_back(later)
    late = subscribed(bench, "late", bench.topic("retained/#"), 2)
    with bench.case("queued over a restart"):
        expect_only(bench, sender, later, KEPT * 2)
    with bench.case("retained over a restart"):
        expect_only(bench, sender, late, KEPT)


def expect_none_expired(bench: Bench, client: Client) -> None:
    """Take what had to wait for the client's Receive Maximum: nothing of it has expired."""
    while packets := settled(bench, client):
        for packet in packets:
            if packet.payload.startswith(b"short"):
                bench.fail("it expired while it waited", packet, expected="nothing expired")
            client.acknowledge(packet)


class Stopwatch:
    """How long a message has been in the broker, seconds: at least and at most."""

    def __init__(self) -> None:
        self._before = time.monotonic()
        self._after = self._before

    def accepted(self) -> None:
        """Note when the broker has acknowledged the message."""
        self._after = time.monotonic()

    def expect(self, bench: Bench, packet: Publish, asked: float) -> None:
        """The packet shows the interval less the wait; at `asked` it was still in the broker.

        A broker that counts whole seconds of its clock may be one second ahead.
        """
        most = LONG_S - max(0, math.floor(asked - self._after))
        least = LONG_S - math.floor(time.monotonic() - self._before) - 1
        found = packet.properties.number(tables.MESSAGE_EXPIRY)
        if found is None or not least <= found <= most:
            bench.fail(
                f"Message Expiry Interval {found}", packet, expected=f"{least} to {most} seconds"
            )


@statement("MQTT-3.3.2-6", wants=("restart",), seconds=6)
def mqtt_3_3_2_6(bench: Bench) -> None:
    """[MQTT-3.3.2-6] A delivery shows the expiry interval that is left, not the one received."""
    own = own_broker(bench)
    sender = bench.client("sender")
    require(bench, sender, qos=2, retain=True)
    topics = {qos: bench.topic(f"t/{qos}") for qos in (1, 2)}
    live = subscribed(bench, "live", bench.topic("t/#"), 2)
    away = persistent(bench, "away", bench.topic("t/#"))
    later = persistent(bench, "later", bench.topic("t/#"))
    busy = subscribed(
        bench,
        "busy",
        [(bench.topic("busy"), 1), (bench.topic("t/#"), 2)],
        properties=[(tables.RECEIVE_MAXIMUM, 1)],
    )
    sender.publish(bench.topic("busy"), b"first", 1)
    first = busy.expect_publish(payload=b"first", acknowledge=False)
    for client in (away, later):
        client.disconnect()
    watches = {}
    for qos, topic in topics.items():
        watches[topic] = Stopwatch()
        sender.publish(topic, b"long", qos, retain=True, properties=LONG)
        watches[topic].accepted()

    def expect_both(client: Client, asked: float) -> None:
        with bench.case(f"subscriber {client.name!r}"):
            for _ in topics:
                packet = client.expect_publish(payload=b"long")
                watches[packet.topic].expect(bench, packet, asked)

    expect_both(live, 0.0)
    plain = subscribed(bench, "plain", bench.topic("none"))
    sender.publish(bench.topic("none"), b"none", 1)
    packet = plain.expect_publish(payload=b"none")
    if tables.MESSAGE_EXPIRY in packet.properties:
        bench.fail("an expiry interval nobody sent", packet, expected="no such property")
    bench.settle(WAIT_S)
    asked = time.monotonic()
    come_back(away)
    busy.acknowledge(first)
    late = subscribed(bench, "late", bench.topic("t/#"), 2)
    for client in (away, busy, late):
        expect_both(client, asked)
    if own is None:
        return
    restart(own)
    bench.settle(1.0)
    asked = time.monotonic()
    come_back(later)
    expect_both(later, asked)
    late = subscribed(bench, "late", bench.topic("t/#"), 2)
    expect_both(late, asked)
