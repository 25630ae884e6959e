"""What an operator is told of a store that was asked, and of one that could not be."""

import json
from typing import Any

import pytest

from broker.operations import backend_check
from broker.operations.backend_check import Health

RULE = {"number": 1, "on": "client.connected", "action": "on_client_connected"}
TOLD: dict[str, Any] = {
    "cache": {
        "name": "cache", "type": "redis", "node": "edge", "rules": [RULE],
        "options": {"servers": ("127.0.0.1:1",), "timeout_ms": 500},
    }
}  # fmt: skip
SERVER: dict[str, Any] = {
    "server": "Redis", "version": "7.0.15", "role": "master", "writable": True,
    "persistence": "append-only file", "fence": "0123abcd:12:3", "problems": ["it forgets"],
}  # fmt: skip


def lines(health: Health) -> list[str]:
    return list(backend_check.as_lines(TOLD, {"cache": health}))


def test_a_store_that_can_be_used_is_described() -> None:
    assert lines(Health(SERVER)) == [
        "cache: redis at 127.0.0.1:1",
        "  rules        1",
        "  server       Redis 7.0.15, master",
        "  writable     yes",
        "  persistence  append-only file",
        "  cursor       position 12, event 3, of the database 0123abcd",
        "  problem      it forgets",
    ]
    (told,) = json.loads(backend_check.as_json(TOLD, {"cache": Health(SERVER)}))
    assert (told["backend"], told["usable"], told["version"]) == ("cache", True, "7.0.15")


def test_a_store_that_nobody_has_written_to_has_no_cursor() -> None:
    assert "cursor       none" in lines(Health({**SERVER, "fence": None, "problems": []}))[-1]


def test_a_store_that_cannot_be_used_says_why() -> None:
    assert lines(Health({}, "refused"))[-1] == "  unusable     refused"
    (told,) = json.loads(backend_check.as_json(TOLD, {"cache": Health({}, "refused")}))
    assert (told["usable"], told["why"]) == (False, "refused")


@pytest.mark.full
def test_a_store_that_is_not_there_is_an_answer() -> None:
    found = backend_check.ask(TOLD)
    assert "127.0.0.1:1" in found["cache"].why


@pytest.mark.full
def test_a_process_that_cannot_work_says_why() -> None:
    odd = {"cache": {**TOLD["cache"], "type": "other"}}
    assert "'other'" in backend_check.ask(odd)["cache"].why


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"servers": ("a:1", "b:2")}, ["a:1", "b:2"]),
        ({"url": "https://me:secret@a:8/rows?token=secret"}, ["https://a:8"]),
        ({"endpoint": "http://127.0.0.1:8000", "region": "eu-west-1"}, ["http://127.0.0.1:8000"]),
        ({"endpoint": None, "region": "eu-west-1"}, ["AWS eu-west-1"]),
        ({"endpoint": None, "region": None}, ["AWS in its default region"]),
    ],
)
def test_a_store_is_named_by_where_it_is(options: dict[str, Any], place: list[str]) -> None:
    assert backend_check.servers_of(options) == place


def test_what_was_made_is_told() -> None:
    found = {
        "a": Health({"create": ["x", "y"]}),
        "b": Health({"create": []}),
        "c": Health({}, "refused"),
    }
    assert list(backend_check.created_lines(found)) == [
        "a: made x, y",
        "b: nothing was missing",
        "c: refused",
    ]


def test_a_store_without_a_cursor_says_that_the_broker_keeps_it() -> None:
    health = Health({"server": "S", "version": "1", "writable": True, "problems": []})
    assert lines(health)[-3:] == [
        "  server       S 1",
        "  writable     yes",
        "  cursor       kept by the broker: rows arrive at least once",
    ]
