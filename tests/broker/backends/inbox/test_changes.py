"""Is a change that an application tells of read as it is meant, and refused in a line otherwise?"""

import json
from typing import Any

import pytest

from broker.backends.inbox.changes import (
    CHANGE_BYTES_MAX,
    UNANSWERED_MAX,
    Unreadable,
    Window,
    read,
)


def told(**fields: Any) -> bytes:
    """Return a change as applications write it."""
    return json.dumps({"type": "subscribe", "clientid": "c", "topic": "a/#", **fields}).encode()


@pytest.mark.parametrize(
    "fields, qos",
    [({"qos": 1}, 1), ({"qos": "2"}, 2), ({}, 0), ({"type": "unsubscribe", "qos": 7}, None)],
)
def test_a_change_is_read(fields: dict[str, Any], qos: int | None) -> None:
    assert read(told(**fields)) == {"client_id": "c", "topic": "a/#", "qos": qos}


@pytest.mark.parametrize(
    "raw, why",
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", "expected an object"),
        (told(type="publish"), "type subscribe or unsubscribe"),
        (told(clientid=1), "expected a text as clientid"),
        (told(clientid=""), "expected a text as clientid"),
        (told(topic=None), "expected a text as topic"),
        (told(topic="\ud800"), "expected a text as topic"),
        (told(topic="x" * 65_536), "expected a text as topic"),
        (told(qos=3), "expected 0, 1 or 2 as qos"),
        (told(qos=True), "expected 0, 1 or 2 as qos"),
        (b"x" * (CHANGE_BYTES_MAX + 1), "bytes: expected at most"),
    ],
)
def test_what_is_no_change_is_refused_in_one_short_line(raw: bytes, why: str) -> None:
    with pytest.raises(Unreadable) as problem:
        read(raw)
    assert why in str(problem.value)
    assert len(str(problem.value)) < 1000 and "\n" not in str(problem.value)


def test_a_change_is_done_when_the_broker_has_answered() -> None:
    said: list[dict[str, Any]] = []
    done: list[str] = []
    window = Window(said.append)
    window.tell(told(), lambda: done.append("a"))
    window.tell(told(qos=1), lambda: done.append("b"))
    assert [each["change"] for each in said] == [1, 2] and done == []
    window.answered([2, 2, 9])
    assert done == ["b"]
    window.answered([1])
    assert done == ["b", "a"]


def test_what_is_no_change_is_done_at_once_and_told() -> None:
    said: list[dict[str, Any]] = []
    done: list[str] = []
    window = Window(said.append)
    window.tell(b"{", lambda: done.append("a"))
    assert done == ["a"] and list(said[0]) == ["unreadable"]
    assert window.wait_for_room() == UNANSWERED_MAX


def test_only_so_many_are_unanswered() -> None:
    window = Window(lambda told: None)
    for _ in range(UNANSWERED_MAX - 1):
        window.tell(told(), lambda: None)
    assert window.wait_for_room() == 1
