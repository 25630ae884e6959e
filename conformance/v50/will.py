"""MQTT 5.0, sections 3.1.2.5 to 3.1.2.7 and 3.1.3.2 to 3.1.3.4: when and how a will is sent."""

import time
from collections.abc import Callable
from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client, Silence
from conformance.deliveries import (
    come_back,
    crash,
    expect_only,
    own_broker,
    persistent,
    require,
    restart,
)
from conformance.packets import Publish
from conformance.scenes import RETAIN_AS_PUBLISHED
from conformance.wire import Will

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
TOPIC_NAME_INVALID = 0x90
WILL_FLAG, CLEAN_START = 0x04, 0x02
# How far from its due time a will may come: clocks of whole seconds on the early side, a broker
# that looks once a second, and a machine that is busy, on the late one.
EARLY_S: Final = 0.3
LATE_S: Final = 3.0
# Reasons a client may give in DISCONNECT that are no normal end.
ABNORMAL: Final = (0x04, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A))


def watch(bench: Bench, topic_filter: str, name: str = "watcher") -> Client:
    """Return a subscriber that sees the QoS and the RETAIN flag of the will as they were."""
    client = bench.client(name)
    client.subscribe(topic_filter, qos=2 | RETAIN_AS_PUBLISHED)
    return client


def delay(seconds: int) -> list[wire.Property]:
    """Return the will properties with this Will Delay Interval."""
    return [(tables.WILL_DELAY, seconds)]


def expect_at(watcher: Client, began: float, due: dict[bytes, float], quiet: float = 0.5) -> None:
    """Each payload comes once, `due` seconds after `began`, and nothing else.

    `quiet` is how long after the last of them a further one would be noticed, in seconds.
    """
    missing = dict(due)
    last = max(due.values())
    end = began + last + LATE_S
    while (left := end - time.monotonic()) > 0:
        try:
            packet = watcher.receive(left)
        except Silence:
            break
        at = time.monotonic() - began
        if not isinstance(packet, Publish) or packet.payload not in missing:
            watcher.fail(f"after {at:.1f} s", expected=f"no will but {sorted(missing)}")
        seconds = missing.pop(packet.payload)
        if not seconds - EARLY_S <= at <= seconds + LATE_S:
            watcher.fail(f"will {packet.payload!r} after {at:.1f} s", expected=f"{seconds:.1f} s")
        watcher.acknowledge(packet)
        if not missing:
            end = max(began + last, time.monotonic()) + quiet
    if missing:
        watcher.fail(f"no will {sorted(missing)}", expected=f"it within {last + LATE_S:.1f} s")


@statement("MQTT-3.1.2-7", wants=("restart", "kill"), seconds=8)
def mqtt_3_1_2_7(bench: Bench) -> None:
    """[MQTT-3.1.2-7] The will is kept with the session until it is due."""
    broker = own_broker(bench, "restart")
    topic = bench.topic("will")
    watcher = watch(bench, topic)
    client = bench.client("a", session_expiry=60, will=Will(topic, b"late", properties=delay(2)))
    client.drop()
    expect_at(watcher, time.monotonic(), {b"late": 2.0})
    if broker is None:
        return
    for what, again in (("a restart", restart), ("kill -9", crash)):
        with bench.case(f"{what} within the delay"):
            # QoS 1 and a session: the will may go out before the watcher is back.
            keeper = persistent(bench, "keeper", topic)
            will = Will(topic, what, qos=1, properties=delay(1))
            bench.client("b", session_expiry=60, will=will).drop()
            bench.settle(0.2)
            again(broker)
            come_back(keeper)
            got = keeper.expect_publish(topic=topic, payload=what, timeout=1 + LATE_S)
            if got.qos != 1:
                bench.fail("the will came at another QoS", got, expected="QoS 1")
            keeper.expect_nothing(settle=0.5)
            keeper.disconnect()


@statement("MQTT-3.1.2-8", seconds=4)
def mqtt_3_1_2_8(bench: Bench) -> None:
    """[MQTT-3.1.2-8] The will goes out when its delay or the session ends, unless it is void."""
    topic = bench.topic("will")
    watcher = watch(bench, topic)

    def client(name: str, seconds: int, expiry: int, *, absent: bool = False) -> Client:
        will = Will(topic, name, properties=() if absent else delay(seconds))
        return bench.client(name, session_expiry=expiry, will=will)

    fired = [client("now", 0, 300), client("two", 2, 300), client("expiry", 5, 2)]
    fired += [client("absent", 0, 300, absent=True), client("ended", 60, 0)]
    normal = [client("normal", 0, 300), client("normal2", 2, 300), client("normal3", 2, 0)]
    back = client("back", 2, 300)
    anew = client("anew", 1, 300)
    began = time.monotonic()
    for lost in fired:
        lost.drop()
    for ended in normal:
        ended.disconnect()
    back.drop()
    anew.drop()
    bench.settle(0.3)
    back.connect(clean=False, session_expiry=300)
    anew.connect(clean=False, session_expiry=300)
    due = {b"now": 0.0, b"absent": 0.0, b"ended": 0.0, b"two": 2.0, b"expiry": 2.0}
    expect_at(watcher, began, due, quiet=1.5)
    with bench.case("a second CONNECT"):
        twice = client("twice", 0, 300)
        twice.send(wire.connect(twice.client_id, version=5))
        twice.expect_close(0x82)
        watcher.expect_publish(topic=topic, payload="twice")


@statement("MQTT-3.1.2-9")
def mqtt_3_1_2_9(bench: Bench) -> None:
    """[MQTT-3.1.2-9] The will flag brings will properties, topic, payload, QoS and retain."""
    topic = bench.topic("will")
    watcher = watch(bench, bench.topic("will/#"))
    announced = watcher.connack
    assert announced is not None
    highest = announced.properties.number(tables.MAXIMUM_QOS)
    retains = announced.properties.number(tables.RETAIN_AVAILABLE) != 0
    properties: list[wire.Property] = [
        (tables.CONTENT_TYPE, "text/plain"),
        (tables.RESPONSE_TOPIC, "answer/here"),
        (tables.CORRELATION_DATA, b"\x00\xff"),
        (tables.PAYLOAD_FORMAT, 1),
        (tables.USER_PROPERTY, ("k", "v")),
    ]
    for qos in range(1 + (2 if highest is None else highest)):
        for retain in (False, True) if retains else (False,):
            with bench.case(f"will QoS {qos}, will retain {int(retain)}"):
                own = f"{topic}/{qos}{int(retain)}"
                will = Will(own, b"\xc3\xa9", qos=qos, retain=retain, properties=properties)
                bench.client("a", will=will).drop()
                got = watcher.expect_publish(topic=own, payload=b"\xc3\xa9", qos=qos, retain=retain)
                if sorted(got.properties, key=repr) != sorted(properties, key=repr):
                    bench.fail("not the properties of the will", got, expected=repr(properties))
    own_id = bench.id("a")
    head = wire.string(own_id)
    flags = WILL_FLAG | CLEAN_START
    for what, payload in (
        ("nothing of the will", head),
        ("no will topic", head + wire.props()),
        ("no will payload", head + wire.props() + wire.string(topic)),
        ("no will properties", head + wire.string(topic) + wire.binary(b"will")),
    ):
        with bench.case(f"will flag, but {what}"):
            client = bench.client("a", connect=False)
            client.send(wire.connect(version=5, flags=flags, payload=payload))
            client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@statement("MQTT-3.1.2-10", wants=("restart",), seconds=6)
def mqtt_3_1_2_10(bench: Bench) -> None:
    """[MQTT-3.1.2-10] A will that was sent, or that DISCONNECT 0x00 took away, is gone."""
    broker = own_broker(bench, "restart")
    topic = bench.topic("will")
    watcher = persistent(bench, "watcher", topic)
    client = bench.client("a", session_expiry=60, will=Will(topic, b"once"))
    client.drop()
    watcher.expect_publish(topic=topic, payload=b"once")
    with bench.case("a second connection, without a will"):
        client.connect(clean=False, session_expiry=60)
        client.drop()
        watcher.expect_nothing(settle=0.5)
    for code, comes in ((None, False), (0x00, False), (0x04, True)):
        with bench.case(f"DISCONNECT {code}"):
            name = f"d{code}"
            client = bench.client(name, session_expiry=60, will=Will(topic, name))
            client.disconnect(code)
            if comes:
                watcher.expect_publish(topic=topic, payload=name)
            watcher.expect_nothing(settle=0.3)
    with bench.case("DISCONNECT 0x00 before the delay, then the session goes on without a will"):
        client = bench.client("e", session_expiry=1, will=Will(topic, b"e", properties=delay(60)))
        client.disconnect(0)
        watcher.expect_nothing(settle=2.2)
    if broker is not None:
        with bench.case("after a restart"):
            client = bench.client("f", session_expiry=60, will=Will(topic, b"f"))
            client.disconnect(0)
            watcher.disconnect()
            restart(broker)
            come_back(watcher)
            watcher.expect_nothing(settle=1.0)


@statement("MQTT-3.1.2-14")
def mqtt_3_1_2_14(bench: Bench) -> None:
    """[MQTT-3.1.2-14] A will with will retain 0 is an ordinary message."""
    topic = bench.topic("will")
    watcher = watch(bench, topic)
    for qos in (0, 1, 2):
        with bench.case(f"will QoS {qos}"):
            require(bench, watcher, qos=qos)
            bench.client("a", will=Will(topic, b"plain", qos=qos)).drop()
            watcher.expect_publish(topic=topic, payload=b"plain", retain=False)
            late = bench.client("late")
            late.subscribe(topic)
            late.expect_nothing()
            late.disconnect()


@statement("MQTT-3.1.2-15")
def mqtt_3_1_2_15(bench: Bench) -> None:
    """[MQTT-3.1.2-15] A will with will retain 1 becomes the retained message of its topic."""
    topic = bench.topic("will")
    watcher = watch(bench, topic)
    require(bench, watcher, retain=True)
    properties: list[wire.Property] = [
        (tables.CONTENT_TYPE, "text/plain"),
        (tables.USER_PROPERTY, ("b", "1")),
        (tables.USER_PROPERTY, ("a", "2")),
    ]
    for qos in (0, 1, 2):
        with bench.case(f"will QoS {qos}"):
            require(bench, watcher, qos=qos)
            text = f"kept {qos}"
            will = Will(topic, text, qos=qos, retain=True, properties=properties)
            bench.client("a", will=will).drop()
            watcher.expect_publish(topic=topic, payload=text, retain=True)
            late = bench.client("late")
            late.subscribe(topic, qos=2)
            got = late.expect_publish(topic=topic, payload=text, qos=qos, retain=True)
            if sorted(got.properties, key=repr) != sorted(properties, key=repr):
                bench.fail("not the properties of the will", got, expected=repr(properties))
            if got.properties.user() != [("b", "1"), ("a", "2")]:
                bench.fail("user properties in another order", got, expected="b, a")
            late.disconnect()
    with bench.case("an empty will"):
        bench.client("a", will=Will(topic, b"", retain=True)).drop()
        watcher.expect_publish(topic=topic, payload=b"")
        late = bench.client("late")
        late.subscribe(topic)
        late.expect_nothing()


@statement("MQTT-3.1.3-9", seconds=4)
def mqtt_3_1_3_9(bench: Bench) -> None:
    """[MQTT-3.1.3-9] A will does not go out if its session goes on before the delay is over."""
    topic = bench.topic("will")
    watcher = watch(bench, topic)

    def lost(name: str, **options: object) -> Client:
        will = Will(topic, name, properties=delay(2))
        client = bench.client(name, session_expiry=60, will=will)
        client.drop()
        return client

    again, other, _ = lost("again"), lost("other"), lost("away")
    began = time.monotonic()
    time.sleep(0.7)
    again.connect(clean=False, session_expiry=60)
    other.connect(clean=False, session_expiry=60, will=Will(topic, b"new", properties=delay(60)))
    # Nobody comes back for the third: its will shows when the others would have come.
    expect_at(watcher, began, {b"away": 2.0}, quiet=1.5)
    again.disconnect()
    other.disconnect()


@statement("MQTT-3.1.3-10")
def mqtt_3_1_3_10(bench: Bench) -> None:
    """[MQTT-3.1.3-10] The user properties of the will keep their order."""
    topic = bench.topic("will")
    watcher = watch(bench, topic)
    for pairs in (
        [("b", "1"), ("a", "2"), ("b", "3")],
        [("k", "2"), ("k", "1"), ("k", "2"), ("", "")],
        [(f"k{number * 7 % 20}", str(number)) for number in range(20)],
    ):
        properties: list[wire.Property] = [(tables.USER_PROPERTY, pair) for pair in pairs]
        properties.insert(1, (tables.CONTENT_TYPE, "between"))
        bench.client("a", will=Will(topic, b"will", properties=properties)).drop()
        got = watcher.expect_publish(topic=topic, payload=b"will")
        if got.properties.user() != pairs:
            bench.fail("other user properties, or in another order", got, expected=repr(pairs))


@statement("MQTT-3.1.3-11")
def mqtt_3_1_3_11(bench: Bench) -> None:
    """[MQTT-3.1.3-11] The will topic is a UTF-8 string, and a topic name."""
    prefix = bench.topic("will/").encode()
    for bad in (b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"\xff", b"\x00"):
        with bench.case(f"bytes {bad.hex(' ')} in the will topic"):
            client = bench.client("a", connect=False)
            client.send(wire.connect(client.client_id, version=5, will=Will(prefix + bad)))
            client.expect_refused(MALFORMED)
    for wild in (b"+", b"#", b"a/+/b", b"+/a", b"a#", b"a+"):
        with bench.case(f"will topic ending in {wild.decode()}"):
            client = bench.client("a", connect=False)
            client.send(wire.connect(client.client_id, version=5, will=Will(prefix + wild)))
            client.expect_refused(TOPIC_NAME_INVALID, MALFORMED, PROTOCOL_ERROR)


@statement("X-28")
def x_28(bench: Bench) -> None:
    """[X-28] A DISCONNECT with another reason than 0x00 lets the will go out."""
    topic = bench.topic("will")
    watcher = watch(bench, topic)
    for code in ABNORMAL:
        with bench.case(f"DISCONNECT 0x{code:02X}"):
            client = bench.client("a", will=Will(topic, f"{code:02X}"))
            client.disconnect(code)
            watcher.expect_publish(topic=topic, payload=f"{code:02X}")
    with bench.case("DISCONNECT 0x04 with properties"):
        client = bench.client("a", session_expiry=60, will=Will(topic, b"p", properties=delay(60)))
        client.disconnect(0x04, [(tables.SESSION_EXPIRY, 0), (tables.REASON_STRING, "bye")])
        watcher.expect_publish(topic=topic, payload=b"p")
    expect_only(bench, bench.client("sender"), watcher, [])


@statement("X-29", seconds=4)
def x_29(bench: Bench) -> None:
    """[X-29] A will whose delay is longer than the session goes out when the session ends."""
    topic = bench.topic("will")
    watcher = watch(bench, topic)
    began = time.monotonic()
    for name, seconds, expiry in (("two", 60, 2), ("none", 60, 0), ("one", 0xFFFFFFFF, 1)):
        will = Will(topic, name, properties=delay(seconds))
        bench.client(name, session_expiry=expiry, will=will).drop()
    expect_at(watcher, began, {b"none": 0.0, b"one": 1.0, b"two": 2.0})


@statement("X-30", seconds=3)
def x_30(bench: Bench) -> None:
    """[X-30] On a takeover the old will goes out unless its session goes on within its delay."""
    topic = bench.topic("will")
    watcher = watch(bench, topic)
    for clean, expiry, seconds, comes in (
        (True, 300, 0, True),
        (True, 300, 60, True),
        (True, 0, 60, True),
        (False, 0, 0, True),
        (False, 0, 60, True),
        (False, 300, 0, True),
        (False, 300, 60, False),
    ):
        with bench.case(
            f"old expiry {expiry} and will delay {seconds}, new Clean Start {int(clean)}"
        ):
            name = f"c{int(clean)}e{expiry}d{seconds}"
            will = Will(topic, name, properties=delay(seconds))
            old = bench.client(name, session_expiry=expiry, will=will)
            new = bench.client(name, clean=clean, session_expiry=300)
            old.drop()
            if comes:
                watcher.expect_publish(topic=topic, payload=name)
            watcher.expect_nothing(settle=0.3)
            present = not clean and expiry > 0
            if new.connack is None or new.connack.session_present != present:
                bench.fail("wrong session present", new.connack, expected=str(int(present)))
            new.disconnect()
            watcher.expect_nothing(settle=0.1)


@statement("X-41", needs=("restart", "kill"), seconds=10)
def x_41(bench: Bench) -> None:
    """[X-41] A will may wait for a broker that was stopped or killed, but it is not lost."""
    ends: tuple[tuple[str, Callable[[], None]], ...] = (
        ("kill -9", bench.broker.kill),
        ("SIGTERM", bench.broker.stop),
    )
    for number, (what, end) in enumerate(ends):
        topic = bench.topic(f"will/{number}")
        kept = bench.topic(f"kept/{number}")
        with bench.case(f"{what} while clients with wills are connected"):
            watcher = persistent(bench, f"watcher{number}", topic)
            wills = [
                (f"plain{number}", 0, Will(topic, b"plain", qos=1)),
                (f"session{number}", 60, Will(topic, b"session", qos=1)),
                (f"delayed{number}", 60, Will(topic, b"delayed", qos=1, properties=delay(1))),
                (f"retained{number}", 60, Will(kept, b"retained", qos=1, retain=True)),
            ]
            for name, expiry, will in wills:
                bench.client(name, session_expiry=expiry, will=will)
            time.sleep(1.2)  # a broker may write its state once a second
            watcher.disconnect()
            end()
            bench.broker.start()
            come_back(watcher)
            due = {b"plain": 0.0, b"session": 0.0, b"delayed": 0.0}
            expect_at(watcher, time.monotonic(), due, quiet=1.5)
            late = bench.client("late")
            late.subscribe(kept)
            late.expect_publish(topic=kept, payload=b"retained", retain=True)
