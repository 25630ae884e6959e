"""MQTT 5.0, section 3.2: when CONNACK comes, what it says, what it may not hold."""

import time
from typing import Any, Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import announced, come_back, persistent, require, restart
from conformance.failure import NotRun, Violation
from conformance.packets import Connack, Pingresp, Suback
from conformance.scenes import answer_within
from conformance.v50 import auth
from conformance.v50.connect_payload import anonymous
from conformance.v50.connect_properties import expect_silence_to_end

NOT_AUTHORIZED, BAD_USER_NAME_OR_PASSWORD = 0x87, 0x86


def refusals(bench: Bench, extra: list[wire.Property] | None = None) -> list[tuple[str, bytes]]:
    """Return CONNECT packets of 5.0 that are wrong; `extra` properties come first in each."""
    own = bench.id("refused")
    block = extra or []

    def connect(*properties: wire.Property, **fields: object) -> bytes:
        return wire.connect(own, version=5, clean=False, properties=[*block, *properties], **fields)  # type: ignore[arg-type]

    return [
        ("the reserved flag", connect(flags=0x01)),
        ("will QoS 3", connect(will=wire.Will(bench.topic("w")), flags=0x1C)),
        ("an unknown property", connect(b"\x7f\x00")),
        ("Receive Maximum 0", connect((tables.RECEIVE_MAXIMUM, 0))),
        ("Session Expiry Interval twice", connect((0x11, 9), (0x11, 9))),
        ("Authentication Data only", connect((tables.AUTH_DATA, b"x"))),
        ("an unknown method", connect((tables.AUTH_METHOD, "no such method"))),
        ("a wildcard in the will topic", connect(will=wire.Will(bench.topic("#")))),
        ("bytes behind the end", connect(trailing=b"\x00\x00")),
    ]


def refuse(bench: Bench, data: bytes, *codes: int) -> Connack | None:
    """Send a CONNECT that is wrong; return the CONNACK that refuses it, None if it is only closed.

    None and a note if the broker accepts it, which is the fault of another statement.
    """
    client = bench.client("refused", connect=False)
    client.send(data)
    answer = client.peek()
    if isinstance(answer, Connack) and answer.code == 0:
        bench.note(f"accepted: {data.hex(' ')}")
        client.drop()
        return None
    answer = client.expect_refused(*codes)
    return answer if isinstance(answer, Connack) else None


@statement("MQTT-3.2.0-1")
def mqtt_3_2_0_1(bench: Bench) -> None:
    """[MQTT-3.2.0-1] Nothing but AUTH comes before a CONNACK with reason 0x00."""
    topic = bench.topic("t")
    client = persistent(bench, "a", topic)
    client.disconnect()
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    for number in range(20):
        sender.publish(topic, str(number), qos=1 + number % 2)
    again = bench.client("a", connect=False)
    again.send(
        wire.connect(
            again.client_id, version=5, clean=False, properties=[(tables.SESSION_EXPIRY, 60)]
        )
        + wire.subscribe(7, [(bench.topic("new"), 0)], version=5)
        + wire.pingreq()
    )
    first = again.receive()
    if not isinstance(first, Connack) or first.code or not first.session_present:
        bench.fail("the first packet", first, expected="CONNACK 0x00 with session present 1")
    again.connack = first
    again.expect(Suback, packet_id=7)
    again.expect(Pingresp)
    found = {again.expect_publish(topic=topic).payload for _ in range(20)}
    if found != {str(number).encode() for number in range(20)}:
        bench.fail("not all queued messages", expected="20 messages")


@statement("MQTT-3.2.0-2", wants=("configure",))
def mqtt_3_2_0_2(bench: Bench) -> None:
    """[MQTT-3.2.0-2] A connection gets one CONNACK and no more."""
    # On every connection of every check a second CONNACK is a fault; here it is provoked.
    for what, name, clean in (
        ("the same CONNECT", "a", True),
        ("Clean Start 0", "a", False),
        ("another identifier", "b", True),
    ):
        with bench.case(f"CONNECT, and then {what}"):
            client = bench.client("a", clean=True)
            client.send(wire.connect(bench.id(name), version=5, clean=clean))
            client.expect_close(0x82)
    with bench.case("two CONNECT packets in one write"):
        client = bench.client("c", connect=False)
        client.send(wire.connect(client.client_id, version=5) * 2)
        client.expect_connack()
        client.expect_close(0x82)
    with bench.case("a CONNECT that is sent, and nothing else"):
        client = bench.client("d")
        rest = client.drain()
        if rest:
            bench.fail("more than a CONNACK", rest[0], expected="nothing more")
    if bench.has("configure") and auth.started(bench):
        _authenticates_again(bench)


def _authenticates_again(bench: Bench) -> None:
    """An exchange that is like the one of CONNECT must not end with CONNACK again."""
    with bench.case("authentication, and then again"):
        client = auth.authenticated(bench)
        for _ in range(2):
            auth.finish(client, *auth.again(client))
        rest = client.drain()
        if rest:
            bench.fail("more than AUTH", rest[0], expected="nothing more")


@statement("MQTT-3.2.2-1")
def mqtt_3_2_2_1(bench: Bench) -> None:
    """[MQTT-3.2.2-1] Of the acknowledge flags only the lowest bit is ever set."""
    # The parser of the suite looks at the flags of every CONNACK; here each kind of them comes.
    client = bench.client("a", session_expiry=60)
    client.disconnect()
    connack = client.connect(clean=False, session_expiry=60)
    flags = [announced(client).raw[2]]
    if connack.raw[2] != 1:
        bench.fail("acknowledge flags", connack, expected="0x01, as there is a session")
    client.disconnect()
    connack = client.connect(clean=True)
    flags.append(connack.raw[2])
    if connack.raw[2] != 0:
        bench.fail("acknowledge flags", connack, expected="0x00, as there is no session")
    for what, data in refusals(bench):
        with bench.case(f"CONNECT with {what}"):
            answer = refuse(bench, data)
            if answer is not None and answer.raw[2] != 0:
                bench.fail("acknowledge flags", answer, expected="0x00, as it is a refusal")


@statement("MQTT-3.2.2-2")
def mqtt_3_2_2_2(bench: Bench) -> None:
    """[MQTT-3.2.2-2] Clean Start 1 is accepted with session present 0 and reason 0x00."""
    topic = bench.topic("t")
    for what, close in (("left", Client.disconnect), ("in use", lambda client: None)):
        with bench.case(f"over a session that is {what}"):
            close(persistent(bench, "a", topic))
            new = bench.client("a", clean=True, session_expiry=60)
            if announced(new).session_present:
                bench.fail("session present", announced(new), expected="session present 0")
            new.disconnect()
    with bench.case("where there is no session"):
        new = bench.client("b", clean=True)
        if announced(new).session_present:
            bench.fail("session present", announced(new), expected="session present 0")


@statement("MQTT-3.2.2-3")
def mqtt_3_2_2_3(bench: Bench) -> None:
    """[MQTT-3.2.2-3] With Clean Start 0, session present says whether there is state."""

    def connect(client: Client, present: bool, what: str, **options: object) -> None:
        with bench.case(what):
            connack = client.connect(clean=False, **options)  # type: ignore[arg-type]
            if connack.session_present != present:
                bench.fail("session present", connack, expected=str(int(present)))

    client = bench.client("a", connect=False)
    connect(client, False, "the first connection", session_expiry=60)
    client.disconnect()
    connect(client, True, "a session without subscriptions", session_expiry=60)
    client.subscribe(bench.topic("t"), qos=1)
    client.disconnect()
    connect(client, True, "a session with a subscription", session_expiry=60)
    client.drop()
    bench.settle(0.1)
    connect(client, True, "after a lost connection", session_expiry=0)
    client.disconnect()
    connect(client, False, "after a connection with expiry 0")
    client.disconnect()
    connect(client, False, "after a connection without expiry", session_expiry=60)
    client.unsubscribe(bench.topic("t"))
    client.disconnect(0, [(tables.SESSION_EXPIRY, 0)])
    connect(client, False, "after DISCONNECT with expiry 0", session_expiry=60)
    with bench.case("taken over"):
        other = bench.client("a", connect=False)
        connect(other, True, "a session that is in use", session_expiry=60)
        client.expect_close(0x8E)


@statement("MQTT-3.2.2-6", wants=("configure",))
def mqtt_3_2_2_6(bench: Bench) -> None:
    """[MQTT-3.2.2-6] A CONNACK that refuses has session present 0, whatever is stored."""
    fields: dict[str, Any] = {}
    if bench.has("configure"):
        bench.start(users={"alice": "right"})
        fields = {"username": "alice", "password": "right"}
    stored = bench.client("refused", clean=True, session_expiry=60, **fields)
    stored.subscribe(bench.topic("t"), qos=1)
    stored.disconnect()
    cases = refusals(bench)
    if fields:
        wrong = wire.connect(
            bench.id("refused"), version=5, clean=False, username="alice", password="wrong"
        )
        cases.append(("the wrong password", wrong))
    told = 0
    for what, data in cases:
        with bench.case(f"CONNECT with {what}"):
            answer = refuse(bench, data)
            if answer is not None:
                told += 1
                if answer.session_present or answer.raw[2]:
                    bench.fail("session present", answer, expected="flags 0x00")
    bench.note(f"{told} of {len(cases)} refusals came with a CONNACK")
    with bench.case("the stored session"):
        come_back(stored, **fields)


@statement("MQTT-3.2.2-7")
def mqtt_3_2_2_7(bench: Bench) -> None:
    """[MQTT-3.2.2-7] After a CONNACK that refuses the broker closes the connection."""
    for what, data in refusals(bench):
        with bench.case(f"CONNECT with {what}"):
            refuse(bench, data)


@statement("MQTT-3.2.2-8")
def mqtt_3_2_2_8(bench: Bench) -> None:
    """[MQTT-3.2.2-8] CONNACK has one of the reason codes listed for it."""
    # The parser of the suite looks each code up; here a wide range of refusals comes.
    wanted = {
        "the reserved flag": (0x81,),
        "will QoS 3": (0x81,),
        "an unknown property": (0x81,),
        "Receive Maximum 0": (0x82,),
        "Session Expiry Interval twice": (0x82,),
        "Authentication Data only": (0x82,),
        "an unknown method": (0x8C, 0x87),
        "a wildcard in the will topic": (0x90, 0x81, 0x82),
        "bytes behind the end": (0x81,),
    }
    for what, data in refusals(bench):
        with bench.case(f"CONNECT with {what}"):
            refuse(bench, data, *wanted[what])
    connack = announced(bench.client("a"))
    if connack.code:
        bench.fail("a good CONNECT", connack, expected="0x00")


@statement("MQTT-3.2.2-16", wants=("restart",))
def mqtt_3_2_2_16(bench: Bench) -> None:
    """[MQTT-3.2.2-16] An assigned client identifier belongs to no other session."""
    kept = [(tables.SESSION_EXPIRY, 300)]
    found: list[str] = []

    def assign(count: int) -> None:
        for _ in range(count):
            client, assigned = anonymous(bench, clean=False, properties=kept)
            if announced(client).session_present or assigned in found:
                bench.fail("the session of another", announced(client), expected="a new identifier")
            found.append(assigned)
            client.disconnect()

    assign(20)
    with bench.case("after clients that left"):
        assign(20)
    if bench.has("restart"):
        restart(bench.broker)
        with bench.case("after a restart"):
            assign(20)
            for assigned in (found[0], found[19], found[39]):
                old = bench.client("old", client_id=assigned, connect=False)
                come_back(old)
                old.disconnect(0, [(tables.SESSION_EXPIRY, 0)])


# Refusals of a CONNECT that can be read to its end, so that the broker knows the limit.
_READABLE: Final = frozenset(
    {"Receive Maximum 0", "Authentication Data only", "an unknown method"}
    | {"Session Expiry Interval twice", "a wildcard in the will topic"}
)


def _expect_within(bench: Bench, size: int, identifier: int) -> None:
    """With a Maximum Packet Size of `size` each CONNACK fits, or there is only a close."""
    limit: list[wire.Property] = [(tables.MAXIMUM_PACKET_SIZE, size)]
    name = tables.PROPERTY_NAMES[identifier]
    cases = [case for case in refusals(bench, limit) if case[0] in _READABLE]
    cases.append(("no fault", wire.connect(bench.id("refused"), version=5, properties=limit)))
    for what, data in cases:
        with bench.case(f"Maximum Packet Size {size}, CONNECT with {what}"):
            client = bench.client("refused", connect=False)
            client.send(data)
            try:
                answer = answer_within(client, 0.5)
            except Violation as violation:
                if bench.check.statement in violation.statements:
                    raise
                client.drop()  # too large, but not for the property this is about
                continue
            if answer is not None and not isinstance(answer, Connack):
                bench.fail("not a CONNACK", answer, expected="CONNACK, or a close")
            if answer is not None and len(answer.raw) > size:
                bench.fail(
                    f"{len(answer.raw)} bytes" + f", {name}" * (identifier in answer.properties),
                    answer,
                    expected=f"at most {size} bytes, or a close",
                )
            client.drop()


@statement("MQTT-3.2.2-19")
def mqtt_3_2_2_19(bench: Bench) -> None:
    """[MQTT-3.2.2-19] A Reason String that makes CONNACK too large for the client is left out."""
    for size in (5, 10, 20):
        _expect_within(bench, size, tables.REASON_STRING)


@statement("MQTT-3.2.2-20")
def mqtt_3_2_2_20(bench: Bench) -> None:
    """[MQTT-3.2.2-20] User Properties that make CONNACK too large for the client are left out."""
    sizes = [5, 10, 20]
    # One byte less than the broker's ordinary CONNACK: something has to be left out, or all of it.
    sizes.append(len(announced(bench.client("ordinary")).raw) - 1)
    for size in sizes:
        _expect_within(bench, size, tables.USER_PROPERTY)


@statement("MQTT-3.2.2-21", needs=("configure",), seconds=4)
def mqtt_3_2_2_21(bench: Bench) -> None:
    """[MQTT-3.2.2-21] A Server Keep Alive counts in place of the client's keep alive."""
    most = _start_with_ceiling(bench)
    clients = {}
    for asked in (60, 0):
        client = bench.client(f"k{asked}", keep_alive=asked)
        clients[asked] = client, time.monotonic()
        told = announced(client).properties.number(tables.SERVER_KEEP_ALIVE)
        if told != most and (told is not None or asked):
            what = f"Server Keep Alive {told} for {asked}"
            bench.fail(what, announced(client), expected=f"{most}")
        if told is None:
            bench.note("a client that asks for no keep alive gets none")
            del clients[asked]
    kept = bench.client("kept", keep_alive=60)
    within = bench.client("within", keep_alive=1)
    for _ in range(most):
        time.sleep(0.7)
        kept.ping()
        within.ping()
    for asked, (client, began) in clients.items():
        with bench.case(f"Server Keep Alive {most} for a client that asked for {asked}"):
            expect_silence_to_end(bench, client, began, most)
    with bench.case(f"Server Keep Alive {most} and a PINGREQ in time"):
        kept.ping()


def _start_with_ceiling(bench: Bench) -> int:
    """Start a broker with a ceiling of the keep alive and return it: the lowest it can have."""
    try:
        bench.start(keep_alive_max=2)
    except NotRun:
        bench.start(keep_alive_max=10)
        return 10
    return 2


@statement("MQTT-3.2.2-22", seconds=6)
def mqtt_3_2_2_22(bench: Bench) -> None:
    """[MQTT-3.2.2-22] Without a Server Keep Alive the client's own value counts."""
    slow = bench.client("slow", keep_alive=10)
    began = time.monotonic()
    quick = bench.client("quick", keep_alive=2)
    quick_began = time.monotonic()
    for client in (slow, quick):
        if tables.SERVER_KEEP_ALIVE in announced(client).properties:
            bench.not_run("the broker sets a keep alive of its own")
    with bench.case("keep alive 2"):
        expect_silence_to_end(bench, quick, quick_began, 2)
    time.sleep(max(0.0, began + 6.0 - time.monotonic()))
    with bench.case("keep alive 10, after 6 seconds"):
        slow.ping()
