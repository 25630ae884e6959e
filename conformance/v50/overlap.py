"""MQTT 5.0, section 3.3.4: one message, several matching subscriptions of one client."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

from conformance import tables
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    arrived,
    come_back,
    persistent,
    require,
    require_available,
    subscribed,
)
from conformance.packets import Publish
from conformance.scenes import subscription_id

ID_MAX: Final = 268_435_455


def received(bench: Bench, sender: Client, subscriber: Client, payload: str) -> list[Publish]:
    """Return the copies of a message, acknowledged; there has to be one at least."""
    bench.barrier(sender, subscriber)
    copies = arrived(subscriber)
    for packet in copies:
        if packet.payload != payload.encode():
            bench.fail("another message", packet, expected=repr(payload))
        subscriber.acknowledge(packet)
    if not copies:
        bench.fail("the message is not delivered", expected="one copy at least")
    return copies


@statement("MQTT-3.3.4-2")
def mqtt_3_3_4_2(bench: Bench) -> None:
    """[MQTT-3.3.4-2] With overlapping subscriptions the highest QoS among them counts."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("a/b")
    grants = {bench.topic("a/#"): 0, bench.topic("a/+"): 2, topic: 1}
    for number, order in enumerate(itertools.permutations(grants.items())):
        subscriber = subscribed(bench, f"order{number}", order)
        for qos in (2, 1, 0):
            payload = f"order {number} at {qos}"
            with bench.case(f"subscribed in the order {[f for f, _ in order]}, published at {qos}"):
                sender.publish(topic, payload, qos)
                copies = received(bench, sender, subscriber, payload)
                check_qos(bench, copies, [min(qos, granted) for granted in grants.values()])
        subscriber.disconnect()
    away = persistent(bench, "away", grants.items())
    away.disconnect()
    sender.publish(topic, "kept", 2)
    come_back(away)
    copies = received(bench, sender, away, "kept")
    check_qos(bench, copies, list(grants.values()))


def check_qos(bench: Bench, copies: list[Publish], allowed: list[int]) -> None:
    """One copy has the best QoS of `allowed`; others have one more of these each."""
    found = Counter(packet.qos for packet in copies)
    if max(found) != max(allowed):
        bench.fail(f"the best copy has QoS {max(found)}", copies[0], expected=f"{max(allowed)}")
    if found - Counter(allowed):
        qos = sorted(packet.qos for packet in copies)
        bench.fail(
            f"copies at QoS {qos}", copies[-1], expected="at most one per filter, at its QoS"
        )


# Filters below a check's prefix that all match a/b/c, with their identifiers (0: none).
Scene = Sequence[tuple[str, int]]
SCENES: Final[Sequence[Scene]] = (
    (("a/#", 1), ("a/+/c", 2), ("a/b/c", 0)),
    (("a/b/c", 5), ("a/b/+", ID_MAX), ("#", 128)),
    (("a/#", 7), ("+/b/c", 7)),
    (("a/b/c", 0), ("a/b/#", 3)),
    (("a/b/c", 0), ("a/b/#", 0)),
)


def play(bench: Bench, scene: Scene) -> tuple[list[int], list[list[int]]]:
    """Subscribe as the scene has it and publish; return its ids, and the ids of each copy."""
    sender = bench.client("sender")
    require_available(bench, sender, tables.SUBSCRIPTION_ID_AVAILABLE)
    subscriber = bench.client("subscriber")
    for path, number in scene:
        properties = subscription_id(subscriber, number) if number else []
        subscriber.subscribe(bench.topic(path), 1, properties)
    sender.publish(bench.topic("a/b/c"), "ids", 1)
    copies = received(bench, sender, subscriber, "ids")
    return (
        sorted(number for _, number in scene if number),
        [packet.properties.subscription_ids() for packet in copies],
    )


@statement("MQTT-3.3.4-3")
def mqtt_3_3_4_3(bench: Bench) -> None:
    """[MQTT-3.3.4-3] Deliveries show the Subscription Identifiers of what they match."""
    for scene in SCENES:
        with bench.case(f"filters and identifiers {list(scene)}"):
            wanted, copies = play(bench, scene)
            found = sorted({number for copy in copies for number in copy})
            if found != sorted(set(wanted)):
                bench.fail(f"identifiers {copies}", expected=f"{wanted}")


@statement("MQTT-3.3.4-4")
def mqtt_3_3_4_4(bench: Bench) -> None:
    """[MQTT-3.3.4-4] A copy that stands for all matching subscriptions shows all their ids."""
    for scene in SCENES:
        with bench.case(f"filters and identifiers {list(scene)}"):
            wanted, copies = play(bench, scene)
            if len(copies) > 1:
                bench.note("the broker sends a copy for each filter: no single one to look at")
                return
            if sorted(copies[0]) != wanted:
                bench.fail(f"identifiers {copies[0]}", expected=f"{wanted}, in any order")


@statement("MQTT-3.3.4-5")
def mqtt_3_3_4_5(bench: Bench) -> None:
    """[MQTT-3.3.4-5] Each of several copies shows the id of the subscription it is for."""
    single = 0
    for scene in SCENES:
        with bench.case(f"filters and identifiers {list(scene)}"):
            _, copies = play(bench, scene)
            single += len(copies) == 1
            left = Counter(number for _, number in scene)
            for copy in copies if len(copies) > 1 else []:
                number = copy[0] if copy else 0
                if len(copy) > 1 or not left[number]:
                    bench.fail(f"identifiers {copies}", expected="one filter's own per copy")
                left[number] -= 1
    if single == len(SCENES):
        bench.note("the broker always sends a single copy: there are never several to look at")
