"""Retained messages as text: a table, CSV, JSON, or one of them in full.

`broker.cli.looking.retained` prints it. The lists are made while the store is read, so they may be
long. Read next: `broker.operations.looking.retained_messages`.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Final

from broker.history.text import printable
from broker.operations.looking.store_time import StoreTime
from broker.operations.sessions.columns import csv_lines, table
from mqtt.message import Message

COLUMNS: Final = ("TOPIC", "BYTES", "QOS", "STORED_AT", "EXPIRES_AT", "PUBLISHER")
PAYLOAD_SHOWN_MAX: Final = 65_536  # bytes of a payload that a terminal gets; JSON has all


def as_table(time: StoreTime, messages: Iterable[Message]) -> Iterator[str]:
    """Yield a table's lines."""
    return table(COLUMNS, (_cells(time, message) for message in messages))


def _cells(time: StoreTime, message: Message) -> tuple[str, ...]:
    return (
        printable(message.topic),
        str(len(message.payload)),
        str(message.qos),
        time.text(message.accepted_at_ms) or "-",
        time.text(message.expires_at_ms) or "never",
        printable(message.publisher) or "-",
    )


def as_csv(time: StoreTime, messages: Iterable[Message]) -> Iterator[str]:
    """Yield lines of CSV with a header; what could control a terminal is escaped."""
    header = [title.lower() for title in COLUMNS]
    return csv_lines(header, (fields(time, message) for message in messages))


def as_json(time: StoreTime, messages: Iterable[Message]) -> Iterator[str]:
    """Yield the lines of a JSON array, a message a line; null is "never" or "nobody"."""
    yield "["
    comma = " "
    for message in messages:
        yield comma + json.dumps(fields(time, message))
        comma = ","
    yield "]"


def message_as_page(time: StoreTime, message: Message) -> Iterator[str]:
    """Yield everything about one message; its payload is text, escaped, or else hexadecimal."""
    kind, shown = _payload(message.payload)
    titles = [*(title.lower() for title in COLUMNS), kind]
    for title, cell in zip(titles, (*_cells(time, message), shown), strict=True):
        yield f"{title:<12}  {cell}"
    if len(message.payload) > PAYLOAD_SHOWN_MAX:
        yield f"{'':<12}  the first {PAYLOAD_SHOWN_MAX} bytes; -o json prints all of them"


def message_as_json(time: StoreTime, message: Message) -> str:
    """Return a JSON object of one message with its whole payload in Base64."""
    payload = base64.b64encode(message.payload).decode()
    return json.dumps({**fields(time, message), "payload_base64": payload}, indent=2)


def _payload(payload: bytes) -> tuple[str, str]:
    """Return what the payload is taken for, and its beginning as that."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "payload hex", payload[:PAYLOAD_SHOWN_MAX].hex()
    # A character that the cut splits is left out.
    return "payload", printable(text.encode()[:PAYLOAD_SHOWN_MAX].decode(errors="ignore"))


def fields(time: StoreTime, message: Message) -> dict[str, object]:
    """Return everything about a message but its payload, under the names of JSON."""
    return {
        "topic": message.topic,
        "bytes": len(message.payload),
        "qos": message.qos,
        "stored_at": time.text(message.accepted_at_ms),
        "expires_at": time.text(message.expires_at_ms),
        "publisher": message.publisher or None,
    }
