"""MQTT 5.0, section 3.2.2.3: what CONNACK says the broker can do, and whether it is true."""

from collections.abc import Callable
from typing import Final

from conformance import tables, wire
from conformance.adapters.base import Option
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import announced, expect_only, subscribed
from conformance.failure import NotRun
from conformance.packets import Disconnect, Packet, Pubrec, Suback
from conformance.scenes import answer_or_end

TOPIC_ALIAS_INVALID = 0x94
PACKET_TOO_LARGE = 0x95
RETAIN_NOT_SUPPORTED = 0x9A
QOS_NOT_SUPPORTED = 0x9B
SHARED_NOT_SUPPORTED = 0x9E
SUBSCRIPTION_ID_NOT_SUPPORTED = 0xA1
WILDCARD_NOT_SUPPORTED = 0xA2


@statement("MQTT-3.2.2-9", needs=("configure",))
def mqtt_3_2_2_9(bench: Bench) -> None:
    """[MQTT-3.2.2-9] A broker without QoS 2, or without QoS 1 and 2, says so in Maximum QoS."""
    for highest in (0, 1):
        with bench.case(f"configured for QoS {highest} at most"):
            bench.start(maximum_qos=highest)
            connack = announced(bench.client("a"))
            if connack.properties.number(tables.MAXIMUM_QOS) != highest:
                bench.fail("Maximum QoS", connack, expected=f"Maximum QoS {highest}")
    with bench.case("configured for every QoS"):
        bench.start()
        topic = bench.topic("t")
        client = subscribed(bench, "a", topic, 2)
        if tables.MAXIMUM_QOS in announced(client).properties:
            bench.fail("Maximum QoS", announced(client), expected="no such property")
        client.publish(topic, b"two", qos=2)
        client.expect_publish(topic=topic, payload=b"two", qos=2)


@statement("MQTT-3.2.2-10", needs=("configure",))
def mqtt_3_2_2_10(bench: Bench) -> None:
    """[MQTT-3.2.2-10] A broker with a Maximum QoS takes subscriptions at every QoS."""
    for highest in (0, 1):
        with bench.case(f"Maximum QoS {highest}"):
            bench.start(maximum_qos=highest)
            client = bench.client("a")
            for qos in (0, 1, 2):
                topic = bench.topic(f"t{qos}")
                suback = client.subscribe(topic, qos=qos)
                if suback.codes[0] > qos:
                    bench.fail(f"SUBSCRIBE at QoS {qos}", suback, expected="a granted QoS")
                client.publish(topic, b"x", qos=highest)
                got = client.expect_publish(topic=topic, payload=b"x")
                if got.qos > highest:
                    bench.fail(f"a delivery at QoS {got.qos}", got, expected=f"QoS {highest}")
            many = client.subscribe([(bench.topic(f"m{qos}"), qos) for qos in (0, 1, 2)])
            if any(code > 2 for code in many.codes):
                bench.fail("three filters at QoS 0, 1 and 2", many, expected="granted QoS each")
            client.ping()


@statement("MQTT-3.2.2-11", needs=("configure",))
def mqtt_3_2_2_11(bench: Bench) -> None:
    """[MQTT-3.2.2-11] A PUBLISH above the Maximum QoS ends the connection."""
    topic = bench.topic("t")
    for highest in (0, 1):
        bench.start(maximum_qos=highest)
        watcher = subscribed(bench, "watcher", topic, 2)
        for qos in range(highest + 1):
            with bench.case(f"Maximum QoS {highest}, PUBLISH at QoS {qos}"):
                client = bench.client("a")
                client.publish(topic, b"fine", qos=qos)
                watcher.expect_publish(topic=topic, payload=b"fine")
        for qos in range(highest + 1, 3):
            with bench.case(f"Maximum QoS {highest}, PUBLISH at QoS {qos}"):
                client = bench.client("a")
                client.send(wire.publish(topic, b"no", version=5, qos=qos, packet_id=1))
                client.expect_close(QOS_NOT_SUPPORTED)
        sender = bench.client("sender")
        sender.publish(topic, b"end")
        watcher.expect_publish(payload=b"end")


@statement("MQTT-3.2.2-12", needs=("configure",))
def mqtt_3_2_2_12(bench: Bench) -> None:
    """[MQTT-3.2.2-12] A CONNECT with a will QoS above the Maximum QoS is refused."""
    for highest in (0, 1):
        bench.start(maximum_qos=highest)
        for qos in (0, 1, 2):
            with bench.case(f"Maximum QoS {highest}, will QoS {qos}"):
                will = wire.Will(bench.topic("will"), qos=qos)
                client = bench.client("a", connect=False)
                client.send(wire.connect(client.client_id, version=5, will=will))
                if qos <= highest:
                    client.expect_connack()
                    client.disconnect()
                else:
                    client.expect_refused(QOS_NOT_SUPPORTED)


@statement("MQTT-3.2.2-13", needs=("configure",))
def mqtt_3_2_2_13(bench: Bench) -> None:
    """[MQTT-3.2.2-13] Without retained messages a CONNECT with will retain 1 is refused."""
    bench.start(retain_available=False)
    for qos in (0, 1, 2):
        for retain in (False, True):
            with bench.case(f"will QoS {qos}, will retain {int(retain)}"):
                will = wire.Will(bench.topic("will"), qos=qos, retain=retain)
                client = bench.client("a", connect=False)
                client.send(wire.connect(client.client_id, version=5, will=will))
                if retain:
                    client.expect_refused(RETAIN_NOT_SUPPORTED)
                else:
                    client.expect_connack()
                    client.disconnect()


@statement("MQTT-3.2.2-14", needs=("configure",))
def mqtt_3_2_2_14(bench: Bench) -> None:
    """[MQTT-3.2.2-14] Where Retain Available is 0, a PUBLISH with RETAIN 1 ends the connection."""
    bench.start(retain_available=False)
    topic = bench.topic("t")
    watcher = subscribed(bench, "watcher", topic, 2)
    connack = announced(watcher)
    if connack.properties.number(tables.RETAIN_AVAILABLE) != 0:
        bench.fail("Retain Available", connack, expected="Retain Available 0")
    for qos in (0, 1, 2):
        with bench.case(f"PUBLISH at QoS {qos}, RETAIN 1"):
            client = bench.client("a")
            packet_id = 1 if qos else None
            client.send(
                wire.publish(topic, b"no", version=5, qos=qos, packet_id=packet_id, retain=True)
            )
            client.expect_close(RETAIN_NOT_SUPPORTED)
    sender = bench.client("sender")
    sender.publish(topic, b"plain", qos=1)
    watcher.expect_publish(topic=topic, payload=b"plain", retain=False)
    late = subscribed(bench, "late", topic)
    expect_only(bench, sender, late, [])


@statement("MQTT-3.2.2-15", needs=("configure",))
def mqtt_3_2_2_15(bench: Bench) -> None:
    """[MQTT-3.2.2-15] A packet above the broker's Maximum Packet Size ends the connection."""
    limit = 2000
    bench.start(maximum_packet_size=limit)
    topic = bench.topic("t")
    watcher = subscribed(bench, "watcher", topic, 0)
    connack = announced(watcher)
    if connack.properties.number(tables.MAXIMUM_PACKET_SIZE) != limit:
        bench.fail("Maximum Packet Size", connack, expected=f"Maximum Packet Size {limit}")
    overhead = len(wire.publish(topic, bytes(1000), version=5)) - 1000
    payload = b"x" * (limit - overhead)
    sender = bench.client("sender")
    with bench.case(f"PUBLISH of {limit} bytes"):
        sender.publish(topic, payload)
        watcher.expect_publish(topic=topic, payload=payload)
    filler = [(tables.USER_PROPERTY, ("k", "v" * limit))]
    for what, data in (
        (f"PUBLISH of {limit + 1} bytes", wire.publish(topic, payload + b"x", version=5)),
        ("PUBLISH of 100,000 bytes", wire.publish(topic, bytes(100_000), version=5)),
        ("SUBSCRIBE", wire.subscribe(1, [(topic, 0)], version=5, properties=filler)),
        ("UNSUBSCRIBE", wire.unsubscribe(1, [topic], version=5, properties=filler)),
        ("PUBLISH of which only the fixed header comes", wire.packet(0x30, b"", limit)),
    ):
        with bench.case(f"Maximum Packet Size {limit}, {what}"):
            client = bench.client("a")
            client.send(data)
            if what.endswith("comes") and not client.wait_for_end(0.5):
                bench.note("the size is not judged on the fixed header alone")
                client.send(bytes(limit))
            client.expect_close(PACKET_TOO_LARGE)
    expect_only(bench, sender, watcher, [])


def _alias_maximum(bench: Bench) -> int:
    """Return the Topic Alias Maximum of a broker that has one, the bench's broker from now on."""
    if bench.has("configure"):
        bench.start(topic_alias_maximum=5)
    maximum = announced(bench.client("probe")).properties.number(tables.TOPIC_ALIAS_MAXIMUM) or 0
    if not maximum:
        bench.not_run("the broker takes no topic aliases")
    return maximum


@statement("MQTT-3.2.2-17", wants=("configure",))
def mqtt_3_2_2_17(bench: Bench) -> None:
    """[MQTT-3.2.2-17] A topic alias above the broker's Topic Alias Maximum is refused."""
    maximum = _alias_maximum(bench)
    topic = bench.topic("t")
    watcher = subscribed(bench, "watcher", topic)
    with bench.case(f"alias {maximum} of {maximum}"):
        client = bench.client("a")
        alias: list[wire.Property] = [(tables.TOPIC_ALIAS, maximum)]
        client.publish(topic, b"1", properties=alias)
        client.publish("", b"2", properties=alias)
        for payload in (b"1", b"2"):
            watcher.expect_publish(topic=topic, payload=payload)
    for wrong in {maximum + 1, min(65_535, maximum + 100), 65_535}:
        if maximum < wrong <= 65_535:
            with bench.case(f"alias {wrong} of {maximum}"):
                client = bench.client("a")
                block = [(tables.TOPIC_ALIAS, wrong)]
                client.send(wire.publish(topic, b"no", version=5, properties=block))
                client.expect_close(TOPIC_ALIAS_INVALID)
    expect_only(bench, bench.client("sender"), watcher, [])


@statement("MQTT-3.2.2-18", needs=("configure",))
def mqtt_3_2_2_18(bench: Bench) -> None:
    """[MQTT-3.2.2-18] Where the broker has no Topic Alias Maximum, every alias is refused."""
    bench.start(topic_alias_maximum=0)
    topic = bench.topic("t")
    watcher = subscribed(bench, "watcher", topic)
    connack = announced(watcher)
    if connack.properties.number(tables.TOPIC_ALIAS_MAXIMUM):
        bench.fail("Topic Alias Maximum", connack, expected="0, or no such property")
    for alias in (1, 65_535):
        for name in (topic, ""):
            with bench.case(f"alias {alias}, topic {name!r}"):
                client = bench.client("a")
                block = [(tables.TOPIC_ALIAS, alias)]
                client.send(wire.publish(name, b"no", version=5, properties=block))
                client.expect_close(TOPIC_ALIAS_INVALID)
    expect_only(bench, bench.client("sender"), watcher, [])


def _try_retain(bench: Bench, client: Client) -> bool:
    topic = bench.topic("capability/retain")
    client.publish(topic, b"kept", retain=True)
    if client.wait_for_end(0.2):
        return False
    late = subscribed(bench, "late", topic)
    late.expect_publish(topic=topic, payload=b"kept", retain=True)
    client.publish(topic, b"", retain=True)
    return True


def _try_filter(
    bench: Bench, client: Client, topic_filter: str, topic: str, block: wire.Block = ()
) -> bool:
    """Subscribe and see a message come; False if the broker refuses the subscription."""
    client.send(wire.subscribe(7, [(topic_filter, 0)], version=5, properties=block))
    answer = answer_or_end(client)
    if not isinstance(answer, Suback) or answer.codes[0] >= 0x80:
        _note_refusal(bench, answer)
        return False
    sender = bench.client("sender")
    sender.publish(topic, b"seen")
    got = client.expect_publish(topic=topic, payload=b"seen")
    if block and got.properties.subscription_ids() != [9]:
        bench.fail("Subscription Identifier", got, expected="Subscription Identifier 9")
    return True


_REFUSALS: Final = frozenset(
    {SHARED_NOT_SUPPORTED, SUBSCRIPTION_ID_NOT_SUPPORTED, WILDCARD_NOT_SUPPORTED}
)


def _note_refusal(bench: Bench, answer: Packet | None) -> None:
    """A refusal names what is not supported: in SUBACK always, in DISCONNECT if strict."""
    code = None
    if isinstance(answer, Suback):
        code = answer.codes[0]
    elif isinstance(answer, Disconnect):
        code = answer.reason
    elif answer is not None:
        bench.fail("not an answer to SUBSCRIBE", answer, expected="SUBACK, or DISCONNECT")
    if bench.strict and code not in _REFUSALS:
        bench.fail("the refusal does not say why", answer, expected="0x9E, 0xA1 or 0xA2")


def _try_wildcard(bench: Bench, client: Client) -> bool:
    return _try_filter(bench, client, bench.topic("w/+"), bench.topic("w/x"))


def _try_subscription_id(bench: Bench, client: Client) -> bool:
    block: list[wire.Property] = [(tables.SUBSCRIPTION_ID, 9)]
    return _try_filter(bench, client, bench.topic("i"), bench.topic("i"), block)


def _try_shared(bench: Bench, client: Client) -> bool:
    return _try_filter(bench, client, f"$share/{bench.unique}/{bench.topic('s')}", bench.topic("s"))


def _try_qos(bench: Bench, client: Client) -> bool:
    topic = bench.topic("capability/qos")
    client.send(wire.publish(topic, b"two", version=5, qos=2, packet_id=1))
    answer = answer_or_end(client)
    return isinstance(answer, Pubrec) and answer.reason < 0x80


_CAPABILITIES: Final[tuple[tuple[int, str, Option, Callable[[Bench, Client], bool]], ...]] = (
    (tables.MAXIMUM_QOS, "maximum_qos", 1, _try_qos),
    (tables.RETAIN_AVAILABLE, "retain_available", False, _try_retain),
    (tables.WILDCARD_AVAILABLE, "wildcard_subscriptions", False, _try_wildcard),
    (tables.SUBSCRIPTION_ID_AVAILABLE, "subscription_identifiers", False, _try_subscription_id),
    (tables.SHARED_AVAILABLE, "shared_subscriptions", False, _try_shared),
)


def _expect_true(bench: Bench, identifier: int, attempt: Callable[[Bench, Client], bool]) -> bool:
    """What CONNACK says of a capability is what the broker does; return whether it has it."""
    client = bench.client("a")
    value = announced(client).properties.number(identifier)
    has_it = value is None if identifier == tables.MAXIMUM_QOS else value != 0
    name = tables.PROPERTY_NAMES[identifier]
    works = attempt(bench, client)
    if works != has_it:
        bench.fail(
            f"{name} is {value}, but it {'works' if works else 'is refused'}",
            announced(client),
            expected="CONNACK and behaviour that agree",
        )
    client.drop()
    return has_it


@statement("X-40", wants=("configure",))
def x_40(bench: Bench) -> None:
    """[X-40] The broker refuses exactly those features that its CONNACK says it has not."""
    for identifier, option, less, attempt in _CAPABILITIES:
        name = tables.PROPERTY_NAMES[identifier]
        with bench.case(name):
            if bench.has("configure"):
                bench.start()
            if not _expect_true(bench, identifier, attempt):
                bench.note(f"the broker has no {name}")
        if not bench.has("configure"):
            continue
        with bench.case(f"{name}, switched off"):
            try:
                bench.start(**{option: less})
            except NotRun as reason:
                bench.note(str(reason))
                continue
            if _expect_true(bench, identifier, attempt):
                bench.fail(f"{name} is not 0", expected=f"{option} {less} to be announced")
