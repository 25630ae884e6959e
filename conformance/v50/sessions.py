"""MQTT 5.0, sections 3.1.2.4, 3.1.2.11.2, 3.1.4: how a session begins, goes on and ends."""

import threading
import time
from typing import Any

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client, Silence
from conformance.deliveries import (
    announced,
    come_back,
    crash,
    expect_only,
    own_broker,
    persistent,
    require,
)
from conformance.failure import Failure
from conformance.packets import Connack, Disconnect
from conformance.scenes import answer_or_end

PROTOCOL_ERROR = 0x82
BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED = 0x86, 0x87
SESSION_TAKEN_OVER = 0x8E
NEVER = 0xFFFFFFFF


def expect_new(bench: Bench, client: Client, **options: object) -> None:
    """Connect with Clean Start 0: there may not be a session."""
    connack = client.connect(**{"clean": False, **options})  # type: ignore[arg-type]
    if connack.session_present:
        bench.fail("there is a session", connack, expected="session present 0")


@statement("MQTT-3.1.2-4")
def mqtt_3_1_2_4(bench: Bench) -> None:
    """[MQTT-3.1.2-4] Clean Start 1 throws the session away and begins an empty one."""
    topic = bench.topic("t")
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    for what, close in (("DISCONNECT", Client.disconnect), ("a lost connection", Client.drop)):
        with bench.case(f"a session left by {what}"):
            client = persistent(bench, "a", topic)
            close(client)
            _let_go(bench, sender)
            for qos in (0, 1, 2):
                sender.publish(topic, f"queued {qos}", qos=qos)
            connack = client.connect(clean=True, session_expiry=60)
            if connack.session_present:
                bench.fail("the old session goes on", connack, expected="session present 0")
            client.expect_nothing(settle=0.1)
            sender.publish(topic, b"after", qos=1)
            expect_only(bench, sender, client, [])
            client.disconnect()
            connack = come_back(client)
            client.expect_nothing(settle=0.1)
            sender.publish(topic, b"after", qos=1)
            expect_only(bench, sender, client, [])
            client.disconnect()
    with bench.case("a session that is in use"):
        old = persistent(bench, "b", topic)
        new = bench.client("b", clean=True, session_expiry=60)
        if announced(new).session_present:
            bench.fail("the old session goes on", announced(new), expected="session present 0")
        sender.publish(topic, b"after", qos=1)
        expect_only(bench, sender, new, [])
        old.drop()


def _let_go(bench: Bench, sender: Client) -> None:
    """Return when the broker has had the time to see that a connection is gone."""
    sender.ping()
    bench.settle(0.1)
    sender.ping()


@statement("MQTT-3.1.2-5", wants=("kill",))
def mqtt_3_1_2_5(bench: Bench) -> None:
    """[MQTT-3.1.2-5] Clean Start 0 goes on with the session there is, after a crash as well."""
    broker = own_broker(bench, "kill")
    topic = bench.topic("t")
    client = persistent(bench, "a", topic)
    client.disconnect()
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    sender.publish(topic, b"1", qos=1)
    sender.publish(topic, b"2", qos=2)
    come_back(client)
    expect_only(bench, sender, client, [b"1", b"2"])
    sender.publish(topic, b"3", qos=1)
    expect_only(bench, sender, client, [b"3"])
    client.drop()
    _let_go(bench, sender)
    sender.publish(topic, b"4", qos=1)
    with bench.case("after a lost connection"):
        come_back(client)
        expect_only(bench, sender, client, [b"4"])
    if broker is None:
        return
    client.disconnect()
    sender.publish(topic, b"5", qos=1)
    sender.publish(topic, b"6", qos=2)
    crash(broker)
    with bench.case("after kill -9"):
        come_back(client)
        sender = bench.client("sender")
        expect_only(bench, sender, client, [b"5", b"6"])
        sender.publish(topic, b"7", qos=1)
        expect_only(bench, sender, client, [b"7"])


@statement("MQTT-3.1.2-6")
def mqtt_3_1_2_6(bench: Bench) -> None:
    """[MQTT-3.1.2-6] Clean Start 0 begins a session where there is none."""
    topic = bench.topic("t")
    client = bench.client("a", connect=False)
    expect_new(bench, client, session_expiry=60)
    client.subscribe(topic, qos=1)
    client.disconnect()
    sender = bench.client("sender")
    sender.publish(topic, b"1", qos=1)
    come_back(client)
    client.expect_publish(topic=topic, payload=b"1", qos=1)
    client.disconnect(0, [(tables.SESSION_EXPIRY, 0)])
    with bench.case("again, after the session has ended"):
        expect_new(bench, client, session_expiry=60)
        sender.publish(topic, b"2", qos=1)
        expect_only(bench, sender, client, [])


@statement("MQTT-3.1.2-23", wants=("restart",), seconds=8)
def mqtt_3_1_2_23(bench: Bench) -> None:
    """[MQTT-3.1.2-23] The session outlives the connection for its Session Expiry Interval."""
    topic = bench.topic("t")
    sender = bench.client("sender")
    for name, expiry in (("zero", 0), ("absent", None)):
        with bench.case(f"Session Expiry Interval {name}"):
            client = bench.client(name, clean=False, session_expiry=expiry)
            client.subscribe(topic, qos=1)
            client.disconnect()
            expect_new(bench, client, session_expiry=expiry)
            client.drop()
            _let_go(bench, sender)
            expect_new(bench, client, session_expiry=expiry)
            client.disconnect()
    timed = {
        name: bench.client(name, clean=False, session_expiry=expiry)
        for name, expiry in (("back", 4), ("late", 2), ("long", 60), ("never", NEVER))
    }
    for client in timed.values():
        client.subscribe(topic, qos=1)
    timed["late"].drop()
    for name in ("back", "long", "never"):
        timed[name].disconnect()
    sender.publish(topic, b"kept", qos=1)
    time.sleep(1.5)
    with bench.case("1.5 of 4 seconds are over"):
        come_back(timed["back"], session_expiry=4)
        timed["back"].expect_publish(topic=topic, payload=b"kept", qos=1)
        timed["back"].drop()
    time.sleep(3.0)
    with bench.case("4.5 seconds after a session with 2 was left"):
        expect_new(bench, timed["late"])
        expect_only(bench, sender, timed["late"], [])
    with bench.case("3 seconds after a session with 4 was left again"):
        come_back(timed["back"])
    for name in ("long", "never"):
        with bench.case(f"4.5 seconds after a session with expiry {name!r} was left"):
            come_back(timed[name])
            timed[name].expect_publish(topic=topic, payload=b"kept", qos=1)
    _expiry_over_restart(bench)


def _expiry_over_restart(bench: Bench) -> None:
    broker = own_broker(bench, "restart")
    if broker is None:
        return
    topic = bench.topic("t")
    never = bench.client("never", clean=False, session_expiry=NEVER)
    never.subscribe(topic, qos=1)
    never.disconnect()
    short = bench.client("short", clean=False, session_expiry=1)
    short.disconnect()
    left = time.monotonic()
    bench.client("sender").publish(topic, b"kept", qos=1)
    broker.stop()
    time.sleep(max(0.0, left + 2.5 - time.monotonic()))
    broker.start()
    with bench.case("a session that never expires, after a restart"):
        come_back(never)
        never.expect_publish(topic=topic, payload=b"kept", qos=1)
    time.sleep(1.2)  # a broker may look for what has expired once a second
    with bench.case("a session that expired while the broker was down"):
        expect_new(bench, short)


@statement("MQTT-3.1.4-2", needs=("configure",))
def mqtt_3_1_4_2(bench: Bench) -> None:
    """[MQTT-3.1.4-2] Who fails authentication is refused, and touches nothing."""
    bench.start(users={"alice": "right", "bob": "other"})
    topic = bench.topic("t")
    good: dict[str, Any] = {"username": "alice", "password": "right"}
    client = bench.client("a", clean=True, session_expiry=60, **good)
    client.subscribe(topic, qos=1)
    bad: tuple[dict[str, object], ...] = (
        {"username": "alice", "password": "wrong"},
        {"username": "alice", "password": "other"},
        {"username": "alice", "password": ""},
        {"username": "alice"},
        {"username": "nobody", "password": "right"},
        {},
    )

    def refuse_all() -> None:
        for fields in bad:
            for clean in (False, True):
                with bench.case(f"{fields or 'anonymous'}, Clean Start {int(clean)}"):
                    raw = bench.client("a", connect=False)
                    raw.send(
                        wire.connect(raw.client_id, version=5, clean=clean, **fields)  # type: ignore[arg-type]
                    )
                    raw.expect_refused(BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED)

    refuse_all()
    with bench.case("the client that was there first"):
        client.ping()
    client.disconnect()
    sender = bench.client("sender", username="bob", password="other")
    sender.publish(topic, b"secret", qos=1)
    refuse_all()
    with bench.case("with the right password"):
        come_back(client, **good)
        client.expect_publish(topic=topic, payload=b"secret", qos=1)
        expect_only(bench, sender, client, [])


def _expect_taken_over(bench: Bench, old: Client) -> None:
    farewell = old.expect_close(SESSION_TAKEN_OVER)
    if not isinstance(farewell, Disconnect) or farewell.reason != SESSION_TAKEN_OVER:
        bench.fail(
            "the older connection is not told why it ends", farewell, expected="DISCONNECT 0x8E"
        )


@statement("MQTT-3.1.4-3")
def mqtt_3_1_4_3(bench: Bench) -> None:
    """[MQTT-3.1.4-3] A second connection with the same id ends the first, with DISCONNECT 0x8E."""
    topic = bench.topic("t")
    sender = bench.client("sender")
    for clean in (True, False):
        with bench.case(f"taken over with Clean Start {int(clean)}"):
            old = persistent(bench, f"a{int(clean)}", topic)
            new = bench.client(old.name, clean=clean, session_expiry=60)
            _expect_taken_over(bench, old)
            assert new.connack is not None
            if new.connack.session_present == clean:
                bench.fail("wrong session present", new.connack, expected=str(int(not clean)))
            sender.publish(topic, b"x", qos=1)
            expect_only(bench, sender, new, [] if clean else [b"x"])
            new.ping()
    _race(bench)


def _race(bench: Bench) -> None:
    """Connect twenty times at once with one id: one connection is left, and it works."""
    clients = [bench.client("race", connect=False) for _ in range(20)]
    accepted: list[Client] = []
    problems: list[Failure] = []

    def connect(client: Client) -> None:
        try:
            client.send(wire.connect(client.client_id, version=5, clean=False))
            answer = answer_or_end(client)  # one that is overtaken may be refused
            if isinstance(answer, Connack) and answer.code == 0:
                client.connack = answer
                accepted.append(client)
        except Failure as problem:
            problems.append(problem)

    threads = [threading.Thread(target=connect, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    with bench.case("20 connections at once"):
        alive = []
        for client in accepted:
            try:
                packet = client.receive(timeout=0.3)
            except Silence:
                client.ping()
                alive.append(client)
                continue
            if not isinstance(packet, Disconnect) or packet.reason != SESSION_TAKEN_OVER:
                bench.fail("ended for another reason", packet, expected="DISCONNECT 0x8E")
            client.expect_close()
        if len(alive) != 1:
            bench.fail(f"{len(alive)} of 20 connections work", expected="exactly one")


@statement("MQTT-3.1.4-4")
def mqtt_3_1_4_4(bench: Bench) -> None:
    """[MQTT-3.1.4-4] Clean Start decides at every CONNECT whether the session goes on."""
    topic = bench.topic("t")
    sender = bench.client("sender")
    client = bench.client("a", connect=False)
    subscribed = False
    for step, (clean, present) in enumerate(
        ((False, False), (False, True), (True, False), (False, True), (True, False))
    ):
        with bench.case(f"connection {step + 1}, Clean Start {int(clean)}"):
            connack = client.connect(clean=clean, session_expiry=300)
            if connack.session_present != present:
                bench.fail("wrong session present", connack, expected=str(int(present)))
            subscribed = subscribed and not clean
            sender.publish(topic, str(step), qos=1)
            expect_only(bench, sender, client, [str(step).encode()] if subscribed else [])
            if step == 0:
                client.subscribe(topic, qos=1)
                subscribed = True
            client.disconnect()


@statement("X-25", seconds=3)
def x_25(bench: Bench) -> None:
    """[X-25] A retained message is gone when its Message Expiry Interval is over."""
    sender = bench.client("sender")
    require(bench, sender, qos=1, retain=True)
    topic, kept = bench.topic("short"), bench.topic("kept")
    expiry = tables.MESSAGE_EXPIRY
    sender.publish(topic, b"short", qos=1, retain=True, properties=[(expiry, 1)])
    sender.publish(kept, b"kept", qos=1, retain=True, properties=[(expiry, 60)])
    early = bench.client("early")
    early.subscribe(topic)
    early.expect_publish(topic=topic, payload=b"short", retain=True)
    time.sleep(2.6)
    late = bench.client("late")
    late.subscribe([(topic, 0), (kept, 0)])
    got = late.expect_publish(topic=kept, payload=b"kept", retain=True)
    left = got.properties.number(expiry)
    if left is None or not 55 <= left <= 58:
        bench.fail(f"Message Expiry Interval {left}", got, expected="60 less the seconds it waited")
    expect_only(bench, sender, late, [])


@statement("X-26", seconds=3)
def x_26(bench: Bench) -> None:
    """[X-26] DISCONNECT may change the Session Expiry Interval, and otherwise leaves it."""
    expiry = tables.SESSION_EXPIRY
    cases: tuple[tuple[str, int, wire.Block | None, bool], ...] = (
        ("kept", 300, None, True),
        ("shorter", 300, [(expiry, 1)], False),
        ("zero", 300, [(expiry, 0)], False),
        ("longer", 1, [(expiry, 300)], True),
        ("never", 1, [(expiry, NEVER)], True),
        ("short", 1, None, False),
    )
    clients = {}
    for name, before, block, _ in cases:
        client = bench.client(name, session_expiry=before)
        client.disconnect(0, block)
        clients[name] = client
    with bench.case("300, then DISCONNECT with 0"):
        expect_new(bench, clients["zero"])
    time.sleep(2.6)
    for name, before, _, present in cases:
        with bench.case(f"{before}, then DISCONNECT ({name}), after 2.6 s"):
            connack = clients[name].connect(clean=False)
            if connack.session_present != present:
                bench.fail("wrong session present", connack, expected=str(int(present)))


@statement("X-27")
def x_27(bench: Bench) -> None:
    """[X-27] DISCONNECT cannot give an expiry to a session that was to end with its connection."""
    will_topic = bench.topic("will")
    watcher = bench.client("watcher")
    watcher.subscribe(will_topic)
    for before in (None, 0):
        for after in (300, NEVER):
            with bench.case(f"Session Expiry Interval {before}, then DISCONNECT with {after}"):
                client = bench.client(
                    "a", session_expiry=before, will=wire.Will(will_topic, b"void")
                )
                client.send(wire.disconnect(0, [(tables.SESSION_EXPIRY, after)]))
                client.expect_close(PROTOCOL_ERROR)
                watcher.expect_publish(topic=will_topic, payload=b"void")
                client.drop()
                expect_new(bench, client)
                client.disconnect()
