"""MQTT 3.1.1, section 3.1.3: the payload of CONNECT and what makes a client identifier."""

import string
from typing import Final

from conformance import wire
from conformance.check import Bench, Will, statement
from conformance.packets import Connack
from conformance.v311 import scenes

ALPHABET: Final = string.digits + string.ascii_lowercase + string.ascii_uppercase
USERS: Final = {"anna": "secret of anna", "bert": "secret of bert"}
REFUSED: Final = b"\x20\x02\x00\x02"


@statement("MQTT-3.1.3-1", wants=("configure",))
def mqtt_3_1_3_1(bench: Bench) -> None:
    """[MQTT-3.1.3-1] The fields of the payload come in the order client id, will topic, will
    message, user name, password.
    """
    checked = scenes.configured(bench, "a check of the password", users=USERS)
    topic = bench.topic("will")
    watcher = bench.client("watcher", connect=False)
    fields = ("anna", "secret of anna")
    watcher.send(scenes.connect(watcher.client_id, flags=0xC2, fields=fields))
    connack = watcher.expect(Connack)
    if connack.code in (4, 5) and not checked:
        bench.not_run("the broker wants a user name, and we know none")
    if connack.code:
        bench.fail("all five fields are right, yet refused", connack, expected="code 0")
    scenes.subscribe(bench, watcher, (topic, 2))
    for qos in (0, 1, 2):
        client = bench.client(
            "mortal",
            clean=False,
            will=Will(topic, f"will {qos}", qos=qos),
            username="bert",
            password="secret of bert",
        )
        client.drop()
        watcher.expect_publish(topic, f"will {qos}", qos=qos)
    # The client id was taken from its place as well: it names the session.
    connack = client.connect(clean=False, username="bert", password="secret of bert")
    if not connack.session_present:
        bench.fail("no session under the client id", connack, expected="session present 1")
    if checked:
        swapped = bench.client("swapped", connect=False)
        fields = ("secret of bert", "bert")
        swapped.send(scenes.connect(swapped.client_id, flags=0xC2, fields=fields))
        swapped.expect_refused(4, 5, silent=True)


@statement("MQTT-3.1.3-2")
def mqtt_3_1_3_2(bench: Bench) -> None:
    """[MQTT-3.1.3-2] The client id is the name under which the server keeps a session."""
    names = ("A", "a", "B")
    clients = {name: bench.client(name, clean=False) for name in names}
    publisher = bench.client("publisher")
    for name, client in clients.items():
        scenes.subscribe(bench, client, (bench.topic(f"for/{name}"), 1))
    for client in clients.values():
        client.disconnect()
    for name in names:
        publisher.publish(bench.topic(f"for/{name}"), name, qos=1)
    # Another connection and so another port: the id decides, not where it comes from.
    for name in reversed(names):
        back = bench.client(name, connect=False)
        scenes.resume(bench, back)
        scenes.only(bench, back, bench.topic(f"for/{name}"), name.encode(), publisher)
    stranger = bench.client("C", connect=False)
    connack = stranger.connect(clean=False)
    if connack.session_present:
        bench.fail("a session of somebody else", connack, expected="session present 0")
    scenes.nothing_comes(bench, stranger, publisher)


@statement("MQTT-3.1.3-3")
def mqtt_3_1_3_3(bench: Bench) -> None:
    """[MQTT-3.1.3-3] The payload of CONNECT begins with a client id, always."""
    for what, flags, payload in (
        ("an empty payload", 0x02, b""),
        ("one byte of payload", 0x02, b"\0"),
        ("an empty payload and CleanSession 0", 0x00, b""),
        ("a payload shorter than its client id", 0x02, b"\0\x05abc"),
    ):
        data = wire.connect(version=4, flags=flags, payload=payload)
        scenes.is_refused_silently(bench, f"CONNECT with {what}", data)


@statement("MQTT-3.1.3-4")
def mqtt_3_1_3_4(bench: Bench) -> None:
    """[MQTT-3.1.3-4] The client id is well-formed UTF-8."""
    for bad in scenes.NOT_UTF8:
        for what, client_id in (("only", bad), ("in the end", b"ab" + bad)):
            data = scenes.connect(client_id)
            scenes.is_refused_silently(bench, f"client id with bytes {bad.hex(' ')} {what}", data)


@statement("MQTT-3.1.3-10")
def mqtt_3_1_3_10(bench: Bench) -> None:
    """[MQTT-3.1.3-10] The will topic is well-formed UTF-8."""
    watcher = scenes.watch(bench)
    for bad in scenes.NOT_UTF8:
        for topic in (bad, bench.topic("x").encode() + b"/" + bad + b"y"):
            data = scenes.connect(bench.id("offender"), will=Will(topic, b"no", retain=True))
            scenes.is_refused_silently(bench, f"will topic with bytes {bad.hex(' ')}", data)
    scenes.nothing_comes(bench, watcher)


@statement("MQTT-3.1.3-11")
def mqtt_3_1_3_11(bench: Bench) -> None:
    """[MQTT-3.1.3-11] The user name is well-formed UTF-8."""
    own = bench.id("offender")
    for bad in scenes.NOT_UTF8:
        for name in (bad, b"user" + bad):
            for flags, fields in ((0x82, (name,)), (0xC2, (name, b"password"))):
                data = scenes.connect(own, flags=flags, fields=fields)
                scenes.is_refused_silently(bench, f"user name with bytes {bad.hex(' ')}", data)


@statement("MQTT-3.1.3-5")
def mqtt_3_1_3_5(bench: Bench) -> None:
    """[MQTT-3.1.3-5] Client ids of 1 to 23 bytes of 0-9, a-z and A-Z are accepted."""
    unique = bench.unique
    ids = ["0", "Z", unique.ljust(23, "z"), unique[-1] + "0123456789" + "ab" * 6]
    ids += [ALPHABET[start : start + 21] + unique[-2:] for start in range(0, 62, 21)]
    assert set("".join(ids)) >= set(ALPHABET)
    assert all(1 <= len(client_id) <= 23 for client_id in ids)
    for client_id in ids:
        with bench.case(f"client id {client_id!r}"):
            client = bench.client(connect=False, client_id=client_id)
            client.connect()
            client.ping()
            client.disconnect()


@statement("MQTT-3.1.3-6")
def mqtt_3_1_3_6(bench: Bench) -> None:
    """[MQTT-3.1.3-6] A server that allows an empty client id gives every such client a unique one
    and goes on as if the client had sent it.
    """
    clients = []
    for name in ("first", "second", "third"):
        client = bench.client(name, connect=False, client_id="")
        client.send(wire.connect("", version=4))
        connack = client.expect(Connack)
        if connack.code == 2:
            if name != "first":
                bench.fail("an empty client id is refused now, not before", connack, expected="0")
            bench.note("the broker does not allow an empty client id")
            client.expect_close()
            return
        if connack.code or connack.session_present:
            bench.fail("unexpected answer to an empty id", connack, expected="20 02 00 00")
        client.connack = connack
        clients.append(client)
    for client in clients:
        scenes.subscribe(bench, client, (bench.topic(client.name), 1))
    for publisher in clients:
        for receiver in clients:
            topic = bench.topic(receiver.name)
            publisher.publish(topic, publisher.name, qos=1)
            receiver.expect_publish(topic, publisher.name, qos=1)
    for client in clients:
        client.ping()
        scenes.nothing_comes(bench, client)
    gone = clients[0]
    gone.drop()
    connack = gone.connect()
    if connack.session_present:
        bench.fail("an empty id brings a session back", connack, expected="session present 0")


def _empty_id_is_refused(bench: Bench, data: bytes) -> None:
    client = bench.client("nameless", connect=False)
    client.send(data)
    answer = client.bytes_to_end()
    if answer != REFUSED:
        bench.fail(f"received {answer.hex(' ')!r}", answer, expected="20 02 00 02 and a close")


@statement("MQTT-3.1.3-7")
def mqtt_3_1_3_7(bench: Bench) -> None:
    """[MQTT-3.1.3-7] An empty client id may only come with CleanSession 1."""
    watcher = scenes.watch(bench)
    will = Will(bench.topic("will"), b"no", qos=1)
    for what, data in (
        ("nothing else", wire.connect("", version=4, clean=False)),
        ("keep alive 0", wire.connect("", version=4, clean=False, keep_alive=0)),
        ("a will", wire.connect("", version=4, clean=False, will=will)),
    ):
        with bench.case(f"empty client id, CleanSession 0 and {what}"):
            client = bench.client("nameless", connect=False)
            client.send(data)
            client.expect_refused(2, silent=False)
    scenes.nothing_comes(bench, watcher)


@statement("MQTT-3.1.3-8")
def mqtt_3_1_3_8(bench: Bench) -> None:
    """[MQTT-3.1.3-8] An empty client id with CleanSession 0 is answered by CONNACK with code 2 and
    the end of the connection.
    """
    _empty_id_is_refused(bench, wire.connect("", version=4, clean=False))
    follow_up = wire.subscribe(1, [(bench.topic("t"), 0)], version=4) + wire.pingreq()
    _empty_id_is_refused(bench, wire.connect("", version=4, clean=False) + follow_up)


@statement("MQTT-3.1.3-9", needs=("configure",))
def mqtt_3_1_3_9(bench: Bench) -> None:
    """[MQTT-3.1.3-9] A client id the server does not accept is answered by CONNACK with code 2 and
    the end of the connection.
    """
    bench.start(client_id_bytes_max=30)
    for size, accepted in ((23, True), (30, True), (31, False), (400, False)):
        for clean in (True, False):
            with bench.case(f"client id of {size} bytes where 30 are accepted"):
                client_id = bench.unique.ljust(size, "x")
                client = bench.client(connect=False, client_id=client_id)
                if accepted:
                    client.connect(clean=clean)
                    client.disconnect()
                    continue
                client.send(wire.connect(client_id, version=4, clean=clean))
                client.expect_refused(2, silent=False)
                client.drop()
