"""MQTT 3.1.1, sections 3.1.2.5 to 3.1.2.7: the will, and the keep alive that may set it off."""

import time
from typing import Final

from conformance import wire
from conformance.check import Bench, Client, Will, statement
from conformance.scenes import answer_or_end
from conformance.v311 import scenes

KEEP_ALIVE_S: Final = 2
LIMIT_S: Final = 1.5 * KEEP_ALIVE_S
CLOCK_S: Final = 0.1  # how much earlier than the limit our own clock may see a close
OPEN_S: Final = 10.0  # how long a connection without keep alive is watched


@statement("MQTT-3.1.2-8")
def mqtt_3_1_2_8(bench: Bench) -> None:
    """[MQTT-3.1.2-8] The will is published, once, when the connection ends in any way but by
    DISCONNECT.
    """
    topic = bench.topic("will")
    watcher = scenes.watch(bench)
    for number, what in enumerate(("reset", "closed", "violation")):
        with bench.case(f"connection {what}"):
            payload = f"will {number}".encode()
            client = bench.client("mortal", will=Will(topic, payload, qos=number))
            scenes.nothing_comes(bench, watcher)
            if what == "reset":
                client.drop()
            elif what == "closed":
                client.close()
            else:
                client.send(wire.packet(0xF0))
                client.expect_close()
            watcher.expect_publish(topic, payload, qos=number, retain=False)
    with bench.case("a second CONNECT"):
        client = bench.client("mortal", will=Will(topic, b"twice", qos=1))
        client.send(wire.connect(client.client_id, version=4))
        client.expect_close()
        watcher.expect_publish(topic, b"twice", qos=1, retain=False)
    for old, new in ((True, True), (True, False), (False, True), (False, False)):
        with bench.case(f"taken over, CleanSession {int(old)}, then {int(new)}"):
            payload = f"taken over {int(old)} {int(new)}".encode()
            client = bench.client("mortal", clean=old, will=Will(topic, payload, qos=1))
            bench.client("mortal", clean=new).disconnect()
            client.expect_close()
            watcher.expect_publish(topic, payload, qos=1, retain=False)
    with bench.case("keep alive exceeded"):
        client = bench.client("silent", keep_alive=1, will=Will(topic, b"silent", qos=1))
        client.expect_close(timeout=1.5 + scenes.KEEP_ALIVE_LATENESS_S)
        watcher.expect_publish(topic, b"silent", qos=1, retain=False)
    scenes.nothing_comes(bench, watcher)


@statement("MQTT-3.1.2-9")
def mqtt_3_1_2_9(bench: Bench) -> None:
    """[MQTT-3.1.2-9] With the will flag the server goes by will QoS and will retain, and the
    payload has to hold will topic and will message.
    """
    watcher = scenes.watch(bench)
    for qos in (0, 1, 2):
        for retain in (False, True):
            with bench.case(f"will QoS {qos}, will retain {int(retain)}"):
                topic = bench.topic(f"{qos}/{retain}")
                payload = f"{qos} {retain}".encode()
                client = bench.client("mortal", will=Will(topic, payload, qos=qos, retain=retain))
                client.drop()
                watcher.expect_publish(topic, payload, qos=qos, retain=False)
                found = [(p.payload, p.qos) for p in scenes.retained(bench, topic)]
                # A retained message of QoS 0 may be given up at any time.
                allowed = [[(payload, qos)]] + [[]] * (qos == 0) if retain else [[]]
                if found not in allowed:
                    bench.fail(f"a new subscription brings {found}", expected=f"{allowed[0]}")
    own = bench.id("offender")
    topic = bench.topic("t")
    for what, fields in (("will topic", ()), ("will message", (topic,))):
        for flags in (0x06, 0x26, 0x16, 0x04):
            data = scenes.connect(own, flags=flags, fields=fields)
            scenes.is_refused_silently(bench, f"flags {flags:#04x}, payload without {what}", data)
    scenes.nothing_comes(bench, watcher)


@statement("MQTT-3.1.2-10", wants=("restart",), seconds=4)
def mqtt_3_1_2_10(bench: Bench) -> None:
    """[MQTT-3.1.2-10] The will is gone once it was published or DISCONNECT has come."""
    restarts = scenes.restartable(bench)
    topic = bench.topic("will")
    for clean in (True, False):
        with bench.case(f"CleanSession {int(clean)}"):
            watcher = scenes.watch(bench)
            mortal = bench.client("mortal", clean=clean, will=Will(topic, b"will", qos=1))
            mortal.drop()
            watcher.expect_publish(topic, b"will")
            mortal.connect(clean=clean)
            mortal.drop()
            polite = bench.client("polite", clean=clean, will=Will(topic, b"never", qos=1))
            polite.disconnect()
            polite.connect(clean=clean)
            polite.drop()
            bench.settle()
            scenes.nothing_comes(bench, watcher)
    if not restarts:
        return
    durable = bench.client("durable", clean=False)
    scenes.subscribe(bench, durable, (bench.topic("#"), 2))
    scenes.restart(bench)
    scenes.resume(bench, durable)
    mortal.connect()
    mortal.drop()
    bench.settle()
    scenes.nothing_comes(bench, durable)


@statement("MQTT-3.1.2-12")
def mqtt_3_1_2_12(bench: Bench) -> None:
    """[MQTT-3.1.2-12] Without the will flag nothing is published when the connection ends."""
    watcher = scenes.watch(bench)
    earlier = Will(bench.topic("will"), b"of an earlier connection", qos=1)
    bench.client("mortal", clean=False, will=earlier).disconnect()
    for clean in (False, True):
        with bench.case(f"CleanSession {int(clean)}"):
            bench.client("mortal", clean=clean).drop()
            bench.client("mortal", clean=clean).close()
            violator = bench.client("mortal", clean=clean)
            violator.send(wire.packet(0xF0))
            violator.expect_close()
    bench.settle()
    scenes.nothing_comes(bench, watcher)


@statement("MQTT-3.1.2-16")
def mqtt_3_1_2_16(bench: Bench) -> None:
    """[MQTT-3.1.2-16] With will retain 0 the will is published as an ordinary message."""
    topic = bench.topic("will")
    watcher = scenes.watch(bench)
    bench.client("keeper").publish(topic, b"kept", qos=1, retain=True)
    watcher.expect_publish(topic, b"kept")
    for qos in (0, 1, 2):
        bench.client("mortal", will=Will(topic, b"will", qos=qos, retain=False)).drop()
        watcher.expect_publish(topic, b"will", qos=qos, retain=False)
        other = bench.topic(f"other/{qos}")
        bench.client("mortal", will=Will(other, b"will", qos=qos, retain=False)).drop()
        watcher.expect_publish(other, b"will", qos=qos, retain=False)
    scenes.nothing_is_retained(bench, bench.topic("other/#"))
    found = [packet.payload for packet in scenes.retained(bench, topic)]
    if found != [b"kept"]:
        bench.fail(f"retained afterwards: {found}", expected="the message retained before")


@statement("MQTT-3.1.2-17")
def mqtt_3_1_2_17(bench: Bench) -> None:
    """[MQTT-3.1.2-17] With will retain 1 the will is published as a retained message."""
    topic = bench.topic("will")
    watcher = scenes.watch(bench)
    for number in (1, 2):
        payload = f"will {number}".encode()
        bench.client("mortal", will=Will(topic, payload, qos=number, retain=True)).drop()
        watcher.expect_publish(topic, payload, qos=number)
        found = scenes.retained(bench, topic)
        if [(p.payload, p.retain) for p in found] != [(payload, True)]:
            bench.fail(
                f"a new subscription brings {[(p.payload, p.retain) for p in found]}",
                found[0] if found else None,
                expected=f"{payload!r} with RETAIN 1",
            )
    bench.client("mortal", will=Will(topic, b"", qos=1, retain=True)).drop()
    watcher.expect_publish(topic, b"")
    scenes.nothing_is_retained(bench, topic)


def _seconds_to_end(bench: Bench, silent: Client, publisher: Client, pinging: Client) -> float:
    """Return when the silent client is cut off, while messages go to it and another one pings."""
    last = pinged = time.monotonic()
    while time.monotonic() < last + LIMIT_S + scenes.KEEP_ALIVE_LATENESS_S:
        if time.monotonic() - pinged >= KEEP_ALIVE_S:
            pinged = time.monotonic()
            pinging.ping()
        # What the server itself sends does not count.
        publisher.publish(bench.topic("t"), b"something")
        if answer_or_end(silent) is None:
            return time.monotonic() - last
        bench.settle(0.1)
    bench.fail(
        f"still open after {time.monotonic() - last:.1f} s of silence",
        expected=f"a close after {LIMIT_S} s",
    )


@statement("MQTT-3.1.2-24", seconds=10)
def mqtt_3_1_2_24(bench: Bench) -> None:
    """[MQTT-3.1.2-24] The server ends a connection on which no packet has come for one and a half
    times a keep alive other than 0.
    """
    watcher = scenes.watch(bench, "will")
    publisher = bench.client("publisher")
    began = time.monotonic()
    without = bench.client("without", keep_alive=0)
    pinging = bench.client("pinging", keep_alive=KEEP_ALIVE_S)
    will = Will(bench.topic("will"), b"silent")
    silent = bench.client("silent", keep_alive=KEEP_ALIVE_S, will=will)
    scenes.subscribe(bench, silent, (bench.topic("t"), 0))
    ended = _seconds_to_end(bench, silent, publisher, pinging)
    if ended < LIMIT_S - CLOCK_S:
        bench.fail(f"closed after {ended:.1f} s of silence", expected=f"not before {LIMIT_S} s")
    if ended > LIMIT_S + 1.5:
        bench.note(f"the connection was ended {ended - LIMIT_S:.1f} s after the limit")
    watcher.expect_publish(bench.topic("will"), b"silent")
    while time.monotonic() < began + OPEN_S:
        pinging.ping()
        bench.settle(min(KEEP_ALIVE_S, max(0.0, began + OPEN_S - time.monotonic())))
    pinging.ping()
    without.ping()
