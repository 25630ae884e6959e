"""MQTT 3.1.1, sections 3.1.4 and 3.2: what the server does with CONNECT, and CONNACK."""

from typing import Final

from conformance import wire
from conformance.check import Bench, Client, Will, statement
from conformance.packets import Connack, Pingresp, Publish, Suback
from conformance.v311 import scenes
from conformance.wire import Text

USERS: Final = {"anna": "secret of anna"}
RIGHT: Final = ("anna", "secret of anna")
ACCEPTED: Final = b"\x20\x02\x00\x00"
RESUMED: Final = b"\x20\x02\x01\x00"


def _expect_raw(bench: Bench, connack: Connack | None, wanted: bytes) -> None:
    assert connack is not None
    if connack.raw != wanted:
        bench.fail("CONNACK is not as it has to be", connack, expected=wanted.hex(" "))


@statement("MQTT-3.1.4-1")
def mqtt_3_1_4_1(bench: Bench) -> None:
    """[MQTT-3.1.4-1] A CONNECT that is not as section 3.1 says ends the connection without
    CONNACK.
    """
    watcher = scenes.watch(bench)
    own = bench.id("offender")
    will = Will(bench.topic("will"), b"no", qos=1)
    whole = wire.connect(own, version=4, will=will, username="user", password="password")
    body = whole[2:]
    assert len(body) < 128
    for size in range(len(body)):
        data = wire.packet(0x10, body[:size])
        scenes.is_refused_silently(bench, f"CONNECT cut to {size} of {len(body)} bytes", data)
    for what, data in (
        ("with a byte left over", wire.packet(0x10, body + b"\0")),
        ("with a string left over", wire.packet(0x10, body + b"\0\x01x")),
        ("without will, with bytes left over", wire.connect(own, version=4, trailing=b"ab")),
        ("with an empty body", wire.packet(0x10)),
    ):
        scenes.is_refused_silently(bench, f"CONNECT {what}", data)
    fields = [own, bench.topic("will"), "will message", "user", "password"]
    for index, field in enumerate(fields):
        payload = b"".join(
            wire.string(other) if other is not field else (len(field) + 200).to_bytes(2, "big")
            for other in fields[: index + 1]
        )
        payload += field.encode() + b"".join(wire.string(other) for other in fields[index + 1 :])
        data = wire.connect(version=4, flags=0xC6, payload=payload)
        what = f"CONNECT whose field {index + 1} runs past the end"
        scenes.is_refused_silently(bench, what, data)
    for flags in (0x0A, 0x22, 0x1E, 0x42):
        data = scenes.connect(own, flags=flags)
        scenes.is_refused_silently(bench, f"CONNECT with flags {flags:#04x}", data)
    scenes.nothing_comes(bench, watcher)


@statement("MQTT-3.1.4-2")
def mqtt_3_1_4_2(bench: Bench) -> None:
    """[MQTT-3.1.4-2] When a client id connects that is already connected, the server ends the
    older connection.
    """
    topic = bench.topic("t")
    publisher = bench.client("publisher")
    for old_clean in (True, False):
        for new_clean in (True, False):
            what = f"CleanSession {int(old_clean)}, then {int(new_clean)}"
            with bench.case(what):
                first = bench.client("a", clean=True)
                first.disconnect()
                first.connect(clean=old_clean)
                scenes.subscribe(bench, first, (topic, 1))
                publisher.publish(topic, b"open", qos=1)
                open_id = first.expect_publish(topic, b"open", acknowledge=False).packet_id
                second = bench.client("a", connect=False)
                connack = second.connect(clean=new_clean)
                first.expect_close()
                moves = not old_clean and not new_clean
                if connack.session_present != moves:
                    bench.fail("session present is wrong", connack, expected=f"{int(moves)}")
                if moves:
                    again = second.expect_publish(topic, b"open", dup=True)
                    if again.packet_id != open_id:
                        bench.fail("another identifier", again, expected=f"{open_id}")
                else:
                    scenes.nothing_comes(bench, second, publisher)
                    scenes.subscribe(bench, second, (topic, 1))
                publisher.publish(topic, b"live", qos=1)
                scenes.only(bench, second, topic, b"live", publisher)
                second.disconnect()


@statement("MQTT-3.1.4-3")
def mqtt_3_1_4_3(bench: Bench) -> None:
    """[MQTT-3.1.4-3] Once a CONNECT has passed all checks the rules of CleanSession are applied."""
    publisher = bench.client("publisher")
    client = bench.client("a", connect=False)
    for number, (clean, present, subscribed) in enumerate(
        (
            (False, False, False),
            (False, True, True),
            (True, False, False),
            (False, False, False),
            (False, True, True),
        )
    ):
        with bench.case(f"connection {number + 1}"):
            connack = client.connect(clean=clean)
            _expect_raw(bench, connack, RESUMED if present else ACCEPTED)
            topic = bench.topic("t")
            publisher.publish(topic, f"{number}", qos=1)
            if subscribed:
                scenes.only(bench, client, topic, f"{number}".encode(), publisher)
            else:
                scenes.nothing_comes(bench, client, publisher)
            scenes.subscribe(bench, client, (topic, 1))
            client.disconnect()


@statement("MQTT-3.1.4-4")
def mqtt_3_1_4_4(bench: Bench) -> None:
    """[MQTT-3.1.4-4] A CONNECT that passes all checks is answered by CONNACK with code 0."""
    will = Will(bench.topic("will"), b"will", qos=2, retain=False)
    for what, data in (
        ("the smallest one", wire.connect(bench.id("a"), version=4)),
        ("CleanSession 0", wire.connect(bench.id("b"), version=4, clean=False)),
        ("keep alive 0", wire.connect(bench.id("c"), version=4, keep_alive=0)),
        ("keep alive 65535", wire.connect(bench.id("d"), version=4, keep_alive=65_535)),
        ("a will", wire.connect(bench.id("e"), version=4, will=will)),
    ):
        with bench.case(what):
            client = bench.client("sender", connect=False)
            client.send(data)
            _expect_raw(bench, client.expect_connack(), ACCEPTED)
            client.ping()
            client.disconnect()


@statement("MQTT-3.1.4-5")
def mqtt_3_1_4_5(bench: Bench) -> None:
    """[MQTT-3.1.4-5] After refusing a CONNECT the server processes nothing more of that client."""
    topic = bench.topic("t")
    watcher = scenes.watch(bench)
    own = bench.id("offender")
    follow_up = (
        wire.publish(topic, b"no", version=4, retain=True)
        + wire.publish(topic, b"no", version=4, qos=1, packet_id=1, retain=True)
        + wire.subscribe(2, [(topic, 1)], version=4)
        + wire.pingreq()
    )
    good = wire.connect(own, version=4, will=Will(bench.topic("will")))
    for what, refused in (
        ("an empty client id", wire.connect("", version=4, clean=False)),
        ("an unknown level", wire.connect(own, version=4, level=0)),
        ("malformed flags", wire.connect(own, version=4, flags=0x03)),
        ("a truncated payload", wire.packet(0x10, good[2:-3])),
    ):
        for rest, data in (("packets", follow_up), ("CONNECT and packets", good + follow_up)):
            with bench.case(f"{what}, then {rest}"):
                client = bench.client("offender", connect=False)
                client.send(refused + data)
                client.expect_refused(1, 2, silent=True)
                client.drop()
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, topic)


@statement("MQTT-3.2.0-1")
def mqtt_3_2_0_1(bench: Bench) -> None:
    """[MQTT-3.2.0-1] CONNACK is the first packet the server sends on a connection."""
    topic = bench.topic("t")
    client = bench.client("a", clean=False)
    scenes.subscribe(bench, client, (topic, 2))
    publisher = bench.client("publisher")
    publisher.publish(topic, b"open", qos=1)
    client.expect_publish(topic, b"open", acknowledge=False)
    client.drop()
    for qos in (1, 2):
        publisher.publish(topic, f"queued at {qos}", qos=qos)
    publisher.publish(bench.topic("r"), b"retained", qos=1, retain=True)
    subscribe = wire.subscribe(5, [(bench.topic("r"), 0)], version=4)
    for what, data, kinds in (
        ("CONNECT over a session", b"", {Publish}),
        ("CONNECT, SUBSCRIBE and PINGREQ", subscribe + wire.pingreq(), {Suback, Pingresp}),
    ):
        with bench.case(what):
            client.open()
            client.send(wire.connect(client.client_id, version=4, clean=False) + data)
            first = client.receive()
            if not isinstance(first, Connack):
                bench.fail("the first packet is no CONNACK", first, expected="CONNACK")
            client.connack = first
            while kinds:
                kinds.discard(type(client.receive()))
            client.drop()


@statement("MQTT-3.2.2-1")
def mqtt_3_2_2_1(bench: Bench) -> None:
    """[MQTT-3.2.2-1] Accepting CleanSession 1 means session present 0, whatever was stored."""
    client = bench.client("a", clean=False)
    scenes.subscribe(bench, client, (bench.topic("t"), 1))
    client.disconnect()
    _expect_raw(bench, client.connect(clean=True), ACCEPTED)
    client.disconnect()
    _expect_raw(bench, client.connect(clean=True), ACCEPTED)
    # Also over a session that is still connected.
    client.disconnect()
    bench.client("a", clean=False)
    _expect_raw(bench, bench.client("a", clean=True).connack, ACCEPTED)


@statement("MQTT-3.2.2-2")
def mqtt_3_2_2_2(bench: Bench) -> None:
    """[MQTT-3.2.2-2] Accepting CleanSession 0 where the server has stored state means session
    present 1.
    """
    for subscribed in (False, True):
        with bench.case("with a subscription" if subscribed else "of an empty session"):
            client = bench.client(f"a{int(subscribed)}", clean=False)
            if subscribed:
                scenes.subscribe(bench, client, (bench.topic("t"), 1))
            for leave in (client.disconnect, client.drop, client.disconnect):
                leave()
                _expect_raw(bench, client.connect(clean=False), RESUMED)
            second = bench.client(f"a{int(subscribed)}", connect=False)
            _expect_raw(bench, second.connect(clean=False), RESUMED)


@statement("MQTT-3.2.2-3")
def mqtt_3_2_2_3(bench: Bench) -> None:
    """[MQTT-3.2.2-3] Without stored state session present is 0."""
    _expect_raw(bench, bench.client("a", clean=False).connack, ACCEPTED)
    _expect_raw(bench, bench.client("b", clean=True).connack, ACCEPTED)
    client = bench.client("c", clean=False)
    client.disconnect()
    client.connect(clean=True)
    client.disconnect()
    _expect_raw(bench, client.connect(clean=False), ACCEPTED)


def _refusal(bench: Bench, client: Client, *codes: int) -> Connack | None:
    """Return the CONNACK of a refusal, after which the broker has to close."""
    packet = client.expect_refused(*codes, silent=not bench.strict)
    client.drop()
    return packet if isinstance(packet, Connack) else None


@statement("MQTT-3.2.2-4", needs=("configure",))
def mqtt_3_2_2_4(bench: Bench) -> None:
    """[MQTT-3.2.2-4] A CONNACK that refuses has session present 0, whatever is stored."""
    bench.start(users=USERS)
    name, password = RIGHT
    client = bench.client("a", clean=False, username=name, password=password)
    scenes.subscribe(bench, client, (bench.topic("t"), 1))
    client.disconnect()
    attempts: tuple[tuple[Text | None, Text | None], ...] = (
        (name, "wrong"),
        ("nobody", password),
        (name, ""),
        (None, None),
    )
    for user, secret in attempts:
        with bench.case(f"user name {user!r}, password {secret!r}"):
            client.open()
            client.send(
                wire.connect(
                    client.client_id, version=4, clean=False, username=user, password=secret
                )
            )
            connack = _refusal(bench, client, 4, 5)
            if connack is not None and connack.raw[2]:
                bench.fail("session present in a refusal", connack, expected="flags 00")


@statement("MQTT-3.2.2-5", wants=("configure",))
def mqtt_3_2_2_5(bench: Bench) -> None:
    """[MQTT-3.2.2-5] After a CONNACK that refuses, the server ends the connection."""
    checked = scenes.configured(bench, "a wrong password", users=USERS)
    own = bench.id("offender")
    cases = [
        (1, wire.connect(own, version=4, level=0)),
        (2, wire.connect("", version=4, clean=False)),
    ]
    if checked:
        cases += [
            (4, wire.connect(own, version=4, username="anna", password="wrong")),
            (5, wire.connect(own, version=4)),
        ]
    for code, data in cases:
        with bench.case(f"a refusal, code {code} or the like"):
            client = bench.client("offender", connect=False)
            client.send(data)
            accepted = (code,) if code < 3 else (4, 5)
            client.expect_refused(*accepted, silent=code >= 3 and not bench.strict)
            client.drop()


@statement("MQTT-3.2.2-6", wants=("configure",))
def mqtt_3_2_2_6(bench: Bench) -> None:
    """[MQTT-3.2.2-6] A CONNECT to which no return code fits is answered by a close without
    CONNACK: no other code is ever sent.
    """
    own = bench.id("offender")
    will = Will(bench.topic("will"), b"no")
    cases = [
        ("level 0", wire.connect(own, version=4, level=0)),
        ("level 1", wire.connect(own, version=4, level=1)),
        ("an empty client id", wire.connect("", version=4, clean=False)),
        ("a wrong protocol name", wire.connect(own, version=4, name="MQTX")),
        ("the reserved flag", wire.connect(own, version=4, flags=0x03)),
        ("will QoS 3", scenes.connect(own, flags=0x1E, fields=(bench.topic("will"), "no"))),
        ("a wildcard in the will topic", wire.connect(own, version=4, will=Will("a/#"))),
        ("an empty will topic", wire.connect(own, version=4, will=Will(""))),
        ("a client id that is not UTF-8", wire.connect(b"\xff", version=4)),
        ("bytes left over", wire.connect(own, version=4, will=will, trailing=b"x")),
        ("password without user name", scenes.connect(own, flags=0x42, fields=("x",))),
        ("wrong fixed header flags", wire.connect(own, version=4, first_byte=0x11)),
    ]
    for what, data in cases:
        scenes.is_turned_away(bench, what, data)
    if not scenes.configured(bench, "a wrong password", users=USERS):
        return
    for user, secret in (("anna", "wrong"), ("nobody", "x"), ("", "")):
        data = wire.connect(own, version=4, username=user, password=secret)
        scenes.is_turned_away(bench, f"user name {user!r}", data)
    scenes.is_turned_away(bench, "no user name", wire.connect(own, version=4))
