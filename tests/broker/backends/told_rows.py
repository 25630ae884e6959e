"""Rows and rules for the tests of what is done with them."""

from typing import Any, Final

from broker.backends.rows import Cursor, Row, RowBatch
from broker.backends.sink import Options, Rule
from mqtt.message import Message
from storage.tables.feed_rows import PUBLISHED, FeedEvent
from storage.tables.message_record import encode_message

NOW_MS: Final = 1_542_338_754_670
NODE: Final = "edge@here"
INSTANCE: Final = "0123456789abcdef"


def message(offset: int, topic: str = "t", payload: bytes = b"x", **fields: Any) -> Message:
    """Return a message of the log."""
    given = {
        "qos": 1,
        "retain": False,
        "properties": b"",
        "publisher": "sender",
        "accepted_at_ms": NOW_MS,
        "expires_at_ms": 0,
        **fields,
    }
    return Message(topic, payload, offset=offset, **given)


def event(
    kind: int, client_id: str = "c", text: str = "", seq: int = 1, **fields: Any
) -> FeedEvent:
    """Return an event."""
    return FeedEvent(kind, NOW_MS, fields.pop("end", 0), client_id, text, seq=seq, **fields)


def unlogged(seq: int, topic: str = "t", payload: bytes = b"x", **fields: Any) -> FeedEvent:
    """Return a message with QoS 0 that is not in the log."""
    end = fields.pop("end", 0)
    told = message(0, topic, payload, qos=0, **fields)
    made = event(PUBLISHED, told.publisher, topic, seq, end=end, body=encode_message(told))
    made.accepted_ms = told.accepted_at_ms
    return made


def rule(on: str, topic: str | None = None, number: int = 1, **what: Any) -> dict[str, Any]:
    """Return a rule as the process is told of it."""
    return {"number": number, "on": on, "topic": topic, **what}


def options(*rules: dict[str, Any], name: str = "cache", **values: Any) -> Options:
    """Return what a sink is made of."""
    return Options(name, "redis", NODE, values, [Rule(each) for each in rules])


def batch(after: Cursor, upto: Cursor, *rows: Row, run: int = 1) -> RowBatch:
    """Return a batch."""
    return RowBatch(run, after, upto, rows)
