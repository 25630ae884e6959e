"""Does a rule act on the rows that it is for, and on no others?"""

import pytest

from broker.backends.sink import Fence, Rule
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DISCONNECTED,
    GAP,
    RETAINED,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSUBSCRIBED,
)
from tests.broker.backends.told_rows import event, message, rule, unlogged

ROWS = {
    "message on a/b": message(1, "a/b"),
    "message on x": message(2, "x"),
    "QoS 0 on a/b in the log": message(3, "a/b", qos=0),
    "QoS 0 on a/b": unlogged(4, "a/b"),
    "QoS 0 on x": unlogged(5, "x"),
    "connected": event(CONNECTED),
    "disconnected": event(DISCONNECTED),
    "subscribed a/b": event(SUBSCRIBED, text="a/b"),
    "subscribed $share/g/a/#": event(SUBSCRIBED, text="$share/g/a/#"),
    "subscribed x": event(SUBSCRIBED, text="x"),
    "subscribed $SYS/#": event(SUBSCRIBED, text="$SYS/#"),
    "unsubscribed a/b": event(UNSUBSCRIBED, text="a/b"),
    "acked a/b": event(ACKED, text="a/b"),
    "acked x": event(ACKED, text="x"),
    "retained a/b": event(RETAINED, text="a/b"),
    "session ended": event(SESSION_ENDED),
    "gap": event(GAP),
}


def taken(told: dict[str, object]) -> set[str]:
    """Return which of the rows a rule takes."""
    made = Rule(told)
    return {name for name, row in ROWS.items() if made.takes(row, "redis")}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (rule("client.connected", action="on_client_connected"), {"connected"}),
        (rule("client.disconnected", commands=["PING"]), {"disconnected"}),
        (rule("message.publish", "a/#", action="on_message_publish"), {"message on a/b"}),
        (rule("message.publish", "#", commands=["PING"]), {"message on a/b", "message on x"}),
        (
            rule("message.publish", "a/#", action="on_message_store", qos0=True),
            {"message on a/b", "QoS 0 on a/b in the log", "QoS 0 on a/b"},
        ),
        (
            rule("message.publish", "x", commands=["PING"], qos0=True),
            {"message on x", "QoS 0 on x"},
        ),
        (rule("message.publish", "+/b", action="on_message_retain"), {"retained a/b"}),
        (
            rule("session.subscribed", "a/#", action="on_subscribed"),
            {"subscribed a/b", "subscribed $share/g/a/#"},
        ),
        (
            rule("session.unsubscribed", "a/#", action="on_unsubscribed"),
            {"unsubscribed a/b", "session ended"},
        ),
        (
            rule("session.subscribed", "#", action="on_subscribed"),
            {"subscribed a/b", "subscribed $share/g/a/#", "subscribed x"},
        ),
        (rule("session.subscribed", "$SYS/#", action="on_subscribed"), {"subscribed $SYS/#"}),
        (rule("session.unsubscribed", "a/#", commands=["PING"]), {"unsubscribed a/b"}),
        (rule("message.acked", "a/#", action="on_message_acked_for_queue"), {"acked a/b"}),
        (rule("message.acked", "#", commands=["PING"]), {"acked a/b", "acked x"}),
    ],
)
def test_a_rule_takes_its_rows(told: dict[str, object], expected: set[str]) -> None:
    assert taken(told) == expected


def test_a_fence_comes_back() -> None:
    found = Fence.decode(Fence("0a", (2**40, 7)).encode())
    assert found is not None and (found.instance, found.cursor) == ("0a", (2**40, 7))


@pytest.mark.parametrize("value", [b"", b"1:2", b"a:1:-2", b"a:1:2:3", b"\xff:x:y"])
def test_what_is_no_fence_counts_as_none(value: bytes) -> None:
    assert Fence.decode(value) is None
