"""Helpers around deliveries that several checks use, for both versions of the protocol.

They set up publishers, offline subscribers and resumed sessions, and return what arrived. What only
one statement requires is judged by its check, not here. Read next: `conformance.check`.
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

EXPIRY_S: Final = 120  # Session Expiry Interval of sessions that must outlive their connection
RECEIVE_MAXIMUM_DEFAULT: Final = 65_535
# Properties of a delivery that the broker sets, not the publisher.
BROKERS_OWN: Final = frozenset({tables.TOPIC_ALIAS, tables.SUBSCRIPTION_ID})


# What the broker can do.


def announced(client: Client) -> Connack:
    """Return the CONNACK of a connected client."""
    assert client.connack is not None
    return client.connack


def require(bench: Bench, client: Client, *, qos: int = 0, retain: bool = False) -> None:
    """End the check as not run if CONNACK says that the broker lacks this QoS or RETAIN."""
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
    """Return the broker's Receive Maximum."""
    found = announced(client).properties.number(tables.RECEIVE_MAXIMUM)
    return RECEIVE_MAXIMUM_DEFAULT if found is None else found


def packet_size_maximum(client: Client) -> int:
    """Return the broker's Maximum Packet Size in bytes."""
    found = announced(client).properties.number(tables.MAXIMUM_PACKET_SIZE)
    return wire.VARINT_MAX if found is None else found


def own_broker(bench: Bench, word: str = "restart", **options: Option) -> Broker | None:
    """Start a broker for this check alone if there is an adapter; else add a note, return None.

    For checks that need it for one part only (`word` says what for). With None the check continues
    on the shared broker.
    """
    if bench.has(word):
        return bench.start(**options)
    bench.note(f"without the part that needs an adapter ({word})")
    return None


def restart(broker: Broker) -> None:
    """Stop the broker with SIGTERM and start it again on the same data."""
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
    """Return a connected client with these subscriptions, all granted."""
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
    """Resume a session of `persistent`; fail if it is not present."""
    return resume(client, **{**keeps_session(client.version), **options})


# What came.


def deliveries(packets: Iterable[Packet]) -> list[Publish]:
    """Return the PUBLISH packets among `packets`."""
    return [packet for packet in packets if isinstance(packet, Publish)]


def arrived(client: Client) -> list[Publish]:
    """Return every delivery up to the answer to a PINGREQ; acknowledge nothing.

    Other packets are kept for the next `expect`.
    """
    packets = client.drain()
    client.inbox.extend(packet for packet in packets if not isinstance(packet, Publish))
    return deliveries(packets)


def settled(bench: Bench, client: Client) -> list[Publish]:
    """Wait for the effects of other clients, then return what `arrived` returns."""
    bench.settle()
    return arrived(client)


def expect_payloads(bench: Bench, client: Client, wanted: Sequence[bytes]) -> list[Publish]:
    """Acknowledge and return the next deliveries, with these payloads in any order."""
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
    """Return the deliveries with these payloads; fail if anything else from `publisher` comes.

    Everything is acknowledged. A QoS 1 barrier follows.
    """
    found = expect_payloads(bench, subscriber, wanted)
    bench.barrier(publisher, subscriber)
    subscriber.expect_nothing()
    return found


def forwarded(properties: Properties) -> list[tuple[int, object]]:
    """Return the publisher's properties of a delivery, stably sorted by id."""
    kept = [(key, value) for key, value in properties if key not in BROKERS_OWN]
    return sorted(kept, key=lambda item: item[0])


def answers(client: Client, *kinds: type[Packet]) -> tuple[list[Packet], bool]:
    """Return what the broker sends up to its PINGRESP, and whether it kept the connection.

    With `kinds` it goes on until there is one of these: a PINGRESP may come before an answer that
    waits for a disk. For packets the broker may refuse in several ways. The result includes a
    DISCONNECT.
    """
    client.send(wire.pingreq())
    found: list[Packet] = []
    is_alive = False
    while not is_alive or (kinds and not any(isinstance(packet, kinds) for packet in found)):
        packet = answer_or_end(client)
        if packet is None:
            return found, False
        if isinstance(packet, Pingresp):
            is_alive = True
        else:
            found.append(packet)
    return found, True


def unmatched(filters: Iterable[str], topics: Iterable[str]) -> Iterator[str]:
    """Yield the topics that none of the filters matches."""
    for topic in topics:
        if not any(matches(topic_filter, topic) for topic_filter in filters):
            yield topic
