"""MQTT 3.1.1, section 4.7: topic names, topic filters and how they match."""

import time
from collections.abc import Sequence
from typing import Final

from conformance import wire
from conformance.check import Bench, Client, Will, statement
from conformance.packets import Puback, Publish, Suback
from conformance.rules import matches
from conformance.scenes import answer_or_end
from conformance.v311 import scenes

LONGEST: Final = 65_535
# Published to see what a filter matches: with and without a level, an empty level, a look-alike.
PATHS: Final = ("a", "a/", "a/b", "a/b/c", "a//c", "a/x/c", "ab", "b/a", "a/b/c/d")


def _is_refused(bench: Bench, topic_filter: str) -> None:
    """SUBSCRIBE to an invalid filter: SUBACK with 0x80 or the end of the connection."""
    for qos in (0, 2):
        with bench.case(f"filter {topic_filter!r}"):
            client = bench.client("offender")
            client.send(wire.subscribe(7, [(topic_filter, qos)], version=4))
            answer = answer_or_end(client)
            refused = isinstance(answer, Suback) and answer.codes == (0x80,)
            if answer is not None and not refused:
                bench.fail("the filter is granted", answer, expected="code 80 or a close")
            client.drop()


def _matches(bench: Bench, path_filter: str, paths: Sequence[str] = PATHS) -> None:
    """A filter below the prefix of this check is granted and brings what it matches, no more."""
    topic_filter = bench.topic(path_filter)
    with bench.case(f"filter {path_filter!r}"):
        client = bench.client("subscriber")
        scenes.subscribe(bench, client, (topic_filter, 0))
        publisher = bench.client("publisher")
        for path in paths:
            publisher.publish(bench.topic(path), path)
        found = [packet.topic for packet in scenes.deliveries(bench, client, publisher)]
        wanted = [bench.topic(path) for path in paths if matches(topic_filter, bench.topic(path))]
        if found != wanted:
            bench.fail(f"these come: {found}", client.last, expected=f"{wanted}")
        client.disconnect()


def _grants_widest(bench: Bench, topic_filter: str, topic: str) -> None:
    """A filter that takes in other people's topics is granted and brings `topic` as well."""
    with bench.case(f"filter {topic_filter!r}"):
        client = bench.client("wide")
        scenes.subscribe(bench, client, (topic_filter, 0))
        bench.client("publisher").publish(topic, bench.unique)
        found = [packet.topic for packet in _until(client, topic)]
        for other in found:
            if not matches(topic_filter, other):
                bench.fail(f"{other!r} is delivered", client.last, expected="only what matches")
        client.disconnect()


def _until(client: Client, topic: str) -> list[Publish]:
    """Return what comes up to the delivery on `topic`, which has to come."""
    found: list[Publish] = []
    end = time.monotonic() + client.patience
    while not found or found[-1].topic != topic:
        # Other people's messages may go on and on.
        found.append(client.expect_publish(timeout=max(0.0, end - time.monotonic())))
    return found


@statement("MQTT-4.7.1-1")
def mqtt_4_7_1_1(bench: Bench) -> None:
    """[MQTT-4.7.1-1] Wildcards may stand in a filter, never in a topic name."""
    watcher = scenes.watch(bench)
    for path in ("a/+/b", "a/#", "+", "#", "a/b+", "a#/b"):
        topic = bench.topic(path)
        for qos, packet_id in ((0, None), (1, 7), (2, 7)):
            data = wire.publish(topic, b"no", version=4, qos=qos, packet_id=packet_id)
            scenes.is_cut_off(bench, f"PUBLISH at QoS {qos} to {path!r}", data)
        data = scenes.connect(bench.id("offender"), will=Will(topic, b"no", retain=True))
        scenes.is_turned_away(bench, f"will topic {path!r}", data)
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, bench.topic("#"))


@statement("MQTT-4.7.1-2", alone=True)
def mqtt_4_7_1_2(bench: Bench) -> None:
    """[MQTT-4.7.1-2] '#' is a whole level and the last one; it matches the level above as well."""
    for path in ("a#", "a/#/b", "##", "#/a", "a/b#", "#a", "a/##", "#/", "a/#/", "#/#", "+#"):
        _is_refused(bench, bench.topic(path))
    for topic_filter in ("a#", "a/#/b", "##", "#/a", "#/"):
        _is_refused(bench, topic_filter)
    for path in ("a/#", "#", "a/b/#", "a/b/c/d/#", "a//#"):
        _matches(bench, path)
    _grants_widest(bench, "#", bench.topic("a"))
    _grants_widest(bench, "/#", f"/{bench.topic('a')}")


@statement("MQTT-4.7.1-3", alone=True)
def mqtt_4_7_1_3(bench: Bench) -> None:
    """[MQTT-4.7.1-3] '+' takes the place of a whole level, wherever it stands."""
    for path in ("a+", "+a/b", "a/b+", "a/+b/c", "++", "a/++", "+a"):
        _is_refused(bench, bench.topic(path))
    for topic_filter in ("a+", "+a/b", "a/b+", "++"):
        _is_refused(bench, topic_filter)
    for path in ("a/+", "+", "+/+", "a/+/c", "+/#", "a/+/#", "+/b/+", "+/+/+/+", "a/b/+"):
        _matches(bench, path)
    _grants_widest(bench, "+", bench.unique)
    _grants_widest(bench, "+/+", bench.topic("a"))
    _grants_widest(bench, "/+", f"/{bench.unique}")
    _grants_widest(bench, "+/#", bench.topic("a/b"))


@statement("MQTT-4.7.2-1", alone=True)
def mqtt_4_7_2_1(bench: Bench) -> None:
    """[MQTT-4.7.2-1] A filter that begins with a wildcard matches no topic that begins with $."""
    wide = bench.client("wide")
    filters = ["#", "+/x", "+/#", "+/+", "+"]
    scenes.subscribe(bench, wide, *((topic_filter, 0) for topic_filter in filters))
    own = bench.client("own")
    ours = f"$foo{bench.unique}"
    scenes.subscribe(bench, own, (f"{ours}/#", 0), (f"{ours}/+", 0))
    system = bench.client("system")
    scenes.subscribe(bench, system, ("$SYS/#", 0))
    for topic in (f"{ours}/x", f"{ours}/x/y", ours, "$SYS/x"):
        publisher = bench.client("publisher")
        publisher.publish(topic, bench.unique)  # a server may well refuse that
        publisher.send(wire.pingreq())
        publisher.wait_for_end(0.2)
        publisher.drop()
    if not any(packet.topic == ours for packet in scenes.deliveries(bench, own)):
        bench.note("clients cannot exchange messages over topics that begin with $")
    bench.client("publisher").publish(bench.topic("x"), bench.unique)
    bench.settle(1.0)  # many brokers publish $SYS topics every so often
    came = scenes.deliveries(bench, wide)
    for packet in came:
        if packet.topic.startswith("$"):
            bench.fail(f"{packet.topic!r} matches one of {filters}", packet, expected="no $ topic")
    if not any(packet.topic == bench.topic("x") for packet in came):
        bench.fail(f"{bench.topic('x')!r} is not delivered", expected="PUBLISH")
    if not any(packet.topic.startswith("$SYS/") for packet in scenes.deliveries(bench, system)):
        bench.note("nothing comes on $SYS topics")


@statement("MQTT-4.7.3-1")
def mqtt_4_7_3_1(bench: Bench) -> None:
    """[MQTT-4.7.3-1] Topic names and filters have at least one character."""
    for qos, packet_id in ((0, None), (1, 7), (2, 7)):
        data = wire.publish("", b"no", version=4, qos=qos, packet_id=packet_id)
        scenes.is_cut_off(bench, f"PUBLISH at QoS {qos} without a character of topic", data)
    good: wire.Filter = (bench.topic("t"), 0)
    for filters in ([("", 0)], [good, ("", 0)]):
        data = wire.subscribe(7, [*filters], version=4)
        scenes.is_cut_off(bench, f"SUBSCRIBE whose filter {len(filters)} is empty", data)
    for names in ([""], [bench.topic("t"), ""]):
        data = wire.unsubscribe(7, [*names], version=4)
        scenes.is_cut_off(bench, f"UNSUBSCRIBE whose filter {len(names)} is empty", data)
    # One character is enough.
    client = bench.client("a")
    scenes.subscribe(bench, client, ("/", 0))
    bench.client("publisher").publish("/", bench.unique)
    _until(client, "/")


@statement("MQTT-4.7.3-2")
def mqtt_4_7_3_2(bench: Bench) -> None:
    """[MQTT-4.7.3-2] Topic names and filters have no U+0000."""
    watcher = scenes.watch(bench)
    for path in ("a\0b", "\0", "a/\0"):
        topic = bench.topic(path)
        data = wire.publish(topic, b"no", version=4, retain=True)
        scenes.is_cut_off(bench, f"PUBLISH to {path!r}", data)
        data = wire.subscribe(7, [(topic, 0)], version=4)
        scenes.is_cut_off(bench, f"SUBSCRIBE to {path!r}", data)
        data = wire.unsubscribe(7, [topic], version=4)
        scenes.is_cut_off(bench, f"UNSUBSCRIBE from {path!r}", data)
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, bench.topic("#"))


def _delivers_long(bench: Bench, what: str, topic: str) -> None:
    """A long topic is delivered once and as it is, or refused for its length."""
    shown = f"a topic of {what}, {len(topic)} bytes"
    with bench.case(shown):
        subscriber = bench.client("subscriber")
        subscriber.send(wire.subscribe(7, [(topic, 0)], version=4))
        answer = answer_or_end(subscriber)
        if answer is None or (isinstance(answer, Suback) and answer.codes == (0x80,)):
            bench.note(f"a filter like {shown}, is refused")
            subscriber = bench.client("subscriber")
        elif not isinstance(answer, Suback):
            bench.fail("not the answer to SUBSCRIBE", answer, expected="SUBACK")
        publisher = bench.client("publisher")
        publisher.publish(topic, b"long", qos=1, packet_id=7, wait=False)
        answer = answer_or_end(publisher)
        if answer is not None and not isinstance(answer, Puback):
            bench.fail("not the answer to PUBLISH", answer, expected="PUBACK or a close")
        found = scenes.deliveries(bench, subscriber)
        if [(packet.topic, packet.payload) for packet in found] == [(topic, b"long")]:
            return
        if found:
            bench.fail("not delivered as it was published", found[-1], expected="one copy")
        bench.note(f"a message on {shown}, is not delivered")


@statement("MQTT-4.7.3-3")
def mqtt_4_7_3_3(bench: Bench) -> None:
    """[MQTT-4.7.3-3] Topic names and filters have up to 65535 bytes."""
    watcher = scenes.watch(bench, "t")
    publisher = bench.client("other")
    prefix = bench.topic("")
    one_level = prefix + "x" * (LONGEST - len(prefix))
    many_levels = prefix + "/" * (LONGEST - len(prefix))
    letters = (prefix + "y/" * LONGEST)[:LONGEST]
    for what, topic in (
        ("one level", one_level),
        ("empty levels", many_levels),
        ("levels", letters),
    ):
        assert len(topic.encode()) == LONGEST
        _delivers_long(bench, what, topic)
        publisher.publish(bench.topic("t"), what, qos=1)
        watcher.expect_publish(bench.topic("t"), what)
    _delivers_long(bench, "one level", prefix + "z" * 1000)


@statement("MQTT-4.7.3-4")
def mqtt_4_7_3_4(bench: Bench) -> None:
    """[MQTT-4.7.3-4] Topic names are compared with filters character by character: nothing is
    normalised and nothing taken for something else.
    """
    own = bench.unique
    topics = [
        f"{own}/a/b",
        f"{own}/a//b",
        f"/{own}/a/b",
        f"{own}/a/b/",
        f"{own}/A/b",
        f"{own}/\u00e9",
        f"{own}/e\u0301",
        f"{own}/a/ b",
    ]
    subscribers = [bench.client(f"s{number}") for number in range(len(topics))]
    for subscriber, topic in zip(subscribers, topics, strict=True):
        scenes.subscribe(bench, subscriber, (topic, 1))
    publisher = bench.client("publisher")
    for number, topic in enumerate(topics):
        publisher.publish(topic, f"{number}", qos=1, retain=True)
    for number, (subscriber, topic) in enumerate(zip(subscribers, topics, strict=True)):
        with bench.case(f"the subscriber of {topic!r}"):
            got = scenes.only(bench, subscriber, topic, f"{number}".encode(), publisher)
            sent = topic.encode()
            if got.raw[4 : 4 + len(sent)] != sent:
                bench.fail("the bytes of the topic differ", got, expected=sent.hex(" "))
            found = [packet.payload for packet in scenes.retained(bench, topic)]
            if found != [f"{number}".encode()]:
                bench.fail(f"retained: {found}", expected=f"{number}")
