"""MQTT 5.0, sections 3.3.4 and 4.9: Receive Maximum, in both directions."""

from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    arrived,
    come_back,
    expect_only,
    persistent,
    receive_maximum,
    require,
    settled,
    subscribed,
)
from conformance.failure import NotRun
from conformance.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel

RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
SMALL: Final = 5
TRIED_MAX: Final = 2000  # a broker whose Receive Maximum is above this has to be configured
ERROR: Final = 0x80


def limited_sender(bench: Bench) -> tuple[Client, int]:
    """Return a publisher and the Receive Maximum it has to keep to, which is small enough."""
    if bench.has("configure"):
        try:
            bench.start(receive_maximum=SMALL)
        except NotRun as why:
            bench.note(f"with the broker's own Receive Maximum: {why}")
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    limit = receive_maximum(sender)
    if limit > TRIED_MAX:
        bench.not_run(f"the broker's Receive Maximum is {limit}: too many to try")
    return sender, limit


@statement("MQTT-3.3.4-7", wants=("configure",))
def mqtt_3_3_4_7(bench: Bench) -> None:
    """[MQTT-3.3.4-7] A client may use the broker's Receive Maximum up, but not go beyond it."""
    sender, limit = limited_sender(bench)
    topic = bench.topic("t")

    def publish(packet_id: int) -> None:
        sender.publish(topic, f"{packet_id}", 2, packet_id=packet_id, wait=False)
        sender.expect(Pubrec, packet_id=packet_id)

    for round_ in range(2):  # a flow that is complete makes room for another one
        first = 1 + round_ * limit
        for packet_id in range(first, first + limit):
            publish(packet_id)
        sender.publish(topic, b"QoS 0 does not count")
        sender.ping()
        for packet_id in range(first, first + limit):
            sender.pubrel(packet_id)
            sender.expect(Pubcomp, packet_id=packet_id)
            sender.publish(topic, b"QoS 1 in between", 1)
    for packet_id in range(1, 1 + limit):
        publish(packet_id)
    sender.publish(topic, b"one more", 2, packet_id=limit + 1, wait=False)
    sender.expect_close(RECEIVE_MAXIMUM_EXCEEDED)


@statement("X-32", wants=("configure",))
def x_32(bench: Bench) -> None:
    """[X-32] One QoS 1 or 2 PUBLISH above the Receive Maximum: DISCONNECT 0x93."""
    sender, limit = limited_sender(bench)
    for qos in (2, 1):
        with bench.case(f"one more at QoS {qos}"):
            sender.connect()
            packets = [
                wire.publish(bench.topic("t"), b"x", version=5, qos=2, packet_id=number)
                for number in range(1, limit + 1)
            ]
            packets.append(
                wire.publish(bench.topic("t"), b"x", version=5, qos=qos, packet_id=limit + 1)
            )
            sender.send(b"".join(packets))
            came = sender.read_to_end()
            last = came[-1] if came else None
            if not isinstance(last, Disconnect):
                if bench.strict:
                    bench.fail("closed without a reason code", last, expected="DISCONNECT 0x93")
            elif last.reason != RECEIVE_MAXIMUM_EXCEEDED and bench.strict:
                bench.fail("closed for another reason", last, expected="DISCONNECT 0x93")
            answered = [p.packet_id for p in came if isinstance(p, Pubrec | Puback)]
            if not set(answered) <= set(range(1, limit + 1)):
                bench.fail("the one above the limit is answered", last, expected="a close")
    other = bench.client("other")
    other.publish(bench.topic("t"), b"goes on", 1)


class Window:
    """The deliveries of one connection that are not acknowledged."""

    def __init__(self, bench: Bench, client: Client, limit: int) -> None:
        self._bench = bench
        self._client = client
        self._limit = limit
        self.open: list[Publish] = []
        self.payloads: list[bytes] = []

    def take(self) -> None:
        """Take one more delivery, which has to come."""
        self._add(self._client.expect_publish(acknowledge=False))

    def _add(self, packet: Publish) -> None:
        self.open.append(packet)
        self.payloads.append(packet.payload)
        if len(self.open) > self._limit:
            self._bench.fail(
                f"{len(self.open)} are not acknowledged", packet, expected=f"at most {self._limit}"
            )

    def look(self) -> None:
        """Take all that comes now."""
        for packet in settled(self._bench, self._client):
            self._add(packet)

    def expect_none(self, why: str) -> None:
        """Nothing may come."""
        for packet in settled(self._bench, self._client):
            self._bench.fail(f"one more delivery {why}", packet, expected="none")

    def settle_oldest(self, number: int, *, watch: bool) -> None:
        """End the flow of the oldest one, with success and with an error in turn."""
        packet = self.open[0]
        assert packet.packet_id is not None
        is_error = number // 2 % 2 == 1
        if packet.qos == 1:
            self._client.puback(packet.packet_id, ERROR if is_error else None)
        elif is_error:
            self._client.pubrec(packet.packet_id, ERROR)
        else:
            self._client.pubrec(packet.packet_id)
            self._client.expect_pubrel(packet.packet_id)
            if watch:
                self.expect_none("after PUBREC with success")
            self._client.pubcomp(packet.packet_id)
        del self.open[0]


@statement("MQTT-3.3.4-9", seconds=5)
def mqtt_3_3_4_9(bench: Bench) -> None:
    """[MQTT-3.3.4-9] Open deliveries at QoS 1 and 2 never exceed the client's Receive Maximum."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    limit, count = 3, 20
    properties = [(tables.RECEIVE_MAXIMUM, limit)]
    for mixture in ((1,), (2,), (1, 2)):
        with bench.case(f"published at QoS {' and '.join(map(str, mixture))}"):
            topic = bench.topic("t")
            subscriber = subscribed(bench, "subscriber", topic, 2, properties=properties)
            wanted = []
            for number in range(count):
                sender.publish(topic, f"{number}", mixture[number % len(mixture)])
                wanted.append(b"%d" % number)
            window = Window(bench, subscriber, limit)
            for _ in range(limit):
                window.take()
            window.expect_none("although the Receive Maximum is used up")
            for number in range(count):
                window.settle_oldest(number, watch=number < 6)
                if len(window.payloads) < count:
                    window.take()
                if number < 6:
                    window.expect_none("although the Receive Maximum is used up")
            window.expect_none("too much")
            if sorted(window.payloads) != sorted(wanted):
                bench.fail(f"{len(window.payloads)} deliveries", expected="each message once")
            subscriber.disconnect()


@statement("MQTT-3.3.4-10")
def mqtt_3_3_4_10(bench: Bench) -> None:
    """[MQTT-3.3.4-10] Only PUBLISH waits for the Receive Maximum, every other packet goes out."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    for qos in (1, 2):
        with bench.case(f"used up by a delivery at QoS {qos}"):
            client = subscribed(bench, "client", topic, 2, properties=[(tables.RECEIVE_MAXIMUM, 1)])
            sender.publish(topic, b"first", qos)
            sender.publish(topic, b"second", qos)
            first = client.expect_publish(payload=b"first", acknowledge=False)
            assert first.packet_id is not None
            for _ in range(2):
                client.ping()
                client.subscribe(bench.topic("other"), 2)
                client.unsubscribe(bench.topic("other"))
                client.publish(bench.topic("unheard"), b"1", 1)
                client.publish(bench.topic("unheard"), b"2", 2)
                for packet in arrived(client):
                    bench.fail("a second delivery", packet, expected="it waits")
                if qos == 2:
                    client.pubrec(first.packet_id)
                    client.expect_pubrel(first.packet_id)
                    qos = 0  # now the same with the flow half done
            if first.qos == 1:
                client.puback(first.packet_id)
            else:
                client.pubcomp(first.packet_id)
            client.expect_publish(payload=b"second")
            client.disconnect()


@statement("X-31", seconds=3)
def x_31(bench: Bench) -> None:
    """[X-31] The send quota begins anew with each connection and never grows beyond its start."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    announce = {limit: [(tables.RECEIVE_MAXIMUM, limit)] for limit in (1, 2, 4)}
    subscriber = persistent(bench, "subscriber", topic, 2, properties=announce[2])
    count = 8
    for number in range(count):
        sender.publish(topic, f"{number}", 2)
    window = Window(bench, subscriber, 2)
    window.take()
    window.take()
    window.expect_none("although the Receive Maximum is used up")
    released = window.open[0].packet_id
    assert released is not None
    subscriber.pubrec(released)
    subscriber.expect_pubrel(released)
    # PUBREL is sent again and has used no quota: its PUBCOMP must not make room for a third one.
    come_back(subscriber, properties=announce[2])
    window = Window(bench, subscriber, 2)
    subscriber.expect_pubrel(released)
    window.look()
    subscriber.pubcomp(released)
    window.look()
    for packet_id in (released, 65_000):  # answers to nothing make no room either
        subscriber.puback(packet_id)
        subscriber.pubcomp(packet_id)
    window.look()
    for limit in (1, 4):
        with bench.case(f"resumed with Receive Maximum {limit}"):
            come_back(subscriber, properties=announce[limit])
            window = Window(bench, subscriber, limit)
            window.look()
            if not window.open:
                bench.fail("nothing is sent again", expected="what was open")
    while window.open:
        packet = window.open.pop(0)
        subscriber.acknowledge(packet)
        if len(window.payloads) < count - 1:
            window.look()
    expect_only(bench, sender, subscriber, [])
    subscriber.expect_nothing(Pubrel)
    if sorted(window.payloads) != [b"%d" % number for number in range(1, count)]:
        bench.fail(f"deliveries of {window.payloads}", expected="1 to 7, each once")
