"""What a hostile client can make the broker keep: C1, C2, C3, C9, C10 and C17 of docs/security.md.

Judged on the engine itself, where "how much" can be asked exactly; tests/security/test_process.py
looks at the memory of a whole process.
"""

import sys
from collections.abc import Callable, Iterable
from itertools import product
from types import FrameType
from typing import Any, Final

import pytest

from mqtt import reasons
from mqtt.decoder import Decoder
from mqtt.packet_runs import Received
from mqtt.packets import (
    Connack,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from session.live.tick import Tick
from session.routing.filter_index import TopicFilterIndex
from session.routing.router import Router
from tests.session.harness import Broker, connect_packet

# C1: memory for what a header only declares


def test_c01_a_connection_keeps_no_more_than_it_has_sent() -> None:
    """CVE-2017-7651, CVE-2023-0809: 256 MiB are declared, five bytes are there."""
    broker = Broker()
    client = broker.open()
    client.send_bytes(bytes.fromhex("10 ff ff ff 7f"))
    assert client.connection.decoder.pending_size == 5
    client.send_bytes(bytes.fromhex("0004 4d515454 05"))
    assert client.is_closed
    assert client.connection.decoder.pending_size < 64


def test_c01_a_large_packet_is_refused_on_its_header() -> None:
    broker = Broker(maximum_packet_size=1000)
    client = broker.connect("c")
    client.send_bytes(bytes.fromhex("30 e8 07"))
    client.expect_closed(reasons.PACKET_TOO_LARGE)


@pytest.mark.parametrize("first", [*range(0x00, 0x10), *range(0x20, 0x100)])
def test_c01_nothing_but_connect_is_waited_for(first: int) -> None:
    """The first byte decides: no body is awaited of what must not come."""
    client = Broker().open()
    client.send_bytes(bytes((first, 0xFF, 0xFF, 0xFF, 0x7F)))
    assert client.is_closed and client.take() == []


@pytest.mark.parametrize("length", ["ff ff ff ff 7f", "80 80 80 80 00", "80 00", "ff ff 00"])
def test_c01_a_length_of_five_bytes_or_a_longer_form_than_needed_is_malformed(length: str) -> None:
    """CVE-2026-21888, CVE-2019-19307 and [MQTT-1.5.5-1]"""
    client = Broker().connect("c")
    client.send_bytes(bytes.fromhex("30" + length))
    client.expect_closed(reasons.MALFORMED_PACKET)


# C2: many properties


def flood(count: int) -> bytes:
    """Return a CONNECT with so many user properties."""
    return connect_bytes(b"\x26\x00\x01a\x00\x01b" * count)


def connect_bytes(properties: bytes) -> bytes:
    body = b"\x00\x04MQTT\x05\x02\x00\x00" + varint(len(properties)) + properties + b"\x00\x01c"
    return b"\x10" + varint(len(body)) + body


def varint(value: int) -> bytes:
    found = b""
    while True:
        value, low = divmod(value, 128)
        found += bytes((low | 128 if value else low,))
        if not value:
            return found


def test_c02_user_properties_are_counted() -> None:
    """CVE-2021-41039"""
    client = Broker().open()
    client.send_bytes(flood(1024))
    answer = client.answer(Connack)
    assert isinstance(answer, Connack) and answer.reason_code == 0
    client = Broker().open()
    client.send_bytes(flood(1025))
    answer = client.answer(Connack)
    assert isinstance(answer, Connack) and answer.reason_code == reasons.QUOTA_EXCEEDED


PAIRS: Final = b"\x26\x00\x01a\x00\x01b" * 1025


@pytest.mark.parametrize(
    "packet",
    [
        Publish("t", b"", properties=PAIRS),
        Publish("t", b"", 2, packet_id=1, properties=PAIRS),
        Subscribe(1, [Subscription("t", 1)], user_properties=(("a", "b"),) * 1025),
        Unsubscribe(1, ["t"], user_properties=(("a", "b"),) * 1025),
        Puback(1, 0x80, user_properties=(("a", "b"),) * 1025),
        Disconnect(0, user_properties=(("a", "b"),) * 1025),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_c02_user_properties_are_counted_in_every_packet(packet: Packet) -> None:
    client = Broker().connect("c")
    client.send(packet)
    client.expect_closed(reasons.QUOTA_EXCEEDED)


def test_c02_user_properties_of_a_will_are_counted() -> None:
    client = Broker().open()
    client.send(connect_packet("c", 5, will=Will("t", b"", 0, False, properties=PAIRS)))
    answer = client.answer(Connack)
    assert isinstance(answer, Connack) and answer.reason_code == reasons.QUOTA_EXCEEDED


class CountingDecoder(Decoder):
    """Counts the bytes that the decoder looks at."""

    bytes_seen = 0

    def _decode(
        self, data: bytes, position: int, limit: int, found: list[Received], gathers: bool
    ) -> int:
        self.bytes_seen += len(data) - position
        return super()._decode(data, position, limit, found, gathers)


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_c02_properties_that_come_byte_by_byte_are_looked_at_once(size: int) -> None:
    """CVE-2026-44248: parsing again with every piece that comes would be quadratic."""
    pair = b"\x26\x00\x10" + b"n" * 16 + b"\x03\xf0" + b"v" * 1008
    block = pair * (size // len(pair))
    body = b"\x00\x01t" + varint(len(block)) + block
    data = b"\x30" + varint(len(body)) + body
    decoder = CountingDecoder("server", 0, 5)
    found: list[Packet] = []
    for position in range(len(data)):
        found += decoder.receive(data[position : position + 1])
    (packet,) = found
    assert isinstance(packet, Publish) and packet.properties == block
    assert decoder.bytes_seen <= len(data) + 16


# Every property of CONNECT and PUBLISH that may stand there once, with a value.
ONCE_IN_CONNECT: Final = ("11 00000005", "21 0005", "27 00000100", "22 0005", "19 01", "17 01")
ONCE_IN_PUBLISH: Final = (
    "01 01",
    "02 00000005",
    "23 0001",
    "08 0001 72",
    "09 0001 63",
    "03 0001 74",
)


@pytest.mark.parametrize("text", ONCE_IN_CONNECT)
def test_c02_a_property_twice_is_a_protocol_error(text: str) -> None:
    once = bytes.fromhex(text)
    for properties, code in ((once, 0), (once * 2, reasons.PROTOCOL_ERROR)):
        client = Broker().open()
        client.send_bytes(connect_bytes(properties))
        answer = client.answer(Connack)
        assert isinstance(answer, Connack) and answer.reason_code == code


@pytest.mark.parametrize("text", ONCE_IN_PUBLISH)
def test_c02_a_property_of_a_message_twice_is_a_protocol_error(text: str) -> None:
    once = bytes.fromhex(text)
    client = Broker().connect("c")
    client.send_bytes(message_with(once))
    client.ping()
    client.send_bytes(message_with(once * 2))
    client.expect_closed(reasons.PROTOCOL_ERROR)


def message_with(properties: bytes) -> bytes:
    body = b"\x00\x01t" + varint(len(properties)) + properties
    return b"\x30" + varint(len(body)) + body


# C3: QoS 2 without an end


def test_c03_a_client_that_never_releases_is_stopped_at_receive_maximum() -> None:
    """CVE-2023-28366"""
    broker = Broker(receive_maximum=10)
    client = broker.durable("c")
    for packet_id in range(1, 11):
        client.send(Publish("t", b"x", 2, packet_id=packet_id))
    assert len([packet for packet in client.take() if isinstance(packet, Pubrec)]) == 10
    client.send(Publish("t", b"x", 2, packet_id=11))
    client.expect_closed(reasons.RECEIVE_MAXIMUM_EXCEEDED)
    assert len(broker.rows("incoming")) <= 11


@pytest.mark.parametrize("version", [4, 5])
def test_c03_the_same_id_a_thousand_times_is_one_id(version: int) -> None:
    broker = Broker()
    client = broker.durable("c", version=version)
    for _ in range(1000):
        client.send(Publish("t", b"x", 2, dup=True, packet_id=7))
    assert not client.is_closed
    assert len(broker.rows("incoming")) == 1


def test_c03_a_v4_client_has_as_many_ids_as_there_are() -> None:
    broker = Broker()
    client = broker.durable("c", version=4)
    for start in range(1, 65_536, 5041):
        numbers = range(start, min(start + 5041, 65_536))
        client.send(*[Publish("t", b"", 2, packet_id=number) for number in numbers])
    client.send(*[Publish("t", b"", 2, packet_id=number) for number in range(1, 1000)])
    assert not client.is_closed
    assert len(broker.rows("incoming")) == 65_535


@pytest.mark.parametrize("version", [4, 5])
def test_c03_what_is_released_leaves_nothing(version: int) -> None:
    """Moquette #423 and EMQX #14815: ids and messages that stayed when they were done."""
    broker = Broker()
    client = broker.durable("c", version=version)
    for _ in range(20):
        numbers = range(1, 51)
        client.send(*[Publish("t", b"x", 2, packet_id=number) for number in numbers])
        assert len(broker.rows("incoming")) == 50
        client.send(*[Pubrel(number) for number in numbers])
        client.take()
    assert broker.rows("incoming") == []


# C9: deep topics


def test_c09_depth_is_limited_before_anything_is_built() -> None:
    """CVE-2019-11779, CVE-2021-33176: 65,535 slashes."""
    broker = Broker()
    deep = "/" * 65_535
    client = broker.durable("c")
    client.send(Subscribe(1, [Subscription(deep, 1), Subscription("+/" * 201 + "#", 1)]))
    client.expect(Suback(1, [reasons.TOPIC_FILTER_INVALID, reasons.TOPIC_FILTER_INVALID]))
    answer = client.publish(deep, b"x", 1)
    assert getattr(answer, "reason_code", 0) == reasons.TOPIC_NAME_INVALID
    assert broker.engine.stats()["filters"] == 0
    client.ping()


def test_c09_the_deepest_topic_allowed_is_served_without_recursion() -> None:
    broker = Broker(topic_levels_max=32_768)
    deep = "/" * 32_767
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        client = broker.durable("c", deep, "#", "+/#")
        client.publish(deep, b"x", 1)
    finally:
        sys.setrecursionlimit(limit)
    assert client.payloads() == [b"x"]


def test_c09_one_client_has_only_so_many_overlapping_filters() -> None:
    broker = Broker(subscriptions_per_session_max=100)
    client = broker.durable("c")
    filters = [f"a/+/{number}/#" for number in range(101)]
    codes = client.subscribe(*filters, qos=1)
    assert codes == [1] * 100 + [reasons.QUOTA_EXCEEDED]


def lines_run(call: Callable[[], object]) -> int:
    """Return the lines of Python that `call` executes: work, without a clock."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def matching(filters: Iterable[str], topic: str) -> tuple[int, int]:
    """Return (filters that match, lines that finding them costs)."""
    routes = Router(Tick(0), TopicFilterIndex())
    for topic_filter in filters:
        routes.ensure(topic_filter)
    found = len(routes.match(topic).entries)
    routes = Router(Tick(0), TopicFilterIndex())
    for topic_filter in filters:
        routes.ensure(topic_filter)
    return found, lines_run(lambda: routes.match(topic))


def test_c09_a_topic_costs_what_matches_it_and_no_more() -> None:
    """Filters of `a` and `+` in every combination: 8 times as many that match, 8 times the work."""
    few, many = ([*map("/".join, product("a+", repeat=levels))] for levels in (6, 9))
    found, cost = matching(few, "/".join("a" * 6))
    found_of_many, cost_of_many = matching(many, "/".join("a" * 9))
    assert (found, found_of_many) == (64, 512)
    assert 0 < cost_of_many <= cost * 8 * 1.5
    # Those that do not match cost no more than the branches that begin like the topic.
    for topic in ("b", "/".join("b" * 9), "a/" * 8 + "b/b"):
        _, alone = matching(few, topic)
        _, among_many = matching([*few, *(f"x{number}/+/#" for number in range(5000))], topic)
        assert among_many <= alone + 2


def test_c09_a_filter_of_every_wildcard_costs_its_levels() -> None:
    """`+/+/+/.../#`, and a topic as deep as any."""
    costs = [matching(["+/" * (levels - 1) + "#"], "/" * (levels - 1))[1] for levels in (12, 120)]
    assert 0 < costs[1] <= costs[0] * 12


# C10: many filters, many retained messages


def test_c10_filters_are_limited_by_number_and_bytes() -> None:
    broker = Broker(subscription_bytes_max=100_000)
    client = broker.durable("c")
    long = ["x" * 60_000, "y" * 60_000]
    assert client.subscribe(*long, qos=1) == [1, reasons.QUOTA_EXCEEDED]


def test_c10_subscribing_again_and_again_leaves_nothing_behind() -> None:
    """mosquitto #248: a SUBSCRIBE that changed nothing kept memory all the same."""
    broker = Broker()
    client = broker.durable("c")
    filters = [*(f"a/{number}/+" for number in range(20)), "b", "$share/g/b/#"]
    client.subscribe(*filters, qos=1)
    kept = (broker.engine.stats(), broker.rows("subscriptions"), broker.rows("filters"))
    for turn in range(50):
        client.subscribe(*filters, *filters, qos=turn % 2)
    client.subscribe(*filters, qos=1)
    assert (broker.engine.stats()["filters"], len(broker.rows("subscriptions"))) == (
        kept[0]["filters"],
        len(kept[1]),
    )
    assert len(broker.rows("filters")) == len(kept[2])
    for _ in range(50):
        client.unsubscribe(*filters)
        client.subscribe(*filters, qos=1)
    client.unsubscribe(*filters)
    assert broker.engine.stats()["filters"] == 0
    for family in ("subscriptions", "filters", "holders", "groups"):
        assert broker.rows(family) == [], family


def test_c10_retained_messages_are_limited() -> None:
    broker = Broker(retained_messages_max=2)
    client = broker.connect("c")
    codes = [
        getattr(client.publish(f"r/{number}", b"x", 1, retain=True), "reason_code", 0)
        for number in range(3)
    ]
    assert codes[2] == reasons.QUOTA_EXCEEDED and max(codes[:2]) < 0x80
    client.publish("r/0", b"", 1, retain=True)
    answer = client.publish("r/2", b"x", 1, retain=True)
    assert getattr(answer, "reason_code", 0) < 0x80


def test_c10_the_replay_of_retained_messages_waits_for_a_slow_client() -> None:
    broker = Broker()
    publisher = broker.connect("p")
    for number in range(200):
        publisher.publish(f"r/{number}", b"x" * 100, 1, retain=True)
    client = broker.durable("c", receive_maximum=5)
    client.subscribe("r/#", qos=1)
    assert len(client.messages()) == 5
    client.drop()


# C17: topic aliases, Receive Maximum


@pytest.mark.parametrize("alias", [0, 65])
def test_c17_an_alias_outside_the_maximum_is_an_error(alias: int) -> None:
    client = Broker().connect("c")
    client.send_bytes(bytes.fromhex("30 07 0001 74 03 23") + alias.to_bytes(2, "big"))
    client.expect_closed(reasons.TOPIC_ALIAS_INVALID)


def test_c17_the_table_of_aliases_has_an_end() -> None:
    client = Broker(topic_alias_maximum=4).connect("c")
    for turn in range(100):
        client.send(Publish(f"t/{turn}", b"", topic_alias=turn % 4 + 1))
    assert len(client.connection.aliases_in) == 4


def test_c17_a_qos1_flood_without_an_answer_is_stopped() -> None:
    broker = Broker(receive_maximum=3)
    broker.durable("s", "t").drop()
    client = broker.connect("c")
    broker.hold_commits()
    client.send(*[Publish("t", b"x", 1, packet_id=number) for number in range(1, 5)])
    assert client.is_closed
    assert client.take() == [Disconnect(reasons.RECEIVE_MAXIMUM_EXCEEDED)]
    broker.commit()
