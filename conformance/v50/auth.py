"""MQTT 5.0, sections 3.15 and 4.12: AUTH and enhanced authentication, with SCRAM-SHA-256.

Checks of what goes on inside an exchange need a broker that knows the method and our user; the
others send AUTH where there must be none, and go through an exchange as well where they can.
"""

from collections.abc import Sequence
from typing import Any, Final

from conformance import scenes, tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.failure import NotRun
from conformance.packets import Auth, Connack, Packet
from conformance.scram import METHOD, ScramClient

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
BAD_METHOD: Final = 0x8C
NOT_AUTHORIZED: Final = 0x87
REFUSALS: Final = (0x86, NOT_AUTHORIZED, BAD_METHOD)
SUCCESS: Final = 0x00
CONTINUE: Final = 0x18
AGAIN: Final = 0x19
USER: Final = "scram user"
PASSWORD: Final = "pencil"
NO_REASONS: Final = (0x01, 0x17, 0x1A, 0x7F, 0x80, 0x8C, 0xFF)


def start(bench: Bench) -> None:
    """Move the check to a broker with our user; anonymous clients are let in as well."""
    bench.start(scram_users={USER: PASSWORD}, allow_anonymous=True)


def started(bench: Bench) -> bool:
    """Do as `start`, and say whether there is such a broker; if not, leave a note."""
    try:
        start(bench)
    except NotRun as reason:
        bench.note(f"not tried within an exchange: {reason}")
        return False
    return True


def method_and(data: bytes | None, method: str | None = METHOD) -> list[wire.Property]:
    """Return the two properties; what is None is left out."""
    properties: list[wire.Property] = []
    if method is not None:
        properties.append((tables.AUTH_METHOD, method))
    if data is not None:
        properties.append((tables.AUTH_DATA, data))
    return properties


def begin(
    bench: Bench,
    data: bytes | None,
    *properties: wire.Property,
    name: str = "prover",
    **options: Any,
) -> Client:
    """Send CONNECT with the method and this data on a new connection."""
    client = bench.open(name)
    options["properties"] = [*method_and(data), *properties]
    client.send(wire.connect(client.client_id, version=5, **options))
    return client


def challenge(client: Client) -> bytes:
    """Return the data of the AUTH 0x18 that has to come; it has to have our method."""
    packet = client.expect(Auth)
    if packet.reason != CONTINUE:
        client.fail("AUTH has another reason", expected="0x18 Continue authentication")
    expect_method(client, packet)
    return packet.properties.data(tables.AUTH_DATA) or b""


def expect_method(client: Client, packet: Auth | Connack) -> None:
    """The packet has to repeat the method of CONNECT."""
    found = packet.properties.text(tables.AUTH_METHOD)
    if found != METHOD:
        client.fail(f"Authentication Method {found!r}", expected=repr(METHOD))


def challenged(bench: Bench, **options: Any) -> tuple[Client, ScramClient, bytes]:
    """Return a client that has got the challenge of its CONNECT, and the challenge."""
    scram = ScramClient(USER, PASSWORD)
    client = begin(bench, scram.first(), **options)
    return client, scram, challenge(client)


def authenticated(bench: Bench, *properties: wire.Property, **options: Any) -> Client:
    """Return a client that has gone through the whole exchange and is connected."""
    scram = ScramClient(USER, PASSWORD)
    client = begin(bench, scram.first(), *properties, **options)
    proof = scram.final(challenge(client))
    client.send(wire.auth(CONTINUE, method_and(proof)))
    connack = client.expect_connack()
    expect_method(client, connack)
    scram.verify(connack.properties.data(tables.AUTH_DATA) or b"")
    return client


def again(client: Client) -> tuple[ScramClient, bytes]:
    """Begin a re-authentication; return it and the challenge."""
    scram = ScramClient(USER, PASSWORD, nonce="anotherNonceOfOurs")
    client.send(wire.auth(AGAIN, method_and(scram.first())))
    return scram, challenge(client)


def finish(client: Client, scram: ScramClient, server_first: bytes) -> None:
    """Send the proof of a re-authentication, which has to end with AUTH 0x00."""
    client.send(wire.auth(CONTINUE, method_and(scram.final(server_first))))
    packet = client.expect(Auth)
    if packet.reason != SUCCESS:
        client.fail("AUTH has another reason", expected="0x00 Success")
    expect_method(client, packet)
    scram.verify(packet.properties.data(tables.AUTH_DATA) or b"")


# Section 3.15.


@statement("MQTT-3.15.1-1", wants=("configure",))
def mqtt_3_15_1_1(bench: Bench) -> None:
    """[MQTT-3.15.1-1] AUTH with header flags other than 0 is malformed and ends the connection."""
    # On a plain connection AUTH is wrong whatever its flags: either fault may be named.
    plain = [
        (f"first byte 0x{first:02X}", wire.auth(AGAIN, method_and(b"x"), first_byte=first))
        for first in range(0xF1, 0x100)
    ]
    scenes.expect_each_closes(bench, plain, MALFORMED, PROTOCOL_ERROR)
    if not started(bench):
        return
    for first in (0xF1, 0xF2, 0xF4, 0xF8, 0xFF):
        with bench.case(f"first byte 0x{first:02X} as the answer to a challenge"):
            client, scram, server_first = challenged(bench)
            proof = method_and(scram.final(server_first))
            client.send(wire.auth(CONTINUE, proof, first_byte=first))
            client.expect_refused(MALFORMED)
        with bench.case(f"first byte 0x{first:02X} to authenticate again"):
            client = authenticated(bench)
            client.send(wire.auth(AGAIN, method_and(scram.first()), first_byte=first))
            client.expect_close(MALFORMED)


@statement("MQTT-3.15.2-1", wants=("configure",))
def mqtt_3_15_2_1(bench: Bench) -> None:
    """[MQTT-3.15.2-1] AUTH has only the reason codes 0x00, 0x18 and 0x19."""
    plain = [
        (f"reason 0x{reason:02X}", wire.auth(reason, method_and(b""))) for reason in NO_REASONS
    ]
    scenes.expect_each_closes(bench, plain, PROTOCOL_ERROR, MALFORMED)
    if not started(bench):
        return
    for reason in NO_REASONS:
        with bench.case(f"reason 0x{reason:02X} as the answer to a challenge"):
            client, scram, server_first = challenged(bench)
            client.send(wire.auth(reason, method_and(scram.final(server_first))))
            client.expect_refused(PROTOCOL_ERROR, MALFORMED)
        with bench.case(f"reason 0x{reason:02X} after CONNACK"):
            client = authenticated(bench)
            client.send(wire.auth(reason, method_and(ScramClient(USER, PASSWORD).first())))
            client.expect_close(PROTOCOL_ERROR, MALFORMED)
    with bench.case("what the broker sends"):
        client = authenticated(bench)
        finish(client, *again(client))


def auths_within(bench: Bench, property_id: int) -> None:
    """Every AUTH to a client that takes little is small enough for it."""
    start(bench)
    exchanges = 0
    for limit in (40, 60, 80, 100, 120, 140, 160, 200, 300, 1000):
        with bench.case(f"Maximum Packet Size {limit}"):
            scram = ScramClient(USER, PASSWORD)
            client = begin(bench, scram.first(), (tables.MAXIMUM_PACKET_SIZE, limit))
            answer = scenes.answer_or_end(client)
            expect_small(bench, answer, limit, property_id)
            if not isinstance(answer, Auth):
                continue  # an AUTH that does not fit is none: the broker has to give up
            proof = scram.final(answer.properties.data(tables.AUTH_DATA) or b"")
            client.send(wire.auth(CONTINUE, method_and(proof)))
            answer = scenes.answer_or_end(client)
            expect_small(bench, answer, limit, property_id)
            if not isinstance(answer, Connack) or answer.code:
                continue
            client.connack = answer
            scram = ScramClient(USER, PASSWORD)
            client.send(wire.auth(AGAIN, method_and(scram.first())))
            for _ in range(2):
                answer = scenes.answer_or_end(client)
                expect_small(bench, answer, limit, property_id)
                if not isinstance(answer, Auth) or answer.reason != CONTINUE:
                    break
                proof = scram.final(answer.properties.data(tables.AUTH_DATA) or b"")
                client.send(wire.auth(CONTINUE, method_and(proof)))
            exchanges += isinstance(answer, Auth) and answer.reason == SUCCESS
    if not exchanges:
        bench.fail("no exchange is completed within any limit", expected="one within 1000 bytes")


def expect_small(bench: Bench, packet: Packet | None, limit: int, property_id: int) -> None:
    """A packet, if there is one, is not larger than the client takes."""
    if packet is None or len(packet.raw) <= limit:
        return
    has_it = isinstance(packet, Auth | Connack) and property_id in packet.properties
    what = tables.PROPERTY_NAMES[property_id] if has_it else ""
    bench.fail(f"{len(packet.raw)} bytes {what}", packet, expected=f"at most {limit}")


@statement("MQTT-3.15.2-2", needs=("configure",))
def mqtt_3_15_2_2(bench: Bench) -> None:
    """[MQTT-3.15.2-2] No Reason String makes an AUTH larger than the client takes."""
    auths_within(bench, tables.REASON_STRING)


@statement("MQTT-3.15.2-3", needs=("configure",))
def mqtt_3_15_2_3(bench: Bench) -> None:
    """[MQTT-3.15.2-3] No User Property makes an AUTH larger than the client takes."""
    auths_within(bench, tables.USER_PROPERTY)


# Section 4.12.


@statement("MQTT-4.12.0-1", wants=("configure",))
def mqtt_4_12_0_1(bench: Bench) -> None:
    """[MQTT-4.12.0-1] A method the server does not support is refused and the connection closed."""

    def try_all(methods: Sequence[str]) -> None:
        for method in methods:
            for data in (None, b"", b"n,,n=user,r=nonce"):
                with bench.case(f"method {method!r} with data {data!r}"):
                    client = bench.open("prover")
                    properties = method_and(data, method)
                    client.send(wire.connect(client.client_id, version=5, properties=properties))
                    client.expect_refused(BAD_METHOD, NOT_AUTHORIZED)

    methods = ("NOPE", "", "x" * 1000, "\u00e4")
    try_all(methods)
    if started(bench):
        with bench.case("a broker that knows another method"):
            try_all((*methods, METHOD.lower(), METHOD + "-PLUS", METHOD[:-1]))
            authenticated(bench).ping()


@statement("MQTT-4.12.0-2", needs=("configure",))
def mqtt_4_12_0_2(bench: Bench) -> None:
    """[MQTT-4.12.0-2] A server that needs more data asks for it with AUTH 0x18."""
    start(bench)
    client, scram, server_first = challenged(bench)
    client.send(wire.auth(CONTINUE, method_and(scram.final(server_first))))
    client.expect_connack()
    client.ping()
    with bench.case("CONNECT without data"):
        scram = ScramClient(USER, PASSWORD)
        client = begin(bench, None)
        answer = scenes.answer_or_end(client)
        if isinstance(answer, Auth):
            if answer.reason != CONTINUE:
                bench.fail("AUTH has another reason", answer, expected="0x18")
            client.send(wire.auth(CONTINUE, method_and(scram.first())))
            proof = scram.final(challenge(client))
            client.send(wire.auth(CONTINUE, method_and(proof)))
            client.expect_connack()
        elif isinstance(answer, Connack) and answer.code not in REFUSALS:
            bench.fail("neither asked nor refused", answer, expected="AUTH 0x18 or a refusal")


@statement("MQTT-4.12.0-3", needs=("configure",))
def mqtt_4_12_0_3(bench: Bench) -> None:
    """[MQTT-4.12.0-3] A client answers a challenge with AUTH 0x18; another reason is an error."""
    start(bench)
    for reason in (AGAIN, SUCCESS):
        with bench.case(f"answered with AUTH 0x{reason:02X}"):
            client, scram, server_first = challenged(bench)
            client.send(wire.auth(reason, method_and(scram.final(server_first))))
            client.expect_refused(PROTOCOL_ERROR, MALFORMED)
    with bench.case("answered with AUTH 0x18"):
        authenticated(bench).ping()


@statement("MQTT-4.12.0-4", needs=("configure",))
def mqtt_4_12_0_4(bench: Bench) -> None:
    """[MQTT-4.12.0-4] A server that refuses at any step closes the connection."""
    start(bench)
    first = ScramClient(USER, PASSWORD).first()
    wrong_first = {
        "garbage": b"\xff\xfe",
        "no SCRAM message": b"hello",
        "a channel binding nobody has": b"p=tls-unique," + first[2:],
        "no nonce": f"n,,n={USER}".encode(),
        "another mechanism": b"\0user\0pencil",
    }
    for what, data in wrong_first.items():
        with bench.case(f"client-first message: {what}"):
            client = begin(bench, data)
            client.expect_refused(*REFUSALS)
    for user, password in ((USER, "wrong"), ("nobody", PASSWORD), (USER.upper(), PASSWORD)):
        with bench.case(f"user {user!r} with password {password!r}"):
            scram = ScramClient(user, password)
            client = begin(bench, scram.first())
            if isinstance(client.peek(), Auth):  # it may hide which names there are
                proof = scram.final(challenge(client))
                client.send(wire.auth(CONTINUE, method_and(proof)))
            client.expect_refused(*REFUSALS)
    for what in ("garbage", "nothing", "no data", "nonce", "binding", "proof", "no proof"):
        with bench.case(f"client-final message: {what}"):
            client, scram, server_first = challenged(bench)
            answer = tampered(scram.final(server_first), what)
            client.send(wire.auth(CONTINUE, method_and(answer)))
            client.expect_refused(*REFUSALS)
    with bench.case("a refused client has not taken the session of another"):
        client = authenticated(bench)
        scram = ScramClient(USER, "wrong")
        other = begin(bench, scram.first())
        other.send(wire.auth(CONTINUE, method_and(scram.final(challenge(other)))))
        other.expect_refused(*REFUSALS)
        client.ping()


def tampered(final: bytes, what: str) -> bytes | None:
    """Return a client-final message with something wrong."""
    binding, nonce, proof = final.split(b",", 2)
    return {
        "garbage": b"\xff\xfe",
        "nothing": b"",
        "no data": None,
        "nonce": b",".join((binding, nonce + b"x", proof)),
        "binding": b",".join((b"c=eSws", nonce, proof)),
        "proof": b",".join((binding, nonce, b"p=" + proof[2:][::-1].lstrip(b"=") + b"=")),
        "no proof": b",".join((binding, nonce)),
    }[what]


@statement("MQTT-4.12.0-5", needs=("configure",))
def mqtt_4_12_0_5(bench: Bench) -> None:
    """[MQTT-4.12.0-5] Every AUTH, and CONNACK, repeats the method of CONNECT."""
    start(bench)
    with bench.case("what the broker sends"):
        client = authenticated(bench)
        finish(client, *again(client))
        client.ping()
    others = {"another method": "SCRAM-SHA-1", "no method": None, "an empty method": ""}
    for what, method in others.items():
        with bench.case(f"a challenge answered with {what}"):
            client, scram, server_first = challenged(bench)
            proof = scram.final(server_first)
            client.send(wire.auth(CONTINUE, method_and(proof, method)))
            client.expect_refused(PROTOCOL_ERROR, BAD_METHOD)
        with bench.case(f"authenticated again with {what}"):
            client = authenticated(bench)
            data = ScramClient(USER, PASSWORD).first()
            client.send(wire.auth(AGAIN, method_and(data, method)))
            client.expect_close(PROTOCOL_ERROR, BAD_METHOD)


@statement("MQTT-4.12.0-6", wants=("configure",))
def mqtt_4_12_0_6(bench: Bench) -> None:
    """[MQTT-4.12.0-6] Without a method in CONNECT there is no AUTH and no method in CONNACK."""

    def look() -> None:
        attempts: dict[str, dict[str, Any]] = {
            "anonymous": {},
            "a user name": {"username": "somebody"},
            "a user name and a password": {"username": USER, "password": PASSWORD},
            "a session": {"session_expiry": 300},
            "response information": {"properties": [(tables.REQUEST_RESPONSE_INFO, 1)]},
        }
        for what, options in attempts.items():
            with bench.case(f"CONNECT with {what}"):
                client = bench.open("plain")
                properties = options.pop("properties", [])
                if "session_expiry" in options:
                    properties = [(tables.SESSION_EXPIRY, options.pop("session_expiry"))]
                client.send(
                    wire.connect(client.client_id, version=5, properties=properties, **options)
                )
                answer = scenes.answer_or_end(client)
                if answer is None:
                    continue
                if not isinstance(answer, Connack) or tables.AUTH_METHOD in answer.properties:
                    bench.fail("a method nobody asked for", answer, expected="CONNACK without")
                if answer.code:
                    continue
                client.connack = answer
                client.subscribe(bench.topic("t"), 1)
                client.publish(bench.topic("t"), "m", 1)
                client.expect_publish(bench.topic("t"), "m")
                client.expect_nothing(Auth)
                client.disconnect()

    look()
    if started(bench):
        with bench.case("a broker that knows a method"):
            look()


@statement("MQTT-4.12.0-7", wants=("configure",))
def mqtt_4_12_0_7(bench: Bench) -> None:
    """[MQTT-4.12.0-7] AUTH from a client that had no method in CONNECT is a Protocol Error."""
    packets = [
        (f"AUTH 0x{reason:02X} with {method}", wire.auth(reason, method_and(data, method)))
        for reason in (AGAIN, CONTINUE)
        for method in ("NOPE", METHOD)
        for data in (None, ScramClient(USER, PASSWORD).first())
    ]
    scenes.expect_each_closes(bench, packets, PROTOCOL_ERROR)
    if started(bench):
        with bench.case("a broker that knows a method"):
            scenes.expect_each_closes(bench, packets, PROTOCOL_ERROR)


@statement("MQTT-4.12.1-1", needs=("configure",))
def mqtt_4_12_1_1(bench: Bench) -> None:
    """[MQTT-4.12.1-1] AUTH 0x19 with the method of CONNECT authenticates again, no other does."""
    start(bench)
    topic = bench.topic("t")
    client = authenticated(bench)
    client.subscribe(topic, 1)
    for _ in range(3):
        finish(client, *again(client))
    publisher = bench.client("publisher")
    publisher.publish(topic, "still there", 1)
    client.expect_publish(topic, "still there")
    for method in ("NOPE", "SCRAM-SHA-1", METHOD.lower()):
        with bench.case(f"method {method!r}"):
            client = authenticated(bench)
            data = ScramClient(USER, PASSWORD).first()
            client.send(wire.auth(AGAIN, method_and(data, method)))
            client.expect_close(BAD_METHOD, PROTOCOL_ERROR)


@statement("MQTT-4.12.1-2", needs=("configure",))
def mqtt_4_12_1_2(bench: Bench) -> None:
    """[MQTT-4.12.1-2] A failed re-authentication ends the connection; until then all goes on."""
    start(bench)
    topic = bench.topic("t")
    publisher = bench.client("publisher")
    for what in ("garbage", "nothing", "nonce", "proof", "no proof"):
        with bench.case(f"client-final message: {what}"):
            client = authenticated(bench)
            client.subscribe(topic, 1)
            scram, server_first = again(client)
            client.ping()
            publisher.publish(topic, "meanwhile", 1)
            client.expect_publish(topic, "meanwhile")
            client.publish(bench.topic("other"), "meanwhile", 2)
            data = tampered(scram.final(server_first), what)
            client.send(wire.auth(CONTINUE, method_and(data)))
            client.expect_close(NOT_AUTHORIZED, BAD_METHOD)
    with bench.case("client-first message: garbage"):
        client = authenticated(bench)
        client.send(wire.auth(AGAIN, method_and(b"\xff\xfe")))
        client.expect_close(NOT_AUTHORIZED, BAD_METHOD)


# Rules of the text without a number.


@statement("X-39")
def x_39(bench: Bench) -> None:
    """[X-39] AUTH without a method on a plain connection is a Protocol Error."""
    data: list[wire.Property] = [(tables.AUTH_DATA, b"x")]
    packets = [
        ("no properties", wire.auth(AGAIN, [])),
        ("data without a method", wire.auth(AGAIN, data)),
        ("to go on", wire.auth(CONTINUE, [])),
    ]
    scenes.expect_each_closes(bench, packets, PROTOCOL_ERROR)
    # Two faults: a reason 0x00 no client may send, or a reason above 0 without properties.
    short = [("empty", wire.auth()), ("reason alone", wire.auth(AGAIN))]
    scenes.expect_each_closes(bench, short, PROTOCOL_ERROR, MALFORMED)
