"""Which topic, key and headers does a row get, and what is refused as a topic?"""

from typing import Any

import pytest

from broker.backends.json_rows import JsonRow, JsonRows
from broker.backends.kafka_rows import KafkaRows, topic_problem
from broker.backends.rows import Row
from storage.tables.feed_rows import CONNECTED
from tests.broker.backends.told_rows import (
    INSTANCE,
    NODE,
    NOW_MS,
    batch,
    event,
    message,
    options,
    rule,
    unlogged,
)

HOOKS = ("message.publish", "client.connected")


def json_row(row: Row) -> JsonRow:
    """Return a row as it is sent."""
    rules = [rule("message.publish", "#"), rule("client.connected")]
    (found,), _ = JsonRows(options(*rules)).of(batch((0, 0), (9, 9), row), INSTANCE)
    return found


def made(topic: str, key: str = "topic", value: str = "json") -> KafkaRows:
    """Return what sends rows."""
    return KafkaRows(NODE, topic, key, value)


@pytest.mark.parametrize(
    ("template", "topic"),
    [
        ("mqtt", "mqtt"),
        ("${topic}", "a_b_c_d"),
        ("mqtt.${topic}-${qos}", "mqtt.a_b_c_d-1"),
        ("${clientid}", "sender"),
        ("${hook}", "message_publish"),
        ("${node}.x", "edge_here.x"),
        ("u.${username}", "u._"),  # a message has none
    ],
)
def test_a_topic_has_only_letters_that_kafka_takes(template: str, topic: str) -> None:
    assert made(template).topic(json_row(message(1, "a/b.c d"))) == topic


def test_a_topic_that_is_too_long_is_an_error() -> None:
    assert len(made("${topic}").topic(json_row(message(1, "x" * 249)))) == 249
    with pytest.raises(ValueError, match="249"):
        made("${topic}").topic(json_row(message(1, "x" * 250)))


def test_only_a_topic_without_names_is_the_same_for_all() -> None:
    assert made("mqtt").fixed == "mqtt"
    assert made("mqtt.${topic}").fixed is None


@pytest.mark.parametrize(("key", "of_message"), [("topic", b"a/b"), ("clientid", b"sender")])
def test_rows_without_a_topic_have_their_client_as_key(key: str, of_message: bytes) -> None:
    assert made("m", key).key(json_row(message(1, "a/b"))) == of_message
    assert made("m", key).key(json_row(event(CONNECTED, "c"))) == b"c"


def test_the_value_is_json_or_the_payload_if_there_is_one() -> None:
    row, other = json_row(message(1, payload=b"\xff")), json_row(event(CONNECTED))
    assert made("m").value(row) == row.body
    assert made("m", value="payload").value(row) == b"\xff"
    assert made("m", value="payload").value(other) == other.body


def test_headers_say_what_a_row_is() -> None:
    row = json_row(message(1))
    assert dict(made("m").headers(row)) == {
        "id": f"{INSTANCE}:1:0:{NOW_MS}".encode(), "hook": b"message.publish", "qos": b"1",
        "msgid": str(row.fields["msgid"]).encode(),
    }  # fmt: skip
    assert [name for name, _ in made("m").headers(json_row(event(CONNECTED)))] == ["id", "hook"]


@pytest.mark.parametrize(
    ("topic", "hooks", "expected"),
    [
        ("mqtt", HOOKS, None),
        ("Mq-t_t.${clientid}.${hook}", HOOKS, None),
        ("${topic}", HOOKS[:1], None),
        ("${topic}", HOOKS, "client.connected has no"),
        ("${payload}", HOOKS[:1], "not ${payload}"),
        ("${msgid}", HOOKS[:1], "not ${msgid}"),
        ("${}", HOOKS[:1], "not ${}"),
        ("${topic", HOOKS[:1], "letters, digits"),
        ("a/b", HOOKS, "letters, digits"),
        ("ä", HOOKS, "letters, digits"),
        ("..", HOOKS, "1 to 249"),
        ("x" * 250, HOOKS, "1 to 249"),
    ],
)
def test_a_topic_that_cannot_work_is_refused(topic: str, hooks: Any, expected: str | None) -> None:
    found = topic_problem(topic, hooks)
    assert (found is None) if expected is None else (found is not None and expected in found)


def test_a_message_with_qos_0_is_sent_as_others_are() -> None:
    asking = options(rule("message.publish", "#", qos0=True))
    (row,), _ = JsonRows(asking).of(batch((0, 0), (9, 9), unlogged(4, "a/b", b"hi")), INSTANCE)
    rows = made("${topic}", value="payload")
    assert (rows.topic(row), rows.key(row), rows.value(row)) == ("a_b", b"a/b", b"hi")
    assert dict(rows.headers(row))["qos"] == b"0"
