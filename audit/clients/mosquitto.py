"""Make the log of a client of what `mosquitto_sub -F '%U %q %r %m %l %x %t'` printed."""

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Final

from audit.clients.records import HASH_DIGITS, VERSION

FORMAT: Final = "%U %q %r %m %l %x %t"
_FIELDS: Final = 7


class LineError(Exception):
    """A line that is not in the format; one line that says which and what was expected."""


def converted(lines: Iterable[str], client_id: str, log: str = "") -> Iterator[str]:
    """Yield the lines of a log, without line ends. Raises LineError."""
    log = log or secrets.token_hex(8)
    number = 0
    for at, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if not text:
            continue
        number += 1
        record = {"v": VERSION, "log": log, "n": number, "client_id": client_id}
        yield json.dumps({**record, **_received(at, text)}, separators=(",", ":"))


def _received(at: int, text: str) -> dict[str, object]:
    # The topic is last: it may have spaces. Without a payload %x is empty.
    words = text.split(" ", _FIELDS - 1)
    if len(words) < _FIELDS:
        raise LineError(f"line {at}: expected {_FIELDS} fields, {FORMAT!r}, found {len(words)}")
    when, qos, retain, pid, size, payload, topic = words
    try:
        data = bytes.fromhex(payload)
    except ValueError:
        raise LineError(
            f"line {at}: %x: expected hexadecimal digits, found {payload[:40]!r}"
        ) from None
    if str(len(data)) != size:
        raise LineError(f"line {at}: %l: expected {len(data)}, the length of %x, found {size!r}")
    if qos not in ("0", "1", "2"):
        raise LineError(f"line {at}: %q: expected 0, 1 or 2, found {qos!r}")
    if retain not in ("0", "1"):
        raise LineError(f"line {at}: %r: expected 0 or 1, found {retain!r}")
    if not (pid.isdecimal() and pid.isascii()):
        raise LineError(f"line {at}: %m: expected a number, found {pid!r}")
    return {
        "at_us": _microseconds(at, when),
        "event": "received",
        "pid": int(pid) if qos != "0" else 0,
        "qos": int(qos),
        "topic": topic,
        "hash": hashlib.sha256(data).hexdigest()[:HASH_DIGITS],
        "bytes": len(data),
        "retain": retain == "1",
    }


def _microseconds(at: int, text: str) -> int:
    try:
        seconds = Decimal(text)
    except InvalidOperation:
        seconds = Decimal("nan")
    if not seconds.is_finite() or seconds < 0:
        raise LineError(f"line {at}: %U: expected seconds since 1970, found {text!r}")
    return int(seconds * 1_000_000)
