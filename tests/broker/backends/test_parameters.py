"""Do own commands get the values of their row?"""

import json

import pytest

from broker.backends.message_ids import message_id, node_number
from broker.backends.redis.actions import RedisActions
from broker.backends.rows import Row
from storage.tables.feed_rows import ACKED, CONNECTED, SENT, SUBSCRIBED, UNSUBSCRIBED
from tests.broker.backends.told_rows import NODE, NOW_MS, event, message, options, rule

NUMBER = node_number(NODE)
ID = message_id(NOW_MS, NUMBER, 7).encode()
PROPERTIES = b"\x03\x00\x04text\x08\x00\x03re/\x09\x00\x02\x00\xff\x26\x00\x01k\x00\x01v"


def filled(row: Row, on: str, text: str, topic: str | None = "#") -> list[bytes]:
    """Return an own command for a row."""
    ((number, command),) = RedisActions(options(rule(on, topic, 3, commands=[text]))).commands(row)
    assert number == 3
    return command


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clientid", b"dev"),
        ("topic", b"up/t"),
        ("qos", b"2"),
        ("payload", b'{"a":[1]}'),
        ("payload.a.0", b"1"),
        ("msgid", ID),
        ("retain", b"true"),
        ("dup", b"false"),
        ("timestamp", b"1542338754670"),
        ("node", NODE.encode()),
        ("expiry", b"5"),
        ("content_type", b"text"),
        ("response_topic", b"re/"),
        ("correlation_data", b"\x00\xff"),
        ("user_properties.k", b"v"),
        ("user_properties.none", b""),
    ],
)
def test_a_message_has_these_values(name: str, value: bytes) -> None:
    row = message(
        7, "up/t", b'{"a":[1]}', qos=2, retain=True, publisher="dev", properties=PROPERTIES,
        expires_at_ms=NOW_MS + 5000,
    )  # fmt: skip
    assert filled(row, "message.publish", f"SET k ${{{name}}}") == [b"SET", b"k", value]


def test_a_message_without_properties_has_empty_ones() -> None:
    text = "SET k [${expiry}${content_type}${correlation_data}${user_properties.k}]"
    assert filled(message(7), "message.publish", text)[2] == b"[]"


def test_a_whole_message_is_json() -> None:
    row = message(7, "täg", b"\xff", publisher="dev")
    found = json.loads(filled(row, "message.publish", "SET k ${message}")[2])
    assert found == {
        "id": ID.decode(), "from": "dev", "qos": 1, "topic": "täg", "payload": "\xff",
        "ts": 1542338754, "retain": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clientid", b"dev"),
        ("topic", b"a"),
        ("qos", b"2"),
        ("msgid", ID),
        ("timestamp", b"1542338754670"),
        ("node", NODE.encode()),
    ],
)
def test_an_acknowledgement_has_these_values(name: str, value: bytes) -> None:
    row = event(ACKED, "dev", "a", qos=2, offset=7, accepted_ms=NOW_MS)
    assert filled(row, "message.acked", f"SET k ${{{name}}}")[2] == value


def test_a_connection_has_a_user() -> None:
    row = event(CONNECTED, "dev", username="ann")
    assert filled(row, "client.connected", "SET ${clientid} ${username}", None)[1:] == [
        b"dev",
        b"ann",
    ]


@pytest.mark.parametrize(
    ("kind", "hook"),
    [
        (SUBSCRIBED, "session.subscribed"),
        (UNSUBSCRIBED, "session.unsubscribed"),
        (SENT, "message.delivered"),
        (ACKED, "message.acked"),
    ],
)
def test_the_user_of_a_client_is_known_to_its_hooks(kind: int, hook: str) -> None:
    row = event(kind, "dev", "t", username="cache", client_username="ann", offset=1)
    assert filled(row, hook, "SET ${clientid} ${username}") == [b"SET", b"dev", b"ann"]
