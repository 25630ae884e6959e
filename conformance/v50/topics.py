"""MQTT 5.0, section 4.7: topic names, topic filters, and which match."""

from collections.abc import Sequence
from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    announced,
    answers,
    arrived,
    expect_only,
    require_available,
    subscribed,
)
from conformance.packets import Disconnect, Packet, Puback, Suback, Unsuback
from conformance.rules import matches
from conformance.scenes import (
    answer_or_end,
    expect_filter_refused,
    has_shared_subscriptions,
)
from conformance.v50.publish import (
    WILDCARD_REFUSALS,
    check_parting,
    expect_wildcard_refused,
)
from conformance.wire import Will

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
FILTER_INVALID: Final = 0x8F
SYS_S: Final = 2.5  # how long to wait for the broker's own $SYS messages
LONGEST: Final = 65_535  # bytes


@statement("MQTT-4.7.0-1")
def mqtt_4_7_0_1(bench: Bench) -> None:
    """[MQTT-4.7.0-1] Wildcards may not stand in a topic name, wherever one is given."""
    observer = subscribed(bench, "observer", bench.topic("#"), 2)
    names = [bench.topic(path) for path in ("a/+", "a/#", "+/b", "a+b", "a#")]
    for topic in names:
        for qos in (0, 1, 2):
            with bench.case(f"PUBLISH to {topic!r} at QoS {qos}"):
                sender = bench.client("sender")
                sender.publish(topic, b"wild", qos, wait=False)
                expect_wildcard_refused(bench, sender, qos)
        with bench.case(f"will topic {topic!r}"):
            dying = bench.client("dying", connect=False)
            will = Will(topic, b"wild will", 1)
            dying.send(wire.connect(dying.client_id, version=5, will=will))
            dying.expect_refused(*WILDCARD_REFUSALS)
            dying.drop()
        with bench.case(f"topic alias for {topic!r}"):
            _try_alias(bench, topic)
    expect_only(bench, bench.client("sender"), observer, [])


def _try_alias(bench: Bench, topic: str) -> None:
    """Neither the PUBLISH that sets the alias nor one that uses it may be taken."""
    sender = bench.client("sender")
    if not announced(sender).properties.number(tables.TOPIC_ALIAS_MAXIMUM):
        return
    alias: list[wire.Property] = [(tables.TOPIC_ALIAS, 1)]
    sender.publish(topic, b"wild alias", 1, properties=alias, wait=False)
    sender.publish("", b"wild by alias", 1, properties=alias, wait=False)
    packets, is_open = answers(sender, Puback)
    taken = [p for p in packets if isinstance(p, Puback) and p.reason < 0x80]
    if taken:
        bench.fail("it is taken", taken[0], expected="a refusal, or the end of the connection")
    if not is_open:
        # The second one is wrong by itself if the first one was refused with a PUBACK.
        rest = [p for p in packets if not isinstance(p, Puback)]
        check_parting(bench, rest, WILDCARD_REFUSALS)


# Filters below the prefix of the check, topics they match, topics they do not match.
Matching = tuple[str, Sequence[str], Sequence[str]]
HASH: Final[Sequence[Matching]] = (
    ("a/#", ("a", "a/", "a/b", "a/b/c", "a//b"), ("b", "aa", "A", "b/a", "/a", "")),
    ("a/b/#", ("a/b", "a/b/", "a/b/c"), ("a", "a/", "a/bb", "b/a/b")),
    ("/#", ("", "/", "/a", "//"), ("a", "a/b")),
)
PLUS: Final[Sequence[Matching]] = (
    ("a/+", ("a/b", "a/", "a/ "), ("a", "a/b/c", "b/a", "aa/b", "a//")),
    ("a/+/c", ("a/b/c", "a//c"), ("a/c", "a/b/b/c", "a/b/cc", "a/b", "a/b/c/")),
    ("+/+", ("a/b", "/", "a/", "/b"), ("a", "a/b/c", "//")),
    ("/+", ("/", "/a"), ("a", "//", "/a/b", "")),
    ("+/a/#", ("/a", "b/a", "b/a/c"), ("a", "a/b", "b/c/a")),
    ("+", ("a", " ", ""), ("/", "a/b", "a/")),
    ("+/", ("a/", "/"), ("a", "a/b")),
)


def expect_matching(bench: Bench, table: Sequence[Matching]) -> None:
    """Each filter is granted and brings just what it should."""
    sender = bench.client("sender")
    require_available(bench, sender, tables.WILDCARD_AVAILABLE)
    paths = sorted({path for _, good, bad in table for path in (*good, *bad)})
    clients = [
        subscribed(bench, f"filter{number}", bench.topic(topic_filter), 1)
        for number, (topic_filter, _, _) in enumerate(table)
    ]
    for path in paths:
        sender.publish(bench.topic(path), path, 1)
    for client, (topic_filter, good, bad) in zip(clients, table, strict=True):
        with bench.case(f"filter {topic_filter!r}, topics {paths}"):
            check_paths(bench, client, sender, set(good), set(bad))


def check_paths(
    bench: Bench, client: Client, sender: Client, good: set[str], bad: set[str]
) -> None:
    """All of `good` has come and nothing of `bad`; payloads are the paths."""
    found: set[str] = set()
    while good - found:
        packet = client.expect_publish()
        found.add(packet.payload.decode())
        if found & bad:
            bench.fail("it does not match", packet, expected=f"deliveries for {sorted(good)}")
    bench.barrier(sender, client)
    for packet in arrived(client):
        if packet.payload.decode() in bad | found:
            bench.fail("it does not match, or came before", packet, expected="nothing more")
        client.acknowledge(packet)


def expect_matching_from_the_top(bench: Bench, table: Sequence[Matching]) -> None:
    """The same for filters that begin with a wildcard: much else may come, it is passed over."""
    sender = bench.client("sender")
    own = bench.unique
    paths = sorted({path for _, good, bad in table for path in (*good, *bad)})
    clients = [
        subscribed(bench, f"top{number}", topic_filter, 0)
        for number, (topic_filter, _, _) in enumerate(table)
    ]
    for path in paths:
        sender.publish(path.replace("@", own), path.replace("@", own))
    for client, (topic_filter, good, _) in zip(clients, table, strict=True):
        with bench.case(f"filter {topic_filter!r}"):
            bench.barrier(sender, client)
            got = {packet.topic for packet in arrived(client) if own in packet.topic}
            wanted = {path.replace("@", own) for path in good}
            if got != wanted:
                bench.fail(f"deliveries on {sorted(got)}", expected=f"{sorted(wanted)}")
            client.disconnect()


# The same without a prefix; @ stands for what only this check uses.
TOP_HASH: Final[Sequence[Matching]] = (
    ("#", ("@", "/@", "@/a", "@/a/b"), ()),
    ("/#", ("/@",), ("@", "@/a", "@/a/b")),
)
TOP_PLUS: Final[Sequence[Matching]] = (
    ("+", ("@",), ("/@", "@/a", "@/a/b")),
    ("+/+", ("/@", "@/a"), ("@", "@/a/b")),
    ("/+", ("/@",), ("@", "@/a", "@/a/b")),
    ("+/a/#", ("@/a", "@/a/b"), ("@", "/@")),
    ("+/#", ("@", "/@", "@/a", "@/a/b"), ()),
)


@statement("MQTT-4.7.1-1", alone=True)
def mqtt_4_7_1_1(bench: Bench) -> None:
    """[MQTT-4.7.1-1] '#' stands for a whole level, and only at the end of a filter."""
    client = bench.client("bad")
    for topic_filter in ("a#", "a/#/b", "##", "#/a", "#/", "a/b#", "a/##", "a/#/", "+#", "#+"):
        with bench.case(f"filter {topic_filter!r}"):
            if not expect_filter_refused(client, bench.topic(topic_filter)):
                client = bench.client("bad")
    for topic_filter in ("##", "#/a", "#a"):
        with bench.case(f"filter {topic_filter!r}"):
            if not expect_filter_refused(client, topic_filter):
                client = bench.client("bad")
    expect_matching(bench, HASH)
    expect_matching_from_the_top(bench, TOP_HASH)


@statement("MQTT-4.7.1-2", alone=True)
def mqtt_4_7_1_2(bench: Bench) -> None:
    """[MQTT-4.7.1-2] '+' stands for a whole level, anywhere in a filter."""
    client = bench.client("bad")
    for topic_filter in ("a+", "+a/b", "a/b+", "a/+b/c", "++", "a/++/b", "+a"):
        for text in (bench.topic(topic_filter), topic_filter):
            with bench.case(f"filter {text!r}"):
                if not expect_filter_refused(client, text):
                    client = bench.client("bad")
    expect_matching(bench, PLUS)
    expect_matching_from_the_top(bench, TOP_PLUS)


def publish_dollar(bench: Bench, topic: str, payload: str) -> None:
    """Publish to a topic with $, which the broker may refuse in any way it likes."""
    sender = bench.client("dollar")
    sender.publish(topic, payload, 1, retain=False, wait=False)
    answers(sender)


@statement("MQTT-4.7.2-1", alone=True, seconds=SYS_S)
def mqtt_4_7_2_1(bench: Bench) -> None:
    """[MQTT-4.7.2-1] A filter that begins with a wildcard matches no topic that begins with $."""
    own = bench.unique
    filters = ["#", "+/x", "+/#", f"+/{own}/x", "+/+/+", f"+/{own}/#"]
    sender = bench.client("sender")
    if has_shared_subscriptions(sender):
        filters += [f"$share/{own}{number}/{f}" for number, f in enumerate(list(filters))]
    clients = [subscribed(bench, f"wild{n}", f, 0) for n, f in enumerate(filters)]
    system = subscribed(bench, "system", [("$SYS/#", 0), (f"$foo/{own}/#", 0), (f"$foo/{own}", 0)])
    for topic in (f"$SYS/{own}/x", f"$foo/{own}/x", f"$foo/{own}", "$foo/x", f"${own}/{own}/x"):
        publish_dollar(bench, topic, own)
    bench.settle(SYS_S)
    for client, topic_filter in zip(clients, filters, strict=True):
        with bench.case(f"filter {topic_filter!r}"):
            for packet in arrived(client):
                if packet.topic.startswith("$"):
                    bench.fail("it matches a topic with $", packet, expected="no such delivery")
            # It does match what has no $; a broker that just forgets the filter would not.
            sender.publish(f"x/{own}/x", topic_filter)
            sender.publish(f"{own}/x", topic_filter)
            bench.barrier(sender, client)
            if topic_filter.encode() not in [packet.payload for packet in arrived(client)]:
                bench.fail("it does not match a topic without $", expected="a delivery")
            client.disconnect()
    if not [packet for packet in arrived(system) if packet.topic.startswith("$")]:
        bench.note("no message on $SYS/# or from another client's $ topic came by")


@statement("MQTT-4.7.3-1")
def mqtt_4_7_3_1(bench: Bench) -> None:
    """[MQTT-4.7.3-1] Topic names and filters have one character at least."""
    client = bench.client("bad")
    filters = ["", *([f"$share/{bench.unique}/"] if has_shared_subscriptions(client) else [])]
    for topic_filter in filters:
        with bench.case(f"SUBSCRIBE to {topic_filter!r}"):
            if not expect_filter_refused(client, topic_filter, 1):
                client = bench.client("bad")
        with bench.case(f"UNSUBSCRIBE from {topic_filter!r}"):
            packet_id = client.next_id()
            client.send(wire.unsubscribe(packet_id, [topic_filter], version=5))
            answer = answer_or_end(client)
            if not isinstance(answer, Unsuback):
                check_parting(bench, [answer] if answer else [], REFUSALS)
                client = bench.client("bad")
            elif answer.codes[0] < 0x80 and (topic_filter == "" or answer.codes[0] == 0):
                bench.fail("it is not refused", answer, expected="UNSUBACK 0x8F or a close")
    for qos in (0, 1, 2):
        with bench.case(f"PUBLISH without a topic at QoS {qos}"):
            sender = bench.client("sender")
            sender.publish("", b"nowhere", qos, wait=False)
            sender.expect_close(PROTOCOL_ERROR)
    with bench.case("will without a topic"):
        dying = bench.client("dying", connect=False)
        dying.send(wire.connect(dying.client_id, version=5, will=Will("", b"nowhere")))
        dying.expect_refused(0x90, PROTOCOL_ERROR, MALFORMED)


REFUSALS: Final = (FILTER_INVALID, MALFORMED, PROTOCOL_ERROR)


@statement("MQTT-4.7.3-2")
def mqtt_4_7_3_2(bench: Bench) -> None:
    """[MQTT-4.7.3-2] U+0000 in a topic name or filter ends the connection."""
    observer = subscribed(bench, "observer", [(bench.topic("#"), 2), (bench.unique, 2)])
    texts = [bench.topic("a\0b"), bench.topic("\0"), bench.unique + "\0", "\0" + bench.unique]
    for text in texts:
        for what, data in (
            ("PUBLISH", wire.publish(text, b"zero", version=5)),
            ("PUBLISH, QoS 1", wire.publish(text, b"zero", version=5, qos=1, packet_id=3)),
            ("SUBSCRIBE", wire.subscribe(3, [(text, 0)], version=5)),
            ("UNSUBSCRIBE", wire.unsubscribe(3, [text], version=5)),
        ):
            with bench.case(f"{what} with {text!r}"):
                client = bench.client("bad")
                client.send(data)
                client.expect_close(MALFORMED)
        with bench.case(f"will topic {text!r}"):
            dying = bench.client("dying", connect=False)
            dying.send(wire.connect(dying.client_id, version=5, will=Will(text, b"zero")))
            dying.expect_refused(MALFORMED)
            dying.drop()
    expect_only(bench, bench.client("sender"), observer, [])


@statement("MQTT-4.7.3-3")
def mqtt_4_7_3_3(bench: Bench) -> None:
    """[MQTT-4.7.3-3] A topic of 65535 bytes goes through, or is refused and does no harm."""
    other = subscribed(bench, "other", bench.topic("plain"), 1)
    prefix = bench.topic("")
    one_level = prefix + "x" * (LONGEST - len(prefix))
    levels = (prefix + "a/" * LONGEST)[:LONGEST]
    for name, topic in (("one level", one_level), ("some 32768 levels", levels)):
        for kind in ("filter", "name", "wildcard"):
            with bench.case(f"topic of {name}: as a {kind}"):
                if not _longest(bench, topic, kind):
                    bench.note(f"65535 bytes, {name}, as a {kind}: refused")
        sender = bench.client("sender")
        sender.publish(bench.topic("plain"), name, 1)
        other.expect_publish(payload=name)


def _longest(bench: Bench, topic: str, kind: str) -> bool:
    """Subscribe and publish; say whether the message arrived. Each may be refused."""
    topic_filter = {
        "filter": topic,
        "name": bench.topic("#"),
        "wildcard": topic[: LONGEST - 2].rpartition("/")[0] + "/#",
    }[kind]
    subscriber = bench.client("subscriber")
    subscriber.send(wire.subscribe(1, [(topic_filter, 1)], version=5))
    answer = answer_or_end(subscriber)
    refused = answer is None or isinstance(answer, Disconnect)
    if isinstance(answer, Suback) and answer.codes[0] >= 0x80:
        refused = True
    if refused:
        check_refusal(bench, answer, (0x8F, 0x95, 0x97, 0x80, 0x83))
        return False
    sender = bench.client("sender")
    sender.send(wire.publish(topic, b"long", version=5, qos=1, packet_id=1))
    answer = answer_or_end(sender)
    if (
        answer is None
        or isinstance(answer, Disconnect)
        or (isinstance(answer, Puback) and answer.reason >= 0x80)
    ):
        check_refusal(bench, answer, (0x90, 0x95, 0x97, 0x80, 0x83))
        subscriber.expect_nothing(settle=0.25)
        return False
    subscriber.expect_publish(topic=topic, payload=b"long", qos=1)
    return True


def check_refusal(bench: Bench, answer: Packet | None, reasons: tuple[int, ...]) -> None:
    """A refusal says so; strict wants a reason that fits."""
    found = None
    if isinstance(answer, Disconnect | Puback):
        found = answer.reason
    elif isinstance(answer, Suback):
        found = answer.codes[0]
    if found is not None and (found < 0x80 or (bench.strict and found not in reasons)):
        names = ", ".join(f"0x{reason:02X}" for reason in reasons)
        bench.fail(f"refused with 0x{found:02X}", answer, expected=names)


@statement("MQTT-4.7.3-4")
def mqtt_4_7_3_4(bench: Bench) -> None:
    """[MQTT-4.7.3-4] Topics are compared as they are written: nothing is normalised."""
    paths = (
        *("a/b", "a//b", "/a/b", "a/b/", "A/b", "a/B", "a/b ", " a/b", "a/./b", "a/../a/b"),
        *("\u00e9", "e\u0301", "E\u0301", "\u00c9", "\ufb01", "fi", "\u212b", "\u00c5"),
        *("\uff41", "a", "%61", "\\a", "a\u200d", "\u00df", "ss", "\u0130", "i\u0307", "\ufeffa"),
    )
    sender = bench.client("sender")
    exact = [
        subscribed(bench, f"path{number}", bench.topic(path), 1)
        for number, path in enumerate(paths)
    ]
    below = [
        subscribed(bench, f"below{number}", bench.topic(path + "/+"), 1)
        for number, path in enumerate(paths)
    ]
    published = [*paths, *(path + "/x" for path in paths)]
    for path in published:
        sender.publish(bench.topic(path), path, 1)
    for path, client, lower in zip(paths, exact, below, strict=True):
        with bench.case(f"filter {path!r}"):
            packet = expect_only(bench, sender, client, [path.encode()])[0]
            if packet.topic != bench.topic(path):
                bench.fail("the topic was changed", packet, expected=repr(path))
        with bench.case(f"filter {path + '/+'!r}"):
            wanted = [other.encode() for other in published if matches(path + "/+", other)]
            expect_only(bench, sender, lower, wanted)


@statement("X-05")
def x_05(bench: Bench) -> None:
    """[X-05] Clients are kept from sending each other messages over topics that begin with $."""
    own = bench.unique
    topics = [f"$foo/{own}", f"${own}", f"$SYS/{own}/x"]
    receiver = bench.client("receiver")
    for topic in topics:
        receiver.send(wire.subscribe(receiver.next_id(), [(topic, 1)], version=5))
        answer = answer_or_end(receiver)
        if not isinstance(answer, Suback):
            bench.note(f"SUBSCRIBE to {topic.replace(own, '...')!r} ends the connection")
            receiver = bench.client("receiver")
    for topic in topics:
        publish_dollar(bench, topic, own)
    sender = bench.client("sender")
    bench.barrier(sender, receiver)
    for packet in arrived(receiver):
        what = f"messages on {packet.topic.replace(own, '...')!r} reach other clients"
        if bench.strict:
            bench.fail(what, packet, expected="they should not")
        bench.note(what)


@statement("X-07", alone=True)
def x_07(bench: Bench) -> None:
    """[X-07] Wildcards in filters are supported."""
    sender = bench.client("sender")
    if announced(sender).properties.number(tables.WILDCARD_AVAILABLE) == 0:
        if bench.strict:
            bench.fail("Wildcard Subscription Available is 0", announced(sender), expected="1")
        bench.not_run("the broker has no wildcard subscriptions, and says so")
    for topic_filter in ("#", "+/x", "+/+", "a/#", "a/+/c"):
        text = topic_filter if topic_filter[0] in "#+" else bench.topic(topic_filter)
        client = bench.client("subscriber")
        suback = client.subscribe(text, 1)
        if suback.codes != (1,):
            bench.fail(f"{topic_filter!r} is not granted", suback, expected="QoS 1")
        client.unsubscribe(text)
    expect_matching(bench, (*HASH[:1], *PLUS[:1]))
