"""Retained messages as text: a list, or one of them in full.

`broker.cli.looking.retained` prints it. Read next: `broker.operations.looking.retained_messages`.
"""

import base64
import json
from collections.abc import Iterator
from typing import Final

from broker.operations.looking.listing import Listing
from broker.operations.looking.store_time import StoreTime
from mqtt.errors import MqttError
from mqtt.message import Message
from mqtt.packets import PUBLISH
from mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    Properties,
    read,
)
from mqtt.wire import Reader
from storage.history.words import printable

FIELDS: Final = ("topic", "bytes", "qos", "stored_at", "expires_at", "publisher")


def _expires(moment: str | None) -> str:
    return moment or "never"


RETAINED: Final = Listing(
    [(field.upper(), field) for field in FIELDS], name="topic", cells={"expires_at": _expires}
)
PAYLOAD_FORMATS: Final = ("bytes", "text")  # by the indicator
PAYLOAD_SHOWN_MAX: Final = 65_536  # bytes of a payload that a terminal gets; JSON has all


def message_as_page(time: StoreTime, message: Message) -> Iterator[str]:
    """Yield everything about one message; its payload is text, escaped, or else hexadecimal."""
    kind, shown = _payload(message.payload)
    said, user = _properties(message)
    rows = [
        (title, printable(RETAINED.text(title, value)))
        for title, value in fields(time, message).items()
    ]
    rows += [(name, printable(value)) for name, value in said.items() if value is not None]
    rows += [("user property", f"{printable(name)} = {printable(value)}") for name, value in user]
    rows.append((kind, shown))
    width = max(12, *(len(title) for title, _ in rows))
    for title, cell in rows:
        yield f"{title:<{width}}  {cell}"
    if len(message.payload) > PAYLOAD_SHOWN_MAX:
        yield f"{'':<{width}}  the first {PAYLOAD_SHOWN_MAX} bytes; -o json prints all of them"


def message_as_json(time: StoreTime, message: Message) -> str:
    """Return a JSON object of one message with its whole payload in Base64."""
    payload = base64.b64encode(message.payload).decode()
    told = {**fields(time, message), **properties(message), "payload_base64": payload}
    return json.dumps(told, indent=2)


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


def properties(message: Message) -> dict[str, object]:
    """Return what the publisher has said besides, in MQTT 5, under the names of JSON."""
    said, user = _properties(message)
    return {**said, "user_properties": user}


def _properties(message: Message) -> tuple[dict[str, str | None], list[tuple[str, str]]]:
    """Return the properties that are there once at most, and the user properties."""
    raw = message.properties
    problem = None
    try:
        found = read(Reader(raw, 0, len(raw)), PUBLISH, len(raw))
    except MqttError as damage:  # of the row: a publisher's mistake is never stored
        found, problem = Properties(), str(damage)
    correlation = found.binaries.get(CORRELATION_DATA)
    indicator = found.numbers.get(PAYLOAD_FORMAT_INDICATOR)
    said = {
        "content_type": found.strings.get(CONTENT_TYPE),
        "payload_format": None if indicator is None else PAYLOAD_FORMATS[indicator],
        "response_topic": found.strings.get(RESPONSE_TOPIC),
        "correlation_data_base64": None
        if correlation is None
        else base64.b64encode(correlation).decode(),
        "properties_problem": problem,
    }
    return said, found.user
