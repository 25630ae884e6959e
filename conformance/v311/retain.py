"""MQTT 3.1.1, section 3.3.1.3: retained messages."""

from conformance.check import Bench, statement
from conformance.packets import Publish
from conformance.v311 import scenes


def _shown(packets: list[Publish]) -> list[tuple[str, bytes, int]]:
    return sorted((packet.topic, packet.payload, packet.qos) for packet in packets)


def _expect_retained(
    bench: Bench, topic_filter: str, expected: list[tuple[str, bytes, int]]
) -> list[Publish]:
    found = scenes.retained(bench, topic_filter)
    if _shown(found) != sorted(expected):
        bench.fail(
            f"as (topic, payload, QoS) a new subscription brings {_shown(found)}",
            found[0] if found else None,
            expected=f"{sorted(expected)}",
        )
    return found


@statement("MQTT-3.3.1-5")
def mqtt_3_3_1_5(bench: Bench) -> None:
    """[MQTT-3.3.1-5] A PUBLISH with RETAIN 1 is stored with its QoS for subscribers to come."""
    publisher = bench.client("publisher")
    stored = []
    for qos in (0, 1, 2):
        publisher.publish(bench.topic(f"r/{qos}"), f"at {qos}", qos=qos, retain=True)
        stored.append((bench.topic(f"r/{qos}"), f"at {qos}".encode(), qos))
    publisher.disconnect()
    found = scenes.retained(bench, bench.topic("r/#"))
    if stored[0] not in _shown(found):
        bench.note("retained messages of QoS 0 are not kept")
    if _shown(found) not in (stored, stored[1:]):
        bench.fail(
            f"as (topic, payload, QoS) a new subscription brings {_shown(found)}",
            found[0] if found else None,
            expected=f"{stored}",
        )
    # For every subscriber to come, not only for the first.
    _expect_retained(bench, bench.topic("r/2"), stored[2:])
    _expect_retained(bench, bench.topic("r/1"), stored[1:2])


@statement("MQTT-3.3.1-6")
def mqtt_3_3_1_6(bench: Bench) -> None:
    """[MQTT-3.3.1-6] A new subscription is sent the last retained message of every topic that
    matches.
    """
    publisher = bench.client("publisher")
    for path in ("a/1", "a/2", "a/3", "a/3/x", "b/1"):
        publisher.publish(bench.topic(path), f"old {path}", qos=1, retain=True)
    for path in ("a/2", "a/3", "b/1"):
        publisher.publish(bench.topic(path), f"new {path}", qos=2, retain=True)
    a_1 = (bench.topic("a/1"), b"old a/1", 1)
    a_2 = (bench.topic("a/2"), b"new a/2", 2)
    a_3 = (bench.topic("a/3"), b"new a/3", 2)
    deep = (bench.topic("a/3/x"), b"old a/3/x", 1)
    _expect_retained(bench, bench.topic("a/+"), [a_1, a_2, a_3])
    _expect_retained(bench, bench.topic("a/2"), [a_2])
    _expect_retained(bench, bench.topic("a/#"), [a_1, a_2, a_3, deep])
    _expect_retained(bench, bench.topic("a/3/#"), [a_3, deep])
    _expect_retained(bench, bench.topic("a"), [])
    # A client that has other subscriptions already is no exception.
    client = scenes.watch(bench, "b/+", name="busy")
    client.expect_publish(bench.topic("b/1"), b"new b/1", retain=True)
    scenes.subscribe(bench, client, (bench.topic("a/1"), 1))
    client.expect_publish(bench.topic("a/1"), b"old a/1", retain=True)


@statement("MQTT-3.3.1-7")
def mqtt_3_3_1_7(bench: Bench) -> None:
    """[MQTT-3.3.1-7] A retained message of QoS 0 displaces the one before, even if the server does
    not keep the new one.
    """
    publisher = bench.client("publisher")
    for qos in (1, 2):
        topic = bench.topic(f"r/{qos}")
        publisher.publish(topic, b"old", qos=qos, retain=True)
        publisher.publish(topic, b"new", qos=0, retain=True)
        publisher.ping()
        found = _shown(scenes.retained(bench, topic))
        if found not in ([(topic, b"new", 0)], []):
            bench.fail(
                f"as (topic, payload, QoS) a new subscription brings {found}",
                expected="the new message or nothing",
            )


@statement("MQTT-3.3.1-8")
def mqtt_3_3_1_8(bench: Bench) -> None:
    """[MQTT-3.3.1-8] A message that is sent because of a new subscription has RETAIN 1."""
    publisher = bench.client("publisher")
    live = scenes.watch(bench)
    for qos in (1, 2):
        publisher.publish(bench.topic(f"r/{qos}"), f"{qos}", qos=qos, retain=True)
        live.expect_publish(bench.topic(f"r/{qos}"))
    for topic_filter in ("r/1", "r/2", "r/+", "#"):
        for granted in (0, 1, 2):
            with bench.case(f"filter {topic_filter!r} at QoS {granted}"):
                client = scenes.watch(bench, topic_filter, qos=granted, name="newcomer")
                count = 1 if topic_filter[-1] in "12" else 2
                for _ in range(count):
                    client.expect_publish(retain=True)
                client.disconnect()
    # Subscribing once more to a filter is a new subscription in this respect.
    scenes.subscribe(bench, live, (bench.topic("#"), 2))
    for _ in range(2):
        live.expect_publish(retain=True)


@statement("MQTT-3.3.1-9")
def mqtt_3_3_1_9(bench: Bench) -> None:
    """[MQTT-3.3.1-9] A message that is sent because of a subscription that was there already has
    RETAIN 0, whatever its publisher set.
    """
    topic = bench.topic("r")
    live = scenes.watch(bench, "r", name="live")
    wild = scenes.watch(bench, name="wild")
    absent = bench.client("absent", clean=False)
    scenes.subscribe(bench, absent, (topic, 2))
    absent.disconnect()
    publisher = bench.client("publisher")
    for qos in (0, 1, 2):
        publisher.publish(topic, f"at {qos}", qos=qos, retain=True)
        for client in (live, wild):
            client.expect_publish(topic, f"at {qos}", qos=qos, retain=False)
    scenes.resume(bench, absent)
    queued = absent.expect_publishes(2)
    for packet in queued + scenes.deliveries(bench, absent, publisher):
        if packet.retain:
            bench.fail("a queued message has RETAIN 1", packet, expected="RETAIN 0")


@statement("MQTT-3.3.1-10")
def mqtt_3_3_1_10(bench: Bench) -> None:
    """[MQTT-3.3.1-10] An empty PUBLISH with RETAIN 1 is delivered as usual and removes the
    retained message of its topic.
    """
    publisher = bench.client("publisher")
    live = scenes.watch(bench, name="live")
    for qos in (0, 1, 2):
        with bench.case(f"removed at QoS {qos}"):
            topic = bench.topic(f"r/{qos}")
            other = bench.topic(f"r/{qos}/other")
            for path in (topic, other):
                publisher.publish(path, b"kept", qos=1, retain=True)
                live.expect_publish(path, b"kept")
            publisher.publish(topic, b"", qos=qos, retain=True)
            live.expect_publish(topic, b"", qos=qos, retain=False)
            publisher.ping()
            scenes.nothing_is_retained(bench, topic)
            _expect_retained(bench, bench.topic(f"r/{qos}/#"), [(other, b"kept", 1)])
    scenes.nothing_comes(bench, live, publisher)


@statement("MQTT-3.3.1-11")
def mqtt_3_3_1_11(bench: Bench) -> None:
    """[MQTT-3.3.1-11] An empty message is never stored as a retained one."""
    publisher = bench.client("publisher")
    for qos in (0, 1, 2):
        unused = bench.topic(f"unused/{qos}")
        publisher.publish(unused, b"", qos=qos, retain=True)
        used = bench.topic(f"used/{qos}")
        publisher.publish(used, b"kept", qos=1, retain=True)
        publisher.publish(used, b"", qos=qos, retain=True)
    publisher.ping()
    scenes.nothing_is_retained(bench, bench.topic("#"))
    scenes.nothing_is_retained(bench, bench.topic("unused/1"))


@statement("MQTT-3.3.1-12")
def mqtt_3_3_1_12(bench: Bench) -> None:
    """[MQTT-3.3.1-12] A PUBLISH with RETAIN 0 neither stores, nor changes, nor removes a retained
    message.
    """
    publisher = bench.client("publisher")
    topic = bench.topic("r")
    publisher.publish(topic, b"kept", qos=1, retain=True)
    for qos in (0, 1, 2):
        publisher.publish(topic, b"passing", qos=qos)
        publisher.publish(topic, b"", qos=qos)
        publisher.publish(bench.topic("other"), b"passing", qos=qos)
        publisher.ping()
        _expect_retained(bench, topic, [(topic, b"kept", 1)])
    scenes.nothing_is_retained(bench, bench.topic("other"))
