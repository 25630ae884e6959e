"""Is a backlog that is sent by the page the same, to the byte, as one that is sent one by one?"""

import random
from typing import Any

import pytest

from broker.security.authenticators import AllowAllPolicy
from mqtt.packets import Packet, Publish, Subscribe, Subscription
from session.delivery.backlog import PAGE_MAX
from tests.session.harness import NEVER, Broker, Client

FILTERS = ("a", "a/+", "+/b", "#", "a/b")
TOPICS = ("a", "a/b", "c/b", "d")


class Twins:
    """Two brokers that get the same: one that sends by the page, one that looks at every message.

    The second has a policy, which permits everything, so each message has to be judged.
    """

    def __init__(self, seed: int) -> None:
        self.source = source = random.Random(seed)
        options: dict[str, Any] = {
            "max_inflight": source.choice((5, 9, 1000)),
            "pending_messages_max": source.choice((1, 3)),
            "store_qos0": seed % 2 == 0,
        }
        self.brokers = [Broker(policy=AllowAllPolicy(), **options), Broker(**options)]
        self.version = source.choice((4, 5))
        self.limit = source.choice((None, None, 60)) if self.version == 5 else None
        self.clients: list[Client] = []

    def connect(self) -> None:
        """Let the client come (back)."""
        fields: dict[str, Any] = {"expiry": NEVER} if self.version == 5 else {"durable": True}
        if self.limit:
            fields["maximum_packet_size"] = self.limit
        self.clients = [b.connect("c", version=self.version, **fields) for b in self.brokers]

    def send(self, *packets: Packet) -> None:
        """Let the client send the same to both."""
        for client in self.clients:
            client.send(*packets)
            client.collect()

    def subscribe(self, number: int) -> None:
        """Let the client subscribe to something."""
        source = self.source
        is_five = self.version == 5
        request = Subscription(
            source.choice(FILTERS),
            source.choice((0, 1, 1, 2)),
            no_local=source.random() < 0.3 and is_five,
            retain_as_published=source.random() < 0.5 and is_five,
            retain_handling=2 if is_five else 0,
        )
        self.send(Subscribe(number + 1, [request], source.choice((0, number + 1)) * is_five))

    def publish(self, count: int) -> None:
        """Publish some messages, of all kinds, from another client and from the same."""
        source = self.source
        made = []
        for number in range(count):
            fields: dict[str, Any] = {}
            if source.random() < 0.2:
                fields["properties"] = b"\x03\x00\x01" + source.choice((b"x", b"y"))
            if source.random() < 0.05:
                fields["message_expiry_interval"] = source.choice((1, 1000))
            made.append(
                (
                    source.choice(TOPICS[: source.choice((1, 4))]),
                    b"%d" % number + b"x" * source.choice((0, 0, 0, 50, 200)),
                    source.choice((0, 1, 1, 1, 2)),
                    source.random() < 0.1,
                    fields,
                )
            )
        for broker in self.brokers:
            sender = broker.clean("sender")
            for topic, payload, qos, retain, fields in made:
                sender.publish(topic, payload, qos, retain=retain, **fields)
            sender.disconnect()

    def purge(self, topic: str) -> None:
        """Have an operator drop what waits for the client on a topic."""
        for broker in self.brokers:
            purge = broker.engine.administer(broker.now).purge("c", "olga", topic=topic)
            assert purge is not None
            broker.advance(ms=1)
            assert purge.is_over

    def compare(self) -> int:
        """Let both drain; returns how many messages that were."""
        streams = []
        count = 0
        for client in self.clients:
            seen: list[tuple[object, ...]] = []
            while messages := client.messages():
                seen += [
                    (m.topic, m.payload, m.qos, m.retain, m.dup, m.packet_id, m.properties)
                    for m in messages
                ]
                client.acknowledge(*messages)
            streams.append(seen)
            count = len(seen)
        assert streams[0] == streams[1]
        first, second = (broker.engine.counters for broker in self.brokers)
        assert first.messages_sent == second.messages_sent
        assert first.payload_bytes_sent == second.payload_bytes_sent
        assert first.dropped == second.dropped
        return count


@pytest.mark.parametrize("seed", range(24))
def test_a_page_is_what_its_messages_one_by_one_would_be(seed: int) -> None:
    twins = Twins(seed)
    source = twins.source
    twins.connect()
    sent = 0
    for round_number in range(4):
        twins.subscribe(round_number)
        sent += twins.compare()
        # It lags behind a full window, publishes itself, and subscribes to more.
        twins.publish(30)
        twins.send(Publish(source.choice(TOPICS), b"own", 1, packet_id=1))
        twins.publish(5)
        twins.subscribe(round_number + 10)
        twins.publish(5)
        sent += twins.compare()
        for client in twins.clients:
            client.drop()
        twins.publish(source.choice((3, 40)))
        if source.random() < 0.5:
            twins.purge(source.choice(TOPICS))
            twins.publish(3)
        for broker in twins.brokers:
            broker.advance(s=2)
        twins.connect()
        sent += twins.compare()
    assert sent


def test_a_page_goes_out_with_the_commit_that_binds_it() -> None:
    broker = Broker(policy=AllowAllPolicy())
    broker.durable("c", "t").drop()
    sender = broker.clean("sender")
    for number in range(10):
        sender.publish("t", b"%d" % number, 1)
    broker.hold_commits()
    client = broker.request("c", expiry=NEVER)
    broker.settle()
    client.expect_nothing()
    waiting = client.connection.waiting
    assert waiting is not None and waiting.messages == 11  # with the CONNACK
    broker.commit()
    broker._connack(client)
    assert client.receive_all() == [b"%d" % number for number in range(10)]
    assert client.connection.waiting is None


def test_a_page_is_no_larger_than_the_window() -> None:
    broker = Broker(policy=AllowAllPolicy(), max_inflight=2 * PAGE_MAX)
    broker.durable("c", "t").drop()
    sender = broker.clean("sender")
    for number in range(20):
        sender.publish("t", b"%d" % number, 1)
    client = broker.connect("c", expiry=NEVER, receive_maximum=7)
    first = client.messages()
    assert [message.packet_id for message in first] == [1, 2, 3, 4, 5, 6, 7]
    client.acknowledge(first[1], first[3])
    assert [message.payload for message in client.messages()] == [b"7", b"8"]
