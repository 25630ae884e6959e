"""The retained messages are those that a new subscription would get."""

import pytest

from broker.operations.looking.retained_messages import RetainedMessages
from broker.operations.looking.rows import Problems
from mqtt.message import Message
from mqtt.packets import Puback, Publish
from mqtt.topics import matches
from storage.local.memory import MemoryStore
from storage.tables.message_record import encode_message
from storage.tables.tables import RETAINED, retained_key
from tests.broker.inside import InsideBroker, run

TOPICS = ["a", "a/b", "a/b/c", "a/bc", "a//b", "/a", "$own/x", "b", "bb/b", "\u00e9/x"]


def kept(topic: str, expires_at_ms: int = 0, payload: bytes = b"x") -> tuple[str, bytes, bytes]:
    """Return the row of a retained message."""
    message = Message(topic, payload, 1, True, b"", "publisher", 5_000, expires_at_ms)
    return RETAINED, retained_key(topic), encode_message(message)


def store_of(*rows: tuple[str, bytes, bytes]) -> MemoryStore:
    store = MemoryStore([RETAINED])
    store.write(list(rows))
    return store


@pytest.mark.parametrize(
    "topic_filter",
    ["#", "+", "a", "a/#", "a/+", "+/b", "a/b/#", "a/b", "/+", "+/+/b", "$own/#", "$own/+", "bb/#",
     "\u00e9/#", "nothing/#", "c"],
)  # fmt: skip
def test_a_filter_finds_exactly_what_it_matches(topic_filter: str) -> None:
    problems = Problems()
    store = store_of(*map(kept, TOPICS))
    found = [m.topic for m in RetainedMessages(store, 0, problems).matching(topic_filter)]
    assert sorted(found) == sorted(topic for topic in TOPICS if matches(topic_filter, topic))
    assert problems.count == 0


def test_without_a_filter_all_are_found_those_with_a_dollar_too() -> None:
    messages = RetainedMessages(store_of(*map(kept, TOPICS)), 0, Problems()).matching(None)
    assert sorted(message.topic for message in messages) == sorted(TOPICS)


def test_expired_messages_are_left_out_and_counted() -> None:
    store = store_of(kept("a", 10_000), kept("b", 10_001), kept("c"))
    retained = RetainedMessages(store, 10_000, Problems())
    assert [message.topic for message in retained.matching("#")] == ["b", "c"]
    assert retained.expired_count == 1


def test_one_is_found_by_its_topic_expired_or_not() -> None:
    retained = RetainedMessages(store_of(kept("a/b", 10_000), kept("c")), 10_000, Problems())
    old, new = retained.find("a/b"), retained.find("c")
    assert old is not None and retained.is_expired(old)
    assert new is not None and not retained.is_expired(new)
    assert retained.find("a") is None


def test_an_empty_store_has_none() -> None:
    retained = RetainedMessages(MemoryStore(), 0, Problems())
    assert list(retained.matching(None)) == []
    assert retained.find("a") is None


def test_a_damaged_row_is_named_and_hides_no_other() -> None:
    store = store_of(
        kept("a"),
        (RETAINED, retained_key("b\x1b/x"), b"damaged"),
        (RETAINED, b"b\xff", b"x"),
        kept("c"),
    )
    problems = Problems()
    messages = RetainedMessages(store, 0, problems).matching(None)
    assert [message.topic for message in messages] == ["a", "c"]
    lines = list(problems.lines())
    assert lines[0].startswith("retained message of 'b\\x1b/x': checksum does not")
    assert lines[1].startswith("retained message b'b\\xff': ")
    assert len(lines) == 2


def test_a_damaged_row_that_is_asked_for_is_a_problem() -> None:
    store = store_of((RETAINED, retained_key("a"), b"damaged"), kept("b"))
    store.damage(RETAINED, [retained_key("b")])
    problems = Problems()
    retained = RetainedMessages(store, 0, problems)
    assert retained.find("a") is None
    assert retained.find("b") is None
    assert [line.split(":")[0] for line in problems.lines()] == [
        "retained message of 'a'",
        "retained message of 'b'",
    ]


def test_what_the_broker_keeps_is_found_with_its_publisher() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("sensor")
        for packet_id, (topic, payload) in enumerate(
            (("a/x", b"1"), ("a/y", b"2"), ("a/x", b"")), 1
        ):
            peer.send(Publish(topic, payload, 1, retain=True, packet_id=packet_id))
            await peer.receive(Puback)
        (message,) = RetainedMessages(broker.store, 0, Problems()).matching("a/#")
        assert (message.topic, message.payload, message.publisher) == ("a/y", b"2", "sensor")

    run(scenario)
