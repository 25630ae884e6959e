"""What of a row is in its JSON, and is it the same whenever the row is sent again?"""

import json
from typing import Any

import pytest

from broker.backends.json_rows import JsonRows
from broker.backends.message_ids import message_id, node_number, unstored_id
from broker.backends.rows import Row
from mqtt.message import Message
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DISCONNECTED,
    GAP,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSUBSCRIBED,
)
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

NUMBER = node_number(NODE)
ALL = rule("message.publish", "#")


def as_json(row: Row, *rules: dict[str, Any]) -> dict[str, Any]:
    """Return the one JSON object of a row."""
    found, poisons = JsonRows(options(*(rules or (ALL,)))).of(batch((0, 0), (9, 9), row), INSTANCE)
    assert not poisons
    (one,) = found
    told = json.loads(one.body)
    assert told == one.fields
    assert isinstance(told, dict)
    return told


def test_a_message_is_told_whole() -> None:
    told = message(7, "a/ö", "grüße".encode(), retain=True, qos=2, username="ann")
    assert as_json(told) == {
        "id": f"{INSTANCE}:7:0:{NOW_MS}",
        "hook": "message.publish",
        "msgid": message_id(NOW_MS, NUMBER, 7),
        "clientid": "sender",
        "username": "ann",
        "topic": "a/ö",
        "qos": 2,
        "retain": True,
        "timestamp": NOW_MS,
        "payload": "grüße",
        "payload_encoding": "utf-8",
        "properties": {},
    }


@pytest.mark.parametrize(
    ("payload", "text", "encoding"),
    [
        (b"", "", "utf-8"),
        (b'"\\\n\x00', '"\\\n\x00', "utf-8"),
        (b"\xff\x00", "/wA=", "base64"),
        (b"\xed\xa0\x80", "7aCA", "base64"),  # half a surrogate pair is no UTF-8
    ],
)
def test_a_payload_is_text_if_it_is_utf_8(payload: bytes, text: str, encoding: str) -> None:
    told = as_json(message(1, payload=payload))
    assert (told["payload"], told["payload_encoding"]) == (text, encoding)


def test_the_properties_of_mqtt_5_are_told() -> None:
    properties = (
        b"\x01\x01\x03\x00\x01c\x08\x00\x01r\x09\x00\x02\xff\x00"
        b"\x26\x00\x01k\x00\x01v\x26\x00\x01k\x00\x01w"
    )
    told = as_json(message(1, properties=properties, expires_at_ms=NOW_MS + 5000))
    assert told["properties"] == {
        "message_expiry_interval": 5,
        "payload_format_indicator": 1,
        "content_type": "c",
        "response_topic": "r",
        "correlation_data": "/wA=",
        "user_properties": [["k", "v"], ["k", "w"]],
    }


@pytest.mark.parametrize(
    ("kind", "hook"), [(CONNECTED, "client.connected"), (DISCONNECTED, "client.disconnected")]
)
def test_a_client_that_comes_or_goes_is_told(kind: int, hook: str) -> None:
    told = as_json(event(kind, "c", seq=4, end=3, username="u"), rule(hook))
    assert told == {
        "id": f"{INSTANCE}:3:4:{NOW_MS}", "hook": hook, "clientid": "c", "username": "u",
        "timestamp": NOW_MS,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "hook"),
    [(SUBSCRIBED, "session.subscribed"), (UNSUBSCRIBED, "session.unsubscribed")],
)
def test_a_subscription_is_told_with_its_filter(kind: int, hook: str) -> None:
    told = as_json(event(kind, "c", "a/+", qos=1, client_username="ann"), rule(hook, "a/#"))
    assert told == {
        "id": f"{INSTANCE}:0:1:{NOW_MS}", "hook": hook, "clientid": "c", "topic": "a/+", "qos": 1,
        "timestamp": NOW_MS, "username": "ann",
    }  # fmt: skip


@pytest.mark.parametrize("offset", [0, 5])
def test_an_acknowledgement_names_its_message(offset: int) -> None:
    told = as_json(
        event(ACKED, "c", "t", seq=6, qos=1, offset=offset, accepted_ms=NOW_MS - 1),
        rule("message.acked", "t"),
    )
    make = message_id if offset else unstored_id
    assert told["msgid"] == make(NOW_MS - 1, NUMBER, offset or 6)
    assert (told["clientid"], told["topic"], told["qos"]) == ("c", "t", 1)


def test_a_row_is_told_once_however_many_rules_match() -> None:
    rows = JsonRows(options(rule("message.publish", "a", 3), rule("message.publish", "#", 4)))
    found, _ = rows.of(batch((0, 0), (2, 0), message(1, "a"), message(2, "b")), INSTANCE)
    assert [(each.index, each.rule.number) for each in found] == [(0, 3), (1, 4)]


def test_a_row_that_no_rule_matches_is_not_told() -> None:
    rows = JsonRows(options(rule("message.publish", "a")))
    others = [message(1, "b"), event(GAP, text="why"), event(SESSION_ENDED), event(CONNECTED)]
    assert rows.of(batch((0, 0), (9, 9), *others), INSTANCE) == ([], [])


def test_each_row_knows_the_cursor_behind_it() -> None:
    rows = JsonRows(options(ALL, rule("client.connected")))
    told = [message(5), event(CONNECTED, seq=3, end=5), event(CONNECTED, seq=4, end=7), message(8)]
    found, _ = rows.of(batch((2, 2), (9, 9), *told), INSTANCE)
    assert [each.upto for each in found] == [(5, 2), (5, 3), (7, 4), (8, 4)]


def test_the_same_row_in_another_batch_has_the_same_id() -> None:
    rows = JsonRows(options(ALL))
    first, _ = rows.of(batch((0, 0), (5, 0), message(1), message(5)), INSTANCE)
    second, _ = rows.of(batch((1, 4), (9, 4), message(5), message(9)), INSTANCE)
    assert first[1].body == second[0].body


def test_a_row_that_nothing_can_be_made_of_is_named_and_the_others_are_told() -> None:
    broken: Message = message(1, properties=b"\x7f")
    found, poisons = JsonRows(options(ALL)).of(batch((0, 0), (2, 0), broken, message(2)), INSTANCE)
    assert [each.index for each in found] == [1]
    assert [(each.row, each.rule, "0x7F" in each.why) for each in poisons] == [(0, 1, True)]


def test_numbers_that_are_given_again_after_a_restore_make_other_ids() -> None:
    first, again = as_json(message(1)), as_json(message(1, accepted_at_ms=NOW_MS + 1))
    assert first["id"] != again["id"]


def test_a_message_with_qos_0_is_told_whole_to_who_asks() -> None:
    row = unlogged(4, "a/b", b"hi", end=3)
    assert JsonRows(options(ALL)).of(batch((0, 0), (9, 9), row), INSTANCE) == ([], [])
    told = as_json(row, {**ALL, "qos0": True})
    assert told == {
        "id": f"{INSTANCE}:3:4:{NOW_MS}", "hook": "message.publish",
        "msgid": unstored_id(NOW_MS, NUMBER, 4), "clientid": "sender", "username": "",
        "topic": "a/b", "qos": 0, "retain": False, "timestamp": NOW_MS, "payload": "hi",
        "payload_encoding": "utf-8", "properties": {},
    }  # fmt: skip


def test_a_message_with_qos_0_that_cannot_be_read_is_a_dead_letter() -> None:
    row = unlogged(4, "a/b")
    row.body = b"x"
    told = JsonRows(options({**ALL, "qos0": True})).of(batch((0, 0), (9, 9), row), INSTANCE)
    assert told[0] == [] and [poison.rule for poison in told[1]] == [1]
