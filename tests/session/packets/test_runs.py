"""What comes together is handled together, and nobody can tell: each run against its packets."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.security.authenticators import AllowAllPolicy
from mqtt.encoder import encode
from mqtt.packets import Packet, Puback, Publish
from tests.session.harness import NEVER, Broker, Client

TOPICS = ("a/b", "a/c", "x")
FILTERS = ("a/b", "a/+", "#", "x", "$share/g/a/b", "$share/h/#")


class Pair:
    """Two brokers with the same clients: one gets its bytes in one piece, one packet by packet."""

    def __init__(self, **fields: Any) -> None:
        self.brokers = [Broker(policy=AllowAllPolicy(), **fields) for _ in range(2)]
        self.clients: dict[str, list[Client]] = {}

    def connect(self, name: str, **fields: Any) -> None:
        self.clients[name] = [broker.connect(name, **fields) for broker in self.brokers]

    def subscribe(self, name: str, *topic_filters: str, **options: Any) -> None:
        for client in self.clients[name]:
            client.subscribe(*topic_filters, **options)

    def send(self, name: str, packets: list[Packet]) -> None:
        together, singly = self.clients[name]
        if together.stream.is_lost:
            return
        pieces = [encode(packet, together.version) for packet in packets]
        together.send_bytes(b"".join(pieces))
        with self.brokers[1].one_tick():
            for piece in pieces:
                self.brokers[1].engine.receive(singly.connection, piece, self.brokers[1].now)

    def in_flight(self, name: str) -> list[int]:
        """Return the packet ids that a client may acknowledge."""
        session = self.clients[name][0].connection.session
        return list(session.in_flight) if session is not None else []

    def compare(self) -> None:
        """Same bytes to every client, same rows, same numbers."""
        for together, singly in self.clients.values():
            assert together.stream.data == singly.stream.data
            assert together.stream.is_closing == singly.stream.is_closing
        one, two = self.brokers
        assert one.store.families() == two.store.families()
        for family in one.store.families():
            assert one.store.scan(family, b"", count=10_000) == two.store.scan(
                family, b"", count=10_000
            ), family
        for name in ("messages_received", "messages_sent", "dropped", "messages_stored"):
            assert getattr(one.counters, name) == getattr(two.counters, name), name
        for name in ("packets_received", "packets_sent", "payload_bytes_received"):
            assert getattr(one.counters, name) == getattr(two.counters, name), name
        assert one.counters.payload_bytes_sent == two.counters.payload_bytes_sent
        assert one.engine.stats() == two.engine.stats()


def burst(topic: str, qos: int, count: int, first_id: int) -> list[Packet]:
    return [
        Publish(topic, b"m" * (n % 3 * 20) + b"%d" % n, qos, packet_id=first_id + n if qos else 0)
        for n in range(count)
    ]


def test_a_run_reaches_every_kind_of_subscriber_as_its_packets_would() -> None:
    pair = Pair()
    pair.connect("p")
    pair.connect("durable", expiry=NEVER)
    pair.connect("clean", version=4)
    pair.connect("small", expiry=NEVER, maximum_packet_size=40)
    pair.connect("alias", topic_alias_maximum=3)
    pair.connect("narrow", expiry=NEVER, receive_maximum=3)
    pair.connect("zero")
    for name in ("durable", "clean", "small", "alias", "narrow"):
        pair.subscribe(name, "a/b", qos=1)
    pair.subscribe("durable", "#", qos=1, identifier=7)
    pair.subscribe("zero", "a/+", qos=0)
    pair.subscribe("p", "a/b", qos=1, no_local=True)
    pair.send("p", burst("a/b", 1, 9, 1))
    pair.compare()
    pair.send("p", burst("a/b", 0, 5, 0))
    pair.compare()
    assert len(pair.clients["durable"][0].messages()) == 14


def test_a_run_above_the_receive_maximum_fails_where_its_packets_would() -> None:
    pair = Pair(receive_maximum=4)
    pair.connect("p")
    pair.connect("s", expiry=NEVER)
    pair.subscribe("s", "a/b", qos=1)
    for broker in pair.brokers:
        broker.hold_commits()
    pair.send("p", burst("a/b", 1, 6, 1))
    for broker in pair.brokers:
        broker.commit()
    pair.compare()
    assert len(pair.clients["s"][0].messages()) == 4


def test_acknowledgements_that_come_together_make_room_together() -> None:
    pair = Pair(max_inflight=3)
    pair.connect("p")
    pair.connect("s", expiry=NEVER)
    pair.subscribe("s", "a/b", qos=1)
    pair.send("p", burst("a/b", 1, 12, 1))
    for ids in ((1, 2, 3), (4, 6, 5), (9, 77, 7, 8)):
        pair.compare()
        pair.send("s", [Puback(packet_id) for packet_id in ids])
    pair.compare()
    assert len(pair.clients["s"][0].messages()) == 12


def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection_after_those_before_it() -> None:
    pair = Pair(max_inflight=4)
    pair.connect("p")
    pair.connect("s", expiry=NEVER)
    pair.subscribe("s", "a/b", qos=1)
    pair.subscribe("s", "x", qos=2)
    pair.send("p", burst("a/b", 1, 3, 1) + burst("x", 2, 1, 9))
    pair.send("s", [Puback(1), Puback(2), Puback(4)])
    pair.compare()
    assert pair.clients["s"][0].stream.is_closing


packets = st.one_of(
    st.tuples(st.sampled_from(TOPICS), st.sampled_from((0, 1, 1)), st.integers(1, 12)),
    st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(FILTERS), st.sampled_from((0, 1, 2)), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.lists(packets, min_size=1, max_size=12),
    st.fixed_dictionaries(
        {
            "max_inflight": st.sampled_from((2, 16)),
            "pending_messages_max": st.sampled_from((1, 1000)),
            "clean_queue_messages_max": st.sampled_from((1, 1000)),
            "store_qos0": st.booleans(),
            "total_bytes_max": st.sampled_from((0, 400, 1 << 20)),
            "on_limit": st.sampled_from(("drop_oldest", "drop_new", "reject")),
            "max_offline_messages": st.sampled_from((0, 5)),
        }
    ),
    st.sampled_from((4, 5)),
)
def test_nobody_can_tell_a_run_from_its_packets(
    subscriptions: list[tuple[str, int, bool]],
    script: list[Any],
    limits: dict[str, Any],
    version: int,
) -> None:
    pair = Pair(**limits)
    pair.connect("p", version=version)
    pair.connect("gone", expiry=NEVER)
    pair.subscribe("gone", "a/c", qos=1)
    for client in pair.clients["gone"]:
        client.drop()
    for number, (topic_filter, qos, is_durable) in enumerate(subscriptions):
        fields: dict[str, Any] = {"expiry": NEVER} if is_durable else {}
        pair.connect(f"s{number}", **fields)
        pair.subscribe(f"s{number}", topic_filter, qos=qos)
    for client in pair.clients.pop("gone"):
        client.take()
    next_id = 1
    for step in script:
        if isinstance(step, list):
            sent = pair.in_flight("s0")
            pair.send("s0", [Puback(sent[index]) for index in step if index < len(sent)])
        else:
            topic, qos, count = step
            pair.send("p", burst(topic, qos, count, next_id))
            next_id += count
        pair.compare()
