"""MQTT 5.0, section 3.1.3: the payload of CONNECT, above all the client identifier."""

import contextlib
import string
from typing import Any

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import come_back, expect_only, persistent, subscribed
from conformance.failure import NotRun
from conformance.packets import Connack
from conformance.websocket import WebSocket

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
CLIENT_ID_NOT_VALID = 0x85
BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED = 0x86, 0x87
ALPHABET = string.digits + string.ascii_lowercase + string.ascii_uppercase


@statement("MQTT-3.1.3-1", wants=("configure",))
def mqtt_3_1_3_1(bench: Bench) -> None:
    """[MQTT-3.1.3-1] The payload has id, will properties, topic, payload, user name, password."""
    credentials: dict[str, Any] = {}
    if bench.has("configure"):
        bench.start(users={"alice": "right", "watcher": "other"})
        credentials = {"username": "watcher", "password": "other"}
    topic = bench.topic("will")
    watcher = subscribed(bench, "watcher", topic, 2, **credentials)
    properties: list[wire.Property] = [
        (tables.CONTENT_TYPE, "text/plain"),
        (tables.USER_PROPERTY, ("k", "v")),
    ]
    will = wire.Will(topic, b"payload", qos=1, properties=properties)
    for block in ([], [(tables.RECEIVE_MAXIMUM, 10)]):
        with bench.case(f"properties {block}"):
            client = bench.client("a", connect=False)
            client.send(
                wire.connect(
                    client.client_id,
                    version=5,
                    will=will,
                    username="alice",
                    password="right",
                    properties=block,
                )
            )
            answer = client.expect(Connack)
            if answer.code in (BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED) and not credentials:
                bench.not_run("the broker wants a user name it knows, and there is no adapter")
            if answer.code:
                bench.fail("a CONNECT with all fields is refused", answer, expected="0x00")
            client.drop()
            got = watcher.expect_publish(topic=topic, payload=b"payload", qos=1)
            if sorted(got.properties, key=repr) != sorted(properties, key=repr):
                bench.fail("not the properties of the will", got, expected=repr(properties))


@statement("MQTT-3.1.3-2", wants=("websocket",))
def mqtt_3_1_3_2(bench: Bench) -> None:
    """[MQTT-3.1.3-2] The client identifier, and nothing else, is the key to the session."""
    broker = None
    with contextlib.suppress(NotRun):
        broker = bench.start(websocket=True)
    topics = {name: bench.topic(name) for name in ("a", "b", "A")}
    clients = {name: persistent(bench, name, topic) for name, topic in topics.items()}
    sender = bench.client("sender")
    for client in clients.values():
        client.disconnect()
    for name, topic in topics.items():
        sender.publish(topic, name, qos=1)
    for name, client in clients.items():
        with bench.case(f"the session of {client.client_id!r}"):
            come_back(client)
            client.expect_publish(topic=topics[name], payload=name)
            expect_only(bench, sender, client, [])
            client.disconnect()
    if broker is None:
        bench.note("without a second listener")
        return
    with bench.case("the same identifier over a WebSocket"):
        sender.publish(topics["a"], b"again", qos=1)
        host, port = broker.host, broker.websocket_port
        other = bench.client(
            "a",
            stream=lambda: WebSocket.open(host, port, timeout=bench.patience),
            connect=False,
        )
        come_back(other)
        other.expect_publish(topic=topics["a"], payload=b"again")


@statement("MQTT-3.1.3-3")
def mqtt_3_1_3_3(bench: Bench) -> None:
    """[MQTT-3.1.3-3] The client identifier is always there, and comes first."""
    for what, payload, flags in (
        ("an empty payload", b"", 0x02),
        ("one byte of a length", b"\x00", 0x02),
        ("an empty payload, user name flag", b"", 0x82),
        ("a user name only", wire.string("user"), 0x82),
    ):
        with bench.case(what):
            client = bench.client("a", connect=False)
            client.send(wire.connect(version=5, payload=payload, flags=flags))
            client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@statement("MQTT-3.1.3-4")
def mqtt_3_1_3_4(bench: Bench) -> None:
    """[MQTT-3.1.3-4] The client identifier is a UTF-8 string."""
    for bad in (b"\xff\xfe", b"\xc3\x28", b"a\xed\xa0\x80", b"a\x00b", b"\xc0\x80"):
        with bench.case(f"client identifier {bad.hex(' ')}"):
            client = bench.client("a", connect=False)
            client.send(wire.connect(bad, version=5))
            client.expect_refused(MALFORMED, CLIENT_ID_NOT_VALID)


@statement("MQTT-3.1.3-5", alone=True)
def mqtt_3_1_3_5(bench: Bench) -> None:
    """[MQTT-3.1.3-5] Identifiers of 1 to 23 bytes of 0-9, a-z and A-Z are accepted."""
    # The identifiers are what they are, so no other check may be connected with one of them.
    ids = [*ALPHABET, ALPHABET[:23], ALPHABET[23:46], ALPHABET[-23:], "0" * 22]
    clients = []
    for client_id in ids:
        with bench.case(f"client identifier {client_id!r}"):
            clients.append(bench.client("a", client_id=client_id))
    for client in clients:
        with bench.case(f"client identifier {client.client_id!r} beside the others"):
            client.ping()


def anonymous(bench: Bench, **options: object) -> tuple[Client, str]:
    """Connect with an empty identifier; return the client and the identifier it was given."""
    client = bench.client("none", client_id="", connect=False)
    client.send(wire.connect("", version=5, **options))  # type: ignore[arg-type]  # as they are
    answer = client.expect(Connack)
    if answer.code == CLIENT_ID_NOT_VALID:
        bench.not_run("the broker does not take empty client identifiers")
    if answer.code:
        bench.fail("an empty client identifier is refused", answer, expected="0x00 or 0x85")
    client.connack = answer
    assigned = answer.properties.text(tables.ASSIGNED_CLIENT_ID)
    if not assigned:
        bench.fail("no identifier is assigned", answer, expected="Assigned Client Identifier")
    return client, assigned


@statement("MQTT-3.1.3-6")
def mqtt_3_1_3_6(bench: Bench) -> None:
    """[MQTT-3.1.3-6] A client with an empty identifier gets a unique one, if it is let in."""
    found = [anonymous(bench, clean=number % 2 == 0) for number in range(50)]
    ids = [assigned for _, assigned in found]
    if len(set(ids)) != len(ids):
        bench.fail(f"{len(ids) - len(set(ids))} identifiers were assigned twice", expected="50")
    for client, assigned in found:
        with bench.case(f"client {assigned!r} beside the others"):
            client.ping()
        assert client.connack is not None
        if client.connack.session_present:
            bench.fail("a session", client.connack, expected="session present 0")


@statement("MQTT-3.1.3-7")
def mqtt_3_1_3_7(bench: Bench) -> None:
    """[MQTT-3.1.3-7] The assigned identifier counts as if the client had sent it."""
    topic = bench.topic("t")
    expiry = [(tables.SESSION_EXPIRY, 300)]
    for clean in (True, False):
        with bench.case(f"Clean Start {int(clean)}"):
            client, assigned = anonymous(bench, clean=clean, properties=expiry)
            client.subscribe(topic, qos=1)
            client.disconnect()
            sender = bench.client("sender")
            sender.publish(topic, b"kept", qos=1)
            again = bench.client("again", client_id=assigned, connect=False)
            come_back(again)
            again.expect_publish(topic=topic, payload=b"kept")
            again.disconnect(0, [(tables.SESSION_EXPIRY, 0)])
            for named in (again, sender):
                assert named.connack is not None
                if tables.ASSIGNED_CLIENT_ID in named.connack.properties:
                    bench.fail("an identifier for a client that has one", named.connack)
    with bench.case("a second connection with an assigned identifier"):
        client, assigned = anonymous(bench)
        other = bench.client("other", client_id=assigned)
        client.expect_close(0x8E)
        other.ping()


@statement("MQTT-3.1.3-8", needs=("configure",))
def mqtt_3_1_3_8(bench: Bench) -> None:
    """[MQTT-3.1.3-8] An identifier the broker does not like is refused with 0x85, and a close."""
    bench.start(client_id_bytes_max=23)
    right = bench.unique.ljust(23, "x")
    bench.client("right", client_id=right).ping()
    for client_id in (right + "y", right + "y" * 100):
        with bench.case(f"an identifier of {len(client_id)} bytes where 23 are allowed"):
            for clean in (True, False):
                client = bench.client("a", connect=False)
                client.send(wire.connect(client_id, version=5, clean=clean))
                client.expect_refused(CLIENT_ID_NOT_VALID)


@statement("MQTT-3.1.3-12")
def mqtt_3_1_3_12(bench: Bench) -> None:
    """[MQTT-3.1.3-12] The user name is a UTF-8 string."""
    for bad in (b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"\xff", b"a\x00b"):
        for password in ("word", None):
            with bench.case(f"user name {bad.hex(' ')}, password {password!r}"):
                client = bench.client("a", connect=False)
                client.send(
                    wire.connect(client.client_id, version=5, username=bad, password=password)
                )
                client.expect_refused(MALFORMED)
