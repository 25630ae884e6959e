"""MQTT 5.0, section 4.6: order of messages and of acknowledgements."""

from collections.abc import Iterable, Sequence
from typing import Final

from conformance import tables, wire
from conformance.check import Bench, statement
from conformance.client import Client, Silence
from conformance.deliveries import (
    come_back,
    persistent,
    receive_maximum,
    require,
    subscribed,
)
from conformance.failure import Violation
from conformance.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from conformance.v50.flows import packet_id_of

PIPELINED: Final = 50
WINDOW_MAX: Final = 60  # own publishes without an answer at a time
QUIET_S: Final = 1.0  # nothing for so long: nothing more comes


def answer(client: Client, packet: Packet) -> None:
    """Send what the flow of an arriving packet asks for next."""
    if isinstance(packet, Publish) and packet.qos:
        (client.puback if packet.qos == 1 else client.pubrec)(packet_id_of(packet))
    elif isinstance(packet, Pubrel):
        client.pubcomp(packet.packet_id)
    elif isinstance(packet, Pubrec) and packet.reason < 0x80:
        client.pubrel(packet.packet_id)


def publish_all(client: Client, messages: Iterable[tuple[str, bytes, int]]) -> None:
    """Publish (topic, payload, QoS) in this order, many at a time, each flow completed."""
    window = min(WINDOW_MAX, receive_maximum(client))
    open_ = 0
    for topic, payload, qos in messages:
        while open_ >= window:
            open_ -= _turn(client)
        client.publish(topic, payload, qos, wait=False)
        open_ += qos > 0
    while open_:
        open_ -= _turn(client)


def _turn(client: Client) -> int:
    """Take one packet; return 1 if it ended a flow of ours."""
    packet = client.receive()
    answer(client, packet)
    return isinstance(packet, Puback | Pubcomp) or (
        isinstance(packet, Pubrec) and packet.reason >= 0x80
    )


def take_all(client: Client, *, enough: int, acknowledge: bool = True) -> list[Publish]:
    """Take deliveries until `enough` messages of QoS 1 and 2 are there, or nothing more comes."""
    found: list[Publish] = []
    seen: set[tuple[str, bytes]] = set()
    while len(seen) < enough:
        try:
            packet = client.receive(QUIET_S)
        except Silence:
            return found
        if isinstance(packet, Publish):
            found.append(packet)
            if packet.qos:
                seen.add((packet.topic, packet.payload))
        if acknowledge:
            answer(client, packet)
    return found


def check_ascending(bench: Bench, deliveries: Sequence[Publish]) -> None:
    """The numbers of each publisher, topic and QoS ascend; payloads are `publisher QoS number`."""
    last: dict[tuple[str, bytes, bytes], int] = {}
    for packet in deliveries:
        publisher, qos, number = packet.payload.split(b" ")
        key = packet.topic, publisher, qos
        before = last.get(key, -1)
        if int(number) <= before:
            bench.fail(
                f"number {int(number)} comes after number {before}",
                packet,
                expected="ascending numbers for each publisher, topic and QoS",
            )
        last[key] = int(number)


def check_complete(bench: Bench, deliveries: Sequence[Publish], wanted: int) -> None:
    """So many different messages of QoS 1 and 2 have come."""
    found = {(p.topic, p.payload) for p in deliveries if not p.payload.split(b" ")[1] == b"0"}
    if len(found) != wanted:
        bench.fail(f"{len(found)} messages at QoS 1 and 2", expected=f"{wanted}")


def numbered(
    publisher: str, topics: Sequence[str], numbers: Iterable[int]
) -> Iterable[tuple[str, bytes, int]]:
    """Return numbered messages: each number at each QoS to each topic."""
    for number in numbers:
        for topic in topics:
            for qos in (0, 1, 2):
                yield topic, b"%s %d %d" % (publisher.encode(), qos, number), qos


class Stage:
    """Two publishers, and subscribers that are quick, slow, or away half of the time."""

    def __init__(self, bench: Bench, topics: Sequence[str]) -> None:
        self.bench = bench
        self.topics = topics
        self.total = 2 * 2 * len(topics)  # messages at QoS 1 and 2 for each number
        self.publishers = [bench.client(name) for name in ("p", "q")]
        require(bench, self.publishers[0], qos=2)
        filters = [(topic, 2) for topic in topics]
        self.live = subscribed(bench, "live", filters)
        self.slow = subscribed(bench, "slow", filters)
        narrow: list[wire.Property] = [(tables.RECEIVE_MAXIMUM, 3)]
        self.narrow = subscribed(bench, "narrow", filters, properties=narrow)
        self.away = persistent(bench, "away", filters)

    def publish(self, numbers: range, *takers: Client) -> dict[str, list[Publish]]:
        """Publish in small portions; `takers` take everything, return what they got by name."""
        got: dict[str, list[Publish]] = {client.name: [] for client in takers}
        portion = max(1, 20 // len(self.topics))
        for start in range(numbers.start, numbers.stop, portion):
            some = range(start, min(start + portion, numbers.stop))
            for client in self.publishers:
                publish_all(client, numbered(client.name, self.topics, some))
            for taker in takers:
                got[taker.name] += take_all(taker, enough=len(some) * self.total)
        return got

    def take_narrow(self, count: int) -> list[Publish]:
        """Take what waited for a small Receive Maximum.

        A broker that does not keep to it fails MQTT-3.3.4-9; then the order says nothing here.
        """
        try:
            found = take_all(self.narrow, enough=count * self.total)
        except Violation as violation:
            if "MQTT-3.3.4-9" not in violation.statements:
                raise
            self.bench.note(f"order with a small Receive Maximum not judged: {violation.message}")
            found = []
        self.narrow.disconnect()
        return found

    def play(self, *, few: int, some: int, all_: int) -> None:
        """Publish numbers 0 to `all_`; after `some` only the quick subscriber is left.

        Of the first 2 * `few` the others get some when they can take them: the slow one has been
        idle, and the one that goes away in between leaves deliveries without an answer.
        """
        live = self.publish(range(few), self.live)["live"]
        slow = take_all(self.slow, enough=few * self.total)
        before = take_all(self.away, enough=few * self.total // 4, acknowledge=False)
        self.away.drop()
        live += self.publish(range(few, 2 * few), self.live)["live"]
        come_back(self.away)
        after = take_all(self.away, enough=2 * few * self.total)
        slow += take_all(self.slow, enough=few * self.total)
        narrow = self.take_narrow(2 * few)
        got = self.publish(range(2 * few, some), self.live, self.slow, self.away)
        for client in (self.slow, self.away):
            client.disconnect()
        live += got["live"] + self.publish(range(some, all_), self.live)["live"]
        for name, deliveries in (
            ("live", live),
            ("slow", slow + got["slow"]),
            ("with Receive Maximum 3", narrow),
            ("away, before it went", before),
            ("away, after it came back", after + got["away"]),
        ):
            with self.bench.case(f"subscriber {name}"):
                check_ascending(self.bench, deliveries)
                if not deliveries and deliveries is not narrow:
                    self.bench.fail("nothing was delivered", expected="numbered messages")
        check_complete(self.bench, live, all_ * self.total)


@statement("MQTT-4.6.0-5", seconds=5)
def mqtt_4_6_0_5(bench: Bench) -> None:
    """[MQTT-4.6.0-5] Messages of a publisher to a topic at a QoS arrive in their order."""
    Stage(bench, [bench.topic("t")]).play(few=20, some=200, all_=1000)


@statement("MQTT-4.6.0-6", seconds=2)
def mqtt_4_6_0_6(bench: Bench) -> None:
    """[MQTT-4.6.0-6] Every topic is ordered for ordinary subscriptions, unless configured."""
    topics = [bench.topic(f"t/{number}") for number in range(5)]
    Stage(bench, topics).play(few=4, some=20, all_=40)


@statement("MQTT-4.6.0-1")
def mqtt_4_6_0_1(bench: Bench) -> None:
    """[MQTT-4.6.0-1] What is sent again comes in its first order, before what is newer."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    topic = bench.topic("t")
    for name, cycle in (("one", (1,)), ("two", (2,)), ("both", (1, 2, 2, 1))):
        subscriber = persistent(bench, name, topic)
        sent = [(b"%d" % number, cycle[number % len(cycle)]) for number in range(15)]
        for payload, qos in sent[:10]:
            sender.publish(topic, payload, qos)
        for payload, _ in sent[:10]:
            subscriber.expect_publish(payload=payload, acknowledge=False)
        subscriber.drop()
        for payload, qos in sent[10:]:
            sender.publish(topic, payload, qos)
        come_back(subscriber)
        packets = subscriber.expect_publishes(15, acknowledge=False)
        got = [packet.payload for packet in packets]
        with bench.case(f"QoS {cycle}: re-sent in the order {got}"):
            # The texts fix it for each QoS; across them it is a matter of quality.
            for qos in set(cycle):
                wanted = [payload for payload, sent_qos in sent if sent_qos == qos]
                if [p.payload for p in packets if p.qos == qos] != wanted:
                    bench.fail(f"QoS {qos} is out of order", packets[0], expected=f"{wanted}")
            if got != [payload for payload, _ in sent]:
                expect_quality(bench, "not in the order of the first sending", packets[0])
        for packet in packets:
            subscriber.acknowledge(packet)
        subscriber.disconnect()


def expect_quality(bench: Bench, message: str, packet: Packet) -> None:
    """The text demands this order of clients, not of brokers: only the strict profile fails."""
    if bench.strict:
        bench.fail(message, packet, expected="the order a client has to keep")
    bench.note(message)


def pipelined(bench: Bench, qos: int) -> tuple[Client, list[int]]:
    """Send many PUBLISH packets in one write; return their sender and their ids, in order."""
    sender = bench.client("sender")
    require(bench, sender, qos=qos)
    count = min(PIPELINED, receive_maximum(sender))
    ids = [(number * 7) % 1000 + 1 for number in range(count)]
    packets = [
        wire.publish(bench.topic(f"t/{number % 3}"), b"x", version=5, qos=qos, packet_id=packet_id)
        for number, packet_id in enumerate(ids)
    ]
    sender.send(b"".join(packets))
    return sender, ids


def check_ids(bench: Bench, answers: Sequence[Puback | Pubrec | Pubrel], ids: list[int]) -> None:
    """There is an answer for each id; the order is a matter of quality."""
    got = [packet.packet_id for packet in answers]
    if sorted(got) != sorted(ids):
        bench.fail(f"answers to {sorted(got)}", answers[0], expected=f"one to each of {ids}")
    if got != ids:
        expect_quality(bench, f"answers in the order {got}, not {ids}", answers[0])


@statement("MQTT-4.6.0-2")
def mqtt_4_6_0_2(bench: Bench) -> None:
    """[MQTT-4.6.0-2] PUBACKs come in the order of the PUBLISH packets they answer."""
    durable = persistent(bench, "durable", bench.topic("t/1"))
    for _ in range(2):
        sender, ids = pipelined(bench, 1)
        check_ids(bench, [sender.expect(Puback) for _ in ids], ids)
        durable.disconnect()


@statement("MQTT-4.6.0-3")
def mqtt_4_6_0_3(bench: Bench) -> None:
    """[MQTT-4.6.0-3] PUBRECs come in the order of the PUBLISH packets they answer."""
    durable = persistent(bench, "durable", bench.topic("t/1"))
    for _ in range(2):
        sender, ids = pipelined(bench, 2)
        check_ids(bench, [sender.expect(Pubrec) for _ in ids], ids)
        durable.disconnect()


@statement("MQTT-4.6.0-4")
def mqtt_4_6_0_4(bench: Bench) -> None:
    """[MQTT-4.6.0-4] PUBRELs come in the order of the PUBRECs they answer."""
    sender = bench.client("sender")
    require(bench, sender, qos=2)
    for name, connect in (("clean", subscribed), ("durable", persistent)):
        subscriber = connect(bench, name, bench.topic("t"), 2)
        for number in range(5):
            sender.publish(bench.topic("t"), f"{number}", 2)
        packets = subscriber.expect_publishes(5, acknowledge=False)
        ids = [packet_id_of(packets[index - 1]) for index in (3, 1, 5, 2, 4)]
        subscriber.send(b"".join(wire.pubrec(packet_id) for packet_id in ids))
        check_ids(bench, [subscriber.expect(Pubrel) for _ in ids], ids)
        for packet_id in ids:
            subscriber.pubcomp(packet_id)
        subscriber.ping()
        subscriber.disconnect()
