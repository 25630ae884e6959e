"""MQTT 3.1.1, section 4.6: the order of messages and of acknowledgements."""

from typing import Final

from conformance import wire
from conformance.check import Bench, Client, statement
from conformance.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from conformance.v311 import scenes

MESSAGES: Final = 1000  # of each publisher at each QoS
BATCH: Final = 10  # sent without waiting for an answer; divides the other numbers
ABSENT: Final = 100  # the returning client is away for so many
PIPELINED: Final = 50


@statement("MQTT-4.6.0-1")
def mqtt_4_6_0_1(bench: Bench) -> None:
    """[MQTT-4.6.0-1] PUBLISH packets that are sent again keep their first order and come before
    newer ones.
    """
    for qos in (1, 2):
        with bench.case(f"QoS {qos}"):
            topic = bench.topic(f"t{qos}")
            subscriber = bench.client("subscriber", clean=False)
            scenes.subscribe(bench, subscriber, (topic, qos))
            publisher = bench.client("publisher")
            for number in range(10):
                publisher.publish(topic, f"{number}", qos=qos)
            first = scenes.collect(subscriber, 10)
            for _ in range(2):
                subscriber.drop()
                publisher.publish(topic, b"newer", qos=qos)
                scenes.resume(bench, subscriber)
                again = subscriber.expect_publishes(len(first), acknowledge=False)
                if [(p.packet_id, p.payload) for p in again] != [
                    (p.packet_id, p.payload) for p in first
                ]:
                    bench.fail(
                        f"sent again in the order {[p.payload for p in again]}",
                        again[0],
                        expected=f"{[p.payload for p in first]}",
                    )
            scenes.acknowledge_all(subscriber, again)
            rest = [p.payload for p in subscriber.expect_publishes(12 - len(first))]
            late = [f"{number}".encode() for number in range(len(first), 10)]
            if rest != [*late, b"newer", b"newer"]:
                bench.fail(f"then these come: {rest}", expected="the newer ones")
            subscriber.disconnect()


def _order_of(bench: Bench, qos: int, what: str) -> None:
    """Publish without waiting, and compare the order of the answers; only a note if not strict."""
    publisher = bench.client("publisher")
    data = b""
    ids = [*range(PIPELINED, 0, -1)]
    for packet_id in ids:
        data += wire.publish(
            bench.topic("t"), f"{packet_id}", version=4, qos=qos, packet_id=packet_id
        )
    publisher.send(data)
    answered = [
        (publisher.expect(Puback) if qos == 1 else publisher.expect(Pubrec)).packet_id for _ in ids
    ]
    if sorted(answered) != sorted(ids):
        bench.fail(f"{what} for {answered}", publisher.last, expected="one for each identifier")
    if answered != ids:
        if bench.strict:
            bench.fail(f"{what} in the order {answered}", publisher.last, expected=f"{ids}")
        bench.note(f"the server does not send {what} in the order of what they answer")
    if qos == 2:
        for packet_id in ids:
            publisher.pubrel(packet_id)
        for _ in ids:
            publisher.expect(Pubcomp)


@statement("MQTT-4.6.0-2")
def mqtt_4_6_0_2(bench: Bench) -> None:
    """[MQTT-4.6.0-2] PUBACKs are sent in the order in which their PUBLISH packets came (binds
    clients; of a server only the strict profile asks it).
    """
    _order_of(bench, 1, "PUBACKs")


@statement("MQTT-4.6.0-3")
def mqtt_4_6_0_3(bench: Bench) -> None:
    """[MQTT-4.6.0-3] PUBRECs are sent in the order in which their PUBLISH packets came (binds
    clients; of a server only the strict profile asks it).
    """
    _order_of(bench, 2, "PUBRECs")


@statement("MQTT-4.6.0-4")
def mqtt_4_6_0_4(bench: Bench) -> None:
    """[MQTT-4.6.0-4] PUBRELs are sent in the order in which the PUBRECs came."""
    topic = bench.topic("t")
    subscriber = scenes.watch(bench, "t")
    publisher = bench.client("publisher")
    for round_ in range(3):
        for number in range(5):
            publisher.publish(topic, f"{number}", qos=2)
        opened = subscriber.expect_publishes(5, acknowledge=False)
        ids = [packet.packet_id or 0 for packet in opened]
        order = [ids[index] for index in (2, 0, 4, 1, 3)]
        with bench.case(f"PUBREC for {order}"):
            if round_ == 0:
                for packet_id in order:
                    subscriber.pubrec(packet_id)
            else:
                subscriber.send(b"".join(wire.pubrec(packet_id) for packet_id in order))
            released = [subscriber.expect(Pubrel).packet_id for _ in order]
            if released != order:
                bench.fail(f"PUBREL for {released}", subscriber.last, expected=f"{order}")
            for packet_id in order:
                subscriber.pubcomp(packet_id)


class _Reader:
    """Reads what comes for a subscriber, in order, and judges the numbers in it."""

    def __init__(self, bench: Bench, client: Client) -> None:
        self._bench = bench
        self._client = client
        self._last: dict[tuple[str, str, str], int] = {}

    def read(self, count: int) -> None:
        """Read until `count` more messages of QoS 1 and 2 have come, acknowledging each."""
        client = self._client
        while count:
            packet = client.receive()
            if isinstance(packet, Pubrel):
                client.pubcomp(packet.packet_id)
            if not isinstance(packet, Publish):
                continue
            self._judge(packet)
            if packet.packet_id is None:
                continue
            count -= 1
            (client.puback if packet.qos == 1 else client.pubrec)(packet.packet_id)

    def _judge(self, packet: Publish) -> None:
        publisher, qos, number = packet.payload.decode().split()
        key = publisher, qos, packet.topic
        last = self._last.get(key, -1)
        if int(number) <= last or int(qos) != packet.qos:
            self._bench.fail(
                f"{self._client.name} receives number {number} of {publisher}, published at QoS "
                f"{qos}, at QoS {packet.qos} and after number {last}",
                packet,
                expected="ascending numbers for each publisher, topic and QoS",
            )
        self._last[key] = int(number)


def _publish_batch(publisher: Client, topics: list[str], start: int) -> None:
    """Publish `BATCH` numbers, each at QoS 0, 1 and 2, without waiting; then finish the flows."""
    data = b""
    for number in range(start, start + BATCH):
        for qos in (0, 1, 2):
            packet_id = 1 + 2 * (number - start) + qos if qos else None
            payload = f"{publisher.name} {qos} {number}"
            topic = topics[number % len(topics)]
            data += wire.publish(topic, payload, version=4, qos=qos, packet_id=packet_id)
    publisher.send(data)
    for _ in range(BATCH):
        publisher.expect(Puback)
    for _ in range(BATCH):
        publisher.pubrel(publisher.expect(Pubrec).packet_id)
    for _ in range(BATCH):
        publisher.expect(Pubcomp)


def _keeps_order(bench: Bench, topics: list[str], count: int) -> None:
    """Two publishers send `count` numbers at each QoS: a live and a returning client read them."""
    clients = [bench.client("live"), bench.client("returning", clean=False)]
    for client in clients:
        scenes.subscribe(bench, client, *((topic, 2) for topic in topics))
    live, returning = (_Reader(bench, client) for client in clients)
    publishers = [bench.client("p1"), bench.client("p2")]
    clients[1].disconnect()
    for start in range(0, count, BATCH):
        for publisher in publishers:
            _publish_batch(publisher, topics, start)
        came = 2 * BATCH * len(publishers)
        live.read(came)
        if start + BATCH == ABSENT:
            scenes.resume(bench, clients[1])
            came *= ABSENT // BATCH
        if start + BATCH >= ABSENT:
            returning.read(came)
    for client in clients:
        scenes.nothing_comes(bench, client, publishers[0])


@statement("MQTT-4.6.0-5")
def mqtt_4_6_0_5(bench: Bench) -> None:
    """[MQTT-4.6.0-5] Every topic is an ordered topic as long as nothing else is configured."""
    _keeps_order(bench, [bench.topic(path) for path in ("a", "a/b", "c", "/d/")], 200)


@statement("MQTT-4.6.0-6", seconds=5)
def mqtt_4_6_0_6(bench: Bench) -> None:
    """[MQTT-4.6.0-6] Messages of one client to one topic at one QoS reach every subscriber in the
    order in which the server received them.
    """
    _keeps_order(bench, [bench.topic("t")], MESSAGES)
