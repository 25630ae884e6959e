"""A record of a client's log is as the documentation says, or one line says what is wrong."""

import json

import pytest

from audit.clients.records import EVENTS, FIELDS, parsed, row

GOOD = {
    "v": 1, "log": "a", "n": 1, "client_id": "c", "at_us": 5, "event": "received", "pid": 7,
    "qos": 1, "topic": "t", "hash": "0123456789abcdef0123", "bytes": 3, "dup": False,
    "retain": False,
}  # fmt: skip


def test_a_good_record_becomes_a_row_with_a_short_hash() -> None:
    record, problem = parsed(json.dumps({**GOOD, "more": "is ignored"}))
    assert problem is None
    values = dict(zip(FIELDS, row(record), strict=True))
    assert values["hash"] == "0123456789abcdef"
    assert (values["topic"], values["dup"], values["filter"]) == ("t", False, None)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"event": "sent"}, f'event: expected one of {", ".join(EVENTS)}, found "sent"'),
        ({"n": 0}, "n: expected a whole number from 1 to 9223372036854775807, found 0"),
        ({"v": 2}, "v: expected 1, found 2"),
        ({"at_us": 1.5}, "at_us: expected a whole number from 0 to 9007199254740992, found 1.5"),
        ({"retain": 0}, "retain: expected true or false, found 0"),
        ({"topic": None}, "topic: expected a text in a record 'received', found none"),
        ({"log": ""}, 'log: expected a text, found ""'),
        ({"pid": 0}, "pid: expected 0 at QoS 0 and 1 to 65535 above, found 0"),
        ({"qos": True}, "qos: expected a whole number from 0 to 2, found true"),
        (
            {"hash": "XYZ"},
            'hash: expected 16 or more hexadecimal digits of SHA-256, found "XYZ"',
        ),
    ],
)
def test_a_bad_field_is_named_with_what_was_expected(
    change: dict[str, object], problem: str
) -> None:
    assert parsed(json.dumps({**GOOD, **change}))[1] == problem


def test_a_will_is_told_as_a_whole_or_not_at_all() -> None:
    connected = {**GOOD, "event": "connected", "session_present": True, "will_topic": "w"}
    problem = parsed(json.dumps(connected))[1]
    assert problem in {
        f"{name}: expected with will_topic, found none" for name in ("will_hash", "will_bytes")
    }
    whole = {**connected, "will_hash": "00" * 8, "will_bytes": 0}
    assert parsed(json.dumps(whole))[1] is None


@pytest.mark.parametrize("line", ["", "{", "[]", "1"])
def test_a_line_without_an_object_is_named(line: str) -> None:
    assert parsed(line) == ({}, "expected one JSON object")
