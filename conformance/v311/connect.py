"""MQTT 3.1.1, sections 3.1 and 3.1.2: CONNECT comes first and once, its name, level and flags."""

from typing import Final

from conformance import wire
from conformance.check import Bench, Will, statement
from conformance.v311 import scenes

USER_NAME: Final = 0x80
PASSWORD: Final = 0x40
WILL_RETAIN: Final = 0x20
WILL: Final = 0x04
CLEAN: Final = 0x02


@statement("MQTT-3.1.0-1")
def mqtt_3_1_0_1(bench: Bench) -> None:
    """[MQTT-3.1.0-1] The first packet on a connection has to be CONNECT; anything else ends it
    without an answer and without effect.
    """
    topic = bench.topic("t")
    watcher = scenes.watch(bench)
    for what, data in (
        ("PINGREQ", wire.pingreq()),
        ("PUBLISH at QoS 0", wire.publish(topic, b"no", version=4, retain=True)),
        ("PUBLISH at QoS 1", wire.publish(topic, b"no", version=4, qos=1, packet_id=1)),
        ("PUBLISH at QoS 2", wire.publish(topic, b"no", version=4, qos=2, packet_id=1)),
        ("PUBREL", wire.pubrel(1)),
        ("SUBSCRIBE", wire.subscribe(1, [(topic, 0)], version=4)),
        ("UNSUBSCRIBE", wire.unsubscribe(1, [topic], version=4)),
        ("DISCONNECT", wire.disconnect()),
    ):
        scenes.is_refused_silently(bench, f"{what} as the first packet", data)
        late = wire.connect(bench.id("late"), version=4)
        scenes.is_refused_silently(bench, f"{what} and then CONNECT", data + late)
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, topic)


@statement("MQTT-3.1.0-2")
def mqtt_3_1_0_2(bench: Bench) -> None:
    """[MQTT-3.1.0-2] A second CONNECT on a connection ends it."""
    own = bench.id("offender")
    for what, data in (
        ("the same CONNECT again", wire.connect(own, version=4)),
        ("CONNECT with another client id", wire.connect(bench.id("other"), version=4)),
        ("CONNECT with CleanSession 0", wire.connect(own, version=4, clean=False)),
    ):
        scenes.is_cut_off(bench, what, data)
    with bench.case("two CONNECTs in one write"):
        client = bench.client("offender", connect=False)
        client.send(wire.connect(own, version=4) + wire.connect(own, version=4))
        client.expect_connack()
        client.expect_close()


@statement("MQTT-3.1.2-1")
def mqtt_3_1_2_1(bench: Bench) -> None:
    """[MQTT-3.1.2-1] A CONNECT whose protocol name is not MQTT is never served as 3.1.1."""
    own = bench.id("offender")
    for name in ("mqtt", "MQTX", "MQIsdp", "MQTTT", "MQT", "", b"MQT\0", b"\xef\xbb\xbfMQTT"):
        scenes.is_turned_away(bench, f"protocol name {name!r}", scenes.connect(own, name=name))


@statement("MQTT-3.1.2-2")
def mqtt_3_1_2_2(bench: Bench) -> None:
    """[MQTT-3.1.2-2] A protocol level the server does not know is answered by CONNACK with code 1
    and the end of the connection.
    """
    for level in (0, 6, 127):
        with bench.case(f"protocol level {level}"):
            client = bench.client("offender", connect=False)
            client.send(scenes.connect(client.client_id, level=level))
            answer = client.bytes_to_end()
            # A broker of 5.0 may answer a later version in the form of 5.0: code 0x84.
            newer = level > 5 and answer[:1] == b"\x20" and answer[2:4] == b"\x00\x84"
            if answer != b"\x20\x02\x00\x01" and not newer:
                bench.fail(f"received {answer.hex(' ')!r}", answer, expected="20 02 00 01")


@statement("MQTT-3.1.2-3")
def mqtt_3_1_2_3(bench: Bench) -> None:
    """[MQTT-3.1.2-3] The reserved bit of the connect flags has to be 0, or the connection ends."""
    own = bench.id("offender")
    for flags, fields in (
        (CLEAN | 1, ()),
        (1, ()),
        (CLEAN | USER_NAME | 1, ("user",)),
        (CLEAN | WILL | 1, (bench.topic("will"), "will")),
    ):
        data = scenes.connect(own, flags=flags, fields=fields)
        scenes.is_turned_away(bench, f"connect flags {flags:#04x}", data)


def _flags_do_not_fit(bench: Bench, *cases: tuple[int, tuple[str, ...]]) -> None:
    """Send CONNECT with each of these flags and fields after the client id: silently refused."""
    watcher = scenes.watch(bench)
    for flags, fields in cases:
        what = f"connect flags {flags:#04x} with {len(fields)} fields after the client id"
        data = scenes.connect(bench.id("offender"), flags=flags, fields=fields)
        scenes.is_refused_silently(bench, what, data)
    scenes.nothing_comes(bench, watcher)


@statement("MQTT-3.1.2-11")
def mqtt_3_1_2_11(bench: Bench) -> None:
    """[MQTT-3.1.2-11] Without the will flag there is no will QoS, no will retain and no will in
    the payload.
    """
    will = (bench.topic("will"), "will")
    _flags_do_not_fit(
        bench,
        (CLEAN | 0x08, ()),
        (CLEAN | 0x10, ()),
        (CLEAN | WILL_RETAIN, ()),
        (CLEAN | 0x08, will),
        (CLEAN | WILL_RETAIN, will),
        (CLEAN, will),
    )


@statement("MQTT-3.1.2-13")
def mqtt_3_1_2_13(bench: Bench) -> None:
    """[MQTT-3.1.2-13] Without the will flag the will QoS is 0."""
    _flags_do_not_fit(bench, *((CLEAN | qos << 3, ()) for qos in (1, 2, 3)))
    _flags_do_not_fit(bench, *((qos << 3, ()) for qos in (1, 2, 3)))


@statement("MQTT-3.1.2-14")
def mqtt_3_1_2_14(bench: Bench) -> None:
    """[MQTT-3.1.2-14] The QoS of a will is 0, 1 or 2, never 3."""
    will = (bench.topic("will"), "will")
    _flags_do_not_fit(bench, (CLEAN | WILL | 0x18, will), (CLEAN | WILL | WILL_RETAIN | 0x18, will))
    scenes.nothing_is_retained(bench, bench.topic("will"))
    for qos in (0, 1, 2):
        with bench.case(f"will QoS {qos}"):
            client = bench.client("offender", will=Will(bench.topic("will"), b"will", qos=qos))
            client.disconnect()


@statement("MQTT-3.1.2-15")
def mqtt_3_1_2_15(bench: Bench) -> None:
    """[MQTT-3.1.2-15] Without the will flag will retain is 0."""
    _flags_do_not_fit(bench, (CLEAN | WILL_RETAIN, ()), (WILL_RETAIN, ()))


@statement("MQTT-3.1.2-18")
def mqtt_3_1_2_18(bench: Bench) -> None:
    """[MQTT-3.1.2-18] Without the user name flag there is no user name in the payload."""
    will = (bench.topic("will"), "will")
    _flags_do_not_fit(bench, (CLEAN, ("user",)), (CLEAN | WILL, (*will, "user")))


@statement("MQTT-3.1.2-19")
def mqtt_3_1_2_19(bench: Bench) -> None:
    """[MQTT-3.1.2-19] With the user name flag there is a user name in the payload."""
    will = (bench.topic("will"), "will")
    _flags_do_not_fit(
        bench,
        (CLEAN | USER_NAME, ()),
        (CLEAN | USER_NAME | WILL, will),
        (CLEAN | USER_NAME | PASSWORD, ()),
    )


@statement("MQTT-3.1.2-20")
def mqtt_3_1_2_20(bench: Bench) -> None:
    """[MQTT-3.1.2-20] Without the password flag there is no password in the payload."""
    will = (bench.topic("will"), "will")
    _flags_do_not_fit(
        bench,
        (CLEAN | USER_NAME, ("user", "password")),
        (CLEAN | USER_NAME | WILL, (*will, "user", "password")),
    )


@statement("MQTT-3.1.2-21")
def mqtt_3_1_2_21(bench: Bench) -> None:
    """[MQTT-3.1.2-21] With the password flag there is a password in the payload."""
    will = (bench.topic("will"), "will")
    _flags_do_not_fit(
        bench,
        (CLEAN | USER_NAME | PASSWORD, ("user",)),
        (CLEAN | USER_NAME | PASSWORD | WILL, (*will, "user")),
    )


@statement("MQTT-3.1.2-22")
def mqtt_3_1_2_22(bench: Bench) -> None:
    """[MQTT-3.1.2-22] There is no password flag without the user name flag."""
    will = (bench.topic("will"), "will")
    _flags_do_not_fit(
        bench,
        (CLEAN | PASSWORD, ("password",)),
        (CLEAN | PASSWORD, ("user", "password")),
        (CLEAN | PASSWORD | WILL, (*will, "password")),
        (CLEAN | PASSWORD, ()),
    )
