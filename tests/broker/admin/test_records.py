"""Every record has a JSON schema and words, and can be written and read."""

from typing import Any

import msgspec
import pytest

from broker.admin import records

KINDS: list[Any] = [
    each
    for each in vars(records).values()
    if isinstance(each, type)
    and issubclass(each, msgspec.Struct)
    and each.__module__ == records.__name__
    and each is not records.Page
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_has_a_schema_and_says_what_it_is(kind: Any) -> None:
    schema = msgspec.json.schema(kind)
    described = schema["$defs"][kind.__name__]
    assert described["description"].endswith(".")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"client_id": 1}', type=kind, strict=True) if kind in (
            records.Kicked,
        ) else msgspec.json.decode(b"[]", type=kind)


def test_a_payload_is_left_out_where_nobody_asked_for_it() -> None:
    entry = records.QueueEntry("waits", None, "log", 7, "t", 1, 2, None, None, None)
    assert b"payload" not in msgspec.json.encode(entry)
    entry.payload = None
    assert b'"payload":null' in msgspec.json.encode(entry)


def test_the_address_of_a_log_line_is_called_from() -> None:
    line = records.LogLine("2026-01-01T00:00:00Z", "kick client", "done", from_="127.0.0.1")
    assert msgspec.json.decode(msgspec.json.encode(line))["from"] == "127.0.0.1"
