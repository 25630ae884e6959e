"""MQTT 5.0, sections 4.1, 4.2, 4.4 and 4.5: session state, transport, re-sending, storing."""

import random
from typing import Any, Final

from conformance import wire
from conformance.check import Bench, statement
from conformance.client import Client
from conformance.deliveries import (
    come_back,
    crash,
    expect_only,
    expect_payloads,
    own_broker,
    packet_size_maximum,
    persistent,
    receive_maximum,
    require,
    subscribed,
)
from conformance.packets import Packet, Puback, Publish, Pubrel
from conformance.scenes import has_shared_subscriptions
from conformance.v50.acks import expect_reason
from conformance.v50.flows import (
    expect_nothing_open,
    expect_same_again,
    half_done,
    packet_id_of,
    publish_step,
    release_step,
)

CONNECTED_S: Final = 6.0  # three times the longest session expiry interval of 4.1.0-1
EXPIRY_S: Final = 1  # of sessions that are to end, and how long that may take at most
ENDED_AFTER_S: Final = 3.0


class Holder:
    """A connected client with one of everything that belongs to a session."""

    def __init__(self, bench: Bench, sender: Client, expiry: int) -> None:
        self.bench = bench
        self.sender = sender
        self.expiry = expiry
        self.topic = bench.topic(f"to{expiry}")
        self.client = bench.client(f"holder{expiry}", session_expiry=expiry)
        self.client.subscribe(self.topic, 2)
        self.deliveries = [self._delivery(qos) for qos in (1, 2, 2)]
        released = packet_id_of(self.deliveries[2])
        self.client.pubrec(released)
        self.client.expect_pubrel(released)
        publish_step(self.client, bench.topic(f"from{expiry}"), b"inbound", 9)

    def _delivery(self, qos: int) -> Publish:
        self.sender.publish(self.topic, f"qos {qos}", qos)
        return self.client.expect_publish(qos=qos, acknowledge=False)

    def expect_kept(self, observer: Client) -> None:
        """All of it is still there; `observer` gets what the client publishes."""
        first, second, released = self.deliveries
        known = {packet.packet_id for packet in self.deliveries}
        fresh = self._delivery(1)
        if fresh.packet_id in known:
            self.bench.fail("the id of an open delivery", fresh, expected="a free one")
        topic = self.bench.topic(f"from{self.expiry}")
        again = publish_step(self.client, topic, b"inbound", 9, dup=True)
        expect_reason(self.bench, again, 0x00, 0x10)
        expect_reason(self.bench, release_step(self.client, 9), 0x00)
        expect_only(self.bench, self.client, observer, [b"inbound"])
        self.client.pubrec(packet_id_of(second))
        expect_reason(self.bench, self.client.expect_pubrel(packet_id_of(second)), 0x00)
        self.client.pubcomp(packet_id_of(second))
        self.client.pubcomp(packet_id_of(released))
        for packet in (first, fresh):
            self.client.puback(packet_id_of(packet))
        self.client.expect_nothing(Publish, Pubrel)


@statement("MQTT-4.1.0-1", seconds=CONNECTED_S)
def mqtt_4_1_0_1(bench: Bench) -> None:
    """[MQTT-4.1.0-1] Session state stays as long as the connection, whatever its expiry."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    observers = {
        expiry: subscribed(bench, f"observer{expiry}", bench.topic(f"from{expiry}"), 2)
        for expiry in (0, 2)
    }
    holders = [Holder(bench, sender, expiry) for expiry in observers]
    bench.settle(CONNECTED_S)
    for holder in holders:
        with bench.case(f"Session Expiry Interval {holder.expiry}"):
            if holder.expiry:  # its time begins with the end of the connection
                come_back(holder.client, session_expiry=holder.expiry)
                for packet in holder.deliveries[:2]:
                    expect_same_again(
                        bench, holder.client.expect_publish(acknowledge=False), packet
                    )
                holder.client.expect_pubrel(packet_id_of(holder.deliveries[2]))
            holder.expect_kept(observers[holder.expiry])


@statement("MQTT-4.1.0-2", wants=("restart",), seconds=10)
def mqtt_4_1_0_2(bench: Bench) -> None:
    """[MQTT-4.1.0-2] Session state is gone once the expiry interval has passed after the end."""
    own = own_broker(bench)
    sender = bench.client("sender")
    shared = bench.topic("shared")
    group = f"$share/{bench.unique}/{shared}"
    shares = has_shared_subscriptions(sender)
    filters = [(bench.topic("t"), 1), *([(group, 1)] if shares else [])]
    member = subscribed(bench, "member", [(group if shares else shared, 1)])
    options: dict[str, Any] = {"clean": False, "session_expiry": EXPIRY_S}
    leaving = [bench.client(name, **options) for name in ("left", "cut", "down")]
    at_once = bench.client("atonce", session_expiry=0)
    for client in (*leaving, at_once):
        client.subscribe(filters)
    left, cut, down = leaving
    sender.publish(bench.topic("t"), b"before", 1)
    for client in (*leaving, at_once):
        client.expect_publish(payload=b"before", acknowledge=False)
    for client in (left, down, at_once):
        client.disconnect()
    cut.drop()
    expect_gone(bench, sender, at_once)
    if own is not None:
        down.connect(**options)  # on a slow machine it may be gone
        down.subscribe(filters)
        down.disconnect()
    sender.publish(bench.topic("t"), b"queued", 1)
    if own is not None:
        own.stop()
    bench.settle(ENDED_AFTER_S)
    if own is not None:
        own.start()
        sender = bench.client("sender")
        expect_gone(bench, sender, down)
        # The same with the broker up all the time.
        member = subscribed(bench, "member", [(group if shares else shared, 1)])
        for client in (left, cut):
            client.connect(**options)
            client.subscribe(filters)
        left.disconnect()
        cut.drop()
        sender.publish(bench.topic("t"), b"queued", 1)
        bench.settle(ENDED_AFTER_S)
    wanted = [b"%d" % number for number in range(9)]
    for payload in wanted:
        sender.publish(shared, payload, 1)
    expect_only(bench, sender, member, wanted)
    for client in (left, cut):
        expect_gone(bench, sender, client)


def expect_gone(bench: Bench, sender: Client, client: Client) -> None:
    """Connect to what was a session: nothing of it is left."""
    with bench.case(f"client {client.name!r}"):
        connack = client.connect(clean=False)
        if connack.session_present:
            bench.fail("the session is still there", connack, expected="session present 0")
        sender.publish(bench.topic("t"), b"after", 1)
        bench.settle()
        for packet in client.drain():
            bench.fail("something of the session is left", packet, expected="nothing")
        client.disconnect()


def script(bench: Bench, name: str) -> bytes:
    """Return a whole conversation of one client, as bytes."""
    topic = bench.topic(name)
    packets = [wire.connect(bench.id(name), version=5), wire.subscribe(1, [(topic, 2)], version=5)]
    for qos in (0, 1, 2):
        packet_id = 10 + qos if qos else None
        packets.append(wire.publish(topic, b"%d" % qos, version=5, qos=qos, packet_id=packet_id))
    packets += [wire.pubrel(12), wire.pingreq(), wire.unsubscribe(2, [topic], version=5)]
    return b"".join(packets)


@statement("MQTT-4.2.0-1", seconds=2)
def mqtt_4_2_0_1(bench: Bench) -> None:
    """[MQTT-4.2.0-1] TCP carries MQTT as a stream: how the bytes are cut does not matter."""
    chance = random.Random(50)
    for name in ("whole", "bytes", "pieces"):
        with bench.case(f"sent as {name}"):
            client = bench.open(name)
            data = script(bench, name)
            while data:
                size = {"whole": len(data), "bytes": 1, "pieces": chance.randint(1, 30)}[name]
                client.send(data[:size])
                data = data[size:]
                if name != "whole":
                    bench.settle(0.002)
            expect_conversation(bench, client)
    _bursts(bench)


def expect_conversation(bench: Bench, client: Client) -> None:
    """Expect the answers to `script`: every packet and every delivery once."""
    client.expect_connack()
    counts: dict[str, int] = {}
    delivered: list[bytes] = []
    while counts.get("Unsuback", 0) < 1 or len(set(delivered)) < 3:
        packet: Packet = client.receive()
        if isinstance(packet, Publish):
            delivered.append(packet.payload)
        counts[type(packet).__name__] = counts.get(type(packet).__name__, 0) + 1
    for kind in ("Suback", "Puback", "Pubrec", "Pubcomp", "Pingresp", "Unsuback"):
        if counts.get(kind) != 1:
            bench.fail(f"{counts.get(kind, 0)} x {kind.upper()}", expected="one")
    if sorted(delivered) != [b"0", b"1", b"2"]:
        bench.fail(f"deliveries {delivered}", expected="each message once")
    client.ping()


def _bursts(bench: Bench) -> None:
    """A mebibyte in one write comes out as it went in."""
    topic = bench.topic("burst")
    subscriber = subscribed(bench, "subscriber", topic, 1)
    sender = bench.client("sender")
    size = min(1 << 16, packet_size_maximum(sender) - 100)
    count = min((1 << 20) // size, receive_maximum(sender))
    sent = [bytes([65 + number]) * size for number in range(count)]
    packets = [
        wire.publish(topic, payload, version=5, qos=1, packet_id=number + 1)
        for number, payload in enumerate(sent)
    ]
    with bench.case(f"{count} messages of {size} bytes in one write"):
        sender.send(b"".join(packets))
        ids = [sender.expect(Puback).packet_id for _ in sent]
        if sorted(ids) != list(range(1, count + 1)):
            bench.fail(f"PUBACK for {ids}", expected="one for each PUBLISH")
        expect_payloads(bench, subscriber, sent)


@statement("MQTT-4.5.0-1", wants=("kill",), seconds=2)
def mqtt_4_5_0_1(bench: Bench) -> None:
    """[MQTT-4.5.0-1] What the broker acknowledged is in every session with a matching filter."""
    own = own_broker(bench, "kill")
    sender = persistent(bench, "sender", bench.topic("own"))
    require(bench, sender, qos=2)
    topic = bench.topic("a/b")
    filters = {"exact": topic, "plus": bench.topic("a/+"), "hash": bench.topic("#")}
    if has_shared_subscriptions(sender):
        filters["shared"] = f"$share/{bench.unique}/{bench.topic('a/#')}"
    here = persistent(bench, "here", topic)
    away = [persistent(bench, name, topic_filter) for name, topic_filter in filters.items()]
    old = bench.client("old", version=4, clean=False)
    old.subscribe(topic, 2)
    away.append(old)
    other = persistent(bench, "other", bench.topic("a/c"))
    for client in (*away, other):
        client.disconnect()
    wanted = []
    for number in range(10):
        for qos in (1, 2):
            payload = b"%d at %d" % (number, qos)
            sender.publish(topic, payload, qos)
            wanted.append(payload)
    if own is not None:
        crash(own)
        come_back(sender)
        come_back(here)
    for client in (*away, other):
        come_back(client)
    for client in (here, *away):
        with bench.case(f"session {client.name!r}"):
            expect_only(bench, sender, client, wanted)
    expect_only(bench, sender, other, [])


# What is sent again

RETRY_WAIT_S: Final = (
    30.0  # longer than the timers of brokers that used to send again by themselves
)


@statement("MQTT-4.4.0-1", seconds=RETRY_WAIT_S)
def mqtt_4_4_0_1(bench: Bench) -> None:
    """[MQTT-4.4.0-1] Open PUBLISH and PUBREL are sent again on resumption, and only then."""
    sender, subscriber, released = half_done(bench)
    open_ = []
    for number in range(3):
        for qos in (1, 2):
            sender.publish(bench.topic("t"), f"{number} {qos}", qos)
            open_.append(subscriber.expect_publish(qos=qos, acknowledge=False))
    idle = persistent(bench, "idle", bench.topic("idle"), keep_alive=0)
    for qos in (1, 2):
        sender.publish(bench.topic("idle"), f"{qos}", qos)
        idle.expect_publish(qos=qos, acknowledge=False)
    bench.settle(RETRY_WAIT_S)
    for client in (idle, subscriber):
        for packet in client.drain():
            bench.fail("sent again without a resumption", packet, expected="nothing")
    for leave in (subscriber.drop, subscriber.disconnect):
        leave()
        come_back(subscriber)
        subscriber.expect_pubrel(packet_id_of(released))
        again = {packet_id_of(p): p for p in subscriber.expect_publishes(6, acknowledge=False)}
        for before in open_:
            if packet_id_of(before) not in again:
                bench.fail("not sent again", before, expected=f"id {before.packet_id} again")
            expect_same_again(bench, again[packet_id_of(before)], before)
        subscriber.expect_nothing(Publish, Pubrel)
    for before in open_:
        subscriber.acknowledge(before)
    subscriber.pubcomp(packet_id_of(released))
    expect_nothing_open(bench, subscriber, "although every flow is complete")


@statement("MQTT-4.4.0-2")
def mqtt_4_4_0_2(bench: Bench) -> None:
    """[MQTT-4.4.0-2] PUBACK and PUBREC of 0x80 and above settle a delivery for good."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    subscriber = persistent(bench, "subscriber", topic)
    for reason in (0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99):
        for qos in (1, 2):
            sender.publish(topic, f"{reason}", qos)
            packet_id = packet_id_of(subscriber.expect_publish(qos=qos, acknowledge=False))
            (subscriber.puback if qos == 1 else subscriber.pubrec)(packet_id, reason)
    sender.publish(topic, b"open", 1)
    open_ = subscriber.expect_publish(payload=b"open", acknowledge=False)
    subscriber.expect_nothing(Publish, Pubrel)
    for leave in (subscriber.drop, subscriber.disconnect):
        leave()
        come_back(subscriber)
        expect_same_again(bench, subscriber.expect_publish(acknowledge=False), open_)
        subscriber.expect_nothing(Publish, Pubrel)
