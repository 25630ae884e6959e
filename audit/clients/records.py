"""The log of a client: its fields, and whether a record is as docs/audit-clients.md says.

Plain code without Spark: workers call it for every line. The loggers have copies of their own of
what they need of it, because they run where the audit is not installed.
"""

import json
import re
from typing import Any, Final

VERSION: Final = 1
HASH_DIGITS: Final = 16
BYTES_MAX: Final = 268_435_455
CLOCK_MAX_US: Final = 1 << 53
NUMBER_MAX: Final = (1 << 63) - 1

# name -> (type of Spark, smallest, largest)
_NUMBERS: Final[dict[str, tuple[str, int, int]]] = {
    "v": ("int", VERSION, VERSION),
    "n": ("long", 1, NUMBER_MAX),
    "at_us": ("long", 0, CLOCK_MAX_US),
    "pid": ("int", 0, 65_535),
    "qos": ("int", 0, 2),
    "bytes": ("int", 0, BYTES_MAX),
    "reason": ("int", 0, 255),
    "will_qos": ("int", 0, 2),
    "will_bytes": ("int", 0, BYTES_MAX),
}
_FLAGS: Final = ("session_present", "dup", "retain", "will_retain")
_HASHES: Final = ("hash", "will_hash")
_TEXTS: Final = ("log", "client_id", "event", "topic", "filter", "server", "will_topic")
_HASH: Final = re.compile(f"[0-9a-f]{{{HASH_DIGITS},64}}")

# The columns, in the order of the table.
FIELDS: Final[dict[str, str]] = {
    **dict.fromkeys(("log", "client_id", "event"), "string"),
    **{name: kind for name, (kind, _, _) in _NUMBERS.items()},
    **dict.fromkeys(_FLAGS, "boolean"),
    **dict.fromkeys(("topic", "hash", "filter", "server", "will_topic", "will_hash"), "string"),
}
_ALWAYS: Final = ("v", "log", "n", "client_id", "at_us", "event")
# event -> the fields it must have besides
EVENTS: Final[dict[str, tuple[str, ...]]] = {
    "connected": ("session_present",),
    "disconnected": (),
    "published": ("pid", "qos", "topic", "hash", "bytes"),
    "puback": ("pid", "reason"),
    "pubrec": ("pid", "reason"),
    "pubcomp": ("pid", "reason"),
    "received": ("pid", "qos", "topic", "hash", "bytes", "retain"),
    "subscribed": ("filter", "reason"),
    "unsubscribed": ("filter", "reason"),
    "closed": (),
}
_WILL: Final = ("will_topic", "will_hash", "will_bytes")


def parsed(line: str) -> tuple[dict[str, Any], str | None]:
    """Return the record of a line of JSON, and what is wrong with it."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}, "expected one JSON object"
    if not isinstance(record, dict):
        return {}, "expected one JSON object"
    return record, problem(record)


def problem(record: dict[str, Any]) -> str | None:
    """Return what is wrong with a record: which field, and what was expected."""
    event = record.get("event")
    if event not in EVENTS:
        return f"event: expected one of {', '.join(EVENTS)}, found {_shown(event)}"
    for name in (*_ALWAYS, *EVENTS[event]):
        if record.get(name) is None:
            return f"{name}: expected {_expected(name)} in a record {event!r}, found none"
    for name in FIELDS:
        value = record.get(name)
        if value is not None and not _fits(name, value):
            return f"{name}: expected {_expected(name)}, found {_shown(value)}"
    if (event in ("published", "received")) and (record["qos"] > 0) != (record["pid"] > 0):
        return f"pid: expected 0 at QoS 0 and 1 to 65535 above, found {record['pid']}"
    given = [name for name in _WILL if record.get(name) is not None]
    if given and len(given) < len(_WILL):
        return f"{next(iter(set(_WILL) - set(given)))}: expected with {given[0]}, found none"
    return None


def _fits(name: str, value: object) -> bool:
    if name in _NUMBERS:
        _, low, high = _NUMBERS[name]
        return type(value) is int and low <= value <= high
    if name in _FLAGS:
        return isinstance(value, bool)
    if name in _HASHES:
        return isinstance(value, str) and _HASH.fullmatch(value) is not None
    return (isinstance(value, str) and value != "") or (name == "client_id" and value == "")


def _expected(name: str) -> str:
    if name in _NUMBERS:
        _, low, high = _NUMBERS[name]
        return f"{low}" if low == high else f"a whole number from {low} to {high}"
    if name in _FLAGS:
        return "true or false"
    if name in _HASHES:
        return f"{HASH_DIGITS} or more hexadecimal digits of SHA-256"
    return "a text"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def row(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the columns of a good record; hashes are cut to the same length."""
    values = {name: record.get(name) for name in FIELDS}
    for name in _HASHES:
        value = values[name]
        if value is not None:
            values[name] = value[:HASH_DIGITS]
    return tuple(values.values())
