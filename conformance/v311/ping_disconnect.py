"""MQTT 3.1.1, sections 3.12 and 3.14: PINGREQ and DISCONNECT."""

from conformance import wire
from conformance.check import Bench, Will, statement
from conformance.packets import Pingresp
from conformance.v311 import scenes


@statement("MQTT-3.12.4-1")
def mqtt_3_12_4_1(bench: Bench) -> None:
    """[MQTT-3.12.4-1] PINGREQ is answered by PINGRESP."""
    client = scenes.watch(bench, "t", name="a")
    client.send(wire.pingreq() * 10)
    for _ in range(10):
        packet = client.receive()
        if packet.raw != b"\xd0\x00":
            bench.fail("not a PINGRESP", packet, expected="d0 00")
    publisher = bench.client("publisher")
    for number in range(40):
        publisher.publish(bench.topic("t"), f"{number}", qos=1 + number % 2)
    opened = scenes.collect(client, 40)
    if not opened:
        bench.fail("no message is delivered", expected="PUBLISH")
    client.send(wire.pingreq() * 10)
    for _ in range(10):
        client.expect(Pingresp)
    client.expect_nothing(Pingresp)


@statement("MQTT-3.14.1-1")
def mqtt_3_14_1_1(bench: Bench) -> None:
    """[MQTT-3.14.1-1] A DISCONNECT with reserved bits set is none: the connection is ended and the
    will published.
    """
    watcher = scenes.watch(bench, "will")
    for bits in (0x01, 0x02, 0x04, 0x08, 0x0F):
        payload = f"{bits}".encode()
        will = Will(bench.topic("will"), payload, qos=1)
        first = 0xE0 | bits
        data = wire.disconnect(first_byte=first)
        scenes.is_cut_off(bench, f"DISCONNECT with first byte {first:#04x}", data, will=will)
        with bench.case(f"the will after first byte {first:#04x}"):
            watcher.expect_publish(bench.topic("will"), payload)


@statement("MQTT-3.14.4-1")
def mqtt_3_14_4_1(bench: Bench) -> None:
    """[MQTT-3.14.4-1] After DISCONNECT a client closes; the server should close if it does not."""
    for clean in (True, False):
        with bench.case(f"CleanSession {int(clean)}"):
            client = bench.client("a", clean=clean)
            client.send(wire.disconnect())
            if not client.wait_for_end(bench.patience):
                if bench.strict:
                    bench.fail("the connection stays open after DISCONNECT", expected="a close")
                bench.note("the broker leaves it to the client to close after DISCONNECT")
            if client.inbox:
                bench.fail("a packet after DISCONNECT", client.inbox[0], expected="nothing")
            client.drop()


@statement("MQTT-3.14.4-2")
def mqtt_3_14_4_2(bench: Bench) -> None:
    """[MQTT-3.14.4-2] After DISCONNECT a client sends nothing: what still comes has no effect."""
    topic = bench.topic("t")
    watcher = scenes.watch(bench)
    for qos in (0, 1, 2):
        with bench.case(f"PUBLISH at QoS {qos} after DISCONNECT"):
            client = bench.client("a")
            packet_id = 7 if qos else None
            late = wire.publish(topic, b"no", version=4, qos=qos, retain=True, packet_id=packet_id)
            client.send(wire.disconnect() + late + wire.subscribe(8, [(topic, 0)], version=4))
            client.wait_for_end(1.0)
            if client.inbox:
                bench.fail("an answer after DISCONNECT", client.inbox[0], expected="nothing")
            client.drop()
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, topic)


@statement("MQTT-3.14.4-3")
def mqtt_3_14_4_3(bench: Bench) -> None:
    """[MQTT-3.14.4-3] DISCONNECT deletes the will of its connection unpublished."""
    watcher = scenes.watch(bench)
    for number, clean in enumerate((True, False, True, False)):
        with bench.case(f"CleanSession {int(clean)}"):
            will = Will(bench.topic("will"), b"no", qos=number % 3, retain=number == 2)
            client = bench.client(f"a{number}", clean=clean, will=will, keep_alive=1)
            if number % 2:
                client.disconnect()
            else:
                client.send(wire.disconnect())
                client.wait_for_end(1.0)
                client.drop()
    bench.settle(2.0)  # beyond the keep alive: not later either
    for number in (0, 1):
        again = bench.client(f"a{number}", clean=bool(number))
        again.drop()
    bench.settle()
    scenes.nothing_comes(bench, watcher)
    scenes.nothing_is_retained(bench, bench.topic("will"))
    # A broker that never publishes a will would pass all this: one that was not deleted must come.
    bench.client("b", will=Will(bench.topic("will"), b"yes", qos=1)).drop()
    watcher.expect_publish(bench.topic("will"), b"yes")
