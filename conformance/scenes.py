"""Steps that several checks share; they raise `Failure` and `NotRun` as a check does.

They are for both versions unless the name or docstring says otherwise.
"""

from collections.abc import Iterable
from typing import Any, Final

from conformance import tables, wire
from conformance.check import Bench
from conformance.client import Client, Silence
from conformance.failure import Failure, NotRun
from conformance.packets import Connack, Disconnect, Packet, Puback, Publish, Suback

# One name for all checks that need a refused filter, so that they can share a broker.
DENIED_FILTER: Final = "denied/filter"

# Subscription options of 5.0, to be added to the QoS.
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08
RETAIN_IF_NEW: Final = 0x10
RETAIN_NEVER: Final = 0x20


def expect_each_closes(
    bench: Bench, packets: Iterable[tuple[str, bytes]], *reasons: int, name: str = "bad"
) -> None:
    """Send each (what, bytes) on a new connection; fail unless the broker closes every one.

    In 5.0 with one of `reasons`, see `Client.expect_close`; any other answer is a failure.
    """
    for what, data in packets:
        with bench.case(what):
            client = bench.client(name)
            client.send(data)
            client.expect_close(*reasons)
            client.drop()


def answer_or_end(client: Client) -> Packet | None:
    """Return the next packet of any kind, None if the broker closes the connection."""
    return None if client.peek() is None else client.receive()


def answer_within(client: Client, seconds: float) -> Packet | None:
    """Return the next packet of any kind, None if the broker closes or nothing comes in time."""
    try:
        return client.peek(seconds)
    except Silence:
        return None


def resume(client: Client, **options: Any) -> Connack:
    """Drop the connection if it is open and resume the session, which must be present."""
    client.drop()
    connack = client.connect(clean=False, **options)
    if not connack.session_present:
        raise Failure("the session is gone", packet=connack.raw, expected="session present 1")
    return connack


def with_denied_filter(bench: Bench) -> str | None:
    """Switch the check to a broker that refuses one filter, and return the filter.

    For checks with wants=("configure",). If there is no such broker, add a note and return None;
    the check continues without it.
    """
    try:
        bench.start(deny_subscribe=[DENIED_FILTER])
    except NotRun as reason:
        bench.note(f"no denied filter was tried: {reason}")
        return None
    return DENIED_FILTER


def payloads(deliveries: Iterable[Publish]) -> list[str]:
    """Return the payloads as text, in order."""
    return [delivery.payload.decode("utf-8", "replace") for delivery in deliveries]


def pending(client: Client) -> list[Publish]:
    """Return the deliveries that were set aside; acknowledge nothing."""
    return [packet for packet in client.drain() if isinstance(packet, Publish)]


def publish_all(publisher: Client, topic: str, texts: Iterable[str]) -> None:
    """Publish each text at QoS 1, with as many in flight as the Receive Maximum allows."""
    assert publisher.connack is not None
    window = publisher.connack.properties.number(tables.RECEIVE_MAXIMUM) or 65_535
    waiting = 0
    for text in texts:
        if waiting == window:
            publisher.expect(Puback)
            waiting -= 1
        publisher.publish(topic, text, 1, wait=False)
        waiting += 1
    for _ in range(waiting):
        publisher.expect(Puback)


def has_shared_subscriptions(client: Client) -> bool:
    """Return whether the broker supports shared subscriptions (5.0)."""
    assert client.connack is not None
    return client.connack.properties.number(tables.SHARED_AVAILABLE) != 0


def subscription_id(client: Client, number: int) -> list[wire.Property]:
    """Return the property for SUBSCRIBE, or nothing if the broker does not support it (5.0)."""
    assert client.connack is not None
    if client.connack.properties.number(tables.SUBSCRIPTION_ID_AVAILABLE) == 0:
        return []
    return [(tables.SUBSCRIPTION_ID, number)]


def expect_filter_refused(client: Client, topic_filter: str, options: int = 0) -> bool:
    """Fail if a SUBSCRIBE to this filter is granted (5.0); return whether the connection is open.

    The broker may refuse it in SUBACK or close the connection; the strict profile requires one of
    the reason codes for a wrong filter.
    """
    packet_id = client.next_id()
    client.send(wire.subscribe(packet_id, [(topic_filter, options)], version=5))
    answer = answer_or_end(client)
    if isinstance(answer, Suback):
        fine = {0x8F} if client.strict else {0x80, 0x83, 0x8F, 0x9E, 0xA2}
        if answer.packet_id != packet_id or not set(answer.codes) <= fine:
            client.fail(f"{topic_filter!r} is granted", expected="SUBACK 0x8F or a close")
        return True
    if answer is None and client.strict:
        client.fail(f"{topic_filter!r}: closed without a reason code", expected="SUBACK 0x8F")
    if answer is not None and not isinstance(answer, Disconnect):
        client.fail(f"{topic_filter!r} is not refused", expected="SUBACK 0x8F or a close")
    if isinstance(answer, Disconnect):
        if client.strict and answer.reason not in (0x81, 0x82, 0x8F):
            client.fail(f"{topic_filter!r}: wrong reason", expected="0x8F, 0x82 or 0x81")
        client.expect_close()
    return False


def connect_with_small_packets(bench: Bench, name: str, limit: int) -> tuple[Client, int]:
    """Connect with the smallest Maximum Packet Size from `limit` bytes up that works.

    A broker whose CONNACK is larger closes the connection, as 5.0 requires; then the limit is
    raised by ten bytes. Returns the client and the limit in force.
    """
    for size in range(limit, limit + 200, 10):
        client = bench.client(name, connect=False)
        properties: list[wire.Property] = [(tables.MAXIMUM_PACKET_SIZE, size)]
        client.send(wire.connect(client.client_id, version=5, properties=properties))
        answer = answer_or_end(client)
        if isinstance(answer, Connack) and answer.code == 0:
            client.connack = answer
            return client, size
        client.drop()
    bench.fail(f"no CONNECT with a Maximum Packet Size up to {size} bytes is accepted")
