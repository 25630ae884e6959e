"""Are keys and fields those that applications know, in the order of the rules?"""

from typing import Any

import pytest

from broker.backends.message_ids import UNSTORED, message_id, node_number, unstored_id
from broker.backends.redis.actions import RedisActions
from broker.backends.rows import Row
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
from tests.broker.backends.told_rows import (
    NODE,
    NOW_MS,
    event,
    message,
    options,
    rule,
    unlogged,
)

NUMBER = node_number(NODE)
ID = message_id(NOW_MS, NUMBER, 7).encode()


def done(row: Row, on: str, topic: str | None, action: str, **values: Any) -> list[list[bytes]]:
    """Return what an action does for a row."""
    expires = values.pop("expires_s", 0)
    told = rule(on, topic, action=action, expires_s=expires)
    return [command for _, command in RedisActions(options(told, **values)).commands(row)]


def test_a_client_is_online() -> None:
    found = done(event(CONNECTED, "dev"), "client.connected", None, "on_client_connected")
    assert [b" ".join(command) for command in found] == [
        b"HSET mqtt:client:dev state 1 online_at 1542338754 offline_at undefined",
        b"HSET mqtt:node:edge@here dev 1542338754",
    ]


def test_a_client_is_offline() -> None:
    found = done(event(DISCONNECTED, "dev"), "client.disconnected", None, "on_client_disconnected")
    assert [b" ".join(command) for command in found] == [
        b"HSET mqtt:client:dev state 0 offline_at 1542338754",
        b"HDEL mqtt:node:edge@here dev",
    ]


@pytest.mark.parametrize(
    ("row", "on", "action", "command"),
    [
        (event(SUBSCRIBED, "dev", "a/#", qos=1), "session.subscribed", "on_subscribed",
         b"HSET mqtt:sub:dev a/# 1"),
        (event(UNSUBSCRIBED, "dev", "a/#"), "session.unsubscribed", "on_unsubscribed",
         b"HDEL mqtt:sub:dev a/#"),
        (event(SESSION_ENDED, "dev"), "session.unsubscribed", "on_unsubscribed",
         b"DEL mqtt:sub:dev"),
        (event(RETAIN_DELETED, "", "a"), "message.publish", "on_retain_delete",
         b"DEL mqtt:retain:a"),
        (event(ACKED, "dev", "a", offset=7, accepted_ms=NOW_MS), "message.acked",
         "on_message_acked_for_pubsub", b"SETMAX mqtt:acked:dev:a " + ID),
        (event(ACKED, "dev", "a", offset=7, accepted_ms=NOW_MS), "message.acked",
         "on_message_acked_for_keep_latest", b"SETMAX mqtt:acked:dev:a " + ID),
    ],
)  # fmt: skip
def test_one_command_is_enough(row: Row, on: str, action: str, command: bytes) -> None:
    assert [b" ".join(each) for each in done(row, on, "#", action)] == [command]


def test_a_message_and_its_place_in_the_list_of_its_topic() -> None:
    row = message(7, "up/t", b"{ }", qos=2, publisher="dev")
    stored, listed = done(row, "message.publish", "#", "on_message_publish")
    assert stored[:2] == [b"HSET", b"mqtt:msg:" + ID]
    fields = dict(zip(stored[2::2], stored[3::2], strict=True))
    assert fields == {
        b"id": ID, b"from": b"dev", b"qos": b"2", b"topic": b"up/t", b"payload": b"{ }",
        b"ts": b"1542338754", b"retain": b"false",
    }  # fmt: skip
    assert listed == [b"ZADD", b"mqtt:msg:up/t", b"1542338754670", ID]


@pytest.mark.parametrize(("expires_s", "seconds"), [(0, b"0"), (60, b"60")])
def test_of_a_topic_the_newest_message_alone_is_kept(expires_s: int, seconds: bytes) -> None:
    row = message(7, "up/t", b"{ }", qos=2, publisher="dev")
    action = "on_message_store_keep_latest"
    (stored,) = done(row, "message.publish", "#", action, expires_s=expires_s)
    assert stored[:4] == [b"NEWEST", b"mqtt:msg:up/t", ID, seconds]
    fields = dict(zip(stored[4::2], stored[5::2], strict=True))
    assert (fields[b"id"], fields[b"qos"], fields[b"topic"]) == (ID, b"2", b"up/t")
    assert (fields[b"payload"], fields[b"from"]) == (b"{ }", b"dev")


def test_the_list_may_be_one_without_times() -> None:
    _, listed = done(message(7), "message.publish", "#", "on_message_publish", score="one")
    assert listed[2] == b"1"


@pytest.mark.parametrize(
    ("expires_at_ms", "expires_s", "seconds"),
    [(0, 0, None), (0, 60, b"60"), (NOW_MS + 1500, 60, b"2"), (NOW_MS + 1, 0, b"1")],
)
def test_a_message_goes_when_it_expires(
    expires_at_ms: int, expires_s: int, seconds: bytes | None
) -> None:
    row = message(7, expires_at_ms=expires_at_ms)
    found = done(row, "message.publish", "#", "on_message_publish", expires_s=expires_s)
    expiries = [each for each in found if each[0] == b"EXPIRE"]
    assert expiries == ([] if seconds is None else [[b"EXPIRE", b"mqtt:msg:" + ID, seconds]])


@pytest.mark.parametrize("offset", [7, 0])
def test_a_retained_message_replaces_all_of_the_one_before(offset: int) -> None:
    body = encode_message(message(0, "a", b"kept", retain=True))
    row = event(RETAINED, "dev", "a", offset=offset, accepted_ms=NOW_MS, body=body, seq=9)
    deleted, stored = done(row, "message.publish", "#", "on_message_retain")
    assert deleted == [b"DEL", b"mqtt:retain:a"]
    assert stored[:2] == [b"HSET", b"mqtt:retain:a"]
    fields = dict(zip(stored[2::2], stored[3::2], strict=True))
    assert fields[b"id"] == (ID if offset else unstored_id(NOW_MS, NUMBER, 9).encode())
    assert (fields[b"payload"], fields[b"retain"]) == (b"kept", b"true")


def test_an_acknowledged_message_of_a_queue_is_gone() -> None:
    row = event(ACKED, "dev", "queue/1", offset=7, accepted_ms=NOW_MS)
    found = done(row, "message.acked", "queue/#", "on_message_acked_for_queue")
    assert found == [
        [b"ZREM", b"mqtt:msg:queue/1", ID],
        [b"DEL", b"mqtt:msg:" + ID],
    ]


def test_rules_act_in_their_order() -> None:
    told = [rule("message.publish", "#", n, commands=[f"SET k {n}", "DEL x"]) for n in (2, 5)]
    found = RedisActions(options(*told)).commands(message(1))
    assert [(number, command[0]) for number, command in found] == [
        (2, b"SET"), (2, b"DEL"), (5, b"SET"), (5, b"DEL"),
    ]  # fmt: skip


PUBLISH = rule("message.publish", "a/#", action="on_message_publish")
STORE = rule("message.publish", "#", 2, action="on_message_store", qos0=True)


def test_a_message_with_qos_0_is_stored_as_others_are_with_an_id_of_its_own() -> None:
    name = unstored_id(NOW_MS, NUMBER, 9).encode()
    acts = RedisActions(options(PUBLISH, STORE))
    assert acts.commands(unlogged(9, "a/b", b"x", retain=True)) == [
        (2, [
            b"HSET", b"mqtt:msg:" + name, b"id", name, b"from", b"sender", b"qos", b"0",
            b"topic", b"a/b", b"payload", b"x", b"ts", b"1542338754", b"retain", b"true",
        ]),
        (2, [b"ZADD", b"mqtt:msg:a/b", b"1542338754670", name]),
    ]  # fmt: skip


def test_a_message_that_two_rules_store_is_one_row() -> None:
    found = RedisActions(options(PUBLISH, STORE)).commands(message(7, "a/b"))
    (first, second) = ([each for number, each in found if number == rule] for rule in (1, 2))
    assert first == second and first[0][1] == b"mqtt:msg:" + ID


def test_a_retained_message_with_qos_0_has_the_id_that_it_is_stored_with() -> None:
    told = unlogged(9, "a", retain=True)
    kept = event(
        RETAINED, "sender", "a", 10, body=told.body, offset=UNSTORED | 9, accepted_ms=NOW_MS
    )
    keep = rule("message.publish", "#", action="on_message_retain")
    acts = RedisActions(options(keep, STORE))
    names = {command[command.index(b"id") + 1] for row in (told, kept)
             for _, command in acts.commands(row) if b"id" in command}  # fmt: skip
    assert names == {unstored_id(NOW_MS, NUMBER, 9).encode()}
