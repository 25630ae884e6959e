"""MQTT 5.0, section 4.9: flow control of what the broker sends; and PINGREQ, section 3.12.

How much of its quota a broker uses is its choice, as long as something goes on. That everything has
been handed out is seen at a second subscriber without a limit.
"""

from typing import Final

from conformance import scenes, tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.packets import Pingresp, Puback, Pubcomp, Publish, Pubrec, Suback, Unsuback

PROTOCOL_ERROR: Final = 0x82
RESUMABLE_S: Final = 300


def receive_maximum(number: int | None) -> list[wire.Property]:
    """Return the properties of CONNECT that say it; None says nothing."""
    return [] if number is None else [(tables.RECEIVE_MAXIMUM, number)]


def publish_to(bench: Bench, topic: str, qualities: list[int], *, first: int = 0) -> None:
    """Publish a numbered message per QoS; return when an unlimited subscriber has got them."""
    publisher = bench.client("publisher")
    watcher = bench.client("watcher")
    watcher.subscribe(topic, 2)
    for number, qos in enumerate(qualities, first):
        publisher.publish(topic, str(number), qos)
    watcher.expect_publishes(len(qualities))
    watcher.disconnect()


def more(bench: Bench, client: Client) -> list[Publish]:
    """Return what else has come by now, nothing acknowledged."""
    bench.settle()
    return scenes.pending(client)


def next_one(client: Client) -> tuple[Publish, int]:
    """Return the next delivery and its packet identifier, not acknowledged."""
    delivery = client.expect_publish(acknowledge=False)
    if delivery.packet_id is None:
        client.fail("a delivery of QoS 0", expected="QoS 1 or 2")
    return delivery, delivery.packet_id


@statement("MQTT-4.9.0-1", seconds=4)
def mqtt_4_9_0_1(bench: Bench) -> None:
    """[MQTT-4.9.0-1] The send quota begins above zero and at most at the Receive Maximum."""
    count = 12
    for maximum in (1, 2, 7, 65_535, None):
        for qos in (1, 2):
            with bench.case(f"Receive Maximum {maximum}, QoS {qos}"):
                topic = bench.topic(f"t{maximum}{qos}")
                client = bench.client("limited", properties=receive_maximum(maximum))
                client.subscribe(topic, qos)
                publish_to(bench, topic, [qos] * count)
                next_one(client)
                open_now = 1 + len(more(bench, client))
                if open_now > (maximum or 65_535):
                    expected = f"at most {maximum} before any acknowledgement"
                    bench.fail(f"{open_now} deliveries", client.last, expected=expected)
                client.disconnect()
    with bench.case("Receive Maximum 0"):
        client = bench.client("limited", connect=False)
        none = receive_maximum(0)
        client.send(wire.connect(client.client_id, version=5, properties=none))
        client.expect_refused(PROTOCOL_ERROR)


def settle(client: Client, delivery: Publish, how: str) -> None:
    """End the QoS flow of a delivery in one of the four ways there are."""
    assert delivery.packet_id is not None
    if how == "PUBACK":
        client.puback(delivery.packet_id)
    elif how == "PUBACK 0x80":
        client.puback(delivery.packet_id, 0x80)
    elif how == "PUBREC 0x80":
        client.pubrec(delivery.packet_id, 0x80)
    else:
        client.pubcomp(delivery.packet_id)


@statement("MQTT-4.9.0-2", seconds=6)
def mqtt_4_9_0_2(bench: Bench) -> None:
    """[MQTT-4.9.0-2] Each QoS 1 or 2 PUBLISH uses up quota, and at zero no further one is sent."""
    limit, count = 2, 5
    for qos, how in ((1, "PUBACK"), (1, "PUBACK 0x80"), (2, "PUBREC 0x80"), (2, "PUBCOMP")):
        with bench.case(f"QoS {qos}, settled by {how}"):
            topic = bench.topic(f"{qos}/{how}")
            client = bench.client("limited", properties=receive_maximum(limit))
            client.subscribe(topic, qos)
            publish_to(bench, topic, [qos] * count)
            begun = [next_one(client)[0], *more(bench, client)]
            expect_at_most(bench, client, begun, limit)
            for ended in range(count - limit):
                oldest = begun[ended]
                if how == "PUBCOMP":
                    # A PUBREC below 0x80 gives no quota back: the delivery still counts.
                    assert oldest.packet_id is not None
                    client.pubrec(oldest.packet_id)
                    client.expect_pubrel(oldest.packet_id)
                    begun += more(bench, client)
                    expect_at_most(bench, client, begun[ended:], limit)
                settle(client, oldest, how)
                if len(begun) < count:
                    begun += [next_one(client)[0], *more(bench, client)]
                expect_at_most(bench, client, begun[ended + 1 :], limit)
            client.disconnect()
    resumed_with_less(bench)


def expect_at_most(bench: Bench, client: Client, unsettled: list[Publish], limit: int) -> None:
    """No more than `limit` deliveries may be open."""
    if len(unsettled) > limit:
        expected = f"at most {limit} that are not settled"
        bench.fail(f"{len(unsettled)} deliveries are open", client.last, expected=expected)


def resumed_with_less(bench: Bench) -> None:
    """What is sent again after a resume uses up the quota of the new connection."""
    topic = bench.topic("again")
    client = bench.client("again", session_expiry=RESUMABLE_S, properties=receive_maximum(4))
    client.subscribe(topic, 2)
    publish_to(bench, topic, [1, 2, 1, 2, 1, 2])
    begun = [next_one(client)[0], *more(bench, client)]
    with bench.case(f"{len(begun)} deliveries begun, resumed with Receive Maximum 2"):
        scenes.resume(client, session_expiry=RESUMABLE_S, properties=receive_maximum(2))
        got: list[str] = []
        while len(got) < 6:
            first, _ = next_one(client)
            unsettled = [first, *more(bench, client)]
            expect_at_most(bench, client, unsettled, 2)
            for delivery in unsettled:
                client.acknowledge(delivery)
            got += scenes.payloads(unsettled)
        if sorted(got) != list("012345"):
            bench.fail(f"delivered {got}", client.last, expected="each of the six messages once")


def with_no_quota(bench: Bench) -> tuple[Client, Publish]:
    """Return a subscriber with Receive Maximum 1 and the delivery it owes an answer, more wait."""
    topic = bench.topic("t")
    client = bench.client("limited", properties=receive_maximum(1))
    client.subscribe(topic, 2)
    publish_to(bench, topic, [2, 2, 2, 2])
    return client, next_one(client)[0]


@statement("MQTT-4.9.0-3")
def mqtt_4_9_0_3(bench: Bench) -> None:
    """[MQTT-4.9.0-3] With the quota at zero everything but QoS 1 and 2 PUBLISH goes on."""
    client, held = with_no_quota(bench)
    other = bench.topic("other")
    client.ping()
    client.subscribe(other, 0, packet_id=301)
    client.unsubscribe(bench.topic("never"), packet_id=302)
    client.publish(bench.topic("elsewhere"), "own", 1, packet_id=303)
    client.publish(bench.topic("elsewhere"), "own", 2, packet_id=304)
    with bench.case("all in one write"):
        client.send(
            wire.subscribe(311, [(bench.topic("o"), 1)], version=5)
            + wire.publish(bench.topic("e"), "own", version=5, qos=1, packet_id=312)
            + wire.pingreq()
            + wire.publish(bench.topic("e"), "own", version=5, qos=2, packet_id=313)
            + wire.unsubscribe(314, [bench.topic("o")], version=5)
        )
        client.expect(Suback, packet_id=311)
        client.expect(Puback, packet_id=312)
        client.expect(Pingresp)
        client.expect(Pubrec, packet_id=313)
        client.expect(Unsuback, packet_id=314)
        client.pubrel(313)
        client.expect(Pubcomp, packet_id=313)
    with bench.case("none of that gives quota back"):
        bench.settle()
        client.expect_nothing()
    with bench.case("PUBREC of the delivery is answered"):
        assert held.packet_id is not None
        client.pubrec(held.packet_id)
        client.expect_pubrel(held.packet_id)


@statement("MQTT-3.12.4-1")
def mqtt_3_12_4_1(bench: Bench) -> None:
    """[MQTT-3.12.4-1] Every PINGREQ is answered by one PINGRESP."""
    for what, client in (("idle", bench.client()), ("no quota", with_no_quota(bench)[0])):
        with bench.case(f"{what}: one after the other"):
            for _ in range(10):
                client.ping()
        with bench.case(f"{what}: ten in one write"):
            client.send(wire.pingreq() * 10)
            for _ in range(10):
                client.expect(Pingresp)
        with bench.case(f"{what}: none too many"):
            # A PINGRESP too many would come before the answer to what is sent next.
            client.subscribe(bench.topic("after"))
            if any(isinstance(packet, Pingresp) for packet in client.inbox):
                bench.fail("a PINGRESP nobody asked for", client.last, expected="one per PINGREQ")
