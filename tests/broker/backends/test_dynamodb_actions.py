"""Are tables and attributes those that applications know, and do statements get their values?"""

import base64
from typing import Any

import pytest

from broker.backends.actions import ACTIONS
from broker.backends.dynamodb_actions import (
    ADD,
    ADVANCE,
    DELETE,
    DELETE_ALL,
    KEEP,
    PUT,
    RELEASE,
    REMOVE,
    SET,
    Bound,
    Change,
    DynamodbActions,
)
from broker.backends.dynamodb_tables import number, text
from broker.backends.message_ids import UNSTORED, decimal_id, message_number, node_number
from broker.backends.rows import Row
from broker.backends.sink import Options, Rule
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DELIVERED,
    DISCONNECTED,
    RETAIN_DELETED,
    RETAINED,
    RETURNED,
    SENT,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSUBSCRIBED,
)
from storage.tables.message_record import encode_message
from tests.broker.backends.told_rows import NODE, NOW_MS, event, message, rule, unlogged

AT = NOW_MS // 1000
NUMBER = message_number(NOW_MS, node_number(NODE), 7)
ID = decimal_id(NUMBER)


def acting(*rules: dict[str, Any], **values: Any) -> DynamodbActions:
    """Return what rules do."""
    return DynamodbActions(Options("cache", "dynamodb", NODE, values, [*map(Rule, rules)]))


def done(row: Row, action: str, **values: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what an action does for a row."""
    hook = ACTIONS["dynamodb"][action].hooks[0]
    topic = None if hook.startswith("client.") else "#"
    told = rule(hook, topic, action=action, expires_s=values.pop("expires_s", 0))
    found = []
    for each_rule, each in acting(told, **values).work(row):
        assert isinstance(each, Change)
        assert each_rule == 1
        found.append((each.kind, each.table, each.item))
    return found


@pytest.mark.parametrize(
    ("row", "action", "expected"),
    [
        (event(CONNECTED, "dev"), "on_client_connected",
         (PUT, "client", {"clientid": text("dev"), "node": text(NODE), "connect_state": number(1),
                          "online_at": number(AT), "offline_at": number(0)})),
        (event(DISCONNECTED, "dev"), "on_client_disconnected",
         (SET, "client", {"clientid": text("dev"), "connect_state": number(0),
                          "offline_at": number(AT)})),
        (event(SUBSCRIBED, "dev", "a/#", qos=1), "on_subscribed",
         (PUT, "sub", {"clientid": text("dev"), "topic": text("a/#"), "qos": number(1)})),
        (event(UNSUBSCRIBED, "dev", "a/#"), "on_unsubscribed",
         (DELETE, "sub", {"clientid": text("dev"), "topic": text("a/#")})),
        (event(SESSION_ENDED, "dev"), "on_unsubscribed",
         (DELETE_ALL, "sub", {"clientid": text("dev")})),
        (event(UNSUBSCRIBED, "dev", "a"), "on_acked_delete",
         (DELETE, "acked", {"topic": text("a"), "clientid": text("dev")})),
        (event(RETAIN_DELETED, "", "a"), "on_retain_delete",
         (DELETE, "retain", {"topic": text("a")})),
        (event(ACKED, "dev", "a", offset=7, accepted_ms=NOW_MS), "on_message_acked",
         (ADVANCE, "acked", {"topic": text("a"), "clientid": text("dev"), "msgid": text(ID)})),
    ],
)  # fmt: skip
def test_one_change_is_enough(row: Row, action: str, expected: Any) -> None:
    assert done(row, action) == [expected]


@pytest.mark.parametrize("payload", [b"text", b"\xff", b""])
def test_a_message_and_its_place_in_the_list_of_its_topic(payload: bytes) -> None:
    row = message(7, "up/t", payload, qos=2, publisher="dev")
    stored, listed = done(row, "on_message_publish")
    value = {"B": payload} if payload == b"\xff" else {"S": payload.decode()}
    assert stored == (PUT, "msg", {
        "msgid": text(ID), "topic": text("up/t"), "sender": text("dev"), "qos": number(2),
        "retain": number(0), "payload": value, "arrived": number(AT),
    })  # fmt: skip
    assert listed == (ADD, "topic_msg_map", {"topic": text("up/t"), "MsgId": {"SS": [ID]}})


def test_the_second_layout_has_an_item_for_each_place() -> None:
    _, listed = done(message(7, "up/t"), "on_message_publish", layout="v2", expires_s=60)
    assert listed == (PUT, "topic_msg", {
        "topic": text("up/t"), "msgid": text(ID), "expires_at": number(AT + 60),
    })  # fmt: skip


def test_an_acknowledged_message_of_a_queue_is_gone_with_its_place() -> None:
    row = event(ACKED, "dev", "q", offset=7, accepted_ms=NOW_MS)
    gone = (DELETE, "msg", {"msgid": text(ID)})
    assert done(row, "on_message_acked_for_queue") == [
        gone, (REMOVE, "topic_msg_map", {"topic": text("q"), "MsgId": {"SS": [ID]}}),
    ]  # fmt: skip
    assert done(row, "on_message_acked_for_queue", layout="v2") == [
        gone, (DELETE, "topic_msg", {"topic": text("q"), "msgid": text(ID)}),
    ]  # fmt: skip


@pytest.mark.parametrize("offset", [7, 0])
def test_a_retained_message_is_the_whole_message(offset: int) -> None:
    body = encode_message(message(0, "a", b"kept", retain=True))
    row = event(RETAINED, "dev", "a", offset=offset, accepted_ms=NOW_MS, body=body, seq=9)
    ((kind, table, item),) = done(row, "on_message_retain")
    unstored = decimal_id(message_number(NOW_MS, node_number(NODE), UNSTORED | 9))
    assert (kind, table) == (PUT, "retain")
    assert item["msgid"] == text(ID if offset else unstored)
    assert (item["payload"], item["retain"]) == (text("kept"), number(1))


@pytest.mark.parametrize(
    ("expires_at_ms", "expires_s", "at"),
    [(0, 0, None), (0, 60, AT + 60), (NOW_MS + 1500, 60, AT + 2), (NOW_MS + 1, 0, AT + 1)],
)
def test_a_message_goes_when_it_expires(expires_at_ms: int, expires_s: int, at: int | None) -> None:
    row = message(7, expires_at_ms=expires_at_ms)
    (_, _, item), _ = done(row, "on_message_publish", expires_s=expires_s)
    assert item.get("expires_at") == (None if at is None else number(at))


def test_an_id_is_the_number_in_decimal_and_base64() -> None:
    assert base64.b64decode(ID + "==") == str(NUMBER).encode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clientid", text("dev")),
        ("qos", number(2)),
        ("timestamp", number(NOW_MS)),
        ("expiry", text("")),
        ("retain", {"BOOL": True}),
        ("msgid", text(ID)),
        ("payload", text('{"a":1,"b":[2.5,null,true],"c":"x"}')),
        ("payload.a", number(1)),
        ("payload.b.0", {"N": "2.5"}),
        ("payload.b.1", {"NULL": True}),
        ("payload.b.2", {"BOOL": True}),
        ("payload.b", text("[2.5,null,true]")),
        ("payload.c", text("x")),
        ("payload.none", text("")),
        ("user_properties.none", text("")),
    ],
)
def test_values_have_types(name: str, value: Any) -> None:
    row = message(
        7, "t", b'{"a":1,"b":[2.5,null,true],"c":"x"}', qos=2, retain=True, publisher="dev"
    )
    told = rule("message.publish", "#", 3, commands=[f"SELECT ${{{name}}}"])
    ((number_of_rule, bound),) = acting(told).work(row)
    assert isinstance(bound, Bound)
    assert (number_of_rule, bound.text, bound.values) == (3, "SELECT ?", [value])


def test_a_text_that_is_no_utf_8_is_not_what_stops_a_row() -> None:
    told = rule("message.publish", "#", commands=["SELECT ${payload.a}${payload.b}"])
    ((_, bound),) = acting(told).work(message(7, "t", b'{"a":"\\ud800","b":["\\ud800"]}'))
    assert isinstance(bound, Bound)
    assert bound.values == [text("?"), text('["?"]')]


@pytest.mark.parametrize(("body", "value"), [(b"", ID), (b"m", "m")])
def test_a_message_that_a_store_has_told_is_called_what_it_was_there(
    body: bytes, value: str
) -> None:
    told = rule("message.delivered", "#", commands=["SELECT ${msgid}"])
    row = event(SENT, "c", "t", offset=7, accepted_ms=NOW_MS, body=body)
    ((_, bound),) = acting(told).work(row)
    assert isinstance(bound, Bound)
    assert bound.values == [text(value)]


def test_a_whole_message_has_the_id_of_the_store() -> None:
    told = rule("message.publish", "#", commands=["SELECT ${message}"])
    ((_, bound),) = acting(told).work(message(7))
    assert isinstance(bound, Bound)
    assert f'"id":"{ID}"' in bound.values[0]["S"]


def test_only_the_tables_of_the_rules_are_needed() -> None:
    publish = rule("message.publish", "#", action="on_message_publish")
    own = rule("message.publish", "#", commands=["SELECT 1"])
    assert acting(own).tables == []
    assert acting(publish, own).tables == ["msg", "topic_msg_map"]
    assert acting(publish, layout="v2").tables == ["msg", "topic_msg"]


@pytest.mark.parametrize("kind, change", [(DELIVERED, KEEP), (RETURNED, RELEASE)])
def test_a_message_of_a_queue_is_kept_for_a_client_or_given_back(kind: int, change: str) -> None:
    made = acting(rule("session.subscribed", "#", action="on_message_fetch_for_queue"))
    row = event(kind, "c", "t", username="cache", body=b"m")
    ((_, work),) = made.work(row)
    assert isinstance(work, Change) and (work.kind, work.table) == (change, "msg")
    assert work.item == {"msgid": text("m"), "holdfast_claim": text("c")}


def test_an_acknowledged_message_of_the_store_has_its_own_id() -> None:
    made = acting(rule("message.acked", "#", action="on_message_acked"))
    for told, name in (("#" + "7".zfill(39), decimal_id(7)), ("m", "m")):
        row = event(ACKED, "c", "t", username="cache", body=told.encode())
        ((_, work),) = made.work(row)
        assert isinstance(work, Change) and work.item["msgid"] == text(name)


def test_a_message_with_qos_0_is_an_item_with_an_id_of_its_own() -> None:
    acts = acting(
        rule("message.publish", "#", action="on_message_publish"),
        rule("message.publish", "#", 2, action="on_message_store", qos0=True),
    )
    name = decimal_id(message_number(NOW_MS, node_number(NODE), UNSTORED | 9))
    found = acts.work(unlogged(9, "a/b"))
    assert [number for number, _ in found] == [2, 2]
    put, add = (each for _, each in found)
    assert isinstance(put, Change) and isinstance(add, Change)
    assert (put.kind, put.table, put.key) == (PUT, "msg", ("msg", name))
    assert (put.item["qos"], put.item["topic"], put.item["payload"]) == (
        number(0), text("a/b"), text("x"),
    )  # fmt: skip
    assert (add.kind, add.item["topic"]) == (ADD, text("a/b"))
    both = acts.work(message(7, "a/b"))
    assert len({each.key for _, each in both if isinstance(each, Change)}) == 2


def test_own_statements_get_the_values_of_a_message_with_qos_0() -> None:
    statement = "INSERT INTO \"t\" VALUE {'id': ${msgid}, 'n': ${payload.n}, 'm': ${message}}"
    acts = acting(rule("message.publish", "#", commands=[statement], qos0=True))
    ((_, found),) = acts.work(unlogged(9, "a", b'{"n":5}'))
    name = decimal_id(message_number(NOW_MS, node_number(NODE), UNSTORED | 9))
    assert isinstance(found, Bound)
    assert found.values[:2] == [text(name), {"N": "5"}]
    assert f'"id":"{name}"' in found.values[2]["S"] and '"qos":0' in found.values[2]["S"]
