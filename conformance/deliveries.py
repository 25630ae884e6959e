"""Scenes around deliveries that several checks need, for both versions of the protocol.

Who publishes, who is away, who comes back: each helper brings clients to a point of interest and
hands back what arrived. Must never judge what only one statement says; that is the check's part.
Read next: `conformance.check`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from conformance import tables, wire
from conformance.adapters.base import Broker, Option
from conformance.check import Bench
from conformance.client import Client
from conformance.packets import Connack, Packet, Pingresp, Properties, Publish
from conformance.rules import matches
from conformance.scenes import answer_or_end, resume

EXPIRY_S: Final = 120  # Session Expiry Interval of sessions that have to outlive their connection
RECEIVE_MAXIMUM_DEFAULT: Final = 65_535
# What a receiver gets that the publisher did not send: the broker's own business.
BROKERS_OWN: Final = frozenset({tables.TOPIC_ALIAS, tables.SUBSCRIPTION_ID})


# What the broker can do.


def announced(client: Client) -> Connack:
    """Return the CONNACK of a connected client."""
    assert client.connack is not None
    return client.connack


def require(bench: Bench, client: Client, *, qos: int = 0, retain: bool = False) -> None:
    """End the check as not run if the broker's CONNACK says that it lacks what is needed."""
    properties = announced(client).properties
    maximum_qos = properties.number(tables.MAXIMUM_QOS)
    if maximum_qos is not None and maximum_qos < qos:
        bench.not_run(f"the broker's Maximum QoS is {maximum_qos}")
    if retain and properties.number(tables.RETAIN_AVAILABLE) == 0:
        bench.not_run("the broker has no retained messages")


def require_available(bench: Bench, client: Client, identifier: int) -> None:
    """End the check as not run if CONNACK has this "... Available" property with value 0."""
    if announced(client).properties.number(identifier) == 0:
        bench.not_run(f"CONNACK says {tables.PROPERTY_NAMES[identifier]} 0")


def receive_maximum(client: Client) -> int:
    """Return how many QoS 1 and 2 publishes the broker lets this client have open."""
    found = announced(client).properties.number(tables.RECEIVE_MAXIMUM)
    return RECEIVE_MAXIMUM_DEFAULT if found is None else found


def packet_size_maximum(client: Client) -> int:
    """Return the broker's Maximum Packet Size, bytes."""
    found = announced(client).properties.number(tables.MAXIMUM_PACKET_SIZE)
    return wire.VARINT_MAX if found is None else found


def own_broker(bench: Bench, word: str = "restart", **options: Option) -> Broker | None:
    """Start a broker of the check's own if there is an adapter; note it if there is none.

    For checks of which one part only needs it (`word` says what for). None: the check goes on with
    the shared broker.
    """
    if bench.has(word):
        return bench.start(**options)
    bench.note(f"without the part that needs an adapter ({word})")
    return None


def restart(broker: Broker) -> None:
    """Stop the broker in good order and start it again on the same data."""
    broker.stop()
    broker.start()


def crash(broker: Broker) -> None:
    """Kill the broker and start it again on the same data."""
    broker.kill()
    broker.start()


# Who is there.


def subscribed(
    bench: Bench,
    name: str,
    filters: wire.Text | Iterable[wire.Filter],
    qos: int = 0,
    **options: Any,
) -> Client:
    """Return a connected client with these subscriptions, all of them granted."""
    client = bench.client(name, **options)
    suback = client.subscribe(filters, qos)
    if any(code >= 0x80 for code in suback.codes):
        bench.fail("the subscription is refused", suback, expected="a granted QoS")
    return client


def keeps_session(version: int) -> dict[str, Any]:
    """Return the connect options that make a session outlive its connection."""
    return {} if version < 5 else {"session_expiry": EXPIRY_S}


def persistent(
    bench: Bench,
    name: str,
    filters: wire.Text | Iterable[wire.Filter],
    qos: int = 2,
    **options: Any,
) -> Client:
    """Return a connected client whose session outlives the connection."""
    wanted = {"clean": False, **keeps_session(bench.version), **options}
    return subscribed(bench, name, filters, qos, **wanted)


def come_back(client: Client, **options: Any) -> Connack:
    """Connect again to a session of `persistent`, which has to be there."""
    return resume(client, **{**keeps_session(client.version), **options})


# What came.


def deliveries(packets: Iterable[Packet]) -> list[Publish]:
    """Return the PUBLISH packets among `packets`."""
    return [packet for packet in packets if isinstance(packet, Publish)]


def arrived(client: Client) -> list[Publish]:
    """Return every delivery up to the answer to a PINGREQ, nothing acknowledged.

    Other packets stay for the next `expect`.
    """
    packets = client.drain()
    client.inbox.extend(packet for packet in packets if not isinstance(packet, Publish))
    return deliveries(packets)


def settled(bench: Bench, client: Client) -> list[Publish]:
    """Like `arrived`, after a wait that lets effects of other clients come through."""
    bench.settle()
    return arrived(client)


def expect_payloads(bench: Bench, client: Client, wanted: Sequence[bytes]) -> list[Publish]:
    """Return the next deliveries, acknowledged, which have these payloads in any order."""
    left = list(wanted)
    found = []
    while left:
        packet = client.expect_publish()
        if packet.payload not in left:
            bench.fail(
                f"client {client.name}: delivery of {packet.payload[:60]!r}",
                packet,
                expected="one of " + ", ".join(repr(payload[:60]) for payload in left),
            )
        left.remove(packet.payload)
        found.append(packet)
    return found


def expect_only(
    bench: Bench, publisher: Client, subscriber: Client, wanted: Sequence[bytes]
) -> list[Publish]:
    """Return the deliveries with these payloads; nothing else `publisher` sent may come.

    Everything is acknowledged. The barrier behind it is at QoS 1.
    """
    found = expect_payloads(bench, subscriber, wanted)
    bench.barrier(publisher, subscriber)
    subscriber.expect_nothing()
    return found


def forwarded(properties: Properties) -> list[tuple[int, object]]:
    """Return the properties of a delivery that are the publisher's, sorted by id, stable."""
    kept = [(key, value) for key, value in properties if key not in BROKERS_OWN]
    return sorted(kept, key=lambda item: item[0])


def answers(client: Client) -> tuple[list[Packet], bool]:
    """Return what the broker sends up to its PINGRESP, and whether it kept the connection.

    For packets the broker may refuse in more than one way. A DISCONNECT is part of what it sends.
    """
    client.send(wire.pingreq())
    found: list[Packet] = []
    while True:
        packet = answer_or_end(client)
        if packet is None or isinstance(packet, Pingresp):
            return found, packet is not None
        found.append(packet)


def unmatched(filters: Iterable[str], topics: Iterable[str]) -> Iterator[str]:
    """Yield the topics that none of the filters matches."""
    for topic in topics:
        if not any(matches(topic_filter, topic) for topic_filter in filters):
            yield topic
