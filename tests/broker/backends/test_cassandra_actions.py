"""Are tables and columns those that applications know, and do statements get their values?"""

import decimal
from typing import Any

import pytest

from broker.backends.actions import ACTIONS
from broker.backends.cassandra_actions import (
    Advance,
    Bound,
    CassandraActions,
    Forget,
    Write,
    stamp,
    typed,
)
from broker.backends.message_ids import message_id, node_number, unstored_id
from broker.backends.rows import Row
from broker.backends.sink import Options, Rule
from broker.backends.templates import CqlStatement
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DISCONNECTED,
    RETAIN_DELETED,
    RETAINED,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSUBSCRIBED,
)
from storage.tables.message_record import encode_message
from tests.broker.backends.told_rows import NODE, NOW_MS, event, message, rule, unlogged

ID = message_id(NOW_MS, node_number(NODE), 7)
MESSAGE = 'INSERT INTO "msg" (topic, msgid, sender, qos, retain, payload, arrived) VALUES'


def acting(*rules: dict[str, Any], **values: Any) -> CassandraActions:
    """Return what rules do."""
    return CassandraActions(Options("cache", "cassandra", NODE, values, [*map(Rule, rules)]))


def done(row: Row, action: str, **values: Any) -> list[tuple[str, list[Any], int]]:
    """Return what an action does for a row."""
    hook = ACTIONS["cassandra"][action].hooks[0]
    topic = None if hook.startswith("client.") else "#"
    told = rule(hook, topic, action=action, expires_s=values.pop("expires_s", 0))
    acts = acting(told, **values)
    found = []
    for number, each in acts.work(row):
        assert isinstance(each, Write) and number == 1
        assert each.text.count("?") == len(each.values)
        assert each.text in acts.texts(), "it is prepared"
        found.append((each.text.partition(" VALUES")[0], each.values, each.ttl_s))
    return found


def test_clients_come_and_go() -> None:
    assert done(event(CONNECTED), "on_client_connected") == [
        ('INSERT INTO "client" (clientid, node, state, connected)', ["c", NODE, 1, NOW_MS], 0)
    ]
    assert done(event(DISCONNECTED), "on_client_disconnected") == [
        ('INSERT INTO "client" (clientid, state, disconnected)', ["c", 0, NOW_MS], 0)
    ]


def test_subscriptions_are_kept_and_go_with_their_session() -> None:
    assert done(event(SUBSCRIBED, text="a/+", qos=2), "on_subscribed") == [
        ('INSERT INTO "sub" (clientid, topic, qos)', ["c", "a/+", 2], 0)
    ]
    assert done(event(UNSUBSCRIBED, text="a/+"), "on_unsubscribed") == [
        ('DELETE FROM "sub" WHERE clientid = ? AND topic = ?', ["c", "a/+"], 0)
    ]
    assert done(event(SESSION_ENDED), "on_unsubscribed") == [
        ('DELETE FROM "sub" WHERE clientid = ?', ["c"], 0)
    ]


def test_a_message_is_one_row_of_its_topic() -> None:
    values = ["t", ID, "sender", 1, 0, b"\xff", NOW_MS]
    assert done(message(7, payload=b"\xff"), "on_message_publish") == [
        (MESSAGE.removesuffix(" VALUES"), values, 0)
    ]
    ((text, _, _),) = done(message(7), "on_message_publish", table_prefix="Mqtt_")
    assert text.startswith('INSERT INTO "mqtt_msg" ')


def test_its_expiry_is_its_own_or_that_of_the_rule_if_cassandra_takes_it() -> None:
    def ttl_s(expires_at_ms: int, expires_s: int) -> int:
        told = message(7, expires_at_ms=expires_at_ms)
        return done(told, "on_message_publish", expires_s=expires_s)[0][2]

    assert ttl_s(0, 30) == 30
    assert ttl_s(NOW_MS + 1500, 30) == 2
    assert ttl_s(NOW_MS + 630_720_000_000, 30) == 630_720_000
    assert ttl_s(NOW_MS + 630_720_001_000, 30) == 0


def test_a_retained_message_is_a_message_and_its_name_by_topic() -> None:
    body = encode_message(message(7, retain=True))
    told = event(RETAINED, "", "t", offset=7, accepted_ms=NOW_MS, body=body)
    first, second = done(told, "on_message_retain")
    assert first[1] == ["t", ID, "sender", 1, 1, b"x", NOW_MS]
    assert second == ('INSERT INTO "retain" (topic, msgid)', ["t", ID], 0)
    unstored = event(RETAINED, "", "t", 5, accepted_ms=NOW_MS, body=body)
    name = unstored_id(NOW_MS, node_number(NODE), 5)
    assert [each[1][1] for each in done(unstored, "on_message_retain")] == [name, name]
    assert done(event(RETAIN_DELETED, "", "t"), "on_retain_delete") == [
        ('DELETE FROM "retain" WHERE topic = ?', ["t"], 0)
    ]


def test_positions_move_and_are_deleted() -> None:
    acts = acting(
        rule("message.acked", "#", action="on_message_acked"),
        rule("session.unsubscribed", "#", 2, action="on_acked_delete"),
    )
    told = event(ACKED, text="t", offset=7, accepted_ms=NOW_MS)
    ((_, advance),) = acts.work(told)
    assert isinstance(advance, Advance)
    assert acts.advance(advance).values == ["c", "t", ID]
    foreign = event(ACKED, text="t", body=b"0001", username="cache")
    ((_, advance),) = acts.work(foreign)
    assert isinstance(advance, Advance) and advance.message_id == "0001"
    ((_, forget),) = acts.work(event(UNSUBSCRIBED, text="t"))
    assert isinstance(forget, Forget) and acts.forget(forget).values == ["c", "t"]


def test_every_row_has_a_later_time_whatever_its_clock_says() -> None:
    rows = [event(CONNECTED), message(1), message(2, accepted_at_ms=NOW_MS - 5), event(ACKED)]
    times = [stamp(0, rows[0])]
    for row in rows[1:]:
        times.append(stamp(times[-1], row))
    assert times == [NOW_MS * 1000 + each for each in range(4)]
    assert stamp(times[-1], message(3, accepted_at_ms=NOW_MS + 1)) == (NOW_MS + 1) * 1000


def test_names_of_own_statements_are_bound_and_never_text() -> None:
    text = "INSERT INTO a (b, c) VALUES (${payload}, ${payload.n});"
    acts = acting(rule("message.publish", "#", commands=[text]))
    ((_, bound),) = acts.work(message(1, payload=b'{"n": [1]}'))
    assert isinstance(bound, Bound)
    assert acts.own == [bound.text] == ["INSERT INTO a (b, c) VALUES (?, ?)"]
    assert bound.values == [b'{"n": [1]}', [1]]


@pytest.mark.parametrize(
    "text",
    ["DROP TABLE a", "BEGIN BATCH DELETE FROM a WHERE b = 1 APPLY BATCH", "SELECT * FROM a",
     "TRUNCATE a", "USE a", "-- DELETE"],
)  # fmt: skip
def test_only_statements_that_change_rows_are_taken(text: str) -> None:
    with pytest.raises(ValueError, match="begins with INSERT, UPDATE, DELETE"):
        CqlStatement(text, "message.publish")
    CqlStatement("delete FROM a WHERE b = ';'", "message.publish")
    with pytest.raises(ValueError, match="without ';'"):
        CqlStatement("DELETE FROM a; DROP TABLE b", "message.publish")


@pytest.mark.parametrize(
    ("value", "type", "wanted"),
    [
        (b"\xff", "blob", b"\xff"),
        ({"a": 1}, "blob", b'{"a":1}'),
        (b"x", "text", "x"),
        (1.5, "varchar", "1.5"),
        ("\ud800", "text", "?"),
        (None, "text", ""),
        (b"12", "bigint", 12),
        (12.0, "int", 12),
        (True, "boolean", True),
        (b"false", "boolean", False),
        (b"1542338754670", "timestamp", NOW_MS),
        ("1.5", "double", 1.5),
        ("0.10", "decimal", decimal.Decimal("0.10")),
        ([1], "list", [1]),
        (b"", "int", None),
        (None, "double", None),
    ],
)
def test_values_get_the_type_of_their_column(value: object, type: str, wanted: object) -> None:
    assert typed(value, type) == wanted


@pytest.mark.parametrize(
    ("value", "type"),
    [(b"x", "int"), (1.5, "int"), ("1e99999999", "bigint"), ("nan", "int"), (b"\xff", "text"),
     ("yes", "boolean"), ([1], "double"), ({"a": 1}, "timestamp"), ("x", "decimal")],
)  # fmt: skip
def test_a_value_that_a_column_does_not_take_is_named(value: object, type: str) -> None:
    with pytest.raises(ValueError, match=f"type {type}"):
        typed(value, type)


def test_a_message_with_qos_0_is_a_row_with_an_id_of_its_own() -> None:
    acts = acting(
        rule("message.publish", "#", action="on_message_publish"),
        rule("message.publish", "#", 2, action="on_message_store", qos0=True),
    )
    ((number, found),) = acts.work(unlogged(9, "a/b"))
    name = unstored_id(NOW_MS, node_number(NODE), 9)
    assert number == 2 and isinstance(found, Write) and found.text.startswith(MESSAGE)
    assert found.values == ["a/b", name, "sender", 0, 0, b"x", NOW_MS]
    assert acts.tables == ["msg"]
    first, second = (each for _, each in acts.work(message(7, "a/b")))
    assert isinstance(first, Write) and isinstance(second, Write)
    assert (first.text, first.values) == (second.text, second.values)


def test_own_statements_get_the_values_of_a_message_with_qos_0() -> None:
    text = "INSERT INTO t (a, b, c) VALUES (${msgid}, ${payload.n}, ${qos})"
    acts = acting(rule("message.publish", "#", commands=[text], qos0=True))
    ((_, found),) = acts.work(unlogged(9, "a", b'{"n":5}'))
    assert isinstance(found, Bound)
    assert found.values == [unstored_id(NOW_MS, node_number(NODE), 9).encode(), 5, b"0"]
