"""Does a pass over tables find everything of the window, page by page? Real tables:
`tests/broker/process/test_server_verify.py`."""

from typing import Any

from broker.backends.comparing import digests
from broker.backends.comparing.dynamodb_listing import DynamodbListing
from broker.backends.comparing.listing import (
    CLIENT,
    INDEX,
    MESSAGE,
    NOT_OURS,
    RETAINED,
    SUBSCRIPTION,
    Window,
)
from broker.backends.message_ids import decimal_id, message_number

NODE = 7
SINCE_MS = 1_700_000_000_500
ALL = frozenset({MESSAGE, INDEX, RETAINED, SUBSCRIPTION, CLIENT})
OURS = message_number(SINCE_MS, NODE, 5)


def item(**values: str | int | bytes | list[str]) -> dict[str, Any]:
    kinds = {str: "S", bytes: "B", list: "SS"}
    return {
        name: {"N": str(value)} if isinstance(value, int) else {kinds[type(value)]: value}
        for name, value in values.items()
    }


def listed(tables: dict[str, list[dict[str, Any]]], kinds: frozenset[str] = ALL) -> list[Any]:
    """Return kind, id or name, and digest of everything in tables that are read one by one."""

    def scan(table: str, **asked: Any) -> dict[str, Any]:
        at = asked.get("ExclusiveStartKey", 0)
        assert asked["ConsistentRead"]
        page: dict[str, Any] = {"Items": tables[table][at : at + 1]}
        return page | ({"LastEvaluatedKey": at + 1} if at + 1 < len(tables[table]) else {})

    found = DynamodbListing(scan, list(tables), Window("me", NODE, SINCE_MS, kinds)).entries()
    return sorted(
        (each.kind, str(each.number or each.text or each.place), each.digest) for each in found
    )


def message(number: int, **more: str | int | bytes) -> dict[str, Any]:
    told: dict[str, Any] = {"topic": "t", "sender": "p", "qos": 1, "retain": 0, "payload": "x"}
    return item(**{"msgid": decimal_id(number), **told, "arrived": 1_700_000_000, **more})


def test_messages_of_the_window_and_of_our_node() -> None:
    older, other = message_number(SINCE_MS - 1, NODE, 4), message_number(SINCE_MS, NODE + 1, 4)
    names = [decimal_id(number) for number in (OURS, older, other)]
    body = digests.message_digest(OURS, b"t", b"p", 1, b"x", retain=False, accepted_s=1_700_000_000)
    place = digests.index_digest(OURS, b"t")
    bodies = [message(number) for number in (OURS, older, other)]
    expected = [
        (INDEX, str(OURS), place),
        (MESSAGE, str(OURS), body),
        (NOT_OURS, f"msg {names[1]}", 0),
        (NOT_OURS, f"msg {names[2]}", 0),
    ]
    v1 = {"msg": bodies, "topic_msg_map": [item(topic="t", MsgId=names), item(topic="empty")]}
    assert sorted(listed(v1)) == sorted(expected)
    v2 = {"msg": bodies, "topic_msg": [item(topic="t", msgid=name) for name in names]}
    assert sorted(listed(v2)) == sorted(expected)
    changed = {"msg": [message(OURS, payload=b"\xff")], "topic_msg_map": []}
    assert listed(changed)[0][2] not in (0, body)


def test_sets_are_found_with_what_is_said_of_them() -> None:
    tables = {
        "retain": [message(OURS, payload=b"\xff"), item(topic="u", payload="application")],
        "sub": [item(clientid="c", topic="f/#", qos=2)],
        "client": [item(clientid="c", node="me", connect_state=1, online_at=5)],
    }
    assert listed(tables) == [
        (CLIENT, "c", digests.presence_digest(b"c", 5)),
        (NOT_OURS, "retain u", 0),
        (RETAINED, "t", digests.retained_digest(OURS, b"t", b"p", 1, b"\xff")),
        (SUBSCRIPTION, "c f/#", digests.subscription_digest(b"c", b"f/#", 2)),
    ]
    assert listed(tables, frozenset({MESSAGE, INDEX})) == []
